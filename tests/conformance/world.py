"""From a case to what the planner is asked: snapshot, observation and policy, and who is behind each row.

A gang is one row of the workload table; what is left of it beside the row's state (members that leave while
others wait, members that hang) is a row of its own. Which member holds which GPU is kept in `World.seats`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import inf, nan
from typing import Any

from autopilot.core.intake.consistency import check_snapshot
from autopilot.core.intake.signals import measure
from autopilot.core.model.errors import InputError
from autopilot.core.model.forecast import Forecasts
from autopilot.core.model.policy import Mode, Modes, Policy, RuleSetName, Tenancy, check_policy
from autopilot.core.model.policy.bounds import DAY_S
from autopilot.core.model.records import Observation
from autopilot.core.model.snapshot import (
    ClusterSnapshot,
    Displace,
    Gate,
    MemberTable,
    Names,
    PlacementTable,
    QueueOrder,
    QueueTable,
    ServiceTable,
    State,
    Topology,
    WorkloadTable,
    empty,
    empty_signals,
    make,
)
from autopilot.core.placement.whatif import WhatIf
from tests.conformance.cases import Action, Case, Gang, Queue, RuleName, Task
from tests.conformance.fleet import OF_ONE_NODE, Fleet, Seat, Size, build_fleet, scale_of, size_of, whole

NOW_S = 30 * DAY_S
BEFORE_S = 3600.0
"""How long ago work came that states no time; a second apart in the order of submission."""

STEP_S = 0.001
"""What keeps two moments apart that a case calls the same, in the order of submission."""

_TAKING = ("admit_gang", "preempt", "reclaim_borrowed", "recover")
ACTIONS_OF: dict[Action, tuple[str, ...]] = {
    "allocate": ("admit_gang", "resize"),
    "preempt": ("admit_gang", "preempt"),
    "reclaim": ("admit_gang", "reclaim_borrowed"),
    "consolidate": ("admit_gang", "defragment"),
    "stale_gang": ("recover",),
    "admit": _TAKING,
    "elastic_quota": _TAKING,
}
"""The product's actions that make the decision which a case names; all others are off."""

DISPLACE = {
    "never": Displace.NEVER,
    "lower": Displace.LOWER,
    "any": Displace.ANY,
    "lower_or_newer_equal": Displace.LOWER_OR_NEWER_EQUAL,
}
HOLDING = ("running", "releasing", "terminating_stuck")
NO_MAXIMUM = 2**31 - 1


@dataclass(frozen=True)
class Row:
    """One row of the workload table: its members, those that hold GPUs first, then by rank."""

    id: str
    gang: Gang
    tasks: tuple[Task, ...]
    state: State
    stuck: bool = False


@dataclass(frozen=True)
class World:
    """What is put to the planner, and how to read its answer."""

    case: Case
    fleet: Fleet
    rows: dict[str, Row]  # by workload id
    seats: dict[str, Seat]  # by task that holds GPUs
    sizes: dict[str, Size]  # by task
    observation: Observation
    policy: Policy


def build_world(case: Case) -> World:
    """The world of a `schedule` or `quota` case. Raises `InputError` for what the tables cannot carry."""
    scale = scale_of(case)
    fleet = build_fleet(case, scale)
    sizes = {task.name: size_of(task, scale) for gang in case.gangs for task in gang.tasks}
    rows = [row for gang in case.gangs for row in rows_of(gang)]
    seats = {
        task.name: fleet.seat(task, sizes[task.name])
        for row in rows
        for task in row.tasks
        if task.state in HOLDING and sizes[task.name].width
    }
    queues = _queues(case, len(fleet.models), scale)
    work = [_workload(row, case, fleet, sizes, queues.id.tolist()) for row in rows]
    submit_s = _submit_times(case)
    for columns, row in zip(work, rows, strict=True):
        columns["submit_s"] = submit_s[row.gang.name]
        columns["start_s"] = submit_s[row.gang.name] if row.state != State.PENDING else nan
    members = _table(MemberTable, _members(rows, fleet, sizes))
    tenants, selectors = tuple(queues.id.tolist()), tuple(fleet.selectors)
    snapshot = ClusterSnapshot(
        names=Names(fleet.models, ("pool",), tenants, fleet.profiles, fleet.labels, selectors),
        nodes=fleet.nodes,
        gpus=fleet.gpus,
        instances=fleet.instances,
        workloads=_table(WorkloadTable, work),
        placements=_table(PlacementTable, _placements(rows, seats, fleet)),
        services=empty(ServiceTable),
        queues=queues,
        telemetry=empty_signals(),
        members=members,
    )
    check_snapshot(snapshot)
    observation = Observation(0, NOW_S, snapshot, measure(snapshot, WhatIf(snapshot)), Forecasts())
    return World(case, fleet, {row.id: row for row in rows}, seats, sizes, observation, policy_of(case))


