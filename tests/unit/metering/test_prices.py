"""The price file: what is read, and what is refused."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autopilot.app.commands.planner_commands import Desk
from autopilot.core.model.errors import InputError
from autopilot.metering.amounts import AMOUNTS, GRAINS_PER_GPU_S, TICKS_PER_S, Row
from autopilot.metering.focus import focus_rows
from autopilot.metering.prices import flat_prices, load_prices
from autopilot.metering.segments import Segments, open_store
from autopilot.metering.showback import showback
from autopilot.metrics.exposition import Exposition
from tests.kits.core_world import AUTO, decide, holds, observe, snapshot
from tests.kits.metering_kit import asked

LEAST = "currency: EUR\nregion: a\nregions: {a: {gpu_hour: {H100-80GB: 2.5}}}\n"


def test_the_shipped_example_is_valid() -> None:
    """It has a price for every model, by region of the pool."""
    prices = load_prices().at(None)
    assert prices.gpu_hour("any", "H100-80GB") == 2.8
    assert prices.gpu_hour("edge", "H100-80GB") == 1.4
    assert prices.region_of("edge").carbon_g_kwh == 30


def test_a_model_without_price_is_an_error(tmp_path: Path) -> None:
    """A missing price is unknown, never zero."""
    (tmp_path / "p.yaml").write_text(LEAST)
    assert flat_prices(2.0).at(None).gpu_hour("", "anything") == 2.0
    with pytest.raises(InputError, match="no price for L4"):
        load_prices(tmp_path / "p.yaml").at(None).gpu_hour("a", "L4")


def dated(*entries: str) -> str:
    """A price file whose region has these entries."""
    return f"currency: EUR\nregion: a\nregions: {{a: {{gpu_hour: {{other: 2.5}}, dated: [{', '.join(entries)}]}}}}\n"


def test_a_dated_rate_counts_from_its_first_moment_up_to_its_end(tmp_path: Path) -> None:
    """Dates are 00:00 in the zone of the file; what an entry does not name stays."""
    (tmp_path / "p.yaml").write_text(
        dated("{from: 2026-02-01, until: 2026-03-01, gpu_hour: {H100-80GB: 2}, burst_ratio: 0.5}")
        + "zone: Europe/Berlin\n"
    )
    prices = load_prices(tmp_path / "p.yaml")
    for moment, price, burst in (
        ("2026-01-31T22:59:59Z", 2.5, 1.0),
        ("2026-01-31T23:00:00Z", 2.0, 0.5),
        ("2026-02-28T22:59:59Z", 2.0, 0.5),
        ("2026-02-28T23:00:00Z", 2.5, 1.0),
    ):
        now = prices.at(datetime.fromisoformat(moment).timestamp())
        assert (now.gpu_hour("p", "H100-80GB"), now.gpu_hour("p", "L4"), now.burst_of("p")) == (price, 2.5, burst)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LEAST.replace("EUR", "euro"), "currency: 'euro'"),
        (LEAST.replace("2.5", "-1"), "regions.a.gpu_hour.H100-80GB: -1"),
        (LEAST.replace("2.5", ".nan"), "gpu_hour.H100-80GB"),
        (LEAST.replace("2.5", ".inf"), "gpu_hour.H100-80GB: inf"),
        (LEAST.replace("region: a", "region: b"), "region: 'b' is no region; there are a"),
        (LEAST + "pools: {x: aa}\n", "pools.x: 'aa' is no region"),
        (LEAST + "burst: 1\n", "burst: 1: extra inputs"),
        (LEAST + "topology_premium: {isle: 1}\n", "topology_premium.isle"),
        (LEAST + "zone: Europe/Belin\n", "zone: 'Europe/Belin' is no time zone; did you mean Europe/Berlin?"),
        (dated("{from: 2026-02-01, until: 2026-03-02}", "{from: 2026-03-01}"), "from 2026-03-01 overlaps the one from"),
        (dated("{from: 2026-02-01}", "{from: 2026-03-01}"), "give that one `until: 2026-03-01`, or remove one"),
        (dated("{from: 2026-02-01, until: 2026-02-01}"), "until 2026-02-01 is not after from 2026-02-01"),
        (dated("{from: soon}"), "regions.a.dated.from: 'soon' is no date; write 2026-02-01"),
        (dated("{from: 2026-02-01, carbon_g_kwh: .nan}"), "regions.a.dated.0.carbon_g_kwh: nan"),
        (dated("{from: 2026-02-01, gpu_hour: {H100-80GB: -1}}"), "regions.a.dated.0.gpu_hour.H100-80GB: -1"),
        (LEAST + "budgets: {vision: -5}\n", "budgets.vision: -5"),
        (LEAST + "budget: .inf\n", "budget: inf"),
        (LEAST + "budgets: {vision: 0}\n", "budgets.vision: 0: input should be greater than 0"),
        ("", "the file"),
        ("a: [", "invalid YAML"),
    ],
)
def test_a_bad_file_is_refused(text: str, words: str, tmp_path: Path) -> None:
    """One message with file, field, value and what is allowed."""
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        load_prices(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("with_date", [True, False])
def test_a_price_that_is_valid_now_counts_on_every_face(with_date: bool, tmp_path: Path) -> None:
    """Metrics, comparison, sizes, bills and FOCUS rows, of a run that is now, and of one without dates."""
    start_s = time.time() - 60.0 if with_date else None
    today = datetime.now(UTC)
    day = timedelta(days=1)
    text = dated(f"{{from: {today - day:%Y-%m-%d}, until: {today + 2 * day:%Y-%m-%d}, gpu_hour: {{other: 9}}}}")
    (tmp_path / "p.yaml").write_text(text)
    prices = load_prices(tmp_path / "p.yaml")
    desk = Desk(price_file=tmp_path / "p.yaml").prices()
    assert desk is not None
    assert desk.gpu_hour("p", "L4") == 9
    observation = observe(snapshot("1x4", [holds("g", 4)]), 30.0)
    step = decide(observation)
    exposition = Exposition(None, "1", prices, start_s)
    exposition.tick(observation, step.decision, step.memory, AUTO)
    series = [line for line in exposition.render(30.0).decode().splitlines() if "gpu_hour_price{" in line]
    assert [float(line.split()[-1]) for line in series] == [9.0]
    segments = Segments(tmp_path / "m", start_s=start_s)
    grains = 4 * 30 * GRAINS_PER_GPU_S
    row = Row(0, 30 * TICKS_PER_S, ("capacity", *[""] * 12), (grains, *[0] * (len(AMOUNTS) - 1)))
    segments.put(row.begin, row.end, [row, replace(row, key=("held", "vision", *[""] * 11))])
    segments.close()
    question = asked(open_store(tmp_path / "m"), prices)
    assert showback(question).capacity_cost == pytest.approx(9 * 4 * 30 / 3600)
    assert set(focus_rows(question)["ListUnitPrice"]) == {9.0}
