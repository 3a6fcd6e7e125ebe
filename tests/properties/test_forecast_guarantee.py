"""Forecasts are never much worse than their floor, on generated series."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kits.forecast_floor import (
    WORST_RATIO,
    ZOO,
    Row,
    Window,
    backtested,
    controlled,
    coverage_bounds,
    judged_rows,
    scored,
    zoo_windows,
)

ROW = Row("backtest", "kind", 0, "a", 1, 2000, 10.0, 10.0, 10.0, 10.0, 1980, 1.0, 1.0)


@pytest.fixture(scope="module")
def sample() -> list[Row]:
    """Rows of a small zoo in the backtest, pooled by kind and horizon: some 700 outcomes each."""
    kinds = {f"zoo {kind}" for kind in ZOO}
    windows = [window for window in zoo_windows(0, steps=800, series=5) if window.kind in kinds]
    return judged_rows([row for window in windows for row in backtested(window, 0)])


def test_no_kind_of_series_errs_more_than_under_its_floor(sample: list[Row]) -> None:
    """Mean errors of each kind and horizon of the zoo."""
    assert len(sample) == 3 * len(ZOO)
    for row in sample:
        assert row.error_ratio <= WORST_RATIO, row


def test_bounds_of_the_zoo_lose_less_than_the_floors(sample: list[Row]) -> None:
    """Of 700 outcomes seven lie beyond a bound of 0.99: one kind alone may be unlucky, a few percent at most."""
    ratios = np.array([row.pinball_ratio for row in sample])
    assert (ratios <= WORST_RATIO).mean() >= 0.9
    assert ratios.max() <= 1.1
    assert np.exp(np.log(ratios).mean()) <= 0.95


def test_coverage_of_the_zoo_lies_within_its_range(sample: list[Row]) -> None:
    """The 0.99 bound of each kind and horizon, chance allowed for."""
    for row in sample:
        least, most = coverage_bounds(row.outcomes / row.steps)
        assert least <= row.coverage <= most, row


def test_the_controller_keeps_it_too() -> None:
    """All kinds of the zoo at once, minute by minute, with the fits and the gate of the controller."""
    window = next(window for window in zoo_windows(0, steps=400, series=1) if window.kind == "zoo mixed")
    rows = list(controlled(window, 0))
    assert {row.series for row in rows} == set(window.names)
    ratios = np.array([[row.error_ratio, row.pinball_ratio] for row in judged_rows(rows)])
    assert (ratios <= WORST_RATIO).all(), ratios


def test_a_forecast_that_is_worse_or_covers_too_little_or_too_much_is_found() -> None:
    """Each part of the guarantee is judged."""
    assert ROW.kept
    for change in (
        {"error": 60.0, "floor_error": 50.0},
        {"pinball": 13.0},
        {"covered": 1940},
        {"covered": 2000},
    ):
        assert not replace(ROW, **change).kept, change
    assert replace(ROW, steps=60, covered=1950).kept  # some thirty independent outcomes say little


def test_an_error_of_a_thousandth_of_the_mean_is_none() -> None:
    """A floor that is exact can be equalled."""
    exact = replace(ROW, error=0.01, floor_error=0.0, bound=0.0, floor_bound=0.0)
    assert exact.headroom == 1.0
    assert exact.error_ratio == pytest.approx(1.005)
    assert replace(ROW, error=4.0, floor_error=0.0).error_ratio == pytest.approx(3.0)


def test_short_series_are_pooled_by_kind_and_horizon() -> None:
    """Below 1,000 outcomes a series is not judged alone."""
    short = replace(ROW, outcomes=400, covered=396)
    rows = [ROW, short, replace(short, series="b"), replace(short, steps=3), replace(short, kind="other")]
    found = judged_rows(rows)
    assert [(row.series, row.kind, row.steps, row.outcomes) for row in found] == [
        ("a", "kind", 1, 2000),
        ("2 short ones", "kind", 1, 800),
        ("1 short ones", "kind", 3, 400),
        ("1 short ones", "other", 1, 400),
    ]


def test_an_outcome_equal_to_its_bound_is_covered_and_unknown_ones_are_not_scored() -> None:
    """How ties and gaps are scored."""
    window = Window("kind", 60.0, (1,), 0, ("a",), np.full((1, 4), 2.0))
    came = np.array([[[2.0], [3.0], [np.nan], [2.0]]])
    upper = np.full((1, 4, 1, 3), 2.0)
    floor = upper.copy()
    floor[:, 3] = np.nan
    (row,) = scored("backtest", window, (1,), came, upper, floor)
    assert (row.outcomes, row.covered, row.error) == (2, 1, 0.5)
