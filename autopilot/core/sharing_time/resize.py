"""Grow elastic gangs below their full width into capacity of no use to a waiting gang, in turns.

Idle GPUs counted on by a delayed preemption are not such capacity.
"""

from __future__ import annotations

from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Case, Submit
from autopilot.core.model.policy import Mode
from autopilot.core.model.records import Evidence
from autopilot.core.placement.shapes import Fit, Shape
from autopilot.core.planning.context import Context
from autopilot.core.sharing_time import grow
from autopilot.core.sharing_time.elastic import running, share
from autopilot.core.sharing_time.grow import GrowDraft

NAME = "resize"
GROW = Case(
    NAME,
    grow.KIND,
    words="grow from {held} to {where} (full width {full_width}), into room that no waiting work can use",
)


def propose(ctx: Context, submit: Submit) -> None:
    """One growth for each gang with room."""
    gangs = running(ctx)
    held = {gang.row: gang.width_gpus for gang in gangs}
    share(ctx, gangs)
    for gang in gangs:
        if gang.fit is not None and gang.shape is not None:
            submit(_growth(ctx, gang.row, held[gang.row], gang.fit, gang.shape))


def _growth(ctx: Context, row: int, held: int, fit: Fit, shape: Shape) -> GrowDraft:
    work = ctx.observation.snapshot.workloads
    return GrowDraft(
        case=GROW,
        row=row,
        fit=fit,
        benefit_gpu_s=shape.gpus * min(ctx.policy.review.batch_s, ctx.policy.horizon_s),
        cost_gpu_s=0.0,
        evidence=(
            Evidence("held", held, "GPUs"),
            Evidence("more", shape.gpus, "GPUs"),
            Evidence("full_width", int(work.gpus[row]), "GPUs"),
        ),
    )


def acts(ctx: Context) -> bool:
    """True if the mode lets it act without a person."""
    return ctx.policy.modes.resize == Mode.AUTO


ACTION = Action(NAME, "grow elastic work into idle GPUs", propose, (GROW,))
