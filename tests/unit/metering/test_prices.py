"""The price file: what is read, and what is refused."""

from __future__ import annotations

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
