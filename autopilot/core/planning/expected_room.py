"""Gangs expected by the demand mix, and the nodes left to them by narrower work.

Moves make no lasting room if the next narrow gang starts in it: that gang may not be moved for its guaranteed run time.
So while `defragment_ahead` acts by itself, one set of nodes is kept clear for each likely kind of wide gang: the nodes
of one domain with the least work left. Narrower gangs start elsewhere while they fit elsewhere; nothing waits for it,
and nothing is moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log

import numpy as np

from autopilot.core.model.forecast import ExpectedMix, kind_words
from autopilot.core.model.policy import Effect
from autopilot.core.model.snapshot import F64, I32
from autopilot.core.placement.shapes import Shape, level_of, members_on, suitable_nodes
from autopilot.core.planning.context import Context

MIX_AGE_S = 7200.0
"""A mix older than this is not used: it is made every hour."""
LIKELY_ARRIVALS = log(2.0)
"""Expected arrivals from which one is more likely than not (Poisson)."""
MOST_KINDS = 4
"""Kinds of gangs for which nodes are kept clear, those with most expected GPUs."""
KEPT = 1e4
"""What a kept node costs a narrower gang in the score of its place: more than the other terms can sum up to."""


@dataclass(frozen=True, slots=True)
class ExpectedGang:
    """A kind of gang of whole GPUs expected by the mix."""

    shape: Shape
    words: str
    arrivals: float  # expected within `defragment_ahead.ahead_s`


@dataclass(frozen=True, slots=True)
class KeptClear:
    """`gpus` [nodes]: width of the expected gang for which a node is kept clear; 0: for none."""

    gpus: I32
    words: tuple[str, ...]  # of each kind of gang that nodes are kept for

    def cost(self, shape: Shape) -> F64 | None:
        """Cost of each node to a gang of this shape; None if no node is kept for a wider one. Shape [nodes]."""
        if not self.words:  # asked for each waiting gang
            return None
        kept = self.gpus > max(shape.gpus, 1)
        return np.asarray(KEPT * kept, float) if kept.any() else None


def usable_mix(ctx: Context) -> ExpectedMix | None:
    """The expected mix; None if the forecaster abstains or its forecast is old."""
    mix = ctx.observation.forecasts.mix
    return mix if mix is not None and not mix.reason and ctx.now_s < mix.made_s + MIX_AGE_S else None


def arrivals_within(mix: ExpectedMix, within_s: float) -> F64:
    """Expected arrivals of each kind, from the next horizon of the mix in proportion. Shape [kinds]."""
    column = min(int(np.searchsorted(mix.horizons_s, within_s)), len(mix.horizons_s) - 1)
    return np.asarray(mix.expected[:, column] * (within_s / mix.horizons_s[column]), float)


def expected_gangs(ctx: Context, mix: ExpectedMix) -> Iterator[ExpectedGang]:
    """Expected gangs of whole GPUs on GPU models of the cluster, those with most expected GPUs first."""
    names = ctx.observation.snapshot.names.gpu_models
    arrivals = arrivals_within(mix, ctx.policy.defragment_ahead.ahead_s)
    expected_gpus = arrivals * np.array([kind.gpus for kind in mix.kinds], float)
    for place in np.argsort(-expected_gpus, kind="stable").tolist():
        kind = mix.kinds[place]
        models = sum(1 << code for code, name in enumerate(names) if name in kind.gpu_models)
        if kind.profile or kind.gpu_milli or arrivals[place] <= 0.0 or (kind.gpu_models and not models):
            continue
        shape = Shape(kind.gpus // kind.gpus_per_member, kind.gpus_per_member, 0, 0, -1, models, 0, 0, 0, kind.topology)
        yield ExpectedGang(shape, kind_words(kind), float(arrivals[place]))


def kept_clear(ctx: Context) -> KeptClear:
    """The nodes left alone by narrower gangs, computed at most once in a tick."""
    return ctx.once(KeptClear, lambda: _kept_clear(ctx))


def _kept_clear(ctx: Context) -> KeptClear:
    nodes = ctx.observation.snapshot.nodes
    gpus, words = np.zeros(len(nodes.id), np.int32), list[str]()
    mix = usable_mix(ctx) if ctx.policy.modes.auto(Effect.CLEAR) else None
    if mix is None:
        return KeptClear(gpus, ())
    left_s = _left_s(ctx)
    for gang in expected_gangs(ctx, mix):
        if gang.arrivals < LIKELY_ARRIVALS or gang.shape.gpus < int(nodes.gpus.max(initial=1)):
            continue
        chosen = _least_used(ctx, gang.shape, np.where(gpus > 0, np.inf, left_s))
        if chosen is not None:
            gpus[chosen] = gang.shape.gpus
            words.append(gang.words)
        if len(words) == MOST_KINDS:
            break
    return KeptClear(gpus, tuple(words))


def _left_s(ctx: Context) -> F64:
    """GPU time until the work on each node has ended by prediction, each GPU within `ahead_s`. Shape [nodes]."""
    nodes, gpus = ctx.observation.snapshot.nodes, ctx.observation.snapshot.gpus
    left_s = np.clip(ctx.plan.gpu_free_at_s - ctx.review_now_s, 0.0, ctx.policy.defragment_ahead.ahead_s)
    return np.asarray(np.bincount(gpus.node, left_s, minlength=len(nodes.id)), float)


def _least_used(ctx: Context, shape: Shape, left_s: F64) -> I32 | None:
    """Nodes of one domain with the least work left that hold the shape once they are empty; None without such
    a domain.
    """
    nodes = ctx.observation.snapshot.nodes
    suits = suitable_nodes(ctx.whatif, shape, ctx.gpu_memory_mib, empty=True) & np.isfinite(left_s)
    rows = np.flatnonzero(suits & (nodes.gpus >= shape.per_member)).astype(np.int32)
    if not len(rows):
        return None
    level = level_of(nodes, shape.topology, rows)
    domain = np.zeros(len(rows), np.int32) if level is None else level
    order = np.lexsort((left_s[rows], domain))
    rows, domain = rows[order], domain[order]
    capacity = members_on(shape, nodes.gpus[rows])
    first = np.searchsorted(domain, domain)  # of its domain
    before = np.cumsum(capacity) - capacity
    needed = before - before[first] < shape.members
    holds = np.bincount(domain, capacity) >= shape.members
    if not holds.any():
        return None
    cost = np.where(holds, np.bincount(domain, np.where(needed, left_s[rows], 0.0)), np.inf)
    return np.asarray(rows[needed & (domain == int(np.argmin(cost)))], np.int32)
