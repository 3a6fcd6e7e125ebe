"""The price file: what is read, and what is refused."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from autopilot.core.model.errors import InputError
from autopilot.metering.prices import flat_prices, load_prices

LEAST = "currency: EUR\nregion: a\nregions: {a: {gpu_hour: {H100-80GB: 2.5}}}\n"


def test_the_shipped_example_is_valid() -> None:
    """It has a price for every model, by region of the pool."""
    prices = load_prices()
    assert prices.gpu_hour("any", "H100-80GB") == 2.8
    assert prices.gpu_hour("edge", "H100-80GB") == 1.4
    assert prices.region_of("edge").carbon_g_kwh == 30


def test_a_model_without_price_is_an_error(tmp_path: Path) -> None:
    """A missing price is unknown, never zero."""
    (tmp_path / "p.yaml").write_text(LEAST)
    assert flat_prices(2.0).gpu_hour("", "anything") == 2.0
    with pytest.raises(InputError, match="no price for L4"):
        load_prices(tmp_path / "p.yaml").gpu_hour("a", "L4")


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
