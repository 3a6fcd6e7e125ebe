"""Nodes that were turned, and shared ones that nobody uses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autopilot.core.model.capability import Planned, Tick
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.snapshot import Bools, ClusterSnapshot
from autopilot.core.model.work import named
from autopilot.core.sharing import set_sharing


def turns_under_way(memory: ControllerMemory) -> dict[str, str]:
    """Uids of the nodes with a change of sharing under way, with the key of the configuration."""
    effects = (entry.instruction for entry in memory.effects.in_flight.values())
    return {
        each.subject.uid: each.operation.config
        for each in effects
        if isinstance(each.operation, set_sharing.SetSharing)
    }


def being_turned(memory: ControllerMemory) -> set[str]:
    """Uids of the nodes with a change of sharing under way."""
    return set(turns_under_way(memory))


def closed_to_work(memory: ControllerMemory, snapshot: ClusterSnapshot) -> Bools:
    """GPUs of nodes that are being turned: they take no new work. Shape [gpus]."""
    uids = being_turned(memory)
    return named(snapshot.nodes.id, uids)[snapshot.gpus.node] if uids else np.zeros(len(snapshot.gpus.uuid), np.bool_)


def follow_turns(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory after a fresh and complete view: nodes that are gone are forgotten, and unused ones are noted."""
    before, snapshot = memory.sharing, tick.observation.snapshot
    nodes = snapshot.nodes
    if not (before.turned_s or before.unused_s or (nodes.replicas > 1).any()):
        return memory
    used = np.zeros(len(nodes.id), np.bool_)
    used[snapshot.placements.node] = True
    there = set(nodes.id.tolist())
    unused = nodes.id[(nodes.replicas > 1) & ~used].tolist()
    after = replace(
        before,
        turned_s={uid: at_s for uid, at_s in before.turned_s.items() if uid in there},
        unused_s={str(uid): before.unused_s.get(str(uid), tick.now_s) for uid in unused},
    )
    return memory if after == before else replace(memory, sharing=after)


def enter_turns(memory: ControllerMemory, planned: Planned) -> ControllerMemory:
    """Memory with the nodes that are being turned from now on."""
    turned = [each.instruction.subject.uid for each in planned.effects if each.instruction.kind == set_sharing.KIND]
    if not turned:
        return memory
    turned_s = {**memory.sharing.turned_s, **dict.fromkeys(turned, planned.now_s)}
    return replace(memory, sharing=replace(memory.sharing, turned_s=turned_s))
