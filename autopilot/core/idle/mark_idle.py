"""Mark idle work inside a guarantee as open to suspension, once the grace of its notice has passed.

The mark lives in memory and in explanations; the owner's object does not change. Work above the guarantee of its queue
needs no mark.
"""

from __future__ import annotations

from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Case, Submit, VerbDraft
from autopilot.core.idle import mark
from autopilot.core.idle.facts import ladder
from autopilot.core.idle.idle_work import borrowed
from autopilot.core.idle.notify_idle import facts, worth_gpu_s
from autopilot.core.model.memory.idle import IdleStep
from autopilot.core.model.records import Evidence
from autopilot.core.planning.context import Context

NAME = "mark_idle"
MARK = Case(
    NAME,
    mark.KIND,
    words="mark it as open to suspension: {owner} was notified {since} ago, and it has still done nothing on "
    "{gpus:GPU}, held {held}, for {idle_for}",
    by_telemetry=True,
)

REPLICA = Case(
    NAME,
    mark.KIND,
    "replica",
    words="mark it as a replica that may be scaled away: {owner} was notified {since} ago, and it has still done "
    "nothing on {gpus:GPU}, held {held}, for {idle_for}",
    by_telemetry=True,
)


def propose(ctx: Context, submit: Submit) -> None:
    """One mark for each workload with a notice older than its grace."""
    work = ctx.observation.snapshot.workloads
    for rung in ladder(ctx):
        due = rung.record.step == IdleStep.NOTIFIED and ctx.now_s >= rung.next_s and not rung.advice
        if due and work.preemptible[rung.row] and not borrowed(ctx, rung):
            since = Evidence("since", round(ctx.now_s - rung.record.step_s, 3), "s")
            submit(
                VerbDraft(
                    case=REPLICA if work.service[rung.row] >= 0 else MARK,
                    verb=mark.Mark(),
                    row=rung.row,
                    benefit_gpu_s=worth_gpu_s(ctx, rung),
                    cost_gpu_s=0.0,
                    evidence=(*facts(ctx, rung), since),
                )
            )


ACTION = Action(NAME, "mark idle work as open to suspension", propose, (MARK, REPLICA))
