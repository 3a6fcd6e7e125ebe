"""What every action and guard of one tick shares: the observation, the books, the predictions.

Built once by the planner. Actions read it and change only its `whatif`, `held` reservations and
refusal columns, through the methods below; guards only read. Whatever varies with time alone is
evaluated at `review_now_s`, the start of the current review period (see ControllerMemory.wake_at_s).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from autopilot.core.foresight import (
    gap_ends,
    gpu_free_at,
    lost_work_gpu_s,
    predicted_ends,
    review_start,
    run_times,
)
from autopilot.core.landing import once_done
from autopilot.core.memory import ControllerMemory, Disruption
from autopilot.core.order import aged_index, gittins_left_per_s, gittins_per_s, median_left_s, service_order
from autopilot.core.placement import Miss, Shape, shape_classes
from autopilot.core.policy import Policy
from autopilot.core.quota import Quota, build_quota
from autopilot.core.records import Code, Observation, Refusals, Reservation
from autopilot.core.rules.base import Claim
from autopilot.core.snapshot import F64, GPU_MILLI, I32, ClusterSnapshot, Gate, State, holding_mask
from autopilot.core.tenancy import claim_kinds
from autopilot.core.turns import Turns
from autopilot.core.usage import corrected_weights
from autopilot.core.whatif import Layout, WhatIf

CODES = tuple(Code)
_NO_ROOM = frozenset({Code.CAPACITY, Code.FRAGMENTED, Code.TOPOLOGY, Code.MIG_GEOMETRY})
_CODE_INDEX = {code: number for number, code in enumerate(CODES)}


@dataclass(slots=True)
class Held:
    """A reservation as the planner works with it: rows instead of names, and what may still be used.

    Over the nodes of the reservation: `counts`, the GPUs it takes on each, and `spare`, those that may
    be used by work which outlives `start_s`.
    """

    row: int
    record: Reservation
    shape: Shape
    start_s: float
    nodes: I32
    counts: I32
    spare: I32


@dataclass(slots=True)
class Context:
    """One tick's working set. Arrays over `pending` are in the order of service."""

    observation: Observation
    policy: Policy
    memory: ControllerMemory
    whatif: WhatIf
    review_now_s: float
    pending: I32  # rows, in order of service
    classes: I32  # shape class of each pending row
    run_low_s: F64  # run time at the reservation level, [pending]
    run_high_s: F64  # run time at the backfill level, [pending]
    gap_end_s: F64  # until when it is sure enough to need its GPUs; inf: it cannot use gaps, [pending]
    known: np.ndarray  # False where no forecast and no limit bounds the run time, [pending]
    end_s: F64  # predicted end of every workload that holds GPUs, inf when unknown, [workloads]
    gpu_free_at_s: F64  # when each GPU comes free by prediction; -inf now, inf never, [gpus]
    gpu_memory_mib: F64  # by GPU model code
    quota: Quota
    busy: frozenset[int]  # rows with an effect under way
    lost_gpu_s: F64  # work that stopping each gang would lose, as of the review: what is weighed, [workloads]
    lost_now_gpu_s: F64  # the same as of now: what is told
    firm: np.ndarray  # gangs whose reservation is, or would be, a promise, [pending]
    may_reserve: np.ndarray  # [pending]
    standing: dict[int, Reservation]  # reservations in memory, by row
    held: list[Held] = field(default_factory=list)
    taken: np.ndarray = field(default_factory=lambda: np.empty(0, np.bool_))  # pending rows already decided
    code: np.ndarray = field(default_factory=lambda: np.empty(0, np.int8))
    value: F64 = field(default_factory=lambda: np.empty(0))
    threshold: F64 = field(default_factory=lambda: np.empty(0))
    members: dict[int, list[int]] = field(default_factory=dict)  # rows of MemberTable, by workload row
    leaving: dict[int, Layout | None] = field(default_factory=dict)  # row -> what it keeps when it has left
    kept_for: set[int] = field(default_factory=set)  # queues whose first waiting gang has quota kept for it
    place_in_line: I32 = field(
        default_factory=lambda: np.empty(0, np.int32)
    )  # order of turns; large: no turn yet
    turns_taken: int = 0
    released: list[str] = field(default_factory=list)
    accepted: list[Disruption] = field(default_factory=list)  # disruptions accepted in this tick

    @property
    def now_s(self) -> float:
        """Time of the observation."""
        return self.observation.now_s

    def room(self, end_s: float, row: int = -1, *, promises_only: bool = False) -> I32:
        """Whole free GPUs per node for a gang that would run until `end_s`. Shape [nodes].

        Room held for the gang itself (`row`) is free to it. With `promises_only`, room that is held tentatively binds
        nobody: what others give up is not kept for a plan that may be another at the next tick.
        """
        binding = [held for held in self.held
                   if held.start_s < end_s and held.row != row and (held.record.firm or not promises_only)]  # fmt: skip
        if not binding:
            return self.whatif.node_free
        room = self.whatif.node_free.copy()
        for held in binding:
            room[held.nodes] = np.minimum(room[held.nodes], np.maximum(held.spare, 0))
        return room

    def binding_sets(self, ends_s: F64) -> np.ndarray:
        """Bit set of the reservations that each end time outlives: equal sets see equal room."""
        bits = np.zeros(len(ends_s), np.int64)
        for number, held in enumerate(self.held):
            bits |= (held.start_s < ends_s).astype(np.int64) << number
        return bits

    def occupy(self, row: int, layout: Layout, end_s: float) -> None:
        """Book a placement: quota, when its GPUs end by prediction, and what reservations lose."""
        self.quota.book(row, layout)
        self.gpu_free_at_s[layout.gpu] = end_s
        for held in self.held:
            if held.start_s < end_s:
                counts = np.bincount(
                    self.observation.snapshot.gpus.node[layout.gpu], minlength=len(self.whatif.node_free)
                )
                held.spare -= counts[held.nodes].astype(np.int32)

    def may_start(self, at: int, gpus: int) -> Miss | None:
        """Why the quota of its queue keeps a pending gang of this width out; None when it does not."""
        refusal = self.quota.may_start(int(self.pending[at]), gpus)
        return None if refusal is None else Miss(refusal.code, refusal.value, refusal.threshold)

    def turn(self, at: int) -> None:
        """Note that the gang at `at` had its turn now."""
        self.place_in_line[at] = self.turns_taken
        self.turns_taken += 1

    def turns(self, positions: np.ndarray) -> Turns:
        """The order of service over these positions, which follows the books as they change."""
        work = self.observation.snapshot.workloads
        rows = self.pending[positions]
        overdue = self.review_now_s - work.submit_s[rows] > self.policy.order.max_wait_s
        groups = []
        for slo_class in np.unique(work.slo_class[rows]).tolist():
            mine = work.slo_class[rows] == slo_class
            lines: dict[int, list[int]] = {}
            queues = work.queue[rows[mine & ~overdue]].tolist()
            for queue, at in zip(queues, positions[mine & ~overdue].tolist(), strict=True):
                lines.setdefault(queue, []).append(at)
            groups.append((positions[mine & overdue].tolist(), lines))
        part = np.where(work.gpu_milli[self.pending] > 0, work.gpu_milli[self.pending] / GPU_MILLI, 1.0)
        adds = (work.gpus[self.pending] * part).tolist()
        models = work.gpu_models[self.pending].tolist()
        kinds = {each: claim_kinds(self.quota.books.kind_of_model, each) for each in set(models)}

        def extra(at: int) -> tuple[float, tuple[int, ...]]:
            return adds[at], kinds[models[at]]

        width, pending, quota = work.gpus[self.pending].tolist(), self.pending.tolist(), self.quota
        key = quota.rules.head_key
        head_key = None if key is None else lambda at: key(quota.books, quota.claim(pending[at], width[at]))
        return Turns(quota.books, groups, work.submit_s[self.pending].tolist(), work.queue[self.pending].tolist(),
                     extra, head_key)  # fmt: skip

    def waiting(self, codes: frozenset[Code] | None = None) -> list[int]:
        """Positions of gangs that had their turn and still wait (for one of these reasons), in the order of turns."""
        work = self.observation.snapshot.workloads
        open_gate = (work.gate[self.pending] == Gate.OPEN) & ~work.excluded[self.pending]
        left = np.flatnonzero(~self.taken & open_gate)
        left = left[np.argsort(self.place_in_line[left], kind="stable")]
        held = {row for row, layout in self.whatif.layouts.items() if len(layout.gpu)}
        found = [at for at in left.tolist() if int(self.pending[at]) not in held]
        return found if codes is None else [at for at in found if CODES[self.code[at]] in codes]

    def settled(self, claims: Sequence[Claim]) -> list[Claim]:
        """Those who may be taken by a weighed taking: past their guaranteed run time, and not cooling down."""
        work, limit_s = self.observation.snapshot.workloads, self.policy.protection.min_runtime_s
        cooling = {name for name, until_s in self.memory.cooled_until_s.items() if until_s > self.now_s}
        return [claim for claim in claims
                if self.now_s >= claim.start_s + limit_s and (not cooling or str(work.id[claim.row]) not in cooling)]  # fmt: skip

    def answer(self, at: int, miss: Miss | None) -> None:
        """Note why a gang may displace nobody, where that says more than that there is no room."""
        if miss is None or miss.code in _NO_ROOM:
            return
        if (
            miss.code != Code.FAIRNESS or self.quota.books.guarantee_binds
        ):  # without guarantees nobody is owed anything
            self.refuse(at, miss)

    def too_early(self, at: int) -> Miss | None:
        """Set while a gang has not waited long enough to displace anybody."""
        work = self.observation.snapshot.workloads
        row = int(self.pending[at])
        submit_s, delay_s = float(work.submit_s[row]), float(work.preemption_delay_s[row])
        early = self.now_s < submit_s + delay_s  # the sum that the timer waits for
        return Miss(Code.DELAY, self.now_s - submit_s, delay_s) if early else None

    def waiting_worth_gpu_s(self, at: int, gpus: int) -> float:
        """Worth of starting a gang now rather than not within the horizon, in GPU-seconds."""
        run_s = min(float(self.run_low_s[at]), self.policy.horizon_s)
        return gpus * run_s * self.policy.preemption.priority_weight

    def instance_share(self, instances: I32) -> float:
        """GPUs that these MIG instances are: each an equal part of those cut from its GPU."""
        whatif = self.whatif
        cut = np.bincount(whatif.instance_gpu[whatif.instance_alive], minlength=len(whatif.gpu_used))
        return float((1.0 / np.maximum(cut[whatif.instance_gpu[instances]], 1)).sum())

    def price_weight(self, node: int) -> float:
        """Price of one GPU of a node relative to others, from policy; 1 where not named."""
        snapshot = self.observation.snapshot
        return self.policy.price_weight.get(
            snapshot.names.gpu_models[int(snapshot.nodes.gpu_model[node])], 1.0
        )

    def node_end_s(self) -> F64:
        """Latest predicted end of the work on each node; now where it is idle. Shape [nodes]."""
        gpus = self.observation.snapshot.gpus
        ends = np.full(len(self.whatif.node_free), self.now_s)
        finite = np.isfinite(self.gpu_free_at_s)
        np.maximum.at(ends, gpus.node[finite], self.gpu_free_at_s[finite])
        return ends

    def refuse(self, position: int | np.ndarray, miss: Miss) -> None:
        """Note why the pending row(s) at `position` wait; a later, better reason replaces it."""
        self.code[position] = _CODE_INDEX[miss.code]
        self.value[position] = miss.value
        self.threshold[position] = miss.threshold

    def refusals(self) -> Refusals:
        """Columns for every pending row that was not proposed, in the order in which they had their turn."""
        left = np.flatnonzero(~self.taken)
        left = left[np.argsort(self.place_in_line[left], kind="stable")]
        return Refusals(CODES, self.pending[left], self.code[left], self.value[left], self.threshold[left])


