"""May this action go by itself? The kill switch, a self-pause, and the mode of the action."""

from __future__ import annotations

from autopilot.core.context import Context
from autopilot.core.draft import Draft
from autopilot.core.guards.base import allow, deny
from autopilot.core.policy import Mode
from autopilot.core.records import Code, Proposal, Verdict

NAME = "mode"
_STEP = {Mode.OFF: 0, Mode.OBSERVE: 1, Mode.RECOMMEND: 2, Mode.APPROVE: 3, Mode.AUTO: 4}
_REFUSED = {Mode.OFF: Code.MODE_OFF, Mode.OBSERVE: Code.MODE_OBSERVE, Mode.RECOMMEND: Code.MODE_RECOMMEND}
PAPER_CODES = frozenset({Code.MODE_OBSERVE, Code.MODE_RECOMMEND, Code.NEEDS_APPROVAL})
"""Refusals after which a proposal still stands on paper, so that the rest of the plan fits to it."""


def check(proposal: Proposal, _draft: Draft, ctx: Context) -> Verdict:
    """Allowed when the mode is auto, or approve with an approval given for this very state."""
    mode = getattr(ctx.policy.modes, proposal.action)
    step, unit, need = float(_STEP[mode]), "mode (0 off .. 4 auto)", float(_STEP[Mode.AUTO])
    if ctx.observation.kill_switch or ctx.memory.killed:
        return deny(NAME, Code.KILL_SWITCH, 1.0, "kill switch", 0.0)
    if ctx.memory.paused_reason:
        return deny(
            NAME, Code.PAUSED, ctx.now_s - ctx.memory.paused_since_s, "s paused", ctx.policy.pause.length_s
        )
    if mode in _REFUSED:
        return deny(NAME, _REFUSED[mode], step, unit, need)
    if ctx.memory.rejections.get(proposal.id, -1.0) > ctx.now_s:
        return deny(NAME, Code.REJECTED, step, unit, need)
    if mode == Mode.APPROVE and ctx.memory.approvals.get(proposal.id) != proposal.state_digest:
        return deny(NAME, Code.NEEDS_APPROVAL, step, unit, need)
    return allow(NAME, step, unit, float(_STEP[mode]))
