"""Nodes and GPUs that may take new work: one rule for the what-if, the figures of the fleet and metering."""

from __future__ import annotations

import numpy as np

from autopilot.core.hardware.xid_facts import out_of_use
from autopilot.core.model.snapshot import Bools, GpuTable, NodeTable, Recut


def takes_work(nodes: NodeTable, gpus: GpuTable) -> tuple[Bools, Bools]:
    """Nodes that are ready and not cordoned, condemned or called back; and GPUs on such nodes that are healthy, have no
    error that bars new work, and keep their geometry. Shapes [nodes], [gpus].
    """
    bad_node, bad_gpu = out_of_use(nodes, gpus)
    node_ok = nodes.ready & ~nodes.cordoned & ~bad_node & np.isnan(nodes.reclaim_at_s)
    return np.asarray(node_ok), np.asarray(gpus.healthy & ~bad_gpu & (gpus.recut == Recut.SETTLED))
