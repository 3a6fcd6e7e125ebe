"""Prospects of a waiting gang: the end of each obstacle, by forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, floor, inf, isfinite

import numpy as np

from autopilot.core.model.records import Code, Decision
from autopilot.core.model.units import counted, format_duration, number
from autopilot.core.placement.shapes import Fit, shape_of
from autopilot.core.planning.context import Context
from autopilot.core.planning.places import place
from autopilot.explain.story.levels import cohorts, has_tree, name_of, short_levels
from autopilot.explain.story.prospects import (
    Ending,
    Prospect,
    quota_by_forecast,
    room_by_forecast,
    sheltered,
    unforeseen,
    verdict_ends_in_s,
)
from autopilot.explain.story.waiting import NO_TURN_CODES, SHOWN_NAMES, Waiting, refusing, soon, waiting_before


def freed_by(gang: Waiting, decision: Decision) -> list[str]:
    """Each obstacle's end and its time by forecast, at the quantile used for reservations."""
    ctx, code = gang.ctx, gang.why.code
    if code == Code.EXCLUDED:
        return ["its owner lets the autopilot act on it again; time alone does not"]
    if code == Code.WORKERS:
        return ["its own workers start; nothing else holds it"]
    if code == Code.SUSPENDED:
        return ["its owner lets it continue (`suspend` of its Job, `active` of its Workload); time alone does not"]
    if code == Code.NO_PODS:
        return ["its controller makes its pods, or its owner deletes it; its quota and room are held until then"]
    if code == Code.CHECK:
        return ["the check passes it; nothing foretells when"]
    lines = []
    if gang.quota is not None:
        lines.append(_quota_prospect(gang))
    if code == Code.ORDER:
        lines += _ahead(gang)
    if not isinstance(place(ctx, gang.at, gang.shape), Fit):
        lines.append(f"room: {_room_prospect(gang)}")
    foreseen = bool(ctx.ahead[gang.at])  # no work is preempted for it
    if ctx.quota.ledger.guarantee_binds and has_tree(ctx) and not foreseen:
        lines.append(_owed_prospect(gang))
    # by contract the young may be taken too
    if not foreseen and code not in NO_TURN_CODES and not ctx.quota.inside(gang.claim):
        lines += _shelter(gang)
    for proposal, verdict in refusing(gang, decision):
        left_s = verdict_ends_in_s(verdict, ctx)
        if left_s is not None:
            lines.append(f"guard {verdict.guard}: no longer in the way of {proposal.id} in {format_duration(left_s)}")
    return lines + _clocks(gang)


def _shelter(gang: Waiting) -> list[str]:
    """Gangs out of reach for now (young, or disrupted before) with the first end of that shelter; and gangs out of
    reach for good.
    """
    ctx = gang.ctx
    found = sheltered(ctx, gang.claim)
    young, spared = ([each for each in found if isfinite(each.end_s) == ends] for ends in (True, False))
    lines = []
    if young:
        name = ctx.observation.snapshot.workloads.id[young[0].row]
        lines.append(
            f"shelter: {_gangs(young)} may not be displaced yet, too young or disrupted before; first to lose that "
            f"shelter is {name} ({counted(round(young[0].gpus, 3), 'GPU')}), {soon(ctx, young[0].end_s)}"
        )
    if spared:
        lines.append(f"shelter: {_gangs(spared)} may not be displaced again: stopped as often as policy allows")
    return lines


def _gangs(found: Sequence[Ending]) -> str:
    return f"{counted(len(found), 'gang')} on {counted(round(sum(each.gpus for each in found), 3), 'GPU')}"


def _clocks(gang: Waiting) -> list[str]:
    """Effects of time alone: the end of its preemption delay, its promise, and being overdue (seen at the next
    review).
    """
    ctx, policy = gang.ctx, gang.ctx.policy
    work, period_s = ctx.observation.snapshot.workloads, policy.review.batch_s
    submit_s, delay_s = float(work.submit_s[gang.row]), float(work.preemption_delay_s[gang.row])
    lines = []
    if ctx.now_s < submit_s + delay_s:
        lines.append(f"delay: it may displace others {soon(ctx, submit_s + delay_s)}")
    if ctx.may_reserve[gang.at] and not ctx.firm[gang.at] and policy.reservation.depth:
        firm_s = ceil((submit_s + policy.reservation.firm_after_s) / period_s) * period_s
        lines.append(f"promise: room held for it becomes a promise {soon(ctx, firm_s)}")
    overdue_s = (floor((submit_s + policy.order.max_wait_s) / period_s) + 1) * period_s
    if ctx.review_now_s >= overdue_s:
        lines.append(
            f"overdue for {format_duration(ctx.now_s - overdue_s)}: of its class and the priority of its queue "
            f"only older gangs come before it"
        )
    else:
        lines.append(
            f"overdue {soon(ctx, overdue_s)}: from then on only older gangs of its class and the priority of its "
            f"queue come before it"
        )
    return lines


