"""Use of GPU time, counted in integers, and the bound on its possible use.

The internal unit is one thousandth of a GPU for one tick of virtual time (1/1024 s), so that

    capacity = allocated + idle          allocated = useful + lost + overhead

hold exactly, in total and by tenant. Useful is kept progress; lost is progress that had to be repeated;
overhead is the rest of the allocation (start-up, restore, checkpoint writes).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.world.cluster import Cluster
from simulator.world.facts import REQUEUED, Evicting, Recut, Started, Stopped, Submitted, Why
from simulator.world.physics import TICKS_PER_S

F64 = NDArray[np.float64]
UNITS_PER_GPU_S = 1000 * TICKS_PER_S
REVERSAL_S = 300.0
"""Work that returns within this time to the same GPUs from which it was moved counts as a futile move."""

_DISRUPTED = (Why.PREEMPT, Why.MOVE)
_GOES_ON = (*REQUEUED, Why.PARK, Why.RESIZE)


def gpu_s(units: int) -> float:
    """GPU-seconds from the integer unit of this module."""
    return units / UNITS_PER_GPU_S


@dataclass(slots=True)
class Share:
    """Integer GPU time of one tenant, or of all."""

    allocated: int = 0
    useful: int = 0
    lost: int = 0
    overhead: int = 0


@dataclass(frozen=True, slots=True)
class Totals:
    """GPU time of a whole run; `early_allocated` and `early_useful` are the parts before the last submit."""

    capacity: int
    idle: int
    all: Share
    by_tenant: tuple[Share, ...]
    early_useful: int
    early_allocated: int


class Accounts:
    """Observes a cluster and keeps the accounts."""

    def __init__(self, cluster: Cluster, last_submit_s: float) -> None:
        """`last_submit_s`: useful time before it is also counted separately (utilization to the last arrival)."""
        self._cluster, self._last_submit_s = cluster, last_submit_s
        self._tenant = cluster.jobs.tenant
        self.shares: list[Share] = [Share() for _ in cluster.jobs.tenants]
        self.submitted = 0
        self.moves: Counter[int] = Counter()  # by job
        self.weighed_stops: Counter[int] = Counter()  # by job: for other work, that it had to be worth
        self.contract_stops: Counter[int] = Counter()  # by job: for other work, by contract
        self.lost: Counter[int] = Counter()  # by job
        self.preemptions = 0
        self.migrations = 0
        self.recoveries = 0
        self.resizes = 0
        self.faults = 0
        self.regeometries = 0
        self.reversals = 0
        self.lost_no_bandwidth = 0  # the part of the lost time that the store's bandwidth would have saved
        self._early_allocated = 0
        self._early = 0  # useful before the last submit, of jobs that were never disrupted
        self._kept: dict[int, list[tuple[int, int, int]]] = {}  # disrupted job -> (early, late ticks, width)
        self._left: dict[int, tuple[float, tuple[int, ...], tuple[int, ...]]] = {}
        self._by_contract: dict[int, bool] = {}  # jobs that are evicted and have not left
        self._at: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    # --- facts ----------------------------------------------------------------------------

    def on_submitted(self, _fact: Submitted) -> None:
        """Count it."""
        self.submitted += 1

    def on_started(self, fact: Started) -> None:
        """Remember its GPUs, to recognize its return."""
        job = fact.job
        self._at[job] = (fact.gpus, fact.instances)
        if job in self._left:
            at_s, gpus, instances = self._left.pop(job)
            back = gpus == fact.gpus and instances == fact.instances
            self.reversals += back and fact.at_s - at_s < REVERSAL_S

    def on_evicting(self, fact: Evicting) -> None:
        """Count it."""
        self._by_contract[fact.job] = fact.contract
        if fact.why == Why.MOVE:
            self.migrations += 1
            self.moves[fact.job] += 1
        elif fact.why == Why.RECOVER:
            self.recoveries += 1
        else:
            self.preemptions += 1

    def on_recut(self, _fact: Recut) -> None:
        """Count it."""
        self.regeometries += 1

    def on_stopped(self, fact: Stopped) -> None:
        """Record one stay on the GPUs."""
        job, why, full = fact.job, fact.why, fact.full_milli
        contract = self._by_contract.pop(job, False)
        if why in _DISRUPTED:
            (self.contract_stops if contract else self.weighed_stops)[job] += 1
        allocated = int((fact.at_s - fact.start_s) * TICKS_PER_S) * fact.milli
        early_s = min(fact.at_s, self._last_submit_s) - fact.start_s
        self._early_allocated += max(int(early_s * TICKS_PER_S), 0) * fact.milli
        gain = int(fact.gain_s * TICKS_PER_S)
        tenant = self._tenant[job]
        if tenant >= len(self.shares):
            self.shares += [Share() for _ in range(tenant + 1 - len(self.shares))]
        share = self.shares[tenant]
        share.allocated += allocated
        share.useful += gain * full
        share.overhead += allocated - gain * full
        early = self._early_ticks(fact, gain)
        if why in _GOES_ON:
            self.faults += why == Why.FAULT
            self.resizes += why == Why.RESIZE
            where = self._at.pop(job, None)
            if where is not None and why in _DISRUPTED:
                self._left[job] = (fact.at_s, *where)
            self._kept.setdefault(job, []).append((early, gain - early, full))
            if fact.lost_s:
                self._lose(share, self._kept[job], fact)
        else:
            self._at.pop(job, None)
            self._early += early * full
            if why in {Why.FAIL, Why.SUSPEND} and fact.lost_s:
                self._kept.setdefault(job, []).append((0, gain, full))
                self._early -= early * full
                self._lose(share, self._kept[job], fact)

    def _early_ticks(self, fact: Stopped, gain: int) -> int:
        """Ticks of the gain from before the last submit."""
        last_s = self._last_submit_s
        if fact.halt_s <= last_s:
            return gain
        if fact.ready_s >= last_s:
            return 0
        ticks = int((last_s - fact.ready_s) * TICKS_PER_S)
        return min(gain, ticks if fact.milli == fact.full_milli else ticks * fact.milli // fact.full_milli)

    def _lose(self, share: Share, kept: list[tuple[int, int, int]], fact: Stopped) -> None:
        """Subtract the progress lost by `fact` from the end of the kept progress."""
        lost = int(fact.lost_s * TICKS_PER_S)
        while lost > 0 and kept:
            early, late, full = kept.pop()
            off_late = min(late, lost)
            off_early = min(early, lost - off_late)
            off = off_late + off_early
            lost -= off
            share.useful -= off * full
            share.lost += off * full
            self.lost[fact.job] += off * full
            self.lost_no_bandwidth += off * full * fact.no_bandwidth
            if early + late > off:
                kept.append((early - off_early, late - off_late, full))

    # --- the sum --------------------------------------------------------------------------

    def totals(self, end_s: float) -> Totals:
        """The accounts of the time from 0 to `end_s`, after the cluster was settled."""
        total = Share()
        for share in self.shares:
            total.allocated += share.allocated
            total.useful += share.useful
            total.lost += share.lost
            total.overhead += share.overhead
        early = self._early + sum(e * full for kept in self._kept.values() for e, _, full in kept)
        capacity = self._cluster.hardware.capacity_milli * int(end_s * TICKS_PER_S)
        return Totals(capacity, capacity - total.allocated, total, tuple(self.shares), early, self._early_allocated)


def utilization_bound(
    submit_s: Sequence[float], duration_s: Sequence[float], gpus: Sequence[float], capacity_gpus: float
) -> float:
    """The largest part of the capacity up to the last submit within reach of any policy (arrival-limited).

    `served_gpu_s` / (G x H), each job from its submit for its duration, H the last submit. NaN if H or G is 0.
    """
    last_s = max(submit_s, default=0.0)
    if not last_s or not capacity_gpus:
        return float("nan")
    begin_s = np.array(submit_s, float)
    served = served_gpu_s(begin_s, begin_s + np.array(duration_s, float), np.array(gpus, float), capacity_gpus, last_s)
    return served / (capacity_gpus * last_s)


def served_gpu_s(begin_s: F64, end_s: F64, gpus: F64, capacity_gpus: float, until_s: float) -> float:
    """The most GPU-seconds usable by work of these times and widths up to a time.

    Each piece of work demands its GPUs from its begin to its end, as if it started at once. While the demand exceeds
    the capacity the excess joins a backlog; otherwise the backlog uses the free part. Served is the demand up to the
    time minus the backlog left then.
    """
    at_s = np.minimum(np.concatenate([begin_s, end_s, [until_s]]), until_s)
    changes = np.concatenate([gpus, -gpus, [0.0]])
    order = np.argsort(at_s, kind="stable")
    span_s, demand = np.diff(at_s[order]), np.cumsum(changes[order])[:-1]
    excess = np.concatenate([[0.0], np.cumsum((demand - capacity_gpus) * span_s)])
    return float(demand @ span_s - (excess[-1] - excess.min()))
