"""Export in the FinOps FOCUS format: version 1.2, or 1.0 as `focus-validator` reads it.

One row for each charge day, owner, SKU and kind of charge (`charges.Meter`). A guarantee is a capacity reservation: its
rows are Used or Unused, and together the guarantee. Capacity without a charge has rows without a tenant and of cost 0.
Columns beyond the specification begin with `x_`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Any

from autopilot.metering.amounts import Kind
from autopilot.metering.calendar import Calendar
from autopilot.metering.charges import Meter
from autopilot.metering.lines import GRAINS_PER_GPU_H, OWNER
from autopilot.metering.prices import Prices
from autopilot.metering.showback import MJ_PER_KWH, Asked
from autopilot.printable import printable

if TYPE_CHECKING:
    import pandas as pd

VERSION = "1.2"
OLDER = "1.0"
PROVIDER = "gpu-autopilot"
TEXTS = ("user", "workload", "uid", "labels")
"""Text columns of a FOCUS row beside those of every line."""
KINDS: Mapping[str, str] = {
    Kind.IDLE: "Idle capacity",
    Kind.FRAGMENTED: "Idle capacity that no waiting work fits",
    Kind.OUT_OF_USE: "Capacity out of use",
    Kind.GAP: "Capacity that was not observed",
}
STATUS = {Meter.USED: "Used", Meter.UNUSED: "Unused", Meter.LENT: "Unused"}
DISCOUNTS = tuple(
    f"CommitmentDiscount{name}" for name in ("Category", "Id", "Name", "Quantity", "Status", "Type", "Unit")
)
"""There are no commitment discounts, so these are null."""
OF_1_0: Mapping[str, str] = {
    "ProviderName": "Provider",
    "PublisherName": "Publisher",
    "InvoiceIssuerName": "InvoiceIssuer",
    "ResourceId": "ResourceID",
}
"""Names of columns as `focus-validator` 1.0.0 has them for FOCUS 1.0: those of its drafts."""
AFTER_1_0 = (
    "BillingAccountType",
    "CapacityReservationId",
    "CapacityReservationStatus",
    "CommitmentDiscountQuantity",
    "CommitmentDiscountUnit",
    "ServiceSubcategory",
    "SkuMeter",
    "SubAccountType",
)
"""Columns unknown to FOCUS 1.0; they are exported with the prefix `x_`."""


def focus_rows(asked: Asked) -> pd.DataFrame:
    """The rows of FOCUS 1.2, without control characters. Raises `InputError` as `Asked.charged` does."""
    _, charges = asked.charged(TEXTS)
    shown = {name: charges[name].map(printable) for name in (*OWNER, *TEXTS) if name != "labels"}
    return _rows(charges.assign(**shown), asked.prices, asked.calendar)


def as_1_0(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of FOCUS 1.2 as rows of 1.0."""
    older = frame.rename(columns={**OF_1_0, **{name: f"x_{name}" for name in AFTER_1_0}})
    older["ChargeType"] = older["ChargeCategory"]  # the name of a draft; the validator asks for both
    older["x_FocusVersion"] = OLDER
    return older[sorted(older.columns)]