def build_context(observation: Observation, policy: Policy, memory: ControllerMemory, whatif: WhatIf,
                  busy_rows: frozenset[int]) -> Context:  # fmt: skip
    """The working set of one tick. `busy_rows` have an effect under way and are not planned."""
    snapshot = observation.snapshot
    work = snapshot.workloads
    review_now_s = review_start(observation.now_s, policy)
    pending = np.flatnonzero(work.state == State.PENDING).astype(np.int32)
    if busy_rows:
        pending = pending[~np.isin(pending, np.fromiter(busy_rows, np.int32))]
    forecast = observation.forecasts.runtimes
    wait_s = review_now_s - work.submit_s[pending]
    index = np.full(len(pending), 1e-4)
    if forecast is not None:
        index = gittins_per_s(forecast, pending)
        begun = work.served_s[pending] > 0
        if begun.any():
            index[begun] = gittins_left_per_s(forecast, pending[begun], work.served_s[pending[begun]])
    standing = _standing(memory, observation, pending)
    firm = wait_s >= policy.reservation.firm_after_s
    promised_since_s = np.full(len(pending), np.inf)
    for at in np.flatnonzero(
        firm & np.isin(pending, np.fromiter(standing, np.int32, len(standing)))
    ).tolist():
        promised_since_s[at] = standing[int(pending[at])].since_s
    median_s = np.full(len(pending), np.inf) if forecast is None else median_left_s(forecast, work, pending)
    order = service_order(snapshot, pending, aged_index(index, work.gpus[pending], wait_s, policy.order), median_s,
                          promised_since_s, review_now_s, policy.order)  # fmt: skip
    ordered, firm = pending[order], firm[order]
    low, high, known = run_times(observation, policy, ordered)
    end_s = predicted_ends(observation, policy, review_now_s)
    count = len(ordered)
    lost_gpu_s = lost_work_gpu_s(snapshot, review_now_s)
    ctx = Context(
        observation=observation,
        policy=policy,
        memory=memory,
        whatif=whatif,
        review_now_s=review_now_s,
        pending=ordered,
        classes=shape_classes(snapshot, ordered),
        firm=firm,
        may_reserve=_may_reserve(observation, policy, memory, ordered, review_now_s),
        standing=standing,
        run_low_s=low,
        run_high_s=high,
        gap_end_s=gap_ends(observation, policy, ordered, high, known),
        known=known,
        end_s=end_s,
        gpu_free_at_s=gpu_free_at(whatif, end_s),
        busy=busy_rows,
        lost_gpu_s=lost_gpu_s,
        lost_now_gpu_s=lost_work_gpu_s(snapshot, observation.now_s),
        quota=build_quota(
            snapshot, policy, whatif, lost_gpu_s, corrected_weights(memory, snapshot.queues, policy)
        ),
        members=_members_by_row(snapshot),
        leaving=_leaving(snapshot, busy_rows),
        place_in_line=np.full(count, np.iinfo(np.int32).max, np.int32),
        gpu_memory_mib=np.array([gpu_memory_mib(name) for name in snapshot.names.gpu_models], float),
        taken=np.zeros(count, np.bool_),
        code=np.full(count, _CODE_INDEX[Code.CAPACITY], np.int8),
        value=np.zeros(count),
        threshold=work.gpus[ordered].astype(float),
    )
    _book_open_effects(ctx, busy_rows)
    return ctx


