"""Work that is never a victim: protected classes, opted-out work, and work that is not preemptible.

Without a contract, also work that cannot save in time.
"""

from __future__ import annotations

from autopilot.core.guards.base import allow, deny
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.planning.context import Context
from autopilot.core.planning.draft import AdmitDraft, Draft

NAME = "protected"


def check(_proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Binds evictions by contract too, except that backfilled work is preemptible."""
    work = ctx.observation.snapshot.workloads
    if isinstance(draft, AdmitDraft) and work.excluded[draft.row]:
        return deny(NAME, Code.OPTED_OUT, 1.0, "workloads opted out", 0.0)
    exempt = draft.case.exempt
    for row in draft.victims:
        if int(work.slo_class[row]) in ctx.quota.sheltered and Code.PROTECTED_CLASS not in exempt:
            return deny(NAME, Code.PROTECTED_CLASS, 1.0, "victims of a protected class", 0.0)
        if work.excluded[row] and Code.OPTED_OUT not in exempt:
            return deny(NAME, Code.OPTED_OUT, 1.0, "victims opted out", 0.0)
        if not work.preemptible[row] and not work.backfilled[row] and Code.NOT_PREEMPTIBLE not in exempt:
            return deny(NAME, Code.NOT_PREEMPTIBLE, 1.0, "victims not preemptible", 0.0)
    if draft.contract or Code.WITHOUT_CHECKPOINT in exempt or ctx.policy.preemption.without_checkpoint:
        return allow(NAME, 0.0, "protected victims", 0.0)
    unsaved = sum(bool(ctx.unsaved[give.row]) for give in draft.taken if give.how != "shrink")
    if unsaved:
        return deny(NAME, Code.WITHOUT_CHECKPOINT, float(unsaved), "victims that cannot save in time", 0.0)
    return allow(NAME, 0.0, "protected victims", 0.0)