def _rows(charges: pd.DataFrame, prices: Prices, calendar: Calendar) -> pd.DataFrame:
    import pandas as pd

    of = charges
    none = pd.Series(None, of.index, dtype=object)
    held = of["kind"] == Kind.HELD
    model = of["gpu_model"].where(of["gpu_model"] != "", "gpu")
    sku = model.where(of["profile"] == "", model + "/" + of["profile"])
    region = pd.Series([prices.pools.get(pool, prices.region) for pool in of["pool"]], of.index, dtype=object)
    meter = of["meter"].astype(str)
    status = of["meter"].map(STATUS)
    tenant = of["tenant"].where(of["tenant"] != "", None)
    cost = of["hours"] * of["rate"]
    resource = of["uid"].where(held & (of["uid"] != ""), of["pool"].where(of["pool"] != "", "any") + "/" + sku)
    months = {begin: calendar.month_of(begin) for begin in of["begin"].unique().tolist()}
    moments = {at: calendar.moment(at) for name in ("begin", "end") for at in of[name].unique().tolist()}
    columns: dict[str, Any] = {
        "BilledCost": cost,
        "BillingAccountId": PROVIDER,
        "BillingAccountName": PROVIDER,
        "BillingAccountType": "Cluster",
        "BillingCurrency": prices.currency,
        "BillingPeriodEnd": of["begin"].map({at: _stamp(month[1]) for at, month in months.items()}),
        "BillingPeriodStart": of["begin"].map({at: _stamp(month[0]) for at, month in months.items()}),
        "CapacityReservationId": (of["queue"] + "/" + model).where(status.notna(), None),
        "CapacityReservationStatus": status.where(status.notna(), None),
        "ChargeCategory": "Usage",
        "ChargeClass": none,
        "ChargeDescription": meter.map(lambda name: KINDS.get(name, name)) + ": " + sku,
        "ChargeFrequency": status.notna().map({True: "Recurring", False: "Usage-Based"}),
        "ChargePeriodEnd": of["end"].map({at: _stamp(moment) for at, moment in moments.items()}),
        "ChargePeriodStart": of["begin"].map({at: _stamp(moment) for at, moment in moments.items()}),
        **dict.fromkeys(DISCOUNTS, none),
        "ConsumedQuantity": of["hours"].where(held, 0.0),
        "ConsumedUnit": "Hours",
        "ContractedCost": cost,
        "ContractedUnitPrice": of["rate"],
        "EffectiveCost": cost,
        "InvoiceIssuerName": PROVIDER,
        "ListCost": of["hours"] * of["listed"],
        "ListUnitPrice": of["listed"],
        "PricingCategory": "Standard",
        "PricingQuantity": of["hours"],
        "PricingUnit": "Hours",
        "ProviderName": PROVIDER,
        "PublisherName": PROVIDER,
        "RegionId": region,
        "RegionName": region,
        "ResourceId": resource,
        "ResourceName": of["workload"].where(held & (of["workload"] != ""), sku),
        "ResourceType": (of["profile"] == "").map({True: "GPU", False: "MIG instance"}),
        "ServiceCategory": "Compute",
        "ServiceName": "GPU cluster",
        "ServiceSubcategory": "Other (Compute)",
        "SkuId": sku,
        "SkuMeter": meter,
        "SkuPriceId": sku + "/" + region + "/" + meter,
        "SubAccountId": tenant,
        "SubAccountName": tenant,
        "SubAccountType": tenant.where(tenant.isna(), "Tenant"),
        "Tags": [
            _tags(*each)
            for each in zip(of["queue"], of["slo_class"], of["user"], of["workload"], of["labels"], strict=True)
        ],
        **_own_columns(of, calendar),
    }
    return pd.DataFrame(columns, index=of.index).reset_index(drop=True)


def _own_columns(of: pd.DataFrame, calendar: Calendar) -> dict[str, Any]:
    """Columns beyond the specification. Energy is that of the site, null if unknown."""
    held, share = of["kind"] == Kind.HELD, of["share"]
    powered_h = of["powered"].astype(float) * share / GRAINS_PER_GPU_H
    kwh = (of["energy_mj"].astype(float) * share / MJ_PER_KWH * of["pue"]).where(powered_h > 0)
    return {
        "x_Kind": of["kind"],
        "x_GpuModel": of["gpu_model"],
        "x_Queue": of["queue"],
        "x_Class": of["slo_class"],
        "x_User": of["user"],
        "x_Workload": of["workload"],
        "x_MigProfile": of["profile"],
        "x_GpuHours": of["physical"],
        "x_GpuHoursActive": of["active"].astype(float) * share * held / GRAINS_PER_GPU_H,
        "x_GpuHoursMeasured": of["measured"].astype(float) * share * held / GRAINS_PER_GPU_H,
        "x_GpuHoursSaved": of["saved"].astype(float) * share * held / GRAINS_PER_GPU_H,
        "x_EnergyKwh": kwh,
        "x_CarbonKg": kwh * of["carbon_g_kwh"] / 1000,
        "x_EnergyCountedRatio": of["counted"].astype(float) * share / GRAINS_PER_GPU_H / powered_h.where(powered_h > 0),
        "x_Pue": of["pue"],
        "x_Zone": calendar.name,
        "x_FocusVersion": VERSION,
    }


def _tags(queue: str, slo_class: str, user: str, workload: str, labels: str) -> str:
    """Ours with a prefix, and the labels of the work as they are."""
    own = {"queue": queue, "class": slo_class, "user": user, "workload": workload}
    found = {f"{PROVIDER}/{name}": value for name, value in own.items() if value}
    return json.dumps({**found, **(json.loads(labels) if labels else {})}, sort_keys=True)


def _stamp(moment: Any) -> str:
    return str(moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
