"""Timers of the actions that displace running work."""

from __future__ import annotations

from autopilot.core.model.snapshot import State
from autopilot.core.model.work import holding_mask, running_since
from autopilot.core.planning.context import Context


def displacing_timers_s(ctx: Context, *, on: bool) -> list[float]:
    """Ends of the preemption delays of waiting gangs.

    With the action `on` and work waiting, also the ends of the guaranteed run times of running work.
    """
    work = ctx.observation.snapshot.workloads
    pending = work.state == State.PENDING
    delayed = pending & (work.preemption_delay_s > 0)
    timers_s: list[float] = (work.submit_s + work.preemption_delay_s)[delayed].tolist()
    if on and pending.any():
        settling_s = (running_since(work) + ctx.stops.guaranteed_s)[holding_mask(work)]
        timers_s += settling_s[settling_s > ctx.now_s].tolist()
    return timers_s
