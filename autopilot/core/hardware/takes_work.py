"""Which nodes and GPUs may take new work: one rule for the what-if, the figures of the fleet and metering."""

from __future__ import annotations

import numpy as np

from autopilot.core.hardware.xid_facts import out_of_use
from autopilot.core.model.snapshot import Bools, GpuTable, NodeTable, Recut


def takes_work(nodes: NodeTable, gpus: GpuTable) -> tuple[Bools, Bools]:
    """Nodes that are ready and not cordoned, condemned or called back, and GPUs that are healthy, without an error that
    keeps new work away, and not under a change of geometry. A GPU needs its node too. Shapes [nodes], [gpus].
    """
    bad_node, bad_gpu = out_of_use(nodes, gpus)
    node_ok = nodes.ready & ~nodes.cordoned & ~bad_node & np.isnan(nodes.reclaim_at_s)
    return np.asarray(node_ok), np.asarray(gpus.healthy & ~bad_gpu & (gpus.recut == Recut.SETTLED))
