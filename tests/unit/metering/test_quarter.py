"""Showback, FOCUS and an independent sum by pandas over a quarter with restarts, late data and a price change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from autopilot.metering.corrections import corrected
from autopilot.metering.focus import focus_rows
from autopilot.metering.focus_rules import check_focus
from autopilot.metering.segments import open_store
from autopilot.metering.showback import Asked, showback
from autopilot.metering.spend import calendar_of
from tests.kits.quarter_kit import UNUSED, Quarter, by_group, charges, prices, quarter

GROUPS = {
    "tenant": "tenant",
    "project": "queue",
    "type": "gpu_model",
    "class": "slo_class",
    "user": "user",
    "label:team": "team",
    "workload": "workload",
    "day": "day",
    "month": "month",
}
NEAR = 1e-4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Quarter:
    """25 days over the end of a month."""
    return quarter(tmp_path_factory.mktemp("quarter"), 31, 120)


def asked(of: Quarter, zone: str, month: str | None = None) -> Asked:
    """One calendar month of a zone, or all."""
    store, given = open_store(of.folder), prices(zone)
    calendar = calendar_of(store, given)
    if month is None:
        return Asked(store, given, calendar)
    first = pd.Timestamp(f"{month}-01", tz=zone)
    edges = [calendar.ticks(each.to_pydatetime()) for each in (first, first + pd.DateOffset(months=1))]
    return Asked(store, given, calendar, *edges)


def exported(frame: pd.DataFrame, by: str, zone: str) -> dict[str, float]:
    """The billed cost of FOCUS rows by the group of a showback."""
    begin = pd.to_datetime(frame["ChargePeriodStart"]).dt.tz_convert(zone)
    names = {
        "tenant": frame["SubAccountId"],
        "project": frame["x_Queue"],
        "type": frame["x_GpuModel"],
        "class": frame["x_Class"],
        "user": frame["x_User"],
        "workload": frame["x_Workload"],
        "label:team": frame["Tags"].map(lambda text: json.loads(text).get("team", "")),
        "day": begin.dt.strftime("%Y-%m-%d"),
        "month": begin.dt.strftime("%Y-%m"),
    }
    name = names[by].fillna("").where(names[by].fillna("") != "", "(none)")
    if by in ("class", "user", "workload", "label:team"):
        name = name.where(frame["x_Kind"] == "held", UNUSED)
    found = frame.groupby(name)["BilledCost"].sum()
    return {str(key): float(value) for key, value in found.items() if value}


def agree(of: Quarter, zone: str, month: str | None, groups: dict[str, str]) -> None:
    """The three sums of each group."""
    truth = charges(of.spans, zone)
    question = asked(of, zone, month)
    truth = truth if month is None else truth[truth["month"] == month]
    frame = focus_rows(question)
    assert check_focus(frame) == []
    for by, column in groups.items():
        bills = {bill.name: bill.charge for bill in showback(question, by).bills if bill.charge > 1e-9}
        expected = {key: value for key, value in by_group(truth, column).items() if value > 1e-9}
        assert bills == pytest.approx(expected, rel=NEAR), (zone, month, by)
        assert exported(frame, by, zone) == pytest.approx(expected, rel=NEAR), (zone, month, by)


def test_three_sums_agree_and_late_days_are_corrections(made: Quarter) -> None:
    """For a month in every group, for all days and months of two zones; and for what was exported before and after."""
    early = focus_rows(asked(made, "Asia/Kolkata"))
    for path in made.late:
        shutil.copy(path, made.folder / path.name)
    agree(made, "Asia/Kolkata", "2026-02", GROUPS)
    agree(made, "America/St_Johns", None, {"day": "day", "month": "month"})
    question = asked(made, "Asia/Kolkata")
    now = focus_rows(question)
    more = corrected(now, early)
    assert check_focus(more) == []
    late = more[more["ChargeClass"] == "Correction"]
    assert len(late) > 0
    assert set(late["BillingPeriodStart"]) == {"2026-01-31T18:30:00Z"}, "the open month, in India"
    assert late["ChargePeriodStart"].max() < "2026-01-31T18:30:00Z"
    both = pd.concat([early, more])
    for column in ("BilledCost", "ListCost", "x_GpuHours", "PricingQuantity"):
        assert both[column].sum() == pytest.approx(now[column].sum(), rel=1e-9)
    assert corrected(now, both).empty


@pytest.mark.e2e
def test_three_sums_agree_for_every_month_zone_and_group(tmp_path: Path) -> None:
    """A quarter of 90 days with 600 jobs, three zones, four months, every group."""
    made = quarter(tmp_path, 90, 600, seed=1)
    for path in made.late:
        shutil.copy(path, made.folder / path.name)
    for zone in ("UTC", "Europe/Berlin", "Asia/Kolkata"):
        for month in ("2026-01", "2026-02", "2026-03", "2026-04"):
            agree(made, zone, month, GROUPS)
