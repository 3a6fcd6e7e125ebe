"""Intentions of the last plan: reservations, wishes that must last, and conditions in force."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autopilot.core.model.capability import Planned
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.plan import PlanMemory


def keep_intentions(memory: ControllerMemory, planned: Planned) -> ControllerMemory:
    """Memory with the intentions of a plan in place of those before."""
    since_s, now_s = memory.plan.proposed_since_s, planned.now_s
    return replace(
        memory,
        plan=PlanMemory(
            reservations=planned.plan.reservations,
            advance=planned.advance,
            proposed_since_s={key: since_s.get(key, now_s) for key in planned.wishes_s},
            conditions=planned.conditions,
        ),
    )


def intention_timers_s(memory: ControllerMemory, planned: Planned) -> Iterable[float]:
    """Ends of the dwell times of wishes, and of the time by which reservations may outlive their promise."""
    yield from (memory.plan.proposed_since_s[key] + dwell_s for key, dwell_s in planned.wishes_s.items())
    timeout_s = planned.policy.reservation.timeout_s
    yield from (record.planned_s + timeout_s for record in memory.plan.reservations)
