"""Reasons against any start of a waiting gang on the present nodes and queues."""

from __future__ import annotations

from math import isfinite

import numpy as np

from autopilot.core.model.snapshot import TOPOLOGY_NAMES, Topology
from autopilot.core.model.units import counted, number
from autopilot.core.placement.shapes import Shape, host_members, level_of, members_on, shape_of, suitable_models
from autopilot.core.planning.context import Context
from autopilot.core.quota.ledger import EPSILON
from autopilot.core.quota.rules.base import Claim
from autopilot.core.quota.rules.cohort import cohort_tree
from autopilot.explain.story.levels import cohorts, levels_of, name_of

NEVER_FREED = "a smaller request, or more nodes or quota; time alone does not"
"""Remedies for such a gang."""


def never_lines(ctx: Context, row: int) -> list[str]:
    """One line for each limit too small for it; [] if its start is a matter of time or of other work."""
    snapshot = ctx.observation.snapshot
    work = snapshot.workloads
    least = max(int(work.min_gpus[row]), 1)
    found = []
    if row not in ctx.members:
        found.append(_too_large(ctx, shape_of(snapshot, row, least)))
    found += _over_quota(ctx, ctx.quota.claim(row, least))
    return [f"never starts here as things are: {why}" for why in found if why]


def _too_large(ctx: Context, shape: Shape) -> str:
    """The property of the nodes too small for the shape, were they empty and all fit for use; "" without one."""
    nodes = ctx.observation.snapshot.nodes
    suits = suitable_models(nodes, shape, ctx.gpu_memory_mib, slice(None))
    for asked, stated in ((shape.cpu_milli, nodes.cpu_milli), (shape.host_memory_mib, nodes.memory_mib)):
        suits &= (stated < 0) | (stated >= asked)
    if not suits.any():
        return "no node has the GPU model, GPU memory, labels, CPU and host memory that one member asks for"
    if not shape.whole_gpus:
        return ""
    gpus = np.where(suits, nodes.gpus, 0)
    if gpus.max() < shape.per_member:
        largest = counted(int(gpus.max()), "GPU")
        return f"one member asks for {counted(shape.per_member, 'GPU')}, and the largest node that suits has {largest}"
    cpu, memory = (np.where(each < 0, np.iinfo(np.int64).max, each) for each in (nodes.cpu_milli, nodes.memory_mib))
    members = np.minimum(members_on(shape, gpus.astype(np.int32)), host_members(shape, cpu, memory)).astype(np.int64)
    level = level_of(nodes, shape.topology)
    most = int(members.sum()) if level is None else int(np.bincount(level - level.min(), members).max())
    if most >= shape.members:  # a smaller last member is not judged
        return ""
    if shape.topology == Topology.SPREAD:
        return f"its {shape.members} members want a node each, and {counted(most, 'node')} suit it"
    where = "all nodes that suit it have" if level is None else f"the largest {TOPOLOGY_NAMES[shape.topology]} has"
    return f"it asks for {counted(shape.gpus, 'GPU')}, and {where} {counted(most * shape.per_member, 'GPU')} for it"


def _over_quota(ctx: Context, claim: Claim) -> list[str]:
    """Limits below its request, and quotas below it even with all borrowing."""
    ledger = ctx.quota.ledger
    asks = counted(round(claim.gpus, 3), "GPU")
    found = []
    for kind in claim.kinds:
        for queue in levels_of(ledger, claim.queue):
            limit = ledger.limit[kind][queue]
            if isfinite(limit) and claim.gpus > limit + EPSILON:
                found.append(f"it asks for {asks}, and the limit of queue {name_of(ctx, queue)} is {number(limit)}")
        path = ledger.paths[claim.queue]
        if not cohorts(ctx) or not path:
            continue
        tree = cohort_tree(ledger, kind, path[-1])
        for queue in path:
            whole = tree.quota[queue] + (0.0 if queue == path[-1] else tree.borrow[queue])
            if claim.gpus > whole + EPSILON:
                has = f"queue {name_of(ctx, queue)} has {number(whole)} with all that it may borrow"
                found.append(f"it asks for {asks} of quota, and {has}")
    return list(dict.fromkeys(found))
