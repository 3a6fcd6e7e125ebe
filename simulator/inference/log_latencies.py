"""Logarithms of latencies by window: what they would be at full speed, their mean and spread."""

from __future__ import annotations

from math import nan, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class LogWindow(NamedTuple):
    """One closed window: completed requests, mean and standard deviation of their log latencies in seconds."""

    requests: int
    mean: float
    spread: float


class LogLatencies:
    """Sums of whole millionths, so that they do not depend on the order of adding."""

    def __init__(self) -> None:
        """No request has completed."""
        self._count = self._sum = self._square = 0
        self._last = LogWindow(0, nan, nan)

    def add(self, latency_s: NDArray[np.float64]) -> None:
        """Requests that completed, by their latency at full speed."""
        logs = np.log(np.maximum(latency_s, 1e-9))
        self._count += len(logs)
        self._sum += int(np.rint(logs * 1e6).astype(np.int64).sum())
        self._square += int(np.rint(logs * logs * 1e6).astype(np.int64).sum())

    def close(self) -> None:
        """The window is over."""
        mean = self._sum / 1e6 / self._count if self._count else nan
        spread = sqrt(max(self._square / 1e6 / self._count - mean * mean, 0.0)) if self._count else nan
        self._last = LogWindow(self._count, mean, spread)
        self._count = self._sum = self._square = 0

    def last(self) -> LogWindow:
        """The last closed window."""
        return self._last
