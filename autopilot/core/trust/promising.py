"""The promise of an executed action: the use of named work before its predicted start without the action.

The promise is in the measure of its later judgement (core/trust/follow_promises.py), so it is smaller than the benefit
weighed for a proposal: that counts waiting too. It is computed at the acceptance of a proposal, on the plan of that
moment. An unpredictable promise is unknown, and the case does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from autopilot.core.effects.draft import Draft, Gain
from autopilot.core.model.promises import Beneficiary, Promise, Unknown
from autopilot.core.model.records import Proposal
from autopilot.core.model.work import holding_mask
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context
from autopilot.core.planning.start_plan import plan_start


def promise_of(draft: Draft, proposal: Proposal, ctx: Context) -> Promise | None:
    """The promise of an accepted proposal; None for an unweighed one: by contract, for its own sake, or free."""
    if draft.contract or draft.case.takes.for_itself:
        return None
    found = draft.gains(_Outlook(ctx))
    if found is None:
        return None
    gains, unknown = found
    horizon_s, use = ctx.policy.horizon_s, 0.0
    for each, gpus, run_s in gains:
        used_s = min(run_s, each.without_s - ctx.now_s, horizon_s)
        use += gpus * used_s
    lost = sum(victim.lost_gpu_s for victim in proposal.victims)
    if not unknown and not isfinite(lost):
        unknown = Unknown.NO_LOSS
    return Promise(
        proposal.id,
        draft.action,
        ctx.now_s,
        ctx.now_s + horizon_s,
        use - lost if not unknown else 0.0,
        () if unknown else tuple(each for each, _, _ in gains),
        done=not draft.victims,  # nobody has to leave for it
        unknown=unknown,
    )


@dataclass(frozen=True, slots=True)
class _Outlook:
    """Gains of work, against the plan without the draft."""

    ctx: Context

    def of_start(self, row: int, layout: Layout) -> tuple[list[Gain], str]:
        """The gain of the starting gang, or the reason for an unknown gain."""
        ctx = self.ctx
        work, at = ctx.observation.snapshot.workloads, ctx.position_of(row)
        # the room that is made for a replica goes back after `dwell_s` at the earliest; a replica has no run time
        run_s = ctx.policy.room.dwell_s if work.service[row] >= 0 else float(ctx.run_low_s[at])
        if not isfinite(run_s):
            return [], Unknown.NO_RUN_TIME
        without_s = _start_without_s(ctx, at, row)
        if without_s is None:
            return [], Unknown.NO_START
        name, uid = str(work.id[row]), str(work.uid[row])
        gpus = ctx.gpus_of(layout)
        return [(Beneficiary(name, uid, without_s, counted_s=ctx.now_s, gpus=gpus), gpus, run_s)], ""

    def of_instances(self, serves: Sequence[tuple[int, float]]) -> tuple[list[Gain], str]:
        """The requests served by a change. Without it each would wait for instances or GPUs in use to come free."""
        if not serves:
            return [], Unknown.NOBODY
        ctx = self.ctx
        work = ctx.observation.snapshot.workloads
        gains: list[Gain] = []
        asked: dict[int, int] = {}
        for row, share in serves:
            profile, run_s = int(work.mig_profile[row]), float(ctx.run_low_s[ctx.position_of(row)])
            asked[profile] = asked.get(profile, 0) + int(work.gpus[row])
            if profile < 0:  # a gang of whole GPUs: some of them leave MIG mode for it
                without_s = _start_without_s(ctx, ctx.position_of(row), row)
            else:
                without_s = _instance_free_s(ctx, profile, asked[profile])
            if without_s is None:
                return [], Unknown.NO_START
            if not isfinite(run_s):
                return [], Unknown.NO_RUN_TIME
            gpus = share * int(work.gpus[row])
            one = Beneficiary(str(work.id[row]), str(work.uid[row]), without_s, share, counted_s=ctx.now_s, gpus=gpus)
            gains.append((one, gpus, run_s))
        return gains, ""


def _start_without_s(ctx: Context, at: int, row: int) -> float | None:
    """Predicted start of a gang, as if it waited alone; inf: not before all running work has ended.

    None if unknown: running work without a predicted end blocks it, or GPUs are free already, so that its quota or its
    turn keeps it waiting.
    """
    shape = ctx.shape(row, ctx.pending_table.least_gpus[at])
    if not shape.whole_gpus or row in ctx.members:
        return None
    plan = plan_start(ctx, at, shape)
    if plan is None:
        running = holding_mask(ctx.observation.snapshot.workloads)
        return inf if np.isfinite(ctx.end_s[running]).all() else None
    return plan.start_s if plan.start_s > ctx.now_s else None


def _instance_free_s(ctx: Context, profile: int, count: int) -> float | None:
    """Predicted time at which `count` instances of a profile have come free; inf: there are too few of them."""
    snapshot = ctx.observation.snapshot
    held = snapshot.placements
    cut = held.instance >= 0
    rows = held.workload[cut][snapshot.instances.profile[held.instance[cut]] == profile]
    ends_s = np.sort(ctx.end_s[rows])
    if count > len(ends_s):
        return inf
    end_s = float(ends_s[count - 1])
    return end_s if ctx.now_s < end_s < inf else None
