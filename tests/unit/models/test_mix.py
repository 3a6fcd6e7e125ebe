"""The demand mix: what arrives, where and when, and how sure that is."""

from __future__ import annotations

import numpy as np
import pytest

from autopilot.core.model.errors import InvariantError
from autopilot.core.model.snapshot import F64, I32
from models.mix import HOUR_S, DemandMix, MixForecast, gang_sizes, size_kind

KINDS = ("1", "2", "4")
RATES = np.array([[6.0, 2.0, 1.0], [0.5, 0.5, 3.0]])
"""Arrivals per hour of two pools."""


def course(hour: int) -> float:
    """A day that is busy at six and quiet at eighteen."""
    return 1.0 + 0.8 * float(np.sin(2 * np.pi * (hour % 24) / 24))


def watch(
    mix: DemandMix, hours: range, rng: np.random.Generator, *, rates: F64 = RATES, cluster: int = 1, daily: bool = True
) -> list[tuple[MixForecast, F64]]:
    """Let those hours pass: (what was foreseen of each, what came [pools, kinds])."""
    seen = []
    for hour in hours:
        foreseen = mix.forecast(hour * HOUR_S, (hour + 1) * HOUR_S, (0.5, 0.9, 0.99))
        came = cluster * rng.poisson(rates * (course(hour) if daily else 1.0) / cluster)
        pool, kind = (part.astype(np.int32) for part in np.nonzero(came))
        count = came[pool, kind]
        at_s = hour * HOUR_S + np.sort(rng.uniform(0, HOUR_S, count.sum()))
        mix.learn((hour + 1) * HOUR_S, at_s, np.repeat(pool, count), np.repeat(kind, count))
        seen.append((foreseen, came.astype(float)))
    return seen


def nothing() -> tuple[F64, I32, I32]:
    """No arrivals."""
    return np.empty(0), np.empty(0, np.int32), np.empty(0, np.int32)


def test_sizes_are_powers_of_two() -> None:
    """A gang of three needs room for four; the largest kind takes all that are larger."""
    sizes = gang_sizes()
    kinds = size_kind(np.array([1, 2, 3, 8, 9, 1024, 5000], np.int32))
    assert [sizes[kind] for kind in kinds.tolist()] == [1, 2, 4, 8, 16, 1024, 1024]


def test_rates_and_shares_are_learned_by_pool_and_hour() -> None:
    """Near the truth after a month, in the busy and in the quiet hours, a fifth of each other in number."""
    mix = DemandMix(2, KINDS)
    watch(mix, range(24 * 30), np.random.default_rng(0))
    for first in (4, 16):
        found = mix.forecast((24 * 30 + first) * HOUR_S, (24 * 30 + first + 5) * HOUR_S)
        true = RATES * sum(course(hour) for hour in range(first, first + 5))
        # about 50 arrivals each
        assert np.abs(found.expected.sum(axis=1) / true.sum(axis=1) - 1).max() < 0.35
        np.testing.assert_allclose(found.shares, RATES / RATES.sum(axis=1, keepdims=True), atol=0.08)
        np.testing.assert_allclose(found.shares.sum(axis=1), 1.0)


def test_the_bounds_of_counts_are_kept() -> None:
    """Counts are whole, so that a bound covers at least what it promises; and it does not cover all."""
    mix = DemandMix(2, KINDS)
    seen = watch(mix, range(24 * 40), np.random.default_rng(1))[24 * 10 :]
    for at, level in enumerate((0.5, 0.9, 0.99)):
        held = np.mean([came <= foreseen.counts[..., at] for foreseen, came in seen])
        assert held >= level - 0.005, level
        assert held <= level + (1 - level) * 0.9, level


