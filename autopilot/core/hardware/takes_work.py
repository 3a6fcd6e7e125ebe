"""Nodes and GPUs open to new work: one rule for the what-if, the figures of the fleet and metering."""

from __future__ import annotations

import numpy as np

from autopilot.core.hardware.xid_facts import out_of_use
from autopilot.core.model.snapshot import Bools, GpuTable, NodeTable, Recut


def takes_work(nodes: NodeTable, gpus: GpuTable) -> tuple[Bools, Bools]:
    """Ready nodes, neither cordoned nor condemned nor called back; and healthy GPUs without a barring error or a change
    of geometry. A GPU takes work only if its node does too. Shapes [nodes], [gpus].
    """
    bad_node, bad_gpu = out_of_use(nodes, gpus)
    node_ok = nodes.ready & ~nodes.cordoned & ~bad_node & np.isnan(nodes.reclaim_at_s)
    return np.asarray(node_ok), np.asarray(gpus.healthy & ~bad_gpu & (gpus.recut == Recut.SETTLED))
