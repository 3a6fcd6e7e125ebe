"""Days of services whose replicas get neighbours, by seed, and the truth about them, kept apart.

Each service has four replicas. Six neighbours a day come to each; a quarter slow it down, 1.15 to 2.5 times. A
twelfth come within minutes of another one. Beside them there are what a detector may take for a neighbour:
releases (at once, or one replica after another), faults of single replicas, bursts of load, load that is not shared
evenly, mixes of requests that change, blackouts of telemetry and minutes without an answer.

A minute is drawn when it is asked for, through the buckets of a real server, with the neighbours that are paused left
out. So a pause ends what its suspect does, and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtr

from autopilot.core.model.snapshot import F64

DAY_MIN = 1440
REPLICAS, ARRIVALS = 4, 6
HARMFUL, RISES = 0.25, (1.15, 2.5)
TOGETHER = 0.04
FAULTS, RELEASES, BURSTS, BLACKOUTS = 0.5, 0.5, 4.0, 0.35
"""A day: faults of each replica; of each service its releases, bursts of load, and blackouts."""
EDGES_S = np.array([0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0])
"""Buckets of vLLM's end-to-end latency."""


@dataclass(frozen=True, slots=True)
class Coming:
    """A neighbour of one replica, and what nobody tells the detector: its rise as a log, 0 for a harmless one."""

    row: int
    name: str
    minute: int
    until: int
    rise: float
    onset_min: int  # until it works at full strength


@dataclass(slots=True)
class Day:
    """Services x replicas over one day. `base` [rows, minutes] is the log latency without neighbours."""

    service: np.ndarray
    rps: F64  # mean requests/s of each row
    rate: F64  # [rows, minutes]
    base: F64
    spread: F64  # standard deviation of the log latency of one request, by row
    hidden: np.ndarray  # [rows, minutes]: no answer
    comings: list[Coming]
    renewals: list[tuple[int, int]]  # (row, minute): restarts that the cluster shows
    strength: F64 = field(default_factory=lambda: np.empty(0))  # [comings, minutes]: how hard each works

    def truth(self) -> dict[tuple[int, str], Coming]:
        """Every neighbour by row and name."""
        return {(each.row, each.name): each for each in self.comings}

    def minute(self, at: int, rng: np.random.Generator, paused: frozenset[str] = frozenset()) -> tuple[F64, F64]:
        """Counts by bucket [rows, buckets] and requests of one minute; NaN where no answer came."""
        level = self.base[:, at].copy()
        for place, each in enumerate(self.comings):
            if each.rise and each.minute <= at < each.until and each.name not in paused:
                ramp = min((at - each.minute + 1) / (each.onset_min + 1), 1.0)
                level[each.row] += each.rise * ramp * self.strength[place, at]
        edges = np.log(EDGES_S)
        below = ndtr((edges[None, :] - level[:, None]) / self.spread[:, None])
        parts = np.diff(np.concatenate([np.zeros((len(level), 1)), below, np.ones((len(level), 1))], axis=1), axis=1)
        parts = np.maximum(parts, 0.0)
        counts = rng.multinomial(rng.poisson(60.0 * self.rate[:, at]), parts / parts.sum(axis=1, keepdims=True))
        found = counts.astype(float)
        found[self.hidden[:, at]] = np.nan
        return found, found.sum(axis=1)


