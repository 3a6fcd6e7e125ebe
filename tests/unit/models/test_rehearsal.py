"""A history gone through in time: nothing is promised by what had not happened yet."""

from __future__ import annotations

import numpy as np
import pytest

from autopilot.core.model.forecast import LEVELS
from autopilot.core.model.snapshot import F64, I64
from models.lasting import OUTLIVED_S
from models.opinions import MEDIAN, OPINIONS
from models.recent import Asked
from models.rehearsal import Blend, Given, JobHistory, Promises, calibrated, left_after_an_hour

JOBS = 400


def history_of(duration_s: F64, apart_s: float = 120.0, wait_s: float = 60.0) -> JobHistory:
    """Jobs of two tenants in turn, submitted `apart_s` after each other, each begun after `wait_s`."""
    count = len(duration_s)
    submit_s, words = np.asarray(apart_s * np.arange(count), np.float64), np.full(count, "", object)
    tenant = np.array(["a", "b"] * count, object)[:count]
    asked = Asked(tenant, words, words, np.ones(count), submit_s, np.zeros((count, 0)))
    return JobHistory(asked, np.asarray(submit_s + wait_s, np.float64), duration_s)


def drawn_s(seed: int = 6) -> F64:
    """Run times from seconds to a day."""
    return np.asarray(np.random.default_rng(seed).lognormal(7.5, 1.5, JOBS))


def blended(history: JobHistory, middle_s: float = 3000.0) -> F64:
    """What is promised at each submission, under opinions that say the same of every job."""
    rows: I64 = np.arange(JOBS)
    said = np.tile(np.log(middle_s) + np.arange(len(LEVELS)) - MEDIAN, (JOBS, len(OPINIONS), 1))
    promises = Promises(history.asked.submit_s, history.start_s, history.log_s)
    return calibrated(promises, Blend(history, rows, said))


def test_a_promise_does_not_know_what_comes_after_it() -> None:
    """Whatever had not ended by then lasts ten times longer: the promises of before stay, to the last digit."""
    history = history_of(drawn_s())
    now_s = float(history.asked.submit_s[250])
    later = history.end_s >= now_s
    other = history_of(np.where(later, 10.0 * history.duration_s, history.duration_s))
    one, changed = blended(history), blended(other)
    assert np.array_equal(one[:251], changed[:251])
    assert not np.array_equal(one[251:], changed[251:])


def test_the_time_left_does_not_know_what_comes_after_it() -> None:
    """As above, for those that come to have run for an hour."""
    history = history_of(drawn_s())
    rows = np.flatnonzero(history.duration_s > OUTLIVED_S)
    now_s = float(history.asked.submit_s[250])
    other = history_of(np.where(history.end_s >= now_s, 10.0 * history.duration_s, history.duration_s))
    one, changed = left_after_an_hour(history, rows), left_after_an_hour(other, rows)
    before = history.start_s[rows] + OUTLIVED_S < now_s
    assert before.sum() > 30
    assert np.array_equal(one[before], changed[before])
    assert not np.array_equal(one[~before], changed[~before])


def test_a_job_that_never_ends_counts_as_running() -> None:
    """Half of the jobs have no end in the file: the forecast of their remaining time is longer."""
    duration_s = np.where(np.arange(JOBS) % 4 < 2, 2.0 * OUTLIVED_S, 0.5 * OUTLIVED_S)
    rows = np.array([JOBS - 3])  # the last that runs for two hours
    ended = left_after_an_hour(history_of(duration_s), rows)[0, MEDIAN]
    duration_s[np.arange(JOBS) % 8 < 2] = np.nan
    rows = np.flatnonzero(~np.isnan(duration_s) & (duration_s > OUTLIVED_S))[-1:]
    assert left_after_an_hour(history_of(duration_s), rows)[0, MEDIAN] > ended + 0.5


def test_what_siblings_said_before_the_submission_makes_its_bound_sharp() -> None:
    """All jobs take ten minutes and end before the next comes, while every opinion says up to an hour and more."""
    found = np.exp(blended(history_of(np.full(JOBS, 600.0), apart_s=700.0, wait_s=10.0), 600.0))
    late = LEVELS.index(0.9)
    assert found[0, late] > 4000.0
    assert found[20, late] < 2000.0  # before there is anything to calibrate by
    assert found[-1, late] == pytest.approx(600.0, rel=0.1)


def test_promises_of_given_quantiles_are_kept_as_often_as_promised() -> None:
    """One quantile for all jobs, far too low: the calibration corrects it although every job runs for long."""
    history = history_of(drawn_s(8))
    promises = Promises(history.asked.submit_s, history.start_s, history.log_s)
    said = np.tile(4.0 + np.arange(len(LEVELS)) / 2.0, (JOBS, 1))
    found = calibrated(promises, Given(said))
    kept = history.log_s <= found[:, LEVELS.index(0.9)]
    assert abs(kept[100:].mean() - 0.9) < 0.05
