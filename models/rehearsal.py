"""A job history replayed in time as the controller would see it: the forecasts that would have been made, and when.

Opinions of the last jobs and of boosting, the correction by siblings (models/siblings.py), and the calibration on top
(models/intervals.py) learn each event when it has happened and not before.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from autopilot.core.model.forecast import LEVELS
from autopilot.core.model.snapshot import F64, I64
from models.intervals import Intervals, groups_of
from models.lasting import OUTLIVED_S, Lasting
from models.opinions import KIND, SIBLINGS, Mixer, corrected
from models.recent import Asked, kins_of
from models.siblings import Siblings


@dataclass(frozen=True, slots=True)
class JobHistory:
    """Jobs in order of submission. `start_s` and `duration_s` [jobs]; NaN duration: still running at the end.

    `others`: names of the columns of `asked.other`.
    """

    asked: Asked
    start_s: F64
    duration_s: F64
    others: tuple[str, ...] = ()

    @property
    def log_s(self) -> F64:
        """Log of the run time, at least of one second."""
        return np.asarray(np.log(np.maximum(self.duration_s, 1.0)))

    @property
    def end_s(self) -> F64:
        """When each job ended; NaN: it still runs."""
        return np.asarray(self.start_s + self.duration_s)

    def kins(self, job: int) -> tuple[Hashable, ...]:
        """The kins of one job."""
        asked = self.asked
        return kins_of(asked.tenant[job], asked.user[job], asked.stem[job], float(asked.gpus[job]))


@dataclass(frozen=True, slots=True)
class Promises:
    """Forecasts to make, in order of time: made at `made_s`, of the log of a time counted from `from_s`."""

    made_s: F64
    from_s: F64
    log_s: F64


class Source(Protocol):
    """Raw quantiles of forecasts, made one after the other; it may learn from those that have ended by then."""

    def raw(self, place: int) -> F64:
        """Quantiles of the log time of the forecast at `place`. Shape [1, levels]."""
        ...

    def ended(self, place: int) -> None:
        """The outcome of the forecast at `place` is known now."""
        ...


class Given:
    """Constant raw quantiles: [jobs, levels]."""

    def __init__(self, quantile: F64) -> None:
        self._quantile = quantile

    def raw(self, place: int) -> F64:
        """Quantiles of the log time. Shape [1, levels]."""
        return self._quantile[place : place + 1]

    def ended(self, place: int) -> None:
        """Nothing to learn."""


class Blend:
    """Raw quantiles of the blend at each submission: opinions mixed with their weights of that time, corrected by
    siblings.
    """

    def __init__(self, history: JobHistory, rows: I64, opinions: F64) -> None:
        """Forecasts for the jobs `rows` of the history with their `opinions` [rows, opinions, levels]."""
        self._history, self._rows, self._opinions = history, rows, opinions
        self._mixer, self._with_siblings = Mixer(opinions.shape[1]), Mixer(SIBLINGS)
        self._held: dict[int, F64] = {}
        self._near = Near(history)

    def raw(self, place: int) -> F64:
        """Quantiles of the log run time. Shape [1, levels]."""
        job = int(self._rows[place])
        kind = [self._history.kins(job)[KIND]]
        prior = self._mixer.mix(self._mixer.rows(kind), self._opinions[place : place + 1])
        posterior = self._near.posterior(job, prior)
        said, held = corrected(self._with_siblings, kind, prior, posterior)
        self._held[place] = held[0]
        return said

    def ended(self, place: int) -> None:
        """The run time of the job at `place` is known now."""
        job = int(self._rows[place])
        kind, log_s = [self._history.kins(job)[KIND]], float(self._history.log_s[job])
        self._mixer.learn(int(self._mixer.rows(kind)[0]), self._opinions[place], log_s)
        held = self._held.pop(place)
        self._with_siblings.learn(int(self._with_siblings.rows(kind)[0]), held, log_s)


class Near:
    """Siblings of all jobs of a history, at the submission of each in turn."""

    def __init__(self, history: JobHistory) -> None:
        end_s = history.end_s
        self._history, self._end_s, self._log_s = history, end_s, history.log_s
        self._ends = np.argsort(end_s, kind="stable")[: int(np.count_nonzero(~np.isnan(end_s)))]
        self._siblings = Siblings()
        self._alive: set[int] = set()
        self._next, self._done = 0, 0

    def posterior(self, job: int, prior: F64) -> F64:
        """The correction by siblings of `prior` [1, levels] when `job` is submitted; NaN where there is none. Jobs in
        order.
        """
        while self._next <= job:
            self._submit(self._next)
            self._next += 1
        if np.isnan(prior).any():
            return np.full(prior.shape, np.nan)
        now_s = float(self._history.asked.submit_s[job])
        beside = self._siblings.beside(job)
        ran_s = now_s - self._history.start_s[np.array(beside, np.int64)]
        of_all_s = now_s - self._history.start_s[np.fromiter(self._alive, np.int64, len(self._alive))]
        begun = np.flatnonzero(ran_s > 0.0)
        names = [beside[place] for place in begun.tolist()]
        self._siblings.ran(names, ran_s[begun], of_all_s[of_all_s > 0.0])
        self._siblings.foresee([job], np.exp(prior))
        said = self._siblings.said([job])
        return said[job][None, :] if said else np.full(prior.shape, np.nan)

    def _submit(self, job: int) -> None:
        submit_s = float(self._history.asked.submit_s[job])
        while self._done < len(self._ends) and self._end_s[self._ends[self._done]] < submit_s:
            ended = int(self._ends[self._done])
            self._siblings.end(ended, float(self._log_s[ended]))
            self._alive.discard(ended)
            self._done += 1
        self._siblings.add(job, self._history.kins(job)[0], submit_s)
        self._alive.add(job)


def calibrated(promises: Promises, source: Source) -> F64:
    """Calibrated quantiles: raw ones under a calibration that learns from their outcomes. [n, levels]."""
    layer = Intervals()
    answer = np.full((len(promises.made_s), len(LEVELS)), np.nan)
    ran_s = np.exp(promises.log_s)
    end_s = promises.from_s + ran_s
    ends, done = np.argsort(end_s, kind="stable"), 0
    alive: set[int] = set()
    for place, now_s in enumerate(promises.made_s.tolist()):
        while done < len(ends) and end_s[ends[done]] < now_s:
            ended = int(ends[done])
            source.ended(ended)
            layer.end(ended, float(ran_s[ended]), float(end_s[ended]))
            alive.discard(ended)
            done += 1
        if layer.stale:
            running = [job for job in alive if promises.from_s[job] < now_s]
            layer.ran(running, now_s - promises.from_s[np.array(running, np.int64)])
        layer.settle(now_s)
        raw = source.raw(place)
        alive.add(place)
        if not np.isnan(raw).any():
            group = groups_of(raw)
            given, margin = layer.apply(raw, group)
            answer[place] = given[0]
            layer.add(place, raw[0], margin[0], int(group[0]))
    return answer


def left_after_an_hour(history: JobHistory, rows: I64) -> F64:
    """Log quantiles of the remaining time of `rows` when each has run for an hour, all in order of that moment. [rows,
    levels].
    """
    lasting, log_s = Lasting(), history.log_s
    at_s, end_s = history.start_s + OUTLIVED_S, history.end_s
    outlived = np.flatnonzero(~(history.duration_s <= OUTLIVED_S))
    ended = outlived[~np.isnan(end_s[outlived])]
    # at the same moment: first jobs that reach an hour, then jobs that end
    times_s = np.concatenate([at_s[outlived], end_s[ended]])
    job = np.concatenate([outlived, ended])
    order = np.lexsort((np.arange(len(job)), times_s))
    wanted = {row: place for place, row in enumerate(rows.tolist())}
    answer = np.full((len(rows), len(LEVELS)), np.nan)
    alive: set[int] = set()
    for number in order.tolist():
        name, now_s = int(job[number]), float(times_s[number])
        if number >= len(outlived):
            lasting.end(name, float(np.exp(log_s[name])))
            alive.discard(name)
            continue
        lasting.add(name, history.kins(name), float(history.asked.submit_s[name]))
        lasting.ran([name], np.array([OUTLIVED_S]))
        alive.add(name)
        if name in wanted:
            running = list(alive)
            lasting.ran(running, now_s - history.start_s[np.array(running, np.int64)])
            said = lasting.said([name])[name]
            answer[wanted[name]] = np.log(np.maximum(np.exp(said) - OUTLIVED_S, 1.0))
    return answer
