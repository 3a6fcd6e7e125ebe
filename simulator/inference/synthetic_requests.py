"""Synthetic inference requests with the burstiness of real ones.

A daily shape with slow noise, gamma-distributed gaps whose coefficient of variation is above one, and log-normal token
counts, all fitted to published traces by `scripts/fit_requests.py`, which prints the rows of `SHAPES`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopilot.core.model.errors import InputError
from simulator.inference.requests import Arrivals, Floats, Ints, Requests

DAY_S = 86400.0
PERIOD_S = 600.0  # the step of the published rate series, hence of the slow noise
_STEPS = 10  # straight pieces of the rate inside a period


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """How requests of one kind arrive and how long they are.

    log rate(t) = daily_cos_1 cos(w t) + daily_sin_1 sin(w t) + daily_cos_2 cos(2 w t) + ...
    + noise, w = 2 pi / day, the noise a first-order autoregression in steps of 600 s.
    """

    daily: tuple[float, float, float, float]
    """cos 1, sin 1, cos 2, sin 2 of the logarithm of the rate over the day."""
    noise_sd: float
    """standard deviation of the logarithm of the rate around its daily shape"""
    noise_corr: float
    """its correlation from one 600 s step to the next"""
    gap_cv: float
    """coefficient of variation of the gaps between arrivals at constant rate"""
    input_log_mean: float
    input_log_sd: float
    input_max: int
    output_log_mean: float
    output_log_sd: float
    output_max: int


# Printed by scripts/fit_requests.py, which documents the fit and the trace of each row:
# m-large, m-small, r1 = ServeGen; azure = Azure conversation 2023; mooncake = Kimi conversation.
SHAPES: dict[str, RequestShape] = {
    "m-large": RequestShape(
        daily=(0.025, -0.141, 0.053, 0.004),
        noise_sd=0.294,
        noise_corr=0.867,
        gap_cv=1.211,
        input_log_mean=6.266,
        input_log_sd=1.317,
        input_max=30569,
        output_log_mean=3.551,
        output_log_sd=2.190,
        output_max=8192,
    ),
    "m-small": RequestShape(
        daily=(-0.078, -0.261, 0.079, -0.204),
        noise_sd=0.194,
        noise_corr=0.887,
        gap_cv=1.189,
        input_log_mean=3.899,
        input_log_sd=1.135,
        input_max=151068,
        output_log_mean=1.744,
        output_log_sd=1.614,
        output_max=6332,
    ),
    "r1": RequestShape(
        daily=(0.499, 0.079, 0.137, 0.056),
        noise_sd=0.309,
        noise_corr=0.745,
        gap_cv=1.020,
        input_log_mean=5.613,
        input_log_sd=1.924,
        input_max=42722,
        output_log_mean=6.876,
        output_log_sd=1.011,
        output_max=28053,
    ),
    "azure": RequestShape(
        daily=(0.025, -0.141, 0.053, 0.004),
        noise_sd=0.294,
        noise_corr=0.867,
        gap_cv=1.027,
        input_log_mean=6.633,
        input_log_sd=0.985,
        input_max=14050,
        output_log_mean=5.019,
        output_log_sd=0.859,
        output_max=1000,
    ),
    "mooncake": RequestShape(
        daily=(0.025, -0.141, 0.053, 0.004),
        noise_sd=0.294,
        noise_corr=0.867,
        gap_cv=1.574,
        input_log_mean=8.737,
        input_log_sd=1.199,
        input_max=126195,
        output_log_mean=5.336,
        output_log_sd=1.358,
        output_max=2000,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """Bursts at random times (Poisson), and every day at `daily_s`: the rate rises to a multiple, stays, and falls
    again as fast.

    The multiple is log-normal around `factor`, and at least 1; of two overlapping bursts the larger counts.
    """

    per_day: float
    factor: float
    rise_s: float
    length_s: float
    """from the end of the rise to the beginning of the fall"""
    log_sd: float = 0.4
    daily_s: tuple[float, ...] = ()
    """times of day at which a burst starts every day, in addition to those at random times"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLoad:
    """The synthetic requests of one service."""

    name: str
    mean_rps: float
    """requests per second, mean over a day"""
    shape: RequestShape = SHAPES["m-large"]
    swing: float = 1.0
    """factor on the daily shape of the log rate: 0 is flat, 2 squares the ratio of peak to valley"""
    peak_at_s: float | None = None
    """time of day of the highest mean rate; None keeps that of the trace"""
    bursts: Bursts | None = None
    """additional bursts; they raise the mean above `mean_rps`"""
    noise: float = 1.0
    """factor on the slow noise of the log rate: 0 leaves the daily shape and the bursts alone"""