def test_arrivals_in_clusters_widen_the_bounds() -> None:
    """Four at a time: the spread is learned, and the 0.99 bound holds."""
    mix = DemandMix(1, KINDS)
    seen = watch(mix, range(24 * 30), np.random.default_rng(2), rates=RATES[:1], cluster=4, daily=False)
    assert 3.0 < mix.spread < 5.5
    held = np.mean([(came <= foreseen.counts[..., 2]).mean() for foreseen, came in seen[24 * 10 :]])
    assert held >= 0.98
    calm = DemandMix(1, KINDS)
    watch(calm, range(24 * 30), np.random.default_rng(2), rates=RATES[:1], daily=False)
    assert calm.spread < 1.3


def test_a_young_hour_is_taken_from_its_pool() -> None:
    """After one day the profile of the day is between flat and what the one day showed."""
    mix = DemandMix(1, ("1",))
    at_s = 6 * HOUR_S + np.linspace(0, HOUR_S, 48, endpoint=False)
    mix.learn(0.0, *nothing())
    mix.learn(24 * HOUR_S, at_s, np.zeros(48, np.int32), np.zeros(48, np.int32))
    busy = float(mix.forecast(30 * HOUR_S, 31 * HOUR_S).expected[0, 0])
    quiet = float(mix.forecast(42 * HOUR_S, 43 * HOUR_S).expected[0, 0])
    assert 2.0 < busy < 48.0
    assert 0.5 < quiet < 2.0


def test_uncertainty_shrinks_with_watching() -> None:
    """The band of a share is wide after a day and narrow after a month."""
    widths = []
    for days in (1, 30):
        mix = DemandMix(2, KINDS)
        watch(mix, range(24 * days), np.random.default_rng(3))
        found = mix.forecast(24 * days * HOUR_S, (24 * days + 1) * HOUR_S, (0.05, 0.95))
        widths.append(float((found.share_bounds[..., 1] - found.share_bounds[..., 0]).mean()))
        assert (found.share_bounds[..., 0] <= found.shares).all()
        assert (found.shares <= found.share_bounds[..., 1]).all()
    assert widths[1] < 0.6 * widths[0]


def test_old_arrivals_fade() -> None:
    """A pool changes what it asks for; two half-lives later the forecast has followed."""
    mix = DemandMix(1, KINDS, half_life_s=2 * 24 * HOUR_S)
    rng = np.random.default_rng(4)
    watch(mix, range(24 * 20), rng, rates=np.array([[8.0, 0.0, 0.0]]), daily=False)
    watch(mix, range(24 * 20, 24 * 26), rng, rates=np.array([[0.0, 0.0, 8.0]]), daily=False)
    found = mix.forecast(24 * 26 * HOUR_S, (24 * 26 + 1) * HOUR_S)
    assert found.shares[0, 2] > 0.75
    assert found.watched_h[0] < 24 * 26


def test_a_new_pool_borrows_from_the_others() -> None:
    """Nothing arrived there yet: its mix is that of all, its rate lower than theirs."""
    mix = DemandMix(3, KINDS)
    rng = np.random.default_rng(5)
    rates = np.array([[6.0, 2.0, 1.0], [6.0, 2.0, 1.0], [0.0, 0.0, 0.0]])
    watch(mix, range(36), rng, rates=rates, daily=False)
    found = mix.forecast(36 * HOUR_S, 37 * HOUR_S)
    np.testing.assert_allclose(found.shares[2], [6 / 9, 2 / 9, 1 / 9], atol=0.1)
    assert 0.0 < found.expected[2].sum() < 0.6 * found.expected[0].sum()


def test_nothing_is_said_before_an_hour_was_watched() -> None:
    """Unknown is not zero; an hour in which nothing came is known to be quiet."""
    mix = DemandMix(1, KINDS)
    for until_s in (None, 0.0, 1800.0):
        if until_s is not None:
            mix.learn(until_s, *nothing())
        found = mix.forecast(HOUR_S, 2 * HOUR_S)
        assert not found.known.any()
        for values in (found.expected, found.counts, found.shares, found.share_bounds):
            assert np.isnan(values).all()
    mix.learn(2 * HOUR_S, *nothing())
    found = mix.forecast(2 * HOUR_S, 3 * HOUR_S)
    assert found.known.all()
    assert 0.0 <= found.expected.sum() < 1e-6
    assert found.counts.sum() == 0.0
    assert np.isfinite(found.share_bounds).all()


