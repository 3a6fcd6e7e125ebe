"""What each tenant used on each of the last days, in GPU-seconds, and who has run away.

Days are counted from the start of time, 86,400 s each. Memory keeps one number for each tenant and day, and what is
held since the last change: as for past use (core/quota/past_use.py) the sum of a later moment follows from these alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import floor

import numpy as np

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.policy_bounds import DAY_S
from autopilot.core.model.snapshot import GPU_MILLI, ClusterSnapshot, holding_mask

DAYS = 30
"""Days before the last one over which the mean is taken."""
LEAST_DAYS = 7
"""With fewer days on record nobody is judged: a week has its own shape."""


@dataclass(frozen=True, slots=True)
class Spent:
    """A tenant's use of the last 24 hours, and its mean day before that; NaN while too few days are known."""

    last_day_gpu_s: float
    mean_day_gpu_s: float
    days: int


def remember_spending(memory: ControllerMemory, snapshot: ClusterSnapshot, now_s: float) -> ControllerMemory:
    """Memory with the use since the last observation booked on its days, and what is held from now on."""
    held = _held(snapshot)
    since_s = memory.spent_until_s if memory.spent_until_s > -np.inf else now_s
    if held == memory.spending_gpus and memory.spent_until_s > -np.inf:
        return memory  # nothing changed: the same rate goes on from the same moment
    spent = _booked(memory.spent_gpu_s, memory.spending_gpus, since_s, now_s)
    kept = {tenant: tuple(sorted(days.items())) for tenant, days in spent.items()}
    return replace(memory, spent_gpu_s=kept, spending_gpus=held, spent_until_s=now_s)


def spent_by(memory: ControllerMemory, now_s: float) -> dict[str, Spent]:
    """What each tenant used, as of `now_s`."""
    since_s = memory.spent_until_s if memory.spent_until_s > -np.inf else now_s
    today, found = floor(now_s / DAY_S), {}
    for tenant, days in _booked(memory.spent_gpu_s, memory.spending_gpus, since_s, now_s).items():
        past = now_s / DAY_S - today
        last = days.get(today, 0.0) + (1.0 - past) * days.get(today - 1, 0.0)
        before = [days[day] for day in sorted(days) if day < today - 1]
        first = min(days)
        count = today - 1 - first  # days without any use count as such
        mean = sum(before) / count if count >= LEAST_DAYS else float("nan")
        found[tenant] = Spent(last, mean, max(count, 0))
    return found


def runaways(memory: ControllerMemory, now_s: float, policy: Policy) -> dict[str, Spent]:
    """Tenants whose last day exceeds what the policy allows of their mean day."""
    rules = policy.enforcement
    return {
        tenant: spent
        for tenant, spent in spent_by(memory, now_s).items()
        if spent.last_day_gpu_s > max(rules.spend_floor_gpu_s, rules.spend_ratio * spent.mean_day_gpu_s)
        and spent.days >= LEAST_DAYS
    }


def _booked(
    spent: Mapping[str, tuple[tuple[int, float], ...]], held: Mapping[str, float], since_s: float, until_s: float
) -> dict[str, dict[int, float]]:
    """`spent` with what was held from `since_s` to `until_s` added, cut at midnights; days too long ago are dropped."""
    oldest = floor(until_s / DAY_S) - DAYS - 1
    after = {tenant: {day: gpu_s for day, gpu_s in days if day >= oldest} for tenant, days in spent.items()}
    start_s = max(since_s, oldest * DAY_S)
    while start_s < until_s:
        day = floor(start_s / DAY_S)
        end_s = min(until_s, (day + 1) * DAY_S)
        for tenant, gpus in held.items():
            days = after.setdefault(tenant, {})
            days[day] = days.get(day, 0.0) + gpus * (end_s - start_s)
        start_s = end_s
    return {tenant: days for tenant, days in after.items() if days}


def _held(snapshot: ClusterSnapshot) -> dict[str, float]:
    """GPUs that each tenant's work holds: a share is its part, an instance one; zeros left out."""
    work, placed, names = snapshot.workloads, snapshot.placements, snapshot.names.tenants
    entry = holding_mask(work)[placed.workload]
    milli = np.where(placed.instance < 0, placed.milli, GPU_MILLI)[entry]
    held = np.bincount(work.tenant[placed.workload[entry]], milli, minlength=len(names))
    return {names[tenant]: float(held[tenant]) / GPU_MILLI for tenant in np.flatnonzero(held).tolist()}
