from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopilot.core.model.errors import InvariantError
from autopilot.report.data import Heat, Series, heat_of_intervals, resample, shrink_heat
from autopilot.report.plot_layout import steps
from autopilot.report.plots import exceedance


def test_resample_gives_time_weighted_means() -> None:
    """A step in the middle of a bin counts by the time it lasts; before the first sample is unknown."""
    t, v = resample(np.array([1.0, 2.5, 3.0]), np.array([4.0, 0.0, np.nan]), 4.0, points=4)
    assert t.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert v[1:3].tolist() == [4.0, 2.0]
    assert np.isnan(v[[0, 3]]).all()


@given(
    values=st.lists(st.one_of(st.floats(0, 1), st.just(float("nan"))), min_size=1, max_size=40),
    points=st.integers(1, 60),
    until=st.floats(0.5, 1e7),
    data=st.data(),
)
def test_resample_keeps_the_integral_and_the_limits(
    values: list[float], points: int, until: float, data: st.DataObject
) -> None:
    """Summed over its bins the result has the area of the steps, and lies between their extremes."""
    share = data.draw(st.lists(st.floats(0, 1), min_size=len(values), max_size=len(values)))
    t, v = np.sort(np.array(share)) * until, np.array(values)
    starts, means = resample(t, v, until, points)
    assert len(starts) == len(means) == points
    known = means[np.isfinite(means)]
    if len(known):
        assert known.min() >= np.nanmin(v)
        assert known.max() <= np.nanmax(v)
    if np.isfinite(v).all() and t[0] == 0.0:
        area = float((np.diff(np.append(t, until)) * v).sum())
        assert means.sum() * until / points == pytest.approx(area, abs=1e-6 * until)


def test_resample_of_nothing_is_nothing() -> None:
    """No samples, or no time, give empty arrays."""
    assert len(resample(np.zeros(0), np.zeros(0), 10.0)[0]) == 0
    assert len(resample(np.zeros(1), np.ones(1), 0.0)[0]) == 0


def test_heat_of_intervals_counts_what_each_node_held(rng: np.random.Generator) -> None:
    """The map holds the same GPU-seconds as the intervals, each on its own row."""
    node, gpus = rng.integers(0, 5, 200), rng.integers(1, 3, 200).astype(float)
    start = rng.uniform(0, 900, 200)
    end = np.minimum(start + rng.uniform(0, 90, 200), 1000.0)
    ids = tuple("abcde")
    heat = heat_of_intervals(node, start, end, gpus, ids, np.full(5, 800.0), 1000.0)
    held = (heat.busy_ratio * np.diff(heat.t_edges_s)).sum(axis=1) * 800.0
    assert heat.node_ids == ids
    assert held == pytest.approx(np.bincount(node, weights=gpus * (end - start), minlength=5))


def test_a_large_heat_map_is_joined_to_picture_size() -> None:
    """1,000 nodes by 700 intervals become 120 by 300 with the same mean; what is unknown has no weight."""
    busy = np.tile(np.linspace(0, 1, 700), (1000, 1))
    busy[::2] = np.nan
    large = Heat(t_edges_s=np.arange(701.0), node_ids=tuple(f"n{i}" for i in range(1000)), busy_ratio=busy)
    small = shrink_heat(large)
    assert small.busy_ratio.shape == (120, 300)
    assert small.node_ids[0] == "n0 to n8"
    assert small.node_ids[-1].endswith("n999")
    assert (small.busy_ratio * np.diff(small.t_edges_s)).sum(axis=1) == pytest.approx(np.full(120, 350.0))


def test_columns_of_unequal_length_are_refused() -> None:
    """A series whose columns do not belong together is a broken program, not a picture."""
    one, two = np.zeros(1), np.zeros(2)
    with pytest.raises(InvariantError, match="unequal length"):
        Series(t_s=two, allocation_ratio=two, hardware_ratio=one, pending_gpus=two, stranded_gpus=two)


def test_drawn_steps_keep_a_breach() -> None:
    """Joining neighbours to their worst keeps the one bin in which p99 was high."""
    values = np.full(600, 0.1)
    values[123] = 9.0
    values[0:4] = np.nan
    t, drawn = steps(np.arange(600.0), values, 150, worst=True)
    assert len(t) == len(drawn) == 151
    assert np.nanmax(drawn) == 9.0
    assert np.isnan(drawn[0])
    assert t[-1] == 600.0


def test_exceedance_starts_at_the_share_that_waits_at_all() -> None:
    """Of four known waits two are over a second; the curve starts at a half and ends where none is longer."""
    x, share = exceedance(np.array([0.0, 0.5, 10.0, 100.0, np.nan]))
    assert (x[0], share[0]) == (1.0, 0.5)
    assert x[-1] == 100.0
    assert np.isnan(share[-1])
