"""Spending by day: the last whole day of each tenant against the days before it, and the month against its budget."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise

import numpy as np

from autopilot.metering.amounts import TICKS_PER_S, Kind
from autopilot.metering.calendar import Calendar, zone_of
from autopilot.metering.prices import Prices
from autopilot.metering.segments import Store
from autopilot.metering.showback import Asked

DAYS = 30
LEAST_DAYS = 7
"""A mean of fewer days says little: the ratio is then unknown."""
ALERT_RATIO = 1.3
"""A day above this ratio is worth a look."""
MOST_GAP_RATIO = 0.01
"""A day with a larger unobserved part of its capacity x time is unknown: neither judged nor in the mean."""
WEEKS = 8
"""Weeks before the month's open days, the source of their draws."""
LEAST_WEEKS = 3
"""With fewer known days of each weekday, there is no forecast."""
DRAWS, LEVELS = 2000, (0.1, 0.5, 0.9)


@dataclass(frozen=True, slots=True)
class Spending:
    """The charge of one tenant on the last whole day; `ratio` None if too few days came before, or cost nothing."""

    tenant: str
    day_begin_s: float  # in the time of the store
    charge: float
    mean_charge: float | None
    days: int  # in that mean
    currency: str

    @property
    def ratio(self) -> float | None:
        """This day / the mean."""
        return self.charge / self.mean_charge if self.mean_charge else None

    @property
    def high(self) -> bool:
        """True if it is above `ALERT_RATIO`."""
        return self.ratio is not None and self.ratio > ALERT_RATIO


@dataclass(frozen=True, slots=True)
class MonthForecast:
    """The charge of one tenant ("": all together) in a calendar month; None: too little history, or no budget."""

    tenant: str
    month: str  # 2026-02
    so_far: float
    low: float | None  # in 10 % of the draws the month ends below this
    middle: float | None
    high: float | None  # in 10 % above this
    budget: float | None
    currency: str

    @property
    def ratio(self) -> float | None:
        """Forecast / budget."""
        return self.middle / self.budget if self.middle is not None and self.budget else None


@dataclass(frozen=True, slots=True)
class Daily:
    """Charges by calendar day: `edges` of the days (1/1,024 s), `known`, True for an observed day, and charges by
    tenant.
    """

    edges: tuple[int, ...]
    known: tuple[bool, ...]
    charges: Mapping[str, Sequence[float]] = field(default_factory=dict)


def daily_charges(asked: Asked, edges: Sequence[int]) -> Daily:
    """The charges of each tenant between consecutive `edges`, the ends of days of the asked calendar."""
    lines, charges = asked.charged()
    days = np.array(edges)
    known = [_covers(asked.store, begin, end) for begin, end in pairwise(edges)]
    whole, gap = np.zeros(len(known)), np.zeros(len(known))
    for kind, into in ((Kind.CAPACITY, whole), (Kind.GAP, gap)):
        mine = lines[lines["kind"] == kind]
        np.add.at(into, np.searchsorted(days, mine["begin"].to_numpy(), side="right") - 1, mine["hours"].to_numpy())
    owned = charges[(charges["tenant"] != "") & charges["kind"].isin([Kind.HELD, Kind.RESERVED])]
    by_tenant = {name: np.zeros(len(known)) for name in sorted(owned["tenant"].unique().tolist())}
    cost = (owned["hours"] * owned["rate"]).groupby([owned["tenant"], owned["begin"]]).sum()
    for tenant, begin, value in zip(*(cost.index.get_level_values(at) for at in (0, 1)), cost.to_numpy(), strict=True):
        by_tenant[tenant][np.searchsorted(days, int(begin), side="right") - 1] += value
    observed = tuple(
        bool(one and two <= MOST_GAP_RATIO * three) for one, two, three in zip(known, gap, whole, strict=True)
    )
    return Daily(tuple(edges), observed, {name: values.tolist() for name, values in by_tenant.items()})


def calendar_of(store: Store, prices: Prices) -> Calendar:
    """The days of a store in the zone of the prices."""
    return Calendar(store.start_s, zone_of(prices.zone, "zone"))


def daily_spending(store: Store, prices: Prices, now_s: float | None = None) -> list[Spending]:
    """Each tenant's last whole day before `now_s` (None: the end of the store), by name.

    A day without any row of a tenant counts as 0 only if the store covers it and it was observed. Other days are left
    out of the mean; if the last day is one of them, nothing is known. Raises `InputError` for a damaged segment and for
    a GPU model without a price.
    """
    if not store.segments:
        return []
    calendar = calendar_of(store, prices)
    end = store.segments[-1].end if now_s is None else round(now_s * TICKS_PER_S)
    today = calendar.day_of(end)
    edges = [calendar.ticks(today - timedelta(days=back)) for back in range(DAYS + 1, -1, -1)]
    if not _covers(store, *edges[-2:]):
        return []
    daily = daily_charges(Asked(store, prices, calendar, edges[0], edges[-1]), edges)
    if not daily.known[-1]:
        return []
    before = [at for at, known in enumerate(daily.known[:-1]) if known]
    return [
        Spending(
            tenant,
            edges[-2] / TICKS_PER_S,
            values[-1],
            sum(values[at] for at in before) / len(before) if len(before) >= LEAST_DAYS else None,
            len(before),
            prices.currency,
        )
        for tenant, values in daily.charges.items()
        if values[-1] or any(values[at] for at in before)
    ]


