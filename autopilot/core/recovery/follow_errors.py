"""The gravest error of each GPU since it was last known to be whole.

A GPU shows its last XID only. A later code hides the one before: a GPU off the bus shows 79 and then 154, and the
eviction afterwards shows 45. So the gravest code counts until one of these:

- the GPU shows 0: its driver, or DCGM, was started again;
- its node has booted, or another machine has its name;
- a person opens the node after our cordon. From then on the shown code counts.

The silence of a GPU does not end its error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from autopilot.core.hardware.xid_facts import Remedy, remedies, remedy_of
from autopilot.core.model.capability import Tick
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.recovery import ErrorRecord
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.recovery.follow_cordons import opened_by_people


def with_gravest(memory: ControllerMemory, snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """The snapshot with the gravest error that counts on each GPU."""
    records = _in_force(memory, snapshot)
    if not records:
        return snapshot
    xid = snapshot.gpus.xid.copy()
    for row, uuid in enumerate(snapshot.gpus.uuid.tolist()):
        if uuid in records and xid[row] != 0 and remedy_of(int(xid[row])) < remedy_of(records[uuid].xid):
            xid[row] = records[uuid].xid
    return replace(snapshot, gpus=replace(snapshot.gpus, xid=xid))


def follow_errors(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory after a view made by `with_gravest`. An untrusted view ends no error."""
    snapshot = tick.observation.snapshot
    gpus, nodes = snapshot.gpus, snapshot.nodes
    bad = np.flatnonzero(remedies(gpus.xid) > Remedy.NONE).tolist()
    if not bad and not memory.recovery.gpu_errors:
        return memory
    kept = dict(memory.recovery.gpu_errors)
    if not tick.blind:
        shown = set(gpus.uuid.tolist())
        kept = {uuid: record for uuid, record in _in_force(memory, snapshot).items() if uuid not in shown}
    for row in bad:
        node = gpus.node[row]
        kept[str(gpus.uuid[row])] = ErrorRecord(int(gpus.xid[row]), str(nodes.id[node]), str(nodes.boot[node]))
    return (
        memory
        if kept == memory.recovery.gpu_errors
        else replace(memory, recovery=replace(memory.recovery, gpu_errors=kept))
    )


def _in_force(memory: ControllerMemory, snapshot: ClusterSnapshot) -> Mapping[str, ErrorRecord]:
    """Records of the present boots, without those of nodes just opened by a person."""
    if not memory.recovery.gpu_errors:
        return {}
    boots = dict(zip(snapshot.nodes.id.tolist(), snapshot.nodes.boot.tolist(), strict=True))
    opened = {name for name in opened_by_people(memory, snapshot) if not memory.recovery.cordons[name].opened}
    return {
        uuid: record
        for uuid, record in memory.recovery.gpu_errors.items()
        if boots.get(record.node) == record.boot and record.node not in opened
    }
