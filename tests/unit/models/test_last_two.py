"""The last-two model: what it says, what it learns from its own errors, where it is silent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from autopilot.core.model.forecast import LEVELS, RuntimeForecast
from autopilot.core.model.snapshot import State
from models.last_two import FIRST_SPREAD, LastTwo
from tests.kits.core_world import Item, snapshot, waits

MEDIAN = LEVELS.index(0.5)


def ended(name: str, ran_s: float, gpus: int = 1, **columns: object) -> Item:
    """A job that is over."""
    return Item(name, {"gpus": gpus, "state": State.SUCCEEDED, "served_s": ran_s, "ended_s": 0.0, **columns})


def taught(jobs: Sequence[Item]) -> LastTwo:
    """A model that saw these end, one at a time."""
    model = LastTwo()
    for number, job in enumerate(jobs):
        model.update(float(number), snapshot("1x8", [job]))
    return model


def asked(model: LastTwo, *items: Item) -> RuntimeForecast:
    """Its forecast for work that waits."""
    found = model.forecast(0.0, snapshot("1x8", items)).runtimes
    assert found is not None
    return found


def test_it_is_silent_before_anything_ended() -> None:
    """No history, no forecast."""
    found = asked(LastTwo(), waits("new"))
    assert not found.known[0]
    assert np.isnan(found.total_s[0]).all()


def test_the_middle_is_the_mean_of_the_last_two_in_logs() -> None:
    """400 s and 900 s: near 600 s, a little more for the one error that was seen; full belief at the beginning."""
    found = asked(taught([ended("b", 400.0, 4), ended("c", 900.0, 4)]), waits("new", 4))
    assert found.history[0] == 2
    assert found.total_s[0, MEDIAN] == pytest.approx(600.0, rel=0.15)


def test_the_spread_begins_as_a_guess_and_follows_the_errors() -> None:
    """At first log-normal by FIRST_SPREAD; after many errors their own quantiles, as skewed as they are."""
    assert LastTwo().spread[LEVELS.index(0.95)] == pytest.approx(1.645 * FIRST_SPREAD, rel=0.01)
    rng = np.random.default_rng(7)
    times = np.where(rng.random(900) < 0.1, 100_000.0, 100.0)  # one in ten runs a thousand times longer
    model = taught([ended(f"j{n}", float(ran_s)) for n, ran_s in enumerate(times.tolist())])
    spread = model.spread
    assert (np.diff(spread) >= 0).all()
    assert spread[LEVELS.index(0.99)] - spread[MEDIAN] > 2 * (spread[MEDIAN] - spread[0])


def test_the_spread_is_that_of_the_last_errors_alone() -> None:
    """A thousand wild errors are forgotten after a thousand tame ones."""
    rng = np.random.default_rng(3)
    wild = np.exp(rng.normal(6.0, 2.0, 600))
    model = taught([ended(f"w{n}", float(ran_s)) for n, ran_s in enumerate(wild.tolist())])
    before = model.spread[-1]
    for number in range(1100):
        model.update(1e6 + number, snapshot("1x8", [ended(f"t{number}", 500.0)]))
    assert before > 3.0
    assert abs(model.spread[-1]) < 0.2


def test_a_job_keeps_its_first_forecast() -> None:
    """What ends later moves the forecast of later jobs only; what was learned of errors moves both alike."""
    model = taught([ended("a", 100.0)])
    asked(model, waits("new"))
    model.update(5.0, snapshot("1x8", [ended("b", 400.0)]))
    new, other = asked(model, waits("new"), waits("other")).total_s[:, MEDIAN]
    assert other == pytest.approx(2 * new)


def test_a_tenant_is_known_by_its_name() -> None:
    """Another order of the tenants, as after a restart of the source, gives nobody the run times of others."""
    model = taught([ended("a", 100.0, tenant=0), ended("b", 90_000.0, tenant=1)])
    there = snapshot("1x8", [waits("new", tenant=1)], tenants=("t1", "t0"))
    found = model.forecast(0.0, there).runtimes
    assert found is not None
    assert found.total_s[0, MEDIAN] < 1000.0
