"""Rolling-origin backtest of the burst forecasts: the forecasts at the time, and the outcomes.

Time is divided in three: the first three fifths to fit, the fourth to calibrate and to choose a model for each series,
the last to test. No fit and no choice uses the test part; margins keep learning through it, outcome by outcome, as in
the controller. The floor, last value under the same layer, runs alongside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.snapshot import F64
from models.demand import Ask, DemandModel, came_after, tidy, usual
from models.demand_models import fitted_further, models_for
from models.layer import Layer, replayed, states_spread
from models.selection import Choice, choose, composed, pinball
from models.weighing import Weighing, weighed

SCHEMA = "gpu-autopilot/backtest/1"

FIT_PART, CALIBRATED_PART = 0.6, 0.8

EIGHTHS = 8

MOST_RENEWALS = 4000
"""Renewals of the margins over calibration and test: with tens of thousands of steps they are renewed every few."""

CpuSeconds = Callable[[], float]
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """A finished backtest, for the document and for the gate. Arrays are [series, origins, horizons(, levels)]."""

    ask: Ask
    names: tuple[str, ...]
    came: F64
    all_came: F64
    all_raw: dict[str, F64]  # by model, calibration and test, not yet calibrated
    all_floor: F64  # forecasts of the floor, calibration and test
    root: F64
    models: tuple[DemandModel, ...]
    until: int
    upper: F64
    floor_raw: F64
    floor_upper: F64
    mean: F64
    step_error: F64
    choice: Choice
    first_test: int
    last_step: int
    fit_cpu_s: float
    predict_cpu_s: float
    counted_work: int


def backtest(names: Sequence[str], values: F64, ask: Ask, seed: int, cpu_s: CpuSeconds, progress: Progress) -> Run:
    """Run it over `values` [series, steps]."""
    values = tidy(values)
    steps = values.shape[1]
    until, first_test = round(FIT_PART * steps), round(CALIBRATED_PART * steps)
    models = models_for(seed)
    fit_s, predict_s = 0.0, 0.0
    raw: dict[str, F64] = {}
    for done, model in enumerate(models):
        progress(done, len(models) + 2, f"fitting {model.name}")
        began_s = cpu_s()
        model.fit(values, until, ask)
        fitted_s = cpu_s()
        raw[model.name] = model.predict(values, until, ask)
        fit_s, predict_s = fit_s + fitted_s - began_s, predict_s + cpu_s() - fitted_s
    came = came_after(values, until, ask)
    root = np.sqrt(usual(values[:, :until]))
    progress(len(models), len(models) + 2, "calibrating the floor")
    floor = raw[models[0].name]
    floor_upper = calibrated(floor, came, root, ask)
    progress(len(models) + 1, len(models) + 2, "choosing and calibrating")
    choice, upper = spoken_for(raw, floor_upper, came, first_test - until, root, ask)
    began_s = cpu_s()
    if further := fitted_further(models, choice, values, until):
        raw |= {model.name: model.predict(values, until, ask) for model in further}
        fit_s += cpu_s() - began_s
        choice, upper = spoken_for(raw, floor_upper, came, first_test - until, root, ask)
    test = slice(first_test - until, None)
    return Run(
        ask=ask,
        names=tuple(names),
        came=came[:, test],
        all_came=came,
        all_raw=raw,
        all_floor=floor_upper,
        root=root,
        models=models,
        until=until,
        upper=upper[:, test],
        floor_raw=floor[:, test],
        floor_upper=floor_upper[:, test],
        mean=usual(values),
        step_error=_step_error(values[:, :first_test]),
        choice=choice,
        first_test=first_test,
        last_step=steps,
        fit_cpu_s=fit_s,
        predict_cpu_s=predict_s,
        counted_work=sum(int(getattr(model, "counted_work", 0)) for model in models),
    )


def spoken_for(
    raw: Mapping[str, F64],
    floor: F64,
    came: F64,
    first_test: int,
    root: F64,
    ask: Ask,
    renewals: int = MOST_RENEWALS,
) -> tuple[Choice, F64]:
    """(choice, forecasts) over the calibration and test origins of `raw`, by forecasts of each model, the floor's
    first.

    `floor` are the floor's forecasts. The choice uses outcomes up to the origin `first_test` only; its weight relative
    to the floor follows all outcomes up to each origin.
    """
    judged = _known_at(came, first_test, ask)
    choice = choose({name: one[:, :first_test] for name, one in raw.items()}, judged, root, ask)
    tried = composed(raw, choice)
    model, floor = calibrated(tried, came, root, ask, renewals), floor.copy()
    # the median needs no calibration, and exists before the first margins
    model[..., 0], floor[..., 0] = tried[..., 0], raw[choice.names[0]][..., 0]
    weighing = Weighing(ask.levels, len(came), ask.steps, choice.doubt)
    return choice, weighed(weighing, floor, model, came)


def calibrated(raw: F64, came: F64, root: F64, ask: Ask, renewals: int = MOST_RENEWALS) -> F64:
    """Calibrated forecasts for `raw` [series, origins, horizons, levels].

    Margins are renewed at every n-th origin, n the whole part of their number over `renewals`, one at least.
    """
    refresh = max(1, raw.shape[1] // renewals)
    return replayed(Layer(ask.levels, len(raw), ask.steps, stated=states_spread(raw)), raw, came, root, refresh=refresh)


def _known_at(came: F64, stop: int, ask: Ask) -> F64:
    """Outcomes known by the origin `stop` for the origins before it; NaN for the rest. Shape [series, stop,
    horizons].
    """
    found = came[:, :stop].copy()
    for place, steps in enumerate(ask.steps):
        found[:, max(0, stop - steps) :, place] = np.nan
    return found


def _step_error(values: F64) -> F64:
    """Mean absolute change from step to step, the scale of MASE (Hyndman and Koehler 2006). NaN without data."""
    change = np.abs(np.diff(values, axis=1))
    known = ~np.isnan(change)
    found = np.where(known, change, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return np.where(known.any(axis=1) & (found > 0.0), found, np.nan)


def document(run: Run) -> dict[str, Any]:
    """The document of `backtest bursts --json`. An unmeasurable figure is null."""
    horizons = {}
    for place, steps in enumerate(run.ask.steps):
        ours = _figures(run, place, run.upper, run.upper)
        floor = _figures(run, place, run.floor_raw, run.floor_upper)
        with np.errstate(invalid="ignore", divide="ignore"):
            # a floor without error can only be equalled
            relative = np.where((floor["mae"] == 0.0) & (ours["mae"] == 0.0), 1.0, ours["mae"] / floor["mae"])
            scaled = ours["mae"] * run.mean / run.step_error
        chosen = [run.choice.names[each] for each in run.choice.chosen[:, place]]
        horizons[f"{steps * run.ask.step_s:g}"] = {
            "mae_vs_naive": _median(relative),
            "mase": _median(scaled),
            "pinball_p90": _median(ours["pinball_p90"]),
            "pinball_p99": _median(ours["pinball_p99"]),
            "coverage_p90": _mean(ours["coverage_p90"]),
            "coverage_p99": _mean(ours["coverage_p99"]),
            "coverage_p99_worst_eighth": _worst_eighth(run, place),
            "headroom_p99": _median(ours["headroom_p99"]),
            "chosen": {name: chosen.count(name) for name in run.choice.names if name in chosen},
            "floor": {
                "mae": _median(floor["mae"]),
                "pinball_p90": _median(floor["pinball_p90"]),
                "pinball_p99": _median(floor["pinball_p99"]),
                "coverage_p99": _mean(floor["coverage_p99"]),
                "headroom_p99": _median(floor["headroom_p99"]),
            },
        }
    return {
        "schema": SCHEMA,
        "series": len(run.names),
        "horizons": horizons,
        "fit_cpu_s": round(run.fit_cpu_s, 3),
        "predict_cpu_s": round(run.predict_cpu_s, 3),
    }


def _figures(run: Run, place: int, raw: F64, upper: F64) -> dict[str, F64]:
    """By series: errors divided by the series' mean, coverage, and mean 0.99 bound over the mean; NaN: unknown."""
    came = run.came[:, :, place]
    found = {"mae": _row_means(np.abs(came - raw[:, :, place, 0])) / run.mean}
    for level, name in ((0.9, "p90"), (0.99, "p99")):
        bound = upper[:, :, place, run.ask.levels.index(level)]
        error = came - bound
        found[f"pinball_{name}"] = _row_means(pinball(error, level)) / run.mean
        found[f"coverage_{name}"] = _row_means(np.where(np.isnan(error), np.nan, error <= 0.0))
        found[f"headroom_{name}"] = _row_means(np.where(np.isnan(error), np.nan, bound)) / run.mean
    return found


def _worst_eighth(run: Run, place: int) -> float | None:
    """Smallest pooled 0.99 coverage of eight equal parts of the test time."""
    bound = run.upper[:, :, place, run.ask.levels.index(0.99)]
    error = run.came[:, :, place] - bound
    last = run.came.shape[1] - run.ask.steps[place]
    kept = [
        _mean(np.where(np.isnan(part), np.nan, part <= 0.0).ravel())
        for part in np.array_split(error[:, : max(last, 0)], EIGHTHS, axis=1)
    ]
    known = [each for each in kept if each is not None]
    return min(known) if known else None


def _row_means(values: F64) -> F64:
    known = ~np.isnan(values)
    total = np.where(known, values, 0.0).sum(axis=1)
    return np.where(known.any(axis=1), total / np.maximum(known.sum(axis=1), 1), np.nan)


def _median(values: F64) -> float | None:
    known = values[np.isfinite(values)]
    return round(float(np.median(known)), 6) if len(known) else None


def _mean(values: NDArray[np.float64]) -> float | None:
    known = values[np.isfinite(values)]
    return round(float(known.mean()), 6) if len(known) else None