def policy_of(case: Case) -> Policy:
    """The default policy with the case's rules, every action on its own, and no guard that the contract lacks."""
    base, most = Policy(), 1_000_000
    spread = case.settings.placement == "spread"
    placement = replace(base.placement, fill=-base.placement.fill, island=0.0, leaf=0.0) if spread else base.placement
    grace_s = case.settings.stale_grace_s
    policy = replace(
        base,
        name="conformance",
        rules=RuleSetName(case.policy),
        modes=Modes(
            **{
                mode.name: Mode.AUTO if mode.name in ACTIONS_OF.get(case.action, ()) else Mode.OFF
                for mode in fields(Modes)
            }
        ),
        order=replace(base.order, max_wait_s=366 * DAY_S),
        reservation=replace(base.reservation, depth=0),
        placement=placement,
        tenancy=_tenancy(case, base.tenancy),
        preemption=replace(base.preemption, without_checkpoint=True, priority_weight=1e9, blast_ratio=1e6),
        recovery=base.recovery if grace_s is None or grace_s < 0 else replace(base.recovery, stale_grace_s=grace_s),
        hysteresis=replace(base.hysteresis, dwell_s=0.0, cool_down_s=0.0, margin_ratio=0.0),
        budget=replace(base.budget, per_cluster=most, per_tenant=most, per_node=most, concurrent=most),
        protection=replace(base.protection, min_runtime_s=0.0),
    )
    check_policy(policy)
    return policy


def _tenancy(case: Case, base: Tenancy) -> Tenancy:
    """Shares without the past, and guarantees that bind whether or not anybody has one."""
    chosen: dict[str, Any] = {}
    if case.settings.fair_preemption_rules is not None:
        if not any(field.name == "fair_preemption_rules" for field in fields(Tenancy)):
            raise InputError("settings.fair_preemption_rules: the policy has no tenancy.fair_preemption_rules")
        chosen["fair_preemption_rules"] = tuple(case.settings.fair_preemption_rules)
    return replace(base, shelter_always=True, usage_half_life_s=0.0, usage_weight=0.0, **chosen)


# --- gangs -------------------------------------------------------------------------------------


def rows_of(gang: Gang) -> list[Row]:
    """The rows of one gang, that of its live members first; none for a gang without tasks."""
    order = sorted(gang.tasks, key=lambda task: (task.state not in HOLDING, -task.rank))
    by_state = {
        state: [task for task in order if task.state == state]
        for state in ("running", "pending", "releasing", "terminating_stuck", "failed", "succeeded")
    }
    running, pending, leaving = by_state["running"], by_state["pending"], by_state["releasing"]
    parts: list[tuple[str, list[Task], State, bool]] = []
    if running:
        parts.append(("", [task for task in order if task in (*running, *pending, *leaving)], State.RUNNING, False))
    else:
        parts += [("", pending, State.PENDING, False), ("leaving", leaving, State.CHECKPOINTING, False)]
    parts.append(("stuck", by_state["terminating_stuck"], State.CHECKPOINTING, True))
    found = [part for part in parts if part[1]]
    if not found:
        over = State.SUCCEEDED if not by_state["failed"] else State.FAILED
        return [Row(gang.name, gang, (), over)] if gang.tasks else []
    return [
        Row(f"{gang.name}/{what}" if what and number else gang.name, gang, tuple(tasks), state, stuck)
        for number, (what, tasks, state, stuck) in enumerate(found)
    ]


def _workload(row: Row, case: Case, fleet: Fleet, sizes: dict[str, Size], queues: Sequence[str]) -> dict[str, Any]:
    """The columns of one row, without its times."""
    gang = row.gang
    lasting = [task for task in row.tasks if task.state != "releasing"] or list(row.tasks)
    widths = [sizes[task.name].width for task in lasting]
    least = min(gang.least, len(lasting))
    incomplete = row.state == State.PENDING and least < gang.least  # it waits for members that are not there
    profile, milli = _share(row, [sizes[task.name] for task in lasting], fleet)
    required, preferred = gang.topology.required, gang.topology.preferred
    grace_s = gang.stale_grace_s
    if grace_s is None and (case.settings.stale_grace_s or 0.0) < 0:
        grace_s = inf  # below zero: never
    common = {pair for task in lasting[:1] for pair in task.node_selector.items()}
    for task in lasting:
        common &= set(task.node_selector.items())
    if required and required not in OF_ONE_NODE:
        common.add((required, "*"))  # a node outside every domain of the level is no place for it
    return {
        "id": row.id,
        "uid": row.id,
        "name": row.id,
        "tenant": queues.index(gang.queue),
        "queue": queues.index(gang.queue),
        "priority": gang.priority,
        "state": row.state,
        "gpus": sum(widths),
        "gpus_per_member": max(widths, default=1),
        "min_gpus": sum(widths[:least]),
        "gpu_milli": milli,
        "mig_profile": profile,
        "topology": fleet.levels[required] if required else Topology.NONE,
        "preferred": fleet.levels[preferred] if preferred else Topology.NONE,
        "selector": fleet.selector(common),
        "preemptible": gang.preemptible,
        "gate": _gate(gang, next(queue for queue in case.queues if queue.name == gang.queue), case.policy)
        or (Gate.WAITING if incomplete else Gate.OPEN),
        "over_quota": gang.over_quota,
        "stuck": row.stuck,
        "preemption_delay_s": inf if _gates_evictions(gang, case.policy) else gang.preemption_delay_s,
        "cpu_milli": 0,
        "memory_mib": 0,
        "stale_since_s": _stale_since_s(gang),
        "stale_grace_s": nan if grace_s is None else inf if grace_s < 0 else grace_s,
    }


