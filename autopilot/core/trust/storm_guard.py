"""An action in a storm is paused: it reversed itself, failed or cut GPUs anew too often."""

from __future__ import annotations

from math import inf

from autopilot.core.effects.draft import Draft
from autopilot.core.guards.base import allow, deny, waive
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.planning.context import Context
from autopilot.core.trust.follow_storms import events_in_hour, limit_of

NAME = "storm"
UNIT = "reversals, failures and changes of geometry in an hour"


def check(_proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Refuse the proposals of a paused action.

    Contracts and stops of broken or hanging work continue. So do reservations, because they have no effect, and starts
    in the place of departed victims.
    """
    rules = ctx.policy.storms
    record = ctx.memory.trust.storms.get(draft.action)
    if record is None:
        return allow(NAME, 0.0, UNIT, float(rules.per_hour))
    begun = draft.deed.only_holds or bool(draft.resent and draft.placed is not None)
    if record.since_s == inf or begun or draft.case.takes.for_itself:
        return allow(NAME, float(events_in_hour(record, ctx.now_s)), UNIT, float(rules.per_hour))
    limit = limit_of(record, ctx.now_s, rules)
    if draft.contract:
        return waive(NAME, float(record.events), UNIT, limit)
    return deny(NAME, Code.STORM, float(record.events), UNIT, limit)
