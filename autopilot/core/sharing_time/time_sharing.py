"""Time sharing: waiting work pauses running work that would keep others waiting for longer.

Theory of operation. It is of the same queue or, if the policy lets queues share time (planning/lending.py), of another
one. There are two exchanges, both for queues ordered by index and with preemptible work only:

- by index: the waiting gang has an index (planning/ordering/job_order.py) `index_ratio` times as high as each paused
  gang. Serving the gang likely to finish sooner saves waiting (the exchange argument behind the Gittins index);
- by fill: some GPUs are idle, but too few for any waiting gang. Narrower work of a lower index, by half that ratio in
  logs, makes room for the best-ranked wider gang, so that the idle GPUs work too.

Across queues there is no fill, and the paused work has no higher priority, no more urgent class and is of no queue of a
higher tier.

Exactly the missing number of GPUs is taken, the worst index first. If the free GPUs are then scattered, other gangs are
moved; a moved gang keeps its place in the order.

While the action is capped, one exchange a tick is planned, and recommended; while it is paused by a storm, one is
planned, and refused. Under a policy that only recommends, all are: they fit together.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from autopilot.core.effects.draft import Case, Eviction, Submit
from autopilot.core.model.snapshot import I32, I64, QueueOrder
from autopilot.core.model.work import whole_gpus
from autopilot.core.placement.shapes import Fit, Shape
from autopilot.core.planning.context import Context
from autopilot.core.planning.lending import OVERUSED_WEIGHT
from autopilot.core.planning.ordering.job_order import aged_index
from autopilot.core.planning.places import held_for_others, place
from autopilot.core.planning.queue_turns import approval_ranks
from autopilot.core.planning.restraint import is_capped, is_paused
from autopilot.core.planning.search_budget import within_steps
from autopilot.core.search.moves import search_moves
from autopilot.core.search.scenario import STEPS_A_PLACE, Scenario, after_leaving, let_leave, pipelined_draft

TOGETHER = 32
"""Gangs behind a new gang that are considered as sharing the place of a wide victim with it."""

FILL_EXPONENT = 0.5
"""Exponent of `index_ratio` where idle GPUs are gained. With 0 the two sides of a fill would alternate."""


@dataclass(slots=True)
class _Bench:
    """Running preemptible work of one queue, or of all queues that share time, the worst index first."""

    rows: list[int]
    index: dict[int, float]  # as other queues see it
    own: dict[int, float]  # as its own queue sees it
    queue: dict[int, int]
    gpus: dict[int, int]
    line: list[int]  # who asks it to pause, in order
    mixed: bool = False  # it has work of several queues
    behind: frozenset[int] = frozenset()  # those of overused queues that pause for entitled gangs


class _Asker(NamedTuple):
    """A gang that asks others to pause: its queue, its index in that queue, and its index between queues."""

    queue: int
    own: float
    shared: float
    entitled: bool  # to the part of its queue


def share_time(ctx: Context, case: Case, across: Case, submit: Submit) -> None:
    """Exchanges in the order of the index, those approved by a person first; then fills.

    `across`: the case of an exchange between queues.
    """
    askers = _askers(ctx)
    index = np.array(ctx.shared_indices)[askers] if ctx.lending.shares else ctx.index[askers]
    after = np.array([row not in ctx.lending.entitled for row in ctx.pending[askers].tolist()], np.bool_)
    ranks = approval_ranks(ctx, ctx.pending[askers])
    order: list[int] = askers[np.lexsort((askers, -index, after, ranks))].tolist()
    if not order:
        return
    queue = ctx.pending_table.queue
    benches = _benches(ctx, {queue[at] for at in order})
    for at in order:
        benches[queue[at]].line.append(at)
    for fill in (False, True):
        asking = [at for at in order if not ctx.plan.taken[at] and not (fill and benches[queue[at]].mixed)]
        if _pass(ctx, asking, benches, (case, across), submit, fill=fill):
            return


def _pass(
    ctx: Context,
    order: list[int],
    benches: dict[int, _Bench],
    cases: tuple[Case, Case],
    submit: Submit,
    *,
    fill: bool,
) -> bool:
    """One exchange after the other; True if none can happen in this tick, and one shows the wish.

    A failure for one gang holds for those of its width behind it in its queue.
    """
    line, failed = ctx.pending_table, set[tuple[int, int]]()
    action = cases[0].action
    capped, paused = is_capped(ctx.memory, action), is_paused(ctx.memory, action)
    for at in within_steps(ctx, order):
        kind = (line.queue[at], line.least_gpus[at])
        if kind in failed or line.early[at]:
            continue
        bench = benches[line.queue[at]]
        found = _exchange(ctx, at, bench, fill=fill)
        stands = found is not None and _propose(ctx, at, found, bench, cases, submit)
        if (capped and stands) or (paused and found is not None):
            return True
        if stands:
            failed.clear()
        else:
            failed.add(kind)
    return False


def _askers(ctx: Context) -> I64:
    """Waiting gangs that may pause others: preemptible, of whole GPUs, in a queue ordered by index.

    A recently paused gang pauses no other. A forecast that turned within minutes is no reason to reverse the exchange,
    and each paused gang would pause the next.
    """
    snapshot = ctx.observation.snapshot
    work, waiting = snapshot.workloads, np.array(ctx.waiting(), np.int64)
    rows = ctx.pending[waiting] if len(waiting) else np.empty(0, np.int32)
    may = (snapshot.queues.order[work.queue[rows]] == QueueOrder.INDEX) & work.preemptible[rows]
    may &= whole_gpus(work, rows)
    may &= ~np.isin(rows, np.fromiter(ctx.members, np.int32, len(ctx.members)))
    cooling = ctx.cooling()
    if cooling:
        may &= np.array([uid not in cooling for uid in work.uid[rows].tolist()], np.bool_)
    found: I64 = waiting[may]
    return found


def _benches(ctx: Context, queues: set[int]) -> dict[int, _Bench]:
    """Running gangs of these queues open to pauses and moves: preemptible, past their guaranteed run time.

    All queues with time sharing have one bench together.
    """
    gpus, lending = ctx.observation.snapshot.workloads.gpus, ctx.lending
    sharing = {queue for queue in queues if lending.sharing(queue)}
    if sharing:
        queues |= {queue for queue, shares in enumerate(lending.shares) if shares}
    claims = [claim for claim in ctx.quota.running() if claim.preemptible and claim.queue in queues]
    rows = np.array([claim.row for claim in claims], np.int32)
    index = aged_index(ctx.outlook.index_per_s[rows], gpus[rows], np.zeros(len(rows)), ctx.policy.order)
    values = {row: each * lending.weight(row) for row, each in zip(rows.tolist(), index.tolist(), strict=True)}
    own = dict(zip(rows.tolist(), index.tolist(), strict=True))
    common = _Bench([], {}, {}, {}, {}, [], mixed=True, behind=lending.behind)
    found = {queue: common if lending.sharing(queue) else _Bench([], {}, {}, {}, {}, []) for queue in queues}
    for claim in claims:
        bench = found[claim.queue]
        bench.index[claim.row], bench.own[claim.row] = values[claim.row], own[claim.row]
        bench.gpus[claim.row], bench.queue[claim.row] = int(claim.gpus), claim.queue
    for claim in ctx.settled():
        if claim.preemptible and claim.queue in queues:
            found[claim.queue].rows.append(claim.row)
    for bench in {id(each): each for each in found.values()}.values():
        bench.rows.sort(key=lambda row: (row not in lending.behind, values[row], row))
    return found


def _exchange(ctx: Context, at: int, bench: _Bench, *, fill: bool) -> Scenario | None:
    """The gangs to pause and to move for the start of the gang at `at`; None if it may not, or cannot.

    A gang too wide for one new gang may pause for several that fill its place together.
    """
    row = int(ctx.pending[at])
    gpus = ctx.pending_table.least_gpus[at]
    if ctx.may_start(at, gpus) is not None:
        return None
    if ctx.plan.leaving:  # others pause already: what they leave comes first
        waiting = after_leaving(ctx, at)
        if isinstance(waiting, Scenario):
            return waiting
    idle = int(ctx.room(float(ctx.gap_end_s[at])).sum())
    missing = gpus - idle
    if missing <= 0 or (fill and idle <= 0):
        return None
    ratio = ctx.policy.preemption.index_ratio
    ratio = ratio**FILL_EXPONENT if fill else ratio
    asker = _asker(ctx, at)
    paused: list[int] = []
    behind: list[int] = []
    for other in bench.rows:
        if missing <= 0:
            break
        if other in ctx.quota.leaving:
            continue
        index, asks = _compared(bench, other, asker)
        if index >= asks / ratio or (fill and bench.gpus[other] >= gpus):
            continue
        if bench.mixed and not _may_pause_for(ctx, other, row):
            continue
        if bench.gpus[other] > gpus:
            behind = _behind(ctx, at, bench, bench.index[other])
            need = gpus + sum(ctx.pending_table.least_gpus[each] for each in behind)
            if _leaves_idle(index, asks / ratio, need, bench.gpus[other]):
                continue
        paused.append(other)
        missing -= bench.gpus[other]
    if missing > 0 or ctx.plan.exhausted(len(paused)):
        return None
    # the last one may have been too wide
    for other in sorted(paused, key=lambda each: (-bench.gpus[each], each)):
        if missing + bench.gpus[other] <= 0:
            paused.remove(other)
            missing += bench.gpus[other]
    found = _on_paper(ctx, at, ctx.shape(row, gpus), paused, behind)
    if found is None:
        return None
    for other in paused:
        index, asks = _compared(bench, other, asker)
        needed = found.needed_gpus or gpus
        if bench.gpus[other] > gpus and _leaves_idle(index, asks / ratio, needed, bench.gpus[other]):
            return None
    return found


def _may_pause_for(ctx: Context, other: int, row: int) -> bool:
    """True if the running gang `other` may pause for the waiting gang of `row`, of the same or another queue."""
    work, ledger = ctx.observation.snapshot.workloads, ctx.quota.ledger
    mine, theirs = int(work.queue[row]), int(work.queue[other])
    if mine == theirs:
        return True
    lending = ctx.lending
    if other in lending.kept or work.priority[other] > work.priority[row]:
        return False
    if other in lending.apart and mine in lending.overused and row not in lending.inside:
        return False
    if work.slo_class[other] < work.slo_class[row]:
        return False
    one, two = ledger.parting(mine, theirs)
    return bool(ledger.queues.priority[two] <= ledger.queues.priority[one])


def _asker(ctx: Context, at: int) -> _Asker:
    """The gang at `at`."""
    entitled = int(ctx.pending[at]) in ctx.lending.entitled
    return _Asker(ctx.pending_table.queue[at], float(ctx.index[at]), ctx.shared_indices[at], entitled)


def _compared(bench: _Bench, other: int, asker: _Asker) -> tuple[float, float]:
    """The index of a running gang and that of the asker. Inside one queue, guarantees and past use do not count."""
    if bench.queue[other] == asker.queue:
        return bench.own[other], asker.own
    weight = OVERUSED_WEIGHT if asker.entitled and other in bench.behind else 1.0
    return bench.index[other] * weight, asker.shared


def _leaves_idle(index: float, limit: float, need: int, gpus: int) -> bool:
    """True if too much of a wide gang's place of `gpus` GPUs would idle with `need` of them used."""
    return bool(index >= limit * min(need / gpus, 1.0))


