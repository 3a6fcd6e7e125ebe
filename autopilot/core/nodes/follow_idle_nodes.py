"""Unneeded nodes: the start of their idle time, and the offers of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autopilot.core.model.capability import Planned
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Effect, Policy
from autopilot.core.model.records import Outcome, OutcomeKind


def remember_idle_nodes(memory: ControllerMemory, planned: Planned) -> ControllerMemory:
    """Memory after a plan: the start of the unneeded time of each node. Vanished nodes are forgotten."""
    if not planned.policy.capacity.pools and not memory.nodes.offered_s:
        return memory
    there = set(planned.observation.snapshot.nodes.id.tolist())
    return replace(
        memory,
        nodes=replace(
            memory.nodes,
            idle_nodes_s={name: memory.nodes.idle_nodes_s.get(name, planned.now_s) for name in planned.unneeded},
            offered_s={name: at_s for name, at_s in memory.nodes.offered_s.items() if name in there},
        ),
    )


def settle_offers(
    memory: ControllerMemory, outcomes: Iterable[Outcome], now_s: float, policy: Policy
) -> ControllerMemory:
    """Memory after the outcomes of a tick: an offer stands, or is taken back, once its actuator says so.

    While the action does not act, no offer stands: the actuator takes back those that it finds.
    """
    if not policy.modes.acts(Effect.OFFER):
        return replace(memory, nodes=replace(memory.nodes, offered_s={})) if memory.nodes.offered_s else memory
    offered = dict(memory.nodes.offered_s)
    for outcome in outcomes:
        entry = memory.effects.in_flight.get(outcome.instruction_id)
        if entry is None or outcome.kind != OutcomeKind.DONE:
            continue
        offers, node = entry.instruction.operation.offers, entry.instruction.subject.uid
        if offers:
            offered[node] = now_s
        elif offers is False:
            offered.pop(node, None)
    return (
        replace(memory, nodes=replace(memory.nodes, offered_s=offered)) if offered != memory.nodes.offered_s else memory
    )


def being_offered(memory: ControllerMemory) -> set[str]:
    """Nodes with an offer being made or taken back."""
    effects = (entry.instruction for entry in memory.effects.in_flight.values())
    return {each.subject.uid for each in effects if each.operation.offers is not None}
