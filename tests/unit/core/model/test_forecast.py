"""What is left of a run time, given what has been served."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from autopilot.core.model.forecast import LEVELS, remaining_quantiles_s

LOG_NORMAL = stats.lognorm(s=1.0, scale=1000.0).ppf(LEVELS)


def left(rows: list[list[float]], served_s: list[float], level: float) -> list[float]:
    """Remaining quantiles as plain numbers."""
    found: list[float] = remaining_quantiles_s(LEVELS, np.array(rows, float), np.array(served_s), (level,))[
        :, 0
    ].tolist()
    return found


@pytest.mark.parametrize("level", LEVELS)
def test_a_fresh_job_has_its_whole_run_time_left(level: float) -> None:
    """With nothing served the quantile is the forecast's own, whether or not another row was served."""
    row = LOG_NORMAL.tolist()
    assert left([row], [0.0], level) == pytest.approx([row[LEVELS.index(level)]])
    assert left([row, row], [0.0, 50.0], level)[0] == pytest.approx(row[LEVELS.index(level)])


@pytest.mark.parametrize("level", [0.05, 0.5, 0.97])
@pytest.mark.parametrize("served_s", [5.0, 200.0, 1000.0, 2500.0, 1e6])
def test_what_is_left_follows_the_conditional_distribution(served_s: float, level: float) -> None:
    """Of a log-normal the answer is the conditional quantile itself, inside the levels and far beyond them."""
    law = stats.lognorm(s=1.0, scale=1000.0)
    exact = law.isf((1 - level) * law.sf(served_s)) - served_s
    assert left([LOG_NORMAL.tolist()], [served_s], level)[0] == pytest.approx(exact, rel=1e-6)


def test_a_certain_run_time_counts_down() -> None:
    """With one value at every level what is left is that value minus what was served."""
    assert left([[600.0] * 7], [450.0], 0.75) == pytest.approx([150.0])


def test_work_that_outlived_a_certain_forecast_is_expected_to_go_on() -> None:
    """Beyond a forecast without spread a tenth of what was served is still expected, never less than a second."""
    assert left([[600.0] * 7], [5000.0], 0.5) == pytest.approx([500.0])
    assert left([[1.0] * 7], [2.0], 0.5) == [1.0]


def test_unknown_stays_unknown() -> None:
    """A row on which the model abstains is NaN, whatever was served, and does not touch its neighbours."""
    found = left([[np.nan] * 7, [600.0] * 7], [100.0, 100.0], 0.5)
    assert np.isnan(found[0])
    assert found[1] == pytest.approx(500.0)
    assert np.isnan(left([[np.nan] * 7], [0.0], 0.33)).all()


def test_a_higher_level_is_never_shorter() -> None:
    """Quantiles of what is left do not cross."""
    for served_s in (0.0, 10.0, 700.0, 4000.0):
        found = [left([LOG_NORMAL.tolist()], [served_s], level)[0] for level in LEVELS]
        assert found == sorted(found)
        assert min(found) >= 0.0


def test_progress_that_was_lost_is_done_again_and_no_more() -> None:
    """A job that outlived 700 s and kept 640 has the rest of a job of 700 s before it, and the minute once more."""
    rows, served, outlived = (
        np.array([LOG_NORMAL, LOG_NORMAL]),
        np.array([640.0, 700.0]),
        np.array([700.0, 0.0]),
    )
    after, before = remaining_quantiles_s(LEVELS, rows, served, LEVELS, outlived)
    assert after == pytest.approx(before + 60.0)