def month_forecasts(store: Store, prices: Prices, now_s: float | None = None) -> list[MonthForecast]:
    """The month of `now_s` (None: the end of the store) of each tenant with charges or a budget, and of all together.

    An open day is drawn from the days of its weekday in the `WEEKS` before, at the prices of its begin; the days of one
    week come from one week, as a busy day is rarely alone. The draws are the same at every call. Raises `InputError` as
    `daily_spending` does.
    """
    if not store.segments or store.start_s is None:
        return []
    calendar = calendar_of(store, prices)
    now = store.segments[-1].end if now_s is None else round(now_s * TICKS_PER_S)
    first, after = calendar.month_of(now)
    today = calendar.day_of(now)
    open_days = (after.date() - today.date()).days  # with today
    begin = min(first, today - timedelta(days=7 * WEEKS))
    whole = (today.date() - begin.date()).days
    edges = [calendar.ticks(begin + timedelta(days=day)) for day in range(whole + 1)]
    edges.append(max(edges[-1] + 1, now))

    def daily_at(rates: Prices) -> Daily:
        return daily_charges(Asked(store, rates, calendar, edges[0], edges[-1]), edges)

    daily = daily_at(prices)
    charges = _with_all(daily, prices.budgets)
    ahead = [today + timedelta(days=day) for day in range(open_days)]
    changes = prices.changes_s()
    rates = [bisect_right(changes, day.timestamp()) for day in ahead]  # number of the rates of each open day
    since = {number: day.timestamp() for number, day in reversed(list(zip(rates, ahead, strict=True)))}
    whole_ago = bisect_right(changes, begin.timestamp())
    at = {
        number: charges if number == whole_ago else _with_all(daily_at(prices.fixed(at_s)), charges)
        for number, at_s in since.items()
    }
    month = whole - (today.date() - first.date()).days
    budgets = {**prices.budgets, **({} if prices.budget is None else {"": prices.budget})}
    found = []
    for tenant, values in sorted(charges.items()):
        so_far = float(values[month:].sum())
        past = [at[number][tenant][:-1] for number in rates]
        levels = _drawn(past, daily.known[:-1], float(values[-1]))
        whole_days = float(values[month:-1].sum())
        low, middle, high = (None,) * 3 if levels is None else (whole_days + each for each in levels)
        budget = budgets.get(tenant)
        found.append(MonthForecast(tenant, f"{first:%Y-%m}", so_far, low, middle, high, budget, prices.currency))
    return found


def _with_all(daily: Daily, names: Iterable[str]) -> dict[str, np.ndarray]:
    """The charges of each tenant and of all together (""), with those in `names` without any."""
    found = {name: np.array(values) for name, values in daily.charges.items()}
    found |= {name: np.zeros(len(daily.known)) for name in names if name and name not in found}
    return found | ({"": np.sum(list(found.values()), axis=0)} if found else {})


def _drawn(past: Sequence[np.ndarray], known: Sequence[bool], today: float) -> list[float] | None:
    """Quantiles (`LEVELS`) of the sum of today and the days after it; None: too little history.

    `past`: for each of these days the charges of the days before today, at its prices.
    """
    rng = np.random.default_rng(0)
    total = np.zeros(DRAWS)
    picks = rng.random((DRAWS, len(past) // 7 + 1))
    for ahead, values in enumerate(past):
        back = range(len(values) - 7 + ahead % 7, -1, -7)
        like = [values[at] for at in list(back)[:WEEKS] if known[at]]
        if len(like) < LEAST_WEEKS:
            return None
        drawn = np.array(like)[(picks[:, ahead // 7] * len(like)).astype(int)]
        total += np.maximum(drawn, today) if ahead == 0 else drawn
    return [float(each) for each in np.quantile(total, LEVELS)]


def highest_ratios(found: Iterable[Spending], most: int) -> dict[str, float]:
    """Known ratios by tenant, at most `most`: high ones first, of these the largest excess in money."""
    known = [(each, each.ratio, each.mean_charge) for each in found]
    ranked = sorted(
        (not each.high, mean - each.charge, each.tenant, ratio)
        for each, ratio, mean in known
        if ratio is not None and mean is not None
    )
    return {tenant: ratio for _, _, tenant, ratio in ranked[:most]}


def highest_budgets(found: Iterable[MonthForecast], most: int) -> dict[str, float]:
    """Known forecast / budget by tenant, at most `most`, the largest first; "(all)" is the budget of all together."""
    known = [(each.tenant or "(all)", ratio) for each in found if (ratio := each.ratio) is not None]
    return dict(sorted(known, key=lambda one: (-one[1], one[0]))[:most])


def _covers(store: Store, begin: int, end: int) -> bool:
    """True if segments cover a whole day."""
    inside = [each for each in store.segments if each.end > begin and each.begin < end]
    if not inside or inside[0].begin > begin or inside[-1].end < end:
        return False
    return not any(low < end and high > begin for low, high in store.holes)
