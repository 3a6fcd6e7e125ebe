"""Remaining time of jobs after an hour of run time, from other jobs of this length.

A job that outlives an hour differs from its forecast at submission, when most jobs end within minutes. Its remaining
time follows from the hazards beyond the hour of the last jobs to reach it, including running ones (product-limit
estimate; Kaplan and Meier 1958): first of all jobs, then, each shrunk towards the wider group before it, of its tenant,
tenant and GPUs, user, name, and finally of those submitted near it (beta-Stacy processes, each centred on the one
before: Walker and Muliere 1997). No quantile is fitted: the forecast follows a change within the day.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from autopilot.core.model.snapshot import F64, I64, Bools
from models.recent import LEVELS_OF_KIN
from models.siblings import EDGES, FIRST_LOG_S, FIRST_SPREAD, SAME_WIDTH, cells_of, outlived, quantiles_given

OUTLIVED_S = 3600.0
"""Run time from which this module forecasts a job's remaining time."""

WINDOW = 1000
"""Number of the latest jobs that ran this long: the same as in models/siblings.py."""

WIDER_JOBS = 10.0
"""Number of jobs of a kin that weigh as much as those of the wider one: as in models/opinions.py."""

NEAR_JOBS = 2.0
"""Number of jobs submitted at the same moment that weigh as much as all the others."""

NEAR_S = OUTLIVED_S
"""Distance in submit time at which a job counts half: their times are of hours."""

KIN_LEVELS = tuple(LEVELS_OF_KIN.index(name) for name in ("tenant", "width", "user", "exact"))
"""Kins evaluated after all jobs, the widest first; a kin with the same jobs as the one before is skipped."""

MOST_CODES = 20_000
"""Numbers of kins kept at once; beyond that those of jobs still in use are kept."""

CELLS = len(EDGES) - 1
_REACHED = ndtr((EDGES[None, :] - ((EDGES[:-1] + EDGES[1:]) / 2.0)[:, None]) / SAME_WIDTH)
DIED, PASSED = np.diff(_REACHED, axis=1), 1.0 - _REACHED[:, :-1]
"""Contribution of a job that ended in a cell (row) to each cell: it ended there, it reached it."""

AT_RISK = np.tril(np.ones((CELLS, CELLS))) - 0.5 * np.eye(CELLS)
"""Contribution of a running job that is now in a cell (row): it reached those before, and is half-way through
its own.
"""

FIRST = np.diff(ndtr((EDGES - FIRST_LOG_S) / FIRST_SPREAD))
BEFORE: Bools = np.asarray(EDGES[1:] <= np.log(OUTLIVED_S))


@dataclass(slots=True)
class Job:
    """An unfinished job. `turn` is its number among those past the hour, -1 before."""

    kins: Sequence[Hashable]
    submit_s: float
    log_s: float = 0.0
    turn: int = -1


