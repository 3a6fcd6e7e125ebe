"""One service of a run over time, in steps that a picture can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.inference.serving_records import ServiceSpec, Windows

Floats = NDArray[np.float64]

MOST_POINTS = 2000
"""Points of one service's series."""


@dataclass(frozen=True, slots=True)
class ServiceSeriesRow:
    """One service over time, one value per step, valid from `t_s` to the next. NaN: no request completed.

    Steps are minutes, or longer so that there are at most `MOST_POINTS`; `p99_s` is then the worst of them, `rate_rps`
    their mean and `replicas` the ready ones at the start.
    """

    name: str
    t_s: Floats
    p99_s: Floats
    objective_s: float | None
    rate_rps: Floats
    replicas: Floats
    late: Floats
    """requests over the objective that completed in the step"""


def series_row(
    spec: ServiceSpec, windows: Windows, window_s: float, ready_log: Sequence[tuple[float, int]]
) -> ServiceSeriesRow:
    """The series of one service. `ready_log` are (since when, ready replicas)."""
    count = len(windows.end_s)
    step = max(1, -(-count // MOST_POINTS))
    starts = np.arange(0, count, step)
    t_s = windows.end_s[starts] - window_s
    worst = np.fmax.reduceat(windows.p99_latency_s, starts) if count else np.empty(0)
    rate = np.add.reduceat(windows.arrival_rate_rps, starts) if count else np.empty(0)
    late = np.add.reduceat(np.nan_to_num(windows.violations), starts) if count else np.empty(0)
    sizes = np.diff([*starts.tolist(), count]) if count else np.empty(0)
    log = np.array(ready_log)
    at = np.searchsorted(log[:, 0], t_s, side="right") - 1
    return ServiceSeriesRow(
        name=spec.name,
        t_s=t_s,
        p99_s=worst,
        objective_s=spec.objective_s,
        rate_rps=rate / sizes,
        replicas=log[at, 1],
        late=late,
    )