def _behind(ctx: Context, at: int, bench: _Bench, index: float) -> list[int]:
    """Gangs behind the one at `at`, with a higher index than a wide gang: they may take its place together."""
    later = islice(bench.line, bench.line.index(at) + 1, None)
    shared = ctx.shared_indices
    better = (each for each in later if shared[each] > index and not ctx.plan.taken[each])
    return list(islice(better, TOGETHER))


def _fitting(ctx: Context, behind: list[int], left: I32) -> int:
    """GPUs of the gangs in `behind` that fit and start on the GPUs `left`, one after the other.

    They stay on the what-if.
    """
    total, most = 0, len(left)
    for at in behind:
        row, gpus = int(ctx.pending[at]), ctx.pending_table.least_gpus[at]
        if total + gpus > most or ctx.may_start(at, gpus) is not None:
            continue
        ctx.plan.spend(STEPS_A_PLACE)
        fit = place(ctx, at, ctx.shape(row, gpus), displacing=True)
        if isinstance(fit, Fit) and np.isin(fit.layout.gpu, left).any():
            ctx.whatif.place(row, fit.layout)
            total += gpus
    return total


def _on_paper(ctx: Context, at: int, shape: Shape, paused: list[int], behind: list[int]) -> Scenario | None:
    """The gang on the GPUs of paused gangs, others moved if needed; the what-if is left as it was.

    Gangs `behind` it count only if they fit on the rest of these GPUs: a place is not taken for gangs that cannot use
    it.
    """
    whatif = ctx.whatif
    mark = let_leave(ctx)
    left = {row: whatif.layout_of(row).gpu for row in paused}
    spared = held_for_others(ctx, at)
    for row in paused:
        whatif.evict(row)
    fit = place(ctx, at, shape, displacing=True, spared=spared)
    moves: tuple[Eviction, ...] = ()
    if not isinstance(fit, Fit):
        found = search_moves(ctx, at, shape, paused)
        if found is not None:
            fit, moves = found.fit, found.evictions
    needed = shape.gpus
    if isinstance(fit, Fit) and behind and not moves:
        whatif.place(int(ctx.pending[at]), fit.layout)
        rest = np.setdiff1d(np.concatenate(list(left.values())), fit.layout.gpu)
        needed += _fitting(ctx, behind, rest)
    whatif.rollback(mark)
    if not isinstance(fit, Fit):
        return None
    if not moves and not np.isin(fit.layout.gpu, np.concatenate(list(left.values()))).any():
        return None  # it would start on held GPUs alone, without a pause
    pauses = tuple(Eviction(row, "evict", None, len(left[row]), float(ctx.lost_gpu_s[row])) for row in paused)
    return Scenario(shape, fit, (*pauses, *moves), needed_gpus=needed)


def _propose(ctx: Context, at: int, found: Scenario, bench: _Bench, cases: tuple[Case, Case], submit: Submit) -> bool:
    """Worth of the exchange: waiting saved because the shorter gang goes first, and idle GPUs used."""
    asker, saved_s = _asker(ctx, at), 0.0
    for give in found.evictions:
        if give.how == "evict":
            later, sooner = _compared(bench, give.row, asker)
            saved_s += max(1.0 / max(later, 1e-12) - 1.0 / max(sooner, 1e-12), 0.0)
    idle = found.shape.gpus - sum(give.gpus for give in found.evictions if give.how == "evict")
    used_gpu_s = max(idle, 0) * min(float(ctx.run_low_s[at]), ctx.policy.horizon_s)
    worth = min(saved_s, ctx.policy.horizon_s) * ctx.policy.preemption.priority_weight + used_gpu_s
    own = all(bench.queue[give.row] == asker.queue for give in found.evictions if give.how == "evict")
    case = cases[0] if own else cases[1]
    return ctx.plan.decide(at, submit(pipelined_draft(ctx, case, at, found, worth, net_of_waiting=True)))