def _leaving(snapshot: ClusterSnapshot, busy_rows: frozenset[int]) -> dict[int, Layout | None]:
    """Gangs that give something up already, and what they go on with; None: nothing."""
    held, work = snapshot.placements, snapshot.workloads
    rows = np.unique(held.workload[held.leaving])
    found: dict[int, Layout | None] = {}
    for row in rows.tolist():
        if row not in busy_rows and not work.stuck[row]:
            stays = (held.workload == row) & ~held.leaving
            found[row] = (
                Layout(held.gpu[stays], held.instance[stays], held.milli[stays]) if stays.any() else None
            )
    return found


def _members_by_row(snapshot: ClusterSnapshot) -> dict[int, list[int]]:
    """Members of the gangs of whole GPUs whose members differ in more than their rank."""
    table, work = snapshot.members, snapshot.workloads
    by_row: dict[int, list[int]] = {}
    for member, row in enumerate(table.workload.tolist()):
        by_row.setdefault(row, []).append(member)

    def differ(row: int, members: list[int]) -> bool:
        whole = work.mig_profile[row] < 0 and work.gpu_milli[row] == 0
        kinds = {(int(table.gpus[member]), int(table.selector[member])) for member in members}
        return bool(whole and kinds != {(int(work.gpus_per_member[row]), int(work.selector[row]))})

    return {row: members for row, members in by_row.items() if differ(row, members)}


