"""Shares of GPUs, in thousandths. They fill GPUs in use before they open an empty one."""

from __future__ import annotations

import numpy as np

from autopilot.core.model.records import Code, Evidence
from autopilot.core.model.snapshot import GPU_MILLI, I32
from autopilot.core.placement.kinds.base import Kind, Team, Wanted
from autopilot.core.placement.shapes import Fit, Miss, suitable_nodes
from autopilot.core.placement.whatif import Layout, WhatIf


def find_shares(whatif: WhatIf, wanted: Wanted) -> Fit | Miss:
    """Shares of GPUs, one a member: the fullest GPU with room for the share, an empty one last."""
    gpus, shape, room = whatif.snapshot.gpus, wanted.shape, wanted.room
    suits = suitable_nodes(whatif, shape, wanted.memory_mib_of_model)
    usable = whatif.gpu_whole & suits[gpus.node]
    opens = usable & (whatif.gpu_used == 0)
    # number of each empty GPU on its node: as many as there is room for may be opened
    opened = np.cumsum(opens)
    first = np.concatenate([[0], opened])[whatif.snapshot.nodes.first_gpu][gpus.node]
    may_use = usable & (~opens | (opened - first <= room[gpus.node]))
    shares = np.where(may_use, (GPU_MILLI - whatif.gpu_used) // shape.milli, 0)
    fullest = np.argsort(np.where(shares > 0, -whatif.gpu_used, GPU_MILLI + 1), kind="stable")
    order = np.repeat(fullest, shares[fullest])[: shape.gpus]
    if len(order) < shape.gpus:
        left = float((GPU_MILLI - whatif.gpu_used[usable]).sum() / GPU_MILLI)
        need = shape.gpus * shape.milli / GPU_MILLI
        return Miss(Code.CAPACITY if left < need else Code.FRAGMENTED, left, need)
    gpu = order.astype(np.int32)
    layout = Layout(gpu, np.full(len(gpu), -1, np.int32), np.full(len(gpu), shape.milli, np.int32))
    used = float(whatif.gpu_used[gpu].mean() / GPU_MILLI)
    return Fit(
        layout,
        gpus.node[gpu],
        used,
        (Evidence("share_packing", round(used, 4), "share of the GPU already in use"),),
    )


def find_members(whatif: WhatIf, team: Team, room: I32) -> Fit | Miss:  # noqa: ARG001 - as every `find_members`
    """None: members on shares are alike, as no source states others."""
    return Miss(Code.CAPACITY, 0.0, float(whatif.snapshot.workloads.min_gpus[team.row]))


KIND = Kind("shares", lambda shape: shape.milli > 0, find_shares, find_members)
