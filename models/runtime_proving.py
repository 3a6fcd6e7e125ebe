"""The gate on the last submitted jobs, inside the fit of run times that it judges.

The model that would be adopted is judged. The challenger was fitted on what was known when the first of these jobs was
submitted; for each of them three forecasts are compared, each under the same conformal layer: opinions mixed with the
challenger among them, with the champion in its place, and the last ten jobs alone (models/backtest.py has the rules).
Weights and calibration start from zero for all three and learn of a job when it has ended. Siblings are left out: they
correct any prior.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from autopilot.core.model.snapshot import F64
from models.backtest import FreshRng, GateRules, GateVerdict, judge
from models.evidence import runtime_cases
from models.opinions import BOOSTED, MEDIAN, Mixer, add_boosted
from models.recent import F32
from models.rehearsal import Given, Promises, calibrated
from models.runtime_boosting import Boosted

WINDOW_PART = 0.25
"""Fraction of the ended jobs, those submitted last, that no challenger is fitted on."""

MOST_JUDGED = 2000
"""Maximum number of jobs in the window: they are replayed one by one, three times."""

WARM_PART = 0.25
"""Fraction of the window in which weights and calibration learn, before the comparison."""

FLOOR = 0
"""The opinion that represents the floor: the last ten to end."""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """The record of a job that ended: what was known at its submission, and its outcome."""

    tenant: str
    kind: Hashable  # jobs that share weights of opinions
    submit_s: float
    end_s: float
    log_s: float
    features: F64
    opinions: F64  # [opinions, levels]
    candidates: F32

    @property
    def start_s(self) -> float:
        """Its start, had it run without interruption until its end."""
        return self.end_s - float(np.exp(self.log_s))


@dataclass(frozen=True, slots=True)
class Trial:
    """The opponent of a newly fitted model: the champion, if any, on `jobs` in order of their submission."""

    jobs: tuple[EndedJob, ...]
    rng: FreshRng
    champion: Boosted | None = None
    rules: GateRules | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """A challenger, and the verdict on it."""

    challenger: Boosted
    verdict: GateVerdict


@dataclass(frozen=True, slots=True)
class Parted:
    """Ended jobs divided at the start of the window: the data of the fit, and the data of the verdict."""

    window_s: float
    known: tuple[EndedJob, ...]
    running_s: F64  # run times so far of the jobs that ran then
    window: tuple[EndedJob, ...]


def parted(jobs: Sequence[EndedJob], ran_s: F64, now_s: float) -> Parted:
    """Divide `jobs` (at least one); `ran_s` is how long those have run by `now_s` that still do."""
    submit_s = np.array([job.submit_s for job in jobs])
    size = min(max(int(WINDOW_PART * len(jobs)), 1), MOST_JUDGED)
    window_s = float(np.sort(submit_s)[-size])
    window = sorted(
        (job for job in jobs if job.submit_s >= window_s and not np.isnan(job.opinions[FLOOR, MEDIAN])),
        key=lambda job: job.submit_s,
    )
    ran_then_s = [window_s - job.start_s for job in jobs if job.start_s < window_s <= job.end_s]
    ran_on_s = ran_s - (now_s - window_s)
    return Parted(
        window_s,
        tuple(job for job in jobs if job.end_s < window_s),
        np.concatenate([ran_then_s, ran_on_s[ran_on_s > 0.0]]),
        tuple(window),
    )


class Mix:
    """Opinions [jobs, opinions, levels] mixed with their weights at each submission."""

    def __init__(self, kinds: Sequence[Hashable], opinions: F64, log_s: F64) -> None:
        self._kinds, self._opinions, self._log_s = kinds, opinions, log_s
        self._mixer = Mixer(opinions.shape[1])

    def raw(self, place: int) -> F64:
        """Quantiles of the log run time. Shape [1, levels]."""
        return self._mixer.mix(self._mixer.rows([self._kinds[place]]), self._opinions[place : place + 1])

    def ended(self, place: int) -> None:
        """The run time of the job at `place` is known now."""
        row = int(self._mixer.rows([self._kinds[place]])[0])
        self._mixer.learn(row, self._opinions[place], float(self._log_s[place]))


def proved(challenger: Boosted, trial: Trial) -> Proof:
    """The verdict on `challenger`. Without jobs in the window it is refused."""
    jobs = trial.jobs
    if not jobs:
        return Proof(challenger, judge((), challenger.work, trial.rng(), trial.rules))
    made_s, log_s = np.array([job.submit_s for job in jobs]), np.array([job.log_s for job in jobs])
    promises = Promises(made_s, np.array([job.start_s for job in jobs]), log_s)
    kinds = [job.kind for job in jobs]
    ours, theirs = (
        calibrated(promises, Mix(kinds, opinions_with(jobs, model), log_s)) for model in (challenger, trial.champion)
    )
    floor = calibrated(promises, Given(np.stack([job.opinions[FLOOR] for job in jobs])))
    tenants = np.empty(len(jobs), object)
    tenants[:] = [job.tenant for job in jobs]
    judged = slice(int(WARM_PART * len(jobs)), None)
    cases = runtime_cases(tenants[judged], made_s[judged], log_s[judged], ours[judged], floor[judged], theirs[judged])
    return Proof(challenger, judge(cases, challenger.work, trial.rng(), trial.rules))


def opinions_with(jobs: Sequence[EndedJob], boosted: Boosted | None) -> F64:
    """Opinions of each job with those of `boosted` in their place; None: no opinion there. [jobs, opinions, levels]."""
    opinions = np.stack([job.opinions for job in jobs])
    opinions[:, BOOSTED] = np.nan
    if boosted is not None:
        said = boosted.predict(np.stack([job.features for job in jobs]))
        add_boosted(opinions, np.stack([job.candidates for job in jobs]), said)
    return opinions
