"""Jobs that were submitted near each other inform each other: the outcomes of some correct the forecasts of the others.

Adjacent submissions of one tenant and width are far more similar than its last ended jobs, and most of them end, or
exceed their forecast, after the others were submitted. The distribution of a job's log run time, on a grid, is
therefore a Bayesian survival curve under right censoring (beta-Stacy process: Walker and Muliere 1997; the discrete
form of Susarla and Van Ryzin 1976): the hazard in a cell is (prior mass + siblings that ended in it) / (prior mass from
it on + siblings that reached it). A sibling that still runs counts as having reached its current cell, and no further.

The prior is a mixture of the forecast at submission and the product-limit estimate (Kaplan and Meier 1958) of the last
jobs of all, including running ones; outcomes determine the weights of the two (online expectation maximisation; Cappe
and Moulines 2009).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
from scipy.special import ndtr, ndtri

from autopilot.core.model.forecast import LEVELS
from autopilot.core.model.snapshot import F64, Bools

STEP = 0.2
"""Width of a cell of the grid in logs: run times within a fifth count as the same."""

EDGES = np.arange(0.0, 16.0 + STEP / 2.0, STEP)
"""Edges of the cells, log seconds: from a second to a hundred days."""

SAME_WIDTH = 0.35
"""Spread of similar jobs around each other in logs, as in models/opinions.py."""

ALIKE_S = 600.0
"""Distance in submit time at which a sibling counts half; the weight falls as one over the distance, so that no single
time scale decides.
"""

PRIOR_JOBS = 0.5
"""Number of siblings submitted at the same moment that weigh as much as the prior."""

MOST_SIBLINGS = 64
"""Number of submissions before and after a job that may contribute."""

USUAL_JOBS = 1000
"""Number of ended jobs in the product-limit estimate of all."""

MOST_KINS = 20_000
"""Kinds of jobs kept at once; beyond that those without waiting or running jobs are dropped."""

LEARN_RATE = 0.02
"""Memory of the weights in the prior: the last fifty jobs."""

LEAST_SHARE = 0.02
"""Minimum weight of each part of the prior."""

FIRST_LOG_S, FIRST_SPREAD = 8.0, 2.5
"""A run time assumed before any was observed, with the weight of one job: some minutes to some hours."""

NOTHING = np.zeros(len(EDGES))

LEAST_SLOPE = 0.05
"""Minimum spread of a forecast's tails, logs for one standard deviation: a forecast without any is not certain."""


def cell_mass(total_s: F64) -> F64:
    """Probability of each cell under quantiles at LEVELS, read as a piecewise log-normal. [jobs, cells].

    As in core/model/forecast.py: linear in the normal quantile between levels, the tails as steep as from the middle.
    """
    normal = ndtri(np.asarray(LEVELS))
    log_s = np.maximum.accumulate(np.log(np.maximum(total_s, 1.0)) + 1e-6 * np.arange(len(LEVELS)), axis=1)
    middle = len(normal) // 2
    low = np.maximum((log_s[:, middle] - log_s[:, 0]) / (normal[middle] - normal[0]), LEAST_SLOPE)
    high = np.maximum((log_s[:, -1] - log_s[:, middle]) / (normal[-1] - normal[middle]), LEAST_SLOPE)
    below = normal[0] + (EDGES - log_s[:, :1]) / low[:, None]
    above = normal[-1] + (EDGES - log_s[:, -1:]) / high[:, None]
    inside = np.stack([np.interp(EDGES, row, normal) for row in log_s])
    reach = np.where(log_s[:, :1] > EDGES, below, np.where(log_s[:, -1:] < EDGES, above, inside))
    done = ndtr(reach)
    done[:, 0], done[:, -1] = 0.0, 1.0
    return np.diff(done, axis=1)


def cells_of(log_s: F64) -> np.ndarray:
    """Cell that each log run time lies in. Shape of `log_s`."""
    return np.clip((log_s / STEP).astype(np.int64), 0, len(EDGES) - 2)


