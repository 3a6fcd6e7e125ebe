"""Stop what is left of gangs that lost members, and gangs that an outside check switched off.

Half a gang holds GPUs and gets nothing done. After its grace (its own, else the policy's) the rest is stopped;
the gang is then pending as a whole again. Members that finished count as present.
"""

from __future__ import annotations

import numpy as np

from autopilot.core.context import Context
from autopilot.core.draft import Draft, Give, Submit
from autopilot.core.records import Evidence
from autopilot.core.snapshot import Gate, State, holding_mask

NAME = "recover"


def propose(ctx: Context, submit: Submit) -> None:
    """One eviction for each broken gang, the longest broken first; then those that are switched off."""
    work = ctx.observation.snapshot.workloads
    leaves = (work.state == State.CHECKPOINTING) | work.stuck | work.excluded
    holding = holding_mask(work) & ~leaves
    grace_s = np.where(np.isnan(work.stale_grace_s), ctx.policy.recovery.stale_grace_s, work.stale_grace_s)
    broken = holding & (ctx.now_s >= work.stale_since_s + grace_s)  # never where since when is not known
    for row in sorted(np.flatnonzero(broken).tolist(), key=lambda row: (float(work.stale_since_s[row]), row)):
        if row not in ctx.busy:
            broken_s = round(ctx.now_s - float(work.stale_since_s[row]), 3)
            submit(_stop(ctx, row, Evidence("broken", broken_s, "s below its minimum of members")))
    for row in np.flatnonzero(holding & ~broken & (work.gate == Gate.REJECTED)).tolist():
        if row not in ctx.busy:
            submit(_stop(ctx, row, Evidence("check", "rejected")))


def _stop(ctx: Context, row: int, why: Evidence) -> Draft:
    held = len(ctx.whatif.layout_of(row).gpu)
    return Draft(
        action=NAME, kind="evict", at=-1, row=row, spot=None, start_s=ctx.now_s, nodes=(),
        benefit_gpu_s=held * ctx.policy.horizon_s, cost_gpu_s=0.0, contract=True,
        gives=(Give(row, "evict", None, held, 0.0),),
        evidence=(why, Evidence("gpus", held, "GPUs freed")),
    )  # fmt: skip
