"""The cost of forecasting on one core: a minute of 5,000 services, one job, and a retrain of everything.

Usage: python -m benchmarks.forecast_speed [--services 5000] [--jobs 3000] [--seed 1] [--quick] [--json OUT]

Each service has its own mean, a daily rhythm, and noise. Two hours of minutes are simulated, with the fits that fall
due. Then minutes are timed: requests and tokens of all services are observed, compared with the promises, and forecast.
A retrain covers the whole history that the controller keeps of these services, for both kinds of demand, with the trial
before the gate, against the previous model; and the last 8,000 jobs. Jobs arrive one by one, beside 500 that wait or
run, after 3,000 have ended. CPU, not wall time. Memory is the largest resident set of the process; the history and its
copy in the fit are a necessary part of it. `--quick`: few services and jobs.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autopilot.app.backtests.gate import bootstrap_rng
from autopilot.core.model.forecast import REQUESTS, TOKENS
from autopilot.core.model.snapshot import (
    F64,
    ClusterSnapshot,
    GpuTable,
    InstanceTable,
    Names,
    NodeTable,
    PlacementTable,
    QueueTable,
    ServiceTable,
    State,
    WorkloadTable,
    empty,
    empty_signals,
    make,
)
from benchmarks.kit import FIGURE, ended, judged, options
from models.boosting import Boosting
from models.burst_demand import STEP_S, Fit
from models.bursts import Bursts
from models.proving import Trial
from models.runtimes import Runtimes

MINUTE_S, JOB_MS, RETRAIN_S, MEMORY_GIB = 1.0, 10.0, 180.0, 4.0
PLAYED = 125
"""Minutes before the timed ones; they include the fits of the first and the second hour."""

QUICK_SERVICES, QUICK_MINUTES, QUICK_JOBS = 60, 400, 1000
TIMED = 10
BESIDE = 500
TOKENS_A_REQUEST = 900.0


def snapshot_of(services: ServiceTable | None = None, work: WorkloadTable | None = None) -> ClusterSnapshot:
    """A cluster with services or jobs only."""
    return ClusterSnapshot(
        Names((), (), tuple(f"team-{n}" for n in range(40)), ()),
        empty(NodeTable),
        empty(GpuTable),
        empty(InstanceTable),
        work if work is not None else empty(WorkloadTable),
        empty(PlacementTable),
        services if services is not None else empty(ServiceTable),
        empty(QueueTable),
        empty_signals(),
    )


def rates(rng: np.random.Generator, services: int, minutes: int, usual_rps: F64) -> F64:
    """Requests/s of each service and minute: its mean, a day, and noise. Shape [services, minutes]."""
    day = 1.0 + 0.5 * np.sin(2.0 * np.pi * np.arange(minutes) / 1440.0 + rng.uniform(0.0, 6.3, (services, 1)))
    return np.asarray(usual_rps[:, None] * day * rng.gamma(20.0, 0.05, (services, minutes)))


def said(words: str) -> None:
    """Print the progress, with the CPU time so far."""
    print(f"  {time.process_time():6.0f} s of CPU: {words}", flush=True)


def memory_gib() -> float:
    """Largest resident set of this process up to now; `ru_maxrss` is in KiB on Linux (getrusage(2))."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def play_services(services: int, seed: int) -> tuple[Bursts, list[float], dict[str, Boosting]]:
    """A forecaster after two hours, the CPU seconds of each timed minute, and the global model by kind."""
    rng = np.random.default_rng(seed)
    usual_rps = rng.lognormal(0.0, 1.5, services)
    found = rates(rng, services, PLAYED + TIMED, usual_rps)
    bursts, spent, served = Bursts(seed), [], {}
    names = [f"service-{number:05d}" for number in range(services)]
    for minute in range(PLAYED + TIMED):
        columns: dict[str, Any] = {
            "id": names,
            "uid": names,
            "age_s": np.zeros(services),
            "recent_rps": found[:, minute],
            "tokens_per_s": found[:, minute] * TOKENS_A_REQUEST,
        }
        seen = snapshot_of(make(ServiceTable, **columns, **_unstated(services)))
        now_s = STEP_S * (minute + 1)
        began_s = time.process_time()
        bursts.update(now_s, seen)
        bursts.forecast(now_s, seen)
        if minute >= PLAYED:
            spent.append(time.process_time() - began_s)
        while (fit := bursts.due(now_s)) is not None:
            said(f"minute {minute + 1} of {PLAYED + TIMED}: fitting {fit.kind}")
            done = fit.run()
            served[fit.kind] = next(model for model in done.fitted.models if isinstance(model, Boosting))
            bursts.adopt(done)
    return bursts, spent, served


def _unstated(services: int) -> dict[str, Any]:
    stated = {"id", "uid", "age_s", "recent_rps", "tokens_per_s"}
    return {name: np.zeros(services) for name in ServiceTable.__dataclass_fields__ if name not in stated}


