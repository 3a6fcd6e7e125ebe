"""One tick of two very large clusters: 100,000 GPUs with 1,000 pending gangs of 1 to 512 GPUs, and 50,000 with 5,000.

A synthetic cluster that is about 90 % busy, with telemetry of every GPU (8 signals, 3 windows), goes through the
shipped Controller: assemble, measure, forecast, reconcile. Three ticks: everything is new; the gangs admitted first
have started; nothing changed since. Then the same with gangs that all differ, so that no search result can be reused.
The forecaster is the one that the service ships (`predicted`), after jobs of every tenant and its fits. The CPU time of
each part is printed (median over the rounds); the goal is under 1 s for a whole tick. Reading the sources is not
included.

    python -m benchmarks.tick [--quick] [--rounds 5] [--durations last-two] [--json OUT]
    python -m benchmarks.tick --profile [--distinct] [--nodes 12500] [--gangs 1000] [--tenants 200]
"""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, TypeVar

import numpy as np

from autopilot.core.decision.reconciler import reconcile
from autopilot.core.facts.table import Kept
from autopilot.core.hardware.dcgm import SIGNALS, WINDOWS_S
from autopilot.core.intake.assemble import assemble
from autopilot.core.intake.signals import UNMEASURED, measure
from autopilot.core.intake.usage.facts import SnapshotFacts
from autopilot.core.model.forecast import Forecasts
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.records import (
    Batch,
    Inventory,
    Observation,
    Outcome,
    OutcomeKind,
    Signals,
    Telemetry,
    Work,
)
from autopilot.core.model.snapshot import (
    I32,
    ClusterSnapshot,
    GpuTable,
    InstanceTable,
    Names,
    NodeTable,
    PlacementTable,
    QueueTable,
    ServiceTable,
    State,
    WorkloadTable,
    empty,
    make,
)
from autopilot.settings import shipped_policy
from benchmarks.kit import judged, options, table, write_json
from models.last_two import LastTwo
from models.runtimes import Runtimes

GOAL_CPU_S = 1.0
SIZES = ((12_500, 1000, 200), (6250, 5000, 300))  # nodes, gangs, tenants
HELD = 0.9  # of the gangs packed onto the nodes, these still run
WIDTHS = (1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 16, 32)
PENDING_WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 96, 128, 256, 512)
NOW_S = 1_000_050.0
PARTS = ("assemble", "measure", "forecast", "reconcile")

T = TypeVar("T")


@dataclass(slots=True)
class Fleet:
    """The synthetic cluster, as collectors would deliver it. Columns of work are replaced, never changed."""

    inventory: Inventory
    telemetry: Telemetry
    queues: QueueTable
    workloads: WorkloadTable
    placements: PlacementTable
    tenants: tuple[str, ...]

    def batches(self, now_s: float) -> list[Batch]:
        """All sources, just read."""
        work = Work(self.tenants, self.workloads, self.placements, empty(ServiceTable), self.queues)
        return [
            Batch("inventory", now_s, inventory=self.inventory),
            Batch("work", now_s, work=work),
            Batch("telemetry", now_s, telemetry=self.telemetry),
        ]

    def carry_out(self, step: Step, now_s: float) -> tuple[Outcome, ...]:
        """Carry out every admission of a step at once."""
        row_of = {name: row for row, name in enumerate(self.workloads.id.tolist())}
        gpu_of = {name: row for row, name in enumerate(self.inventory.gpus.uuid.tolist())}
        state, start_s = self.workloads.state.copy(), self.workloads.start_s.copy()
        rows: list[int] = []
        gpus: list[int] = []
        for effect in step.instructions:
            row = row_of[effect.subject.name]
            state[row], start_s[row] = State.RUNNING, now_s
            rows += [row] * len(effect.operation.slots)
            gpus += [gpu_of[slot.gpu] for slot in effect.operation.slots]
        self.workloads = replace(self.workloads, state=state, start_s=start_s)
        held = self.placements
        self.placements = placements(
            np.concatenate([held.workload, np.array(rows, np.int32)]),
            np.concatenate([held.gpu, np.array(gpus, np.int32)]),
            self.inventory.gpus,
        )
        return tuple(Outcome(effect.id, OutcomeKind.DONE, now_s) for effect in step.instructions)


