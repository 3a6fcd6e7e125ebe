"""Seats: places for work on GPUs that software shares.

Some engines give out the shares that a start names. NVIDIA's device plugin chooses itself: each share comes from a GPU
with the fewest shares out, any of those that are equal. So a start is shown to be right on every GPU that it could get,
and to get different ones: there are enough GPUs with the fewest shares, and the terms hold on each of them. Nothing
else may be under way on such a node, unless it goes to GPUs that nobody is on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autopilot.core.model.modes import Effect
from autopilot.core.model.objects import SharingConfig
from autopilot.core.model.records import Evidence
from autopilot.core.model.snapshot import GPU_MILLI, I32
from autopilot.core.placement.shapes import Fit, Shape, suitable_nodes
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context
from autopilot.core.sharing.colocation import Prediction
from autopilot.core.sharing.terms import Barred, Terms, Way, way_of


@dataclass(frozen=True, slots=True)
class Seat:
    """A place: the shares, the other holders (rows) of their GPUs, and what is predicted with the newcomer last."""

    fit: Fit
    way: Way
    beside: tuple[tuple[int, ...], ...]  # by GPU of the layout
    predictions: tuple[Prediction, ...]

    @property
    def rate(self) -> float:
        """The newcomer's rate: that on its slowest GPU."""
        return min(each.rates[-1] for each in self.predictions)

    @property
    def neighbours(self) -> tuple[int, ...]:
        """All workloads on its GPUs (rows)."""
        return tuple(sorted({row for rows in self.beside for row in rows}))


@dataclass(frozen=True, slots=True)
class _Sitting:
    """The holders of the GPUs of the shared nodes in one state of the books."""

    stamp: int
    on: dict[int, list[int]]  # rows by GPU
    unsure: frozenset[int]  # nodes on which a start is planned or under way that no view shows yet


class _Cached(list[_Sitting]):
    """The newest one."""


def sitting(ctx: Context) -> _Sitting:
    """The holders of GPUs on shared nodes, as planned so far."""
    cached = ctx.once(_Cached, _Cached)
    if cached and cached[0].stamp == ctx.whatif.stamp:
        return cached[0]
    snapshot = ctx.observation.snapshot
    held, node = snapshot.placements, snapshot.gpus.node
    shared = snapshot.nodes.replicas > 1
    on: dict[int, list[int]] = {}
    for at in np.flatnonzero(shared[held.node]).tolist():
        if int(held.workload[at]) not in ctx.whatif.layouts:
            on.setdefault(int(held.gpu[at]), []).append(int(held.workload[at]))
    unsure = set()
    seen = set(zip(held.workload.tolist(), held.gpu.tolist(), strict=True)) if ctx.whatif.layouts else set()
    for row, layout in ctx.whatif.layouts.items():
        for gpu in layout.gpu[shared[node[layout.gpu]]].tolist():
            on.setdefault(gpu, []).append(row)
            if (row, gpu) not in seen:
                unsure.add(int(node[gpu]))
    cached[:] = [_Sitting(ctx.whatif.stamp, {gpu: sorted(set(rows)) for gpu, rows in on.items()}, frozenset(unsure))]
    return cached[0]


def find_seat(ctx: Context, terms: Terms, row: int, shape: Shape, *, keeps: bool = False) -> Seat | Barred | None:
    """The best seat of a waiting gang: beside the most work that the terms allow. None where no shared GPU has room.

    Full nodes come first, so that others empty and can be turned back; then the lowest node. Only with `keeps` it may
    have GPUs that it would keep to itself: no other work that is here could join it.
    """
    nodes, whatif = ctx.observation.snapshot.nodes, ctx.whatif
    suits = suitable_nodes(whatif, shape, ctx.gpu_memory_mib) & (nodes.replicas > 1)
    best: tuple[tuple[float, ...], Seat] | None = None
    barred: Barred | None = None
    for node in np.flatnonzero(suits).tolist():
        way = way_of(ctx, node)
        found = None if way is None else _on_node(ctx, terms, row, shape.gpus, node, way, keeps=keeps)
        if isinstance(found, Barred):
            barred = barred or found
        elif found is not None:
            full = float(whatif.gpu_used[found.fit.layout.gpu].mean())
            first = int(nodes.first_gpu[node])
            rank = (full, float(whatif.gpu_used[first : first + int(nodes.gpus[node])].sum()), found.rate, -node)
            if best is None or rank > best[0]:
                best = rank, found
    return best[1] if best is not None else barred


def seats_for(ctx: Context, terms: Terms, rows: Sequence[int]) -> dict[int, Layout] | None:
    """Seats for running work in place of its whole GPUs, all of it at once; None where one has none.

    Only where the action may act. The what-if is left as it was.
    """
    if not ctx.policy.modes.acts(Effect.SHARE) or not (ctx.observation.snapshot.nodes.replicas > 1).any():
        return None
    found, mark = dict[int, Layout](), ctx.whatif.checkpoint()
    for row in rows:
        seat = find_seat(ctx, terms, row, ctx.shape(row, len(ctx.whatif.layout_of(row)))) if terms.may[row] else None
        if not isinstance(seat, Seat):
            break
        found[row] = seat.fit.layout
        ctx.whatif.move(row, seat.fit.layout)
    ctx.whatif.rollback(mark)
    return found if len(found) == len(rows) else None


