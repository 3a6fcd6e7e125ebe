"""Another place for running work, away from the work that it disturbs, or that disturbs it."""

from __future__ import annotations

import numpy as np

from autopilot.core.effects.draft import Eviction
from autopilot.core.model.neighbours import Interference, Measure, Nearness
from autopilot.core.model.snapshot import F64, Bools
from autopilot.core.model.work import holding_mask
from autopilot.core.placement.fit import find_fit
from autopilot.core.placement.shapes import Fit
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context
from autopilot.core.sharing.facts import shared_rates
from autopilot.core.sharing.seats import seats_for
from autopilot.core.sharing.terms import terms_of

SLACK_RATIO = 0.15
"""A rate this far below its prediction is no part of what sharing costs (the alert GPUAutopilotSlowPair)."""


def away(ctx: Context, row: int, other: int, nearness: Nearness) -> Eviction | None:
    """The move of a workload (row) away from another; None where no place is free.

    Whole GPUs come first; work that may share goes to a seat where there are none. Apart is on other GPUs, and where
    the two only have a node in common on other nodes; replicas of one service count as one.
    """
    whatif = ctx.whatif
    width = len(whatif.layout_of(row))
    if not width or row in ctx.members:
        return None
    node = ctx.observation.snapshot.gpus.node
    taken = np.concatenate([whatif.layout_of(each).gpu for each in _alike(ctx, other)])
    shut: Bools = np.zeros(len(ctx.observation.snapshot.nodes.id), np.bool_)
    shut[node[taken]] = True
    room = np.where(shut, 0, ctx.room(np.inf, row)).astype(np.int32)
    fit = find_fit(whatif, ctx.shape(row, width), room, ctx.policy.placement, ctx.gpu_memory_mib)
    layouts = [fit.layout] if isinstance(fit, Fit) else []
    if not layouts and nearness is Nearness.GPU:
        layouts = list((seats_for(ctx, terms_of(ctx), [row]) or {}).values())
    for layout in layouts:
        if _apart(layout, taken, shut[node[layout.gpu]], nearness):
            return Eviction(row, "move", layout, width, float(ctx.losses.price_gpu_s[row]))
    return None


def _alike(ctx: Context, other: int) -> list[int]:
    """A workload (row), and the other replicas of its service on GPUs: what disturbs one disturbs all."""
    work = ctx.observation.snapshot.workloads
    same = holding_mask(work) & (work.service == work.service[other]) & (work.service >= 0)
    return [other, *(row for row in np.flatnonzero(same).tolist() if row != other)]


def as_agreed(ctx: Context, found: Interference, victim: int) -> bool:
    """Whether a gang on shares (row) is no slower than was predicted for it when it got them, within `SLACK_RATIO`."""
    if found.measure is not Measure.RATE or found.nearness is not Nearness.GPU:
        return False
    predicted = ctx.once(_Rates, lambda: _Rates([_predicted(ctx)]))[0][victim]
    return bool(predicted - 1.0 / found.rise_ratio <= SLACK_RATIO)


class _Rates(list[F64]):
    """The predicted rates of all work on shares. [workloads]; NaN: unknown."""


def _predicted(ctx: Context) -> F64:
    seen = ctx.observation
    return shared_rates(seen.snapshot, ctx.memory.profiles, seen.forecasts.colocation, ctx.now_s).predicted


def _apart(layout: Layout, taken: np.ndarray, beside: Bools, nearness: Nearness) -> bool:
    if nearness is Nearness.GPU:
        return not np.isin(layout.gpu, taken).any()
    return not beside.any()
