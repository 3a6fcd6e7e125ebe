"""MIG instances kept from a gang by holds."""

from __future__ import annotations

import numpy as np

from autopilot.core.model.snapshot import I32
from autopilot.core.planning.context import Context
from autopilot.core.planning.plan_state import Held


def barred_instances(ctx: Context, end_s: float, row: int = -1) -> I32:
    """Free MIG instances barred to a gang with an end at `end_s`: they are held for others.

    If a hold leaves some of its instances to others, only the rest is barred.
    """
    barred, before = [np.zeros(0, np.int32)], list[tuple[Held, int]]()
    for held in ctx.plan.held:
        if not len(held.instances):
            continue
        own = ctx.is_for(held, row)
        before.append((held, held.record.gpus if own else int(held.lent[0]) if ctx.overruled(held, row) else 0))
        if held.start_s < end_s and not own:
            opened = sum(count for each, count in before if np.isin(held.instances, each.instances).any())
            free = held.instances[ctx.whatif.instance_used[held.instances] == 0]
            barred.append(free[max(int(held.left[0]) + opened, 0) :])
    return np.concatenate(barred)
