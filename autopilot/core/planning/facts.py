"""Facts of one tick for planning, from the observation, policy and memory.

Arrays over `pending` are in the order of service. Facts that vary with time alone are evaluated at `review_now_s`, the
start of the current review period (see ControllerMemory.wake_at_s).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np

from autopilot.core.facts.table import fact, root
from autopilot.core.hardware.gpu_products import find_product
from autopilot.core.intake.usage.activity import entity_activity, work_activity
from autopilot.core.intake.usage.facts import SnapshotFacts
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.people import OpenProposal
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Proposal, Reservation
from autopilot.core.model.snapshot import F64, I32, Bools, ClusterSnapshot, MemberTable, State, WorkloadTable
from autopilot.core.model.verb import START
from autopilot.core.model.work import progress_s
from autopilot.core.placement.shapes import shape_classes
from autopilot.core.planning.earlier_stops import earlier_stops
from autopilot.core.planning.foresight import ahead_mask, foresee
from autopilot.core.planning.losses import saves_ratio, stop_losses
from autopilot.core.planning.ordering.job_order import aged_index, service_order
from autopilot.core.planning.ordering.predicted_ends import (
    Outlook,
    gap_ends,
    look_out,
    may_reserve,
    predicted_ends,
    review_start,
    run_times,
)
from autopilot.core.planning.ordering.signatures import pending_table
from autopilot.core.planning.quota_state import sheltered_classes
from autopilot.core.planning.writers import cannot_save
from autopilot.core.quota.guarantees import guarantee_rules
from autopilot.core.quota.past_use import corrected_weights
from autopilot.core.quota.protection import protected_mask

Value = TypeVar("Value")


def _root(read: Callable[[Facts], Value]) -> Value:
    return root(read)


@dataclass(frozen=True, slots=True)
class Line:
    """Waiting gangs in the order of service."""

    pending: I32  # rows
    index: F64
    firm: Bools


def _waiting(work: WorkloadTable, busy: frozenset[int]) -> I32:
    """Rows of waiting work without an effect under way."""
    pending = np.flatnonzero(work.state == State.PENDING).astype(np.int32)
    return pending[~np.isin(pending, np.fromiter(busy, np.int32))] if busy else pending


def _standing(reservations: Iterable[Reservation], work: WorkloadTable, waiting: I32) -> dict[int, Reservation]:
    """Reservations in memory for gangs still waiting in the same incarnation, by row."""
    found = {}
    for record in reservations:
        rows = waiting[work.uid[waiting] == record.uid]
        if len(rows) and int(work.incarnation[rows[0]]) == record.incarnation:
            found[int(rows[0])] = record
    return found


def _line(
    snapshot: ClusterSnapshot,
    policy: Policy,
    outlook: Outlook,
    standing: Mapping[int, Reservation],
    pending: I32,
    review_now_s: float,
) -> Line:
    """The waiting gangs with their index, and `firm`: the reservation of the gang is or would be a promise."""
    work = snapshot.workloads
    wait_s = review_now_s - work.submit_s[pending]
    firm = wait_s >= policy.reservation.firm_after_s
    promised_since_s = np.full(len(pending), np.inf)
    for at in np.flatnonzero(firm & np.isin(pending, np.fromiter(standing, np.int32, len(standing)))).tolist():
        promised_since_s[at] = standing[int(pending[at])].since_s
    # who ran already would only take turns by its age
    fresh_s = np.where(progress_s(work, pending, review_now_s)[1] > 0, 0.0, wait_s)
    index = aged_index(outlook.index_per_s[pending], work.gpus[pending], fresh_s, policy.order)
    order = service_order(
        snapshot, pending, index, outlook.quantile_s(pending, 0.5), promised_since_s, review_now_s, policy.order
    )
    return Line(pending[order], index[order], firm[order])


def _members(table: MemberTable, work: WorkloadTable) -> dict[int, list[int]]:
    """Members of gangs of whole GPUs or MIG instances with unequal members: these differ in more than their rank."""
    by_row: dict[int, list[int]] = {}
    for member, row in enumerate(table.workload.tolist()):
        by_row.setdefault(row, []).append(member)

    def differ(row: int, members: list[int]) -> bool:
        kinds = {(int(table.gpus[each]), int(table.selector[each]), int(table.mig_profile[each])) for each in members}
        one = (int(work.gpus_per_member[row]), int(work.selector[row]), int(work.mig_profile[row]))
        return bool(work.gpu_milli[row] == 0 and kinds != {one})

    return {row: members for row, members in by_row.items() if differ(row, members)}


def _classes(snapshot: ClusterSnapshot, pending: I32, members: Mapping[int, list[int]], spot_saves: bool) -> I32:
    spot_saves = spot_saves and bool(snapshot.nodes.spot.any())
    return shape_classes(snapshot, pending, members, spot_saves=spot_saves)


@lru_cache(maxsize=512)
def gpu_memory_mib(model: str) -> float:
    """Memory of one GPU of `model` in MiB, as its name states it (`H100-80GB`), else by its product; 0 if unknown."""
    tail = model.rsplit("-", 1)[-1]
    if tail.endswith("GB") and tail[:-2].isdigit():
        return float(tail[:-2]) * 1024
    product = find_product(model)
    return float(product.memory_gb) * 1024 if product is not None else 0.0


def _positions(pending: I32) -> dict[int, int]:
    return {int(row): at for at, row in enumerate(pending.tolist())}


def _shown(proposals: Mapping[str, OpenProposal]) -> dict[str, Proposal]:
    """Starts as people were shown them, by uid."""
    shown = [each.proposal for each in proposals.values()]
    return {each.subject.uid: each for each in shown if each.change.wish == START}


@dataclass(frozen=True, kw_only=True)
class Facts(SnapshotFacts):
    """The facts of one tick."""

    recalled: ControllerMemory  # memory as planning began from it
    busy: frozenset[int] = frozenset()  # rows with an effect under way, which are not planned

    now_s = _root(lambda own: own.observation.now_s)
    _work = _root(lambda own: own.observation.snapshot.workloads)
    _queues = _root(lambda own: own.observation.snapshot.queues)
    _member_table = _root(lambda own: own.observation.snapshot.members)
    _models = _root(lambda own: own.observation.snapshot.names.gpu_models)
    _forecast = _root(lambda own: own.observation.forecasts.runtimes)
    _observation = _root(lambda own: own.observation)
    _policy = _root(lambda own: own.policy)
    _protection = _root(lambda own: own.policy.protection)
    _tenancy = _root(lambda own: own.policy.tenancy)
    _grace_s = _root(lambda own: own.policy.preemption.grace_s)
    _level = _root(lambda own: own.policy.reservation.level)
    _spot_saves = _root(lambda own: own.policy.placement.spot_saves)
    _memory = _root(lambda own: own.recalled)
    _reservations = _root(lambda own: own.recalled.plan.reservations)
    _conditions = _root(lambda own: own.recalled.plan.conditions)
    _weighed_stops = _root(lambda own: own.recalled.losses.weighed_stops)
    _cooled = _root(lambda own: own.recalled.budget.cooled_until_s)
    _services = _root(lambda own: own.recalled.replicas.services)
    _open_proposals = _root(lambda own: own.recalled.people.open_proposals)
    _busy = _root(lambda own: own.busy)

    review_now_s = fact(review_start, now_s, _policy)
    # conditions of the last tick, and since when they held
    noted_since_s = fact(lambda noted: {each.condition: each.since_s for each in noted}, _conditions)
    # by GPU model code
    gpu_memory_mib = fact(lambda models: np.array([gpu_memory_mib(name) for name in models], float), _models)
    members = fact(_members, _member_table, _work)  # rows of MemberTable, by workload row
    _sheltered = fact(sheltered_classes, _protection)
    protected = fact(protected_mask, _work, _sheltered)
    weights = fact(corrected_weights, _memory, _queues, _policy)  # of queues, corrected by past use

    # forecasts by row
    outlook = fact(look_out, _work, _forecast, _policy, review_now_s)
    end_s = fact(predicted_ends, _work, _policy, outlook, review_now_s, _level)  # inf when unknown, [workloads]

    # pending gangs
    _rows = fact(_waiting, _work, _busy)
    standing = fact(_standing, _reservations, _work, _rows)  # reservations in memory, by row
    _line = fact(_line, SnapshotFacts.snapshot, _policy, outlook, standing, _rows, review_now_s)
    pending = fact(lambda line: line.pending, _line)  # rows, in order of service
    # of what is left, aged: the higher the sooner in queues that are ordered by it
    index = fact(lambda line: line.index, _line)
    firm = fact(lambda line: line.firm, _line)  # gangs whose reservation is, or would be, a promise
    positions = fact(_positions, pending)  # by row
    classes = fact(_classes, SnapshotFacts.snapshot, pending, members, _spot_saves)  # shape class of each
    pending_table = fact(pending_table, _work, pending, classes, members, now_s, protected)
    _times = fact(run_times, _work, _policy, outlook, pending)
    run_low_s = fact(lambda times: times.low_s, _times)  # run time at the reservation level
    run_high_s = fact(lambda times: times.high_s, _times)  # run time at the backfill level
    known = fact(lambda times: times.known, _times)  # False where no forecast and no limit bounds the run time
    # until when it is sure enough to need its GPUs; inf: it cannot use gaps
    gap_end_s = fact(gap_ends, _work, _policy, pending, now_s, run_high_s, known)
    _ahead = fact(ahead_mask, SnapshotFacts.snapshot)
    ahead = fact(lambda mask, rows: mask[rows], _ahead, pending)  # only a forecast asks for them
    _may_hold = fact(may_reserve, SnapshotFacts.snapshot, _forecast, _policy, _cooled, pending, now_s, review_now_s)
    may_reserve = fact(lambda may, ahead: may & ~ahead, _may_hold, ahead)
    shown_starts = fact(_shown, _open_proposals)  # by uid

    # what a stop costs, [workloads]
    _saves = fact(saves_ratio, SnapshotFacts.snapshot, _memory, _policy, now_s)
    losses = fact(stop_losses, SnapshotFacts.snapshot, now_s, _saves)  # as of now, which is reported
    _weighed = fact(stop_losses, SnapshotFacts.snapshot, review_now_s, _saves)
    lost_gpu_s = fact(lambda losses: losses.price_gpu_s, _weighed)  # as of the review, which is weighed
    stops = fact(earlier_stops, _work, _weighed_stops, _protection, end_s)  # for other work
    unsaved = fact(cannot_save, _work, _grace_s)  # known to have no checkpoint within the grace

    # visible idle work
    _activity = fact(entity_activity, SnapshotFacts.snapshot, _policy)
    holdings = fact(work_activity, SnapshotFacts.snapshot, _activity, now_s)

    guarantee_rules = fact(guarantee_rules, _tenancy, _queues)  # how the guarantee of each queue is kept
    foreseen = fact(foresee, _observation, _services, _policy)  # replicas that forecasts call for, by service
