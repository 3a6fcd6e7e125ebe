"""Every owner returns at once: 4,000 GPUs, 300 tenants, and borrowers hold the whole cluster.

250 tenants are guaranteed nine tenths of 500 nodes of eight H100 and use nothing of it. The other 50 fill the cluster
with training that saves every 10, 30 or 60 minutes, or never; a fifth of it is elastic. After 85 minutes each owner
submits, in the same second, gangs of 1 to 16 GPUs for its whole guarantee. Physics `real`: a grace of 120 s, a store
that takes five checkpoints at a time. An owner has its guarantee back when the last of those gangs has started; that
must be within one grace and two ticks (of 5 s, as live). Lost work is split into work since the last periodic
checkpoint, and work that could have been saved within the grace if the victim had the store to itself (no bandwidth).
CPU is that of a whole tick: observe and decide.

    python -m benchmarks.reclaim_storm [--quick] [--nodes 500] [--tenants 300] [--seed 1] [--policy autopilot]
        [--json OUT]
    python -m benchmarks.reclaim_storm --profile [--quick]

`--quick` runs it with 40 nodes and 30 tenants; `--profile` prints where the ticks after the return spend their time.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, isnan
from typing import Any

import numpy as np

from autopilot.app.runs.wiring import Managed, manage
from autopilot.app.runs.world import World
from autopilot.core.model.memory import Step
from autopilot.settings import load_policy
from benchmarks.kit import FIGURE, ended, judged, options
from simulator.checkers import CHECKERS, Rules
from simulator.checkers.base import TICK_S
from simulator.outcome.results import policy_result, quantile
from simulator.running.engine import Scheduler
from simulator.running.simulation import Simulated, Simulation
from simulator.specs.clusterfile import ClusterSpec, shape_cluster
from simulator.specs.clusterqueues import ROOT, QueueSpec
from simulator.specs.inventory import build_inventory
from simulator.world.cluster import Cluster
from simulator.world.physics import PHYSICS
from simulator.world.work import Jobs, Shape

GPUS_PER_NODE = 8
GUEST_PART = 6  # one tenant in six is a guest
GUARANTEED = 0.9  # of the cluster
WIDTHS = (1, 2, 4, 8, 16)
GUEST_WIDTHS = (1, 2, 4, 8, 8, 16, 32)
SAVES_S = (600.0, 1800.0, 3600.0, inf)
RETURN_S = 5100.0
WATCHED_S = 1800.0
"""Length of the run after the return."""
SIZE = ("owners", "tenants", "gpus", "gangs_of_owners")
OWNED_S, BORROWED_S = 3600.0, 6 * 3600.0
"""Run times of the jobs of owners and guests."""


def storm(nodes: int, tenants: int, seed: int) -> World:
    """The world of a storm on `nodes` nodes. Owners are named o-000 ..., guests g-000 ..."""
    rng = np.random.default_rng(seed)
    guests = max(1, tenants // GUEST_PART)
    shares = _shares(rng, tenants - guests, int(nodes * GPUS_PER_NODE * GUARANTEED))
    shape = shape_cluster(nodes, GPUS_PER_NODE)
    model = shape.pools[0].gpu_model
    queues = tuple(
        QueueSpec(name, ROOT, {model: gpus} if gpus else {}, None, 1.0, 0, None)
        for name, gpus in [
            *((f"o-{n:03d}", gpus) for n, gpus in enumerate(shares)),
            *((f"g-{n:03d}", 0) for n in range(guests)),
        ]
    )
    spec = ClusterSpec(f"{nodes}x{GPUS_PER_NODE}", shape.pools, queues)
    jobs = Jobs()
    for width in _widths(rng, nodes * GPUS_PER_NODE, GUEST_WIDTHS):
        elastic = width >= 2 * GPUS_PER_NODE and rng.random() < 0.5
        jobs.add(
            f"guest-{len(jobs):05d}",
            f"g-{rng.integers(guests):03d}",
            _gang(width, GPUS_PER_NODE if elastic else width),
            0.0,
            BORROWED_S,
            checkpoint_interval_s=float(rng.choice(SAVES_S)),
        )
    for owner, gpus in enumerate(shares):
        for width in _widths(rng, gpus):
            jobs.add(f"owner-{len(jobs):05d}", f"o-{owner:03d}", _gang(width, width), RETURN_S, OWNED_S)
    return World(
        "reclaim storm",
        seed,
        "real",
        spec,
        build_inventory(spec),
        (),
        telemetry="off",
        durations="last-two",
        _jobs=jobs,
    )


def _widths(rng: np.random.Generator, gpus: int, choice: Sequence[int] = WIDTHS) -> list[int]:
    """Widths of gangs that add up to `gpus`."""
    found: list[int] = []
    while (left := gpus - sum(found)) > 0:
        found.append(int(rng.choice([width for width in choice if width <= left])))
    return found


def _gang(width: int, least: int) -> Shape:
    return Shape(gpus=width, per_member=min(width, GPUS_PER_NODE), min_gpus=least)


def _shares(rng: np.random.Generator, owners: int, gpus: int) -> list[int]:
    """Guarantees that add up to `gpus`, at least 1 each, the largest about ten times the smallest."""
    weight = rng.uniform(1.0, 10.0, owners)
    shares = 1 + np.floor((gpus - owners) * weight / weight.sum()).astype(int)
    shares[: gpus - int(shares.sum())] += 1
    found: list[int] = shares.tolist()
    return found


@dataclass(slots=True)
class Clock:
    """Counts the CPU of every tick, and profiles those from the return on."""

    ask: Callable[[float], Step | None]
    profile: cProfile.Profile | None = None
    ticks: list[tuple[float, float, int]] = field(default_factory=list)  # (virtual time, CPU s, proposals)

    def tick(self, now_s: float) -> Step | None:
        """One tick of the controller."""
        watched = self.profile if now_s >= RETURN_S else None
        began_s = time.process_time()
        step = self.ask(now_s) if watched is None else watched.runcall(self.ask, now_s)
        proposals = 0 if step is None else len(step.decision.plan.proposals)
        self.ticks.append((now_s, time.process_time() - began_s, proposals))
        return step


def play(world: World, policy: str, profile: cProfile.Profile | None = None) -> tuple[Simulated, Clock]:
    """The storm under one policy, all checkers on, until half an hour after the return."""
    chosen = load_policy(policy)
    clocks: list[Clock] = []

    def make(cluster: Cluster) -> Scheduler:
        scheduler, running = manage(
            cluster,
            Managed(
                name=chosen.name,
                policy=chosen,
                seed=world.seed,
                durations=world.durations,
                telemetry="off",
                queues=world.spec.queues,
            ),
        )
        clocks.append(Clock(running.controller.tick, profile))
        running.controller.tick = clocks[0].tick  # type: ignore[method-assign]
        return scheduler

    simulation = Simulation(
        world.inventory,
        world.jobs(),
        make,
        PHYSICS[world.physics],
        checkers=CHECKERS,
        rules=Rules.of_policy(chosen, queues=world.spec.queues),
        horizon_s=RETURN_S + WATCHED_S,
    )
    return simulation.run(), clocks[0]


def restored_s(simulated: Simulated) -> dict[str, float]:
    """Time from the return until the last gang of each owner has started; inf where one still waits."""
    cluster, jobs = simulated.cluster, simulated.cluster.jobs
    found: dict[str, float] = {}
    for job, start_s in enumerate(cluster.first_start_s):
        if jobs.submit_s[job] == RETURN_S:
            owner = jobs.tenants[jobs.tenant[job]]
            found[owner] = max(found.get(owner, 0.0), inf if isnan(start_s) else start_s - RETURN_S)
    return found


def figures(world: World, policy: str, simulated: Simulated, clock: Clock) -> dict[str, Any]:
    """The figures of the run."""
    waits = sorted(restored_s(simulated).values())
    bound_s = load_policy(policy).preemption.grace_s + 2 * TICK_S
    after = [tick for tick in clock.ticks if tick[0] >= RETURN_S]
    worst = max(after, key=lambda tick: tick[1])
    stops = policy_result(simulated)["disruptions"]
    jobs = simulated.cluster.jobs
    return {
        "policy": policy,
        "gpus": world.spec.gpus,
        "tenants": len(world.spec.queues),
        "owners": len(waits),
        "gangs_of_owners": sum(submit_s == RETURN_S for submit_s in jobs.submit_s),
        "bound_s": bound_s,
        "restored_s_p50": quantile(waits, 0.50),
        "restored_s_p95": quantile(waits, 0.95),
        "restored_s_worst": waits[-1],
        "preemptions": stops["preemptions"],
        "migrations": stops["migrations"],
        "resizes": stops["resizes"],
        "lost_since_checkpoint_gpu_s": stops["lost_since_checkpoint_gpu_s"],
        "lost_no_bandwidth_gpu_s": stops["lost_no_bandwidth_gpu_s"],
        "ticks_after_the_return": len(after),
        "worst_tick_cpu_s": worst[1],
        "worst_tick_proposals": worst[2],
        "cpu_after_the_return_s": sum(tick[1] for tick in after),
        "violations": dict(Counter(violation.checker for violation in simulated.found.violations)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print the tables, write the JSON; 1 when an owner waits longer than the bound or a checker finds a
    violation.
    """
    given = options(__doc__, arguments, nodes=500, tenants=300, seed=1, policy="autopilot", profile=False)
    nodes, tenants = (40, 30) if given.quick else (given.nodes, given.tenants)
    profile = cProfile.Profile() if given.profile else None
    world = storm(nodes, tenants, given.seed)
    found = figures(world, given.policy, *play(world, given.policy, profile))
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    rows = [
        ("owners; tenants; GPUs; gangs", "; ".join(f"{found[key]:,}" for key in SIZE)),
        ("guarantee back after, median, s", f"{found['restored_s_p50']:.1f}"),
        ("the same, 95 %", f"{found['restored_s_p95']:.1f}"),
        ("the same, worst", judged(found["restored_s_worst"], found["bound_s"], digits=1)),
        ("preempted; moved; resized", "; ".join(f"{found[key]:,}" for key in ("preemptions", "migrations", "resizes"))),
        ("lost since the checkpoint, GPU-h", f"{found['lost_since_checkpoint_gpu_s'] / 3600:,.0f}"),
        ("lost for bandwidth, GPU-h", f"{found['lost_no_bandwidth_gpu_s'] / 3600:,.0f}"),
        ("worst tick, s of CPU; its proposals", f"{found['worst_tick_cpu_s']:.2f}; {found['worst_tick_proposals']:,}"),
        (
            "ticks after the return; s of CPU",
            f"{found['ticks_after_the_return']}; {found['cpu_after_the_return_s']:.1f}",
        ),
        ("violations", f"{found['violations'] or 'none'}"),
    ]
    return ended(given, FIGURE, rows, {"seed": given.seed, **_finite(found)}, sound=not found["violations"])


def _finite(found: dict[str, Any]) -> dict[str, Any]:
    """Null in place of infinity, which JSON cannot express."""
    return {key: None if value == inf else value for key, value in found.items()}


if __name__ == "__main__":
    raise SystemExit(main())
