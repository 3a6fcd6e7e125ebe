"""GPUs with a change of geometry under way, ours and others'."""

from __future__ import annotations

import numpy as np

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.snapshot import Bools, ClusterSnapshot, Recut
from autopilot.core.model.work import named


def under_recut(memory: ControllerMemory, snapshot: ClusterSnapshot) -> Bools:
    """GPUs with a change of geometry under way that is not late. Shape [gpus]."""
    changing = np.asarray(snapshot.gpus.recut == Recut.CHANGING)
    if memory.geometry.recuts:
        states = {uuid: record.state for uuid, record in memory.geometry.recuts.items() if record.state != "settled"}
        ours = [uuid for uuid, state in states.items() if state not in {"quarantined", "draining"}]
        late = [uuid for uuid, state in states.items() if state == "quarantined"]
        uuids = snapshot.gpus.uuid
        changing = (changing | named(uuids, ours)) & ~named(uuids, late)
    return changing