def _share(row: Row, sizes: Sequence[Size], fleet: Fleet) -> tuple[int, int]:
    """(MIG profile or -1, thousandths of a GPU or 0) of a row. Raises `InputError` where its members differ in that."""
    kinds = {(tuple(profile for profile, _ in size.profiles), size.milli) for size in sizes if size.width}
    profiles = {profile for names, _ in kinds for profile in names}
    if len({milli for _, milli in kinds}) > 1 or len({bool(names) for names, _ in kinds}) > 1:
        if row.state == State.PENDING:
            raise InputError(f"gang {row.gang.name}: it asks for several kinds of GPU parts; the tables have one")
        return -1, 0
    return (fleet.profiles.index(min(profiles)) if profiles else -1), max((milli for _, milli in kinds), default=0)


def _gate(gang: Gang, queue: Queue, rules: RuleName) -> Gate:
    """Closed by a gate or by a check of its queue that is not ready; shut by a rejected one, or one that asks for a
    retry.
    """
    states = {**dict.fromkeys(queue.checks, "pending"), **gang.check_state}
    for state, gate in (("rejected", Gate.REJECTED), ("retry", Gate.RETRY)):
        if state in states.values():
            return gate
    waits = any(state != "ready" for state in states.values())
    return Gate.WAITING if waits or (gang.gates and not _gates_evictions(gang, rules)) else Gate.OPEN


def _gates_evictions(gang: Gang, rules: RuleName) -> bool:
    """Are the gates of a gang Kueue's preemption gates, which leave it what is free? Gates of pods are closed
    altogether.
    """
    cohorts = rules in ("cohort-classic", "cohort-fair")
    return bool(gang.gates) and all("preempt" in name or (cohorts and "admission" not in name) for name in gang.gates)


def _stale_since_s(gang: Gang) -> float:
    """Since when fewer than its minimum of members live or have finished; NaN for a whole gang."""
    live = sum(task.state == "running" for task in gang.tasks)
    return NOW_S - gang.stale_s if gang.stale_s is not None and live < gang.least else nan


def _members(rows: Sequence[Row], fleet: Fleet, sizes: dict[str, Size]) -> list[dict[str, Any]]:
    """Members of the rows whose members differ in size, rank or selector."""
    found = []
    for number, row in enumerate(rows):
        lasting = [task for task in row.tasks if task.state != "releasing"] or row.tasks
        scheduling_signatures = {(sizes[t.name], t.rank, tuple(sorted(t.node_selector.items()))) for t in lasting}
        if len(scheduling_signatures) > 1 or any(len(sizes[task.name].profiles) > 1 for task in lasting):
            found += [
                {
                    "id": f"{task.name}/{profile}" if profile else task.name,
                    "workload": number,
                    "gpus": count,
                    "rank": task.rank,
                    "selector": fleet.selector(task.node_selector.items()),
                    "mig_profile": fleet.profiles.index(profile) if profile else -1,
                    "pod": task.name,
                }
                for task in lasting
                for profile, count in sizes[task.name].profiles or (("", sizes[task.name].width),)
            ]
    return found


def _placements(rows: Sequence[Row], seats: dict[str, Seat], fleet: Fleet) -> list[dict[str, Any]]:
    return [
        {
            "workload": number,
            "node": fleet.gpus.node[gpu],
            "gpu": gpu,
            "instance": instance,
            "milli": seats[task.name].milli,
            "leaving": task.state == "releasing",
            "rank": task.rank,
        }
        for number, row in enumerate(rows)
        for task in row.tasks
        if task.name in seats
        for gpu, instance in seats[task.name].rows
    ]


# --- times -------------------------------------------------------------------------------------


