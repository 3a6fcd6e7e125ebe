"""Export in the FinOps FOCUS format, version 1.2.

One row for each day, tenant, SKU and kind of charge. Charges of a guarantee, of a burst and of a premium are rows of
category Usage; unused capacity has rows without a tenant. Columns that are not of the specification begin with `x_`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from autopilot.metering.amounts import TICKS_PER_S, Kind
from autopilot.metering.prices import Prices
from autopilot.metering.segments import DAY
from autopilot.metering.showback import Line, Period, model_rates

if TYPE_CHECKING:
    import pandas as pd

VERSION = "1.2"
PROVIDER = "gpu-autopilot"
MANDATORY = (
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingAccountType",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
)
"""Columns that FOCUS 1.2 requires of every provider, or of one that bills as this one does."""
MAY_BE_NULL = frozenset(
    {"ChargeClass", "BillingAccountName", "BillingAccountType", "CapacityReservationId", "CapacityReservationStatus"}
)
COSTS = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")
ALLOWED: Mapping[str, frozenset[str]] = {
    "ChargeCategory": frozenset({"Usage", "Purchase", "Tax", "Credit", "Adjustment"}),
    "ChargeFrequency": frozenset({"One-Time", "Recurring", "Usage-Based"}),
    "PricingCategory": frozenset({"Standard", "Dynamic", "Committed", "Other"}),
    "ServiceCategory": frozenset({"Compute", "AI and Machine Learning"}),
    "CapacityReservationStatus": frozenset({"Used", "Unused"}),
}
DISCOUNTS = tuple(f"CommitmentDiscount{name}" for name in ("Category", "Id", "Name", "Status", "Type"))
"""There are no commitment discounts, so these are null; validators of FOCUS 1.0 ask for the columns."""
TIMES = ("BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd")
KINDS = {
    Kind.IDLE: "Idle capacity",
    Kind.FRAGMENTED: "Idle capacity that no waiting work fits",
    Kind.OUT_OF_USE: "Capacity out of use",
    Kind.GAP: "Capacity that was not observed",
}


def focus_rows(lines: Sequence[Line], prices: Prices, start_s: float, period: Period) -> pd.DataFrame:
    """The rows of lines by day (`lines_of(..., every=DAY)`); `start_s` is time 0 since 1970."""
    import pandas as pd

    rates = model_rates(lines, prices)
    rows = []
    for line in lines:
        if line.kind == Kind.RESERVED:
            price = rates.get(line.texts["gpu_model"], 0.0)
            rows.append(_row(line, prices, start_s, period, "guarantee", line.gpu_h(), price, price))
        elif line.kind == Kind.HELD:
            rows += _held(line, prices, start_s, period)
        elif line.kind in KINDS:
            price = prices.gpu_hour(line.texts["pool"], line.texts["gpu_model"])
            rows.append(_row(line, prices, start_s, period, str(line.kind), line.gpu_h(), 0.0, price))
    return pd.DataFrame(rows)


def _held(line: Line, prices: Prices, start_s: float, period: Period) -> list[dict[str, Any]]:
    """The burst and the premium of what was held. What is within the guarantee is paid by its reservation."""
    price = prices.gpu_hour(line.texts["pool"], line.texts["gpu_model"])
    level: Any = line.texts["topology"]
    ratio = prices.topology_premium.get(level, 0.0) + (prices.mig_premium if line.texts["profile"] else 0.0)
    burst, whole = line.gpu_h("borrowed"), line.gpu_h()
    rows = [_row(line, prices, start_s, period, "within guarantee", whole - burst, 0.0, price)]
    if burst:
        rows.append(_row(line, prices, start_s, period, "burst", burst, price * prices.burst_ratio, price))
    if ratio:
        rows.append(_row(line, prices, start_s, period, "premium", whole, price * ratio, price * ratio))
    return rows


def _row(
    line: Line, prices: Prices, start_s: float, period: Period, what: str, hours: float, rate: float, listed: float
) -> dict[str, Any]:
    """One row. Its list cost is 0 where another row has the GPU time already (a guarantee)."""
    texts = line.texts
    begin = max(line.period, period.begin) / TICKS_PER_S + start_s
    end = min(line.period + DAY, period.end) / TICKS_PER_S + start_s
    month = _month(begin)
    sku = "/".join(part for part in (texts["gpu_model"] or "gpu", texts["profile"]) if part)
    cost = hours * rate
    held = line.kind == Kind.HELD and what in ("within guarantee", "burst")
    with_energy, powered_h = what not in ("burst", "premium", "guarantee"), line.gpu_h("powered")
    return {
        "BilledCost": cost,
        "BillingAccountId": PROVIDER,
        "BillingAccountName": PROVIDER,
        "BillingAccountType": "Cluster",
        "BillingCurrency": prices.currency,
        "BillingPeriodEnd": _stamp(month[1]),
        "BillingPeriodStart": _stamp(month[0]),
        "CapacityReservationId": texts["queue"] or None if what in ("guarantee", "within guarantee") else None,
        "CapacityReservationStatus": {"guarantee": "Unused", "within guarantee": "Used"}.get(what)
        if texts["queue"]
        else None,
        "ChargeCategory": "Usage",
        "ChargeClass": None,
        "ChargeDescription": f"{KINDS.get(line.kind, what)}: {sku}",
        "ChargeFrequency": "Recurring" if what == "guarantee" else "Usage-Based",
        "ChargePeriodEnd": _stamp(end),
        "ChargePeriodStart": _stamp(begin),
        **dict.fromkeys(DISCOUNTS),
        "ConsumedQuantity": hours,
        "ConsumedUnit": "Hours",
        "ContractedCost": cost,
        "ContractedUnitPrice": rate,
        "EffectiveCost": cost,
        "InvoiceIssuerName": PROVIDER,
        "ListCost": hours * listed,
        "ListUnitPrice": listed,
        "PricingCategory": "Committed" if what in ("guarantee", "within guarantee") else "Standard",
        "PricingQuantity": hours,
        "PricingUnit": "Hours",
        "ProviderName": PROVIDER,
        "PublisherName": PROVIDER,
        "RegionId": prices.pools.get(texts["pool"], prices.region),
        "RegionName": prices.pools.get(texts["pool"], prices.region),
        "ResourceId": f"{texts['pool'] or 'any'}/{sku}",
        "ResourceName": sku,
        "ResourceType": "GPU" if not texts["profile"] else "MIG instance",
        "ServiceCategory": "Compute",
        "ServiceName": "GPU cluster",
        "ServiceSubcategory": "Other (Compute)",
        "SkuId": sku,
        "SkuMeter": what,
        "SkuPriceId": f"{sku}/{what}",
        "SubAccountId": texts["tenant"] or None,
        "SubAccountName": texts["tenant"] or None,
        "SubAccountType": "Tenant" if texts["tenant"] else None,
        "Tags": json.dumps({"queue": texts["queue"], "class": texts["slo_class"]}, sort_keys=True),
        "x_Kind": str(line.kind),
        "x_Queue": texts["queue"],
        "x_MigProfile": texts["profile"],
        "x_GpuHours": hours,
        "x_GpuHoursActive": line.gpu_h("active") * hours / line.gpu_h() if held and line.gpu_h() else 0.0,
        "x_GpuHoursMeasured": line.gpu_h("measured") * hours / line.gpu_h() if held and line.gpu_h() else 0.0,
        "x_EnergyKwh": line.amounts["energy_mj"] / 3.6e9 if with_energy else 0.0,
        "x_EnergyCountedRatio": line.gpu_h("counted") / powered_h if with_energy and powered_h else None,
        "x_FocusVersion": VERSION,
    }


def _month(at_s: float) -> tuple[float, float]:
    """The calendar month of a moment."""
    first = datetime.fromtimestamp(at_s, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    after = (first + timedelta(days=32)).replace(day=1)
    return first.timestamp(), after.timestamp()


def _stamp(at_s: float) -> str:
    return datetime.fromtimestamp(round(at_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def check_focus(frame: pd.DataFrame) -> list[str]:
    """What of FOCUS 1.2 the rows break; empty where they keep to it.

    Checked: columns that must be there and may not be null, allowed values, costs that are numbers, periods that are
    UTC and end after they begin, a charge within its billing period, cost = price x quantity, names of own columns.
    """
    problems = [f"column {name} is missing" for name in MANDATORY if name not in frame.columns]
    if problems or frame.empty:
        return problems
    problems += [
        f"column {name} is null in {int(frame[name].isna().sum())} rows"
        for name in MANDATORY
        if name not in MAY_BE_NULL and frame[name].isna().any()
    ]
    for name, allowed in ALLOWED.items():
        if name in frame.columns:
            wrong = set(frame[name].dropna()) - allowed
            problems += [f"{name}: {value!r} is not one of {', '.join(sorted(allowed))}" for value in sorted(wrong)]
    for name in COSTS:
        if frame[name].isna().any() or frame[name].dtype.kind != "f":
            problems.append(f"{name} is not a number in every row")
    for name in TIMES:
        if not frame[name].str.fullmatch(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z").all():
            problems.append(f"{name} is not UTC in ISO 8601 in every row")
    for begin, end in (TIMES[:2], TIMES[2:], ("BillingPeriodStart", "ChargePeriodStart")):
        bad = frame[begin] > frame[end] if begin != "ChargePeriodStart" else frame[begin] >= frame[end]
        if bad.any():
            problems.append(f"{end} is before {begin} in {int(bad.sum())} rows")
    off = (frame["ContractedCost"] - frame["ContractedUnitPrice"] * frame["PricingQuantity"]).abs() > 1e-6
    if off.any():
        problems.append(f"ContractedCost is not price x quantity in {int(off.sum())} rows")
    strange = [
        name for name in frame.columns if not (name[0].isupper() and name.isalnum()) and not name.startswith("x_")
    ]
    return problems + [f"column {name}: own columns begin with x_" for name in strange]
