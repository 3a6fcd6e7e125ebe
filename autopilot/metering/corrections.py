"""Corrections of earlier exported FOCUS rows: changes by late data, restored segments or other prices.

Exported rows are not changed. Differences are rows of their own, in the billing period open at the end of the data,
with the corrected charge period. Together with the exported rows they are the charges as known now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

KEY = (
    "ChargePeriodStart",
    "ChargePeriodEnd",
    "SubAccountId",
    "ResourceId",
    "SkuPriceId",
    "RegionId",
    "CapacityReservationId",
    "Tags",
    "x_Kind",
)
"""The identity of a charge in two exports."""
MONEY = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")
AMOUNTS = (
    "PricingQuantity",
    "ConsumedQuantity",
    "x_GpuHours",
    "x_GpuHoursActive",
    "x_GpuHoursMeasured",
    "x_GpuHoursSaved",
)
MEASURED = ("x_EnergyKwh", "x_CarbonKg")
NUMBERS = (*MONEY, *AMOUNTS, *MEASURED)
LEAST = 1e-9
"""Differences of cost and quantity up to this are rounding."""


def corrected(now: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    """The rows to export after `before`: those of charge days after it, and the differences in its own days.

    `before` holds all rows exported so far, corrections included. A difference in an earlier month is one row of class
    Correction. In the open month the exported rows are taken back, each at its own price, and those of now follow.
    """
    import pandas as pd

    first, end = before["ChargePeriodStart"].min(), before["ChargePeriodEnd"].max()
    known = now[(now["ChargePeriodStart"] >= first) & (now["ChargePeriodStart"] < end)]
    new = now.drop(known.index)
    keys, sums = list(KEY), list(NUMBERS)
    known, old = (
        frame.assign(**{f"_{name}": frame[name].astype(object).where(frame[name].notna(), "") for name in keys})
        for frame in (known, before)
    )
    marks = [f"_{name}" for name in keys]
    change = known.groupby(marks)[sums].sum().sub(old.groupby(marks)[sums].sum(), fill_value=0.0)
    change = change[(change[[*MONEY, *AMOUNTS]].abs() > LEAST).any(axis=1)]
    month = now.sort_values("ChargePeriodStart").iloc[-1]
    closed = change.index.get_level_values("_ChargePeriodStart") < month["BillingPeriodStart"]
    late = pd.concat([known, old]).drop_duplicates(marks).set_index(marks).loc[change.index[closed]]
    late[sums] = change[closed]
    late = late.assign(
        ChargeClass="Correction",
        BillingPeriodStart=month["BillingPeriodStart"],
        BillingPeriodEnd=month["BillingPeriodEnd"],
        ChargeDescription="Correction: " + late["ChargeDescription"].str.removeprefix("Correction: "),
    )
    again, back = (
        frame.set_index(marks).loc[lambda rows: rows.index.isin(change.index[~closed])] for frame in (known, old)
    )
    back = back.assign(**{name: -back[name] for name in sums})
    found = [each[list(now.columns)] for each in (late, back, again, new) if len(each)]
    rows: pd.DataFrame = pd.concat(found, ignore_index=True) if found else new
    return rows
