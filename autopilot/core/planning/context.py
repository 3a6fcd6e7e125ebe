"""What every action and guard of one tick shares: the observation, the books, the predictions.

Built once by the planner. Actions read it and change only its `whatif`, `held` reservations and
refusal columns, through the methods below; guards only read. Whatever varies with time alone is
evaluated at `review_now_s`, the start of the current review period (see ControllerMemory.wake_at_s).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import TypeVar, cast

import numpy as np

from autopilot.core.checkpoints.losses import Losses, saves_ratio, stop_losses
from autopilot.core.checkpoints.writers import cannot_save
from autopilot.core.model.memory import ControllerMemory, Disruption
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Code, Evidence, Observation, Refusals, Reservation
from autopilot.core.model.snapshot import (
    F64,
    GPU_MILLI,
    I32,
    Bools,
    State,
    holding_mask,
    progress_s,
    running_since,
)
from autopilot.core.ordering.job_order import aged_index, service_order
from autopilot.core.ordering.predicted_ends import (
    Outlook,
    gap_ends,
    gpu_free_at,
    look_out,
    may_reserve,
    predicted_ends,
    review_start,
    run_times,
)
from autopilot.core.ordering.signatures import PendingTable, pending_table
from autopilot.core.placement.fit import Miss, Shape, shape_classes
from autopilot.core.placement.search_cache import SearchCache, StateCache
from autopilot.core.placement.whatif import Layout, WhatIf
from autopilot.core.planning.lookups import (
    gpu_memory_mib,
    leaving_rows,
    members_by_row,
    standing_reservations,
)
from autopilot.core.planning.quota_state import Quota, build_quota
from autopilot.core.quota.ledger import ALL
from autopilot.core.quota.past_use import corrected_weights
from autopilot.core.rules.base import Running
from autopilot.core.tracking.pipelined import once_done
from autopilot.core.tracking.replicas import ahead_mask

CODES = tuple(Code)
Built = TypeVar("Built")
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
    queue: int = -1  # whose work, and that of the queues below, may use it; -1: the gang's alone


@dataclass(frozen=True, slots=True)
class QuotaHold:
    """Quota that is kept for an overdue gang: in `queue` and below it, of a kind, all of it by `ready_s`.

    `sheltered`: room in a guarantee, which only work that may not be preempted takes; else room under a limit.
    """

    row: int
    queue: int
    kind: int
    sheltered: bool
    ready_s: float


@dataclass(slots=True)
class Context:
    """One tick's working set. Arrays over `pending` are in the order of service."""

    observation: Observation
    policy: Policy
    memory: ControllerMemory
    whatif: WhatIf
    review_now_s: float
    outlook: Outlook
    pending: I32  # rows, in order of service
    pending_table: PendingTable
    index: F64  # of what is left, aged: the higher the sooner in queues that are ordered by it, [pending]
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
    lost_gpu_s: F64  # price of stopping each gang, as of the review: what is weighed, [workloads]
    losses: Losses  # what stopping each gang would cost as of now: what is told
    unsaved: Bools  # gangs that are known to have no checkpoint within the grace, [workloads]
    firm: np.ndarray  # gangs whose reservation is, or would be, a promise, [pending]
    may_reserve: np.ndarray  # [pending]
    standing: dict[int, Reservation]  # reservations in memory, by row
    held: list[Held] = field(default_factory=list)
    quota_holds: list[QuotaHold] = field(default_factory=list)
    ahead: np.ndarray = field(default_factory=lambda: np.empty(0, np.bool_))  # foreseen alone, [pending]
    taken: np.ndarray = field(default_factory=lambda: np.empty(0, np.bool_))  # pending rows already decided
    code: np.ndarray = field(default_factory=lambda: np.empty(0, np.int8))
    value: F64 = field(default_factory=lambda: np.empty(0))
    threshold: F64 = field(default_factory=lambda: np.empty(0))
    members: dict[int, list[int]] = field(default_factory=dict)  # rows of MemberTable, by workload row
    leaving: dict[int, Layout | None] = field(default_factory=dict)  # row -> what it keeps when it has left
    # queues whose first gang that waits was looked at, and whether a start was planned for its fair share
    fair_share_held: dict[int, bool] = field(default_factory=dict)
    # by queue: its first gang that waits (position), and the GPUs of idle quota that are kept for it
    idle_held_for: dict[int, tuple[int, float]] = field(default_factory=dict)
    moves_tried: set[int] = field(default_factory=set)  # positions for which moves were proposed at their turn
    # order of turns; large: no turn yet
    place_in_line: I32 = field(default_factory=lambda: np.empty(0, np.int32))
    turns_taken: int = 0
    # whom only a recommendation takes: what they hold, and what they would keep
    paper: dict[int, tuple[Layout, Layout | None]] = field(default_factory=dict)
    # that takings will use once what holds them has passed
    wanted: list[Layout] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    # why actions did nothing, where there is no proposal to say so
    notes: list[Evidence] = field(default_factory=list)
    accepted: list[Disruption] = field(default_factory=list)  # disruptions accepted in this tick
    noted: dict[str, float] = field(default_factory=dict)  # conditions that hold now, and since when
    advance: dict[str, tuple[str, ...]] = field(default_factory=dict)  # nodes of what is reserved in advance
    _once: dict[type, object] = field(default_factory=dict)
    # by how many GPUs they hold at most, as of so many gone
    _settled: tuple[int, dict[float, Running]] = (-1, {})
    search_cache: SearchCache = field(default_factory=SearchCache)
    steps: int = 0  # of searches for whom to take or move, so far
    # when an action could decide otherwise with no new event
    wake_s: list[float] = field(default_factory=list)

    @property
    def now_s(self) -> float:
        """Time of the observation."""
        return self.observation.now_s

    def since_s(self, condition: str) -> float:
        """Since when a condition that holds now has held without a break, as far as was seen."""
        return self.noted.setdefault(condition, self.memory.noted_since_s.get(condition, self.now_s))

    def room(self, end_s: float, row: int = -1, *, promises_only: bool = False) -> I32:
        """Whole free GPUs per node for a gang that would run until `end_s`. Shape [nodes].

        Not to be written to: one array answers for all who are bound alike. Room held for the gang itself (`row`) is
        free to it. With `promises_only`, room that is held tentatively binds nobody: what others give up is not kept
        for a plan that may be another at the next tick.
        """
        binding = [
            held
            for held in self.held
            if held.start_s < end_s and (held.record.firm or not promises_only) and not self.may_use(held, row)
        ]
        if not binding:
            return self.whatif.node_free
        rooms = self.cached().rooms
        key = tuple((held.row, held.nodes.tobytes(), held.spare.tobytes()) for held in binding)
        if key not in rooms:
            room = self.whatif.node_free.copy()
            for held in binding:
                room[held.nodes] = np.minimum(room[held.nodes], np.maximum(held.spare, 0))
            rooms[key] = room
        return rooms[key]

    def cached(self) -> StateCache:
        """What was worked out for the state that the what-if is in."""
        return self.search_cache.at(self.whatif.stamp)

    def once(self, kind: type[Built], build: Callable[[], Built]) -> Built:
        """What is built at most once in a tick, by its type."""
        if kind not in self._once:
            self._once[kind] = build()
        return cast("Built", self._once[kind])

    def may_use(self, held: Held, row: int) -> bool:
        """Is this room held for the gang of `row`, or for its queue? For none where `row` is -1."""
        if held.queue < 0 or row < 0:
            return row >= 0 and held.row == row
        return int(self.observation.snapshot.workloads.queue[row]) in self.below(held.queue)

    def below(self, queue: int) -> tuple[int, ...]:
        """A queue and all those below it."""
        paths = self.quota.ledger.paths
        return tuple(each for each, path in enumerate(paths) if each == queue or queue in path)

    def binding_sets(self, positions: np.ndarray) -> np.ndarray:
        """Bit set of the reservations that bind each pending gang: it outlives their start, and they are not its
        queue's. Equal sets see equal room. Shape [positions].
        """
        bits, ends_s = np.zeros(len(positions), np.int64), self.gap_end_s[positions]
        for number, held in enumerate(self.held):
            binds = held.start_s < ends_s
            if held.queue >= 0:
                queues = self.observation.snapshot.workloads.queue[self.pending[positions]]
                binds = binds & ~np.isin(queues, self.below(held.queue))
            bits |= binds.astype(np.int64) << number
        return bits

    def occupy(self, row: int, layout: Layout, end_s: float) -> None:
        """Book a placement: quota, when its GPUs end by prediction, and what reservations lose."""
        self.quota.book(row, layout)
        self.foresee(layout, end_s, row)

    def foresee(self, layout: Layout, end_s: float, row: int) -> None:
        """Note until when the gang of `row` uses these GPUs by prediction, and what reservations of others lose."""
        self.gpu_free_at_s[layout.gpu] = end_s
        for held in self.held:
            if held.start_s < end_s and not (held.queue >= 0 and self.may_use(held, row)):
                counts = np.bincount(
                    self.observation.snapshot.gpus.node[layout.gpu], minlength=len(self.whatif.node_free)
                )
                held.spare -= counts[held.nodes].astype(np.int32)

    def may_start(self, at: int, gpus: int) -> Miss | None:
        """Why the quota of its queue keeps a pending gang of this width out; None when it does not."""
        refusal = self.quota.may_start(int(self.pending[at]), gpus)
        return None if refusal is None else Miss(refusal.code, refusal.value, refusal.threshold)

    def quota_hold_against(self, row: int) -> QuotaHold | None:
        """The quota of the gang's path that is kept for another; None when it may use what is there."""
        for kept in self.quota_holds:
            work, ledger = self.observation.snapshot.workloads, self.quota.ledger
            models, kinds = int(work.gpu_models[row]), ledger.kind_of_model
            may_use = kept.kind == ALL or any(
                kind == kept.kind and (not models or models >> code & 1) for code, kind in enumerate(kinds)
            )
            below = kept.queue in (*ledger.paths[int(work.queue[row])], 0)
            if kept.row != row and below and may_use and not (kept.sheltered and work.preemptible[row]):
                return kept
        return None

    def turn(self, at: int) -> None:
        """Note that the gang at `at` had its turn now."""
        self.place_in_line[at] = self.turns_taken
        self.turns_taken += 1

    def waiting(self, codes: frozenset[Code] | None = None) -> list[int]:
        """Positions of gangs that had their turn and still wait (for one of these reasons), in the order of turns;
        without replicas that are only foreseen to be needed: nobody gives way for them.
        """
        left = np.flatnonzero(~self.taken & self.pending_table.may_ask & ~self.ahead)
        left = left[np.argsort(self.place_in_line[left], kind="stable")]
        if codes is not None:
            left = left[np.isin(self.code[left], [_CODE_INDEX[code] for code in codes])]
        placed = [row for row, layout in self.whatif.layouts.items() if len(layout.gpu)]
        found: list[int] = left[~np.isin(self.pending[left], np.array(placed, np.int32))].tolist()
        if self.quota_holds:
            found = [at for at in found if self.quota_hold_against(int(self.pending[at])) is None]
        return found

    def cooling(self) -> set[str]:
        """Uids of workloads that were disrupted, or gave up a promise, not long ago."""
        return {name for name, until_s in self.memory.cooled_until_s.items() if until_s > self.now_s}

    def settled(self, most_gpus: float = inf) -> Running:
        """Those who may be taken by a weighed taking: past their guaranteed run time, not cooling down, able to save.

        `most_gpus`: without whoever holds more whole GPUs than that and can give up none of them alone.
        """
        gone = len(self.quota.leaving)  # it only grows
        if self._settled[0] != gone:
            may, uids = self._old_and_saved().tolist(), self.observation.snapshot.workloads.uid
            cooling = self.cooling()
            settled = Running(
                claim for claim in self.quota.running() if may[claim.row] and uids[claim.row] not in cooling
            )
            self._settled = (gone, {inf: settled})
        known = self._settled[1]
        if most_gpus not in known:
            instances = self.observation.snapshot.workloads.mig_profile >= 0
            known[most_gpus] = Running(
                claim for claim in known[inf] if claim.gpus <= most_gpus or claim.elastic or instances[claim.row]
            )
        return known[most_gpus]

    def _old_and_saved(self) -> Bools:
        """Past its guaranteed run time, and able to save within the grace where that is asked for. Shape
        [workloads].
        """
        work = self.observation.snapshot.workloads
        settled = self.now_s >= running_since(work) + self.policy.protection.min_runtime_s
        return settled if self.policy.preemption.without_checkpoint else settled & ~self.unsaved

    def answer(self, at: int, miss: Miss | None) -> None:
        """Note why a gang may displace nobody, where that says more than that there is no room."""
        if miss is None or miss.code in _NO_ROOM:
            return
        # without guarantees nobody is owed anything
        if miss.code != Code.FAIRNESS or self.quota.ledger.guarantee_binds:
            self.refuse(at, miss)

    def too_early(self, at: int) -> Miss | None:
        """Set while a gang has not waited long enough to displace anybody."""
        if not self.pending_table.early[at]:
            return None
        work = self.observation.snapshot.workloads
        row = int(self.pending[at])
        submit_s, delay_s = float(work.submit_s[row]), float(work.preemption_delay_s[row])
        return Miss(Code.DELAY, self.now_s - submit_s, delay_s)

    def instance_share(self, instances: I32) -> float:
        """GPUs that these MIG instances are: each an equal part of those cut from its GPU."""
        whatif = self.whatif
        cut = np.bincount(whatif.instance_gpu[whatif.instance_alive], minlength=len(whatif.gpu_used))
        return float((1.0 / np.maximum(cut[whatif.instance_gpu[instances]], 1)).sum())

    def priced_gpus(self, layout: Layout) -> float:
        """GPUs of a layout by their price: shares are their part, instances too."""
        if not len(layout.gpu):
            return 0.0
        plain = layout.instance < 0
        gpus = float(layout.milli[plain].sum()) / GPU_MILLI + self.instance_share(layout.instance[~plain])
        return gpus * self.price_weight(int(self.observation.snapshot.gpus.node[layout.gpu[0]]))

    def price_weight(self, node: int) -> float:
        """Price of one GPU of a node relative to others, from policy; 1 where not named."""
        snapshot = self.observation.snapshot
        return self.policy.price_weight.get(snapshot.names.gpu_models[int(snapshot.nodes.gpu_model[node])], 1.0)

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


