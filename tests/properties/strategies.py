"""Draws shared by the property tests, and a small simulated loop that they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from autopilot.controller import Controller, Wiring
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import BackfillKind, Policy
from autopilot.core.model.ports import Forecaster
from autopilot.core.model.records import Command, Decision, Instruction, Observation, Outcome
from autopilot.core.model.snapshot import ClusterSnapshot, QueueTable
from models.last_two import LastTwo
from simulator.running.cluster_actuator import ClusterActuator
from simulator.running.cluster_collector import ClusterCollector
from simulator.running.engine import Engine
from simulator.running.oracle import Oracle
from simulator.running.turn import ControllerScheduler
from simulator.world.cluster import Cluster
from simulator.world.physics import IDEAL, Physics
from simulator.world.work import Jobs
from tests.kits.cluster_kit import gang, inventory
from tests.kits.core_world import AUTO, Item, holds, queue_tree, snapshot, waits, with_policy

# --- a small loop ---------------------------------------------------------------------------------


class Quiet:
    """Journal, inbox and leadership of an unattended run: no commands, always the leader."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.killed = False
        self.leads = True

    def intend(self, *_: Any) -> None:
        """Nothing is kept."""

    def conclude(self, *_: Any) -> None:
        """Nothing is kept."""

    def drain(self, _now_s: float) -> tuple[Command, ...]:
        """What was put there since the last call."""
        commands, self.commands = tuple(self.commands), []
        return commands

    def kill_switch(self) -> bool:
        """As set."""
        return self.killed

    def fence(self) -> int | None:
        """As set."""
        return 1 if self.leads else None


@dataclass
class Held:
    """A memory store and policy source in one."""

    policy: Policy
    memory: ControllerMemory | None = None

    def load(self) -> ControllerMemory | None:
        """The last saved."""
        return self.memory

    def save(self, memory: ControllerMemory) -> None:
        """Keep it."""
        self.memory = memory

    def current(self) -> Policy:
        """The policy."""
        return self.policy


@dataclass(frozen=True)
class Case:
    """A small cluster, its jobs as (submit_s, duration_s, gpus, min_gpus, limit_s, slo_class), its policy."""

    nodes: int
    jobs: tuple[tuple[float, float, int, int, float, int], ...]
    policy: Policy
    exact: bool
    extra_s: tuple[float, ...] = ()
    queue_limit: int = -1


@dataclass
class Effect:
    """One instruction as it reached the cluster."""

    at_s: float
    kind: str
    workload: str
    slots: tuple[str, ...]


@dataclass
class Loop:
    """Engine, cluster and controller of one run."""

    cluster: Cluster
    engine: Engine
    controller: Controller
    effects: list[Effect] = field(default_factory=list)
    decisions: list[tuple[Observation, Decision]] = field(default_factory=list)


class Spy:
    """The cluster's actuator, which notes what comes through."""

    name = "spy"

    def __init__(self, inner: ClusterActuator, effects: list[Effect]) -> None:
        self.inner, self.effects = inner, effects

    def apply(self, instruction: Instruction, now_s: float) -> Outcome:
        """Note it and do it."""
        slots = tuple(slot.gpu for slot in instruction.operation.slots)
        self.effects.append(Effect(now_s, instruction.kind, instruction.subject.name, slots))
        return self.inner.apply(instruction, now_s)


def jobs_of(case: Case) -> Jobs:
    """The jobs of a case; tenants take turns."""
    jobs = Jobs()
    for number, (submit_s, duration_s, gpus, min_gpus, limit_s, slo_class) in enumerate(case.jobs):
        shape = gang(gpus, 4, min_gpus=min(min_gpus, gpus) or gpus)
        jobs.add(
            f"j{number}",
            "ab"[number % 2],
            shape,
            submit_s,
            duration_s,
            limit_s=limit_s,
            slo_class=slo_class,
            preemptible=slo_class == 2,
        )
    return jobs