def usual_mass(ended_log_s: F64, running_s: F64) -> F64:
    """Product-limit estimate over ended jobs and those that have run `running_s` so far. Shape [cells].

    One job of a first guess is added. A job that still runs is taken to be half-way through the risk of its cell.
    """
    cells = len(EDGES) - 1
    died = np.diff(ndtr((EDGES - FIRST_LOG_S) / FIRST_SPREAD))
    risk = np.cumsum(died[::-1])[::-1].copy()
    ended = np.bincount(cells_of(ended_log_s), minlength=cells)
    alive = np.bincount(cells_of(np.log(np.maximum(running_s, 1.0))), minlength=cells)
    died = died + ended
    risk += np.cumsum((ended + alive)[::-1])[::-1] - 0.5 * alive
    return np.asarray(-np.diff(np.append(outlived(died / np.maximum(risk, 1e-9)), 0.0)))


def outlived(hazard: F64) -> F64:
    """Probability to outlive each lower edge, given the hazard of each cell. Shape of `hazard`; 1 in the first."""
    survival = np.cumprod(1.0 - np.clip(hazard, 0.0, 1.0), axis=-1)
    return np.concatenate([np.ones_like(survival[..., :1]), survival[..., :-1]], axis=-1)


@dataclass(slots=True)
class Kin:
    """Jobs of one kind in order of their submission; log of the time run is -1 for those that have not started."""

    submit_s: list[float] = field(default_factory=list)
    log_s: list[float] = field(default_factory=list)
    # for an ended job, the fraction of similar jobs done by each edge; for others nothing
    spread: list[F64] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)
    first: int = 0  # number of the oldest that is kept
    live: dict[Hashable, int] = field(default_factory=dict)  # jobs that have not ended -> number
    heard: set[int] = field(default_factory=set)  # numbers of those that ended or continued since the last renewal
    added: set[int] = field(default_factory=set)  # and of those that were submitted

    def stale(self) -> list[Hashable]:
        """Jobs with new information: new themselves, or near one with an update."""
        numbers, heard = np.array(list(self.live.values()), np.int64), np.array(sorted(self.heard), np.int64)
        near = np.searchsorted(heard, numbers - MOST_SIBLINGS) < np.searchsorted(
            heard, numbers + MOST_SIBLINGS, side="right"
        )
        return [
            name
            for name, is_near in zip(self.live, near.tolist(), strict=True)
            if is_near or self.live[name] in self.added
        ]

    def forget(self) -> None:
        """Drop jobs that no other job can use any more."""
        least = min(self.live.values(), default=self.first + len(self.log_s)) - MOST_SIBLINGS
        if least - self.first > MOST_SIBLINGS:
            gone = least - self.first
            del self.submit_s[:gone], self.log_s[:gone], self.ended[:gone], self.spread[:gone]
            self.first = least


