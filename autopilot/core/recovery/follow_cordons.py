"""Nodes cordoned by the controller: an error of a GPU there asks for a restart of the node (recovery/follow_errors.py).

The controller starts nothing on such a node anyway; the cordon keeps other schedulers off it. A node is cordoned once
for an error. If a person opens it meanwhile, it stays open. A node cordoned by somebody else is left alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autopilot.core.effects.under_recut import under_recut
from autopilot.core.hardware.xid_facts import node_restarts, out_of_use
from autopilot.core.model.capability import Planned, Tick
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.recovery import CordonRecord
from autopilot.core.model.snapshot import Bools, ClusterSnapshot

RETRY_S = 600.0
"""A cordon that did not come about is tried again after this time."""


def to_cordon(memory: ControllerMemory, snapshot: ClusterSnapshot) -> list[int]:
    """Nodes (rows) that are condemned, open, and not being cordoned.

    An error of a GPU with a change of MIG geometry may be due to the change: it condemns the node once that is over.
    """
    bad = np.zeros(len(snapshot.nodes.id), np.bool_)
    bad[snapshot.gpus.node[condemning(memory, snapshot)]] = True
    bad &= ~snapshot.nodes.cordoned
    return [row for row in np.flatnonzero(bad).tolist() if str(snapshot.nodes.id[row]) not in memory.recovery.cordons]


def condemning(memory: ControllerMemory, snapshot: ClusterSnapshot) -> Bools:
    """GPUs with an error that asks for a restart of their node, and without a change of geometry. Shape [gpus]."""
    return node_restarts(snapshot.gpus) & ~under_recut(memory, snapshot)


def to_uncordon(memory: ControllerMemory, snapshot: ClusterSnapshot) -> list[int]:
    """Nodes (rows) cordoned by the controller and sound again."""
    sound = ~out_of_use(snapshot.nodes, snapshot.gpus)[0] & snapshot.nodes.cordoned & snapshot.nodes.ready
    return [
        row
        for row in np.flatnonzero(sound).tolist()
        if str(snapshot.nodes.id[row]) in memory.recovery.cordons
        and not _under_way(memory, str(snapshot.nodes.id[row]))
    ]


def follow_cordons(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory after a fresh and complete view: without cordons that ended, and those that did not come about."""
    if not memory.recovery.cordons:
        return memory
    observation, nodes = tick.observation, tick.observation.snapshot.nodes
    bad = out_of_use(nodes, observation.snapshot.gpus)[0]
    rows = {str(name): row for row, name in enumerate(nodes.id.tolist())}
    opened, kept = opened_by_people(memory, observation.snapshot), {}
    for name, record in memory.recovery.cordons.items():
        row = rows.get(name)
        if row is None:
            continue
        if nodes.cordoned[row]:
            kept[name] = replace(record, seen=True, opened=False)
        elif (
            _under_way(memory, name)
            or (bad[row] and record.seen)
            or (bad[row] and observation.now_s < record.since_s + RETRY_S)
        ):
            kept[name] = replace(record, opened=name in opened)
    return replace(memory, recovery=replace(memory.recovery, cordons=kept))


def opened_by_people(memory: ControllerMemory, snapshot: ClusterSnapshot) -> set[str]:
    """Nodes (names) cordoned by the controller and opened by somebody else."""
    if not memory.recovery.cordons:
        return set()
    seen = {name for name, record in memory.recovery.cordons.items() if record.seen and not _under_way(memory, name)}
    return seen & set(snapshot.nodes.id[~snapshot.nodes.cordoned].tolist())


def cordon_timers_s(memory: ControllerMemory) -> list[float]:
    """Times of the next try of cordons that did not come about."""
    return [record.since_s + RETRY_S for record in memory.recovery.cordons.values() if not record.seen]


def _under_way(memory: ControllerMemory, node: str) -> bool:
    effects = (entry.instruction for entry in memory.effects.in_flight.values())
    return any(effect.operation.closes is not None and effect.subject.uid == node for effect in effects)


def enter_cordons(memory: ControllerMemory, planned: Planned) -> ControllerMemory:
    """Memory with the nodes cordoned from now on."""
    new = {
        proposal.subject.name: CordonRecord(planned.now_s)
        for proposal in planned.plan.proposals
        if proposal.accepted and proposal.change.closes
    }
    return (
        replace(memory, recovery=replace(memory.recovery, cordons={**memory.recovery.cordons, **new}))
        if new
        else memory
    )
