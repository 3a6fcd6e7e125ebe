"""The earliest start of a gang by forecast: the deciding functions, asked about a later moment.

Running gangs leave the books in the order of their predicted ends until the refusing function accepts the gang. Nothing
else is foreseen: no new work, no earlier start of another gang. So a prospect is the earliest moment, not a promise.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, isnan

import numpy as np

from autopilot.core.model.records import Code, Verdict
from autopilot.core.model.snapshot import GPU_MILLI
from autopilot.core.model.work import holding_mask
from autopilot.core.placement.shapes import Fit, Miss, Shape
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context
from autopilot.core.planning.places import place
from autopilot.core.quota.ledger import QuotaLedger
from autopilot.core.quota.rules.base import Claim


@dataclass(frozen=True, slots=True)
class Ending:
    """A gang on GPUs and its end by forecast; inf: unknown."""

    row: int
    gpus: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Prospect:
    """Earliest time of an event, and the gangs ended by then; inf: not within the forecast."""

    at_s: float
    endings: tuple[Ending, ...] = ()


def endings(ctx: Context) -> list[Ending]:
    """All gangs on GPUs after this tick's plan, in the order of their ends by forecast."""
    holding = np.flatnonzero(holding_mask(ctx.observation.snapshot.workloads)).tolist()
    found = []
    for row in sorted({*holding, *ctx.whatif.layouts}):
        layout = ctx.whatif.layout_of(row)
        if len(layout):
            end_s = float(ctx.end_s[row])
            started = not isfinite(end_s)  # then the books know the time of its free GPUs
            free_s = float(ctx.plan.gpu_free_at_s[layout.gpu].max()) if started else end_s
            found.append(Ending(row, _gpus(layout), free_s if isfinite(free_s) else inf))
    return sorted(found, key=lambda each: (each.end_s, each.row))


def _gpus(layout: Layout) -> float:
    return float(np.where(layout.instance < 0, layout.milli / GPU_MILLI, 1.0).sum())


def room_by_forecast(ctx: Context, at: int, shape: Shape) -> Prospect:
    """Time of room for the gang at `at`; its endings are the former holders of its GPUs (or instances)."""
    known = [each for each in endings(ctx) if isfinite(each.end_s)]

    def after(count: int) -> Fit | Miss:
        mark = ctx.whatif.checkpoint()
        for each in known[:count]:
            ctx.whatif.evict(each.row)
        found = place(ctx, at, shape)
        ctx.whatif.rollback(mark)
        return found

    count = bisect_left(range(len(known) + 1), True, key=lambda count: isinstance(after(count), Fit))
    fit = after(count) if count <= len(known) else None
    if not isinstance(fit, Fit):
        return Prospect(inf)
    wanted = _places(fit.layout)
    gone = [each for each in known[:count] if not wanted.isdisjoint(_places(ctx.whatif.layout_of(each.row)))]
    return Prospect(known[count - 1].end_s if count else ctx.now_s, tuple(gone))


def _places(layout: Layout) -> set[tuple[int, int]]:
    """The GPUs of a layout, or their instances."""
    return set(zip(layout.gpu.tolist(), layout.instance.tolist(), strict=True))


def quota_by_forecast(ctx: Context, lets_in: Callable[[QuotaLedger], bool], below: Collection[int]) -> Prospect:
    """Time of admission by the books as gangs of the queues `below` (and beneath them) end; 0, the root: of all."""
    work, ledger = ctx.observation.snapshot.workloads, ctx.quota.ledger
    known = [
        each
        for each in endings(ctx)
        if isfinite(each.end_s) and not {*ledger.paths[int(work.queue[each.row])], 0}.isdisjoint(below)
    ]

    def after(count: int) -> bool:
        rest = replace(ledger, use=[[*row] for row in ledger.use], sheltered=[[*row] for row in ledger.sheltered])
        quota = replace(ctx.quota, ledger=rest)
        for each in known[:count]:
            quota.book(each.row, ctx.whatif.layout_of(each.row), -1)
        return lets_in(rest)

    count = bisect_left(range(len(known) + 1), True, key=after)
    if count > len(known):
        return Prospect(inf)
    return Prospect(known[count - 1].end_s if count else ctx.now_s, tuple(known[:count]))


def unforeseen(ctx: Context) -> Sequence[Ending]:
    """Gangs on GPUs with no foreseen end."""
    return [each for each in endings(ctx) if not isfinite(each.end_s)]


def sheltered(ctx: Context, claim: Claim) -> list[Ending]:
    """Gangs in reach of `claim` but too young or cooling down, each with the end of that shelter, soonest first; inf
    for gangs stopped too often.
    """
    work, stops = ctx.observation.snapshot.workloads, ctx.stops
    running = ctx.quota.running()
    settled = {each.row for each in ctx.settled()}
    found = []
    for each in running:
        reach = each.queue != claim.queue if ctx.quota.rules.across is not None else False
        if each.row in settled or not each.preemptible or not (reach or each.priority < claim.priority):
            continue
        cooled_s = ctx.memory.budget.cooled_until_s.get(str(work.uid[each.row]), -inf)
        started_s = ctx.now_s if isnan(each.start_s) else each.start_s
        old_s = inf if stops.often[each.row] else started_s + float(stops.guaranteed_s[each.row])
        found.append(Ending(each.row, each.gpus, max(old_s, cooled_s)))
    return sorted(found, key=lambda each: (each.end_s, each.row))


def verdict_ends_in_s(verdict: Verdict, ctx: Context) -> float | None:
    """Seconds until time alone ends the refusal of a guard; None if time alone does not."""
    if verdict.code in {Code.DWELL, Code.MIN_RUNTIME, Code.PAUSED}:
        return max(verdict.threshold - verdict.value, 0.0)
    if verdict.code == Code.COOL_DOWN:
        return max(verdict.value, 0.0)
    if verdict.code in {Code.BUDGET_CLUSTER, Code.BUDGET_TENANT, Code.BUDGET_NODE}:
        leave_s = [
            entry.at_s + ctx.policy.budget.window_s for entry in ctx.memory.budget.disrupted if not entry.contract
        ]
        return min((at_s - ctx.now_s for at_s in leave_s if at_s > ctx.now_s), default=None)
    return None