class Siblings:
    """The distribution of each job that has not ended, as its siblings end or continue."""

    def __init__(self) -> None:
        self._kins: dict[Hashable, Kin] = {}
        self._key: dict[Hashable, Hashable] = {}
        self._parts: dict[
            Hashable, F64 | None
        ] = {}  # cells of the forecast, and of the usual run times; None: nothing was known
        self._prior: dict[Hashable, F64] = {}
        self._share = np.full(2, 0.5)
        self._ended_log_s: list[float] = []
        self._running_s = np.zeros(0)
        self._stale: set[Hashable] = set()

    def add(self, name: Hashable, key: Hashable, submit_s: float) -> None:
        """A job was submitted, after all those of its `key` that were added before."""
        if key not in self._kins and len(self._kins) >= MOST_KINS:
            self._kins = {other: kin for other, kin in self._kins.items() if kin.live}
            self._stale &= set(self._kins)
        kin = self._kins.setdefault(key, Kin())
        kin.live[name] = kin.first + len(kin.log_s)
        kin.added.add(kin.live[name])
        kin.submit_s.append(submit_s)
        kin.log_s.append(-1.0)
        kin.ended.append(False)
        kin.spread.append(NOTHING)
        self._key[name], self._parts[name] = key, None
        self._stale.add(key)

    def foresee(self, names: Sequence[Hashable], total_s: F64) -> None:
        """Forecasts of jobs at their submission: quantiles at LEVELS [names, levels], none of them NaN."""
        usual = usual_mass(np.array(self._ended_log_s[-USUAL_JOBS:]), self._running_s)
        for name, own in zip(names, cell_mass(total_s), strict=True):
            self._parts[name] = np.stack([own, usual])
            self._prior[name] = self._share @ np.stack([own, usual])

    def ran(self, names: Sequence[Hashable], ran_s: F64, of_all_s: F64 | None = None) -> None:
        """How long the running jobs have run by now; `of_all_s` where `names` are only a part of them."""
        self._running_s = ran_s if of_all_s is None else of_all_s
        for name, log_s in zip(names, np.log(np.maximum(ran_s, 1.0)).tolist(), strict=True):
            key = self._key.get(name)
            if key is not None:
                kin = self._kins[key]
                number = kin.live[name] - kin.first
                if log_s > kin.log_s[number] + STEP:
                    kin.log_s[number] = log_s
                    kin.heard.add(kin.live[name])
                    self._stale.add(key)

    def end(self, name: Hashable, log_s: float | None) -> None:
        """A job ended; None: without an outcome."""
        key, parts = self._key.pop(name), self._parts.pop(name)
        kin = self._kins[key]
        number = kin.live.pop(name) - kin.first
        kin.heard.add(kin.first + number)
        self._prior.pop(name, None)
        if log_s is None:
            kin.log_s[number] = -1.0
            return
        kin.log_s[number], kin.ended[number] = log_s, True
        kin.spread[number] = ndtr((EDGES - log_s) / SAME_WIDTH)
        if not self._ended_log_s:  # no forecast before
            self._stale.update(self._kins)
            for other in self._kins.values():
                other.added.update(other.live.values())
        self._ended_log_s.append(log_s)
        if len(self._ended_log_s) > 2 * USUAL_JOBS:
            del self._ended_log_s[:USUAL_JOBS]
        if parts is not None:
            right = self._share * (parts[:, int(cells_of(np.array(log_s)))] + 1e-6)
            share = np.maximum((1.0 - LEARN_RATE) * self._share + LEARN_RATE * right / right.sum(), LEAST_SHARE)
            self._share = share / share.sum()
        self._stale.add(key)

    def beside(self, name: Hashable) -> list[Hashable]:
        """The jobs of the same key that have not ended, itself included, in order of submission."""
        return list(self._kins[self._key[name]].live)

    def said(self, names: Sequence[Hashable]) -> dict[Hashable, F64]:
        """The result of `renewed` for some jobs, whether or not they have new information."""
        answer: dict[Hashable, F64] = {}
        if self._ended_log_s:
            for name in names:
                kin = self._kins[self._key[name]]
                kin.forget()
                answer.update(self._renew(kin, [name]))
        return answer

    def beside_news(self) -> list[Hashable]:
        """The jobs that have not ended of every key with new information, at any distance from it."""
        return (
            [name for key in sorted(self._stale, key=repr) for name in self._kins[key].live]
            if self._ended_log_s
            else []
        )

    def renewed(self) -> dict[Hashable, F64]:
        """Log quantiles at LEVELS of the total run time of the jobs with new information.

        For a running job they are conditional on its run time so far.
        """
        answer: dict[Hashable, F64] = {}
        if not self._ended_log_s:
            return answer
        for key in sorted(self._stale, key=repr):
            kin = self._kins[key]
            kin.forget()
            names = kin.stale()
            if names:
                answer.update(self._renew(kin, names))
            kin.heard.clear()
            kin.added.clear()
        self._stale.clear()
        return answer

    def _renew(self, kin: Kin, names: Sequence[Hashable]) -> dict[Hashable, F64]:
        usual: F64 | None = None
        for name in names:
            if name not in self._prior:  # submitted before anything was known
                if usual is None:
                    usual = usual_mass(np.array(self._ended_log_s[-USUAL_JOBS:]), self._running_s)
                self._prior[name] = usual
        answer: dict[Hashable, F64] = {}
        for near in _neighbourhoods(kin, names):
            answer.update(self._renew_near(kin, near))
        return answer

    def _renew_near(self, kin: Kin, names: Sequence[Hashable]) -> dict[Hashable, F64]:
        place = np.array([kin.live[name] - kin.first for name in names])
        from_place, to_place = max(int(place.min()) - MOST_SIBLINGS, 0), int(place.max()) + MOST_SIBLINGS + 1
        beside = slice(from_place, to_place)
        place -= from_place
        log_s, ended, spreads = np.array(kin.log_s[beside]), np.array(kin.ended[beside]), kin.spread[beside]
        seen = np.flatnonzero(log_s >= 0.0)
        prior = np.stack([self._prior[name] for name in names])
        spread = np.stack([spreads[number] for number in seen.tolist()]) if len(seen) else np.empty((0, len(EDGES)))
        done = _posterior(
            prior, _weights(np.array(kin.submit_s[beside]), place, seen), log_s[seen], ended[seen], spread
        )
        return dict(zip(names, quantiles_given(done, log_s[place]), strict=True))


