"""Time left of jobs that have run for an hour: what came of the others that ran so long."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import pytest

from autopilot.core.model.forecast import LEVELS
from models.lasting import BEFORE, FIRST, MOST_CODES, OUTLIVED_S, WINDOW, Lasting
from models.recent import kins_of
from models.siblings import outlived, quantiles_given

MIDDLE = LEVELS.index(0.5)


def lasted(found: Lasting, name: Hashable, tenant: str, total_s: float, submit_s: float) -> None:
    """One job of `tenant` comes, and ends after `total_s` of running."""
    found.add(name, kins_of(tenant, "", "", 1.0), submit_s)
    found.end(name, total_s)


def runs(found: Lasting, tenant: str, submit_s: float, ran_s: float = OUTLIVED_S) -> np.ndarray:
    """Quantiles of the total time of a new job of `tenant` that has run for `ran_s`, in seconds."""
    found.add("asked", kins_of(tenant, "", "", 1.0), submit_s)
    found.ran(["asked"], np.array([ran_s]))
    said = np.exp(found.said(["asked"])["asked"])
    found.end("asked", float("nan"))
    return said


def test_a_job_within_its_first_hour_is_not_spoken_of() -> None:
    """Nor an unknown one."""
    found = Lasting()
    found.add("young", kins_of("a", "", "", 1.0), 0.0)
    found.ran(["young", "stranger"], np.array([OUTLIVED_S - 1.0, 2.0 * OUTLIVED_S]))
    assert found.said(["young", "stranger"]) == {}


def test_quantiles_lie_beyond_what_was_run_and_rise() -> None:
    """At the first job, without any data, and after a history."""
    found = Lasting()
    for number in range(50):
        for ran_s in (OUTLIVED_S, 5.0 * OUTLIVED_S):
            said = runs(found, "a", 1e6, ran_s)
            assert said[0] >= ran_s
            assert (np.diff(said) > 0.0).all()
        lasted(found, number, "a", 2.0 * OUTLIVED_S, 100.0 * number)


def test_what_came_of_jobs_that_did_not_last_says_nothing() -> None:
    """A thousand jobs of a minute leave the forecast where it was."""
    found, other = Lasting(), Lasting()
    for number in range(1000):
        lasted(found, number, "a", 60.0, 10.0)
    for each in (found, other):
        lasted(each, "last", "a", 4.0 * OUTLIVED_S, 0.0)
    assert runs(found, "a", 5000.0).tolist() == runs(other, "a", 5000.0).tolist()


def test_the_own_tenant_counts_for_more_than_all_jobs() -> None:
    """Jobs of one tenant last for two hours, of the other for two days; the forecast for a third is in between."""
    found, day_s = Lasting(), 86_400.0
    for number in range(200):
        lasted(found, number, "ab"[number % 2], (2.0 * 3600.0, 2.0 * day_s)[number % 2], 1000.0 * number)
    short, long, other = (runs(found, tenant, 1e7)[MIDDLE] for tenant in "abc")
    assert short == pytest.approx(2.0 * 3600.0, rel=0.25)
    assert long == pytest.approx(2.0 * day_s, rel=0.25)
    assert 1.5 * short < other < 0.9 * long


def test_jobs_that_still_run_make_the_rest_longer() -> None:
    """Ten ended after an hour and a half; twenty that have run for a day do not end there."""
    found = Lasting()
    for number in range(10):
        lasted(found, number, "a", 1.5 * OUTLIVED_S, 0.0)
    before = runs(found, "a", 0.0)[MIDDLE]
    running = [f"long-{number}" for number in range(20)]
    for name in running:
        found.add(name, kins_of("a", "", "", 1.0), 0.0)
    found.ran(running, np.full(20, 24.0 * OUTLIVED_S))
    assert runs(found, "a", 0.0)[MIDDLE] > 5.0 * before


def test_a_job_is_no_witness_of_itself() -> None:
    """Alone it is foreseen by the first guess, given what it has run, however often it is looked at."""
    found = Lasting()
    found.add("asked", kins_of("a", "", "", 1.0), 0.0)
    for _ in range(5):
        found.ran(["asked"], np.array([2.0 * OUTLIVED_S]))
    hazard = np.where(BEFORE, 0.0, FIRST / np.cumsum(FIRST[::-1])[::-1])
    done = np.append(1.0 - outlived(hazard), 1.0)
    guess = quantiles_given(done[None, :], np.log([2.0 * OUTLIVED_S]))[0]
    assert found.said(["asked"])["asked"] == pytest.approx(guess, rel=1e-6)


def test_what_is_remembered_is_bounded_and_a_job_older_than_the_window_is_still_spoken_of() -> None:
    """More tenants than are numbered, each with one job that lasts: the newest decide."""
    found = Lasting()
    found.add("old", kins_of("old", "", "", 1.0), 0.0)
    found.ran(["old"], np.array([OUTLIVED_S]))
    for number in range(MOST_CODES):
        lasted(found, number, f"tenant-{number}", 3.0 * OUTLIVED_S, float(number))
    assert len(found._code) < MOST_CODES + 4 * WINDOW  # a bound is not visible from outside
    assert len(found._jobs) == 1
    assert np.exp(found.said(["old"])["old"][MIDDLE]) == pytest.approx(3.0 * OUTLIVED_S, rel=0.25)
