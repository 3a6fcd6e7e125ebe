"""Segments, prices of rows made by hand, CSV without formulas, and FOCUS."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.app.commands.showback_commands import Words, run_showback
from autopilot.core.model.errors import InputError
from autopilot.metering.amounts import AMOUNTS, GRAINS_PER_GPU_S, KEYS, TICKS_PER_S, Row
from autopilot.metering.calendar import Calendar
from autopilot.metering.charges import charges_of, priced
from autopilot.metering.focus import focus_rows
from autopilot.metering.focus_rules import check_focus
from autopilot.metering.lines import GRAINS_PER_GPU_H, lines_of
from autopilot.metering.prices import Prices, Region
from autopilot.metering.segments import CUTS, DAY, HOUR, Segments, merge, open_store
from autopilot.metering.showback import Bill, _bill, _summed, showback
from autopilot.metering.spend import Spending, daily_spending, highest_budgets, highest_ratios, month_forecasts
from tests.kits.metering_kit import asked, stored_sums

PRICES = Prices(
    currency="EUR",
    region="a",
    regions={
        "a": Region(gpu_hour={"H100-80GB": 4.0, "A100-80GB": 2.0}, energy_kwh=0.5, carbon_g_kwh=100, pue=2.0),
        "b": Region(gpu_hour={"H100-80GB": 2.0}),
    },
    pools={"far": "b"},
    burst_ratio=0.5,
    mig_premium=0.25,
    topology_premium={"leaf": 0.1},
    peak_tflops={"H100-80GB": 1000.0},
)
GPU_H = 3600 * GRAINS_PER_GPU_S


def row(kind: str, hours: float, begin: int = 0, **more: str | float) -> Row:
    """A row of one hour; texts by `KEYS`, amounts in GPU-hours but for energy (mJ) and operations (GFLOP)."""
    texts = {"kind": kind, "gpu_model": "H100-80GB", "pool": "near", **{k: v for k, v in more.items() if k in KEYS}}
    amounts = {"gpu_time": hours, **{k: v for k, v in more.items() if k in AMOUNTS}}
    whole = {"energy_mj", "gflop", "unmeasured_losses"}
    return Row(
        begin,
        begin + HOUR,
        tuple(str(texts.get(name, "")) for name in KEYS),
        tuple(round(float(amounts.get(name, 0)) * (1 if name in whole else GPU_H)) for name in AMOUNTS),
    )


ROWS = [
    row("capacity", 10),
    row("reserved", 4, tenant="vision", queue="vision", pool=""),
    row("held", 5, tenant="vision", queue="vision", workload="j1", uid="1", slo_class="batch", measured=4, active=1,
        borrowed=1, lost=0.5, energy_mj=3.6e9, powered=5, gflop=3.6e9, gflop_time=2),
    row("held", 2, tenant="=cmd()", queue="guest", workload="j2", uid="2", slo_class="batch", topology="leaf",
        borrowed=2, profile="1g.10gb"),
    row("idle", 2),
    row("fragmented", 1),
]  # fmt: skip


def stored(folder: Path, rows: list[Row], start_s: float | None = 1_795_392_000.0) -> Path:
    """A folder with one interval of these rows."""
    segments = Segments(folder, start_s=start_s)
    segments.put(rows[0].begin, rows[0].end, rows)
    segments.close()
    return folder


def bills_of(folder: Path, by: str = "tenant") -> dict[str, Bill]:
    """The bills of a folder by name, with the total."""
    answer = showback(asked(open_store(folder), PRICES), by)
    return {bill.name: bill for bill in (*answer.bills, answer.total)}


def test_guarantees_are_paid_by_reservation_and_bursts_by_consumption(tmp_path: Path) -> None:
    """4 h reserved at 4, 1 h burst at half; a guest pays 2 h of burst and premiums of 10 % and 25 %."""
    bills = bills_of(stored(tmp_path, ROWS))
    vision, guest, total = bills["vision"], bills["=cmd()"], bills["total"]
    assert (vision.reservation, vision.burst, vision.premium, vision.charge) == (16.0, 2.0, 0.0, 18.0)
    assert (guest.reservation, guest.burst) == (0.0, 4.0)
    assert guest.premium == pytest.approx(2 * 4 * 0.35)
    assert (vision.active_gpu_h, vision.idle_gpu_h, vision.unknown_gpu_h) == (1.0, 3.0, 1.0)
    assert (guest.active_gpu_h, guest.idle_gpu_h, guest.unknown_gpu_h) == (0.0, 0.0, 2.0)
    assert (vision.measured_ratio, guest.measured_ratio, bills["(idle)"].measured_ratio) == (0.8, 0.0, None)
    assert (vision.kept_ratio, vision.energy_kwh, vision.carbon_kg, vision.energy_cost) == (0.9, 2.0, 0.2, 1.0)
    assert guest.unknown_energy_gpu_h == 2.0
    assert vision.mfu_ratio == pytest.approx(3.6e9 / (2 * 3600 * 1e6))
    assert guest.mfu_ratio is None
    assert (bills["(idle)"].list_cost, bills["(fragmented)"].list_cost) == (8.0, 4.0)
    assert total.list_cost == 40.0
    assert total.charge == pytest.approx(18.0 + 4.0 + 2.8)


@given(
    st.lists(st.tuples(*[st.integers(0, 2**50)] * 3, st.sampled_from(["a", "b"])), min_size=1, max_size=5),
)
@settings(deadline=None, max_examples=20)
def test_time_that_was_not_measured_is_a_part_of_its_own(owners: list[tuple[int, int, int, str]]) -> None:
    """Active + idle + unknown = allocated, of each owner and in total; a lost measurement moves time to unknown."""
    rows: list[dict[str, Any]] = []
    for active, more, dark, tenant in owners:
        amounts = dict.fromkeys(AMOUNTS, 0)
        amounts |= {"gpu_time": active + more + dark, "measured": active + more, "active": active}
        key = dict(zip(KEYS, row("held", 0, tenant=tenant).key, strict=True))
        rows.append({**key, "begin": 0, "end": HOUR, **amounts})
    lines = priced(pd.DataFrame(rows), PRICES, Calendar())
    found = _summed(lines, charges_of(lines), PRICES, lambda row: str(row["tenant"]))
    for bill in (_bill("total", found.sum().to_dict()), *(_bill("", of) for of in found.to_dict("records"))):
        parts = (bill.active_gpu_h, bill.idle_gpu_h, bill.unknown_gpu_h)
        assert sum(parts) == pytest.approx(bill.allocated_gpu_h, abs=1e-9)
    total = found.sum()
    assert total["active_gpu_h"] == pytest.approx(sum(each[0] for each in owners) / GRAINS_PER_GPU_H)


def test_the_groups_of_every_kind_have_one_total(tmp_path: Path) -> None:
    """By tenant, project, type and class: other rows, the same sum. The price is that of the pool's region."""
    stored(tmp_path, [*ROWS, row("capacity", 3, pool="far"), row("held", 3, pool="far", tenant="vision", queue="x")])
    totals = [asdict(bills_of(tmp_path, by)["total"]) for by in ("tenant", "project", "type", "class")]
    assert all(total == totals[0] for total in totals)
    assert set(bills_of(tmp_path, "class")) == {
        "batch",
        "(none)",
        "(idle)",
        "(fragmented)",
        "total",
    }
    assert bills_of(tmp_path, "project")["x"].list_cost == 6.0


