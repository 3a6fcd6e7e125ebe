"""States for `benchmarks/fragmentation.py`: free capacity at random moments of simulations of real and mixed work."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.wiring import queue_table
from autopilot.app.runs.world import World, build_world
from autopilot.core.fragmentation.supply import Stock, domains_of
from autopilot.core.intake.assemble import assemble
from autopilot.core.model.forecast import ExpectedMix, MixKind
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.placement.whatif import WhatIf
from benchmarks.kit import FILES, data_folder
from models.expected_mix import kind_of
from simulator.baselines.textbook import fifo_skip
from simulator.running.cluster_collector import ClusterCollector
from simulator.running.simulation import Simulation
from simulator.world.physics import PHYSICS
from simulator.world.work import Jobs

JITTER = 0.5
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class FreeState:
    """The cluster of one source at one moment, with the mix of that source."""

    source: str
    seed: int
    at_s: float
    snapshot: ClusterSnapshot
    mix: ExpectedMix
    free_gpus: float


@dataclass(frozen=True, slots=True)
class Source:
    """Where work comes from: a scenario, or the first jobs of a trace on a cluster."""

    name: str
    scenario: str = ""
    file: str = ""
    column: str = ""
    value: str = ""
    rows: tuple[int, int] = (0, 0)
    cluster: str = ""
    speed: float = 1.0  # arrivals come this much faster than in the trace


SOURCES = (
    Source("openb", file="openb_2023/pods_default.parquet", rows=(2500, 4500), cluster="16x8", speed=20.0),
    Source(
        "P1",
        file="philly_jobs/jobs.parquet",
        column="tenant",
        value=FILES["P1"][0],
        rows=(0, 800),
        cluster=FILES["P1"][1],
    ),
    Source("mixed", scenario="mixed"),
)


def worlds(source: Source, seed: int) -> World | None:
    """The world of a source; None where its trace is absent."""
    if source.scenario:
        return build_world(SimulateOptions(scenario=source.scenario, seed=seed, jitter_ratio=JITTER))
    path = data_folder() / source.file
    if not path.exists():
        return None
    import pandas as pd

    frame = pd.read_parquet(path)
    if source.column:
        frame = frame[frame[source.column] == source.value]
    frame = frame[frame["gpus"] > 0].sort_values("submit_s", kind="stable").iloc[slice(*source.rows)]
    frame = frame.assign(submit_s=frame["submit_s"] / source.speed)
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "jobs.parquet"
        frame.to_parquet(part)
        return build_world(
            SimulateOptions(jobs=part, cluster=source.cluster, seed=seed, jitter_ratio=JITTER, physics="ideal")
        )


def states(source: Source, seed: int, moments: int) -> Iterator[FreeState]:
    """The states of one run at random moments before its last arrival."""
    world = worlds(source, seed)
    if world is None:
        return
    jobs = world.jobs()
    services = world.fleet(jobs)
    last_s = max(jobs.submit_s)
    simulation = Simulation(
        world.inventory,
        jobs,
        lambda _: fifo_skip(),
        PHYSICS[world.physics],
        checkers=(),
        horizon_s=last_s + 1.0,
        ready_wakes=services is not None,
    )
    if services is not None:
        services.arm(simulation.engine)
    queues, queue_of_tenant = queue_table(world.spec.queues, simulation.cluster)
    collector = ClusterCollector(
        simulation.cluster, queues, queue_of_tenant, services.table if services is not None else None
    )
    found: list[tuple[float, ClusterSnapshot]] = []

    def look(now_s: float) -> None:
        found.append((now_s, assemble([collector.peek(now_s)], now_s)[0]))

    begin_s = min(jobs.submit_s)
    for at_s in np.random.default_rng([7, seed]).uniform(begin_s, last_s, moments).tolist():
        simulation.engine.at(at_s, look, essential=False)
    mix = typical_mix(jobs, world.inventory.names.gpu_models)
    simulation.run()
    for at_s, snapshot in found:
        whatif = WhatIf(snapshot)
        free = Stock(whatif, whatif.node_ok, domains_of(whatif, whatif.node_ok, ())).gpus
        yield FreeState(source.name, seed, at_s, snapshot, mix, free)


def typical_mix(jobs: Jobs, models: Sequence[str]) -> ExpectedMix:
    """The mix of all jobs of a source, as arrivals per day."""
    count: Counter[MixKind] = Counter()
    for job in range(len(jobs)):
        shape = jobs.shape_of(job)
        if shape.gpus > 0 and jobs.service[job] < 0:
            allowed = tuple(name for place, name in enumerate(models) if shape.models >> place & 1)
            kind = kind_of(shape.gpus, shape.per_member, shape.milli, shape.profile, shape.topology)
            count[replace(kind, gpu_models=allowed if len(allowed) < len(models) else ())] += 1
    kinds = tuple(sorted(count, key=repr))
    rate = np.array([[float(count[kind])] for kind in kinds])
    return ExpectedMix("trace", 0.0, kinds, (DAY_S,), (0.5,), rate, rate[:, :, None])
