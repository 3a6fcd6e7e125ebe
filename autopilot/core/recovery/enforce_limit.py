"""Suspend work beyond its run-time limit, or of a tenant beyond its usual spending, after a warning.

The owner declares the run-time limit. Work past its limit is warned; `enforcement.grace_s` later it is asked to save
and leave, and stays suspended until a person lets it continue. A tenant with a last day far above its mean day
(core/recovery/follow_spending.py) is warned. If the policy says so, its preemptible work above the guarantee of its
queue is suspended, lowest priority and lowest loss first. Opted-out work, services and protected classes are never
suspended.
"""

from __future__ import annotations

import numpy as np

from autopilot.core.effects import evict
from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Case, NoteCase, Submit
from autopilot.core.effects.evict import EvictDraft, stop_draft
from autopilot.core.model.records import About, Code, Evidence, Note
from autopilot.core.model.snapshot import Bools
from autopilot.core.model.stops import StopReason
from autopilot.core.model.work import running_since, stoppable_mask
from autopilot.core.planning.context import Context
from autopilot.core.quota.ledger import ALL
from autopilot.core.recovery.follow_spending import runaways

NAME = "enforce_limit"
_EXEMPT = frozenset({Code.NOT_PREEMPTIBLE})
RUN_TIME = Case(
    NAME,
    evict.KIND,
    "run_time",
    words="suspend it ({taken}): it is {over_limit} past its run-time limit of {limit}; "
    "it stays suspended until somebody lets it continue",
    takes=StopReason.SUSPEND,
    contract="its owner declared the run-time limit",
    exempt=_EXEMPT,
)
SPENDING = Case(
    NAME,
    evict.KIND,
    "spending",
    words="suspend it ({taken}): tenant {tenant} used {spent} times its mean day within the last day, "
    "and {allowed} times is allowed; it stays suspended until somebody lets it continue",
    takes=StopReason.SUSPEND,
    contract="policy suspends preemptible work of a tenant that exceeds its usual spending",
    exempt=_EXEMPT,
)
LIMIT_WARNING = NoteCase("limit_warning", "{subject} is past its run-time limit of {limit}; it is suspended in {value}")
SPENDING_WARNING = NoteCase(
    "spending_warning",
    "tenant {subject} used {spent} in the last day; that is {value} times its mean day of {days:day}, {mean}",
)


def propose(ctx: Context, submit: Submit) -> None:
    """Warn, and propose one suspension for each workload at the end of its warning period."""
    open_rows = _in_reach(ctx)
    for row in _over_time(ctx, open_rows, submit):
        open_rows[row] = False
    _over_budget(ctx, open_rows, submit)


def _in_reach(ctx: Context) -> Bools:
    """Work on GPUs that is not protected, opted out, a replica, or leaving. Shape [workloads]."""
    work = ctx.observation.snapshot.workloads
    reach = stoppable_mask(work)
    reach &= (work.service < 0) & ~np.isin(work.slo_class, list(ctx.quota.sheltered))
    reach[list(ctx.busy | ctx.quota.leaving)] = False
    return reach


def _over_time(ctx: Context, open_rows: Bools, submit: Submit) -> list[int]:
    """Work past its run-time limit, counted from its start."""
    work, grace_s = ctx.observation.snapshot.workloads, ctx.policy.enforcement.grace_s
    start_s = running_since(work)
    over_s = ctx.now_s - start_s - work.limit_s
    rows = np.flatnonzero(open_rows & (over_s >= 0)).tolist()
    soon_s = (start_s + work.limit_s)[open_rows & (over_s < 0)]
    if len(soon_s):
        ctx.plan.wake_at(float(soon_s.min()))
    suspended = []
    for row in sorted(rows, key=lambda row: (-float(over_s[row]), row)):
        over, limit_s = float(over_s[row]), float(work.limit_s[row])
        if ctx.now_s < float(start_s[row] + work.limit_s[row]) + grace_s:
            ctx.plan.wake_at(float(start_s[row] + work.limit_s[row]) + grace_s)
            facts = (Evidence("limit", limit_s, "s"),)
            left_s = round(grace_s - over, 3)
            ctx.plan.note(Note(LIMIT_WARNING.code, About.WORKLOAD, str(work.id[row]), left_s, "s", facts))
            continue
        submit(
            _suspend(
                ctx,
                row,
                RUN_TIME,
                Evidence("over_limit", round(over, 3), "s past its run-time limit"),
                Evidence("limit", limit_s, "s"),
            )
        )
        suspended.append(row)
    return suspended


def _over_budget(ctx: Context, open_rows: Bools, submit: Submit) -> None:
    """Tenants beyond their usual spending: warned, and suspended down to their guarantee if the policy says so."""
    snapshot, rules = ctx.observation.snapshot, ctx.policy.enforcement
    work, ledger = snapshot.workloads, ctx.quota.ledger
    found = sorted(runaways(ctx.memory, ctx.now_s, ctx.policy).items())  # memory has no order of its own
    for tenant, spent in found:
        if tenant not in snapshot.names.tenants:
            continue
        ratio = spent.last_day_gpu_s / max(spent.mean_day_gpu_s, 1.0)
        facts = (
            Evidence("spent", round(spent.last_day_gpu_s, 3), "GPU-s"),
            Evidence("mean", round(spent.mean_day_gpu_s, 3), "GPU-s"),
            Evidence("days", spent.days, "days"),
        )
        ctx.plan.note(Note(SPENDING_WARNING.code, About.TENANT, tenant, round(ratio, 3), "times", facts))
        if not rules.spend_suspends:
            continue
        mine = open_rows & (work.tenant == snapshot.names.tenants.index(tenant)) & work.preemptible
        rows = np.flatnonzero(mine).tolist()
        for row in sorted(rows, key=lambda row: (int(work.priority[row]), float(ctx.losses.price_gpu_s[row]), row)):
            queue = int(work.queue[row])
            if not ledger.within_guarantee(queue, 0.0, (ALL,)):
                submit(
                    _suspend(
                        ctx,
                        row,
                        SPENDING,
                        Evidence("spent", round(ratio, 3), "times the mean day of its tenant"),
                        Evidence("allowed", rules.spend_ratio, "times"),
                    )
                )


def _suspend(ctx: Context, row: int, case: Case, *why: Evidence) -> EvictDraft:
    return stop_draft(ctx, row, case, *why, cost_gpu_s=float(ctx.losses.price_gpu_s[row]))


ACTION = Action(NAME, "suspend work past its limit", propose, (RUN_TIME, SPENDING), (LIMIT_WARNING, SPENDING_WARNING))
