"""The rules of FOCUS 1.2 relevant for our rows.

Source: github.com/FinOps-Open-Cost-and-Usage-Spec/FOCUS_Spec, tag v1.2, specification/columns and attributes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

NEVER_NULL = (
    "BilledCost",
    "BillingAccountId",
    "BillingAccountType",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
)
MANDATORY = (*NEVER_NULL, "BillingAccountName", "ChargeClass", "ChargeDescription", "PricingQuantity", "PricingUnit")
"""Columns of every FOCUS 1.2 file, with those required for this provider's kind of billing."""
OF_CHARGES = (
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedUnitPrice",
    "ListUnitPrice",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "SkuId",
    "SkuPriceId",
)
"""Not null if the row is usage and no correction."""
TOGETHER = (
    ("CapacityReservationId", "CapacityReservationStatus"),
    ("SubAccountId", "SubAccountType"),
    ("CommitmentDiscountId", "CommitmentDiscountStatus"),
)
"""Both null, or neither."""
COSTS = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")
PRICES = ("ContractedUnitPrice", "ListUnitPrice")
ALLOWED: Mapping[str, frozenset[str]] = {
    "ChargeCategory": frozenset({"Usage", "Purchase", "Tax", "Credit", "Adjustment"}),
    "ChargeClass": frozenset({"Correction"}),
    "ChargeFrequency": frozenset({"One-Time", "Recurring", "Usage-Based"}),
    "PricingCategory": frozenset({"Standard", "Dynamic", "Committed", "Other"}),
    "ServiceCategory": frozenset({"Compute", "AI and Machine Learning"}),
    "ServiceSubcategory": frozenset(
        {
            "Containers",
            "End User Computing",
            "Quantum Compute",
            "Serverless Compute",
            "Virtual Machines",
            "Other (Compute)",
        }
    ),
    "CapacityReservationStatus": frozenset({"Used", "Unused"}),
    "CommitmentDiscountStatus": frozenset({"Used", "Unused"}),
}
TIMES = ("BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd")


def check_focus(frame: pd.DataFrame) -> list[str]:
    """Broken rules of FOCUS 1.2; empty without any.

    Checked: required columns, nulls, allowed values, numbers, currency, times in UTC, both ends of a charge inside its
    billing period unless it is a correction, cost = price x quantity, tags, names of own columns.
    """
    problems = [f"column {name} is missing" for name in MANDATORY if name not in frame.columns]
    return problems if problems or frame.empty else [problem for rule in RULES for problem in rule(frame)]


def _nulls(frame: pd.DataFrame) -> Iterator[str]:
    charges = frame[(frame["ChargeCategory"] == "Usage") & frame["ChargeClass"].isna()]
    for rows, names in ((frame, NEVER_NULL), (charges, OF_CHARGES)):
        for name in (each for each in names if each in frame.columns):
            if rows[name].isna().any():
                yield f"column {name} is null in {int(rows[name].isna().sum())} rows"
    for one, two in TOGETHER:
        if one in frame.columns and two in frame.columns and (frame[one].isna() != frame[two].isna()).any():
            yield f"{one} and {two} are not null in the same rows"


def _values(frame: pd.DataFrame) -> Iterator[str]:
    for name, allowed in ALLOWED.items():
        if name in frame.columns:
            wrong = sorted(set(frame[name].dropna()) - allowed)
            yield from (f"{name}: {value!r} is not one of {', '.join(sorted(allowed))}" for value in wrong)
    if not frame["BillingCurrency"].dropna().str.fullmatch("[A-Z]{3}").all():
        yield "BillingCurrency is not a currency code in every row"
    strange = [name for name in frame.columns if not ((name[0].isupper() and name.isalnum()) or name.startswith("x_"))]
    yield from (f"column {name}: own columns begin with x_" for name in strange)


def _numbers(frame: pd.DataFrame) -> Iterator[str]:
    for name in COSTS:
        if frame[name].dtype.kind != "f" or not np.isfinite(frame[name]).all():
            yield f"{name} is not a number in every row"
            return
    for name in (each for each in PRICES if each in frame.columns):
        if (frame[name] < 0).any():
            yield f"{name} is negative in {int((frame[name] < 0).sum())} rows"
    exact = frame[frame["ChargeClass"].isna()]
    for cost, price in (("ContractedCost", "ContractedUnitPrice"), ("ListCost", "ListUnitPrice")):
        off = (exact[cost] - exact[price] * exact["PricingQuantity"]).abs() > 1e-6 * (1 + exact[cost].abs())
        if off.any():
            yield f"{cost} is not price x quantity in {int(off.sum())} rows"


def _times(frame: pd.DataFrame) -> Iterator[str]:
    for name in TIMES:
        if not frame[name].str.fullmatch(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z").all():
            yield f"{name} is not UTC in ISO 8601 in every row"
            return
    inside = frame["ChargeClass"].isna()
    for bad, words in (
        (frame["BillingPeriodStart"] >= frame["BillingPeriodEnd"], "BillingPeriodEnd is not after BillingPeriodStart"),
        (frame["ChargePeriodStart"] >= frame["ChargePeriodEnd"], "ChargePeriodEnd is not after ChargePeriodStart"),
        (inside & (frame["ChargePeriodStart"] < frame["BillingPeriodStart"]), "the charge begins before its month"),
        (inside & (frame["ChargePeriodEnd"] > frame["BillingPeriodEnd"]), "the charge ends after its month"),
    ):
        if bad.any():
            yield f"{words} in {int(bad.sum())} rows"


def _tags(frame: pd.DataFrame) -> Iterator[str]:
    for text in frame["Tags"].dropna().unique().tolist() if "Tags" in frame.columns else ():
        try:
            tags = json.loads(text)
        except ValueError:
            tags = None
        if not isinstance(tags, dict) or any(isinstance(value, dict | list) for value in tags.values()):
            yield f"Tags: {text!r} is not a JSON object of plain values"
            return


RULES = (_nulls, _values, _numbers, _times, _tags)
