"""What every action and guard of one tick shares: the observation, the books, the predictions.

Built once by the planner. Actions read it and change only its `whatif`, `held` reservations and
refusal columns, through the methods below; guards only read. Whatever varies with time alone is
evaluated at `review_now_s`, the start of the current review period (see ControllerMemory.wake_at_s).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from autopilot.core.forecast import remaining_quantile_s
from autopilot.core.order import aged_index, gittins_per_s, median_left_s, service_order
from autopilot.core.placement import Miss, Shape, shape_classes
from autopilot.core.policy import Mode, Policy
from autopilot.core.records import Code, ControllerMemory, Disruption, Observation, Refusals, Reservation
from autopilot.core.snapshot import F64, I32, State, holding_mask
from autopilot.core.tenancy import limit_room, queue_use, spend_room
from autopilot.core.whatif import WhatIf

CODES = tuple(Code)
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
    queue_room: F64  # GPUs left under the hard limits along each queue's path, [queues]; empty: no limits
    firm: np.ndarray  # gangs whose reservation is, or would be, a promise, [pending]
    may_reserve: np.ndarray  # [pending]
    standing: dict[int, Reservation]  # reservations in memory, by row
    held: list[Held] = field(default_factory=list)
    taken: np.ndarray = field(default_factory=lambda: np.empty(0, np.bool_))  # pending rows already decided
    code: np.ndarray = field(default_factory=lambda: np.empty(0, np.int8))
    value: F64 = field(default_factory=lambda: np.empty(0))
    threshold: F64 = field(default_factory=lambda: np.empty(0))
    released: list[str] = field(default_factory=list)
    accepted: list[Disruption] = field(default_factory=list)  # disruptions accepted in this tick

    @property
    def now_s(self) -> float:
        """Time of the observation."""
        return self.observation.now_s

    def room(self, end_s: float) -> I32:
        """Whole free GPUs per node for a gang that would run until `end_s`. Shape [nodes]."""
        binding = [held for held in self.held if held.start_s < end_s]
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

    def occupy(self, row: int, gpu_rows: I32, end_s: float) -> None:
        """Book a placement in the prediction columns: when its GPUs end, what reservations and limits lose."""
        if len(self.queue_room):
            spend_room(
                self.observation.snapshot.queues,
                self.queue_room,
                int(self.observation.snapshot.workloads.queue[row]),
                len(gpu_rows),
            )
        self.gpu_free_at_s[gpu_rows] = end_s
        for held in self.held:
            if held.start_s < end_s:
                counts = np.bincount(
                    self.observation.snapshot.gpus.node[gpu_rows], minlength=len(self.whatif.node_free)
                )
                held.spare -= counts[held.nodes].astype(np.int32)

    def over_limit(self, at: int, gpus: int) -> Miss | None:
        """Set when the hard limit of its queue (or of one above) keeps a pending gang of this width out."""
        if not len(self.queue_room):
            return None
        left = float(self.queue_room[int(self.observation.snapshot.workloads.queue[int(self.pending[at])])])
        return Miss(Code.LIMIT, left, float(gpus)) if gpus > left else None

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

    def lost_gpu_s(self, row: int) -> float:
        """Work that evicting `row` now would lose: since its last checkpoint, else since its start."""
        work = self.observation.snapshot.workloads
        start_s = float(work.start_s[row])
        saved_s = float(work.last_checkpoint_s[row])
        since_s = float(np.fmax(start_s, saved_s))
        held = len(self.whatif.layout_of(row).gpu) or int(work.gpus[row])
        return held * max(self.now_s - since_s, 0.0) if not np.isnan(since_s) else 0.0

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
        """Columns for every pending row that was not proposed."""
        left = ~self.taken
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
    index = np.full(len(pending), 1e-4) if forecast is None else gittins_per_s(forecast, pending)
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
    low, high, known = _run_times(observation, policy, ordered)
    end_s = _ends(observation, policy, review_now_s)
    count = len(ordered)
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
        gap_end_s=_gap_ends(observation, policy, ordered, high, known),
        known=known,
        end_s=end_s,
        gpu_free_at_s=_gpu_free_at(whatif, end_s),
        queue_room=limit_room(snapshot.queues, queue_use(snapshot)),
        gpu_memory_mib=np.array([gpu_memory_mib(name) for name in snapshot.names.gpu_models], float),
        taken=np.zeros(count, np.bool_),
        code=np.full(count, _CODE_INDEX[Code.CAPACITY], np.int8),
        value=np.zeros(count),
        threshold=work.gpus[ordered].astype(float),
    )
    _book_open_effects(ctx, busy_rows)
    return ctx


def _book_open_effects(ctx: Context, busy_rows: frozenset[int]) -> None:
    """Admissions under way are on the what-if's books already; the predictions and limits need them too."""
    rows = np.array(sorted(row for row in busy_rows if row in ctx.whatif.layouts), np.int32)
    if not len(rows):
        return
    run_s, _, _ = _run_times(ctx.observation, ctx.policy, rows)
    for row, length_s in zip(rows.tolist(), run_s.tolist(), strict=True):
        ctx.occupy(row, ctx.whatif.layouts[row].gpu, ctx.now_s + length_s)


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


