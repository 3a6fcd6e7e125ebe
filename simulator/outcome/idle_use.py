"""What owners who went away left unused, and what of it others used meanwhile.

Idle are the GPUs of work whose owner is away: those that it holds, and those that it held when it was suspended. What a
suspension freed counts as returned only as far as other work used it: at each moment, free GPUs of the cluster are
counted as those of suspended work first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from simulator.running.owners import Absence, Suspension

EARLY_S = 3600.0
"""An owner who returns this soon after a suspension was not gone."""

Stay = tuple[int, float, float, float]
"""(job, from, to, GPUs) of work on its GPUs."""


@dataclass(frozen=True, slots=True)
class IdleUse:
    """GPU-seconds up to the last arrival, and counts over the whole run."""

    held_gpu_s: float  # held by work whose owner is away
    freed_gpu_s: float  # suspended while its owner is away
    returned_gpu_s: float  # the part of it that other work used
    suspensions: int
    early_returns: int
    returned_wait_s: float | None  # mean time from the return of an owner to the restart of the work

    @property
    def returned_ratio(self) -> float | None:
        """Idle GPU-seconds that others used; None without any idle ones."""
        idle_gpu_s = self.held_gpu_s + self.freed_gpu_s
        return self.returned_gpu_s / idle_gpu_s if idle_gpu_s > 0 else None


def idle_use(
    absences: Sequence[Absence], suspensions: Sequence[Suspension], stays: Sequence[Stay], gpus: float, until_s: float
) -> IdleUse:
    """All of it, from the facts of one run on a cluster of `gpus` GPUs."""
    away: dict[int, list[tuple[float, float]]] = {}
    for each in absences:
        away.setdefault(each.job, []).append((each.from_s, each.to_s))
    width = {job: held for job, _, _, held in stays}
    held = [(max(a, f), min(b, t), w) for job, a, b, w in stays for f, t in away.get(job, ())]
    freed = [
        (max(each.from_s, f), min(each.to_s, t), width[each.job])
        for each in suspensions
        for f, t in away.get(each.job, ())
    ]
    stopped = _steps([(a, b, w) for _, a, b, w in stays], until_s)
    parked = _steps(freed, until_s)
    at_s = np.unique(np.concatenate([stopped[0], parked[0], [0.0, until_s]]))
    length_s = np.diff(at_s)
    used, off = (_at(steps, at_s[:-1]) for steps in (stopped, parked))
    began: dict[int, list[float]] = {}
    for job, from_s, _, _ in stays:
        began.setdefault(job, []).append(from_s)
    waits = [
        min(after) - each.to_s
        for each in suspensions
        if each.returned and (after := [s for s in began[each.job] if s >= each.to_s])
    ]
    return IdleUse(
        held_gpu_s=_area(held, until_s),
        freed_gpu_s=_area(freed, until_s),
        returned_gpu_s=float(np.maximum(off - np.maximum(gpus - used, 0.0), 0.0) @ length_s),
        suspensions=len(suspensions),
        early_returns=sum(each.returned and each.to_s - each.from_s < EARLY_S for each in suspensions),
        returned_wait_s=float(np.mean(waits)) if waits else None,
    )


def _area(spans: Sequence[tuple[float, float, float]], until_s: float) -> float:
    return float(sum(max(min(to_s, until_s) - from_s, 0.0) * gpus for from_s, to_s, gpus in spans))


def _steps(spans: Sequence[tuple[float, float, float]], until_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Times, and the sum of the GPUs of the spans from each time on."""
    changes = [
        change
        for from_s, to_s, gpus in spans
        if min(to_s, until_s) > from_s
        for change in ((from_s, gpus), (min(to_s, inf), -gpus))
    ]
    if not changes:
        return np.zeros(1), np.zeros(1)
    times, steps = np.array(sorted(changes)).T
    return np.minimum(times, until_s), np.cumsum(steps)


def _at(steps: tuple[np.ndarray, np.ndarray], at_s: np.ndarray) -> np.ndarray:
    """The sum from each of these times on."""
    place = np.searchsorted(steps[0], at_s, side="right") - 1
    return np.where(place >= 0, steps[1][np.maximum(place, 0)], 0.0)
