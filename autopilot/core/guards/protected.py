"""What is never a victim: sheltered classes, work that opted out, work not marked preemptible."""

from __future__ import annotations

from autopilot.core.context import Context
from autopilot.core.draft import Draft
from autopilot.core.guards.base import allow, deny
from autopilot.core.records import Code, Proposal, Verdict
from autopilot.core.snapshot import SLO_CLASS_NAMES

NAME = "protected"


def check(proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Holds for contractual evictions too, except that backfilled work agreed to give way."""
    work = ctx.observation.snapshot.workloads
    if work.excluded[draft.row] and proposal.kind == "admit":
        return deny(NAME, Code.OPTED_OUT, 1.0, "workloads opted out", 0.0)
    if proposal.action == "recover":  # what is left of a broken gang is stopped for its own sake
        return allow(NAME, 0.0, "protected victims", 0.0)
    for row in draft.victims:
        if SLO_CLASS_NAMES[int(work.slo_class[row])] in ctx.policy.protection.classes:
            return deny(NAME, Code.PROTECTED_CLASS, 1.0, "victims of a protected class", 0.0)
        if work.excluded[row]:
            return deny(NAME, Code.OPTED_OUT, 1.0, "victims opted out", 0.0)
        if not work.preemptible[row] and not work.backfilled[row]:
            return deny(NAME, Code.NOT_PREEMPTIBLE, 1.0, "victims not preemptible", 0.0)
    return allow(NAME, 0.0, "protected victims", 0.0)