def retrain_demand(bursts: Bursts, served: dict[str, Boosting], minutes: int, seed: int) -> list[float]:
    """CPU seconds of a fit of requests and of one of tokens on `minutes` of history, each before the gate."""
    rng = np.random.default_rng(seed)
    spent = []
    for demand, kind in zip(bursts.demands, (REQUESTS, TOKENS), strict=True):
        names = tuple(demand.rates.names)
        services = len(names)
        said(f"fitting {kind} on {minutes:,} minutes of {services:,} services")
        values = rates(rng, services, minutes, rng.lognormal(0.0, 1.5, services))
        trial = Trial(names, bootstrap_rng, served[kind])
        began_s = time.process_time()
        Fit(kind, names, values, demand.ask, seed, trial).run()
        spent.append(time.process_time() - began_s)
    return spent


def jobs_of(rng: np.random.Generator, first: int, count: int, now_s: float) -> WorkloadTable:
    """`count` jobs of forty tenants, just submitted."""
    widths = rng.choice([1, 1, 1, 2, 4, 8], count)
    found: WorkloadTable = make(
        WorkloadTable,
        id=[f"job-{first + n:06d}" for n in range(count)],
        uid=[f"uid-{first + n:06d}" for n in range(count)],
        name=[f"train-{n}" for n in rng.integers(200, size=count)],
        tenant=rng.integers(40, size=count),
        user=[f"user-{n}" for n in rng.integers(300, size=count)],
        submit_s=now_s + np.arange(count),
        gpus=widths,
        min_gpus=widths,
        **_columns(count),
    )
    return found


def _columns(count: int) -> dict[str, Any]:
    """Columns that these jobs do not state."""
    nan = np.full(count, np.nan)
    return {
        "queue": np.ones(count),
        "state": np.full(count, State.PENDING),
        "start_s": nan,
        "ended_s": nan,
        "gpus_per_member": np.ones(count),
        "mig_profile": np.full(count, -1),
        "limit_s": nan,
        "preemptible": np.ones(count),
        "checkpoint_interval_s": nan,
        "last_checkpoint_s": nan,
        "checkpoint_write_s": nan,
        "restart_s": nan,
        "service": np.full(count, -1),
    }


def play_jobs(ended: int, asked: int, rows: int, seed: int) -> tuple[list[float], float]:
    """CPU milliseconds of the forecast of each new job, and the CPU seconds of a fit on `rows` ended jobs."""
    rng = np.random.default_rng(seed)
    forecaster, now_s, done, fitting_s = Runtimes(seed=seed), 0.0, 0, 0.0
    while done < max(ended, rows):
        batch = jobs_of(rng, done, 200, now_s)
        forecaster.forecast(now_s, snapshot_of(work=batch))
        now_s += 3600.0
        over = replace(batch, state=np.full(200, State.SUCCEEDED, np.int8), served_s=rng.lognormal(7.0, 1.8, 200))
        forecaster.update(now_s, snapshot_of(work=over))
        done += 200
        began_s = time.process_time()
        if (work := forecaster.due(now_s)) is not None:
            forecaster.adopt(work.run())
            fitting_s = time.process_time() - began_s
    beside = jobs_of(rng, done, BESIDE + asked, now_s)
    spent = []
    for number in range(BESIDE, BESIDE + asked + 1):
        rows_now = np.arange(number)
        seen = snapshot_of(work=_first(beside, rows_now))
        began_s = time.process_time()
        forecaster.forecast(now_s, seen)
        spent.append(1e3 * (time.process_time() - began_s))
    return spent[1:], fitting_s  # the first one met all who were there already


def _first(work: WorkloadTable, rows: np.ndarray) -> WorkloadTable:
    return WorkloadTable(**{name: getattr(work, name)[rows] for name in WorkloadTable.__dataclass_fields__})


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the JSON; 1 when a bar is missed."""
    given = options(__doc__, arguments, services=5000, jobs=3000, seed=1)
    services, asked = (QUICK_SERVICES, 50) if given.quick else (given.services, 300)
    bursts, minutes_s, served = play_services(services, given.seed)
    minutes = QUICK_MINUTES if given.quick else bursts.demands[0].rates.kept_steps
    demand_s = retrain_demand(bursts, served, minutes, given.seed)
    said("playing and fitting jobs")
    over, fitted = (QUICK_JOBS, QUICK_JOBS) if given.quick else (given.jobs, 8000)
    job_ms, jobs_s = play_jobs(over, asked, fitted, given.seed)
    minute_s, slowest_ms = float(np.median(minutes_s)), float(np.quantile(job_ms, 0.99))
    parts_s = {"requests": demand_s[0], "tokens": demand_s[1], "jobs": jobs_s}
    parts = ", ".join(f"{name} {took_s:.0f}" for name, took_s in parts_s.items())
    rows = (
        (f"a minute of {services:,} services, s of CPU (slowest {max(minutes_s):.2f})", judged(minute_s, MINUTE_S)),
        (f"a job, ms, 99th percentile of {asked} (median {np.median(job_ms):.1f})", judged(slowest_ms, JOB_MS)),
        (f"a retrain, s of CPU ({parts})", judged(sum(parts_s.values()), RETRAIN_S)),
        ("memory at its largest, GiB", judged(memory_gib(), MEMORY_GIB)),
    )
    found = {"services": services, "minute_s": minutes_s, "job_ms_p99": slowest_ms, "retrain_s": parts_s}
    return ended(given, FIGURE, rows, {**found, "minutes_of_history": minutes})


if __name__ == "__main__":
    raise SystemExit(main())