def build_context(
    observation: Observation, policy: Policy, memory: ControllerMemory, whatif: WhatIf, busy_rows: frozenset[int]
) -> Context:
    """The working set of one tick. `busy_rows` have an effect under way and are not planned."""
    snapshot = observation.snapshot
    work = snapshot.workloads
    review_now_s = review_start(observation.now_s, policy)
    pending = np.flatnonzero(work.state == State.PENDING).astype(np.int32)
    if busy_rows:
        pending = pending[~np.isin(pending, np.fromiter(busy_rows, np.int32))]
    outlook = look_out(observation, policy, review_now_s)
    wait_s = review_now_s - work.submit_s[pending]
    standing = standing_reservations(memory, observation, pending)
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
    ordered, firm = pending[order], firm[order]
    low, high, known = run_times(observation, policy, outlook, ordered)
    end_s = predicted_ends(observation, policy, outlook, review_now_s, policy.reservation.level)
    count, foreseen = len(ordered), ahead_mask(snapshot)
    members = members_by_row(snapshot)
    classes = shape_classes(snapshot, ordered, members)
    saves = saves_ratio(snapshot, memory, policy, observation.now_s)
    lost_gpu_s = stop_losses(snapshot, review_now_s, saves).price_gpu_s
    ctx = Context(
        observation=observation,
        policy=policy,
        memory=memory,
        whatif=whatif,
        review_now_s=review_now_s,
        outlook=outlook,
        pending=ordered,
        index=index[order],
        pending_table=pending_table(work, ordered, classes, members, observation.now_s),
        classes=classes,
        firm=firm,
        may_reserve=may_reserve(observation, policy, memory, ordered, review_now_s) & ~foreseen[ordered],
        standing=standing,
        run_low_s=low,
        run_high_s=high,
        gap_end_s=gap_ends(observation, policy, ordered, high, known),
        known=known,
        end_s=end_s,
        gpu_free_at_s=gpu_free_at(whatif, end_s),
        busy=busy_rows,
        lost_gpu_s=lost_gpu_s,
        losses=stop_losses(snapshot, observation.now_s, saves),
        unsaved=cannot_save(work, policy.preemption.grace_s),
        quota=build_quota(snapshot, policy, whatif, lost_gpu_s, corrected_weights(memory, snapshot.queues, policy)),
        members=members,
        leaving=leaving_rows(snapshot, busy_rows),
        place_in_line=np.full(count, np.iinfo(np.int32).max, np.int32),
        gpu_memory_mib=np.array([gpu_memory_mib(name) for name in snapshot.names.gpu_models], float),
        ahead=foreseen[ordered],
        taken=np.zeros(count, np.bool_),
        code=np.full(count, _CODE_INDEX[Code.CAPACITY], np.int8),
        value=np.zeros(count),
        threshold=work.gpus[ordered].astype(float),
    )
    _book_open_effects(ctx, busy_rows)
    return ctx


