"""Waiting replicas for a forecast alone: the chance that the load needs each of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autopilot.core.model.records import Code
from autopilot.core.model.work import holding_mask
from autopilot.core.planning.context import Context
from autopilot.core.planning.foresight import Ahead, beyond_served


def chances_needed(ctx: Context, left: Sequence[int]) -> dict[int, tuple[Ahead, float]]:
    """The forecast, and the chance that the load needs it, for each foreseen replica among these waiting positions.

    The replicas of a service are counted in this order, after those on GPUs or planned. Replicas with an abstaining or
    untrusted forecast are left out.
    """
    foreseen = [at for at in left if ctx.ahead[at]]
    if not foreseen:
        return {}
    work, services = ctx.observation.snapshot.workloads, ctx.observation.snapshot.services
    lead = {each.row: each for each in ctx.foreseen}
    has = holding_mask(work)
    has[[row for row, layout in ctx.whatif.layouts.items() if len(layout)]] = True  # planned, or under way
    holding = np.bincount(work.service[has & (work.service >= 0)], minlength=len(services.id))
    found: dict[int, tuple[Ahead, float]] = {}
    for at in foreseen:
        service = int(work.service[ctx.pending[at]])
        ahead = lead.get(service)
        holding[service] += 1
        if ahead is None or ahead.replicas < 0 or ahead.code != Code.OK:
            continue
        found[at] = ahead, beyond_served(ahead, (holding[service] - 1) * ahead.capacity_rps, ahead.lead_s)[0]
    return found
