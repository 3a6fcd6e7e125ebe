"""Who used what and what it costs: sums of the segments by DuckDB, priced here.

A guarantee is paid by reservation, used or not. What a queue holds beyond it is a burst, paid by consumption. Work that
requires a topology or holds a MIG instance pays a premium. Free capacity has rows of its own, at list price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import duckdb

from autopilot.core.model.errors import InputError
from autopilot.metering.amounts import AMOUNTS, GRAINS_PER_GPU_S, KEYS, TICKS_PER_S, Kind
from autopilot.metering.prices import Prices
from autopilot.metering.segments import Store

GRAINS_PER_GPU_H = GRAINS_PER_GPU_S * 3600
MJ_PER_KWH = 3.6e9
PARTS = (Kind.HELD, Kind.IDLE, Kind.FRAGMENTED, Kind.OUT_OF_USE, Kind.GAP)
"""Kinds that make up the capacity."""
WITHIN = 0.001
"""The rows of a period and its capacity x time may differ by this part."""
OWNER = tuple(name for name in KEYS if name not in {"workload", "uid"})
BY = {"tenant": "tenant", "project": "queue", "type": "gpu_model", "class": "slo_class"}
"""Groups of a showback, and the column of each."""
NAMES = {
    Kind.IDLE: "(idle)",
    Kind.FRAGMENTED: "(fragmented)",
    Kind.OUT_OF_USE: "(out of use)",
    Kind.GAP: "(not observed)",
    Kind.RESERVED: "(reserved)",
}


@dataclass(frozen=True, slots=True)
class Line:
    """The sums of one owner: texts by `OWNER`, whole numbers by `AMOUNTS`; `period` as asked, 0 for the whole."""

    period: int
    texts: Mapping[str, str]
    amounts: Mapping[str, int]

    @property
    def kind(self) -> Kind:
        """What it counts."""
        return Kind(self.texts["kind"])

    def gpu_h(self, name: str = "gpu_time") -> float:
        """One amount in GPU-hours."""
        return self.amounts[name] / GRAINS_PER_GPU_H


@dataclass(slots=True)
class Bill:
    """One row of a showback. GPU-hours; money in the currency of the prices."""

    name: str
    allocated_gpu_h: float = 0.0
    active_gpu_h: float = 0.0  # measured; active + idle + unknown = allocated
    idle_gpu_h: float = 0.0  # measured and not active; of the rows in brackets: all
    unknown_gpu_h: float = 0.0  # allocated and not measured
    measured_gpu_h: float = 0.0
    borrowed_gpu_h: float = 0.0
    lost_gpu_h: float = 0.0
    reserved_gpu_h: float = 0.0
    energy_kwh: float = 0.0  # of the site: with the PUE
    unknown_energy_gpu_h: float = 0.0  # GPU-hours whose energy is not known
    counted_energy_gpu_h: float = 0.0  # GPU-hours whose energy is by the energy counter
    averaged_energy_gpu_h: float = 0.0  # GPU-hours whose energy is mean power x time
    carbon_kg: float = 0.0
    reservation: float = 0.0
    burst: float = 0.0
    premium: float = 0.0
    list_cost: float = 0.0  # of what it held, or of what was free, at list price
    energy_cost: float = 0.0
    measured_ratio: float | None = None  # measured / allocated: what `active` and `idle` rest on
    kept_ratio: float | None = None  # 1 - lost / allocated
    mfu_ratio: float | None = None  # reported operations / peak; None where none are reported

    @property
    def charge(self) -> float:
        """What its owner pays."""
        return self.reservation + self.burst + self.premium


@dataclass(frozen=True, slots=True)
class Reconciled:
    """Whether the rows of a period add up to its capacity x time."""

    capacity_gpu_h: float
    rows_gpu_h: float
    missing_s: float  # between segments: no row tells of it

    @property
    def difference_ratio(self) -> float:
        """Share of the capacity that the rows differ by."""
        return abs(self.rows_gpu_h - self.capacity_gpu_h) / self.capacity_gpu_h if self.capacity_gpu_h else 0.0

    @property
    def good(self) -> bool:
        """Whether they agree within `WITHIN`."""
        return self.difference_ratio <= WITHIN


@dataclass(frozen=True, slots=True)
class Period:
    """The time that a showback covers, in 1/1,024 s; whole rows only, so it may be shorter than asked."""

    begin: int
    end: int

    @property
    def span_s(self) -> float:
        """Its length."""
        return (self.end - self.begin) / TICKS_PER_S


@dataclass(frozen=True, slots=True)
class Showback:
    """The answer: bills by group, the lines that they were made of, and whether it adds up."""

    period: Period
    by: str
    bills: tuple[Bill, ...]
    total: Bill
    capacity_cost: float
    reconciled: Reconciled
    currency: str
    lines: tuple[Line, ...] = field(repr=False)


def lines_of(store: Store, since: int | None = None, until: int | None = None, every: int = 0) -> list[Line]:
    """The sums by owner of the rows within a time, in periods of `every` (1/1,024 s; 0: one period).

    Exact: DuckDB adds whole numbers in 128 bits. Raises `InputError` for a damaged segment.
    """
    wanted = [
        each.path
        for each in store.segments
        if (since is None or each.end > since) and (until is None or each.begin < until)
    ]
    if not wanted:
        return []
    period = f"(begin // {every}) * {every}" if every else "0"
    sums = ", ".join(f"sum({name})" for name in AMOUNTS)
    names = ", ".join(OWNER)
    query = (
        f"SELECT {period} AS period, {names}, {sums} FROM read_parquet($files)"  # noqa: S608 - names of this module
        ' WHERE begin >= $since AND "end" <= $until GROUP BY ALL ORDER BY ALL'
    )
    values = {
        "files": [str(path) for path in wanted],
        "since": -(2**62) if since is None else since,
        "until": 2**62 if until is None else until,
    }
    return [
        Line(
            int(row[0]),
            dict(zip(OWNER, row[1 : 1 + len(OWNER)], strict=True)),
            dict(zip(AMOUNTS, map(int, row[1 + len(OWNER) :]), strict=True)),
        )
        for row in _asked(query, values)
    ]


def period_of(store: Store, since: int | None, until: int | None) -> Period:
    """The time from the first to the last row that is within. Raises `InputError` where there is none."""
    wanted = [str(each.path) for each in store.segments]
    found = _asked(
        'SELECT min(begin), max("end") FROM read_parquet($files) WHERE begin >= $since AND "end" <= $until',
        {
            "files": wanted,
            "since": -(2**62) if since is None else since,
            "until": 2**62 if until is None else until,
        },
    )
    if not found or found[0][0] is None:
        if since is None and until is None:
            raise InputError(f"{store.folder}: no interval is written yet; ask again later, or after the run has ended")
        raise InputError(f"{store.folder}: nothing was metered in this time; leave out --since and --until to see all")
    return Period(*map(int, found[0]))


def _asked(query: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    if not values["files"]:
        return []
    with duckdb.connect(config={"autoinstall_known_extensions": "false"}) as asked:
        try:
            return asked.execute(query, dict(values)).fetchall()
        except duckdb.Error as error:
            why = str(error).splitlines()[0]
            raise InputError(f"metering cannot be read: {why}; restore the segment, or remove it") from error


def showback(store: Store, prices: Prices, by: str, since: int | None = None, until: int | None = None) -> Showback:
    """The bills of a period by tenant, project (queue), type (GPU model) or class. Raises `InputError`."""
    period = period_of(store, since, until)
    lines = lines_of(store, since, until)
    by_name: dict[str, Bill] = {}
    total = Bill("total")
    rates = model_rates(lines, prices)
    for line in lines:
        if line.kind != Kind.CAPACITY:
            name = _name(line, BY[by])
            for bill in (by_name.setdefault(name, Bill(name)), total):
                add(bill, line, prices, rates)
    for bill in (*by_name.values(), total):
        _set_ratios(bill, lines, prices, None if bill is total else BY[by])
    capacity = [line for line in lines if line.kind == Kind.CAPACITY]
    cost = sum(line.gpu_h() * _price(line, prices) for line in capacity)
    return Showback(
        period,
        by,
        tuple(sorted(by_name.values(), key=lambda bill: (bill.name.startswith("("), -bill.list_cost, bill.name))),
        total,
        cost,
        reconcile(store, lines, period),
        prices.currency,
        tuple(lines),
    )


def reconcile(store: Store, lines: Sequence[Line], period: Period) -> Reconciled:
    """Compare the rows with the capacity that was counted apart from them."""
    capacity = sum(line.gpu_h() for line in lines if line.kind == Kind.CAPACITY)
    rows = sum(line.gpu_h() for line in lines if line.kind in PARTS)
    missing = sum(max(min(end, period.end) - max(begin, period.begin), 0) for begin, end in store.holes)
    return Reconciled(capacity, rows, missing / TICKS_PER_S)


def model_rates(lines: Sequence[Line], prices: Prices) -> dict[str, float]:
    """The price of a GPU-hour by model: the mean over the pools that have it, for a guarantee is not tied to a pool."""
    hours: dict[str, float] = {}
    cost: dict[str, float] = {}
    for line in lines:
        if line.kind == Kind.CAPACITY:
            model = line.texts["gpu_model"]
            hours[model] = hours.get(model, 0.0) + line.gpu_h()
            cost[model] = cost.get(model, 0.0) + line.gpu_h() * _price(line, prices)
    return {model: cost[model] / hours[model] for model in hours if hours[model]}


def add(bill: Bill, line: Line, prices: Prices, rates: Mapping[str, float]) -> None:
    """Add one line to a bill."""
    hours, kind = line.gpu_h(), line.kind
    if kind == Kind.RESERVED:
        bill.reserved_gpu_h += hours
        bill.reservation += hours * rates.get(line.texts["gpu_model"], 0.0)
        return
    price = _price(line, prices)
    bill.list_cost += hours * price
    region = prices.region_of(line.texts["pool"])
    kwh = line.amounts["energy_mj"] / MJ_PER_KWH * region.pue
    bill.energy_kwh += kwh
    bill.carbon_kg += kwh * region.carbon_g_kwh / 1000
    bill.energy_cost += kwh * region.energy_kwh
    bill.unknown_energy_gpu_h += hours - line.gpu_h("powered")
    bill.counted_energy_gpu_h += line.gpu_h("counted")
    bill.averaged_energy_gpu_h += line.gpu_h("powered") - line.gpu_h("counted")
    if kind != Kind.HELD:
        bill.idle_gpu_h += hours
        return
    bill.allocated_gpu_h += hours
    active, measured = line.gpu_h("active"), line.gpu_h("measured")
    bill.measured_gpu_h += measured
    bill.active_gpu_h += active
    bill.idle_gpu_h += measured - active
    bill.unknown_gpu_h += hours - measured
    bill.borrowed_gpu_h += line.gpu_h("borrowed")
    bill.lost_gpu_h += line.gpu_h("lost")
    bill.burst += line.gpu_h("borrowed") * price * prices.burst_ratio
    ratio = prices.topology_premium.get(line.texts["topology"], 0.0)  # type: ignore[call-overload]
    bill.premium += hours * price * (ratio + (prices.mig_premium if line.texts["profile"] else 0.0))


def _set_ratios(bill: Bill, lines: Sequence[Line], prices: Prices, column: str | None) -> None:
    """The measured and the kept part. MFU if work reported its operations and the price file has the peak.

    MFU (model FLOPs utilization) = reported model FLOPs / (peak FLOP/s of the GPU model x GPU-seconds of the reporting
    work). Model FLOPs are those of the forward and backward pass of the model, without recomputation: Chowdhery et al.,
    PaLM (arXiv:2204.02311), Appendix B.
    """
    if bill.allocated_gpu_h:
        bill.measured_ratio = bill.measured_gpu_h / bill.allocated_gpu_h
        bill.kept_ratio = max(1.0 - bill.lost_gpu_h / bill.allocated_gpu_h, 0.0)
    done = peak = 0.0
    for line in lines:
        if line.amounts["gflop_time"] and (column is None or _name(line, column) == bill.name):
            rate = prices.peak_tflops.get(line.texts["gpu_model"])
            if rate:
                done += line.amounts["gflop"]
                peak += line.amounts["gflop_time"] / GRAINS_PER_GPU_S * rate * 1000
    bill.mfu_ratio = done / peak if peak else None


def _name(line: Line, column: str) -> str:
    """The group of a line; rows without an owner have names in brackets."""
    if line.kind in NAMES and line.kind != Kind.RESERVED:
        return NAMES[line.kind]
    return line.texts[column] or NAMES.get(line.kind, "(none)")


def _price(line: Line, prices: Prices) -> float:
    """The list price of a line's GPU-hour."""
    return prices.gpu_hour(line.texts["pool"], line.texts["gpu_model"])


BILL_COLUMNS = tuple(each.name for each in fields(Bill))
