"""Run times from the last two similar jobs: the floor for every better model to beat.

The prediction for a job is the geometric mean of the run times of the last two ended jobs of the same tenant and width;
without those, of the tenant; without those, of all. Its spread is that of the model's own last errors, quantile by
quantile: they have heavier tails than a log-normal. Tsafrir, Etsion and Feitelson (2007) showed that two recent jobs of
the same user are a better predictor than a user's estimate.

If the last two are a weak predictor of the next one, the prediction is shrunk towards the tenant's usual run time by
a factor learned online too (the slope of the outcome on the last two, both as distances from the usual; a
regression to the mean).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

import numpy as np

from autopilot.core.model.forecast import LEVELS, Forecasts, RuntimeForecast
from autopilot.core.model.snapshot import F64, ClusterSnapshot, State

FIRST_SPREAD = 1.8
"""Standard deviation of the log error assumed before any was observed: a factor of 6 either way."""

FIRST_ERRORS = 10
"""Number of errors that weigh as much as this assumption."""

MEMORY = 1000
"""Number of past errors in the spread."""

FIRST_BELIEF = 10.0
"""At first the last two count fully, with the weight of this many jobs a factor of e away from the usual."""

USUAL_JOBS = 200
"""Ended jobs in the mean of a tenant's usual run time, in logs: an exponential mean of about this length."""

# Standard normal quantiles of LEVELS (0.05 .. 0.99).
_Z = np.array([-1.6448536, -0.6744898, 0.0, 0.6744898, 1.2815516, 1.6448536, 2.3263479])

_ANY = -1
_NOTHING = (float("nan"), 0)


class LastTwo:
    """Forecaster of run times from the last two similar ended jobs."""

    name = "last-two"

    def __init__(self) -> None:
        self._recent: dict[tuple[str | None, int], deque[float]] = {}  # by tenant and GPUs
        self._ended: dict[tuple[str | None, int], int] = {}
        self._given: dict[str, tuple[float, int]] = {}  # by workload: log of the prediction, history
        self._errors: deque[float] = deque(maxlen=MEMORY)
        self._sorted: list[float] = []  # the same errors, rising
        self._usual: dict[str | None, tuple[float, int]] = {}  # by tenant, and of all (None): mean log run time, jobs
        self._said: deque[tuple[float, float]] = deque(maxlen=MEMORY)  # (last two, outcome) minus the usual
        self._said_square, self._said_product = 0.0, 0.0

    def update(self, now_s: float, snapshot: ClusterSnapshot) -> None:
        """Learn from the jobs shown by the snapshot as ended."""
        work = snapshot.workloads
        for row in np.flatnonzero(work.state >= State.SUCCEEDED).tolist():
            if work.service[row] >= 0:
                continue
            ran_s = float(work.served_s[row])
            if ran_s >= 1.0:
                self._learn(_tenant(snapshot, row), int(work.gpus[row]), float(np.log(ran_s)))

    def _learn(self, tenant: str, gpus: int, log_s: float) -> None:
        expected, _ = self._expected(tenant, gpus)
        if expected is not None:
            if len(self._errors) == MEMORY:
                del self._sorted[bisect_left(self._sorted, self._errors[0])]
            self._errors.append(log_s - expected)
            insort(self._sorted, log_s - expected)
        self._learn_belief(tenant, gpus, log_s)
        for key in ((tenant, gpus), (tenant, _ANY), (None, _ANY)):
            self._recent.setdefault(key, deque(maxlen=2)).append(log_s)
            self._ended[key] = self._ended.get(key, 0) + 1

    def _learn_belief(self, tenant: str, gpus: int, log_s: float) -> None:
        """Compare the last two with the outcome, then update the usual run times."""
        recent, _ = self._last(tenant, gpus)
        usual = self._usual_of(tenant)
        if recent is not None and usual is not None:
            if len(self._said) == MEMORY:
                before, came = self._said[0]
                self._said_square -= before * before
                self._said_product -= before * came
            pair = (recent - usual, log_s - usual)
            self._said.append(pair)
            self._said_square += pair[0] * pair[0]
            self._said_product += pair[0] * pair[1]
        for key in (tenant, None):
            mean, count = self._usual.get(key, (log_s, 0))
            self._usual[key] = (mean + (log_s - mean) / min(count + 1, USUAL_JOBS), count + 1)

    def _usual_of(self, tenant: str) -> float | None:
        found = self._usual.get(tenant) or self._usual.get(None)
        return found[0] if found else None

    @property
    def belief(self) -> float:
        """The weight of the last two: 1 fully, 0 not at all."""
        slope = (self._said_product + FIRST_BELIEF) / (self._said_square + FIRST_BELIEF)
        return min(max(slope, 0.0), 1.0)

    def _expected(self, tenant: str, gpus: int) -> tuple[float | None, int]:
        """Log of the predicted run time, and the number of ended jobs of the kind."""
        recent, ended = self._last(tenant, gpus)
        usual = self._usual_of(tenant)
        if recent is None or usual is None:
            return recent, ended
        return usual + self.belief * (recent - usual), ended

    def _last(self, tenant: str, gpus: int) -> tuple[float | None, int]:
        """Mean log run time of the last two similar ended jobs, and the number of ended jobs of the kind."""
        for key in ((tenant, gpus), (tenant, _ANY), (None, _ANY)):
            recent = self._recent.get(key)
            if recent:
                return sum(recent) / len(recent), self._ended[key]
        return None, 0

    @property
    def spread(self) -> F64:
        """Quantiles of the log error at LEVELS: those of the last errors, mixed with the first guess while they are
        few.
        """
        count = len(self._sorted)
        guess = FIRST_SPREAD * _Z
        if not count:
            return guess
        place = np.asarray(LEVELS) * (count - 1)
        below = place.astype(int)
        low = np.array([self._sorted[each] for each in below.tolist()])
        high = np.array([self._sorted[min(each + 1, count - 1)] for each in below.tolist()])
        seen = low + (place - below) * (high - low)
        return np.asarray((count * seen + FIRST_ERRORS * guess) / (count + FIRST_ERRORS))

    def forecast(self, now_s: float, snapshot: ClusterSnapshot) -> Forecasts:
        """Quantiles of the total run time of every workload; replicas of services abstain.

        A job keeps the prediction of its first sight (or the first one available): jobs submitted together are
        similar, and new predictions at each end would reorder the queue for no reason.
        """
        work = snapshot.workloads
        names = work.id.tolist()
        for row, name in enumerate(names):
            if name not in self._given:
                expected, ended = self._expected(_tenant(snapshot, row), int(work.gpus[row]))
                if expected is not None and work.service[row] < 0:
                    self._given[name] = (expected, ended)
        given = [self._given.get(name, _NOTHING) for name in names]
        centre = np.array([each[0] for each in given], float)
        total_s = np.exp(centre[:, None] + self.spread)
        history = np.array([each[1] for each in given], np.int32)
        for row in np.flatnonzero(work.state >= State.SUCCEEDED).tolist():
            self._given.pop(names[row], None)
        return Forecasts(RuntimeForecast(self.name, now_s, LEVELS, total_s, ~np.isnan(centre), history))


def _tenant(snapshot: ClusterSnapshot, row: int) -> str:
    """The tenant by name: its code may change from one snapshot to the next."""
    code, names = int(snapshot.workloads.tenant[row]), snapshot.names.tenants
    return names[code] if 0 <= code < len(names) else ""
