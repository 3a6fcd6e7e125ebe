"""Use of each tenant on each of the last days, in GPU-seconds, and runaway tenants.

Days have 86,400 s and are counted from time 0. Memory keeps one number per tenant and day, and the GPUs held since the
last change. As for past use (core/quota/past_use.py), the sum at a later time follows from these alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import floor

import numpy as np

from autopilot.core.model.capability import Tick
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Effect, Policy
from autopilot.core.model.policy.bounds import DAY_S
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.model.work import held_gpus

DAYS = 30
"""Days before the last one that the mean covers."""
LEAST_DAYS = 7
"""With fewer days on record no tenant is judged, because use varies over the week."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Use of a tenant in the last 24 hours, and its mean day before; NaN with fewer than `LEAST_DAYS` days."""

    last_day_gpu_s: float
    mean_day_gpu_s: float
    days: int


def remember_spending(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory with the use since the last observation booked by day, and the GPUs held from now on.

    It stays as it is while no action in need of it is on.
    """
    if not tick.policy.modes.on(Effect.SUSPEND):
        return memory
    held, now_s = _held(tick.observation.snapshot), tick.now_s
    since_s = memory.spending.spent_until_s if memory.spending.spent_until_s > -np.inf else now_s
    if held == memory.spending.spending_gpus and memory.spending.spent_until_s > -np.inf:
        return memory  # nothing changed: the same rate continues
    spent = _booked(memory.spending.spent_gpu_s, memory.spending.spending_gpus, since_s, now_s)
    kept = {tenant: tuple(sorted(days.items())) for tenant, days in spent.items()}
    return replace(memory, spending=replace(memory.spending, spent_gpu_s=kept, spending_gpus=held, spent_until_s=now_s))


def spent_by(memory: ControllerMemory, now_s: float) -> dict[str, Spent]:
    """Use of each tenant, as of `now_s`."""
    since_s = memory.spending.spent_until_s if memory.spending.spent_until_s > -np.inf else now_s
    today, found = floor(now_s / DAY_S), {}
    for tenant, days in _booked(memory.spending.spent_gpu_s, memory.spending.spending_gpus, since_s, now_s).items():
        past = now_s / DAY_S - today
        last = days.get(today, 0.0) + (1.0 - past) * days.get(today - 1, 0.0)
        before = [days[day] for day in sorted(days) if day < today - 1]
        first = min(days)
        count = today - 1 - first  # days without use count as zero
        mean = sum(before) / count if count >= LEAST_DAYS else float("nan")
        found[tenant] = Spent(last, mean, max(count, 0))
    return found


def runaways(memory: ControllerMemory, now_s: float, policy: Policy) -> dict[str, Spent]:
    """Tenants with a last day above both `spend_floor_gpu_s` and `spend_ratio` times their mean day."""
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
    """`spent` plus the use from `since_s` to `until_s`, split at midnight; days older than `DAYS` are dropped."""
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
    """GPUs held by the work of each tenant: a share counts its part, an instance one; zeros are left out."""
    names = snapshot.names.tenants
    held = held_gpus(snapshot, snapshot.workloads.tenant, len(names))
    return {names[tenant]: float(held[tenant]) for tenant in np.flatnonzero(held).tolist()}