def _room_prospect(gang: Waiting) -> str:
    """Time of room for it; if reservations alone are in the way, their starts and their run times by forecast."""
    ctx = gang.ctx
    found = room_by_forecast(ctx, gang.at, gang.shape)
    reserved = [held for held in ctx.plan.held if held.row != gang.row]
    if isfinite(found.at_s) or not reserved:
        return _when(ctx, found, "it fits")
    alone = room_by_forecast(replace(ctx, plan=replace(ctx.plan, held=[])), gang.at, gang.shape)
    parts = []
    for held in reserved[:SHOWN_NAMES]:
        at = np.flatnonzero(ctx.pending == held.row)  # none for a hold without a gang of its own
        runs_s = float(ctx.run_low_s[at[0]]) if len(at) else inf
        how_long = (
            f"for {format_duration(runs_s)} by forecast" if isfinite(runs_s) else "for how long nothing foretells"
        )
        parts.append(f"{held.record.workload} (starts {soon(ctx, held.start_s)} and runs {how_long})")
    if not isfinite(alone.at_s):
        return _when(ctx, alone, "it fits")
    return (
        f"not before what is reserved for {', '.join(parts)}; were nothing reserved, it would fit "
        f"{soon(ctx, alone.at_s)}"
    )


def _ahead(gang: Waiting) -> list[str]:
    """Time of room for the gang at the head of its strict queue."""
    ctx = gang.ctx
    work = ctx.observation.snapshot.workloads
    queue = int(work.queue[gang.row])
    before = [row for row in waiting_before(gang) if work.queue[row] == queue]
    if not before:
        return []
    at = int(np.flatnonzero(ctx.pending == before[0])[0])
    shape = shape_of(ctx.observation.snapshot, before[0], ctx.pending_table.least_gpus[at])
    found = room_by_forecast(ctx, at, shape)
    return [f"order: {work.id[before[0]]} before it starts; {_when(ctx, found, 'that fits')}"]


def _quota_prospect(gang: Waiting) -> str:
    """Time of its admission by the function behind the quota refusal."""
    ctx, claim = gang.ctx, gang.claim
    code = gang.why.code if gang.quota is None else gang.quota.code
    path = ctx.quota.ledger.paths[claim.queue]
    shared = {path[-1]} if path and cohorts(ctx) else {0}
    below = set(short_levels(ctx, claim, code)) if code in {Code.LIMIT, Code.GUARANTEE} else shared
    found = quota_by_forecast(ctx, lambda ledger: ctx.quota.rules.may_start(ledger, claim) is None, below or {0})
    return f"quota: {_when(ctx, found, 'its queue may start it')}"


def _owed_prospect(gang: Waiting) -> str:
    """Time of a guarantee shortfall of its queue: from then on the use of its room by others may be taken back."""
    ctx, claim = gang.ctx, gang.claim
    ledger = ctx.quota.ledger
    owed, path = ctx.quota.rules.owed, ledger.paths[claim.queue][:1]  # its own guarantee decides
    if owed(ledger, claim):
        return "guarantee: its queue has a shortfall now; what others use beyond their own is taken back by contract"
    least = [each for each in path if any(claim.gpus > ledger.guarantee[kind][each] for kind in claim.kinds)]
    if least:
        has = min(ledger.guarantee[kind][least[0]] for kind in claim.kinds)
        return (
            f"guarantee: never, for queue {name_of(ctx, least[0])} is guaranteed {counted(has, 'GPU')} "
            f"and this gang needs {number(claim.gpus)}"
        )
    beyond = {each for each in path if not ledger.within_guarantee(each, claim.gpus, claim.kinds)}
    found = quota_by_forecast(ctx, lambda rest: owed(rest, claim), beyond)
    return f"guarantee: {_when(ctx, found, 'its queue has a shortfall')}"


def _when(ctx: Context, found: Prospect, what: str) -> str:
    """`it fits in 2 h by forecast, when a (8 GPUs, in 1 h) and b (8 GPUs, in 2 h) have ended`."""
    if not isfinite(found.at_s):
        blind = unforeseen(ctx)
        held = sum(each.gpus for each in blind)
        why = f": nothing foretells when {counted(len(blind), 'gang')} on {counted(held, 'GPU')} end" if blind else ""
        return f"no forecast says when {what}{why}"
    level = f"quantile {ctx.policy.reservation.level:g} of run times"
    ended = f" ({level}), when {_endings(ctx, found.endings)} ended" if found.endings else ""
    return f"{what} {soon(ctx, found.at_s)} by forecast{ended}, unless other work starts there first"


def _endings(ctx: Context, ended: Sequence[Ending]) -> str:
    """The first workloads to end, and the last one."""
    work = ctx.observation.snapshot.workloads

    def one(each: Ending) -> str:
        return f"{work.id[each.row]} ({counted(round(each.gpus, 3), 'GPU')}, {soon(ctx, each.end_s)})"

    shown = [one(each) for each in (ended if len(ended) <= SHOWN_NAMES else ended[: SHOWN_NAMES - 1])]
    if len(ended) > SHOWN_NAMES:
        shown.append(f"{len(ended) - SHOWN_NAMES} more and at last {one(ended[-1])}")
    return ", ".join(shown) + (" have" if len(ended) > 1 else " has")
