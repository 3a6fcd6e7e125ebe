"""Shared GPUs: consent of both sides, count, memory and rates; and a node is turned only when it is empty."""

from __future__ import annotations

import numpy as np

from autopilot.core.effects.draft import Draft, moves_of
from autopilot.core.guards.base import allow, deny
from autopilot.core.model.codes import Code
from autopilot.core.model.records import Proposal, Verdict
from autopilot.core.model.work import whole_gpus
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context
from autopilot.core.sharing import set_sharing
from autopilot.core.sharing.seats import layout_rows, sitting
from autopilot.core.sharing.terms import MOST, Barred, terms_of, way_of

NAME = "sharing"
UNIT = "workloads on a shared GPU"
MOST_ON_GPU = float(sum(MOST.values()))


def check(_proposal: Proposal, draft: Draft, ctx: Context) -> Verdict:
    """Proposals that place nothing on shared GPUs and turn no node pass."""
    nodes = ctx.observation.snapshot.nodes
    if draft.kind == set_sharing.KIND:
        there = int((ctx.observation.snapshot.placements.node == draft.row).sum())
        if there:
            return deny(NAME, Code.SHARE_IN_USE, float(there), "GPUs in use on the node", 0.0)
    if not (nodes.replicas > 1).any():
        return allow(NAME, 0.0, UNIT, MOST_ON_GPU)
    places: dict[int, Layout] = dict(moves_of(draft.taken))
    if draft.placed is not None and draft.workload_row is not None:
        places[draft.workload_row] = draft.placed.layout
    most = 0
    for row, layout in places.items():
        found = _on(ctx, row, layout)
        if isinstance(found, Verdict):
            return found
        most = max(most, found)
    return allow(NAME, float(most), UNIT, MOST_ON_GPU)


def _on(ctx: Context, row: int, layout: Layout) -> Verdict | int:
    """The refusal of a place, or the most workloads on one of its GPUs."""
    shared = layout_rows(ctx, layout)
    if not len(shared) or not whole_gpus(ctx.observation.snapshot.workloads, row):
        return 0  # parts that were requested as such are another question
    gpus = layout.gpu[shared]
    if len(np.unique(gpus)) < len(gpus):
        return deny(NAME, Code.SHARE_APART, float(len(gpus)), "shares of fewer GPUs", float(len(np.unique(gpus))))
    terms, on, most = terms_of(ctx), sitting(ctx).on, 0
    for gpu in gpus.tolist():
        way = way_of(ctx, int(ctx.observation.snapshot.gpus.node[gpu]))
        beside = [each for each in on.get(gpu, ()) if each != row]
        most = max(most, len(beside) + 1)
        if not beside:
            continue
        if way is None:
            return deny(NAME, Code.SHARE_UNKNOWN, 1.0, "mechanisms of sharing that no label proves", 0.0)
        found = terms.together((*beside, row), way)
        if isinstance(found, Barred):
            return deny(NAME, found.code, found.value, found.unit, found.threshold, at_least=found.at_least)
    return most
