"""Work with protection is no victim: protected classes, opted-out work, work declared as not preemptible.

Opted-out work does not start. With `tenancy.require_scrub`, what a tenant has left is protected from the next one.

Protection reaches as far as the guarantee of the queue and is fixed at the start (core/quota/protection.py). An owner
takes lent GPUs back by contract. Without a contract, work that saves too slowly is no victim either.
"""

from __future__ import annotations

from autopilot.core.effects.draft import Draft
from autopilot.core.guards.base import allow, deny
from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.model.stops import StopReason
from autopilot.core.planning.context import Context

NAME = "protected"
_UNITS = {
    Code.PROTECTED_CLASS: "victims of a protected class",
    Code.OPTED_OUT: "victims opted out",
    Code.NOT_PREEMPTIBLE: "victims not preemptible",
}


def yielding(draft: Draft, ctx: Context) -> frozenset[int]:
    """Rows without protection against this draft: lent and late work, for the owner of these GPUs."""
    return ctx.quota.yielding if draft.contract and draft.case.takes is StopReason.RECLAIM else frozenset()


def check(proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Judge each victim; evictions by contract are bound too. Backfilled work is always preemptible.

    The verdict on an exempt case names the overridden protection.
    """
    work = ctx.observation.snapshot.workloads
    if draft.deed.starts_now and work.excluded[draft.row]:
        return deny(NAME, Code.OPTED_OUT, 1.0, "workloads opted out", 0.0)
    scrub = proposal.change.scrub
    if ctx.policy.tenancy.require_scrub and draft.deed.starts_now and scrub is not None:
        return deny(NAME, Code.UNSCRUBBED, float(scrub.slots), "GPUs or MIG instances of another tenant", 0.0)
    exempt = draft.case.exempt
    against: list[Code] = []  # the overridden protections
    for row in draft.victims:
        if row in yielding(draft, ctx):
            continue
        for code, unit in _UNITS.items():
            if not _protects(code, row, ctx):
                continue
            if code not in exempt:
                return deny(NAME, code, 1.0, unit, 0.0)
            against.append(code)
    if draft.contract or Code.WITHOUT_CHECKPOINT in exempt or ctx.policy.preemption.without_checkpoint:
        return _allowed(against)
    unsaved = sum(bool(ctx.unsaved[give.row]) for give in draft.taken if give.how != "shrink")
    if unsaved:
        return deny(NAME, Code.WITHOUT_CHECKPOINT, float(unsaved), "victims that cannot save in time", 0.0)
    return _allowed(against)


def _protects(code: Code, row: int, ctx: Context) -> bool:
    """True if work has this protection."""
    work = ctx.observation.snapshot.workloads
    if code is Code.PROTECTED_CLASS:
        return int(work.slo_class[row]) in ctx.quota.sheltered
    if code is Code.OPTED_OUT:
        return bool(work.excluded[row])
    return not work.preemptible[row] and not work.backfilled[row]


def _allowed(against: list[Code]) -> Verdict:
    """The verdict in favour, with the most specific of the overridden protections."""
    if not against:
        return allow(NAME, 0.0, "protected victims", 0.0)
    code = next(each for each in reversed(_UNITS) if each in against)
    return Verdict(NAME, True, code, float(against.count(code)), _UNITS[code], 0.0)
