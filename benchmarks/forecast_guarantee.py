"""Is a forecast ever worse than its floor? Every demand series of the real traces, and a zoo of generated ones.

Usage: python -m benchmarks.forecast_guarantee [--sample] [--only TEXT] [--seed 0] [--rows FILE] [--json OUT]

Each window (some series of one kind over the same steps; traces are cut at several starts) goes through the
rolling-origin backtest. Windows of minutes also go through the controller's forecaster, with its gate, refits and
conformal layer; refits there come when the history has doubled, not each 6 h. The floor is the last value under the
same layer.

The guarantee, for every series and horizon with 1,000 scored outcomes: mean error and 0.99 pinball at most 1.02 of the
floor's, pinball at most 1.00 (rounded) for 95 % of them, and coverage of the 0.99 bound within .983 to .997, widened by
the 95 % interval of a binomial count of (outcomes / horizon) blocks. Shorter series are pooled by kind. An outcome
equal to its bound is covered. An error of a thousandth of the series' mean demand counts as none. `--sample`: the zoo,
shorter. `--rows`: keep measured rows in a file, and resume from it. The exit code is 1 when the guarantee is missed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain

import numpy as np

from autopilot.app.backtests.gate import bootstrap_rng
from autopilot.core.model.forecast import REQUESTS
from autopilot.core.model.snapshot import F64
from benchmarks.forecast_series import MIXED, Window, real_windows, zoo_windows
from benchmarks.kit import data_folder, keep_row, kept_rows, options, table, write_json
from models.backtest_bursts import backtest
from models.burst_demand import HORIZONS_S, STEP_S, Demand
from models.demand import LEVELS, Ask, came_after, tidy
from models.selection import pinball

LEAST_OUTCOMES = 1000
WORST_RATIO, USUAL_RATIO, USUAL_SHARE = 1.02, 1.005, 0.95
COVERAGE = (0.983, 0.997)
NO_ERROR_RATIO = 1e-3
"""Part of the mean demand below which an error is none: a floor that is exact can only be equalled."""

TOP = LEVELS.index(0.99)
"""Place of the 0.99 level among a promise's levels."""

CONTROLLER_STEPS = 2400
"""Most minutes that the controller's forecaster simulates."""


@dataclass(frozen=True, slots=True)
class Row:
    """One series and horizon: summed losses of forecast and floor over the mean demand, and the coverage of both."""

    path: str
    kind: str
    start: int
    series: str
    steps: int
    outcomes: int
    error: float
    floor_error: float
    pinball: float
    floor_pinball: float
    covered: int
    bound: float
    floor_bound: float

    @property
    def error_ratio(self) -> float:
        """Mean error over the floor's."""
        return _ratio(self.error, self.floor_error, self.outcomes)

    @property
    def pinball_ratio(self) -> float:
        """0.99 pinball over the floor's; of bounds an error of a thousandth is a hundredth of that in loss."""
        return _ratio(self.pinball, self.floor_pinball, 0.01 * self.outcomes)

    @property
    def headroom(self) -> float:
        """Mean 0.99 bound over the floor's."""
        return _ratio(self.bound, self.floor_bound, self.outcomes)

    @property
    def coverage(self) -> float:
        """Share of outcomes within the 0.99 bound."""
        return self.covered / self.outcomes

    @property
    def kept(self) -> bool:
        """True when the whole guarantee holds for one series."""
        worst = max(self.error_ratio, self.pinball_ratio)
        least, most = coverage_bounds(self.outcomes / self.steps)
        return worst <= WORST_RATIO and least <= self.coverage <= most


def _ratio(ours: float, floor: float, outcomes: float) -> float:
    none = NO_ERROR_RATIO * outcomes
    return (ours + none) / (floor + none)


def coverage_bounds(blocks: float) -> tuple[float, float]:
    """Least and most coverage for a number of independent outcomes: the promised range, widened by chance."""
    from scipy.stats import binom

    count = max(1, int(blocks))
    return float(binom.ppf(0.025, count, COVERAGE[0]) / count), float(binom.ppf(0.975, count, COVERAGE[1]) / count)


def _error(outcome: F64, promised: F64) -> float:
    return float(np.abs(outcome - promised[:, 0]).sum())


