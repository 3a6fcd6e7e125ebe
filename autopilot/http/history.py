"""The fleet over the last day: one point a minute in a ring of fixed size, from the published steps of the loop.

A file keeps the points over a restart. It is written every `KEEP_EVERY_S` and at the end: a crash loses no more than
that.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import structlog

from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Observation, Signals
from autopilot.files import replace_file
from autopilot.service.published import Published

BUCKET_S = 60.0
KEPT = 24 * 60
MOST_SERVICES = 500
KEEP_EVERY_S = 30.0

log: Any = structlog.get_logger("page")

SERIES = ("capacity_gpus", "held_gpus", "active_gpus", "gap_gpus", "pending_gpus", "measured_gpus")
"""`measured_gpus`: held with known SM activity, so active + gap = measured. Files of earlier builds lack it."""


@dataclass(slots=True)
class _Bucket:
    """The ticks of one minute: sums, and the number of ticks with each value."""

    number: int
    at_s: float = 0.0
    sums: np.ndarray[Any, np.dtype[np.float64]] = field(default_factory=lambda: np.zeros(len(SERIES)))
    counts: np.ndarray[Any, np.dtype[np.int64]] = field(default_factory=lambda: np.zeros(len(SERIES), np.int64))
    rates_rps: dict[str, float] = field(default_factory=dict)  # of the last tick, by service

    def means(self) -> list[float | None]:
        """The mean of each series; None if no tick measured it."""
        pairs = zip(self.sums.tolist(), self.counts.tolist(), strict=True)
        return [round(total / count, 3) if count else None for total, count in pairs]


class _Point(msgspec.Struct, array_like=True):
    """One minute in the file."""

    number: int
    at_s: float
    means: list[float | None]
    rates_rps: dict[str, float]


class History:
    """Points of the last day. `take` and `keep` are called by the loop, the rest from any thread."""

    def __init__(self, path: Path | None = None, wall_s: Callable[[], float] = time.monotonic) -> None:
        """`path`: the file of the points; an unreadable one is replaced, and None keeps nothing."""
        self._lock = threading.Lock()
        self._buckets: deque[_Bucket] = deque(maxlen=KEPT)
        self._path, self._wall_s, self._kept_s = path, wall_s, wall_s()
        if path is not None and path.exists():
            try:
                points = msgspec.json.decode(path.read_bytes(), type=list[_Point])
                self._buckets.extend(_bucket(each) for each in points)
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                log.warning("the history of the page begins anew", file=str(path), error=str(error))

    def keep(self) -> None:
        """Write the file. After a failure the page is complete until the service ends."""
        self._kept_s = self._wall_s()
        if self._path is None:
            return
        with self._lock:
            points = [_Point(each.number, each.at_s, each.means(), each.rates_rps) for each in self._buckets]
        try:
            replace_file(self._path, lambda file: file.write_bytes(msgspec.json.encode(points)))
        except InputError as error:
            log.warning("the history of the page cannot be kept", file=str(self._path), error=str(error))

    def take(self, published: Published) -> None:
        """Add one tick. A tick of another process, and one without a view of the cluster, adds nothing."""
        observation = published.observation
        if not (published.leads and published.sees):
            return
        number, values = int(observation.now_s // BUCKET_S), _values(observation.signals)
        with self._lock:
            if self._buckets and number < self._buckets[-1].number:
                self._buckets.clear()  # the clock was set back: older points have no place on the axis
            if not self._buckets or number != self._buckets[-1].number:
                self._buckets.append(_Bucket(number))
            bucket, known = self._buckets[-1], np.isfinite(values)
            bucket.at_s = observation.now_s
            bucket.sums += np.where(known, values, 0.0)
            bucket.counts += known
            bucket.rates_rps = _rates(observation)
        if self._path is not None and self._wall_s() - self._kept_s >= KEEP_EVERY_S:
            self.keep()

    def document(self, after_s: float = float("-inf")) -> dict[str, Any]:
        """Columns of the points after `after_s`; None: not measured. A minute without a tick is one point of None."""
        with self._lock:
            chosen = [each for each in self._buckets if each.at_s > after_s]
            rows = [(each.number, each.at_s, each.means()) for each in chosen]
        out: dict[str, list[float | None]] = {name: [] for name in ("at_s", *SERIES)}
        before: int | None = None
        for number, at_s, means in rows:
            if before is not None and number > before + 5:
                _put(out, (before + 1) * BUCKET_S, [None] * len(SERIES))
            _put(out, at_s, means)
            before = number
        return {"bucket_s": BUCKET_S, **out}

    def rates(self, service: str, since_s: float) -> tuple[list[float], list[float]]:
        """Times and requests/s of a service."""
        with self._lock:
            found = [(each.at_s, each.rates_rps[service]) for each in self._buckets if service in each.rates_rps]
        kept = [pair for pair in found if pair[0] >= since_s]
        return [at_s for at_s, _ in kept], [rate for _, rate in kept]


def _bucket(point: _Point) -> _Bucket:
    """A minute of the file; it counts as one tick."""
    means = point.means + [None] * (len(SERIES) - 1 == len(point.means))
    if len(means) != len(SERIES):
        raise ValueError(f"a point has {len(point.means)} values, not {len(SERIES)}")
    values = np.array([np.nan if each is None else each for each in means])
    known = np.isfinite(values)
    return _Bucket(point.number, point.at_s, np.where(known, values, 0.0), known.astype(np.int64), point.rates_rps)


def _put(out: dict[str, list[float | None]], at_s: float, means: list[float | None]) -> None:
    out["at_s"].append(at_s)
    for name, value in zip(SERIES, means, strict=True):
        out[name].append(value)


def _values(signals: Signals) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The series at one tick, in GPUs. NaN: not measured."""
    capacity, held = signals.capacity_gpus, signals.allocated_gpus
    used = signals.real_utilization_ratio * capacity, signals.gap_ratio * capacity
    measured = signals.measured_ratio * held if held else 0.0
    return np.array([capacity, held, *used, signals.pending_gpus, measured])


def _rates(observation: Observation) -> dict[str, float]:
    table = observation.snapshot.services
    pairs = zip(table.id.tolist()[:MOST_SERVICES], table.recent_rps.tolist()[:MOST_SERVICES], strict=True)
    return {str(name): rate for name, rate in pairs if isfinite(rate)}
