"""The most of a demand that fits into free capacity: an exact search, for `benchmarks/fragmentation.py`.

Nodes with the same number of free GPUs are one class, and so are GPUs with the same free part. Each class is divided
by cutting patterns (Gilmore and Gomory 1961): a pattern is how many members of each size one node or GPU takes, and
what it leaves. An integer program (HiGHS) chooses the patterns and the gangs; its relaxation is nearly always integral.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from autopilot.core.fragmentation.demand import UNITS, Kind
from autopilot.core.model.errors import invariant
from autopilot.core.model.snapshot import Topology

Class = tuple[int, int]
"""GPU model and free GPUs of a node, or free units of a GPU."""


@dataclass(frozen=True, slots=True)
class Free:
    """Free capacity: nodes by model and free GPUs, GPUs by model and free units, idle instances by model and profile.

    `cut` is True where MIG requests take parts of GPUs, False where they take existing instances.
    """

    nodes: Mapping[Class, int]
    parts: Mapping[Class, int]
    idle: Mapping[Class, int]
    cut: bool


def joined(free_units: Mapping[int, int], node_gpus: Mapping[int, int]) -> Free:
    """The free units of each GPU model joined in whole nodes."""
    nodes: Counter[Class] = Counter()
    parts: Counter[Class] = Counter()
    for model, units in free_units.items():
        whole, size = units // UNITS, node_gpus[model]
        nodes[model, size] += whole // size
        nodes[model, whole % size] += 1
        parts[model, units % UNITS] += 1
    return Free(_some(nodes), _some(parts), {}, cut=True)


def _some(counts: Counter[Class]) -> dict[Class, int]:
    return {key: number for key, number in sorted(counts.items()) if number and key[1]}


@lru_cache(maxsize=4096)
def _patterns(free: int, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Every way to cut `free` into members of these sizes (rising), as counts by size."""
    if not sizes:
        return ((),)
    found = []
    for count in range(free // sizes[-1] + 1):
        found += [(*rest, count) for rest in _patterns(free - count * sizes[-1], sizes[:-1])]
    return tuple(found)


@lru_cache(maxsize=4096)
def _full_patterns(free: int, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Those that leave no room for one more of the smallest size."""
    return tuple(
        each
        for each in _patterns(free, sizes)
        if free - sum(size * count for size, count in zip(sizes, each, strict=True)) < sizes[0]
    )


class _Program:
    """An integer program that grows by columns and rows."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.upper: list[float] = []
        self.rows: list[tuple[dict[int, float], float, float]] = []

    def column(self, cost: float = 0.0, upper: float = np.inf) -> int:
        self.cost.append(cost)
        self.upper.append(upper)
        return len(self.cost) - 1

    def row(self, entries: Mapping[int, float], low: float, high: float) -> None:
        self.rows.append((dict(entries), low, high))

    def best(self) -> float:
        at = [
            (row, column, value) for row, (entries, _, _) in enumerate(self.rows) for column, value in entries.items()
        ]
        rows, columns, values = zip(*at, strict=True)
        matrix = csr_array((values, (rows, columns)), shape=(len(self.rows), len(self.cost)))
        found = milp(
            np.array(self.cost),
            constraints=LinearConstraint(matrix, [low for _, low, _ in self.rows], [high for *_, high in self.rows]),
            integrality=np.ones(len(self.cost), np.int8),
            bounds=Bounds(0, np.array(self.upper)),
        )
        invariant(found.fun is not None, f"exact search: {found.message}")
        return -float(found.fun or 0.0)


def most_gpus(free: Free, kinds: Sequence[Kind], count: Sequence[int]) -> float:
    """The most GPUs of `count` gangs of each kind that fit. Gangs that need a domain of the network are not covered."""
    invariant(all(kind.topology == Topology.NONE for kind in kinds), "exact search: no topology")
    program = _Program()
    gangs = [program.column(-kind.gpus, number) for kind, number in zip(kinds, count, strict=True)]
    models = sorted({model for model, _ in (*free.nodes, *free.parts, *free.idle)})
    whole = tuple(sorted({kind.size for kind in kinds if not kind.units}))
    shares = tuple(sorted({kind.units for kind in kinds if kind.units and (kind.profile < 0 or free.cut)}))
    supply: dict[tuple[str, int, int], dict[int, float]] = {}  # (sort, model, size) -> columns that offer members
    for model in models:
        opened: dict[int, float] = {}
        for (_, gpus), number in ((key, number) for key, number in free.nodes.items() if key[0] == model):
            choice = {}
            for pattern in _patterns(gpus, whole):
                column = program.column()
                choice[column] = 1.0
                left = gpus - sum(size * each for size, each in zip(whole, pattern, strict=True))
                opened[column] = float(left)
                for size, each in zip(whole, pattern, strict=True):
                    supply.setdefault(("gpus", model, size), {})[column] = float(each)
            program.row(choice, 0, number)
        if shares:
            _divide(program, free, model, shares, opened, supply)
    for (model, profile), number in free.idle.items():
        column = program.column(0.0, number)
        supply.setdefault(("instances", model, profile), {})[column] = 1.0
    _place(program, kinds, gangs, models, supply, cut=free.cut)
    return program.best()


def _divide(
    program: _Program,
    free: Free,
    model: int,
    shares: tuple[int, ...],
    opened: Mapping[int, float],
    supply: dict[tuple[str, int, int], dict[int, float]],
) -> None:
    """Columns that divide GPUs of a model into shares: those in part in use, and those that nodes leave whole."""
    sources = [(units, number) for (each, units), number in free.parts.items() if each == model]
    for units, number in [*sources, (UNITS, None)]:
        choice = {}
        for pattern in _full_patterns(units, shares):
            column = program.column()
            choice[column] = 1.0
            for size, each in zip(shares, pattern, strict=True):
                supply.setdefault(("units", model, size), {})[column] = float(each)
        if number is not None:
            program.row(choice, 0, number)
        else:
            program.row({**choice, **{column: -left for column, left in opened.items()}}, -np.inf, 0)


def _place(
    program: _Program,
    kinds: Sequence[Kind],
    gangs: Sequence[int],
    models: Sequence[int],
    supply: Mapping[tuple[str, int, int], Mapping[int, float]],
    *,
    cut: bool,
) -> None:
    """Rows: the members of each kind are on models that it may use, and no more than are offered."""
    used: dict[tuple[str, int, int], dict[int, float]] = {}
    for kind, gang in zip(kinds, gangs, strict=True):
        members = {}
        for model in models:
            if kind.profile >= 0 and not cut:
                key = ("instances", model, kind.profile)
            else:
                key = ("units", model, kind.units) if kind.units else ("gpus", model, kind.size)
            if key in supply and (not kind.models or kind.models >> model & 1):
                column = program.column()
                members[column] = 1.0
                used.setdefault(key, {})[column] = 1.0
        program.row({**members, gang: -float(kind.members)}, 0, 0)
    for key, columns in used.items():
        offered = supply[key]
        program.row({**columns, **{column: -each for column, each in offered.items()}}, -np.inf, 0)