def loop_of(
    case: Case,
    physics: Physics = IDEAL,
    store: Held | None = None,
    on_decision: Callable[[Observation, Decision], None] | None = None,
    tree: QueueTable | None = None,
) -> Loop:
    """The shipped controller in charge of the case's cluster; its extra ticks are events of the engine.

    `tree`: queues with a first one for tenant a and a second one for tenant b, in place of the case's.
    """
    jobs = jobs_of(case)
    cluster = Cluster(inventory(case.nodes, 4), jobs, physics)
    queues: QueueTable = queue_tree(("q", 0, case.queue_limit), order=1) if case.queue_limit >= 0 else queue_tree()
    queues = tree or replace(queues, guarantee=np.zeros((len(queues.id), 1), np.int32))
    of_tenant = {"a": len(queues.id) - 1} if tree is None else {"a": 1, "b": 2}
    collector = ClusterCollector(cluster, queues, of_tenant)
    actuator = ClusterActuator(cluster)
    forecaster: Forecaster = Oracle(cluster) if case.exact else LastTwo()
    quiet, held = Quiet(), store or Held(case.policy)
    effects: list[Effect] = []
    spy = Spy(actuator, effects)
    controller = Controller(
        Wiring(
            [collector],
            [forecaster],
            dict.fromkeys(("admit", "evict", "resize"), spy),
            quiet,
            held,
            quiet,
            held,
            quiet,
            on_decision,
        )
    )
    engine = Engine(cluster, ControllerScheduler("autopilot", controller, actuator), horizon_s=20_000.0)
    for at_s in case.extra_s:
        engine.at(at_s, lambda _now_s: None, essential=False)
    return Loop(cluster, engine, controller, effects)


# --- draws ----------------------------------------------------------------------------------------

seconds = st.integers(1, 40).map(lambda n: n * 97.0)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """An automatic policy with reservations and backfill of every kind."""
    return with_policy(
        AUTO,
        review={"batch_s": draw(st.sampled_from([60.0, 300.0]))},
        reservation={
            "depth": draw(st.integers(0, 3)),
            "whole_nodes_only": draw(st.booleans()),
            "firm_after_s": draw(st.sampled_from([0.0, 250.0, 86_400.0])),
            "max_spread_ratio": draw(st.sampled_from([4.0, 1e6])),
            "conservative_depth": draw(st.integers(1, 4)),
            "timeout_s": draw(st.sampled_from([60.0, 500.0, 86_400.0])),
            "cool_down_s": draw(st.sampled_from([0.0, 400.0])),
        },
        backfill={"kind": draw(st.sampled_from(list(BackfillKind))), "evict_when_due": draw(st.booleans())},
        order={
            "max_wait_s": draw(st.sampled_from([600.0, 7 * 86_400.0])),
            "aging_exponent": draw(st.sampled_from([0.0, 0.5])),
            "short_s": draw(st.sampled_from([0.0, 1000.0])),
        },
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A handful of jobs on one to three nodes of four GPUs."""
    nodes = draw(st.integers(1, 3))
    widths = st.sampled_from([w for w in (1, 1, 2, 3, 4, 6, 8, 12) if w <= 4 * nodes])
    job = st.tuples(
        st.integers(0, 20).map(lambda n: n * 61.0),
        seconds,
        widths,
        st.sampled_from([0, 0, 0, 4]),
        st.sampled_from([float("nan"), float("nan"), 1500.0]),
        st.sampled_from([2, 2, 2, 1]),
    )
    jobs = draw(st.lists(job, min_size=2, max_size=14))
    extra = draw(st.lists(st.integers(1, 4000).map(float), max_size=25))
    return Case(
        nodes,
        tuple(jobs),
        draw(policies()),
        draw(st.booleans()),
        tuple(sorted(extra)),
        draw(st.sampled_from([-1, -1, 4])),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> ClusterSnapshot:
    """Up to three nodes of four GPUs, the last GPU cut for MIG, with whole gangs, shares and instances on them."""
    nodes = draw(st.integers(1, 3))
    free = list(range(nodes * 4 - 1))
    last = nodes * 4 - 1
    work: list[Item] = []
    for number in range(draw(st.integers(0, 4))):
        width = draw(st.integers(1, 3))
        if width <= len(free):
            rows, free = free[:width], free[width:]
            asks = draw(st.sampled_from([0, 3000]))
            work.append(holds(f"r{number}", width, on=rows, cpu_milli=asks, memory_mib=asks))
    if len(free) > 0 and draw(st.booleans()):
        work.append(holds("share", 1, on=free[:1], gpu_milli=400))
        work.append(holds("twice", 2, on=[free[0], free[0]], gpu_milli=200))
    if draw(st.booleans()):
        work.append(holds("slice", 1, on=[1], mig_profile=0))
    pending: Sequence[int] = draw(st.lists(st.integers(1, 4), max_size=4))
    work += [waits(f"p{number}", width, cpu_milli=1000) for number, width in enumerate(pending)]
    work += [waits("ps", 1, gpu_milli=500), waits("pm", 1, mig_profile=0), waits("pm2", 2, mig_profile=0)]
    return snapshot(
        f"{nodes}x4",
        work,
        nodes={"cpu_milli": [64_000] * (nodes - 1) + [-1], "memory_mib": [-1] * (nodes - 1) + [500_000]},
        unhealthy=draw(st.lists(st.integers(0, last), max_size=2)),
        cuts={last: [("1g.10gb", 0), ("1g.10gb", 1), ("2g.20gb", 2)]},
    )
