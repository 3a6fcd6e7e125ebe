"""The ledger of disruptions and the cool-downs after them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autopilot.core.model.capability import Planned, Tick
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.budget import CONTRACT_WINDOW_S


def follow_ledger(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory with cool-downs of work that declined to leave unsaved, and without expired entries."""
    budget, policy, now_s = memory.budget, tick.policy, tick.now_s
    alone_s = max(policy.hysteresis.cool_down_s, policy.preemption.grace_s)
    kept_s = max(policy.budget.window_s, policy.room.reversal_s, CONTRACT_WINDOW_S)
    cooled = {**budget.cooled_until_s, **{effect.subject.uid: now_s + alone_s for effect in tick.declined}}
    disrupted = budget.disrupted
    if not tick.blind:
        cooled = {key: until for key, until in cooled.items() if until > now_s}
        disrupted = tuple(entry for entry in disrupted if entry.at_s + kept_s > now_s)
    if cooled == budget.cooled_until_s and len(disrupted) == len(budget.disrupted):
        return memory
    return replace(memory, budget=replace(budget, cooled_until_s=cooled, disrupted=disrupted))


def enter_stops(memory: ControllerMemory, planned: Planned) -> ControllerMemory:
    """Memory with the stops of a plan, and the cool-downs after those without a contract and after reservations."""
    budget, policy, now_s = memory.budget, planned.policy, planned.now_s
    cooled = dict(budget.cooled_until_s)
    for entry in planned.disruptions:
        if not entry.contract:
            cooled[entry.uid] = now_s + policy.hysteresis.cool_down_s
    cooled.update(dict.fromkeys(planned.released, now_s + policy.reservation.cool_down_s))
    disrupted = (*budget.disrupted, *planned.disruptions)
    return replace(memory, budget=replace(budget, disrupted=disrupted, cooled_until_s=cooled))


def ledger_timers_s(memory: ControllerMemory, planned: Planned) -> Iterable[float]:
    """Ends of cool-downs, and times at which an entry leaves a window that holds something back."""
    yield from memory.budget.cooled_until_s.values()
    for entry in memory.budget.disrupted:
        if memory.plan.proposed_since_s:
            yield entry.at_s + planned.policy.budget.window_s
        if entry.contract and entry.beneficiary:
            yield entry.at_s + CONTRACT_WINDOW_S
