"""Arrivals carried to another rate, crowds of synthetic requests, and the judgement of the benchmark on both."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from benchmarks.burst_requests import carried, client_rates
from benchmarks.bursts_slo import POLICIES, Row, judge
from simulator.inference.synthetic_requests import SHAPES, Bursts, ServiceLoad, SyntheticArrivals

RATES = np.array([1.0, 1.0, 4.0, 4.0, 1.0, 1.0])


def test_carried_arrivals_have_the_new_rate_and_the_old_gaps() -> None:
    """A flat trace of exact seconds: as many arrivals as the rates promise, evenly apart where the rate is even."""
    t_s, rows = carried(np.arange(0.0, 1000.0), RATES)
    assert len(t_s) == pytest.approx(RATES.sum() * 600, rel=0.02)
    inside = t_s[(t_s > 1550) & (t_s < 2050)]
    np.testing.assert_allclose(np.diff(inside), 0.25, rtol=0.02)
    assert (np.diff(t_s) >= 0).all()
    assert rows.tolist() == [row % 1000 for row in range(len(rows))]


def test_a_burst_of_the_trace_is_a_burst_afterwards() -> None:
    """Ten at once stay ten at once, whatever the rate."""
    crowd = np.sort(np.concatenate([np.arange(0.0, 1000.0, 2.0), np.full(10, 500.0)]))
    t_s, _ = carried(crowd, np.full(6, 2.0))
    assert np.unique(t_s, return_counts=True)[1].max() >= 10


def test_the_rate_of_a_client_is_zero_where_it_has_no_window() -> None:
    """By rank of all its requests, window after window."""
    windows = pd.DataFrame(
        {
            "t_s": [0, 600, 1200, 600],
            "model": ["m", "m", "m", "n"],
            "tenant": ["small", "big", "big", "other"],
            "rate_rps": [1.0, 5.0, 7.0, 99.0],
        }
    )
    assert client_rates(windows, "m", 0).tolist() == [0.0, 5.0, 7.0]
    assert client_rates(windows, "m", 1).tolist() == [1.0, 0.0, 0.0]


def load(bursts: Bursts | None) -> ServiceLoad:
    """A flat load of five requests/s, but for its crowds."""
    calm = replace(SHAPES["azure"], noise_sd=0.0)
    return ServiceLoad(name="chat", mean_rps=5.0, shape=calm, swing=0.0, bursts=bursts)


def test_a_crowd_raises_the_rate_to_its_multiple_and_goes_again() -> None:
    """Rise, plateau and fall are where they were drawn; without crowds the rate is flat; of two the larger counts."""
    crowds = Bursts(per_day=0.0, factor=3.0, rise_s=600.0, length_s=1200.0, log_sd=0.0)
    source = SyntheticArrivals(np.random.default_rng(1), load(crowds), 7200.0)
    source._bursts = [(1200.0, np.log(3.0)), (1800.0, np.log(2.0))]
    counts = np.bincount((source.upto(7200.0).t_s // 600).astype(int), minlength=12)[:12] / 600
    np.testing.assert_allclose(counts[[0, 1, 3, 4, 8, 10]], [5, 5, 15, 15, 5, 5], rtol=0.12)
    assert 10 < counts[5] < 13  # the first falls below the second here


def test_crowds_come_as_often_as_they_are_said_to_and_depend_on_the_seed_alone() -> None:
    """About 24 a day; a load without crowds draws what it always drew."""
    crowds = Bursts(per_day=24.0, factor=3.0, rise_s=60.0, length_s=60.0)
    counts = [len(SyntheticArrivals(np.random.default_rng(n), load(crowds), 86_400.0)._bursts) for n in range(40)]
    assert 20 < np.mean(counts) < 28
    one, again = (SyntheticArrivals(np.random.default_rng(5), load(crowds), 3600.0).upto(3600.0) for _ in range(2))
    np.testing.assert_array_equal(one.t_s, again.t_s)
    rng = np.random.default_rng(5)
    SyntheticArrivals(rng, load(None), 3600.0)
    assert rng.standard_normal() == np.random.default_rng(5).standard_normal(2)[1]


def test_a_daily_crowd_comes_every_day_at_its_hour() -> None:
    """Two days have it twice at the same time; the slow noise can be switched off."""
    crowds = Bursts(per_day=0.0, factor=3.0, rise_s=600.0, length_s=3600.0, log_sd=0.0, daily_s=(36_000.0,))
    calm = replace(load(crowds), shape=SHAPES["azure"], noise=0.0)
    counts = np.bincount(
        (SyntheticArrivals(np.random.default_rng(1), calm, 172_800.0).upto(172_800.0).t_s // 3600).astype(int),
        minlength=48,
    )
    high = np.flatnonzero(counts / 3600 > 10.0)
    assert high.tolist() == [10, 34]
    np.testing.assert_allclose(np.delete(counts, [10, 11, 34, 35]) / 3600, 5.0, rtol=0.1)


def row(policy: str, violation_ratio: float, gpu_h: float, violated: int = 0) -> Row:
    """One policy's figures of a thousand requests."""
    return Row("synthetic", 0, policy, 1000, violation_ratio, 1000 * violation_ratio, 5.0, gpu_h, 10, violated, 1.0)


@pytest.mark.parametrize(
    ("late", "gpu_h", "violated", "kept"),
    [
        (0.05, 101.9, 0, True),
        (0.051, 100.0, 0, False),
        (0.05, 102.1, 0, False),
        (0.05, 97.0, 0, True),
        (0.1, 85.0, 0, True),
        (0.101, 85.0, 0, False),
        (0.05, 100.0, 1, False),
    ],
)
def test_the_bar_is_half_of_the_violations_at_equal_hours_or_equal_ones_at_fewer(
    late: float, gpu_h: float, violated: int, *, kept: bool
) -> None:
    """Against a tenth late at 100 GPU-hours; a broken invariant keeps no bar."""
    rows = [row(POLICIES[0], 0.1, 100.0), row(POLICIES[1], late, gpu_h, violated)]
    assert judge("synthetic", rows) is kept
