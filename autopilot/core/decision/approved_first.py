"""Approved starts are planned first: none of them waits for room made only by a recommendation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Draft, Submit
from autopilot.core.model.modes import Mode
from autopilot.core.planning.context import Context
from autopilot.core.planning.queue_turns import NOT_APPROVED, approval_ranks


def approved_first(ctx: Context, submit: Submit, actions: Sequence[Action]) -> Submit:
    """Let these actions plan for gangs with an approved start; returns their `submit` for planning all gangs.

    Gangs that take back a guarantee without a person are planned with them: a contract comes before a wish. A draft
    planned here is not planned twice.
    """
    ranks = approval_ranks(ctx, ctx.pending)
    if (ranks == NOT_APPROVED).all():
        return submit
    freely = [case for each in actions if each.mode(ctx.policy) == Mode.AUTO for case in each.cases if case.contract]
    if freely and ctx.quota.ledger.guarantee_binds:
        ranks[[at for at in ctx.waiting() if ctx.owed(at)]] = 0
    planned: set[tuple[str, int | None]] = set()

    def note(draft: Draft) -> bool:
        planned.add((draft.action, draft.workload_row))
        return submit(draft)

    order = np.argsort(ranks, kind="stable")
    ctx.plan.ask_in_order(order[ranks[order] < NOT_APPROVED])
    for action in actions:
        action.propose(ctx, note)
    ctx.plan.ask_in_order(None)
    return lambda draft: (draft.action, draft.workload_row) not in planned and submit(draft)
