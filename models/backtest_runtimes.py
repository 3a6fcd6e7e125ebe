"""Time-ordered backtest of run-time forecasts: 60/15/25, without any use of later information.

The first 60 % of the jobs (those that had ended by then) fit the models, the next 15 % warm up weights and calibration,
the last 25 % are the test. A job is forecast at its submission from the knowledge of that time (models/rehearsal.py),
and again after an hour of run time, with the model of the loop for it (models/lasting.py). The floor is the recent-kNN
(models/recent.py), for the remaining time the quantiles of all jobs of the first part that ran for an hour, under the
same calibration. Weights and calibration keep learning through the test.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autopilot.core.model.errors import InputError
from autopilot.core.model.forecast import LEVELS
from autopilot.core.model.snapshot import F64, I64, Bools
from models.censoring import completion_weights
from models.lasting import OUTLIVED_S
from models.opinions import MEDIAN, add_boosted, recent_opinions
from models.recent import Asked, Kept, Recent, floor_forecast, joined, quantiles, taken
from models.rehearsal import Blend, Given, JobHistory, Promises, calibrated, left_after_an_hour
from models.runtime_boosting import Boosted, BoostingRules, fit_boosted, stored_boosted
from models.runtime_features import feature_names, runtime_features

SCHEMA = "gpu-autopilot/backtest-runtimes/1"

TRAIN, CALIBRATE = 0.60, 0.15

LEAST_JOBS = 50
"""Minimum number of jobs for a split into three parts."""

BATCH = 2048
P90 = LEVELS.index(0.9)

LEAST_OUTLIVED = 30
"""Minimum number of jobs that outlived an hour for quantiles of them."""

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Watched:
    """The information available on each job at its submission."""

    features: F64
    opinions: F64
    candidates: np.ndarray
    floor: F64


def watch(history: JobHistory, progress: Progress) -> Watched:
    """Replay the jobs in time, learning each run time after the end of the job. Causal by construction."""
    recent, asked, log_s = Recent(), history.asked, history.log_s
    end_s = history.end_s
    ends = np.argsort(end_s, kind="stable")[: int(np.count_nonzero(~np.isnan(end_s)))]
    told: list[tuple[tuple[Hashable, ...], I64]] = []
    parts: list[Kept] = []
    blocks: list[Watched] = []
    done = 0
    for job in range(len(asked)):
        now_s = float(asked.submit_s[job])
        while done < len(ends) and end_s[ends[done]] < now_s:
            ended = int(ends[done])
            recent.end(*told[ended], float(asked.submit_s[ended]), float(log_s[ended]), float(end_s[ended]))
            done += 1
        kins = history.kins(job)
        rows = recent.slots(kins)
        parts.append(recent.gather(rows[None, :], np.array([now_s])))
        told.append((kins, recent.submit(rows, now_s)))
        if len(parts) == BATCH or job == len(asked) - 1:
            blocks.append(_describe(asked, job + 1 - len(parts), joined(parts)))
            parts.clear()
            progress("watching the jobs", (job + 1) / len(asked))
    return Watched(
        *(
            np.concatenate([getattr(block, name) for block in blocks])
            for name in ("features", "opinions", "candidates", "floor")
        )
    )


def _describe(asked: Asked, first: int, kept: Kept) -> Watched:
    part = slice(first, first + len(kept.count))
    block = taken(asked, part)
    opinions, candidates = recent_opinions(kept)
    return Watched(
        runtime_features(block, kept, opinions, candidates),
        opinions,
        candidates,
        floor_forecast(kept, LEVELS),
    )


@dataclass(frozen=True, slots=True)
class Backtest:
    """The result of a backtest: the document of `--json`, the models, and their test data."""

    document: dict[str, Any]
    models: Fitted
    total: Judged
    hour: Judged
    trained: tuple[float, float, int]  # first and last submission of the training part, and its jobs
    champion: Judged | None = None
    champion_problem: str = ""


def run_backtest(
    history: JobHistory,
    cpu: Callable[[], float],
    progress: Progress,
    *,
    seed: int = 0,
    rules: BoostingRules | None = None,
    champion: Mapping[str, Any] | None = None,
    schema: Sequence[str] = (),
) -> Backtest:
    """Backtest the blend, the floor and, if given, a stored model in place of the fitted one.

    `champion` is the content of that model, fitted on the features `schema`. `cpu` returns the CPU seconds used so far.
    Raises `InputError` for too few jobs.
    """
    known = np.flatnonzero(~np.isnan(history.duration_s))
    if len(known) < LEAST_JOBS:
        raise InputError(f"a backtest needs at least {LEAST_JOBS} jobs with a run time; there are {len(known)}")
    first, test = known[int(TRAIN * len(known))], known[int((TRAIN + CALIBRATE) * len(known))]
    began = cpu()
    watched = watch(history, progress)
    watching_s = cpu() - began
    progress("fitting", 0.0)
    began = cpu()
    models = fit_models(history, watched, int(first), rules or BoostingRules(), seed)
    fit_cpu_s = cpu() - began
    progress("forecasting", 0.0)
    began = cpu()
    later = known[known >= first]
    total = _judge_total(history, watched, models.boosted, later, later >= test)
    progress("forecasting", 0.5)
    hour = _judge_hour(history, models.usual_left, later, float(history.asked.submit_s[test]))
    predict_cpu_s = watching_s + cpu() - began
    rival, problem = None, ""
    if champion is not None:
        try:
            served = stored_boosted(champion, schema, feature_names(history.others))
            rival = _judge_total(history, watched, served, later, later >= test)
        except InputError as error:
            problem = str(error)
    progress("done", 1.0)
    document = {
        "schema": SCHEMA,
        "jobs": len(known),
        "tested": int(np.count_nonzero(later >= test)),
        **_scores(total.blend, total.log_s),
        "remaining": {"3600": _left_scores(hour.blend, hour.log_s)},
        "floor": {
            **_scores(total.floor, total.log_s),
            "remaining": {"3600": _left_scores(hour.floor, hour.log_s)},
        },
        "fit_cpu_s": fit_cpu_s,
        "predict_cpu_s": predict_cpu_s,
    }
    submit_s = history.asked.submit_s
    trained = (float(submit_s[0]), float(submit_s[first]), int(first))
    return Backtest(document, models, total, hour, trained, rival, problem)


@dataclass(frozen=True, slots=True)
class Fitted:
    """The models of the first part: boosting, None with too little data, and the floor of the remaining time
    [levels].
    """

    boosted: Boosted | None
    usual_left: F64


def fit_models(history: JobHistory, watched: Watched, first: int, rules: BoostingRules, seed: int) -> Fitted:
    """Fit on the jobs before `first` ended by its submission, weighted for those still open."""
    cut_s = float(history.asked.submit_s[first])
    start_s, log_s = history.start_s[:first], history.log_s[:first]
    ended = start_s + history.duration_s[:first] < cut_s
    spent_s = np.where(ended, history.duration_s[:first], np.maximum(cut_s - start_s, 0.0))
    weight = completion_weights(spent_s, ended)
    rows = np.flatnonzero(ended)
    features = watched.features[rows]
    boosted = fit_boosted(features, log_s[rows], weight[rows], LEVELS, rules, seed)
    return Fitted(boosted, usual_left(log_s[rows], weight[rows]))


def usual_left(log_s: F64, weight: F64) -> F64:
    """The floor: quantiles at LEVELS of log(run time - an hour) of all longer jobs; NaN if they are few.

    `weight` [jobs] are those of models/censoring.py; each job counts with its weight (rounded).
    """
    ended_s = np.repeat(np.exp(log_s), np.rint(weight).astype(np.int64))
    left = ended_s[ended_s > OUTLIVED_S] - OUTLIVED_S
    if len(left) < LEAST_OUTLIVED:
        return np.full(len(LEVELS), np.nan)
    return quantiles(np.log(np.maximum(left, 1.0)), LEVELS)


@dataclass(frozen=True, slots=True)
class Judged:
    """The test of one target, in order of the forecasts: forecast quantiles and outcomes."""

    rows: I64  # of the history
    made_s: F64
    log_s: F64
    blend: F64
    floor: F64


def _judge_total(history: JobHistory, watched: Watched, boosted: Boosted | None, later: I64, tested: Bools) -> Judged:
    asked = history.asked
    opinions = watched.opinions[later]
    if boosted is not None:
        add_boosted(opinions, watched.candidates[later], boosted.predict(watched.features[later]))
    promises = Promises(asked.submit_s[later], history.start_s[later], history.log_s[later])
    blend = calibrated(promises, Blend(history, later, opinions))
    floor = calibrated(promises, Given(watched.floor[later]))
    return Judged(later[tested], promises.made_s[tested], promises.log_s[tested], blend[tested], floor[tested])


def _judge_hour(history: JobHistory, usual: F64, later: I64, test_s: float) -> Judged:
    """Remaining time of the jobs outliving the first hour, forecast at that moment."""
    rows = later[history.duration_s[later] > OUTLIVED_S]
    made_s = history.start_s[rows] + OUTLIVED_S
    rows, made_s = rows[np.argsort(made_s, kind="stable")], np.sort(made_s)
    left = np.log(np.maximum(history.duration_s[rows] - OUTLIVED_S, 1.0))
    promises = Promises(made_s, made_s, left)
    blend = calibrated(promises, Given(left_after_an_hour(history, rows)))
    floor = calibrated(promises, Given(np.tile(usual, (len(rows), 1))))
    tested = history.asked.submit_s[rows] >= test_s
    return Judged(rows[tested], made_s[tested], left[tested], blend[tested], floor[tested])


def _scores(quantile: F64, log_s: F64) -> dict[str, float | None]:
    """Scores of total run times; the middle level is the point forecast. None without forecasts."""
    known = ~np.isnan(quantile[:, MEDIAN])
    point, came = quantile[known, MEDIAN], log_s[known]
    if not len(came):
        return dict.fromkeys(
            (
                "median_relative_error",
                "r2_log",
                "mae_log",
                "under_ratio",
                "pinball_p90",
                "coverage_p90",
                "coverage_p90_worst_tenth",
            )
        )
    spread = float(np.sum((came - came.mean()) ** 2))
    tenths = [part.mean() for part in np.array_split(came <= quantile[known, P90], 10) if len(part)]
    return {
        "median_relative_error": float(np.median(np.abs(np.expm1(point - came)))),
        "r2_log": 1.0 - float(np.sum((came - point) ** 2)) / spread if spread > 0.0 else None,
        "mae_log": float(np.mean(np.abs(came - point))),
        "under_ratio": float(np.mean(came > point)),
        **_left_scores(quantile[known], came),
        "coverage_p90_worst_tenth": float(min(tenths)),
    }


def _left_scores(quantile: F64, log_s: F64) -> dict[str, float | None]:
    """Pinball loss (in logs) and coverage of the 0.9 quantile; None without forecasts."""
    upper = quantile[:, P90]
    known = ~np.isnan(upper)
    if not known.any():
        return {"pinball_p90": None, "coverage_p90": None}
    error = log_s[known] - upper[known]
    return {
        "pinball_p90": float(np.mean(np.maximum(0.9 * error, -0.1 * error))),
        "coverage_p90": float(np.mean(error <= 0.0)),
    }