def test_windows_add_up() -> None:
    """Four hours are the sum of their hours, whether they begin at the full hour or not; quantiles rise."""
    mix = DemandMix(2, KINDS)
    watch(mix, range(24 * 10), np.random.default_rng(6))
    start = 240.5 * HOUR_S
    whole = mix.forecast(start, start + 4 * HOUR_S)
    parts = [mix.forecast(start + at * HOUR_S, start + (at + 1) * HOUR_S).expected for at in range(4)]
    np.testing.assert_allclose(whole.expected, sum(parts))
    assert (np.diff(whole.counts, axis=-1) >= 0).all()
    assert (np.diff(whole.share_bounds, axis=-1) >= 0).all()


def test_how_often_one_looks_does_not_matter() -> None:
    """The same arrivals in windows of a minute and of a day give the same forecast."""
    rng = np.random.default_rng(7)
    at_s = np.sort(rng.uniform(0, 5 * 24 * HOUR_S, 500))
    pool, kind = rng.integers(0, 2, 500).astype(np.int32), rng.integers(0, 3, 500).astype(np.int32)
    found = []
    for step_s in (60.0, 24 * HOUR_S):
        mix = DemandMix(2, KINDS)
        mix.learn(0.0, *nothing())
        for end_s in np.arange(step_s, 5 * 24 * HOUR_S + 1, step_s).tolist():
            part = (at_s >= end_s - step_s) & (at_s < end_s)
            mix.learn(end_s, at_s[part], pool[part], kind[part])
        found.append(mix.forecast(5 * 24 * HOUR_S, 5 * 24 * HOUR_S + HOUR_S))
    np.testing.assert_allclose(found[0].expected, found[1].expected, rtol=0.02)
    np.testing.assert_allclose(found[0].spread, found[1].spread, rtol=0.05)


def test_draws_have_the_moments_of_the_forecast_and_follow_their_seed() -> None:
    """One seed, one draw; the mean is what is expected."""
    mix = DemandMix(2, KINDS)
    watch(mix, range(24 * 10), np.random.default_rng(8))
    window = (240 * HOUR_S, 244 * HOUR_S)
    draws = mix.sample(*window, 4000, np.random.default_rng(1))
    np.testing.assert_array_equal(draws, mix.sample(*window, 4000, np.random.default_rng(1)))
    found = mix.forecast(*window)
    np.testing.assert_allclose(draws.mean(axis=0), found.expected, rtol=0.1, atol=0.1)
    assert (draws <= found.counts[..., 2]).mean() > 0.97
    with pytest.raises(InvariantError, match="no data yet"):
        DemandMix(1, KINDS).sample(*window, 1, np.random.default_rng(0))


def test_a_clock_that_goes_back_teaches_nothing() -> None:
    """And a time that is no number neither."""
    mix = DemandMix(1, KINDS)
    watch(mix, range(30), np.random.default_rng(9), rates=RATES[:1])
    before = mix.forecast(30 * HOUR_S, 31 * HOUR_S).expected
    one = np.zeros(1, np.int32)
    mix.learn(10 * HOUR_S, np.array([5 * HOUR_S]), one, one)
    mix.learn(float("nan"), np.array([31 * HOUR_S]), one, one)
    np.testing.assert_array_equal(mix.forecast(30 * HOUR_S, 31 * HOUR_S).expected, before)
    with pytest.raises(InvariantError, match="has an unknown pool or kind"):
        mix.learn(40 * HOUR_S, np.array([35 * HOUR_S]), one, one + 7)
