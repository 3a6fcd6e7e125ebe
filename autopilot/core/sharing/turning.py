"""Which node to turn to sharing next, and when that pays.

Theory of operation. Only an empty node is turned, and no work is kept waiting for that: a node that comes free is
turned before it is filled again, where that pays. What is gained follows from the stock, work that may share and comes
to seats soon: it waits, it is suspended, or it came within `PAYBACK_S`, so that as much is expected again. The stock is
packed onto the shared GPUs under the terms, and what is left onto the GPUs of one more node. Each GPU that it leaves to
others serves work that waits, for `PAYBACK_S` and for the time that the cluster needs for its backlog.

While nothing waits a node may be time-sliced ahead, for work that is expected: as much comes in `PAYBACK_S` as its rate
of arrival says. Alone that runs there as fast as on whole GPUs, so nothing is lost. As many whole GPUs stay free as
came of work that does not share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autopilot.core.model.colocation import MECHANISMS
from autopilot.core.model.objects import Sharing, SharingConfig
from autopilot.core.model.snapshot import GPU_MILLI, Bools, State
from autopilot.core.model.work import holding_mask, on_shares
from autopilot.core.planning.context import Context
from autopilot.core.sharing.colocation import Abstention
from autopilot.core.sharing.seats import configs_of, present_config, sitting
from autopilot.core.sharing.terms import Barred, Terms, Way, way_of, way_on

PAYBACK_S = 4 * 3600.0
"""As long as interactive work lasts [assumed]: the stock came within it, and a shared node is of use for as long."""

RESTART_S = 120.0
"""Time of a turn: restart of the device plugin, and a late MPS daemon (study of sharing, section 4)."""

LEAST_SEEN_S = 1800.0
"""Arrivals are counted over this long at least before a rate is read from them."""

HALF = 0.5
"""Part of the node's GPUs that the stock must fill."""


@dataclass(frozen=True, slots=True)
class Packing:
    """The stock on the GPUs of one node: GPUs requested by what is seated, and GPUs that it takes."""

    config: SharingConfig
    gpus: int
    used: int
    rate: float  # mean over its work, of the rates alone

    @property
    def gain_gpus(self) -> float:
        """GPUs left to others, less what is lost to slower work."""
        return self.gpus * self.rate - self.used


@dataclass(frozen=True, slots=True)
class Choice:
    """A node (row) to be turned, and its packing."""

    node: int
    packing: Packing
    gain_gpus: float
    benefit_gpu_s: float  # the GPUs gained, while they serve work that waits
    cost_gpu_s: float

    @property
    def worth_gpu_s(self) -> float:
        """Benefit above cost."""
        return self.benefit_gpu_s - self.cost_gpu_s


def stock_of(ctx: Context, terms: Terms) -> list[int]:
    """Rows of work that may share and comes to seats soon."""
    work = ctx.observation.snapshot.workloads
    whole = holding_mask(work) & ~on_shares(ctx.observation.snapshot)
    came = whole & (work.submit_s >= ctx.review_now_s - PAYBACK_S)
    rows = np.flatnonzero(terms.may & ((work.state == State.PENDING) | came) & ~_placed(ctx))
    return [int(row) for row in rows]


def _placed(ctx: Context) -> Bools:
    """Work that waits in the view, and has a place by the plan. Shape [workloads]."""
    placed = np.zeros(len(ctx.observation.snapshot.workloads.id), np.bool_)
    placed[[row for row, layout in ctx.whatif.layouts.items() if len(layout)]] = True
    return np.asarray(placed & (ctx.observation.snapshot.workloads.state == State.PENDING))


def seat_on(terms: Terms, rows: Iterable[int], way: Way, config: SharingConfig, on: list[list[int]]) -> list[int]:
    """Put workloads on the GPUs of one node, `on` (rows by GPU), each beside the most work that the terms allow.

    Returns those without a seat.
    """
    work = terms.ctx.observation.snapshot.workloads
    left = []
    for row in rows:
        count = int(work.gpus[row])
        offered = _offered(on, way, named=config.named)
        open_to = [gpu for gpu in offered if not isinstance(terms.together((*on[gpu], row), way), Barred)]
        unsure = not config.named and len(open_to) < len(offered)
        if len(open_to) < count or unsure or (config.single and count > 1):
            left.append(row)
            continue
        for gpu in sorted(open_to, key=lambda each: (-len(on[each]), each))[:count]:
            on[gpu].append(row)
    return left


def pack(terms: Terms, rows: Iterable[int], way: Way, config: SharingConfig, gpus: int) -> Packing:
    """These workloads on the GPUs of an empty node."""
    on: list[list[int]] = [[] for _ in range(gpus)]
    seat_on(terms, rows, way, config, on)
    used = [rows for rows in on if rows]
    rates = [rate for rows in used for rate in getattr(terms.rates(rows, way), "rates", ())]
    return Packing(config, sum(map(len, used)), len(used), sum(rates) / len(rates) if rates else 0.0)