def placements(workload: I32, gpu: I32, gpus: GpuTable) -> PlacementTable:
    """Whole GPUs held by workloads."""
    table: PlacementTable = make(PlacementTable, workload=workload, node=gpus.node[gpu], gpu=gpu)
    return table


def build_fleet(nodes: int, gangs: int, tenants: int, seed: int, *, distinct: bool) -> Fleet:
    """`nodes` nodes of eight GPUs, about 90 % of them held by gangs of 1 to 32, and `gangs` pending gangs.

    `distinct`: each pending gang requests a different amount of host memory, so that all differ.
    """
    rng = np.random.default_rng(seed)
    node = np.arange(nodes)
    gpus = nodes * 8
    node_table: NodeTable = make(
        NodeTable,
        id=[f"node-{n:05d}" for n in range(nodes)],
        first_gpu=node * 8,
        gpus=np.full(nodes, 8),
        cpu_milli=np.full(nodes, 128_000),
        memory_mib=np.full(nodes, 2_000_000),
        island=node,
        leaf=node // 32,
        block=node // 256,
        ready=np.ones(nodes),
        gpu_model=(node >= nodes // 2),
    )
    gpu_table: GpuTable = make(
        GpuTable,
        uuid=[f"GPU-{n:08x}-0000-4000-8000-{n:012x}" for n in range(gpus)],
        node=np.repeat(node, 8),
        index=np.tile(np.arange(8), nodes),
        healthy=np.ones(gpus),
    )
    names = Names(("H100-80GB", "A100-80GB"), ("main",), (), ())
    queues: QueueTable = make(
        QueueTable,
        id=["root", *(f"team-{n:03d}" for n in range(tenants))],
        parent=[-1] + [0] * tenants,
        weight=np.ones(tenants + 1),
        limit=np.full(tenants + 1, -1),
        guarantee=np.zeros((tenants + 1, 2), np.int32),
        order=np.ones(tenants + 1),
    )
    widths, owner = _running(rng, nodes)
    asked = rng.choice(PENDING_WIDTHS, gangs)
    workloads = workloads_of(rng, widths, asked, tenants)
    if distinct:
        memory_mib = np.where(workloads.state == State.PENDING, 64_000 + np.arange(len(workloads.id)), 0)
        workloads = replace(workloads, memory_mib=memory_mib)
    held_gpu = np.flatnonzero(owner >= 0).astype(np.int32)
    held = placements(owner[held_gpu].astype(np.int32), held_gpu, gpu_table)
    return Fleet(
        Inventory(names, node_table, gpu_table, empty(InstanceTable)),
        _telemetry(rng, gpu_table),
        queues,
        workloads,
        held,
        tuple(f"team-{n:03d}" for n in range(tenants)),
    )


def _running(rng: np.random.Generator, nodes: int) -> tuple[I32, I32]:
    """Widths of the running gangs, and the gang on each GPU (-1: free): packed in order, a tenth ended."""
    owner = np.full(nodes * 8, -1)
    kept: list[int] = []
    at = 0
    for wanted in rng.choice(WIDTHS, nodes * 8).tolist():
        left = -at % 8 or 8
        # a gang of several nodes begins on a fresh one
        width = wanted if wanted <= left or left == 8 else left
        if at + width > len(owner):
            break
        if rng.random() < HELD:
            owner[at : at + width] = len(kept)
            kept.append(width)
        at += width
    return np.array(kept, np.int32), owner.astype(np.int32)


def workloads_of(rng: np.random.Generator, running: I32, pending: I32, tenants: int) -> WorkloadTable:
    """Running gangs of these widths, then pending ones."""
    widths = np.concatenate([running, pending])
    count, held = len(widths), len(running)
    start_s = np.concatenate([NOW_S - rng.exponential(20_000.0, held), np.full(len(pending), np.nan)])
    submit_s = np.where(np.isnan(start_s), NOW_S - rng.exponential(2 * 86_400.0, count), start_s - 60.0)
    unknown = np.full(count, np.nan)
    table_of: WorkloadTable = make(
        WorkloadTable,
        id=[f"job-{n:06d}" for n in range(count)],
        uid=[f"uid-{n:06d}" for n in range(count)],
        name=["train"] * count,
        tenant=(tenant := rng.integers(tenants, size=count)),
        queue=tenant + 1,
        slo_class=np.full(count, 2),
        state=np.where(np.isnan(start_s), State.PENDING, State.RUNNING),
        submit_s=submit_s,
        start_s=start_s,
        ended_s=unknown,
        gpus=widths,
        gpus_per_member=np.minimum(widths, 8),
        min_gpus=widths,
        mig_profile=np.full(count, -1),
        gpu_models=rng.choice([0, 0, 0, 1, 2], count),
        cpu_milli=np.minimum(widths, 8) * 8000,
        preemptible=np.ones(count),
        limit_s=unknown,
        checkpoint_interval_s=unknown,
        last_checkpoint_s=unknown,
        checkpoint_write_s=unknown,
        restart_s=unknown,
        service=np.full(count, -1),
    )
    return table_of


def _telemetry(rng: np.random.Generator, gpus: GpuTable) -> Telemetry:
    shape = (len(SIGNALS), len(WINDOWS_S), len(gpus.uuid))
    mean = rng.random(shape, np.float32)
    samples = np.full(shape[1:], 10, np.int32)
    return Telemetry(
        SIGNALS,
        WINDOWS_S,
        gpus.uuid,
        mean,
        mean,
        samples,
        np.full(shape[2], 5.0, np.float32),
        np.full(shape[2], 3, np.int8),
    )


@dataclass(slots=True)
class Loop:
    """The Controller's tick, part by part, so that each can be timed."""

    fleet: Fleet
    forecaster: LastTwo | Runtimes
    memory: ControllerMemory = field(default_factory=ControllerMemory)
    outcomes: tuple[Outcome, ...] = ()
    kept: Kept = field(default_factory=Kept)

    def tick(self, now_s: float, spent: dict[str, float]) -> Step:
        """One tick; the CPU seconds of each part go into `spent`."""
        batches = self.fleet.batches(now_s)
        snapshot, gaps = timed(spent, "assemble", lambda: assemble(batches, now_s))
        policy = shipped_policy("autopilot")
        seen = Observation(self.memory.tick + 1, now_s, snapshot, UNMEASURED, Forecasts(), (), self.outcomes, gaps)
        facts = SnapshotFacts(observation=seen, policy=policy, kept=self.kept)
        signals: Signals = timed(spent, "measure", lambda: measure(snapshot, facts.books, facts.parts))
        forecasts: Forecasts = timed(spent, "forecast", lambda: self.foresee(now_s, snapshot))
        observation = replace(seen, signals=signals, forecasts=forecasts)
        step: Step = timed(spent, "reconcile", lambda: reconcile(self.memory, observation, policy, kept=self.kept))
        self.memory, self.outcomes = step.memory, ()
        return step

    def foresee(self, now_s: float, snapshot: ClusterSnapshot) -> Forecasts:
        """Learn, then predict."""
        self.forecaster.update(now_s, snapshot)
        return self.forecaster.forecast(now_s, snapshot)


def timed(spent: dict[str, float], part: str, work: Callable[[], T]) -> T:
    """Add the CPU seconds of `work` to `spent[part]`."""
    started = time.process_time()
    done = work()
    spent[part] = time.process_time() - started
    return done


def learned(fleet: Fleet, seed: int, durations: str = "last-two") -> LastTwo | Runtimes:
    """A forecaster that met as many jobs of every tenant as the fleet has, and saw them end; its fits are done."""
    rng = np.random.default_rng(seed)
    work = fleet.workloads
    past = replace(work, id=np.char.add("past-", work.id.astype(str)).astype(object))
    ended = replace(
        past,
        state=np.full(len(work.id), State.SUCCEEDED, np.int8),
        served_s=rng.lognormal(8.0, 1.5, len(work.id)),
    )
    snapshot, _ = assemble(fleet.batches(0.0), 0.0)
    snapshot = replace(snapshot, placements=empty(PlacementTable))
    forecaster = Runtimes(seed=seed) if durations == "predicted" else LastTwo()
    forecaster.forecast(0.0, replace(snapshot, workloads=past))
    forecaster.update(0.0, replace(snapshot, workloads=ended))
    if isinstance(forecaster, Runtimes):
        while (fit := forecaster.due(0.0)) is not None:
            forecaster.adopt(fit.run())
    return forecaster


def one_round(
    nodes: int, gangs: int, tenants: int, seed: int, durations: str, *, distinct: bool
) -> list[dict[str, Any]]:
    """The three ticks of one round, with the time of each part."""
    fleet = build_fleet(nodes, gangs, tenants, seed, distinct=distinct)
    loop = Loop(fleet, learned(fleet, seed, durations))
    found = []
    for number, title in enumerate(("all new", "after the starts", "nothing changed")):
        spent: dict[str, float] = {}
        now_s = NOW_S + 5.0 * number
        step = loop.tick(now_s, spent)
        busy = len(fleet.placements.gpu) / len(fleet.inventory.gpus.uuid)
        pending = int((fleet.workloads.state == State.PENDING).sum())
        loop.outcomes = fleet.carry_out(step, now_s)
        found.append(
            {
                "tick": f"{title}, all shapes differ" if distinct else title,
                "busy_ratio": busy,
                "pending": pending,
                "admitted": len(step.instructions),
                "reserved": len(step.decision.plan.reservations),
                "proposals": len(step.decision.plan.proposals),
            }
            | spent
        )
    return found


def measured(size: tuple[int, int, int], rounds: int, seed: int, durations: str) -> list[dict[str, Any]]:
    """Ticks of one size, printed as a table: the medians over the rounds."""
    nodes, gangs, tenants = size
    found = [
        [
            tick
            for distinct in (False, True)
            for tick in one_round(nodes, gangs, tenants, seed + number, durations, distinct=distinct)
        ]
        for number in range(rounds)
    ]
    print(
        f"tick of {nodes:,} nodes, {8 * nodes:,} GPUs, {gangs:,} pending gangs of {tenants} tenants, "
        f"forecaster {durations}; CPU ms, median of {rounds} rounds (min..max of the whole)"
    )
    rows, figures = [], []
    for ticks in zip(*found, strict=True):
        whole = [sum(tick[part] for part in PARTS) for tick in ticks]
        figures.append(
            {
                **ticks[0],
                **{part: median(tick[part] for tick in ticks) for part in PARTS},
                "nodes": nodes,
                "gangs": gangs,
                "whole_s": median(whole),
                "min_s": min(whole),
                "max_s": max(whole),
            }
        )
        parts = [f"{1e3 * figures[-1][part]:.0f}" for part in PARTS]
        rows.append(
            [
                ticks[0]["tick"],
                f"{ticks[0]['busy_ratio']:.1%}",
                f"{ticks[0]['pending']}",
                f"{ticks[0]['admitted']}",
                f"{ticks[0]['reserved']}",
                *parts,
                f"{1e3 * median(whole):.0f}",
                f"{1e3 * min(whole):.0f}..{1e3 * max(whole):.0f}",
            ]
        )
    table(["tick", "busy", "pending", "admitted", "reserved", *PARTS, "whole", "range"], rows)
    print(f"slowest tick, s of CPU: {judged(max(row['whole_s'] for row in figures), GOAL_CPU_S)}")
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables, write the JSON; 1 when a tick takes longer than the goal."""
    nodes, gangs, tenants = SIZES[0]
    given = options(
        __doc__,
        arguments,
        rounds=5,
        nodes=nodes,
        gangs=gangs,
        tenants=tenants,
        seed=1,
        profile=False,
        distinct=False,
        durations="predicted",
    )
    if given.durations not in ("predicted", "last-two"):
        print(f"--durations: {given.durations!r} is not a forecaster; write predicted or last-two")
        return 2
    if given.profile:
        profiled, size = cProfile.Profile(), (given.nodes, given.gangs, given.tenants)
        profiled.runcall(one_round, *size, given.seed, given.durations, distinct=given.distinct)
        pstats.Stats(profiled).sort_stats("cumulative").print_stats(60)
        return 0
    rounds = 2 if given.quick else given.rounds
    figures = [tick for size in SIZES for tick in measured(size, rounds, given.seed, given.durations)]
    write_json(given.json, {"benchmark": "tick", "rounds": rounds, "ticks": figures})
    return int(max(row["whole_s"] for row in figures) > GOAL_CPU_S)


if __name__ == "__main__":
    raise SystemExit(main())