def _book_open_effects(ctx: Context, busy_rows: frozenset[int]) -> None:
    """What is under way is on the what-if's books already; the predictions and the quota books need it too."""
    ctx.quota.gone |= busy_rows
    rows = np.array(sorted(busy_rows), np.int32)
    if not len(rows):
        return
    held, work = ctx.observation.snapshot.placements, ctx.observation.snapshot.workloads
    mine = np.flatnonzero(np.isin(held.workload, rows) & ~held.leaving & holding_mask(work)[held.workload])
    mine = mine[np.argsort(held.workload[mine], kind="stable")]
    after = once_done(ctx.memory, ctx.whatif, busy_rows)
    run_s, _, _ = run_times(ctx.observation, ctx.policy, rows)
    for row, length_s in zip(rows.tolist(), run_s.tolist(), strict=True):
        if row in after:
            low, high = np.searchsorted(held.workload[mine], (row, row + 1))
            counted = mine[low:high]
            ctx.quota.book(row, Layout(held.gpu[counted], held.instance[counted], held.milli[counted]), -1)
            ctx.quota.book(row, after[row])
        if row in ctx.whatif.layouts:
            ctx.gpu_free_at_s[ctx.whatif.layouts[row].gpu] = ctx.now_s + length_s


def _standing(memory: ControllerMemory, observation: Observation, pending: I32) -> dict[int, Reservation]:
    """Reservations in memory whose gang still waits in the same incarnation, by row."""
    work = observation.snapshot.workloads
    found = {}
    for record in memory.reservations:
        rows = pending[work.id[pending] == record.workload]
        if len(rows) and int(work.incarnation[rows[0]]) == record.incarnation:
            found[int(rows[0])] = record
    return found


