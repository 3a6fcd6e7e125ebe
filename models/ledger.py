"""Promises about running jobs, and when each is settled.

A promise at a level is settled when its time is up: broken if the job still runs then, kept if it has ended before.
models/intervals.py says why a kept one is not settled at the end of its job.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from autopilot.core.snapshot import F64
from models.intervals import PROMISED, Intervals


@dataclass(frozen=True, slots=True)
class Kept:
    """A promise that was kept, `early_s` before its time was up."""

    early_s: float
    layer: Intervals
    number: int
    group: int
    score: float
    margin: float

    def settle(self) -> None:
        """Hand it over."""
        self.layer.note(self.number, self.group, self.score, self.margin)


@dataclass(slots=True)
class Promise:
    """Quantiles of the log of the time from `base_s` of running on, and the margins that were added."""

    layer: Intervals
    base_s: float
    raw: F64
    margin: F64
    group: int
    open: list[int] = field(default_factory=list)  # levels not settled yet, by the time at which they break
    broken: list[tuple[int, int]] = field(default_factory=list)  # level and ticket

    def bound_s(self, number: int) -> float:
        """Run time beyond which the promise of a level is broken."""
        return float(self.base_s + np.exp(self.raw[number] + self.margin[number]))

    def outlive(self, ran_s: float) -> float:
        """Break what a job outlived that has run `ran_s`; the run time at which the next level breaks (inf: none)."""
        while self.open and ran_s > self.bound_s(self.open[0]):
            number = self.open.pop(0)
            least = float(np.nextafter(self.margin[number], np.inf))
            self.broken.append(
                (number, self.layer.note(number, self.group, least, float(self.margin[number])))
            )
        return self.bound_s(self.open[0]) if self.open else float("inf")

    def end(self, ran_s: float) -> list[Kept]:
        """The job has ended: put the scores of broken levels right; what was kept is to be settled in its time."""
        self.outlive(ran_s)
        log_s = float(np.log(max(ran_s - self.base_s, 1.0)))
        for number, ticket in self.broken:
            self.layer.revise(
                number, self.group, ticket, max(log_s - float(self.raw[number]), float(self.margin[number]))
            )
        margins = self.margin.tolist()
        return [
            Kept(self.bound_s(number) - ran_s, self.layer, number, self.group,
                 min(log_s - float(self.raw[number]), margins[number]), margins[number])
            for number in self.open
        ]  # fmt: skip


def promise(layer: Intervals, base_s: float, raw: F64, margin: F64, group: int) -> Promise:
    """A promise with all its levels open; `raw` and `margin` are [levels]."""
    made = Promise(layer, base_s, raw, margin, group, list(PROMISED))
    made.open.sort(key=made.bound_s)
    return made


class Ledger:
    """All promises that are not settled yet, by job."""

    def __init__(self) -> None:
        self._promises: dict[str, list[Promise]] = {}
        self._next_s: dict[str, float] = {}  # run time at which the first open promise of a job breaks
        self._kept: list[tuple[float, int, Kept]] = []  # by the time at which they are up
        self._turn = 0

    def __len__(self) -> int:
        return len(self._promises)

    def add(self, name: str, made: Promise) -> None:
        """Note what was promised of a job."""
        self._promises.setdefault(name, []).append(made)
        self._next_s[name] = min(self._next_s.get(name, np.inf), made.bound_s(made.open[0]))

    def outlived(self, names: Sequence[str], ran_s: F64) -> None:
        """Break what jobs have outlived that have run `ran_s` [names] so far."""
        for name, spent_s in zip(names, ran_s.tolist(), strict=True):
            if spent_s > self._next_s.get(name, np.inf):
                self._next_s[name] = min(made.outlive(spent_s) for made in self._promises[name])

    def ended(self, name: str, ran_s: float, now_s: float) -> None:
        """A job ended after `ran_s`: what is still open was kept, or broken since the last look."""
        for made in self._promises.get(name, ()):
            for kept in made.end(ran_s):
                self._turn += 1
                heapq.heappush(self._kept, (now_s + kept.early_s, self._turn, kept))
        self.forget(name)

    def settle(self, now_s: float) -> None:
        """Settle the kept promises whose time is up."""
        while self._kept and self._kept[0][0] <= now_s:
            heapq.heappop(self._kept)[2].settle()

    def forget(self, name: str) -> None:
        """Drop what was promised of a job: nothing will come of it."""
        self._promises.pop(name, None)
        self._next_s.pop(name, None)