class Lasting:
    """The last jobs past an hour, and the remaining time of the running ones."""

    def __init__(self) -> None:
        self._jobs: dict[Hashable, Job] = {}
        self._code: dict[Hashable, int] = {}
        self._next_code = 0
        self._count = 0
        self._kin = np.full((WINDOW, len(KIN_LEVELS)), -1, np.int64)
        self._cell = np.zeros(WINDOW, np.int64)
        self._ended = np.zeros(WINDOW, np.bool_)
        self._submit_s = np.zeros(WINDOW)

    def add(self, name: Hashable, kins: Sequence[Hashable], submit_s: float) -> None:
        """A job of `kins` (models/recent.py: kins_of) was submitted."""
        self._jobs[name] = Job(kins, submit_s)

    def ran(self, names: Sequence[Hashable], ran_s: F64) -> None:
        """Take the run times so far of running jobs."""
        long = np.flatnonzero(ran_s >= OUTLIVED_S)
        log_s = np.log(ran_s[long])
        for place, log, cell in zip(long.tolist(), log_s.tolist(), cells_of(log_s).tolist(), strict=True):
            job = self._jobs.get(names[place])
            if job is not None:
                self._note(job, log, cell)

    def end(self, name: Hashable, ran_s: float) -> None:
        """A job ended after `ran_s` of run time; NaN if unknown: then it counts as far as it was observed."""
        job = self._jobs.pop(name, None)
        if job is None:
            return
        if ran_s >= OUTLIVED_S:
            log_s = np.log(ran_s)
            self._note(job, float(log_s), int(cells_of(np.asarray(log_s))))
            if self._in_window(job):
                self._ended[job.turn % WINDOW] = True

    def _note(self, job: Job, log_s: float, cell: int) -> None:
        if job.turn < 0:
            job.turn = self._count
            self._count += 1
            place = job.turn % WINDOW
            self._kin[place], self._submit_s[place], self._ended[place] = (
                self._codes(job),
                job.submit_s,
                False,
            )
        job.log_s = log_s
        if self._in_window(job):
            self._cell[job.turn % WINDOW] = cell

    def _in_window(self, job: Job) -> bool:
        return self._count - job.turn <= WINDOW

    def _codes(self, job: Job) -> list[int]:
        if len(self._code) > MOST_CODES:
            used = set(self._kin.ravel().tolist())
            self._code = {kin: code for kin, code in self._code.items() if code in used}
        answer = []
        for level in KIN_LEVELS:
            code = self._code.setdefault(job.kins[level], self._next_code)
            self._next_code += code == self._next_code
            answer.append(code)
        return answer

    def said(self, names: Sequence[Hashable]) -> dict[Hashable, F64]:
        """Log quantiles at LEVELS of the total run time of the running ones of `names` past the hour."""
        known = [(name, self._jobs[name]) for name in names if name in self._jobs]
        lasting = {name: job for name, job in known if job.turn >= 0}
        if not lasting:
            return {}
        jobs = list(lasting.values())
        done = np.append(1.0 - outlived(self._hazards(jobs)), np.ones((len(jobs), 1)), axis=1)
        log_s = np.array([job.log_s for job in jobs])
        return dict(zip(lasting, quantiles_given(done, log_s), strict=True))

    def _hazards(self, jobs: Sequence[Job]) -> F64:
        """Probability to end in each cell, once reached. Shape [jobs, cells]; 0 before the hour."""
        size = min(self._count, WINDOW)
        said, kin = self._cell[:size] + CELLS * self._ended[:size], self._kin[:size]
        own, submit_s = np.array([self._codes(job) for job in jobs]), np.array([job.submit_s for job in jobs])
        inside = np.flatnonzero([self._in_window(job) for job in jobs])
        place = np.array([jobs[row].turn % WINDOW for row in inside.tolist()], np.int64)

        def without_itself(counts: F64) -> F64:
            counts[inside, said[place]] -= 1.0  # a job is no evidence for itself
            return counts

        alike = without_itself(np.tile(np.bincount(said, minlength=2 * CELLS).astype(np.float64), (len(jobs), 1)))
        died, reached = _counted(alike)
        hazard, before = _hazard_of(died + FIRST, reached + _from_here(FIRST)), alike.sum(axis=1)
        for level in range(len(KIN_LEVELS)):  # each kin is part of the one before
            alike = without_itself(_by_kin(kin[:, level], said, own[:, level]))
            members = alike.sum(axis=1)
            fewer = members < before
            hazard[fewer] = _centred(hazard[fewer], alike[fewer], WIDER_JOBS)
            before = members
        return _centred(hazard, self._near(said, kin[:, -1] == own[:, -1, None], submit_s, inside, place), NEAR_JOBS)

    def _near(self, said: I64, weight: Bools, submit_s: F64, inside: I64, place: I64) -> F64:
        """What is `said` by the jobs of the narrowest kin, less of those from another time; as `alike`."""
        order = np.argsort(said, kind="stable")  # equal ones are added up first
        found, first = np.unique(said[order], return_index=True)
        weight[inside, place] = False
        apart_s = np.abs(self._submit_s[order] - submit_s[:, None])
        alike = np.zeros((len(submit_s), 2 * CELLS))
        alike[:, found] = np.add.reduceat(weight[:, order] / (1.0 + apart_s / NEAR_S), first, axis=1)
        return alike


def _by_kin(kin: I64, said: I64, own: I64) -> F64:
    """Number of jobs of the kin of each asking job (`own`) by value of `said`. Shape [asking, 2 x cells]."""
    codes, group = np.unique(own, return_inverse=True)
    at = np.minimum(np.searchsorted(codes, kin), len(codes) - 1)
    member = codes[at] == kin
    counts = np.bincount(at[member] * 2 * CELLS + said[member], minlength=len(codes) * 2 * CELLS)
    return np.asarray(counts.reshape(len(codes), 2 * CELLS).astype(np.float64)[group])


def _counted(alike: F64) -> tuple[F64, F64]:
    """Jobs ended in each cell, and those reaching it, [asking, cells].

    `alike` [asking, 2 x cells] is the weight of the running jobs in a cell, then of those ended in it.
    """
    running, ended = alike[:, :CELLS], alike[:, CELLS:]
    return ended @ DIED, ended @ PASSED + running @ AT_RISK


def _centred(hazard: F64, alike: F64, prior_jobs: float) -> F64:
    """`hazard` [asking, cells] of a wider kin corrected by the jobs of `alike` (`_counted`)."""
    mass = outlived(hazard) * hazard
    mass[:, -1] += np.maximum(0.0, 1.0 - mass.sum(axis=1))
    died, reached = _counted(alike)
    return _hazard_of(prior_jobs * mass + died, prior_jobs * _from_here(mass) + reached)


def _hazard_of(died: F64, reached: F64) -> F64:
    return np.where(BEFORE, 0.0, np.clip(died / np.maximum(reached, 1e-12), 0.0, 1.0))


def _from_here(mass: F64) -> F64:
    """Mass from each cell on. Shape of `mass`."""
    return np.asarray(np.cumsum(mass[..., ::-1], axis=-1)[..., ::-1])