def _may_reserve(observation: Observation, policy: Policy, memory: ControllerMemory, rows: I32,
                 review_now_s: float) -> np.ndarray:  # fmt: skip
    """Which of `rows` may hold a reservation: whole GPUs, wide enough, not cooling down. Shape [rows].

    While the forecasts are vague only overdue gangs may: a promise made on a guess holds room for nothing.
    """
    snapshot, rules = observation.snapshot, policy.reservation
    work = snapshot.workloads
    may = (work.gpu_milli[rows] == 0) & (work.mig_profile[rows] < 0)
    if rules.whole_nodes_only and len(snapshot.nodes.gpus):
        may &= work.gpus[rows] >= int(snapshot.nodes.gpus.min())
    if not _confident(observation, policy):
        may &= review_now_s - work.submit_s[rows] > policy.order.max_wait_s
    cooling = [name for name, until_s in memory.cooled_until_s.items() if until_s > observation.now_s]
    if cooling:
        may &= ~np.isin(work.id[rows], np.array(cooling, object))
    return np.asarray(may)


def _confident(observation: Observation, policy: Policy) -> bool:
    """Are the forecasts of the running work narrow enough to hold room on them? By their median spread."""
    forecast = observation.forecasts.runtimes
    if forecast is None:
        return False
    rows = np.flatnonzero(holding_mask(observation.snapshot.workloads) & forecast.known)
    if not len(rows):
        return True
    low, high = forecast.levels.index(0.25), forecast.levels.index(0.75)
    spread = forecast.total_s[rows, high] / np.maximum(forecast.total_s[rows, low], 1.0)
    return bool(np.median(spread) <= policy.reservation.max_spread_ratio)


@lru_cache(maxsize=512)
def gpu_memory_mib(model: str) -> float:
    """Memory of one GPU of `model` in MiB, as its name states it (`H100-80GB`); 0 when it does not."""
    tail = model.rsplit("-", 1)[-1]
    return float(tail[:-2]) * 1024 if tail.endswith("GB") and tail[:-2].isdigit() else 0.0
