"""Where a gang fits: the one question of every action, whatever the kind of capacity that the gang asks for."""

from __future__ import annotations

import numpy as np

from autopilot.core.model.policy.bounds import PlacementWeights
from autopilot.core.model.records import Code
from autopilot.core.model.snapshot import F64, I32
from autopilot.core.placement.kinds import kind_of
from autopilot.core.placement.kinds.base import Team, Wanted
from autopilot.core.placement.shapes import Fit, Miss, Shape, shape_of
from autopilot.core.placement.whatif import WhatIf


def find_fit(
    whatif: WhatIf,
    shape: Shape,
    room: I32,
    weights: PlacementWeights,
    memory_mib_of_model: F64,
    node_end_s: F64 | None = None,
    end_s: float = np.nan,
    apart: F64 | None = None,
    barred: I32 | None = None,
) -> Fit | Miss:
    """The best place for a gang of equal members now, or the reason for a miss. The parameters are as in `Wanted`."""
    if shape.gpus <= 0:
        return Miss(Code.CAPACITY, 0.0, 0.0)  # work without GPUs is not ours to place
    wanted = Wanted(shape, room, weights, memory_mib_of_model, node_end_s, end_s, apart, barred)
    return kind_of(shape).find(whatif, wanted)


def find_members(whatif: WhatIf, team: Team, room: I32) -> Fit | Miss:
    """Room for at least the minimum of a gang whose members differ, each on one node that suits it.

    Higher ranks come first. A member that finds no node is left out, as long as the minimum of the gang starts.
    """
    return kind_of(shape_of(whatif.snapshot, team.row)).find_members(whatif, team, room)
