"""Small worlds for the tests of the decision: a snapshot and an observation from a compact description.

    world("2x8", [holds("a", 8), waits("b", 16)], total_s={"a": 600.0})

is two nodes of eight GPUs; `a` holds the first eight, `b` waits for sixteen, and `a` is foreseen to run
600 s in all. Work takes the next GPUs in order unless `on` names rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np

from autopilot.core.capabilities.memory import absorb
from autopilot.core.decision.reconciler import reconcile
from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Case, Eviction, Submit
from autopilot.core.effects.evict import EvictDraft
from autopilot.core.intake.commands import obey
from autopilot.core.intake.consistency import check_snapshot
from autopilot.core.intake.signals import measure
from autopilot.core.model.capability import Tick
from autopilot.core.model.forecast import LEVELS, Forecasts, RuntimeForecast
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import Mode, Modes, Order, Policy, Preemption, ReservationRules
from autopilot.core.model.records import (
    Command,
    Evidence,
    Instruction,
    Observation,
    Outcome,
    OutcomeKind,
    Proposal,
    Refusals,
    View,
)
from autopilot.core.model.snapshot import (
    DTYPES,
    GPU_MILLI,
    ClusterSnapshot,
    GpuTable,
    InstanceTable,
    Names,
    PlacementTable,
    QueueTable,
    ServiceTable,
    State,
    WorkloadTable,
    empty,
    empty_signals,
    make,
)
from autopilot.core.model.stops import StopReason
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.planning.context import Context
from tests.kits.hardware_world import PROFILES, Hardware, hardware

AUTO = Policy(
    name="auto",
    modes=Modes(Mode.AUTO, Mode.AUTO),
    order=Order(width_exponent=0.0, aging_exponent=0.0, aging_s=86_400.0),
    reservation=ReservationRules(depth=3, share_hold_s=0.0),
    preemption=Preemption(time_sharing=False),
)
"""Starts by itself, in the order of the predicted run times, and pauses nothing for it."""
MODELS = ("A100-80GB", "H100-80GB", "A100-40GB")

DEFAULTS: dict[str, Any] = {
    "prefers": 0,
    "name": "",
    "user": "",
    "tenant": 0,
    "queue": 0,
    "slo_class": 2,
    "priority": 0,
    "state": State.PENDING,
    "incarnation": 0,
    "submit_s": 0.0,
    "start_s": np.nan,
    "runs_since_s": np.nan,
    "ended_s": np.nan,
    "served_s": 0.0,
    "outlived_s": 0.0,
    "gpus": 1,
    "gpus_per_member": 8,
    "min_gpus": -1,
    "gpu_milli": 0,
    "mig_profile": -1,
    "gpu_models": 0,
    "gpu_memory_mib": 0,
    "cpu_milli": 0,
    "memory_mib": 0,
    "topology": 0,
    "preferred": 0,
    "selector": 0,
    "preemptible": True,
    "excluded": False,
    "gate": 0,
    "over_quota": False,
    "preemption_delay_s": 0.0,
    "backfilled": False,
    "stuck": False,
    "stale_since_s": np.nan,
    "stale_grace_s": np.nan,
    "lacking_pods": 0,
    "job_group": "",
    "coordinates": "",
    "scheduler_quota": 0,
    "pausing": 0,
    "steps_per_s": np.nan,
    "trust": 0,
    "share": 0,
    "limit_s": np.nan,
    "checkpoint_interval_s": np.nan,
    "last_checkpoint_s": np.nan,
    "checkpoint_write_s": np.nan,
    "checkpoint_on_request": True,
    "restart_s": np.nan,
    "lost_gpu_s": np.nan,
    "service": -1,
}
WORK_DTYPES = {each.name: DTYPES[str(each.type)] for each in fields(WorkloadTable)}


@dataclass(frozen=True)
class Item:
    """One workload: its columns, and the GPU (or instance) rows it holds; None: the next free GPUs."""

    id: str
    columns: Mapping[str, Any]
    on: tuple[int, ...] | None = None


def waits(name: str, gpus: int = 1, **columns: Any) -> Item:
    """A pending gang."""
    return Item(name, {"gpus": gpus, **columns})


def holds(name: str, gpus: int = 1, on: Sequence[int] | None = None, **columns: Any) -> Item:
    """A running gang since time 0 (or `start_s`), on the GPU rows `on` or the next free ones."""
    given = {"gpus": gpus, "state": State.RUNNING, "start_s": 0.0, **columns}
    return Item(name, given, tuple(on) if on is not None else None)


def snapshot(
    shape: str = "2x8",
    work: Iterable[Item] = (),
    *,
    nodes: Mapping[str, Sequence[Any]] | None = None,
    unhealthy: Sequence[int] = (),
    xids: Mapping[int, int] | None = None,
    remaps: Mapping[int, int] | None = None,
    recuts: Mapping[int, int] | None = None,
    cuts: Mapping[int, Sequence[tuple[str, int]]] | None = None,
    on_demand: Mapping[int, int] | None = None,
    queues: QueueTable | None = None,
    tenants: tuple[str, ...] = ("t0", "t1", "t2"),
) -> ClusterSnapshot:
    """Nodes x GPUs with `work` on them. `nodes` overrides node columns, `cuts` puts GPUs into MIG mode; `on_demand`:
    where claims could have instances made.
    """
    found = hardware(
        shape,
        nodes=nodes,
        unhealthy=unhealthy,
        xids=xids,
        remaps=remaps,
        recuts=recuts,
        cuts=cuts,
        on_demand=on_demand,
    )
    return snapshot_on(found, work, queues=queues, tenants=tenants)


SELECTORS = tuple(tuple(bit for bit in range(4) if bits >> bit & 1) for bits in range(16))
"""Every selector of four labels: the place of a selector is the bit set of its labels."""


def names(tenants: tuple[str, ...]) -> Names:
    """The names of these tenants, one pool, and the models and profiles above."""
    return Names(MODELS, ("pool",), tenants, PROFILES, selectors=SELECTORS)


def snapshot_on(
    found: Hardware,
    work: Iterable[Item],
    *,
    queues: QueueTable | None = None,
    tenants: tuple[str, ...] = ("t0", "t1", "t2"),
) -> ClusterSnapshot:
    """`work` on nodes of equal width."""
    items = list(work)
    built = ClusterSnapshot(
        names=names(tenants),
        nodes=found.nodes,
        gpus=found.gpus,
        instances=found.instances,
        workloads=_workloads(items, int(found.nodes.gpus[0]) if len(found.nodes.id) else 0),
        placements=_placements(items, found.gpus, found.instances),
        services=empty(ServiceTable),
        queues=queues or queue_tree(),
        telemetry=empty_signals(),
    )
    check_snapshot(built)
    return built


def _workloads(items: Sequence[Item], per_node: int) -> WorkloadTable:
    count = len(items)
    columns = {name: np.full(count, DEFAULTS.get(name, ""), dtype) for name, dtype in WORK_DTYPES.items()}
    columns["gpus_per_member"][:] = per_node
    columns["min_gpus"][:] = [
        least if (least := item.columns.get("min_gpus", -1)) >= 0 else item.columns.get("gpus", 1) for item in items
    ]
    for row, item in enumerate(items):
        for name, value in item.columns.items():
            if name != "min_gpus":
                columns[name][row] = value
        columns["id"][row] = item.id
        columns["uid"][row] = item.columns.get("uid", item.id)
    parts = (columns["mig_profile"] >= 0) | (columns["gpu_milli"] > 0)
    columns["gpus_per_member"][parts] = 1
    return WorkloadTable(**columns)


def _placements(items: Sequence[Item], gpus: GpuTable, instances: InstanceTable) -> PlacementTable:
    taken: set[int] = {row for item in items for row in item.on or () if "mig_profile" not in item.columns}
    free = (row for row in range(len(gpus.uuid)) if row not in taken and not gpus.mig[row])
    entries: list[tuple[int, int, int, int]] = []
    for number, item in enumerate(items):
        if int(item.columns.get("state", State.PENDING)) not in {1, 2, 3}:
            continue
        if "mig_profile" in item.columns:
            entries += [(number, int(instances.gpu[row]), row, 0) for row in item.on or ()]
            continue
        rows = item.on if item.on is not None else [next(free) for _ in range(item.columns["gpus"])]
        milli = item.columns.get("gpu_milli", 0) or GPU_MILLI
        entries += [(number, row, -1, milli) for row in rows]
    columns = np.array(entries, np.int32).reshape(-1, 4).T
    leaving = np.array([items[row].columns["state"] == State.CHECKPOINTING for row in columns[0]], bool)
    rank, assumed = np.zeros(columns.shape[1], np.int32), np.zeros(columns.shape[1], np.bool_)
    node = gpus.node[columns[1]]
    return PlacementTable(columns[0], node, columns[1], columns[2], columns[3], leaving, rank, assumed)


def queue_tree(*rows: tuple[str, int, int], priority: Mapping[str, int] | None = None, order: int = 1) -> QueueTable:
    """A root without a limit and `rows` of (id, parent row, limit); row 1 is the first of them."""
    table = [("root", -1, -1), *rows]
    given = priority or {}
    built: QueueTable = make(
        QueueTable,
        id=np.array([name for name, _, _ in table], object),
        parent=np.array([parent for _, parent, _ in table], np.int32),
        guarantee=np.zeros((len(table), len(MODELS)), np.int32),
        limit=np.array([limit for _, _, limit in table], np.int32),
        weight=np.ones(len(table)),
        priority=np.array([given.get(name, 0) for name, _, _ in table], np.int32),
        order=np.full(len(table), order, np.int8),
    )
    return built


def taken_in(memory: ControllerMemory, observation: Observation, policy: Policy) -> ControllerMemory:
    """Memory after the commands, outcomes and snapshot of a tick."""
    obeyed = obey(memory, observation.commands, observation.now_s, policy)
    return absorb(obeyed.memory, Tick(memory, observation, policy, resumed=obeyed.resumed))


def forecasts(snap: ClusterSnapshot, total_s: Mapping[str, float | Sequence[float]]) -> Forecasts:
    """Run times by workload id: one number (certain) or a quantile for each of LEVELS; absent: unknown."""
    table = np.full((len(snap.workloads.id), len(LEVELS)), np.nan)
    for row, name in enumerate(snap.workloads.id.tolist()):
        if name in total_s:
            table[row] = total_s[name]
    known = ~np.isnan(table[:, 0])
    return Forecasts(RuntimeForecast("test", 0.0, LEVELS, table, known, np.zeros(len(table), np.int32)))


def observe(
    snap: ClusterSnapshot, now_s: float = 0.0, *, total_s: Mapping[str, Any] | None = None, tick: int = 0, **more: Any
) -> Observation:
    """An observation of `snap`; `more` are fields of Observation (commands, outcomes, kill_switch ...)."""
    foreseen = Forecasts() if total_s is None else forecasts(snap, total_s)
    return Observation(tick, now_s, snap, measure(snap, WhatIf(snap)), foreseen, **more)


def world(
    shape: str = "2x8",
    work: Iterable[Item] = (),
    now_s: float = 0.0,
    *,
    total_s: Mapping[str, Any] | None = None,
    tick: int = 0,
    commands: tuple[Command, ...] = (),
    outcomes: tuple[Outcome, ...] = (),
    kill_switch: bool = False,
    inventory_age_s: float = 0.0,
    work_age_s: float = 0.0,
    views: tuple[View, ...] = (),
    **more: Any,
) -> Observation:
    """`observe(snapshot(...))` in one."""
    snap = replace(snapshot(shape, work, **more), inventory_age_s=inventory_age_s, work_age_s=work_age_s)
    return observe(
        snap,
        now_s,
        views=views,
        total_s=total_s,
        tick=tick,
        commands=commands,
        outcomes=outcomes,
        kill_switch=kill_switch,
    )


def decide(
    observation: Observation, policy: Policy = AUTO, memory: ControllerMemory | None = None, **more: Any
) -> Step:
    """One turn of the decision."""
    return reconcile(memory or ControllerMemory(), observation, policy, **more)


# --- reading a decision --------------------------------------------------------------------------


def started(step: Step) -> dict[str, list[str]]:
    """Admissions that were instructed: workload -> nodes of its slots, sorted."""
    return {
        i.subject.name: sorted(slot.node for slot in i.operation.slots) for i in step.instructions if i.kind == "admit"
    }


def evicted(step: Step) -> list[str]:
    """Evictions that were instructed."""
    return sorted(i.subject.name for i in step.instructions if i.kind == "evict")


def why_waits(step: Step, observation: Observation, name: str) -> tuple[str, float, float]:
    """(code, value, threshold) of a workload that was not proposed."""
    refusals: Refusals = step.decision.plan.refusals
    ids = observation.snapshot.workloads.id[refusals.workload].tolist()
    at = ids.index(name)
    return (
        str(refusals.codes[int(refusals.code[at])]),
        float(refusals.value[at]),
        float(refusals.threshold[at]),
    )


def proposals(step: Step, kind: str = "") -> dict[str, Proposal]:
    """Proposals by workload, of one kind or all."""
    return {p.subject.name: p for p in step.decision.plan.proposals if kind in {"", p.kind}}


def done(
    instructions: Iterable[Instruction],
    at_s: float,
    kind: OutcomeKind = OutcomeKind.DONE,
    reason: str = "",
    *,
    retryable: bool = False,
) -> tuple[Outcome, ...]:
    """An outcome of the same kind for each instruction."""
    return tuple(Outcome(i.id, kind, at_s, reason, retryable) for i in instructions)


def arrays(value: Any, path: str = "") -> dict[str, bytes]:
    """Every numpy column inside a record, by path, as bytes (texts as their repr)."""
    if isinstance(value, np.ndarray):
        return {path: repr(value.tolist()).encode() if value.dtype == object else value.tobytes()}
    if is_dataclass(value) and not isinstance(value, type):
        parts = [arrays(getattr(value, f.name), f"{path}.{f.name}") for f in fields(value)]
        return {name: data for part in parts for name, data in part.items()}
    if isinstance(value, tuple):
        return {name: data for n, item in enumerate(value) for name, data in arrays(item, f"{path}[{n}]").items()}
    return {}


# --- an action that only tests have --------------------------------------------------------------


@dataclass(frozen=True)
class Disrupt:
    """Propose, in the name of a shipped action, to evict `victims` for `winner`."""

    winner: str
    victims: tuple[str, ...]
    benefit_gpu_s: float = 1e9
    cost_gpu_s: float = 1.0
    contract: bool = False
    takes: StopReason = StopReason.BACKFILL
    answers: list[bool] = field(default_factory=list)

    def __call__(self, ctx: Context, submit: Submit) -> None:
        """The action."""
        ids = ctx.observation.snapshot.workloads.id.tolist()
        draft = EvictDraft(
            case=Case("backfill", "evict", takes=self.takes, contract="planted" if self.contract else ""),
            row=ids.index(self.winner),
            benefit_gpu_s=self.benefit_gpu_s,
            cost_gpu_s=self.cost_gpu_s,
            evidence=(Evidence("planted", 1),),
            evictions=tuple(self._give(ctx, ids.index(name)) for name in self.victims),
        )
        self.answers.append(submit(draft))

    def _give(self, ctx: Context, row: int) -> Eviction:
        return Eviction(row, "evict", None, len(ctx.whatif.layout_of(row)), float(ctx.lost_gpu_s[row]))

    @property
    def table(self) -> tuple[Action, ...]:
        """An action table of this action alone."""
        return (Action("backfill", "", self, explains_waiting=True),)


def with_policy(policy: Policy = AUTO, **parts: Mapping[str, Any]) -> Policy:
    """A policy with fields of its parts replaced, for example hysteresis={"dwell_s": 0.0}."""
    return replace(policy, **{name: replace(getattr(policy, name), **dict(values)) for name, values in parts.items()})


HOLDING = with_policy(
    AUTO, reservation={"depth": 1, "whole_nodes_only": False, "firm_after_s": 0.0, "max_spread_ratio": 1e6}
)
"""Automatic, and the first gang without room gets a promise at once, whatever its width."""