def _pinball(outcome: F64, promised: F64) -> float:
    return float(pinball(outcome - promised[:, TOP], 0.99).sum())


def scored(path: str, window: Window, steps: Sequence[int], came: F64, upper: F64, floor: F64) -> Iterator[Row]:
    """Rows of promises [series, origins, horizons, levels] of both, for the outcomes `came` [series, origins,
    horizons].
    """
    for row, name in enumerate(window.names):
        mean = max(float(np.nanmean(tidy(window.values[row]))), 1e-12)
        for place, ahead in enumerate(steps):
            outcome = came[row, :, place]
            ours, theirs = upper[row, :, place], floor[row, :, place]
            known = ~(np.isnan(outcome) | np.isnan(ours).any(axis=1) | np.isnan(theirs).any(axis=1))
            if not known.any():
                continue
            outcome, ours, theirs = outcome[known] / mean, ours[known] / mean, theirs[known] / mean
            yield Row(
                path,
                window.kind,
                window.start,
                name,
                ahead,
                int(known.sum()),
                error=_error(outcome, ours),
                floor_error=_error(outcome, theirs),
                pinball=_pinball(outcome, ours),
                floor_pinball=_pinball(outcome, theirs),
                covered=int((outcome <= ours[:, TOP]).sum()),
                bound=float(ours[:, TOP].sum()),
                floor_bound=float(theirs[:, TOP].sum()),
            )


def backtested(window: Window, seed: int) -> Iterator[Row]:
    """The window through the rolling-origin backtest, as `autopilot backtest bursts` runs it."""
    ask = Ask(window.step_s, window.horizons)
    run = backtest(window.names, window.values, ask, seed, time.process_time, lambda *_: None)
    floor = run.floor_upper.copy()
    floor[..., 0] = run.floor_raw[..., 0]
    yield from scored("backtest", window, ask.steps, run.came, run.upper, floor)


def controlled(window: Window, seed: int) -> Iterator[Row]:
    """The window minute by minute through the controller's forecaster, and through one that is never fitted."""
    values = window.values[:, :CONTROLLER_STEPS]
    ours = Demand(REQUESTS, seed, HORIZONS_S, gate=bootstrap_rng)
    alone = Demand(REQUESTS, seed, HORIZONS_S)
    told: list[list[F64]] = [[], []]
    fitted = 0
    for step in range(values.shape[1]):
        for demand, kept in zip((ours, alone), told, strict=True):
            demand.observe(window.names, np.full(len(values), step), values[:, step])
            demand.settle(step * STEP_S)
            demand.foresee()
            kept.append(demand.promises())
        fit = ours.wanted()
        if fit is not None and step + 1 >= 2 * fitted:
            ours.adopt(fit.run())
            fitted = step + 1
    came = came_after(values, 0, ours.ask)
    yield from scored("controller", window, ours.ask.steps, came, *(np.stack(each, axis=1) for each in told))


def measured(windows: Iterator[Window], seed: int, only: str, rows: str) -> list[Row]:
    """Rows of all windows; with `rows`, rows of an interrupted run are read from there."""
    found = kept_rows(rows, Row)
    done = {(row.path, row.kind, row.start, row.series) for row in found}
    for window in windows:
        if only not in window.kind:
            continue
        for path, run in _paths(window):
            if any((path, window.kind, window.start, name) in done for name in window.names):
                continue
            began_s = time.process_time()
            for row in run(window, seed):
                found.append(row)
                keep_row(rows, row)
            print(
                f"  {path}, {window.kind} from {window.start}: {len(window.names)} series, "
                f"{time.process_time() - began_s:.0f} s of CPU",
                flush=True,
            )
    return found


def _paths(window: Window) -> list[tuple[str, Callable[[Window, int], Iterator[Row]]]]:
    """How a window is judged: by the backtest, and minutes from the beginning of a trace by the controller too."""
    paths: list[tuple[str, Callable[[Window, int], Iterator[Row]]]] = []
    if window.kind != MIXED:
        paths.append(("backtest", backtested))
    if window.kind == MIXED or (window.step_s == STEP_S and window.start == 0 and "zoo" not in window.kind):
        paths.append(("controller", controlled))
    return paths