def _on_node(
    ctx: Context, terms: Terms, row: int, count: int, node: int, way: Way, *, keeps: bool
) -> Seat | Barred | None:
    """The seat on one node."""
    nodes, whatif = ctx.observation.snapshot.nodes, ctx.whatif
    first = int(nodes.first_gpu[node])
    milli = GPU_MILLI // way.replicas
    sits = sitting(ctx)
    every = [gpu for gpu in range(first, first + int(nodes.gpus[node])) if whatif.gpu_usable[gpu]]
    open_to = [gpu for gpu in every if whatif.gpu_used[gpu] + milli <= GPU_MILLI]
    if len(open_to) < count:
        return None
    config = present_config(ctx, node)
    if config is not None and config.named:
        return _best(count, _asked(terms, row, open_to, sits, way, keeps=keeps), way, node)
    if _assumed(ctx, node) or (count > 1 and (config is None or config.single)):
        return None
    fewest = min(len(sits.on.get(gpu, ())) for gpu in open_to)
    equal = [gpu for gpu in open_to if len(sits.on.get(gpu, ())) == fewest]
    if fewest and node in sits.unsure:
        return None
    asked = list(_asked(terms, row, equal, sits, way, keeps=keeps))
    against = next((found for _, _, found in asked if isinstance(found, Barred)), None)
    return against if against is not None else _best(count, asked, way, node)


class _Asked(NamedTuple):
    """What the terms say of one GPU."""

    gpu: int
    beside: tuple[int, ...]  # rows on it
    found: Prediction | Barred


def _asked(terms: Terms, row: int, gpus: Sequence[int], sits: _Sitting, way: Way, *, keeps: bool) -> Iterator[_Asked]:
    """What the terms say of each of these GPUs, with the newcomer last."""
    for gpu in gpus:
        beside = tuple(each for each in sits.on.get(gpu, ()) if each != row)
        if not beside and not keeps and not terms.could_share(row, way):
            continue
        yield _Asked(gpu, beside, terms.together((*beside, row), way))


def _best(count: int, asked: Iterable[_Asked], way: Way, node: int) -> Seat | Barred | None:
    """The GPUs with the most work on them, of those on which the terms hold."""
    allowed: list[tuple[_Asked, Prediction]] = []
    barred = None
    for each in asked:
        if isinstance(each.found, Barred):
            barred = barred or each.found
        else:
            allowed.append((each, each.found))
    if len(allowed) < count:
        return barred
    best = sorted(allowed, key=lambda pair: (-len(pair[0].beside), -pair[1].rates[-1], pair[0].gpu))[:count]
    chosen = sorted(best, key=lambda pair: pair[0].gpu)
    gpus = np.array([each.gpu for each, _ in chosen], np.int32)
    layout = Layout(gpus, np.full(count, -1, np.int32), np.full(count, GPU_MILLI // way.replicas, np.int32))
    mean = sum(len(each.beside) for each, _ in chosen) / count
    fit = Fit(
        layout,
        np.full(1, node, np.int32),
        mean,
        (Evidence("beside", round(mean, 4), "workloads on each of its GPUs before"),),
    )
    return Seat(fit, way, tuple(each.beside for each, _ in chosen), tuple(found for _, found in chosen))


def configs_of(ctx: Context, node: int) -> list[SharingConfig]:
    """The configurations to which a node can be turned."""
    offers, names = int(ctx.observation.snapshot.nodes.sharing_offers[node]), ctx.observation.snapshot.names
    return [each for at, each in enumerate(names.sharing_configs) if offers >> at & 1]


def present_config(ctx: Context, node: int) -> SharingConfig | None:
    """The configuration of a shared node; None where it is not one of those to which the node can be turned."""
    nodes = ctx.observation.snapshot.nodes
    now = int(nodes.sharing[node]), int(nodes.replicas[node])
    return next((each for each in configs_of(ctx, node) if (each.sharing, each.replicas) == now), None)


def _assumed(ctx: Context, node: int) -> bool:
    """Whether it is not known which GPUs of a node work holds."""
    held = ctx.observation.snapshot.placements
    return bool((held.assumed & (held.node == node)).any())


def layout_rows(ctx: Context, layout: Layout) -> I32:
    """Entries of a layout on GPUs of shared nodes."""
    snapshot = ctx.observation.snapshot
    shared = snapshot.nodes.replicas[snapshot.gpus.node[layout.gpu]] > 1
    return np.flatnonzero(shared & layout.plain).astype(np.int32)