def review_start(now_s: float, policy: Policy) -> float:
    """Start of the review period that `now_s` lies in."""
    return float(np.floor(now_s / policy.review.batch_s) * policy.review.batch_s)


def _run_times(observation: Observation, policy: Policy, rows: I32) -> tuple[F64, F64, np.ndarray]:
    """Run time of pending rows at the reservation and the backfill level, capped by declared limits.

    Progress kept from earlier incarnations is subtracted. NaN forecasts become the limit, or inf.
    """
    work, forecast = observation.snapshot.workloads, observation.forecasts.runtimes
    limit = np.where(np.isnan(work.limit_s[rows]), np.inf, work.limit_s[rows])
    if forecast is None:
        return limit.copy(), limit, np.isfinite(limit)
    served = work.served_s[rows]
    quantiles = []
    for level in (policy.reservation.level, policy.backfill.level):
        left = remaining_quantile_s(forecast.levels, forecast.total_s[rows], served, level)
        quantiles.append(np.minimum(np.where(np.isnan(left), np.inf, left), limit))
    return quantiles[0], quantiles[1], np.isfinite(quantiles[1])


def _gap_ends(observation: Observation, policy: Policy, rows: I32, run_high_s: F64, known: np.ndarray) -> F64:
    """When each pending gang, started now, is gone at the backfill level. Shape [rows].

    Preemptible work of unknown length may use any gap (it can be evicted), other unknown work none.
    """
    if policy.modes.backfill == Mode.OFF:
        return np.full(len(rows), np.inf)
    ends = np.where(known, observation.now_s + run_high_s, np.inf)
    return np.where(~known & observation.snapshot.workloads.preemptible[rows], observation.now_s, ends)


def _ends(observation: Observation, policy: Policy, review_now_s: float) -> F64:
    """Predicted end of each holding workload at the reservation level. Shape [workloads]."""
    work, forecast = observation.snapshot.workloads, observation.forecasts.runtimes
    ends = np.full(len(work.id), np.inf)
    rows = np.flatnonzero(holding_mask(work))
    since = np.maximum(np.nan_to_num(work.start_s[rows], nan=review_now_s), 0.0)
    here = np.maximum(review_now_s - since, 0.0)
    from_s = np.maximum(since, review_now_s)
    left = np.full(len(rows), np.nan)
    if forecast is not None and len(rows):
        left = remaining_quantile_s(forecast.levels, forecast.total_s[rows], work.served_s[rows] + here,
                                    policy.reservation.level)  # fmt: skip
    by_limit = np.where(np.isnan(work.limit_s[rows]), np.inf, work.limit_s[rows] - here)
    left = np.minimum(np.where(np.isnan(left), np.inf, left), np.maximum(by_limit, policy.review.batch_s))
    ends[rows] = from_s + left
    return ends


def _gpu_free_at(whatif: WhatIf, end_s: F64) -> F64:
    """When each GPU comes free by prediction. Shape [gpus]."""
    held = whatif.snapshot.placements
    free_at = np.where(whatif.gpu_usable, -np.inf, np.inf)
    if len(held.gpu):
        busy = np.full(len(free_at), -np.inf)
        np.maximum.at(busy, held.gpu, end_s[held.workload])
        free_at = np.maximum(free_at, busy)
    return free_at


@lru_cache(maxsize=512)
def gpu_memory_mib(model: str) -> float:
    """Memory of one GPU of `model` in MiB, as its name states it (`H100-80GB`); 0 when it does not."""
    tail = model.rsplit("-", 1)[-1]
    return float(tail[:-2]) * 1024 if tail.endswith("GB") and tail[:-2].isdigit() else 0.0
