"""Forecasts in a journal: the predictions of the time, and the outcomes.

Predictions are read as recorded, and outcomes from later observations. Only hazards by age, absent from a journal, are
counted again from its jobs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from autopilot.app.decisions.hazards_seen import JobHazards, job_hazards
from autopilot.core.model.errors import InputError
from autopilot.core.model.forecast import REQUESTS, Forecast, RuntimeForecast, remaining_quantiles_s
from autopilot.core.model.records import Observation
from autopilot.core.model.snapshot import State
from autopilot.core.model.units import format_duration
from autopilot.core.model.work import progress_s
from autopilot.records.journal import JournalReader
from autopilot.records.replay.again import Progress
from models.hazard_index import Hazards

MINUTE_S = 60.0
"""The length of the interval of the rate in an observation: a minute."""

SLACK_S = 30.0
"""An observation may follow the end of a horizon by this much and still count as its outcome: ticks are
event-driven.
"""


@dataclass(frozen=True, slots=True)
class JobPromise:
    """The first prediction of a job's total run time, and the outcome.

    `total_s` are the quantiles at the recorded levels; `came_s` is NaN while the job has not ended. `ran_s`: its run
    time so far.
    """

    job: str
    tenant: str
    made_s: float
    model: str
    levels: tuple[float, ...]
    total_s: tuple[float, ...]
    history: int
    came_s: float = float("nan")
    ran_s: float = 0.0


@dataclass(frozen=True, slots=True)
class JobNow:
    """The last known state of a job: current prediction and remaining run time."""

    job: str
    tenant: str
    gpus: int
    state: State
    at_s: float
    ran_s: float
    model: str
    made_s: float
    levels: tuple[float, ...]
    total_s: tuple[float, ...]  # empty if the model abstains
    left_s: tuple[float, ...]
    history: int
    index_per_s: float  # the recorded hazard index; NaN if the run gave none


@dataclass(slots=True)
class JobRecord:
    """A journal's record of the run times of its jobs, and of one of them."""

    now: JobNow | None = None
    hazards: JobHazards | None = None  # as last seen before the end of the job
    promises: list[JobPromise] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DemandPromise:
    """One recorded forecast of a service: the upper quantiles of its peak until `made_s + horizon_s`.

    `came` is the highest rate observed in that time; NaN while it has not passed, or without observations.
    """

    made_s: float
    horizon_s: float
    levels: tuple[float, ...]
    values: tuple[float, ...]
    came: float = float("nan")


MOST_NAMED = 10
"""Number of candidate services in an error message."""


@dataclass(slots=True)
class DemandRecord:
    """A journal's record of one kind of demand of a service."""

    service: str
    kind: str
    last: Forecast | None = None
    row: int = 0
    at_s: float = float("nan")
    whole_s: float = float("nan")  # time of the last complete forecast
    promises: list[DemandPromise] = field(default_factory=list)
    rates: list[tuple[float, float]] = field(default_factory=list)  # (time, rate of the minute before it)
    abstained: dict[str, int] = field(default_factory=dict)  # reason -> forecasts


@dataclass(frozen=True, slots=True)
class Coverage:
    """Observed coverage: the share of `count` outcomes at or below the bound of `level`."""

    level: float
    share: float
    count: int


def coverage(promised: list[tuple[tuple[float, ...], tuple[float, ...], float]]) -> list[Coverage]:
    """Observed coverage of each level, from (levels, values, outcomes).

    Pairs without an outcome (NaN) or a prediction (NaN) are not counted.
    """
    held: dict[float, list[bool]] = {}
    for levels, values, came in promised:
        if np.isfinite(came):
            known = ((level, value) for level, value in zip(levels, values, strict=True) if np.isfinite(value))
            for level, value in known:
                held.setdefault(level, []).append(came <= value)
    return [Coverage(level, sum(each) / len(each), len(each)) for level, each in sorted(held.items())]


