"""GPU time left unused by absent owners, and its use by others meanwhile.

Idle are the GPUs of work with its owner away: those it holds, and those it held at its suspension. GPUs freed by a
suspension count as returned only as far as other work used them: at each moment, free GPUs of the cluster are
counted as those of suspended work first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.outcome.spans import area_gpu_s, steps_of, together
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
        """The part of the idle GPU-seconds used by others; None without any idle ones."""
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
    running, parked = steps_of([(a, b, w) for _, a, b, w in stays], until_s), steps_of(freed, until_s)
    length_s, (used, off) = together((running, parked), until_s)
    began: dict[int, list[float]] = {}
    for job, from_s, _, _ in stays:
        began.setdefault(job, []).append(from_s)
    waits = [
        min(after) - each.to_s
        for each in suspensions
        if each.returned and (after := [s for s in began[each.job] if s >= each.to_s])
    ]
    return IdleUse(
        held_gpu_s=area_gpu_s(held, until_s),
        freed_gpu_s=area_gpu_s(freed, until_s),
        returned_gpu_s=float(np.maximum(off - np.maximum(gpus - used, 0.0), 0.0) @ length_s),
        suspensions=len(suspensions),
        early_returns=sum(each.returned and each.to_s - each.from_s < EARLY_S for each in suspensions),
        returned_wait_s=float(np.mean(waits)) if waits else None,
    )
