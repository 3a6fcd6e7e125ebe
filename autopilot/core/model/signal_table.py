"""Windowed telemetry of GPUs and MIG instances: one named column for each signal."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I8 = NDArray[np.int8]
I32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SignalTable:
    """Windowed telemetry: GPUs first (rows of GpuTable), then instances (rows of InstanceTable).

    `mean` and `maximum` are [signals, windows, entities], NaN where not measured; `means` and `maxima` give one signal
    by its name. `samples` [windows, entities] counts
    the fresh samples. `age_s` is the age of the newest sample, inf without one. `quality` is the counter behind the SM
    activity (dcgm.Quality). `source`, an index into `sources`, is the collector of an entity; -1: none, or unnamed.
    """

    signals: tuple[str, ...]
    windows_s: tuple[float, ...]
    collected_s: float
    mean: F32
    maximum: F32
    samples: I32
    age_s: F32
    quality: I8
    sources: tuple[str, ...] = ()
    source: I8 = field(default_factory=lambda: np.empty(0, np.int8))

    def means(self, signal: str) -> F32:
        """Means of one signal, [windows, entities]; NaN without a collected value."""
        return self._named(self.mean, signal)

    def maxima(self, signal: str) -> F32:
        """Highest samples of one signal, [windows, entities]; NaN without a collected value."""
        return self._named(self.maximum, signal)

    def _named(self, values: F32, signal: str) -> F32:
        if signal not in self.signals:
            return np.full(values.shape[1:], np.nan, np.float32)
        column: F32 = values[self.signals.index(signal)]
        return column