def read_foreseen(
    path: Path, name: str, at_s: float | None, progress: Progress | None = None
) -> JobRecord | list[DemandRecord]:
    """The record of a service or a job in the journal at `path` (up to `at_s`).

    Raises `InputError` if it contains neither.
    """
    with JournalReader(path) as reader:
        total = len(reader)
        services: dict[str, DemandRecord] = {}
        jobs = _Jobs(name)
        is_service, others = False, set[str]()
        for done, record in enumerate(reader.ticks(), 1):
            observation = record.observation
            others.update(observation.snapshot.services.id.tolist())
            if at_s is not None and observation.now_s > at_s and done > 1:
                break
            is_service = _service(observation, name, services) or is_service
            if not is_service:
                jobs.see(observation)
            if progress is not None:
                progress(done, total)
    if is_service:
        return [_closed(each) for each in services.values()] or [DemandRecord(name, REQUESTS)]
    if jobs.found.now is None:
        more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        has = f"its services are {', '.join(sorted(others)[:MOST_NAMED])}{more}; " if others else ""
        raise InputError(
            f"{path}: no service or job {name!r}; {has}its page, or `autopilot explain`, names the jobs that were there"
        )
    return jobs.done()


# --- services ---------------------------------------------------------------------------------------


def _service(observation: Observation, name: str, found: dict[str, DemandRecord]) -> bool:
    """Take in service `name` as shown by one tick; False if there is no such service."""
    table = observation.snapshot.services
    rows = np.flatnonzero(table.id == name).tolist()
    if not rows:
        return False
    for forecast in observation.forecasts.demand:
        if name not in forecast.series:
            continue
        record = found.setdefault(forecast.kind, DemandRecord(name, forecast.kind))
        if record.last is not None and record.last.made_s == forecast.made_s:
            continue
        record.last, record.row, record.at_s = forecast, forecast.series.index(name), observation.now_s
        if not (forecast.reasons and forecast.reasons[record.row]):
            record.whole_s = observation.now_s
        _note_promises(record, forecast)
    for kind, record in found.items():
        rate = float((table.recent_rps if kind == REQUESTS else table.tokens_per_s)[rows[0]])
        if np.isfinite(rate) and (not record.rates or observation.now_s > record.rates[-1][0]):
            record.rates.append((observation.now_s, rate))
    return True


def _note_promises(record: DemandRecord, forecast: Forecast) -> None:
    values = forecast.values[record.row]
    if not np.isfinite(values).any():
        reason = forecast.reasons[record.row] if forecast.reasons else ""
        reason = reason or "no reason recorded"
        record.abstained[reason] = record.abstained.get(reason, 0) + 1
        return
    for at, horizon_s in enumerate(forecast.horizons_s):
        if np.isfinite(values[at]).any():  # it may abstain from the longer horizons only
            record.promises.append(
                DemandPromise(forecast.made_s, horizon_s, forecast.levels, tuple(values[at].tolist()))
            )


def _closed(record: DemandRecord) -> DemandRecord:
    """Each forecast with its outcome: the highest minute begun after it and ended within its horizon."""
    times = np.array([at_s for at_s, _ in record.rates])
    rates = np.array([rate for _, rate in record.rates])
    closed = []
    for promise in record.promises:
        end_s = promise.made_s + promise.horizon_s
        inside = (times - MINUTE_S >= promise.made_s - 1e-6) & (times <= end_s + SLACK_S)
        over = len(times) > 0 and times[-1] >= end_s
        came = float(rates[inside].max()) if over and inside.any() else float("nan")
        closed.append(DemandPromise(promise.made_s, promise.horizon_s, promise.levels, promise.values, came))
    record.promises = closed
    return record


# --- jobs -------------------------------------------------------------------------------------------