def judged_rows(rows: Sequence[Row]) -> list[Row]:
    """Rows with enough outcomes; the others pooled by path, kind and horizon."""
    long = [row for row in rows if row.outcomes >= LEAST_OUTCOMES]
    pools: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        if row.outcomes < LEAST_OUTCOMES:
            pools.setdefault((row.path, row.kind, row.steps), []).append(row)
    for (path, kind, steps), part in pools.items():
        sums = {
            name: sum(getattr(row, name) for row in part)
            for name in Row.__dataclass_fields__
            if name not in ("path", "kind", "start", "series", "steps")
        }
        long.append(Row(path=path, kind=kind, start=-1, series=f"{len(part)} short ones", steps=steps, **sums))
    return long


def show(rows: Sequence[Row]) -> bool:
    """Print medians by kind, the worst ten of each, and whether the guarantee is kept."""
    kinds: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        kinds.setdefault((row.kind, row.path), []).append(row)
    table(
        (
            "series and horizons",
            "count",
            "kept",
            "error",
            "worst",
            "pinball .99",
            "worst",
            "coverage",
            "least",
            "most",
            "headroom",
        ),
        [
            [
                f"{kind}, {path}",
                str(len(part)),
                str(sum(row.kept for row in part)),
                *(f"{each([row.error_ratio for row in part]):.3f}" for each in (np.median, max)),
                *(f"{each([row.pinball_ratio for row in part]):.3f}" for each in (np.median, max)),
                *(f"{each([row.coverage for row in part]):.4f}" for each in (np.mean, min, max)),
                f"{np.median([row.headroom for row in part]):.2f}",
            ]
            for (kind, path), part in sorted(kinds.items())
        ],
    )
    for what, key in (
        ("error", lambda row: -row.error_ratio),
        ("0.99 pinball", lambda row: -row.pinball_ratio),
        ("coverage", _margin_of_coverage),
    ):
        print(f"\nthe worst ten by {what}:")
        table(
            ("series", "horizon", "outcomes", "error", "pinball .99", "coverage", "allowed"),
            [
                [
                    f"{row.kind} {row.start} {row.series}, {row.path}",
                    str(row.steps),
                    str(row.outcomes),
                    f"{row.error_ratio:.3f}",
                    f"{row.pinball_ratio:.3f}",
                    f"{row.coverage:.4f}",
                    _allowed(row),
                ]
                for row in sorted(rows, key=key)[:10]
            ],
        )
    usual = float(np.mean([row.pinball_ratio < USUAL_RATIO for row in rows]))
    errors = sum(row.error_ratio > WORST_RATIO for row in rows)
    losses = sum(row.pinball_ratio > WORST_RATIO for row in rows)
    outside = sum(_margin_of_coverage(row) < 0.0 for row in rows)
    print(
        f"\n{len(rows)} series and horizons: error above {WORST_RATIO} of the floor's for {errors}, 0.99 pinball "
        f"for {losses}; "
        f"pinball at most 1.00, rounded, for {usual:.1%} (goal {USUAL_SHARE:.0%}); coverage outside for {outside}"
    )
    return not errors and not losses and not outside and usual >= USUAL_SHARE


def _margin_of_coverage(row: Row) -> float:
    """How far inside its bounds the coverage lies; negative outside."""
    least, most = coverage_bounds(row.outcomes / row.steps)
    return min(row.coverage - least, most - row.coverage)


def _allowed(row: Row) -> str:
    least, most = coverage_bounds(row.outcomes / row.steps)
    return f"{least:.3f}-{most:.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the JSON; 1 when the guarantee is missed."""
    given = options(str(__doc__), arguments, sample=False, only="", seed=0, rows="")
    if given.sample or given.quick:
        windows = zoo_windows(given.seed, steps=1600, series=3)
    else:
        windows = chain(zoo_windows(given.seed), real_windows(data_folder()))
    rows = measured(windows, given.seed, given.only, given.rows)
    judged = judged_rows(rows)
    kept = show(judged)
    write_json(
        given.json,
        {
            "benchmark": "forecast_guarantee",
            "kept": kept,
            "rows": [
                asdict(row) | {"error_ratio": row.error_ratio, "pinball_ratio": row.pinball_ratio, "kept": row.kept}
                for row in judged
            ],
        },
    )
    return int(not kept)


if __name__ == "__main__":
    raise SystemExit(main())