class SyntheticArrivals:
    """An `ArrivalSource` that draws requests period by period, so that results do not depend on the calls.

    The arrivals are a renewal process with gamma gaps in operational time, mapped to clock time through the integral of
    the rate (Gerhardt & Nelson, 2009): the rate is kept in the mean and the gaps keep their coefficient of variation
    where the rate changes slowly.
    """

    def __init__(self, rng: np.random.Generator, load: ServiceLoad, horizon_s: float) -> None:
        checks = (
            (load.mean_rps, "mean_rps"),
            (horizon_s, "horizon_s"),
            (load.swing, "swing"),
            (load.noise, "noise"),
        )
        for value, name in checks:
            if not (np.isfinite(value) and value >= 0):
                raise InputError(f"service {load.name}: {name} = {value!r} is not a finite number of 0 or more")
        self._rng, self._load, self._horizon_s = rng, load, horizon_s
        self._period = 0
        self._noise_sd = load.noise * load.shape.noise_sd
        self._noise = self._noise_sd * rng.standard_normal()
        self._bursts = _drawn_bursts(rng, load.bursts, horizon_s)
        self._gap_left: float | None = None  # operational time to the next arrival
        self._ahead = Arrivals(np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64))
        grid_s = np.arange(0.0, DAY_S, 60.0)
        self._shift_s = 0.0
        raw = self._log_daily(grid_s)
        if load.peak_at_s is not None:
            self._shift_s = float(grid_s[np.argmax(raw)]) - load.peak_at_s
        # The mean of exp(daily + noise) over a day becomes one.
        self._log_base = -float(np.log(np.exp(raw).mean())) - self._noise_sd**2 / 2

    def upto(self, to_s: float) -> Arrivals:
        """Every request with `t_s <= to_s` (and inside the horizon) not returned before."""
        drawn = [self._ahead]
        while self._period * PERIOD_S <= min(to_s, self._horizon_s):
            drawn.append(self._next_period())
        columns = self._ahead if len(drawn) == 1 else Arrivals._make(map(np.concatenate, zip(*drawn, strict=True)))
        due = int(np.searchsorted(columns.t_s, to_s, side="right"))
        self._ahead = Arrivals._make(column[due:] for column in columns)
        return Arrivals._make(column[:due] for column in columns)

    def _log_daily(self, t_s: Floats) -> Floats:
        cos_1, sin_1, cos_2, sin_2 = self._load.shape.daily
        angle = (t_s + self._shift_s) * (2 * np.pi / DAY_S)
        shape = cos_1 * np.cos(angle) + sin_1 * np.sin(angle)
        shape += cos_2 * np.cos(2 * angle) + sin_2 * np.sin(2 * angle)
        return np.asarray(self._load.swing * shape)

    def _log_bursts(self, t_s: Floats) -> Floats:
        """The contribution of the bursts to the logarithm of the rate."""
        bursts = self._load.bursts
        if bursts is None:
            return np.zeros(len(t_s))
        added = np.zeros(len(t_s))
        for start_s, log_factor in self._bursts:
            risen = (t_s - start_s) / bursts.rise_s
            fallen = (start_s + 2 * bursts.rise_s + bursts.length_s - t_s) / bursts.rise_s
            added = np.maximum(added, log_factor * np.clip(np.minimum(risen, fallen), 0.0, 1.0))
        return added

    def _next_period(self) -> Arrivals:
        shape, start_s = self._load.shape, self._period * PERIOD_S
        self._period += 1
        noise_from = self._noise
        fresh = float(np.sqrt(1 - shape.noise_corr**2)) * self._noise_sd
        self._noise = shape.noise_corr * noise_from + fresh * self._rng.standard_normal()
        edges_s = start_s + np.linspace(0.0, PERIOD_S, _STEPS + 1)
        middle = (np.arange(_STEPS) + 0.5) / _STEPS
        log_rate = self._log_daily(start_s + middle * PERIOD_S) + self._log_base
        log_rate += noise_from + (self._noise - noise_from) * middle
        log_rate += self._log_bursts(start_s + middle * PERIOD_S)
        expected = np.concatenate([[0.0], np.cumsum(self._load.mean_rps * np.exp(log_rate))])
        expected *= PERIOD_S / _STEPS
        marks = self._renewals(float(expected[-1]))
        t_s = np.interp(marks, expected, edges_s)
        t_s = t_s[t_s <= self._horizon_s]
        return Arrivals(
            t_s,
            self._tokens(len(t_s), shape.input_log_mean, shape.input_log_sd, shape.input_max),
            self._tokens(len(t_s), shape.output_log_mean, shape.output_log_sd, shape.output_max),
        )

    def _renewals(self, end: float) -> Floats:
        """Arrivals in operational time (0, end]; the gap across the end carries over."""
        cv_squared = self._load.shape.gap_cv**2
        reached = self._gap_left if self._gap_left is not None else self._gaps(1, cv_squared)[0]
        parts = []
        while reached <= end:
            size = int((end - reached) + 4 * np.sqrt((end - reached) * cv_squared)) + 16
            marks = reached + np.concatenate([[0.0], np.cumsum(self._gaps(size, cv_squared))])
            parts.append(marks[:-1])
            reached = float(marks[-1])
        marks = np.concatenate([*parts, [reached]])
        inside = int(np.searchsorted(marks, end, side="right"))
        self._gap_left = float(marks[inside]) - end
        return marks[:inside]

    def _gaps(self, size: int, cv_squared: float) -> Floats:
        return self._rng.gamma(1 / cv_squared, cv_squared, size)

    def _tokens(self, size: int, log_mean: float, log_sd: float, most: int) -> Ints:
        drawn = np.exp(log_mean + log_sd * self._rng.standard_normal(size))
        return np.clip(np.rint(drawn), 1, most).astype(np.int64)


