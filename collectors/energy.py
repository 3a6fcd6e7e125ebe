"""Mean power of GPUs from their energy counter (DCGM field 156, mJ since the driver was loaded).

The power over a while is the difference of two readings by the time between them. Exporters repeat a reading until they
have read the GPU again, so a value that did not change is no reading. A counter that went back (the driver was loaded
again, the GPU was reset or replaced) and a difference that no board can use begin anew: until the next difference the
power is unknown, never zero.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from threading import Lock

from autopilot.core.intake.usage.parts import HIGHEST

SPAN_S = 60.0
"""Readings this far apart are compared: the time of one reading is known to some seconds only."""
STALE_S = 180.0
"""A counter that did not change for so long is not running: a GPU never draws no power."""
MOST_W = HIGHEST["power_w"]


@dataclass(frozen=True, slots=True)
class _Reading:
    at_s: float
    energy_mj: float


class EnergyCounters:
    """The counters of one source, by GPU UUID. Safe for use from two threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._readings: dict[str, deque[_Reading]] = {}

    def take(self, readings: Iterable[tuple[str, float, float]]) -> None:
        """Take in (UUID, time in s, mJ). What has no time, and a negative or infinite number or NaN, is no reading."""
        with self._lock:
            for uuid, at_s, energy_mj in readings:
                if isfinite(at_s) and isfinite(energy_mj) and energy_mj >= 0.0:
                    self._take(uuid, _Reading(at_s, energy_mj))

    def _take(self, uuid: str, given: _Reading) -> None:
        kept = self._readings.setdefault(uuid, deque())
        if kept:
            last = kept[-1]
            if given.energy_mj == last.energy_mj and 0 <= given.at_s - last.at_s < STALE_S:
                return
            long_s, used_mj = given.at_s - last.at_s, given.energy_mj - last.energy_mj
            if long_s <= 0 or not 0.0 < used_mj <= MOST_W * 1000.0 * long_s or long_s > STALE_S:
                kept.clear()
        kept.append(given)
        while len(kept) > 2 and kept[-1].at_s - kept[1].at_s >= SPAN_S:
            kept.popleft()

    def power_w(self, now_s: float) -> dict[str, float]:
        """Mean watts by UUID over the last `SPAN_S` or more, of the counters that run; others are not in it."""
        with self._lock:
            return self._power_w(now_s)

    def _power_w(self, now_s: float) -> dict[str, float]:
        found, gone = {}, []
        for uuid, kept in self._readings.items():
            if not 0.0 <= now_s - kept[-1].at_s < STALE_S:
                gone.append(uuid)
            elif kept[-1].at_s > kept[0].at_s:
                used_mj = kept[-1].energy_mj - kept[0].energy_mj
                found[uuid] = used_mj / 1000.0 / (kept[-1].at_s - kept[0].at_s)
        for uuid in gone:
            del self._readings[uuid]
        return found
