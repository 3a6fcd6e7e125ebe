"""Spending by day: the last whole day of each tenant against the mean of the days before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from autopilot.metering.amounts import TICKS_PER_S, Kind
from autopilot.metering.prices import Prices
from autopilot.metering.segments import DAY, Store
from autopilot.metering.showback import Bill, Line, add, lines_of, model_rates

DAYS = 30
LEAST_DAYS = 7
"""A mean of fewer days says little: the ratio is then unknown."""
ALERT_RATIO = 1.3
"""A day above this ratio is worth a look."""
MOST_GAP_RATIO = 0.01
"""A day is unknown where more of its capacity x time was not observed: it is neither judged nor in the mean."""


@dataclass(frozen=True, slots=True)
class Spending:
    """The charge of one tenant on the last whole day; `ratio` None where too few days came before, or cost nothing."""

    tenant: str
    day_begin_s: float  # in the time of the store
    charge: float
    mean_charge: float | None
    days: int  # whose mean it is
    currency: str

    @property
    def ratio(self) -> float | None:
        """This day / the mean."""
        return self.charge / self.mean_charge if self.mean_charge else None

    @property
    def high(self) -> bool:
        """Whether it is above `ALERT_RATIO`."""
        return self.ratio is not None and self.ratio > ALERT_RATIO


def daily_spending(store: Store, prices: Prices, now_s: float | None = None) -> list[Spending]:
    """Each tenant's last whole day before `now_s` (None: the end of the store), by name.

    A day without any row of a tenant counts as 0 only where the store covers it and it was observed. Other days are
    left out of the mean; where the last day is one of them, nothing is known. Raises `InputError` for a damaged
    segment and for a GPU model without a price.
    """
    if not store.segments:
        return []
    end = store.segments[-1].end if now_s is None else round(now_s * TICKS_PER_S)
    last = (end // DAY - 1) * DAY
    covered = [day for day in range(last - DAYS * DAY, last + DAY, DAY) if _covers(store, day)]
    if last not in covered:
        return []
    lines = lines_of(store, covered[0], last + DAY, DAY)
    unseen = _unseen(lines)
    if last in unseen:
        return []
    covered = [day for day in covered if day not in unseen]
    lines = [line for line in lines if line.period in set(covered)]
    rates = model_rates(lines, prices)
    charges: dict[str, dict[int, Bill]] = {}
    for line in lines:
        tenant = line.texts["tenant"]
        if tenant and line.kind in (Kind.HELD, Kind.RESERVED):
            add(charges.setdefault(tenant, {}).setdefault(line.period, Bill(tenant)), line, prices, rates)
    before = [day for day in covered if day != last]
    return [
        Spending(
            tenant,
            last / TICKS_PER_S,
            bills[last].charge if last in bills else 0.0,
            sum(bills[day].charge for day in before if day in bills) / len(before)
            if len(before) >= LEAST_DAYS
            else None,
            len(before),
            prices.currency,
        )
        for tenant, bills in sorted(charges.items())
    ]


def highest_ratios(found: Iterable[Spending], most: int) -> dict[str, float]:
    """Known ratios by tenant, at most `most`: high ones first, of these the largest excess in money."""
    known = [(each, each.ratio, each.mean_charge) for each in found]
    ranked = sorted(
        (not each.high, mean - each.charge, each.tenant, ratio)
        for each, ratio, mean in known
        if ratio is not None and mean is not None
    )
    return {tenant: ratio for _, _, tenant, ratio in ranked[:most]}


def _unseen(lines: Iterable[Line]) -> set[int]:
    """Days with too much time that was not observed."""
    gap: Counter[int] = Counter()
    capacity: Counter[int] = Counter()
    for line in lines:
        if line.kind in (Kind.GAP, Kind.CAPACITY):
            (gap if line.kind == Kind.GAP else capacity)[line.period] += line.amounts["gpu_time"]
    return {day for day, grains in gap.items() if grains > MOST_GAP_RATIO * capacity[day]}


def _covers(store: Store, day: int) -> bool:
    """Whether segments cover a whole day."""
    inside = [each for each in store.segments if each.end > day and each.begin < day + DAY]
    if not inside or inside[0].begin > day or inside[-1].end < day + DAY:
        return False
    return not any(begin < day + DAY and end > day for begin, end in store.holes)
