"""Time left of jobs that have run for an hour: what came of the others that ran so long.

A job that outlives an hour is another kind of job than what was forecast at its submission, where most end within
minutes. What is left of it follows from the hazards beyond the hour of the last jobs that reached it, those that
still run included (product-limit estimate; Kaplan and Meier 1958): first of all jobs, then, each drawn towards the
wider one before it, of its tenant, tenant and GPUs, user, name, and at last of those submitted near it (beta-Stacy
processes, each centred on the one before: Walker and Muliere 1997). No quantile of it is fitted: it follows a change
within the day.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from autopilot.core.snapshot import F64, I64, Bools
from models.recent import LEVELS_OF_KIN
from models.siblings import EDGES, FIRST_LOG_S, FIRST_SPREAD, SAME_WIDTH, cells_of, outlived, quantiles_given

OUTLIVED_S = 3600.0
"""Time run from which a job's time left is said here."""

WINDOW = 1000
"""Jobs that last came to run so long: as many as models/siblings.py looks back on."""

WIDER_JOBS = 10.0
"""Jobs of a kin that weigh as much as those of the wider one: as in models/opinions.py."""

NEAR_JOBS = 2.0
"""Jobs submitted at the same moment that weigh as much as all the others."""

NEAR_S = OUTLIVED_S
"""A job submitted so much earlier or later counts half beside those submitted with it: their times are of hours."""

KIN_LEVELS = tuple(LEVELS_OF_KIN.index(name) for name in ("tenant", "width", "user", "exact"))
"""Kins asked after all jobs, the widest first; a kin that holds the same jobs as the one before is not asked again."""

MOST_CODES = 20_000
"""Numbers of kins kept at once; beyond that those of jobs that are still looked at are kept."""

CELLS = len(EDGES) - 1
_REACHED = ndtr((EDGES[None, :] - ((EDGES[:-1] + EDGES[1:]) / 2.0)[:, None]) / SAME_WIDTH)
DIED, PASSED = np.diff(_REACHED, axis=1), 1.0 - _REACHED[:, :-1]
"""What a job that ended in a cell (row) says of each cell: that it ended there, that it reached it."""

AT_RISK = np.tril(np.ones((CELLS, CELLS))) - 0.5 * np.eye(CELLS)
"""What a job that runs, and is now in a cell (row), says: that it reached those before, and is half-way through its own."""

FIRST = np.diff(ndtr((EDGES - FIRST_LOG_S) / FIRST_SPREAD))
BEFORE: Bools = np.asarray(EDGES[1:] <= np.log(OUTLIVED_S))


@dataclass(slots=True)
class Job:
    """A job that has not ended. `turn` is its number among those that outlived the hour, -1 before."""

    kins: Sequence[Hashable]
    submit_s: float
    log_s: float = 0.0
    turn: int = -1


class Lasting:
    """The last jobs that outlived an hour, and what is left of those that still run."""

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
        """How long running jobs have run by now."""
        for place in np.flatnonzero(ran_s >= OUTLIVED_S).tolist():
            job = self._jobs.get(names[place])
            if job is not None:
                self._note(job, float(ran_s[place]))

    def end(self, name: Hashable, ran_s: float) -> None:
        """A job ended after `ran_s` of running; NaN where nothing is known: then it counts as far as it was seen."""
        job = self._jobs.pop(name, None)
        if job is None:
            return
        if ran_s >= OUTLIVED_S:
            self._note(job, ran_s)
            if self._count - job.turn <= WINDOW:
                self._ended[job.turn % WINDOW] = True

    def _note(self, job: Job, ran_s: float) -> None:
        if job.turn < 0:
            job.turn = self._count
            self._count += 1
            place = job.turn % WINDOW
            self._kin[place], self._submit_s[place], self._ended[place] = (
                self._codes(job),
                job.submit_s,
                False,
            )
        job.log_s = float(np.log(ran_s))
        if self._count - job.turn <= WINDOW:
            self._cell[job.turn % WINDOW] = int(cells_of(np.array(job.log_s)))

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
        """Log quantiles at LEVELS of the total run time of those of `names` that have outlived the hour and run."""
        answer = {}
        for name in names:
            job = self._jobs.get(name)
            if job is not None and job.turn >= 0:
                done = np.append(1.0 - outlived(self._hazard(job)), 1.0)
                answer[name] = quantiles_given(done[None, :], np.array([job.log_s]))[0]
        return answer

    def _hazard(self, job: Job) -> F64:
        """Probability to end in each cell for a job that reached it. Shape [cells]; 0 before the hour."""
        size = min(self._count, WINDOW)
        kin, own = self._kin[:size], self._codes(job)
        apart_s = np.abs(self._submit_s[:size] - job.submit_s)
        others = np.ones(size)
        if self._count - job.turn <= WINDOW:
            others[job.turn % WINDOW] = 0.0  # it is no witness of itself
        died, reached = self._counted(others)
        hazard = _hazard_of(died + FIRST, reached + _from_here(FIRST))
        before = others
        for level in range(len(KIN_LEVELS)):
            weight = others * (kin[:, level] == own[level])
            if not np.array_equal(weight, before):
                hazard = self._centred(hazard, weight, WIDER_JOBS)
            before = weight
        return self._centred(hazard, before / (1.0 + apart_s / NEAR_S), NEAR_JOBS)

    def _centred(self, hazard: F64, weight: F64, prior_jobs: float) -> F64:
        """`hazard` [cells] of a wider kin corrected by the jobs of the window at their `weight` [jobs]."""
        survival = outlived(hazard)
        mass = survival * hazard
        mass[-1] += max(0.0, 1.0 - float(mass.sum()))
        died, reached = self._counted(weight)
        return _hazard_of(prior_jobs * mass + died, prior_jobs * _from_here(mass) + reached)

    def _counted(self, weight: F64) -> tuple[F64, F64]:
        """Jobs of the window that ended in each cell, and that reached it. Shapes [cells]."""
        cell: I64 = self._cell[: len(weight)]
        over = self._ended[: len(weight)]
        ended = np.bincount(cell, weight * over, minlength=CELLS)
        running = np.bincount(cell, weight * ~over, minlength=CELLS)
        return ended @ DIED, ended @ PASSED + running @ AT_RISK


def _hazard_of(died: F64, reached: F64) -> F64:
    return np.where(BEFORE, 0.0, np.clip(died / np.maximum(reached, 1e-12), 0.0, 1.0))


def _from_here(mass: F64) -> F64:
    """Mass from each cell on. Shape of `mass`."""
    return np.asarray(np.cumsum(mass[::-1])[::-1])