def beyond_seats(ctx: Context, terms: Terms, stock: list[int], coming: Mapping[int, SharingConfig]) -> list[int]:
    """The stock without what has a seat on the shared GPUs, and on those of nodes (rows) that are being turned."""
    nodes, holders = ctx.observation.snapshot.nodes, sitting(ctx).on
    for node, config in coming.items():
        if config.sharing in MECHANISMS:
            way = way_on(ctx, node, config.sharing, config.replicas)
            stock = seat_on(terms, stock, way, config, [[] for _ in range(int(nodes.gpus[node]))])
    for node in np.flatnonzero((nodes.replicas > 1) & ctx.whatif.node_ok).tolist():
        now, present = way_of(ctx, node), present_config(ctx, node)
        if now is None or present is None or not stock:
            continue
        first = int(nodes.first_gpu[node])
        gpus = range(first, first + int(nodes.gpus[node]))
        stock = seat_on(terms, stock, now, present, [list(holders.get(gpu, ())) for gpu in gpus])
    return stock


def _offered(on: Sequence[Sequence[int]], way: Way, *, named: bool) -> list[int]:
    """GPUs from which the next share may come; the device plugin takes one with the fewest out."""
    free = [gpu for gpu, rows in enumerate(on) if len(rows) < way.replicas]
    fewest = min((len(on[gpu]) for gpu in free), default=0)
    return [gpu for gpu in free if named or len(on[gpu]) == fewest]


def choose(
    ctx: Context,
    terms: Terms,
    candidates: Iterable[int],
    waiting: Sequence[int],
    coming: Mapping[int, SharingConfig],
) -> Choice | None:
    """The empty node of `candidates` (rows) whose turn pays most; None where none pays. `waiting`: positions."""
    work = ctx.observation.snapshot.workloads
    asked = work.gpus[ctx.pending[waiting]]
    waiting_gpus = float(asked.sum())
    backlog_gpu_s = float((asked * np.minimum(ctx.run_low_s[waiting], ctx.policy.horizon_s)).sum())
    lasts_s = min(
        PAYBACK_S + backlog_gpu_s / max(int(ctx.observation.snapshot.nodes.gpus.sum()), 1), ctx.policy.horizon_s
    )
    stock = beyond_seats(ctx, terms, stock_of(ctx, terms), coming)
    packings: dict[tuple[int, int, int], Packing | None] = {}
    best: Choice | None = None
    nodes = ctx.observation.snapshot.nodes
    for node in candidates:
        key = int(nodes.gpu_model[node]), int(nodes.sharing_offers[node]), int(nodes.gpus[node])
        if key not in packings:
            packings[key] = _best_packing(ctx, terms, stock, node)
        packing, weight = packings[key], ctx.price_weight(node)
        if packing is None:
            continue
        gain = min(packing.gain_gpus, waiting_gpus)
        found = Choice(node, packing, gain, weight * gain * lasts_s, weight * int(nodes.gpus[node]) * RESTART_S)
        if found.worth_gpu_s > 0 and (best is None or found.worth_gpu_s > best.worth_gpu_s):
            best = found
    return best


def ahead(ctx: Context, terms: Terms, candidates: Iterable[int], coming: Mapping[int, SharingConfig]) -> Choice | None:
    """The first empty node of `candidates` (rows) that may be time-sliced ahead of need; None: none may.

    Shared GPUs that nobody is on take work first, and those of nodes (rows) that are being turned.
    """
    snapshot = ctx.observation.snapshot
    nodes, work = snapshot.nodes, snapshot.workloads
    since_s = max(ctx.review_now_s - PAYBACK_S, float(work.submit_s.min(initial=ctx.review_now_s)))
    came = (work.submit_s >= since_s) & (work.service < 0)
    scale = PAYBACK_S / max(ctx.review_now_s - since_s, LEAST_SEEN_S)
    shared = nodes.replicas > 1
    shared[list(coming)] = True
    unused = float(nodes.gpus[shared].sum()) - len(np.unique(snapshot.placements.gpu[shared[snapshot.placements.node]]))
    asked = float(work.gpus[came & terms.may].sum()) * scale - unused
    others = float(work.gpus[came & ~terms.may].sum())
    for node in candidates:
        sliced = [each for each in configs_of(ctx, node) if each.sharing is Sharing.TIME_SLICING]
        gpus = int(nodes.gpus[node])
        if sliced and asked >= gpus and ctx.whatif.node_free.sum() - gpus >= others:
            most = max(sliced, key=lambda each: each.replicas)
            return Choice(
                node, Packing(most, round(asked), gpus, 1.0), 0.0, 0.0, ctx.price_weight(node) * gpus * RESTART_S
            )
    return None


def _best_packing(ctx: Context, terms: Terms, stock: Sequence[int], node: int) -> Packing | None:
    """The best way to share the GPUs of a node for the stock; None where it fills too few GPUs."""
    gpus = int(ctx.observation.snapshot.nodes.gpus[node])
    best: Packing | None = None
    for config in configs_of(ctx, node):
        if config.sharing is Sharing.WHOLE or GPU_MILLI % config.replicas:
            continue
        way = way_on(ctx, node, config.sharing, config.replicas)
        alone = ((row, terms.rates((row,), way)) for row in stock)
        known = sorted((found.load_ratio, row) for row, found in alone if not isinstance(found, Abstention))
        light = [row for _, row in known]
        for order in (light, light[::-1]):
            found = pack(terms, order, way, config, gpus)
            if found.used < HALF * gpus or found.gain_gpus <= 0:
                continue
            if best is None or (found.gain_gpus, -config.replicas) > (best.gain_gpus, -best.config.replicas):
                best = found
    return best
