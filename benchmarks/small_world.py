"""A closed loop in one file, for measurements and tests of the shell that need no physics.

Jobs arrive, `reconcile` decides, admitted jobs run for their time and end. Everything is drawn from one seed. Use the
simulator for anything that should resemble a cluster more closely.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autopilot.core.decision.reconciler import reconcile
from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.hardware.dcgm import SIGNALS, WINDOWS_S
from autopilot.core.intake.signals import measure
from autopilot.core.model.forecast import LEVELS, Forecasts, RuntimeForecast
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import Mode, Modes, Order, Policy, Preemption, ReservationRules
from autopilot.core.model.records import Instruction, Observation, Outcome, OutcomeKind
from autopilot.core.model.signal_table import SignalTable
from autopilot.core.model.snapshot import (
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
    empty_signals,
    make,
)
from autopilot.core.placement.whatif import WhatIf

AUTO = Policy(
    name="auto",
    modes=Modes(Mode.AUTO, Mode.AUTO),
    order=Order(width_exponent=0.0, aging_exponent=0.0, aging_s=86_400.0),
    reservation=ReservationRules(depth=3, share_hold_s=0.0),
    preemption=Preemption(time_sharing=False),
)
"""Starts by itself, with reservations, and pauses nothing."""
GPUS_PER_NODE = 8

NO_INSTANCES, NO_SERVICES = empty(InstanceTable), empty(ServiceTable)

_DEFAULTS: dict[str, Any] = {
    "slo_class": 2,
    "min_gpus": 0,
    "gpus_per_member": 8,
    "mig_profile": -1,
    "preemptible": True,
    "service": -1,
    "start_s": np.nan,
    "ended_s": np.nan,
    "limit_s": np.nan,
    "checkpoint_interval_s": np.nan,
    "last_checkpoint_s": np.nan,
    "checkpoint_write_s": np.nan,
    "restart_s": np.nan,
}


@dataclass(frozen=True, slots=True)
class Tick:
    """The observation and the decision of one turn of the loop."""

    memory: ControllerMemory  # before
    observation: Observation
    step: Step
    outcomes: tuple[Outcome, ...]


@dataclass(slots=True)
class Job:
    """One job of the world."""

    id: str
    gpus: int
    submit_s: float
    run_s: float
    tenant: int
    state: int = State.PENDING
    incarnation: int = 0
    start_s: float = float("nan")
    end_s: float = float("inf")
    slots: list[int] = field(default_factory=list)


class World:
    """`nodes` nodes of eight GPUs. `load` is the arriving work relative to the capacity of the cluster."""

    def __init__(self, nodes: int, seed: int, *, load: float = 1.1, run_s: float = 3000.0, backlog: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        gpus = nodes * GPUS_PER_NODE
        self.jobs: list[Job] = []
        self.now_s, self.tick, self.submitted = 0.0, 0, 0
        self.run_s = run_s
        self.mean_gpus = 4.0
        self.gap_s = run_s * self.mean_gpus / (gpus * load)
        self.next_s = 0.0
        self.outcomes: tuple[Outcome, ...] = ()
        self.names = Names(("H100-80GB",), ("main",), tuple(f"team-{n}" for n in range(8)), ())
        self.nodes, self.gpus = _hardware(nodes, self.rng)
        self.queues = make(
            QueueTable,
            id=["root", "batch"],
            parent=[-1, 0],
            weight=[1.0, 1.0],
            limit=[-1, -1],
            guarantee=np.zeros((2, 1), np.int32),
            order=[1, 1],
        )
        self.row_of_gpu = {str(name): row for row, name in enumerate(self.gpus.uuid.tolist())}
        self.telemetry = empty_signals()
        self.dirty = True
        self._work: tuple[WorkloadTable, PlacementTable, RuntimeForecast] | None = None
        for _ in range(backlog):
            self._submit()

    def _submit(self) -> None:
        rng = self.rng
        gpus = int(rng.choice([1, 2, 4, 8, 16], p=[0.35, 0.2, 0.2, 0.2, 0.05]))
        run_s = float(rng.lognormal(np.log(self.run_s / 2), 1.2))
        job = Job(f"job-{self.submitted:06d}", gpus, self.now_s, run_s, int(rng.integers(8)))
        self.jobs.append(job)
        self.submitted += 1
        self.dirty = True

    def observe(self) -> Observation:
        """The present observation of a controller."""
        if self.dirty or self._work is None:
            self._work = self._tables()
            self.dirty = False
        workloads, placements, runtimes = self._work
        snapshot = ClusterSnapshot(
            self.names,
            self.nodes,
            self.gpus,
            NO_INSTANCES,
            workloads,
            placements,
            NO_SERVICES,
            self.queues,
            self.telemetry,
        )
        signals = measure(snapshot, WhatIf(snapshot))
        return Observation(self.tick, self.now_s, snapshot, signals, Forecasts(runtimes), outcomes=self.outcomes)

    def _tables(self) -> tuple[WorkloadTable, PlacementTable, RuntimeForecast]:
        jobs = self.jobs
        width = [job.gpus for job in jobs]
        workloads = make(
            WorkloadTable,
            id=[job.id for job in jobs],
            uid=[job.id for job in jobs],
            name=["train"] * len(jobs),
            tenant=[job.tenant for job in jobs],
            queue=[1] * len(jobs),
            state=[int(job.state) for job in jobs],
            incarnation=[job.incarnation for job in jobs],
            submit_s=[job.submit_s for job in jobs],
            start_s=[job.start_s for job in jobs],
            gpus=width,
            min_gpus=width,
            **_rest(len(jobs)),
        )
        rows = [row for row, job in enumerate(jobs) for _ in job.slots]
        gpu = np.array([slot for job in jobs for slot in job.slots], np.int32)
        placements: PlacementTable = make(PlacementTable, workload=rows, node=self.gpus.node[gpu], gpu=gpu)
        spread = np.exp(1.2 * np.array([-1.64, -0.67, 0, 0.67, 1.28, 1.64, 2.33]))
        total_s = np.array([job.run_s for job in jobs]).reshape(-1, 1) * spread
        runtimes = RuntimeForecast(
            "spread", self.now_s, LEVELS, total_s, np.ones(len(jobs), np.bool_), np.array(width, np.int32)
        )
        return workloads, placements, runtimes

    def apply(self, instructions: tuple[Instruction, ...]) -> tuple[Outcome, ...]:
        """Carry out the decision."""
        by_id = {job.id: job for job in self.jobs}
        for effect in instructions:
            job = by_id[effect.subject.name]
            self.dirty = True
            if isinstance(effect.operation, AdmitOperation):
                job.state, job.start_s = State.RUNNING, self.now_s
                job.end_s = self.now_s + job.run_s
                job.slots = [self.row_of_gpu[slot.gpu] for slot in effect.operation.slots]
            else:
                job.state, job.slots, job.start_s, job.end_s = State.PENDING, [], float("nan"), float("inf")
                job.incarnation += 1
        return tuple(Outcome(effect.id, OutcomeKind.DONE, self.now_s) for effect in instructions)

    def advance(self, to_s: float) -> None:
        """Let jobs arrive and end until `to_s`; ended jobs leave the table."""
        self.now_s = to_s
        self.tick += 1
        while self.next_s <= to_s:
            self._submit()
            self.next_s += float(self.rng.exponential(self.gap_s))
        ended = [job for job in self.jobs if job.end_s <= to_s]
        if ended:
            self.jobs = [job for job in self.jobs if job.end_s > to_s]
            self.dirty = True

    def next_event_s(self) -> float:
        """The time of the next event."""
        return min([self.next_s, *(job.end_s for job in self.jobs)])

    def measure_gpus(self, mean: Any, maximum: Any, samples: Any) -> None:
        """Replace the telemetry. Shapes as in SignalTable."""
        gpus = len(self.gpus.uuid)
        self.telemetry = SignalTable(
            SIGNALS,
            WINDOWS_S,
            self.now_s,
            mean,
            maximum,
            samples,
            np.zeros(gpus, np.float32),
            np.full(gpus, 3, np.int8),
        )

    def run(self, ticks: int, policy: Policy = AUTO, memory: ControllerMemory | None = None) -> Iterator[Tick]:
        """Run the loop for `ticks` ticks, one event each."""
        memory = memory or ControllerMemory()
        for _ in range(ticks):
            self.advance(min(self.next_event_s(), self.now_s + 300.0))
            observation = self.observe()
            step = reconcile(memory, observation, policy)
            outcomes = self.apply(step.instructions)
            yield Tick(memory, observation, step, outcomes)
            self.outcomes = outcomes
            memory = step.memory


def _rest(rows: int) -> dict[str, Any]:
    given = {
        "id",
        "uid",
        "name",
        "tenant",
        "queue",
        "state",
        "incarnation",
        "submit_s",
        "start_s",
        "gpus",
        "min_gpus",
    }
    return {name: [value] * rows for name, value in _DEFAULTS.items() if name not in given}


def _hardware(nodes: int, rng: np.random.Generator) -> tuple[NodeTable, GpuTable]:
    count = np.arange(nodes)
    node = make(
        NodeTable,
        id=[f"node-{n:04d}" for n in range(nodes)],
        first_gpu=count * GPUS_PER_NODE,
        gpus=[GPUS_PER_NODE] * nodes,
        cpu_milli=[-1] * nodes,
        memory_mib=[-1] * nodes,
        island=count,
        leaf=count // 16,
        block=count // 64,
        ready=[True] * nodes,
    )
    gpus = nodes * GPUS_PER_NODE
    hexes = rng.bytes(16 * gpus).hex()
    uuids = [
        f"GPU-{hexes[at : at + 8]}-{hexes[at + 8 : at + 12]}-{hexes[at + 12 : at + 16]}-{hexes[at + 16 : at + 32]}"
        for at in range(0, 32 * gpus, 32)
    ]
    gpu = make(
        GpuTable,
        uuid=uuids,
        node=np.repeat(count, GPUS_PER_NODE),
        index=np.tile(np.arange(GPUS_PER_NODE), nodes),
        healthy=[True] * gpus,
    )
    return node, gpu
