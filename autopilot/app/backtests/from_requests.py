"""`backtest bursts`: reads a series or request file, resamples it to a regular step, and runs the rolling-origin
backtest.

Nothing is imputed: a step without a row is unknown, and so is a value that cannot be a demand. In a request file, steps
without a request are zero, because the file lists all requests.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autopilot.app.backtests.backtest_options import BackProgress, BurstsOptions, GateEvidence, counted
from autopilot.core.model.errors import InputError
from autopilot.core.model.snapshot import F64
from autopilot.core.model.units import format_duration
from models.evidence import burst_cases

if TYPE_CHECKING:
    from models.backtest_bursts import Run

MOST_CELLS = 30_000_000
"""Limit on series x steps after resampling: 240 MB a copy."""

LEAST_STEPS = 20
"""Series with fewer steps are not scored: their last fifth would hold three origins."""


@dataclass(frozen=True, slots=True)
class Series:
    """Contents of a file: `demand` [series, steps], NaN where unknown, and counts of unusual rows."""

    step_s: float
    names: list[str]
    demand: F64
    left_out_by_reason: dict[str, int] = field(default_factory=dict)
    assumed_by_reason: dict[str, int] = field(default_factory=dict)


def run(options: BurstsOptions, progress: BackProgress) -> dict[str, Any]:
    """The document of `backtest bursts`. Raises `InputError` naming the file, column or option, and the fix."""
    progress(0, 1, f"reading {options.path.name}")
    if options.series is not None:
        read = read_series(options.series)
    else:
        read = read_rates(options.path, options.step_s or 0.0)
    step_s, values = read.step_s, read.demand
    steps = [_steps_of(horizon_s, step_s) for horizon_s in options.horizons_s]
    if len(set(steps)) < len(steps):
        raise InputError(
            f"--horizons: two of them round to the same number of steps of {format_duration(step_s)}; name others"
        )
    _check_length(options.path, values, step_s, max(steps))

    from models.backtest_bursts import backtest, document
    from models.demand import Ask

    ask = Ask(step_s, tuple(steps), peak=options.target == "peak")
    found = backtest(read.names, values, ask, options.seed, time.process_time, progress)
    written = document(found)
    # the document lists a horizon as requested, though it is scored at the nearest whole step
    written["horizons"] = {
        f"{asked_s:g}": found for asked_s, found in zip(options.horizons_s, written["horizons"].values(), strict=True)
    }
    written |= {"left_out_by_reason": read.left_out_by_reason, "assumed_by_reason": read.assumed_by_reason}
    if options.evidence is not None:
        _fill(options.evidence, found, values, options.seed)
    return written


# --- what the gate is given -------------------------------------------------------------------------


def _fill(evidence: GateEvidence, run_: Run, values: F64, seed: int) -> None:
    """Losses of challenger, floor and champion by group and horizon, and the artifact that a promotion would serve."""
    from models.boosting import Boosting
    from models.demand import tidy

    boosting = next(model for model in run_.models if isinstance(model, Boosting))
    champion: F64 | None = None
    if evidence.champion is not None:
        try:
            raw = Boosting.from_content(evidence.champion, run_.ask).predict(tidy(values), run_.until, run_.ask)
        except InputError as error:
            evidence.champion_problem = str(error)
        else:
            champion = champion_promises(run_, raw)
    evidence.cases += burst_cases(
        run_.names,
        run_.first_test * run_.ask.step_s,
        run_.ask,
        run_.came,
        run_.mean,
        run_.upper,
        run_.floor_upper,
        champion,
    )
    if boosting.counted_work:  # otherwise there was too little data to fit one
        evidence.artifact = boosting.content()
    evidence.feature_schema = boosting.features
    evidence.parameters = {"seed": seed, "steps": list(run_.ask.steps), "levels": list(run_.ask.levels)}
    evidence.data = {"from_s": 0.0, "to_s": run_.until * run_.ask.step_s, "rows": boosting.rows}
    evidence.counted_work = run_.counted_work


def champion_promises(run_: Run, raw: F64) -> F64:
    """The forecasts for the test origins with `raw` instead of the newly fitted global model."""
    from models.backtest_bursts import spoken_for

    first = run_.first_test - run_.until
    raws = run_.all_raw | {"boosting": raw}
    _, upper = spoken_for(raws, run_.all_floor, run_.all_came, first, run_.root, run_.ask)
    return upper[:, first:]


# --- reading ----------------------------------------------------------------------------------------


def _steps_of(horizon_s: float, step_s: float) -> int:
    if horizon_s < 0.5 * step_s:
        raise InputError(
            f"--horizons: {format_duration(horizon_s)} is shorter than the step of the series, "
            f"{format_duration(step_s)}; name longer ones"
        )
    return max(1, round(horizon_s / step_s))


def _check_length(path: Path, values: F64, step_s: float, longest: int) -> None:
    steps = values.shape[1]
    needed = max(LEAST_STEPS, 5 * (longest + 1))
    if steps < needed:
        raise InputError(
            f"{path}: {steps} steps of {format_duration(step_s)}; a backtest of that horizon needs "
            f"{needed} (the last fifth is the test, and must contain it); provide a longer file or a "
            "shorter horizon"
        )
    if not np.isfinite(values).any():
        raise InputError(f"{path}: no usable value: all are missing, negative or infinite")


def read_series(path: Path) -> Series:
    """The series of a file with the columns t_s, service, value.

    The step is the median over services of the median time between their rows. Rows may come in any order; several rows
    in one step are averaged; a row without a time or a name is dropped. Raises `InputError`.
    """
    from simulator.traces.jobs import text_column
    from simulator.traces.table_files import number_array, read_table, require_columns

    frame = read_table(path)
    require_columns(frame, ("t_s", "service", "value"), path, "a series file")
    t_s, value = number_array(frame, "t_s", path), number_array(frame, "value", path)
    service = text_column(frame["service"])
    usable = np.isfinite(t_s) & (service != "")
    if not usable.any():
        raise InputError(f"{path}: no row has both a time (t_s) and a service")
    t_s, value, service = t_s[usable], value[usable], service[usable]
    names, row = np.unique(service.astype(str), return_inverse=True)
    step_s = _median_step(path, t_s, row, len(names))
    place = np.rint((t_s - t_s.min()) / step_s).astype(np.int64)
    values, unknown, more = _laid_out(path, row, place, value, len(names), step_s)
    left_out = {
        "without a time (t_s) or a service": int(np.count_nonzero(~usable)),
        "whose value is missing, negative or infinite": unknown,
    }
    assumed = {"several rows of a service in one step are averaged": more}
    return Series(step_s, names.tolist(), values, counted(left_out), counted(assumed))


def _median_step(path: Path, t_s: F64, row: NDArray[np.intp], series: int) -> float:
    order = np.lexsort((t_s, row))
    gap, same = np.diff(t_s[order]), np.diff(row[order]) == 0
    gap, owner = gap[same & (gap > 0.0)], row[order][1:][same & (gap > 0.0)]
    medians = [float(np.median(gap[owner == each])) for each in range(min(series, 1000)) if (owner == each).any()]
    if not medians:
        raise InputError(f"{path}: no service has two rows at different times (t_s), so there is no step")
    return float(np.median(medians))


def _laid_out(
    path: Path, row: NDArray[np.intp], place: NDArray[np.int64], value: F64, series: int, step_s: float
) -> tuple[F64, int, int]:
    """(mean of the usable values in each step, NaN where there is none; number of unusable values; number of values
    beyond one per step).
    """
    from models.demand import tidy

    steps = int(place.max()) + 1
    if steps * series > MOST_CELLS:
        raise InputError(
            f"{path}: {series} series of {steps:,} steps of {format_duration(step_s)} exceed the limit of "
            f"{MOST_CELLS:,} values; use a part of the file"
        )
    usable = tidy(value)
    known = ~np.isnan(usable)
    cell = row[known] * steps + place[known]
    count = np.bincount(cell, minlength=steps * series)
    total = np.bincount(cell, usable[known], minlength=steps * series)
    found = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    more = int(np.maximum(count - 1, 0).sum())
    return found.reshape(series, steps), int(np.count_nonzero(~known)), more


def read_rates(path: Path, step_s: float) -> Series:
    """Requests per second of each service of a request file, without the last, partial step."""
    from simulator.inference.requests import read_requests

    requests = read_requests(path)
    start_s = float(requests.t_s.min())
    place = ((requests.t_s - start_s) // step_s).astype(np.int64)
    steps = int(place.max())
    series = len(requests.services)
    if steps * series > MOST_CELLS:
        raise InputError(
            f"--step: {format_duration(step_s)} divides {path} into {steps:,} steps of {series} services, "
            f"more than {MOST_CELLS:,} values; use a longer step"
        )
    whole = place < steps
    cell = requests.service[whole] * steps + place[whole]
    count = np.bincount(cell, minlength=steps * series).astype(float)
    return Series(step_s, list(requests.services), count.reshape(series, steps) / step_s)
