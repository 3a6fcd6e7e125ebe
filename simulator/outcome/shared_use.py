"""Use of GPUs by several holders: the physical GPUs held, and the slowdown of the work that shares them.

A GPU with any holder counts whole. The stretch of a job is the time of its work on GPUs over the time that the same
progress takes alone on them; start-up and pauses are in neither. The slowdown of owners is that of interactive and
development work on shared GPUs at the moments of its work, without the absences of its owner.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.outcome.spans import F64, area_gpu_s


@dataclass(frozen=True, slots=True)
class Hold:
    """GPUs held by work at one pace. `rate`: its progress over that of the same work alone; None: it has them alone."""

    job: int
    gpus: tuple[int, ...]
    from_s: float
    ready_s: float  # end of start-up
    to_s: float
    rate: float | None = None
    away: Sequence[tuple[float, float]] = ()  # absences of its owner

    @property
    def worked_s(self) -> float:
        """Seconds without start-up and absences; 0 where it halted and only holds its GPUs."""
        if self.rate == 0.0:
            return 0.0
        begin_s = max(self.from_s, self.ready_s)
        away = [(max(from_s, begin_s), min(to_s, self.to_s), 1.0) for from_s, to_s in self.away]
        return max(self.to_s - begin_s, 0.0) - area_gpu_s(away, self.to_s)


@dataclass(frozen=True, slots=True)
class SharedUse:
    """Figures of the whole run. Ratios are None where no GPU was shared by software."""

    physical_gpu_s: float  # GPUs with any holder
    physical_finished_gpu_s: float  # with a holder that finished
    several_gpu_s: float  # with several holders
    batch_stretch_mean: float | None  # over all batch jobs that progressed
    batch_stretch_p95: float | None
    owner_slowdown_mean: float | None  # over the time of their work on shared GPUs
    owner_slowdown_p95: float | None


def shared_use(
    holds: Sequence[Hold], batch: Collection[int], owned: Collection[int], finished: Collection[int]
) -> SharedUse:
    """All of it; the jobs in `batch` are batch work, those in `owned` have an owner at work."""
    physical_gpu_s, several_gpu_s = _physical_gpu_s(holds)
    finished_gpu_s, _ = _physical_gpu_s([each for each in holds if each.job in finished])
    stretch: list[tuple[float, float]] = []
    slowdown: list[tuple[float, float]] = []
    if any(each.rate is not None for each in holds):
        took_s: dict[int, float] = {}
        alone_s: dict[int, float] = {}
        for each in holds:
            if each.job in batch:
                took_s[each.job] = took_s.get(each.job, 0.0) + each.worked_s
                own_s = each.worked_s * (1.0 if each.rate is None else each.rate)
                alone_s[each.job] = alone_s.get(each.job, 0.0) + own_s
            elif each.job in owned and each.rate and each.worked_s > 0:
                slowdown.append((1.0 / each.rate, each.worked_s))
        stretch = [(took_s[job] / own_s, 1.0) for job, own_s in alone_s.items() if own_s > 0]
    return SharedUse(physical_gpu_s, finished_gpu_s, several_gpu_s, *_mean_and_p95(stretch), *_mean_and_p95(slowdown))


def useful_part_of_rise(
    before_active: float, before_useful: float, after_active: float, after_useful: float
) -> float | None:
    """The part of a rise in SM-active time that is useful; None without a rise."""
    rise = after_active - before_active
    return (after_useful - before_useful) / rise if rise > 0 else None


def _mean_and_p95(weighed: Sequence[tuple[float, float]]) -> tuple[float | None, float | None]:
    """Of (value, weight) pairs; None without any."""
    if not weighed:
        return None, None
    value, weight = np.array(sorted(weighed), float).T
    sums = np.cumsum(weight)
    at = min(int(np.searchsorted(sums, 0.95 * sums[-1], side="right")), len(value) - 1)
    return float(value @ weight / sums[-1]), float(value[at])


def _physical_gpu_s(holds: Sequence[Hold]) -> tuple[float, float]:
    """GPU-seconds with any holder, and with several."""
    if not holds:
        return 0.0, 0.0
    widths = [len(each.gpus) for each in holds]
    gpu = np.concatenate([np.array(each.gpus, np.int64) for each in holds])
    from_s, to_s = (np.repeat([getattr(each, name) for each in holds], widths) for name in ("from_s", "to_s"))
    at_s: F64 = np.concatenate((from_s, to_s))
    change = np.concatenate((np.ones(len(gpu), np.int64), -np.ones(len(gpu), np.int64)))
    order = np.lexsort((at_s, np.concatenate((gpu, gpu))))
    holders = np.cumsum(change[order])[:-1]  # of the GPU of each change, up to its next; 0 after its last
    length_s = np.diff(at_s[order])
    return tuple(float(length_s[holders >= least].sum()) for least in (1, 2))  # type: ignore[return-value]