def made(seed: int, services: int = 8, rps: float = 0.0) -> Day:
    """A day of several services. `rps` of each replica; 0: each service draws its own, 0.3 to 8."""
    rng = np.random.default_rng(seed)
    rows = services * REPLICAS
    service = np.repeat(np.arange(services), REPLICAS)
    minutes = np.arange(DAY_MIN)
    mean_rps = np.repeat(
        np.full(services, rps) if rps else np.exp(rng.uniform(math.log(0.3), math.log(8.0), services)), REPLICAS
    )
    shape = _load(rng, services)
    uneven = np.exp(_lasting(rng, rows, 0.1, 0.98))
    rate = mean_rps[:, None] * shape[service] * uneven
    busy = np.clip(rng.uniform(0.25, 0.6, services)[service, None] * shape[service] * uneven, 0.0, 0.93)
    base = math.log(4.0) + rng.uniform(-1.2, 1.2, services)[service, None] + rng.uniform(-0.15, 0.15, rows)[:, None]
    base = base + 0.5 * -np.log1p(-busy)
    base = base + _lasting(rng, services, 0.08, 0.97)[service] + _lasting(rng, rows, rng.uniform(0.02, 0.05), 0.85)
    day = Day(
        service,
        mean_rps,
        rate,
        base,
        np.repeat(rng.uniform(0.5, 0.9, services), REPLICAS),
        rng.random((rows, DAY_MIN)) < 0.02,
        [],
        [],
    )
    for each in range(services):
        _trouble(day, each, rng, minutes)
    for row in range(rows):
        _neighbours(day, row, rng)
    day.strength = np.clip(1.0 + _lasting(rng, len(day.comings), 0.12, 0.9), 0.4, 1.6)
    return day


def _load(rng: np.random.Generator, services: int) -> F64:
    """[services, minutes]: the load over its mean, by the time of day and with bursts."""
    minutes = np.arange(DAY_MIN)
    shape = 1.0 + rng.uniform(0.1, 0.5, (services, 1)) * np.sin(
        2 * np.pi * (minutes[None, :] / DAY_MIN + rng.random((services, 1)))
    )
    for each in shape:
        for _ in range(rng.poisson(BURSTS)):
            at, lasts = int(rng.integers(DAY_MIN)), int(rng.integers(5, 40))
            each[at : at + lasts] *= rng.uniform(1.3, 2.2)
    return shape


def _lasting(rng: np.random.Generator, rows: int, size: float, keep: float) -> F64:
    """Noise [rows, minutes] that lasts: autoregressive, of this standard deviation."""
    draws = rng.normal(0.0, size * math.sqrt(1.0 - keep * keep), (rows, DAY_MIN))
    found = np.empty_like(draws)
    last = rng.normal(0.0, size, rows)
    for at in range(DAY_MIN):
        last = keep * last + draws[:, at]
        found[:, at] = last
    return found


def _trouble(day: Day, service: int, rng: np.random.Generator, minutes: np.ndarray) -> None:
    """Releases, faults of single replicas and blackouts of one service."""
    rows = np.flatnonzero(day.service == service)
    for _ in range(rng.poisson(RELEASES)):
        at, change, shown = int(rng.integers(DAY_MIN)), rng.uniform(-0.35, 0.35), rng.random() < 0.5
        wait = rng.choice((0, int(rng.integers(2, 12))))
        for place, row in enumerate(rows):
            begin = at + place * int(wait)
            day.base[row] += change * (minutes >= begin)
            if shown and begin < DAY_MIN:
                day.renewals.append((int(row), begin))
    for row in rows:
        for _ in range(rng.poisson(FAULTS)):
            at, lasts = int(rng.integers(DAY_MIN)), int(rng.integers(10, 120))
            day.base[row, at : at + lasts] += math.log(rng.uniform(1.15, 2.0))
    for _ in range(rng.poisson(BLACKOUTS)):
        at, lasts = int(rng.integers(DAY_MIN)), int(rng.integers(5, 40))
        day.hidden[rows, at : at + lasts] = True


def _neighbours(day: Day, row: int, rng: np.random.Generator) -> None:
    """The neighbours of one replica."""
    comes = rng.integers(0, DAY_MIN, ARRIVALS)
    for place, drawn in enumerate(comes):
        beside = place and rng.random() < TOGETHER
        at = min(int(comes[place - 1]) + int(rng.integers(0, 6)), DAY_MIN - 1) if beside else int(drawn)
        harm = math.log(rng.uniform(*RISES)) if rng.random() < HARMFUL else 0.0
        until = at + int(rng.integers(30, 240))
        day.comings.append(Coming(row, f"{row}-{place}", at, until, harm, int(rng.choice((0, 0, 1, 3)))))
