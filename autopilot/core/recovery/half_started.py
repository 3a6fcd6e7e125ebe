"""Half-started gangs of other schedulers: some pods hold GPUs, others find no node, and nothing is done.

A scheduler without gangs starts the pods of a gang one by one. Two such gangs can block each other without end.
"""

from __future__ import annotations

import numpy as np

from autopilot.core.effects.draft import NoteCase
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import About, Evidence, Note
from autopilot.core.model.snapshot import Bools, ClusterSnapshot
from autopilot.core.model.work import active_mask
from autopilot.core.planning.context import Context
from autopilot.core.recovery.hangs import active_gpus, shortest_window

GRACE_S = 900.0
"""Time in which the rest of a gang may still start: images are pulled and nodes are made meanwhile."""
HALF_STARTED = NoteCase(
    "half_started",
    "{subject} is half started: it has held {held:GPU} for {value} and {lacking:pod of it has|pods of it have} no "
    "node; it needs room for the rest, or its owner stops it",
)


def half_started(snapshot: ClusterSnapshot, policy: Policy, now_s: float) -> Bools:
    """Gangs with pods on GPUs for `GRACE_S` while others of the gang have no node. Shape [workloads].

    A gang with active GPUs works without the others, and is left out. Unknown activity does not exclude a gang.
    """
    work, held = snapshot.workloads, snapshot.placements
    with np.errstate(invalid="ignore"):
        found = active_mask(work) & (work.lacking_pods > 0) & (now_s - work.start_s >= GRACE_S)
    if found.any() and snapshot.telemetry.windows_s:
        found[held.workload[active_gpus(snapshot, policy, shortest_window(snapshot))[held.gpu]]] = False
    return np.asarray(found)


def note_half_started(ctx: Context) -> None:
    """Name each of them: it is left to its owner."""
    snapshot = ctx.observation.snapshot
    work = snapshot.workloads
    for row in np.flatnonzero(half_started(snapshot, ctx.policy, ctx.now_s)).tolist():
        facts = (
            Evidence("held", int((snapshot.placements.workload == row).sum()), "GPUs"),
            Evidence("lacking", int(work.lacking_pods[row]), "pods"),
        )
        for_s = round(ctx.now_s - float(work.start_s[row]), 3)
        ctx.plan.note(Note(HALF_STARTED.code, About.WORKLOAD, str(work.id[row]), for_s, "s", facts))
