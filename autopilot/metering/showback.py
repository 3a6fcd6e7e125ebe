"""Use and cost by group: the lines and charges of a period, summed by an owner or by a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autopilot.core.model.errors import InputError, nearest
from autopilot.metering.amounts import GRAINS_PER_GPU_S, Kind
from autopilot.metering.calendar import Calendar
from autopilot.metering.charges import FREE, Meter, charges_of, price_edges, priced
from autopilot.metering.lines import GRAINS_PER_GPU_H, Period, cut, lines_of, missing_s, period_of
from autopilot.metering.prices import Prices
from autopilot.metering.segments import Store

if TYPE_CHECKING:
    import pandas as pd

MJ_PER_KWH = 3.6e9
PARTS = (Kind.HELD, Kind.IDLE, Kind.FRAGMENTED, Kind.OUT_OF_USE, Kind.GAP)
"""Kinds of rows that add up to the capacity."""
WITHIN = 0.001
"""The rows of a period and its capacity x time may differ by this part."""
BY = {
    "tenant": "tenant",
    "project": "queue",
    "type": "gpu_model",
    "class": "slo_class",
    "user": "user",
    "workload": "workload",
}
"""Groups of a showback by owner, and the column of each; others are `label:KEY`, `day` and `month`."""
TIMES = ("day", "month")
LABEL = "label:"
NAMES = {
    Kind.IDLE: "(idle)",
    Kind.FRAGMENTED: "(fragmented)",
    Kind.OUT_OF_USE: "(out of use)",
    Kind.GAP: "(not observed)",
    Kind.RESERVED: "(unused guarantee)",
}


@dataclass(slots=True)
class Bill:
    """One row of a showback. GPU-hours; money in the currency of the prices; None: not known."""

    name: str
    allocated_gpu_h: float = 0.0
    active_gpu_h: float = 0.0  # measured; active + idle + unknown = allocated
    idle_gpu_h: float = 0.0  # measured and not active; of the rows in brackets: all
    unknown_gpu_h: float = 0.0  # allocated and not measured
    measured_gpu_h: float = 0.0
    borrowed_gpu_h: float = 0.0
    lost_gpu_h: float = 0.0
    saved_gpu_h: float = 0.0  # requested as whole GPUs, and not held: the work has shares of them
    reserved_gpu_h: float = 0.0  # of guarantees: the part used by this owner, and the part its queue left unused
    unused_gpu_h: float = 0.0  # of that, free capacity
    energy_kwh: float | None = None  # of the site: with the PUE
    unknown_energy_gpu_h: float = 0.0  # GPU-hours with unknown energy
    counted_energy_gpu_h: float = 0.0  # GPU-hours with energy by the energy counter
    averaged_energy_gpu_h: float = 0.0  # GPU-hours with energy as mean power x time
    carbon_kg: float | None = None
    reservation: float = 0.0
    burst: float = 0.0
    premium: float = 0.0
    list_cost: float = 0.0  # of its held GPUs, or of free ones, at list price
    energy_cost: float | None = None
    measured_ratio: float | None = None  # measured / allocated: the basis of `active` and `idle`
    kept_ratio: float | None = None  # 1 - lost / allocated
    mfu_ratio: float | None = None  # reported operations / peak; None if none are reported

    @property
    def charge(self) -> float:
        """The charge to its owner."""
        return self.reservation + self.burst + self.premium


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The check of a period: the sum of its rows against its capacity x time."""

    capacity_gpu_h: float
    rows_gpu_h: float
    missing_s: float  # between segments: no row tells of it

    @property
    def difference_ratio(self) -> float:
        """Difference of the rows as a share of the capacity."""
        return abs(self.rows_gpu_h - self.capacity_gpu_h) / self.capacity_gpu_h if self.capacity_gpu_h else 0.0

    @property
    def good(self) -> bool:
        """True if they agree within `WITHIN`."""
        return self.difference_ratio <= WITHIN