def _drawn_bursts(rng: np.random.Generator, bursts: Bursts | None, horizon_s: float) -> list[tuple[float, float]]:
    """(start, logarithm of the multiple) of every burst up to the horizon; nothing is drawn without bursts."""
    if bursts is None:
        return []
    count = int(rng.poisson(bursts.per_day * horizon_s / DAY_S))
    drawn_s = np.sort(rng.uniform(0.0, horizon_s, count))
    days_s = np.arange(0.0, horizon_s, DAY_S)
    starts_s = np.concatenate([drawn_s, np.add.outer(days_s, np.array(bursts.daily_s)).ravel()])
    factors = np.log(bursts.factor) + bursts.log_sd * rng.standard_normal(len(starts_s))
    return list(zip(starts_s.tolist(), np.maximum(factors, 0.0).tolist(), strict=True))


def service_rng(rng_seed: int, name: str) -> np.random.Generator:
    """The generator of one service's requests: seeded by name, so that services do not affect each other."""
    return np.random.default_rng([rng_seed, zlib.crc32(name.encode())])


def generate_requests(rng: np.random.Generator, services: Sequence[ServiceLoad], horizon_s: float) -> Requests:
    """Synthetic requests of `services` in [0, horizon_s], sorted by time.

    One number is drawn from `rng`; each service's requests depend on it and on the service's
    own load and name only. A day at 1,000 requests/s takes several GB here: feed a `ServiceSim` from
    `SyntheticArrivals` instead, which holds one period at a time.
    """
    names = [load.name for load in services]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"service {twice[0]!r} is named twice; each service has its own load")
    seed = int(rng.integers(2**63))
    drawn = [SyntheticArrivals(service_rng(seed, load.name), load, horizon_s).upto(horizon_s) for load in services]
    t_s = np.concatenate([part.t_s for part in drawn]) if drawn else np.empty(0)
    order = np.argsort(t_s, kind="stable")
    codes = np.repeat(np.arange(len(drawn)), [len(part.t_s) for part in drawn])
    inputs = np.concatenate([part.input_tokens for part in drawn]) if drawn else np.empty(0, np.int64)
    outputs = np.concatenate([part.output_tokens for part in drawn]) if drawn else np.empty(0, np.int64)
    return Requests(
        t_s=t_s[order],
        service=codes[order].astype(np.int64),
        services=tuple(names),
        input_tokens=inputs[order],
        output_tokens=outputs[order],
        latency_s=np.full(len(t_s), np.nan),
    )
