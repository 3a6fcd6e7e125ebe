"""What a victim and a suspect have in common, as the memory of pairs names it."""

from __future__ import annotations

import numpy as np

from autopilot.core.model.colocation import MECHANISMS, Mechanism
from autopilot.core.model.kinds import gpu_models, kind_of
from autopilot.core.model.neighbours import Interference, Nearness
from autopilot.core.model.objects import Sharing
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.planning.pairs import pair_key

PARTS = "parts"
"""Parts of one GPU that were requested as such."""


def mechanism_of(snapshot: ClusterSnapshot, suspect: int, nearness: Nearness) -> str:
    """How the suspect (row) shares what it has in common with its victim."""
    held = snapshot.placements
    at = np.flatnonzero(held.workload == suspect)
    if nearness is not Nearness.GPU or not len(at):
        return nearness.value
    if (held.instance[at] >= 0).any():
        return Mechanism.MIG.value
    sharing = Sharing(int(snapshot.nodes.sharing[held.node[at[0]]]))
    return MECHANISMS[sharing].value if sharing in MECHANISMS else PARTS


def pair_of(snapshot: ClusterSnapshot, found: Interference, victim: int, suspect: int) -> str:
    """The key of the pair of these workloads (rows) in the memory."""
    mine = snapshot.placements.gpu[snapshot.placements.workload == victim]
    model = str(gpu_models(snapshot)[mine[0]]) if len(mine) else ""
    mechanism = mechanism_of(snapshot, suspect, found.nearness)
    return pair_key(kind_of(snapshot, victim), kind_of(snapshot, suspect), mechanism, model)


def budget_of(snapshot: ClusterSnapshot, victim: int) -> str:
    """Whose pauses of the innocent a trial for this victim (row) may count to: its service, else itself."""
    service = int(snapshot.workloads.service[victim])
    return str(snapshot.services.uid[service] if service >= 0 else snapshot.workloads.uid[victim])