@dataclass(frozen=True, slots=True)
class Asked:
    """The question to a store: the time (1/1,024 s; None: all), the days and months, and the prices."""

    store: Store
    prices: Prices
    calendar: Calendar
    since: int | None = None
    until: int | None = None

    def period(self) -> Period:
        """Its part within the store. Raises `InputError` if that is nothing."""
        return period_of(self.store, self.since, self.until)

    def edges(self) -> list[int]:
        """The ends of the charge days; a day is shorter only at a change of prices, or if a part of it is asked for."""
        period = self.period()
        edges = self.calendar.edges(period.begin, period.end, price_edges(self.prices, self.calendar))
        low = edges[0] if self.since is None else max(edges[0], self.since)
        high = edges[-1] if self.until is None else min(edges[-1], self.until)
        return cut(edges, Period(low, high))

    def charged(self, more: Sequence[str] = ()) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The lines by charge day, and their charges."""
        lines = priced(lines_of(self.store, self.edges(), more), self.prices, self.calendar)
        return lines, charges_of(lines)


@dataclass(frozen=True, slots=True)
class Showback:
    """The answer: bills by group, and the check of their sum."""

    period: Period
    by: str
    bills: tuple[Bill, ...]
    total: Bill
    capacity_cost: float
    reconciled: Reconciled
    currency: str
    charges: pd.DataFrame = field(repr=False)


def check_by(by: str) -> None:
    """Raise `InputError` for an unknown group."""
    known = (*BY, *TIMES)
    if by in known or (by.startswith(LABEL) and len(by) > len(LABEL)):
        return
    near = nearest(by, known)
    raise InputError(f"--by: {by!r} is not one of {', '.join(known)}, {LABEL}KEY{near and '; ' + near}")


def showback(asked: Asked, by: str = "tenant") -> Showback:
    """The bills of a period by one of `BY`, `TIMES` or a label. Raises `InputError`."""
    check_by(by)
    if by == "month" and asked.calendar.start_s is None:
        raise InputError("--by: this run has no dates, so it has no months; write --by day")
    more = {"user": ["user"], "workload": ["workload"]}.get(by, ["labels"] if by.startswith(LABEL) else [])
    lines, charges = asked.charged(more)
    name = _namer(by, asked.calendar)
    capacity = lines[lines["kind"] == Kind.CAPACITY]
    lines = lines[lines["kind"].isin(PARTS)]
    table = _summed(lines, charges, asked.prices, name)
    bills = [_bill(str(key), row) for key, row in zip(table.index, table.to_dict("records"), strict=True)]
    total = _bill("total", table.sum().to_dict())
    order: Callable[[Bill], Any] = (
        (lambda bill: bill.name)
        if by in TIMES
        else (lambda bill: (bill.name.startswith("("), -bill.list_cost, bill.name))
    )
    period = asked.period()
    return Showback(
        period,
        by,
        tuple(sorted(bills, key=order)),
        total,
        float((capacity["hours"] * capacity["price"]).sum()),
        Reconciled(_gpu_h(capacity, "gpu_time"), _gpu_h(lines, "gpu_time"), missing_s(asked.store, period)),
        asked.prices.currency,
        charges,
    )


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    texts = [name for name in frame.columns if name in {*BY.values(), "kind", "labels", "begin"}]
    columns = [frame[name].tolist() for name in texts]
    return [dict(zip(texts, row, strict=True)) for row in zip(*columns, strict=True)]


def _namer(by: str, calendar: Calendar) -> Callable[[dict[str, Any]], str]:
    """The group of a line or charge; rows without an owner have names in brackets."""

    def by_time(row: dict[str, Any]) -> str:
        if calendar.start_s is None:
            return f"day {calendar.day_of(row['begin']).timestamp() // 86_400 + 1:.0f}"
        return f"{calendar.moment(row['begin']):{'%Y-%m' if by == 'month' else '%Y-%m-%d'}}"

    def by_owner(row: dict[str, Any]) -> str:
        kind = Kind(row["kind"])
        if kind in NAMES and kind != Kind.RESERVED:
            return NAMES[kind]
        if by.startswith(LABEL):
            text = str(json.loads(row["labels"]).get(by.removeprefix(LABEL), "")) if row["labels"] else ""
        else:
            text = row[BY[by]]
        return text or NAMES.get(kind, "(none)")

    return by_time if by in TIMES else by_owner


def _gpu_h(frame: pd.DataFrame, name: str) -> float:
    return int(frame[name].sum()) / GRAINS_PER_GPU_H


def _summed(
    lines: pd.DataFrame, charges: pd.DataFrame, prices: Prices, name: Callable[[dict[str, Any]], str]
) -> pd.DataFrame:
    """The figures of a bill by group, before its ratios."""
    import pandas as pd

    held, free = lines["kind"] == Kind.HELD, charges["kind"].isin(FREE)
    peak = lines["gpu_model"].map(prices.peak_tflops).fillna(0.0).astype(float) * held
    hours = {
        f"{word}_gpu_h": lines[column] * held / GRAINS_PER_GPU_H
        for word, column in (
            ("allocated", "gpu_time"),
            ("active", "active"),
            ("measured", "measured"),
            ("borrowed", "borrowed"),
            ("lost", "lost"),
            ("saved", "saved"),
        )
    }
    figures = pd.DataFrame(
        {
            **hours,
            "gflop": lines["gflop"] * (peak > 0),
            "peak_gflop": lines["gflop_time"] / GRAINS_PER_GPU_S * peak * 1000,
        }
    )
    cost, meter, share = charges["hours"] * charges["rate"], charges["meter"], charges["share"]
    kwh = charges["energy_mj"].astype(float) * share / MJ_PER_KWH * charges["pue"]
    guarantee = meter.isin([Meter.USED, Meter.UNUSED, Meter.LENT])
    money = pd.DataFrame(
        {
            "free_gpu_h": charges["physical"] * free,
            "unused_gpu_h": charges["physical"] * (meter == Meter.UNUSED),
            "reserved_gpu_h": charges["hours"] * guarantee,
            "physical_gpu_h": charges["physical"],
            "powered_gpu_h": charges["powered"].astype(float) * share / GRAINS_PER_GPU_H,
            "counted_gpu_h": charges["counted"].astype(float) * share / GRAINS_PER_GPU_H,
            "energy_kwh": kwh,
            "carbon_kg": kwh * charges["carbon_g_kwh"] / 1000,
            "energy_cost": kwh * charges["energy_price"],
            "reservation": cost * guarantee,
            "burst": cost * (meter == Meter.BURST),
            "premium": cost * (meter == Meter.PREMIUM),
            "list_cost": charges["physical"] * charges["listed"],
        }
    )
    summed = [
        each.astype(float).groupby([name(row) for row in _rows(of)]).sum()
        for each, of in ((figures, lines), (money, charges))
    ]
    table = summed[1].join(summed[0], how="outer").fillna(0.0)
    return table[(table != 0).any(axis=1)]


def _bill(name: str, of: Mapping[Any, Any]) -> Bill:
    """One bill of summed figures.

    MFU (model FLOPs utilization) = reported model FLOPs / (peak FLOP/s of the GPU model x GPU-seconds of the reporting
    work). Model FLOPs are those of the forward and backward pass of the model, without recomputation: Chowdhery et al.,
    PaLM (arXiv:2204.02311), Appendix B.
    """
    allocated_h, measured_h, powered_h = of["allocated_gpu_h"], of["measured_gpu_h"], of["powered_gpu_h"]
    known = powered_h > 0
    return Bill(
        name,
        **{each: of[each] for each in _SUMS},
        idle_gpu_h=measured_h - of["active_gpu_h"] + of["free_gpu_h"],
        unknown_gpu_h=allocated_h - measured_h,
        unknown_energy_gpu_h=max(of["physical_gpu_h"] - powered_h, 0.0),
        counted_energy_gpu_h=of["counted_gpu_h"],
        averaged_energy_gpu_h=max(powered_h - of["counted_gpu_h"], 0.0),
        energy_kwh=of["energy_kwh"] if known else None,
        carbon_kg=of["carbon_kg"] if known else None,
        energy_cost=of["energy_cost"] if known else None,
        measured_ratio=measured_h / allocated_h if allocated_h else None,
        kept_ratio=max(1.0 - of["lost_gpu_h"] / allocated_h, 0.0) if allocated_h else None,
        mfu_ratio=of["gflop"] / of["peak_gflop"] if of["peak_gflop"] else None,
    )


_SUMS = (
    "allocated_gpu_h",
    "active_gpu_h",
    "measured_gpu_h",
    "borrowed_gpu_h",
    "lost_gpu_h",
    "saved_gpu_h",
    "reserved_gpu_h",
    "unused_gpu_h",
    "reservation",
    "burst",
    "premium",
    "list_cost",
)