def test_a_merged_day_has_the_same_sums_and_hourly_rows(tmp_path: Path) -> None:
    """Also after a crash between writing the merged file and removing the others."""
    segments = Segments(tmp_path, start_s=None)
    step = HOUR // 4
    for begin in range(0, DAY - step, step):
        segments.put(begin, begin + step, [Row(begin, begin + step, r.key, r.amounts) for r in ROWS])
    before, files = stored_sums(open_store(tmp_path)), {path: path.read_bytes() for path in tmp_path.glob("s-*")}
    segments.put(DAY - step, DAY, [])
    assert [each.path.name for each in open_store(tmp_path).segments] == [f"s-0-{DAY}.parquet"]
    assert stored_sums(open_store(tmp_path)) == before
    hours = [at * HOUR for at in range(25)]
    assert len(lines_of(open_store(tmp_path), hours)) == 24 * len(ROWS)
    assert len(pq.read_table(tmp_path / f"s-0-{DAY}.parquet")) == len(CUTS) * len(ROWS)
    for path, content in files.items():
        path.write_bytes(content)
    assert stored_sums(open_store(tmp_path)) == before
    merge(tmp_path, DAY, 2 * DAY)
    segments.close()


def test_what_is_missing_is_known(tmp_path: Path) -> None:
    """A segment that was removed is a hole; one that overlaps another is refused."""
    segments = Segments(tmp_path, start_s=None)
    for begin in (0, HOUR, 2 * HOUR):
        segments.put(begin, begin + HOUR, [Row(begin, begin + HOUR, r.key, r.amounts) for r in ROWS])
    segments.close()
    (tmp_path / f"s-{HOUR}-{2 * HOUR}.parquet").unlink()
    answer = showback(asked(open_store(tmp_path), PRICES))
    assert answer.reconciled.missing_s == 3600.0
    (tmp_path / f"s-{HOUR // 2}-{2 * HOUR}.parquet").write_bytes(b"")
    with pytest.raises(InputError, match="time would be counted twice"):
        open_store(tmp_path)


