"""The exact optimum of a case of the search for victims, by mixed integer programming (HiGHS in scipy)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from autopilot.core.preemption.search import Search
from autopilot.core.rules.base import Target
from benchmarks.victim_cases import Case, Limits


@dataclass(frozen=True, slots=True)
class Choice:
    """One level of what a gang can free."""

    target: Target
    rank: int
    cost: float
    frees: tuple[tuple[int, int], ...]  # GPUs by node


def choices(case: Case) -> list[Choice]:
    """Every level of every gang; a case takes at most one per gang."""
    found: list[Choice] = []
    parts: dict[int, tuple[float, float]] = {}
    for offer in case.offers:
        target, cost = offer.target, offer.price_gpu_s + offer.target.gpus
        if not target.whole:
            gpus, before = parts.get(target.row, (0.0, 0.0))
            target, cost = Target(target.row, gpus + target.gpus, whole=False), before + cost
            parts[target.row] = (target.gpus, cost)
        found.append(Choice(target, offer.rank, cost, case.search.freed(target)))
    return found


class Exact:
    """The case as a mixed integer program: a 0/1 variable for each choice, members and tails for each node."""

    def __init__(self, case: Case) -> None:
        self.choices = choices(case)
        self.nodes = len(case.search.room)
        self.rows: list[dict[int, float]] = []
        self.least: list[float] = []
        self.most: list[float] = []
        self.count = len(self.choices)
        self._place(case.search)
        self._limit(case.limits)

    def _row(self, terms: dict[int, float], least: float, most: float) -> None:
        self.rows.append(terms)
        self.least.append(least)
        self.most.append(most)

    def _variable(self) -> int:
        self.count += 1
        return self.count - 1

    def _of(self, rows: Sequence[int]) -> list[int]:
        return [at for at, choice in enumerate(self.choices) if choice.target.row in rows]

    def _place(self, search: Search) -> None:
        """Each gang at one level, and room for all members and the tail."""
        for row in sorted({choice.target.row for choice in self.choices}):
            self._row(dict.fromkeys(self._of([row]), 1.0), 0, 1)
        members, tail = divmod(search.need_gpus, search.member_gpus)
        hosts, tails = (
            [self._variable() for _ in range(self.nodes)],
            [self._variable() for _ in range(self.nodes)],
        )
        for node, room in enumerate(search.room.tolist()):
            terms = {hosts[node]: float(search.member_gpus), tails[node]: float(tail)}
            for at, choice in enumerate(self.choices):
                freed = dict(choice.frees).get(node, 0)
                if freed:
                    terms[at] = -float(freed)
            self._row(terms, -np.inf, room)
        self._row(dict.fromkeys(hosts, 1.0), members, np.inf)
        self._row(dict.fromkeys(tails, 1.0), float(tail > 0), np.inf)
        self.hosts = hosts

    def _limit(self, limits: Limits) -> None:
        """The quota constraints."""
        gpus = [choice.target.gpus for choice in self.choices]
        for rows, spare in limits.spare:
            mine = self._of(rows)
            if spare <= 0:
                self._row(dict.fromkeys(mine, 1.0), 0, 0)
                continue
            largest = {at: self._variable() for at in mine}  # which of them has the largest step
            self._row(dict.fromkeys(largest.values(), 1.0), 0, 1)
            for at, each in largest.items():
                self._row({each: 1.0, at: -1.0}, -np.inf, 0)
            terms = {at: gpus[at] for at in mine}
            terms |= {each: -_largest_step(self.choices[at].target, limits) for at, each in largest.items()}
            self._row(terms, -np.inf, spare - 1e-4)
        for outside, inside, owed in limits.owed:
            for at in self._of(outside) if owed > 0 else ():
                self._row({each: gpus[each] for each in self._of(inside)} | {at: -owed}, -1e-6, np.inf)
        if limits.least_gpus > 0:
            self._row(dict(enumerate(gpus)), limits.least_gpus - 1e-6, np.inf)

    def least_of(self, weights: Sequence[float]) -> tuple[float, list[int]] | None:
        """The least weighted sum of choices, and the choices; None without a solution."""
        entries = [(row, at, value) for row, terms in enumerate(self.rows) for at, value in terms.items()]
        row, at, value = zip(*entries, strict=True)
        matrix = csr_array((value, (row, at)), shape=(len(self.rows), self.count))
        upper = np.ones(self.count)
        upper[self.hosts] = np.inf
        target = np.zeros(self.count)
        target[: len(weights)] = weights
        found = milp(
            target,
            integrality=np.ones(self.count, np.int8),
            bounds=Bounds(0, upper),
            options={"mip_rel_gap": 0},
            constraints=LinearConstraint(matrix, self.least, self.most),
        )
        if found.x is None:
            return None
        taken = [at for at in range(len(self.choices)) if found.x[at] > 0.5]
        return sum(weights[at] for at in taken), taken

    def cap(self, weights: Sequence[float], most: float) -> None:
        """Bound a weighted sum from now on."""
        self._row({at: weight for at, weight in enumerate(weights) if weight}, -np.inf, most)

    def ranks(self) -> list[int]:
        """All ranks, the highest first."""
        return sorted({choice.rank for choice in self.choices}, reverse=True)

    def costs(self, rank: int) -> list[float]:
        """The cost of the choices in one rank."""
        return [choice.cost if choice.rank == rank else 0.0 for choice in self.choices]


def _largest_step(target: Target, limits: Limits) -> float:
    """GPUs of the largest step in which a target leaves."""
    member, rest = limits.steps.get(target.row, (target.gpus, target.gpus))
    return max(member, rest) if target.whole else member
