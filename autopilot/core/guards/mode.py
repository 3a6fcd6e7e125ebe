"""The right of an action to act: the kill switch, a pause, and the mode of the action."""

from __future__ import annotations

from autopilot.core.effects.draft import Draft
from autopilot.core.guards.base import allow, deny
from autopilot.core.model.approvals import Outside, approval_of, outside, passes_others, rejection_of
from autopilot.core.model.modes import MODE_UNIT, MODES, Effect, Mode
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.planning.context import Context

NAME = "mode"
_REFUSED = {Mode.OFF: Code.MODE_OFF, Mode.OBSERVE: Code.MODE_OBSERVE, Mode.RECOMMEND: Code.MODE_RECOMMEND}


def check(proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Allow in mode auto, and in mode approve under a covering approval or for an exempt case."""
    mode = getattr(ctx.policy.modes, proposal.action)
    step, unit, need = float(MODES.index(mode)), MODE_UNIT, float(MODES.index(Mode.AUTO))
    if ctx.observation.kill_switch or ctx.memory.halt.killed:
        return deny(NAME, Code.KILL_SWITCH, 1.0, "kill switch", 0.0)
    if ctx.memory.halt.paused_reason:
        code = Code.PAUSED_BY_PERSON if ctx.memory.halt.paused_by else Code.PAUSED
        return deny(
            NAME, code, ctx.now_s - ctx.memory.halt.paused_since_s, "s paused", ctx.policy.pause.length_s, at_least=True
        )
    if mode in _REFUSED:
        return deny(NAME, _REFUSED[mode], step, unit, need)
    if ctx.memory.people.rejections and rejection_of(ctx.memory.people.rejections, proposal, ctx.now_s) is not None:
        return deny(NAME, Code.REJECTED, step, unit, need)
    on_paper = _rests_on_paper(draft, ctx)
    if mode == Mode.APPROVE and Code.NEEDS_APPROVAL not in draft.case.exempt:
        uncovered, follows = _uncovered(proposal, ctx), on_paper and _follows(draft, ctx)
        if uncovered is not None and (uncovered[0] == Code.APPROVAL_SIDE_EFFECTS or not follows):
            return deny(NAME, *uncovered)
    if on_paper:
        return deny(NAME, Code.ON_PAPER, step, unit, need)
    return allow(NAME, step, unit, step)


def _uncovered(proposal: Proposal, ctx: Context) -> Outside | None:
    """What the approval of a proposal lacks; None where one covers it."""
    approval = approval_of(ctx.memory.people.approvals, proposal) if ctx.memory.people.approvals else None
    if approval is None:
        return Code.NEEDS_APPROVAL, float(MODES.index(Mode.APPROVE)), MODE_UNIT, float(MODES.index(Mode.AUTO))
    return outside(approval, proposal, ctx.now_s, ctx.policy.approval) or passes_others(approval, proposal)


def _follows(draft: Draft, ctx: Context) -> bool:
    """True for a start that stops nothing, where starts on free GPUs need no person.

    On room that only a recommendation makes, it needs no approval of its own: it starts once that one is carried out.
    """
    return draft.waiting_row is not None and not draft.taken and ctx.policy.modes.auto(Effect.ADMIT)


def _rests_on_paper(draft: Draft, ctx: Context) -> bool:
    """True for a proposal on GPUs or quota that only a recommendation frees."""
    fit = draft.placed
    if not ctx.plan.paper or fit is None:
        return False
    layouts = [give.keeps for give in draft.taken if give.how == "move" and give.keeps is not None]
    asked = {place for layout in (*layouts, fit.layout) for place in layout.places()}
    if any(not asked.isdisjoint(held.places()) for held, _ in ctx.plan.paper.values()):
        return True
    quota = ctx.quota
    ledger = quota.ledger.saved()
    for row, (held, keeps) in ctx.plan.paper.items():
        quota.book(row, held)
        if keeps is not None:
            quota.book(row, keeps, -1)
    for give in draft.taken:
        quota.book(give.row, ctx.whatif.layout_of(give.row), -1)
        if give.keeps is not None:
            quota.book(give.row, give.keeps)
    starts = draft.workload_row
    refusal = None if starts is None else quota.may_start(starts, len(fit.layout))
    quota.ledger.restore(ledger)
    return refusal is not None
