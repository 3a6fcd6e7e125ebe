"""Requests for nodes: open ones, and the time after which a gang may ask again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autopilot.core.model.capability import Planned, Tick
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.snapshot import State


def open_requests(memory: ControllerMemory) -> Mapping[str, tuple[str, int]]:
    """Requests under way: the pool and the number of its nodes, by the uid of their gang."""
    effects = (entry.instruction for entry in memory.effects.in_flight.values())
    asked = ((each.subject.uid, each.operation.asked_nodes) for each in effects)
    return {uid: nodes for uid, nodes in asked if nodes is not None}


def follow_requests(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory after a fresh and complete view: without gangs that wait no more, or may ask again."""
    if not memory.nodes.requested_s:
        return memory
    work, retry_s = tick.observation.snapshot.workloads, tick.policy.capacity.retry_s
    waiting = set(work.uid[work.state == State.PENDING].tolist())
    kept = {
        uid: since_s
        for uid, since_s in memory.nodes.requested_s.items()
        if uid in waiting and tick.now_s < since_s + retry_s
    }
    return replace(memory, nodes=replace(memory.nodes, requested_s=kept))


def enter_requests(memory: ControllerMemory, planned: Planned) -> ControllerMemory:
    """Memory with the gangs that nodes are requested for from now on."""
    now_s = planned.now_s
    new = {each.subject.uid: now_s for each in planned.plan.proposals if each.accepted and each.change.asks_nodes}
    return (
        replace(memory, nodes=replace(memory.nodes, requested_s={**memory.nodes.requested_s, **new})) if new else memory
    )