def _book_open_effects(ctx: Context, busy_rows: frozenset[int]) -> None:
    """What is under way is on the what-if's books already; the predictions and the quota books need it too."""
    ctx.quota.leaving |= busy_rows
    rows = np.array(sorted(busy_rows), np.int32)
    if not len(rows):
        return
    held, work = ctx.observation.snapshot.placements, ctx.observation.snapshot.workloads
    mine = np.flatnonzero(np.isin(held.workload, rows) & ~held.leaving & holding_mask(work)[held.workload])
    mine = mine[np.argsort(held.workload[mine], kind="stable")]
    after = once_done(ctx.memory, ctx.whatif, busy_rows)
    run_s, _, _ = run_times(ctx.observation, ctx.policy, ctx.outlook, rows)
    for row, length_s in zip(rows.tolist(), run_s.tolist(), strict=True):
        if row in after:
            low, high = np.searchsorted(held.workload[mine], (row, row + 1))
            counted = mine[low:high]
            ctx.quota.book(row, Layout(held.gpu[counted], held.instance[counted], held.milli[counted]), -1)
            ctx.quota.book(row, after[row])
        if row in ctx.whatif.layouts:
            ctx.gpu_free_at_s[ctx.whatif.layouts[row].gpu] = ctx.now_s + length_s
