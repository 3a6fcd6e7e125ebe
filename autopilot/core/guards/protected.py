"""Work that is never a victim: protected classes, opted-out work, and work that is not preemptible.

Protection holds as far as the guarantee of the queue goes, and is fixed at the start (core/quota/protection.py): an
owner takes back by contract what is lent. Without a contract, work that cannot save in time is no victim either.
"""

from __future__ import annotations

from autopilot.core.guards.base import allow, deny
from autopilot.core.model.operations import StopReason
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.planning.context import Context
from autopilot.core.planning.draft import AdmitDraft, Draft

NAME = "protected"


def yielding(draft: Draft, ctx: Context) -> frozenset[int]:
    """Rows whose protection does not hold against this draft: lent and late work, for the owner of these GPUs."""
    return ctx.quota.yielding if draft.contract and draft.case.takes is StopReason.RECLAIM else frozenset()


def check(_proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Binds evictions by contract too, except that backfilled work is preemptible."""
    work = ctx.observation.snapshot.workloads
    if isinstance(draft, AdmitDraft) and work.excluded[draft.row]:
        return deny(NAME, Code.OPTED_OUT, 1.0, "workloads opted out", 0.0)
    exempt = draft.case.exempt
    for row in draft.victims:
        if row in yielding(draft, ctx):
            continue
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
