"""The guarantee of forecasts against their floor, on a seeded zoo of generated series (docs/forecasting.md).

Each window goes through the rolling-origin backtest, or minute by minute through the controller's forecaster with its
gate, refits and conformal layer; refits there come when the history has doubled, not each 6 h. The floor is the last
value under the same layer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autopilot.app.backtests.gate import bootstrap_rng
from autopilot.core.model.forecast import REQUESTS
from autopilot.core.model.snapshot import F64
from models.backtest_bursts import backtest
from models.burst_demand import HORIZONS_S, STEP_S, Demand
from models.demand import LEVELS, Ask, came_after, tidy
from models.selection import pinball

LEAST_OUTCOMES = 1000
WORST_RATIO = 1.02
COVERAGE = (0.983, 0.997)
NO_ERROR_RATIO = 1e-3
"""Part of the mean demand below which an error is none: a floor that is exact can only be equalled."""

TOP = LEVELS.index(0.99)
"""Place of the 0.99 level among a promise's levels."""

CONTROLLER_STEPS = 2400
"""Most minutes that the controller's forecaster simulates."""


@dataclass(frozen=True, slots=True)
class Window:
    """Some series of one kind over the same steps. `horizons` are in steps; `start` is the first step of the trace."""

    kind: str
    step_s: float
    horizons: tuple[int, ...]
    start: int
    names: tuple[str, ...]
    values: F64  # [series, steps]


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


ZOO = (
    "ar",
    "season with drift of phase",
    "regimes",
    "counts with bursts",
    "heavy tails",
    "sparse",
    "random walk",
    "atoms",
)
MIXED = "zoo mixed"


def zoo_windows(seed: int, steps: int = 5400, series: int = 3, draws: int = 1) -> Iterator[Window]:
    """Windows of generated minutes, `draws` of each kind, and the first draw of all kinds together."""
    every: dict[str, F64] = {}
    for number, kind in enumerate(ZOO):
        for draw in range(draws):
            rng = np.random.default_rng((seed, number, draw))
            values = np.array([_drawn(kind, rng, steps) for _ in range(series)])
            names = tuple(f"{kind} {draw}.{row}" for row in range(series))
            yield Window(f"zoo {kind}", 60.0, (2, 5, 15), 0, names, values)
            if not draw:
                every |= dict(zip(names, values, strict=True))
    yield Window(MIXED, 60.0, (2, 5, 15), 0, tuple(every), np.array(list(every.values())))


def _drawn(kind: str, rng: np.random.Generator, steps: int) -> F64:
    """One series of a kind of the zoo."""
    at = np.arange(steps)
    if kind == "ar":
        noise, pull = rng.normal(0.0, 1.0, steps), rng.uniform(0.3, 0.98)
        state = np.zeros(steps)
        for step in range(1, steps):
            state[step] = pull * state[step - 1] + noise[step]
        return np.maximum(10.0 + state * rng.uniform(0.5, 2.0), 0.0)
    if kind == "season with drift of phase":
        phase = np.cumsum(rng.normal(0.0, 0.01, steps)) + rng.uniform(0.0, 6.3)
        day = 1.0 + rng.uniform(0.3, 0.9) * np.sin(2.0 * np.pi * at / 1440.0 + phase)
        return rng.lognormal(2.0, 1.0) * day * rng.gamma(20.0, 0.05, steps)
    if kind == "regimes":
        level, length = [], 0
        while length < steps:
            stay = int(rng.geometric(1.0 / 400.0))
            level.append(np.full(stay, rng.lognormal(2.0, 1.0)))
            length += stay
        shape = np.concatenate(level)[:steps]
        return shape * np.where(np.arange(steps) // 900 % 2, rng.gamma(5.0, 0.2, steps), rng.gamma(80.0, 0.0125, steps))
    if kind == "counts with bursts":
        rate = np.full(steps, rng.uniform(0.5, 5.0))
        for start in rng.integers(0, steps, steps // 300):
            rate[start : start + int(rng.integers(3, 40))] *= rng.uniform(2.0, 12.0)
        return rng.poisson(rate).astype(float)
    if kind == "heavy tails":
        return rng.lognormal(0.0, 0.3) * np.minimum(1.0 + rng.pareto(rng.uniform(1.6, 3.0), steps), 1e4)
    if kind == "sparse":
        awake = rng.random(steps) < rng.uniform(0.005, 0.1)
        return np.where(awake, 1.0 + rng.poisson(2.0, steps), 0.0)
    if kind == "random walk":
        return np.abs(np.cumsum(rng.normal(0.0, 1.0, steps)) + 50.0)
    return np.round(rng.gamma(2.0, 1.0, steps)) * float(rng.integers(1, 9))
