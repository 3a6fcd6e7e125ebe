"""The forecaster of the demand mix: what it learns from snapshots, and when it abstains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autopilot.core.model.forecast import ExpectedMix, MixKind, checked_mix, kind_words
from autopilot.core.model.snapshot import ClusterSnapshot, Topology
from models.expected_mix import LATE_S, MOST_KINDS, MixForecaster
from models.mix import HOUR_S
from tests.kits import core_world
from tests.kits.core_world import Item, waits

DAY_S = 24 * HOUR_S
ONE, WIDE = MixKind((), 1), MixKind((), 16, 8, topology=Topology.ISLAND)


def snapshot(*jobs: Item) -> ClusterSnapshot:
    """Two nodes, and these gangs wait."""
    return core_world.snapshot("2x8", jobs)


def day(forecaster: MixForecaster, *, every_s: float = 900.0, until_s: float = DAY_S) -> ExpectedMix:
    """Four single GPUs an hour, and every two hours a gang over two nodes of an island. Returns the last forecast."""
    old = waits("old", 3, submit_s=-1.0)
    now_s, shown = 0.0, [old]
    while now_s <= until_s:
        shown = [*shown[-6:], waits(f"a{now_s}", 1, submit_s=now_s)]
        if now_s % (2 * HOUR_S) == 0.0:
            shown.append(waits(f"w{now_s}", 16, submit_s=now_s, gpus_per_member=8, topology=Topology.ISLAND))
        forecaster.update(now_s, snapshot(old, *shown))
        now_s += every_s
    mix = forecaster.forecast(now_s, snapshot()).mix
    assert mix is not None
    return mix


def test_rates_by_kind_with_their_quantiles() -> None:
    """Each gang counts once, by its members and topology; what waited before does not count."""
    mix = day(MixForecaster())
    assert mix.kinds == (ONE, WIDE)
    assert mix.reason == ""
    np.testing.assert_allclose(mix.expected[:, 0], (4.0, 0.5), rtol=0.4)  # of one hour of the day little is known
    np.testing.assert_allclose(mix.expected[:, 2], (96.0, 12.0), rtol=0.25)
    assert (np.diff(mix.counts, axis=2) >= 0).all()
    assert (mix.counts[:, 2, -1] > mix.expected[:, 2]).all()
    assert mix.watched_h == pytest.approx(24.0, abs=1.5)
    assert checked_mix(mix, mix.made_s) is mix


def test_nothing_of_the_future_counts() -> None:
    """The forecast at an hour does not depend on what is submitted later in it, nor on the ticks before it."""
    one, two, busy = MixForecaster(), MixForecaster(), MixForecaster()
    first = day(one, until_s=6 * HOUR_S)
    second = day(two, until_s=6 * HOUR_S + 1800.0)
    third = day(busy, until_s=6 * HOUR_S)
    for now_s in np.arange(6 * HOUR_S + 1, 7 * HOUR_S - 1, 60.0).tolist():
        busy.update(now_s, snapshot(waits(f"late{now_s}", 2, submit_s=now_s)))
    after = busy.forecast(7 * HOUR_S - 1, snapshot()).mix
    assert first.made_s == second.made_s == 6 * HOUR_S
    assert np.array_equal(first.expected, second.expected)
    assert after is third


def test_it_abstains_until_it_has_watched_an_hour() -> None:
    """And while nothing was submitted, with the reason; before the first hour is over there is no forecast."""
    forecaster = MixForecaster()
    forecaster.update(1800.0, snapshot(waits("a", 1, submit_s=1800.0)))
    assert forecaster.forecast(1800.0, snapshot()).mix is None
    forecaster.update(HOUR_S, snapshot())
    first = forecaster.forecast(HOUR_S, snapshot()).mix
    assert first is not None
    assert (first.kinds, first.reason) == ((), "no whole hour of data yet; hours are those of the clock")
    quiet = MixForecaster()
    for hour in range(4):
        quiet.update(hour * HOUR_S, snapshot())
    found = quiet.forecast(3 * HOUR_S, snapshot()).mix
    assert found is not None
    assert found.reason == "no gang was submitted yet"


def test_an_object_counts_once() -> None:
    """Work that disappears from a list and comes back, and a clock that goes backwards, teach nothing."""
    steady, shaky = MixForecaster(), MixForecaster()
    for minute in range(0, 300, 5):
        now_s = minute * 60.0
        job = waits("a", 1, submit_s=120.0)
        steady.update(now_s, snapshot(job))
        shaky.update(now_s, snapshot(*([job] if minute % 10 == 0 or minute > 200 else [])))
        shaky.update(now_s - LATE_S, snapshot(waits("b", 1, submit_s=now_s - LATE_S)))
    one, two = (each.forecast(0.0, snapshot()).mix for each in (steady, shaky))
    assert one is not None
    assert two is not None
    assert np.array_equal(one.expected, two.expected)
    assert one.expected[0, 2] > 0


def test_kinds_are_bounded() -> None:
    """A tenant that asks for another shape each time does not make the forecast grow."""
    forecaster = MixForecaster()
    for number in range(4 * MOST_KINDS):
        now_s = number * 120.0
        forecaster.update(
            now_s, snapshot(waits(f"j{number}", 1 + number, submit_s=now_s, gpus_per_member=1 + number % 8))
        )
    mix = forecaster.forecast(0.0, snapshot()).mix
    assert mix is not None
    assert 10 < len(mix.kinds) <= MOST_KINDS


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"expected": np.zeros((2, 3))}, "it expects nothing at all"),
        ({"expected": np.full((2, 3), np.nan)}, "a number is not finite"),
        ({"expected": np.full((2, 3), -1.0)}, "a number is negative"),
        ({"counts": np.full((2, 3, 3), np.inf)}, "a number is not finite"),
        ({"counts": np.broadcast_to([0.0, -1.0, -2.0], (2, 3, 3))}, "a number is negative"),
        ({"counts": np.broadcast_to([2.0, 1.0, 0.0], (2, 3, 3))}, "its quantiles fall with the level"),
        ({"counts": np.zeros((2, 3))}, "its rows, horizons and levels do not match its numbers"),
        ({"made_s": 2 * DAY_S}, "it was made in the future"),
        ({"made_s": np.nan}, "it was made in the future"),
        ({"horizons_s": (3600.0, 60.0, 86400.0)}, "its horizons are not positive and rising"),
        ({"levels": (0.5, 0.9, 1.0)}, "its levels are not rising between 0 and 1"),
        ({"kinds": (ONE, MixKind((), 0))}, "a kind of gang is not possible"),
        ({"kinds": (ONE, MixKind((), 2, gpu_milli=500, profile="1g.5gb"))}, "a kind of gang is not possible"),
    ],
)
def test_a_broken_mix_is_not_used(broken: dict[str, object], reason: str) -> None:
    """Zeros, NaN, negative numbers and impossible gangs: it abstains with the reason."""
    mix = ExpectedMix(
        "m", 0.0, (ONE, WIDE), (3600.0, 14400.0, DAY_S), (0.5, 0.9, 0.99), np.ones((2, 3)), np.ones((2, 3, 3))
    )
    assert checked_mix(mix, DAY_S) is mix
    found = checked_mix(replace(mix, **broken), DAY_S)  # type: ignore[arg-type]
    assert found.reason == reason
    assert found.kinds == ()
    assert len(found.expected) == len(found.counts) == 0


def test_kinds_in_words() -> None:
    """As people state them."""
    assert kind_words(ONE) == "1 GPU"
    assert kind_words(WIDE) == "2 x 8 GPUs in one island"
    assert kind_words(MixKind((), 1, gpu_milli=250)) == "0.25 GPU"
    assert kind_words(MixKind((), 2, profile="1g.10gb")) == "2 x 1g.10gb"