def test_a_second_writer_and_damaged_files_are_refused(tmp_path: Path) -> None:
    """One message with the file and the fix."""
    segments = Segments(tmp_path / "m", start_s=None)
    with pytest.raises(InputError, match="another process writes"):
        Segments(tmp_path / "m", start_s=None)
    segments.put(0, HOUR, ROWS)
    segments.close()
    (tmp_path / "m" / f"s-0-{HOUR}.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match="metering cannot be read"):
        showback(asked(open_store(tmp_path / "m"), PRICES))
    (tmp_path / "m" / "about.json").write_text("{}")
    with pytest.raises(InputError, match=r"about\.json: damaged"):
        open_store(tmp_path / "m")
    with pytest.raises(InputError, match="no metering here"):
        open_store(tmp_path)


def test_no_cell_of_a_csv_file_is_a_formula(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tenant may be called =cmd(); a spreadsheet must not run it."""
    prices = tmp_path / "p.yaml"
    prices.write_text("currency: EUR\nregion: a\nregions: {a: {gpu_hour: {other: 1}}}\n")
    stored(tmp_path / "m", ROWS)
    for form in ("csv", "focus"):
        run_showback(tmp_path / "m", Words(form=form, prices=prices))
        printed = capsys.readouterr().out
        assert "cmd()" in printed
        assert not [cell for line in printed.splitlines() for cell in line.split(",") if cell.startswith("=")]


def test_focus_rows_keep_to_the_specification_and_have_the_charge(tmp_path: Path) -> None:
    """The billed cost is the charge, and the list cost of all but premiums is that of the capacity."""
    answer = showback(asked(open_store(stored(tmp_path, ROWS)), PRICES))
    frame = focus_rows(asked(open_store(tmp_path), PRICES))
    assert check_focus(frame) == []
    assert frame.filter(like="CommitmentDiscount").isna().all(axis=None)
    assert frame["BilledCost"].sum() == pytest.approx(answer.total.charge)
    assert frame["ListCost"][frame["SkuMeter"] != "premium"].sum() == pytest.approx(answer.capacity_cost)
    assert frame["x_GpuHours"].sum() == pytest.approx(10.0)
    assert frame["x_EnergyKwh"].sum() == pytest.approx(answer.total.energy_kwh)
    assert set(frame["ChargePeriodStart"]) == {"2026-11-23T00:00:00Z"}
    assert set(frame["BillingPeriodEnd"]) == {"2026-12-01T00:00:00Z"}


def test_used_and_unused_split_the_guarantee(tmp_path: Path) -> None:
    """Of 6 reserved GPU-hours 1 is used, 3 are free, and 2 are held by another: once each, and each listed once."""
    held = row("held", 1, tenant="vision", queue="vision", workload="j", uid="1")
    guest = row("held", 6, tenant="guest", queue="guest", workload="k", uid="2", borrowed=6)
    reserved = row("reserved", 6, tenant="vision", queue="vision", pool="")
    stored(
        tmp_path,
        [row("capacity", 10), reserved, held, guest, row("idle", 2, energy_mj=3.6e9, powered=2), row("gap", 1)],
    )
    question = asked(open_store(tmp_path), PRICES)
    answer, frame = showback(question), focus_rows(question)
    grouped = frame.fillna({"CapacityReservationStatus": ""}).groupby(["SkuMeter", "CapacityReservationStatus"])
    hours = grouped["PricingQuantity"].sum().to_dict()
    assert hours == pytest.approx(
        {
            ("guarantee used", "Used"): 1.0,
            ("guarantee unused", "Unused"): 3.0,
            ("guarantee lent", "Unused"): 2.0,
            ("burst", ""): 6.0,
        }
    )
    assert set(frame["CapacityReservationId"].dropna()) == {"vision/H100-80GB"}
    assert frame["ListCost"].sum() == pytest.approx(answer.capacity_cost) == pytest.approx(40.0)
    bills = {bill.name: bill for bill in answer.bills}
    assert (bills["vision"].reservation, bills["vision"].reserved_gpu_h, bills["vision"].unused_gpu_h) == (
        24.0,
        6.0,
        3.0,
    )
    assert bills["vision"].energy_kwh == 2.0, "2 GPU-hours of idle capacity are of its guarantee; the PUE is 2"
    assert (bills["guest"].energy_kwh, bills["guest"].carbon_kg, bills["guest"].list_cost) == (None, None, 24.0)
    assert set(bills) == {"vision", "guest"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """FOCUS rows without a defect."""
    return focus_rows(asked(open_store(stored(tmp_path_factory.mktemp("focus"), ROWS)), PRICES))


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("BilledCost", None, "BilledCost is missing"),
        ("ChargeCategory", "Use", "ChargeCategory: 'Use' is not one of"),
        ("BillingCurrency", [None], "BillingCurrency is null"),
        ("EffectiveCost", "1", "EffectiveCost is not a number"),
        ("ChargePeriodEnd", "2026-11-23", "ChargePeriodEnd is not UTC"),
        ("ChargePeriodEnd", "2026-11-22T00:00:00Z", "ChargePeriodEnd is not after ChargePeriodStart"),
        ("ChargePeriodEnd", "2026-12-01T09:00:00Z", "the charge ends after its month"),
        ("ChargePeriodStart", "2026-10-31T09:00:00Z", "the charge begins before its month"),
        ("PricingQuantity", 7.0, "ContractedCost is not price x quantity"),
        ("ListUnitPrice", 7.0, "ListCost is not price x quantity"),
        ("ListUnitPrice", -1.0, "ListUnitPrice is negative"),
        ("BilledCost", float("inf"), "BilledCost is not a number"),
        ("ChargeClass", "Late", "ChargeClass: 'Late' is not one of Correction"),
        ("SkuId", [None], "SkuId is null"),
        ("CapacityReservationStatus", [None], "CapacityReservationId and CapacityReservationStatus are not null"),
        ("Tags", "[1]", "Tags: '[1]' is not a JSON object"),
        ("queue", "x", "own columns begin with x_"),
    ],
)
def test_a_planted_defect_of_focus_is_found(column: str, value: Any, words: str, exported: pd.DataFrame) -> None:
    """The check sees each rule that it is about."""
    frame = exported.copy()
    if value is None:
        frame = frame.drop(columns=[column])
    else:
        frame[column] = None if isinstance(value, list) else value
    assert any(words in problem for problem in check_focus(frame)), check_focus(frame)


def test_an_hour_has_whole_ticks() -> None:
    """Edges of hours and days are whole numbers of the unit of time."""
    assert HOUR == 3600 * TICKS_PER_S
    assert DAY % HOUR == 0


def spending_of(folder: Path, days: int, last: float, missing: int = -1, unseen: int = -1) -> list[Spending]:
    """A tenant that bursts 1 GPU-hour a day, and `last` of them on the last day; day `missing` has no segment.

    Of day `unseen`, one hour was not observed.
    """
    segments = Segments(folder, start_s=None, every=24)
    for day in range(days):
        for hour in range(24):
            begin, burst = day * DAY + hour * HOUR, last if day == days - 1 else 1.0
            rows = [row("capacity", 10, begin), row("held", burst / 24, begin, tenant="t", borrowed=burst / 24)]
            if (day, hour) == (unseen, 5):
                rows = [row("capacity", 10, begin), row("gap", 10, begin)]
            segments.put(begin, begin + HOUR, rows if hour or day != 1 else rows[:1])
    segments.close()
    if missing >= 0:
        (folder / f"s-{missing * DAY}-{(missing + 1) * DAY}.parquet").unlink()
    return daily_spending(open_store(folder), PRICES)


@pytest.mark.parametrize(("days", "last", "high"), [(9, 1.2, False), (9, 1.4, True), (9, 0.5, False), (5, 9.0, False)])
def test_a_day_is_compared_with_the_days_before(days: int, last: float, high: bool, tmp_path: Path) -> None:
    """1.4 times the mean is high, 1.2 times is not; fewer than seven days before say nothing."""
    (found,) = spending_of(tmp_path, days, last)
    assert found.high == high
    assert found.days == days - 1
    assert found.charge == pytest.approx(last * 4.0 * 0.5)
    assert (found.ratio is None) == (days < 8)


def test_a_day_that_was_not_metered_is_not_in_the_mean(tmp_path: Path) -> None:
    """A missing day is unknown, never zero; and so is a missing last day."""
    (found,) = spending_of(tmp_path / "a", 10, 1.3, missing=4)
    assert found.days == 8
    assert found.mean_charge == pytest.approx(2.0, rel=0.01)
    assert spending_of(tmp_path / "b", 10, 1.3, missing=9)[0].day_begin_s == 8 * 86_400.0


def test_a_day_that_was_not_observed_is_unknown(tmp_path: Path) -> None:
    """A gap of an hour takes a day out of the mean; on the last day nothing is known."""
    (found,) = spending_of(tmp_path / "a", 10, 1.3, unseen=4)
    assert found.days == 8
    assert spending_of(tmp_path / "b", 10, 1.3, unseen=9) == []


def test_a_month_is_forecast_from_the_weekdays_before(tmp_path: Path) -> None:
    """20 days of February at 2 a day and 4 at weekends: the rest is known but for chance; two weeks say nothing."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    found = {}
    for days in (10, 51):
        segments = Segments(tmp_path / str(days), start_s=begin.timestamp(), every=10_000)
        for day in range(days):
            burst = 2.0 if (begin + timedelta(days=day)).weekday() >= 5 else 1.0
            held = row("held", burst, tenant="t", borrowed=burst)
            rows = [row("capacity", 10), held, row("idle", 10 - burst)]
            segments.put(day * DAY, (day + 1) * DAY, [Row(day * DAY, (day + 1) * DAY, r.key, r.amounts) for r in rows])
        segments.close()
        given = PRICES.model_copy(update={"budgets": {"t": 60.0}, "budget": 100.0})
        found[days] = {each.tenant: each for each in month_forecasts(open_store(tmp_path / str(days)), given)}
    assert found[10]["t"].middle is None
    february = found[51]["t"]
    assert (february.month, february.budget) == ("2026-02", 60.0)
    assert february.so_far == pytest.approx(2.0 * 20 + 2.0 * 5)
    assert february.middle == february.low == february.high == pytest.approx(2.0 * 28 + 2.0 * 8)
    assert highest_budgets(found[51].values(), 8) == {"t": pytest.approx(1.2), "(all)": pytest.approx(0.72)}


def test_open_days_are_forecast_at_the_prices_that_count_then(tmp_path: Path) -> None:
    """One GPU-hour a day: 4.0 until 9 February, 2.0 from then on, 1.0 from 21 February on, known in advance."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    segments = Segments(tmp_path, start_s=begin.timestamp(), every=10_000)
    rows = [row("capacity", 2), row("held", 1, tenant="t", queue="t"), row("reserved", 1, queue="t"), row("idle", 1)]
    for at in range(0, 46 * DAY, DAY):
        segments.put(at, at + DAY, [Row(at, at + DAY, each.key, each.amounts) for each in rows])
    segments.close()
    dated = [
        {"from": "2026-02-09", "until": "2026-02-21", "gpu_hour": {"H100-80GB": 2.0}},
        {"from": "2026-02-21", "gpu_hour": {"H100-80GB": 1.0}},
    ]
    given = Prices.model_validate(
        {
            "currency": "EUR",
            "region": "a",
            "regions": {"a": {"gpu_hour": {"H100-80GB": 4.0}, "dated": dated}},
            "budget": 50.0,
        }
    )
    for each in month_forecasts(open_store(tmp_path), given):
        assert each.so_far == pytest.approx(4.0 * 8 + 2.0 * 7)
        assert each.middle == pytest.approx(4.0 * 8 + 2.0 * 12 + 1.0 * 8), each.tenant


def spent(tenant: str, charge: float, mean: float | None) -> Spending:
    """The last day of a tenant."""
    return Spending(tenant, 0.0, charge, mean, 30, "EUR")


def test_high_ratios_come_first_then_large_excess() -> None:
    """A small tenant far above its mean comes before a large one that is not high; unknown ratios are left out."""
    found = [
        spent("large", 1200.0, 1000.0),
        spent("new", 9.0, None),
        spent("free", 9.0, 0.0),
        spent("small", 3.0, 2.0),
        spent("middle", 30.0, 20.0),
    ]
    assert list(highest_ratios(found, 2).items()) == [("middle", 1.5), ("small", 1.5)]
    assert list(highest_ratios(found, 9)) == ["middle", "small", "large"]


def test_what_sharing_saved_is_stated_by_owner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has the column where something was saved; older segments, which have none, are read too."""
    shares = row("held", 1, HOUR, tenant="vision", queue="vision", workload="j3", uid="3", slo_class="batch", saved=3)
    folder = stored(tmp_path / "m", ROWS)
    (old,) = folder.glob("s-*.parquet")
    pq.write_table(pq.read_table(old).drop_columns(["saved"]), old)
    assert {bill.saved_gpu_h for bill in bills_of(folder).values()} == {0.0}
    segments = Segments(folder, start_s=1_795_392_000.0)
    segments.put(HOUR, 2 * HOUR, [row("capacity", 4, HOUR), shares, row("idle", 3, HOUR)])
    segments.close()
    bills = bills_of(folder)
    assert (bills["vision"].saved_gpu_h, bills["=cmd()"].saved_gpu_h, bills["total"].saved_gpu_h) == (3.0, 0.0, 3.0)
    run_showback(folder, Words())
    heads, *_ = [line for line in capsys.readouterr().out.splitlines() if line.startswith("tenant")]
    assert "saved" in heads
    assert focus_rows(asked(open_store(folder), PRICES))["x_GpuHoursSaved"].sum() == 3.0
    merge(folder, 0, 2 * HOUR)
    assert bills_of(folder)["vision"].saved_gpu_h == 3.0