def _submit_times(case: Case) -> dict[str, float]:
    """When each gang came (and started, if it runs): as stated, else in the order of submission around that.

    What states a delay but no waiting has just come. Raises `InputError` for orders that contradict each other.
    """
    order = sorted(case.gangs, key=lambda gang: gang.submit_order)
    at_s: dict[str, float] = {}
    stated: dict[str, float] = {}
    for place, gang in enumerate(order):
        at_s[gang.name] = NOW_S - BEFORE_S + place
        ago_s = gang.waiting_s if gang.waiting_s is not None else gang.age_s
        if ago_s is None and gang.preemption_delay_s and any(task.state == "pending" for task in gang.tasks):
            ago_s = 0.0
        if ago_s is not None:
            exact = 0.0 if gang.waiting_s is not None else (len(order) - place) * STEP_S
            stated[gang.name] = at_s[gang.name] = NOW_S - ago_s - exact
    for place, gang in enumerate(order):
        if gang.name not in stated:
            earlier = [stated[each.name] for each in order[:place] if each.name in stated]
            later = [stated[each.name] for each in order[place + 1 :] if each.name in stated]
            after_s = max(earlier, default=-inf) + (place + 1) * STEP_S
            before_s = min(later, default=inf) - (len(order) - place) * STEP_S
            at_s[gang.name] = min(max(at_s[gang.name], after_s), before_s, NOW_S)
    _keep_stated_order(case, at_s)
    return at_s


def _keep_stated_order(case: Case, at_s: dict[str, float]) -> None:
    """Move gangs back in time until every `submitted_before` and `submitted_after` holds."""
    pairs = [(gang.name, later) for gang in case.gangs for later in gang.submitted_before]
    pairs += [(earlier, gang.name) for gang in case.gangs for earlier in gang.submitted_after]
    for _ in range(len(at_s) + 1):
        wrong = [(earlier, later) for earlier, later in pairs if at_s[earlier] >= at_s[later]]
        if not wrong:
            return
        for earlier, later in wrong:
            at_s[earlier] = min(at_s[earlier], at_s[later] - 1.0)
    raise InputError(f"submitted_before, submitted_after: {wrong[0][0]} and {wrong[0][1]} contradict each other")


# --- queues ------------------------------------------------------------------------------------


def _queues(case: Case, models: int, scale: int) -> QueueTable:
    """The tree: our own root, parents before children; a parent that is not listed is a cohort without quota."""
    listed = {queue.name: queue for queue in case.queues}
    parents = {queue.parent for queue in case.queues if queue.parent} - listed.keys()
    root = "cluster"
    while root in listed or root in parents:
        root += "*"
    order: list[Queue] = [Queue(name=name) for name in sorted(parents)]
    left = list(case.queues)
    while left:
        known = {queue.name for queue in order}
        ready = [queue for queue in left if queue.parent is None or queue.parent in known]
        if not ready:
            raise InputError(f"queues: {', '.join(queue.name for queue in left)} are each other's parents")
        order += ready
        left = [queue for queue in left if queue not in ready]
    names = [root, *(queue.name for queue in order)]
    rows = [(Queue(name=root), -1)]
    rows += [(queue, names.index(queue.parent) if queue.parent else 0) for queue in order]
    table: QueueTable = _table(QueueTable, [_queue(queue, parent, models, scale) for queue, parent in rows])
    return table


def _queue(queue: Queue, parent: int, models: int, scale: int) -> dict[str, Any]:
    def cap(gpus: float | None) -> int:
        return -1 if gpus is None else whole(gpus, scale, f"queue {queue.name}")

    preempt, borrowing = queue.preempt, queue.preempt.while_borrowing
    highest = borrowing.max_priority if borrowing else None
    return {
        "id": queue.name,
        "parent": parent,
        "guarantee": [whole(queue.guaranteed, scale, f"queue {queue.name}"), *[0] * (models - 1)],
        "order": QueueOrder.SUBMISSION,
        "weight": queue.over_quota_weight,
        "limit": cap(queue.limit),
        "borrow_limit": cap(queue.borrow_limit),
        "lend_limit": cap(queue.lend_limit),
        "priority": queue.priority,
        "strict": queue.queueing == "strict",
        "within_queue": DISPLACE[preempt.within_queue],
        "reclaim": DISPLACE[preempt.reclaim_in_cohort],
        "while_borrowing": DISPLACE[borrowing.policy if borrowing else "never"],
        "while_borrowing_priority": NO_MAXIMUM if highest is None else highest,
    }


def _table(table: type[Any], rows: Sequence[dict[str, Any]]) -> Any:
    """A table of rows given as dicts of equal keys; columns that they lack are unstated."""
    return make(table, **{name: [row[name] for row in rows] for name in rows[0]}) if rows else empty(table)
