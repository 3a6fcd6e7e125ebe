"""The offers of the GPUs of a node to requests for MIG instances, and the price of a sufficient offer.

A GPU offers its free instances as they are, or a new geometry around its used instances: one of several vectors
[profile] of free instances. The price of a new geometry is `CHANGED`, plus one for each present free instance that it
destroys. A node covers a demand if the sum of one offer per GPU is at least the demand in every profile. All geometries
come from `mig.maximal_sets`, so they are legal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from autopilot.core.hardware import mig
from autopilot.core.hardware.mig import GpuModel, Placement
from autopilot.core.model.errors import invariant

Instance = tuple[str, int | None]  # a profile and its first memory slice; None: somewhere on the GPU
Vector = tuple[int, ...]  # instances of each requested profile
Ints = npt.NDArray[np.int64]

CHANGED = 1 << 20  # price of changing one more GPU: above that of any number of destroyed instances
NEVER = 1 << 40  # price of what cannot be had
# No table has more cells than TABLE_CELLS (some 5 ms) or, after ALL_CELLS (some 0.3 s), than LATE_TABLE_CELLS
TABLE_CELLS = 400_000
ALL_CELLS = 30_000_000
LATE_TABLE_CELLS = 40_000


class Cut(NamedTuple):
    """The present state of one GPU, without its location. Equal GPUs are interchangeable."""

    model: str | GpuModel
    used: tuple[Instance, ...]
    free: tuple[Instance, ...]


@dataclass(frozen=True)
class _Shelf:
    """The maximal geometries of a GPU model from the requested profiles."""

    names: dict[str, int]
    places: dict[Placement, int]
    holds: npt.NDArray[np.bool_]  # [geometry, place]
    counts: Ints  # [geometry, name]


def _shelf(model: str | GpuModel, names: Sequence[str]) -> _Shelf:
    """Maximal sets suffice: a superset of a geometry keeps and offers at least as much."""
    geometries = [sorted(geometry) for geometry in mig.maximal_sets(model, profiles=names)] or [[]]
    columns = {name: column for column, name in enumerate(names)}
    places = {place: column for column, place in enumerate(sorted({p for g in geometries for p in g}))}
    holds = np.zeros((len(geometries), len(places)), bool)
    counts = np.zeros((len(geometries), len(names)), np.int64)
    for row, geometry in enumerate(geometries):
        for place in geometry:
            holds[row, places[place]] = True
            counts[row, columns[place.profile]] += 1
    return _Shelf(columns, places, holds, counts)


def _offers(cut: Cut, shelf: _Shelf, profiles: Sequence[str]) -> tuple[Ints, Ints]:
    """([offer, profile] instances, [offer] price): first the GPU as it is, then the undominated new geometries."""
    used, free = _counts(cut.used, shelf), _counts(cut.free, shelf)
    known_used, known_free = _known(cut.used, shelf), _known(cut.free, shelf)
    possible = shelf.holds[:, known_used].all(axis=1) & (shelf.counts >= used).all(axis=1)
    beside = shelf.counts[possible] - used
    if len(known_used) == len(cut.used) and len(known_free) == len(cut.free):
        kept = shelf.holds[possible][:, known_free].sum(axis=1)
    else:
        # the used ones may stand anywhere, so any arrangement of the free ones beside them may be the present
        kept = np.minimum(beside, free).sum(axis=1)
    columns = [(column, shelf.names[name]) for column, name in enumerate(profiles) if name in shelf.names]
    vectors = np.zeros((len(beside) + 1, len(profiles)), np.int64)
    for column, name in columns:
        vectors[0, column] = free[name]
        vectors[1:, column] = beside[:, name]
    prices = np.append(0, CHANGED + len(cut.free) - kept)
    best = _best_first(vectors[None], prices[None])[0]
    return vectors[best], prices[best]


def _best_first(vectors: Ints, prices: Ints) -> Ints:
    """[kind, offer] rows of the undominated offers of each kind, in order. Of equal offers the first one remains.

    `vectors` are [kind, offer, profile], `prices` [kind, offer]. Kinds with fewer undominated offers are padded with
    dominated ones.
    """
    as_good = (vectors[:, :, None] >= vectors[:, None]).all(axis=3) & (prices[:, :, None] <= prices[:, None])
    later = as_good.swapaxes(1, 2) & np.tri(vectors.shape[1], dtype=bool)  # [.., i, j]: i equals j at best
    beaten = (as_good & ~later).any(axis=1)
    best: Ints = np.argsort(beaten, axis=1, kind="stable")[:, : int((~beaten).sum(axis=1).max())]
    return best


def _counts(instances: Sequence[Instance], shelf: _Shelf) -> Ints:
    counts = np.zeros(len(shelf.names), np.int64)
    for name, _start in instances:
        counts[shelf.names[name]] += 1
    return counts


def _known(instances: Sequence[Instance], shelf: _Shelf) -> list[int]:
    return [shelf.places[Placement(name, start)] for name, start in instances if start is not None]


class _Tables(NamedTuple):
    """The result of a dynamic program over the GPUs of some nodes, for every demand up to a largest one.

    `prices` [node, demand], one array per GPU: the least price with that GPU and all after it. The last array is for no
    GPU.
    """

    prices: list[Ints]
    offers: Ints  # [kind, offer] rows of the offers that were tried
    left: Ints  # [kind, offer, demand] what is left of a demand
    kind_of: Ints  # [node, gpu]


class Cover:
    """The least price at which a node covers a demand, for many nodes and demands.

    `profiles` are the columns of every vector, `cuts` the distinct GPUs (each legal, of a known model),
    `nodes` the distinct nodes as indices of `cuts` in the order of their GPUs. Prices are exact where the
    table of a node stays within its bound (`TABLE_CELLS`). Beyond it, the GPUs are cut greedily, each time the one that
    leaves the least to cover, and `exact` becomes False.
    """

    def __init__(self, profiles: Sequence[str], cuts: Sequence[Cut], nodes: Sequence[tuple[int, ...]]) -> None:
        self.exact = True
        self.size, self.width = len(nodes), len(profiles)
        self._cells = 0
        present: dict[str | GpuModel, Counter[str]] = {cut.model: Counter() for cut in cuts}
        for cut in cuts:
            present[cut.model].update(name for name, _start in (*cut.used, *cut.free))
        shelves = {}
        for model, names in present.items():
            known = [profile.name for profile in mig.gpu_model(model).profiles]
            shelves[model] = _shelf(model, [name for name in known if name in names or name in profiles])
        offers = [_offers(cut, shelves[cut.model], profiles) for cut in cuts]
        offers.append((np.zeros((1, len(profiles)), np.int64), np.zeros(1, np.int64)))  # no GPU at all
        self._sizes = np.array([len(prices) for _vectors, prices in offers])
        shape = (len(offers), int(self._sizes.max()))
        self._vectors = np.zeros((*shape, len(profiles)), np.int64)
        self._prices = np.full(shape, NEVER)
        for row, (vectors, prices) in enumerate(offers):
            self._vectors[row, : len(prices)] = vectors
            self._prices[row, : len(prices)] = prices
        width = max(map(len, nodes), default=0)
        self._no_gpu = len(cuts)
        padded = [(*node, *[self._no_gpu] * (width - len(node))) for node in nodes]
        self._nodes = np.array(padded, np.int64).reshape(len(nodes), width)
        self._free = self._vectors[self._nodes, 0].sum(axis=1)
        self._most = self._vectors.max(axis=1)[self._nodes].sum(axis=1)
        self._weights = np.array([_slices(name, present) for name in profiles], np.int64)

    def prices(self, nodes: Ints, demand: Vector) -> Ints:
        """[node] the least price at which each of `nodes` covers `demand`; `NEVER` if it cannot."""
        asked = np.flatnonzero(demand)
        wanted = np.array(demand, np.int64)[asked]
        prices = np.full(len(nodes), NEVER)
        possible = np.flatnonzero((self._most[np.ix_(nodes, asked)] >= wanted).all(axis=1))
        prices[possible] = self._one_changed(nodes[possible], asked, wanted)
        prices[(self._free[np.ix_(nodes, asked)] >= wanted).all(axis=1)] = 0
        open_rows = possible[prices[possible] >= NEVER]
        if not len(open_rows):
            return prices
        cells = self._table_cells(nodes[open_rows], wanted)
        if cells > (TABLE_CELLS if self._cells < ALL_CELLS else LATE_TABLE_CELLS):
            self.exact = False
            for row in open_rows:
                found = self._one_by_one(int(nodes[row]), demand)
                prices[row] = NEVER if found is None else self._price(int(nodes[row]), found)
            return prices
        together = max(1, TABLE_CELLS // cells)
        for first in range(0, len(open_rows), together):
            rows = open_rows[first : first + together]
            self._cells += cells * len(rows)
            tables = self._tables(nodes[rows], asked, wanted)
            prices[rows] = np.minimum(tables.prices[0][:, -1], NEVER)
        return prices

    def choice(self, node: int, demand: Vector) -> list[Vector | None]:
        """The offer of each GPU of `node` in the cheapest cover of `demand`; None: the GPU stays as it is.

        Of equally cheap covers it returns one that changes the lowest GPUs. `prices` must have found a cover.
        """
        asked = np.flatnonzero(demand)
        wanted = np.array(demand, np.int64)[asked]
        if self._table_cells(np.array([node]), wanted) > TABLE_CELLS:
            found = self._one_by_one(node, demand)
        else:
            found = self._walk(node, asked, wanted)
        invariant(found is not None, f"no cover of {demand} on node {node}, though it had a price")
        return [
            tuple(self._vectors[kind, offer].tolist()) if offer else None
            for kind, offer in zip(self._nodes[node].tolist(), found or (), strict=True)
            if kind != self._no_gpu
        ]

    def least_changed(self, nodes: Sequence[int], demand: Vector) -> int:
        """A lower bound on the GPUs of `nodes` that must change to cover `demand`, from each profile alone."""
        gpus = self._nodes[np.array(nodes, np.int64)].ravel()
        free = self._vectors[gpus, 0]
        gains = -np.sort(free - self._vectors[gpus].max(axis=1), axis=0)
        missing = np.array(demand) - free.sum(axis=0)
        changes = (np.cumsum(gains, axis=0) < missing).sum(axis=0) + (missing > 0)
        return int(changes.max(initial=0))

    def _one_changed(self, nodes: Ints, asked: Ints, wanted: Ints) -> Ints:
        """[node] the least price of covering `wanted` by changing one GPU; `NEVER` if that is impossible."""
        kinds = self._nodes[nodes]
        offered = self._vectors[kinds][:, :, :, asked]
        rest = self._free[np.ix_(nodes, asked)][:, None, None] - offered[:, :, :1]
        prices = np.where((offered + rest >= wanted).all(axis=3), self._prices[kinds], NEVER)
        least: Ints = prices.min(axis=(1, 2), initial=NEVER)
        return least

    def _price(self, node: int, offers: Sequence[int]) -> int:
        return int(self._prices[self._nodes[node], offers].sum())

    def _table_cells(self, nodes: Ints, wanted: Ints) -> int:
        """The number of cells in the tables of one of `nodes`: GPUs x offers x demands up to `wanted`."""
        kinds = self._nodes[nodes]
        demands = math.prod(int(count) + 1 for count in wanted)
        return demands * len(kinds[0]) * int(self._sizes[kinds].max())

    def _tables(self, nodes: Ints, asked: Ints, wanted: Ints) -> _Tables:
        """The prices of every demand up to `wanted` of the profiles `asked`, from the last GPU to the first."""
        kinds, kind_of = np.unique(self._nodes[nodes], return_inverse=True)
        kind_of = kind_of.reshape(len(nodes), -1)
        size = int(self._sizes[kinds].max())
        offered = np.minimum(self._vectors[kinds, :size][:, :, asked], wanted)
        demands = np.indices(tuple(wanted + 1)).reshape(len(asked), -1).T
        offers = _best_first(offered, self._prices[kinds, :size])
        offered = np.take_along_axis(offered, offers[:, :, None], axis=1)
        prices = np.take_along_axis(self._prices[kinds], offers, axis=1)[:, :, None]
        strides = np.append(np.cumprod((wanted + 1)[:0:-1])[::-1], 1)
        left = np.maximum(demands - offered[:, :, None], 0) @ strides
        table = np.full((len(nodes), len(demands)), NEVER)
        table[:, 0] = 0
        tables = [table]
        rows = np.arange(len(nodes))[:, None, None]
        for gpu in reversed(range(kind_of.shape[1])):
            kind = kind_of[:, gpu]
            table = (table[rows, left[kind]] + prices[kind]).min(axis=1)
            tables.append(table)
        return _Tables(tables[::-1], offers, left, kind_of)

    def _walk(self, node: int, asked: Ints, wanted: Ints) -> list[int]:
        """The offer of each GPU in the cheapest cover, read from the tables."""
        tables = self._tables(np.array([node]), asked, wanted)
        chosen, demand = [], -1
        for gpu, kind in enumerate(tables.kind_of[0].tolist()):
            offers, left = tables.offers[kind], tables.left[kind, :, demand]
            totals = self._prices[self._nodes[node, gpu], offers] + tables.prices[gpu + 1][0, left]
            cheapest = np.flatnonzero(totals == totals.min())
            changes = cheapest[offers[cheapest] > 0]
            # where a change is as cheap as none, it is made here: the lowest GPUs change
            row = int(changes[0] if len(changes) else cheapest[0])
            chosen.append(int(offers[row]))
            demand = int(left[row])
        return chosen

    def _one_by_one(self, node: int, demand: Vector) -> list[int] | None:
        """The offer of each GPU. Each greedy step changes the GPU that leaves the fewest memory slices to cover."""
        kinds = self._nodes[node]
        offers = [0] * len(kinds)
        left = np.array(demand, np.int64) - self._free[node]
        while (left > 0).any():
            after = left + self._vectors[kinds, :1] - self._vectors[kinds]
            missing = np.maximum(after, 0) @ self._weights
            missing[np.array(offers) > 0] = NEVER
            least = missing == missing.min()
            gpu, offer = divmod(int(np.where(least, self._prices[kinds], NEVER).argmin()), missing.shape[1])
            if missing[gpu, offer] >= np.maximum(left, 0) @ self._weights:
                return None
            offers[gpu], left = offer, after[gpu, offer]
        return offers


def _slices(name: str, models: Iterable[str | GpuModel]) -> int:
    """Memory slices of a profile, the most of any of `models`; 0 where none has it."""
    sizes = [
        profile.memory_slices for model in models for profile in mig.gpu_model(model).profiles if profile.name == name
    ]
    return max(sizes, default=0)
