"""Grow elastic gangs that run below their full width into capacity that nobody who waits can use.

Idle GPUs that a taking counts on, which a guard holds for a time, are not such capacity.
"""

from __future__ import annotations

import numpy as np

from autopilot.core.context import Context
from autopilot.core.displace import within_limits
from autopilot.core.draft import Draft, Submit
from autopilot.core.placement import Shape, Spot, find_spot, level_of, shape_of
from autopilot.core.records import Evidence
from autopilot.core.snapshot import I32, State, Topology

NAME = "resize"


def propose(ctx: Context, submit: Submit) -> None:
    """The narrowest part of its width first, so that every gang grows a little before one grows fully."""
    whatif, work = ctx.whatif, ctx.observation.snapshot.workloads
    whole = (work.gpu_milli == 0) & (work.mig_profile < 0) & np.isnan(work.stale_since_s)
    elastic = np.flatnonzero((work.state == State.RUNNING) & (work.min_gpus < work.gpus) & whole
                             & ~work.excluded & ~work.stuck)  # fmt: skip
    cooling = ctx.cooling()
    settled = ctx.quota.gone | ctx.busy | ctx.leaving.keys() | ctx.members.keys()
    rows = []
    for row in elastic.tolist():
        held = len(whatif.layout_of(row).gpu)
        free = row not in settled and str(work.id[row]) not in cooling and ctx.kept_from(row) is None
        if free and 0 < held < int(work.gpus[row]):
            rows.append((held / int(work.gpus[row]), row, held))
    for _, row, held in sorted(rows):
        found = _more(ctx, row, held)
        if found is not None:
            submit(_growth(ctx, row, held, *found))


def _more(ctx: Context, row: int, held: int) -> tuple[Spot, Shape] | None:
    """The most members that fit beside those that the gang has; None when not even one does."""
    work = ctx.observation.snapshot.workloads
    member = max(int(work.gpus_per_member[row]), 1)
    room = _beside(ctx, row)
    low, high = 0, (int(work.gpus[row]) - held) // member
    best: tuple[Spot, Shape] | None = None
    while low < high:
        middle = (low + high + 1) // 2
        shape = within_limits(ctx, row, shape_of(ctx.observation.snapshot, row, middle * member))
        allowed = ctx.quota.may_start(row, middle * member) is None
        found = (
            find_spot(ctx.whatif, shape, room, ctx.policy.placement, ctx.gpu_memory_mib) if allowed else None
        )
        if isinstance(found, Spot):
            low, best = middle, (found, shape)
        else:
            high = middle - 1
    return best


def _beside(ctx: Context, row: int) -> I32:
    """Free GPUs per node where more members of a running gang may go: in the domain that it is in, or, where each
    member has a node of its own, on nodes without one. Shape [nodes].
    """
    snapshot = ctx.observation.snapshot
    topology = int(snapshot.workloads.topology[row])
    room, level = _unwanted(ctx), level_of(snapshot.nodes, topology)
    nodes = np.unique(snapshot.gpus.node[ctx.whatif.layout_of(row).gpu])
    if level is not None:
        return np.where(np.isin(level, level[nodes]), room, 0).astype(np.int32)
    if topology == Topology.SPREAD:
        room = room.copy()
        room[nodes] = 0
    return room


def _unwanted(ctx: Context) -> I32:
    """Whole free GPUs per node that are neither reserved nor wanted by a taking which is held for now. Shape [nodes]."""
    room, whatif = ctx.room(np.inf), ctx.whatif
    if not ctx.wanted:
        return room
    wanted = np.unique(np.concatenate([layout.gpu for layout in ctx.wanted]))
    idle = wanted[whatif.gpu_usable[wanted] & (whatif.gpu_used[wanted] == 0)]
    taken = np.bincount(ctx.observation.snapshot.gpus.node[idle], minlength=len(room))
    left: I32 = np.maximum(room - taken, 0).astype(np.int32)
    return left


def _growth(ctx: Context, row: int, held: int, spot: Spot, shape: Shape) -> Draft:
    work = ctx.observation.snapshot.workloads
    return Draft(
        action=NAME, kind="grow", at=-1, row=row, spot=spot, start_s=ctx.now_s, nodes=(),
        benefit_gpu_s=shape.gpus * min(ctx.policy.review.batch_s, ctx.policy.horizon_s), cost_gpu_s=0.0,
        evidence=(
            Evidence("held", held, "GPUs"),
            Evidence("more", shape.gpus, "GPUs"),
            Evidence("full_width", int(work.gpus[row]), "GPUs"),
        ),
    )  # fmt: skip