def _neighbourhoods(kin: Kin, names: Sequence[Hashable]) -> list[list[Hashable]]:
    """The jobs in groups that were submitted near each other, so that few siblings are looked at for each group."""
    groups: list[list[Hashable]] = []
    first = -inf
    for name in sorted(names, key=kin.live.__getitem__):
        if kin.live[name] - first >= MOST_SIBLINGS:
            groups.append([])
            first = kin.live[name]
        groups[-1].append(name)
    return groups


def _weights(submit_s: F64, place: np.ndarray, seen: np.ndarray) -> F64:
    """The weights of the siblings at `seen` for the jobs at `place`. Shape [place, seen]."""
    apart_s = np.abs(submit_s[place][:, None] - submit_s[seen][None, :])
    apart = np.abs(place[:, None] - seen[None, :])
    return np.where((apart > 0) & (apart <= MOST_SIBLINGS), 1.0 / (1.0 + apart_s / ALIKE_S), 0.0)


def _posterior(prior: F64, weight: F64, log_s: F64, ended: Bools, spread: F64) -> F64:
    """Probability to be done by each edge of the grid. [jobs, edges], from 0 to 1.

    `spread` [siblings, edges]: for ended ones, the fraction of similar jobs done by each edge.
    """
    # a running sibling is no evidence for cells that it has not reached: with a smooth edge, twenty that run together
    # would suppress each other's usual end a little further on
    exposed = np.clip((log_s[:, None] - EDGES[:-1]) / STEP, 0.0, 1.0)
    died = PRIOR_JOBS * prior + weight @ np.where(ended[:, None], np.diff(spread, axis=1), 0.0)
    reached = PRIOR_JOBS * np.cumsum(prior[:, ::-1], axis=1)[:, ::-1]
    reached = reached + weight @ np.where(ended[:, None], 1.0 - spread[:, :-1], exposed)
    survival = outlived(died / np.maximum(reached, 1e-12))
    return np.append(1.0 - survival, np.ones((len(prior), 1)), axis=1)


def quantiles_given(done: F64, ran_log_s: F64) -> F64:
    """Log quantiles at LEVELS, given that a job has run for exp(`ran_log_s`) (-1: not at all). [jobs, levels]."""
    answer = np.empty((len(done), len(LEVELS)))
    levels, rising = np.asarray(LEVELS), 1e-9 * np.arange(len(EDGES))
    for number, (row, ran) in enumerate(zip(done + rising, ran_log_s.tolist(), strict=True)):
        before = float(np.interp(ran, EDGES, row)) if ran > 0.0 else 0.0
        answer[number] = np.interp(before + (1.0 - before) * levels, row, EDGES)
    return answer
