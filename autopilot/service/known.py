"""Last known times by the monotonic clock of this process: ages that grow also while nothing ticks.

A time of the cluster's clock is put on the monotonic clock by the first tick that shows it. So its age goes on growing
while the cluster's clock stands still, and the wall clock may be set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite

LEAST_LATE_S = 2.0
"""The page hears of ticks once a second at most."""

PERIODS = 2.0
"""Periods of the loop after which a tick is late."""

KINDS = ("view", "collector")
TICK, CLUSTER, TELEMETRY = ("tick", ""), ("cluster", ""), ("telemetry", "")


@dataclass(frozen=True, slots=True)
class Ages:
    """Ages in seconds. None, or without an entry: never known."""

    tick_s: float | None = None  # since the last tick ended
    cluster_s: float | None = None  # of the last trusted view of the cluster
    telemetry_s: float | None = None  # of the newest sample of any GPU
    views_s: Mapping[str, float] = field(default_factory=dict)  # of the last complete list, by view
    collectors_s: Mapping[str, float] = field(default_factory=dict)  # of the newest data, by collector


class LastKnown:
    """Keeps the times of the last news. The loop calls `tick`; any thread asks for `ages`."""

    def __init__(
        self, speed: float = 1.0, period_s: float = 5.0, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`speed`: seconds of the cluster's clock in a second. `period_s`: most time between two ticks."""
        self.speed, self._period_s, self._monotonic_s = speed, period_s, monotonic_s
        self._marks: dict[tuple[str, str], tuple[float, float]] = {}  # time by the cluster's clock, monotonic time

    def tick(
        self,
        now_s: float,
        cluster_s: float,
        telemetry_s: float,
        views_s: Mapping[str, float],
        collectors_s: Iterable[tuple[str, float]],
    ) -> None:
        """Take in the end of a tick begun at `now_s`. Times by the cluster's clock; NaN: not known at this tick."""
        read_s, kept = self._monotonic_s(), dict(self._marks)
        found = {CLUSTER: cluster_s, TELEMETRY: telemetry_s} | {("view", key): at_s for key, at_s in views_s.items()}
        for key, at_s in (found | {("collector", name): at_s for name, at_s in collectors_s}).items():
            if isfinite(at_s) and (key not in kept or kept[key][0] != at_s):
                kept[key] = (at_s, read_s - max(now_s - at_s, 0.0) / self.speed)
        self._marks = kept | {TICK: (now_s, read_s)}

    def ages(self) -> Ages:
        """The ages now."""
        now_s = self._monotonic_s()
        ages_s = {key: max(now_s - read_s, 0.0) for key, (_, read_s) in self._marks.items()}
        views_s, collectors_s = ({name: age_s for (of, name), age_s in ages_s.items() if of == kind} for kind in KINDS)
        return Ages(ages_s.get(TICK), ages_s.get(CLUSTER), ages_s.get(TELEMETRY), views_s, collectors_s)

    def late_s(self, took_s: float) -> float:
        """Age of a stale last tick, from the time it took."""
        return max(PERIODS * max(self._period_s, took_s), LEAST_LATE_S)
