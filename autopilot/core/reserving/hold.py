"""A gang reservation: the room of a start plan (planning/start_plan.py), held for its gang.

Work that outlives the start may use only the `spare` GPUs of the reserved nodes; that keeps the promise.
"""

from __future__ import annotations

from autopilot.core.model.records import Reservation
from autopilot.core.placement.shapes import Shape
from autopilot.core.planning.context import Context
from autopilot.core.planning.plan_state import Held
from autopilot.core.planning.start_plan import StartPlan


def hold(
    ctx: Context,
    row: int,
    shape: Shape,
    plan: StartPlan,
    before: Reservation | None,
    *,
    firm: bool,
    promised_s: float | None = None,
) -> Held:
    """The reservation of `row` as planned now; `before` is its standing record, if any.

    A promise stands as it was made; `promised_s` is that of a new one (None: nothing is promised, hence as planned).
    """
    standing = before is not None and before.firm
    work, nodes = ctx.observation.snapshot.workloads, ctx.observation.snapshot.nodes
    planned_s = max(plan.start_s, ctx.now_s)
    if before is not None and standing:
        planned_s, promised_s = before.planned_s, before.promised_s
    record = Reservation(
        workload=str(work.id[row]),
        incarnation=int(work.incarnation[row]),
        gpus=shape.gpus,
        since_s=before.since_s if before is not None and before.firm == firm else ctx.now_s,
        start_s=plan.start_s,
        promised_s=planned_s if promised_s is None else promised_s,
        nodes=tuple(nodes.id[plan.nodes].tolist()),
        firm=firm,
        planned_s=planned_s,
        uid=str(work.uid[row]),
    )
    inside = ctx.quota.guaranteed(1, lambda _: ctx.quota.claim(row, shape.gpus))
    lent = plan.counts * (1 - inside)
    return Held(row, record, shape, plan.start_s, plan.nodes, plan.counts, plan.spare, lent=lent)