class _Jobs:
    """Collects the first prediction and the end of every job, and the last state of one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: dict[str, JobPromise] = {}
        self._seen: set[str] = set()
        self._work: object = None
        self._runtimes: object = None
        self._hazards = Hazards()
        self.found = JobRecord()

    def see(self, observation: Observation) -> None:
        """One tick."""
        work, runtimes = observation.snapshot.workloads, observation.forecasts.runtimes
        if work is self._work and runtimes is self._runtimes:
            return
        self._work, self._runtimes = work, runtimes
        self._hazards.update(observation.now_s, observation.snapshot)
        if runtimes is not None and len(runtimes.known) == len(work.id):
            self._promise(observation, runtimes)
        for row in np.flatnonzero((work.state >= State.SUCCEEDED) & (work.service < 0)).tolist():
            self._end(str(work.id[row]), float(work.served_s[row]))
        for row in np.flatnonzero(work.id == self._name).tolist():
            self._now(observation, row)

    def _promise(self, observation: Observation, runtimes: RuntimeForecast) -> None:
        work, names = observation.snapshot.workloads, observation.snapshot.names
        fresh = runtimes.known & (work.service < 0) & (work.state < State.SUCCEEDED)
        for row in np.flatnonzero(fresh).tolist():
            job = str(work.id[row])
            if job not in self._seen:
                self._seen.add(job)
                self._open[job] = JobPromise(
                    job,
                    names.tenants[int(work.tenant[row])],
                    runtimes.made_s,
                    runtimes.model,
                    runtimes.levels,
                    tuple(runtimes.total_s[row].tolist()),
                    int(runtimes.history[row]),
                )

    def _end(self, job: str, came_s: float) -> None:
        promise = self._open.pop(job, None)
        # shorter runs are no outcome: models do not learn from them
        if promise is not None and came_s >= 1.0:
            self.found.promises.append(_with_end(promise, came_s))

    def _now(self, observation: Observation, row: int) -> None:
        snapshot, runtimes = observation.snapshot, observation.forecasts.runtimes
        work = snapshot.workloads
        state = State(int(work.state[row]))
        done_s, outlived_s = progress_s(work, np.array([row], np.int32), observation.now_s)
        ran_s = float(done_s[0])
        before = self.found.now
        index = before.index_per_s if before is not None else float("nan")
        if state < State.SUCCEEDED:
            given = runtimes is not None and len(runtimes.hazard_index_per_s) == len(work.id)
            index = float(runtimes.hazard_index_per_s[row]) if runtimes is not None and given else float("nan")
            self.found.hazards = job_hazards(self._hazards, self._name, observation.now_s)
        known = runtimes is not None and len(runtimes.known) == len(work.id) and bool(runtimes.known[row])
        if known and runtimes is not None and state < State.SUCCEEDED:
            total = runtimes.total_s[row : row + 1]
            left = remaining_quantiles_s(runtimes.levels, total, done_s, runtimes.levels, outlived_s)
            said = (
                runtimes.model,
                runtimes.made_s,
                runtimes.levels,
                tuple(total[0].tolist()),
                tuple(left[0].tolist()),
                int(runtimes.history[row]),
            )
        elif before is not None and state >= State.SUCCEEDED:  # keep the last prediction
            said = (before.model, before.made_s, before.levels, before.total_s, before.left_s, before.history)
        else:
            said = (runtimes.model if runtimes is not None else "", observation.now_s, (), (), (), 0)
        self.found.now = JobNow(
            self._name,
            snapshot.names.tenants[int(work.tenant[row])],
            int(work.gpus[row]),
            state,
            observation.now_s,
            ran_s,
            *said,
            index,
        )

    def done(self) -> JobRecord:
        """Everything collected; predictions for unended jobs stay open."""
        self.found.promises += self._open.values()
        self.found.promises.sort(key=lambda promise: (promise.made_s, promise.job))
        return self.found


def _with_end(promise: JobPromise, came_s: float) -> JobPromise:
    return JobPromise(
        promise.job,
        promise.tenant,
        promise.made_s,
        promise.model,
        promise.levels,
        promise.total_s,
        promise.history,
        came_s,
        came_s,
    )


def span_words(low_s: float, high_s: float) -> str:
    """A range of times as text."""
    return f"{format_duration(low_s)} to {format_duration(high_s)}"
