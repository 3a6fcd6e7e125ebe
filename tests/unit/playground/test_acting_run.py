"""The controller acts through the API alone, and reaches what it reaches when it acts on the simulator."""

from __future__ import annotations

import numpy as np
import pytest

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.world import build_world
from tests.kits.playground_acting import APART_S, GOAL_RATIO, RESOLUTION_S, compare, one_by_one, policy_of


def test_no_two_arrivals_come_at_one_moment() -> None:
    """They keep their order, and none comes earlier."""
    world = build_world(SimulateOptions(scenario="reclaim-storm"))
    before, after = np.array(world.jobs().submit_s), np.array(one_by_one(world).jobs().submit_s)
    order = np.argsort(before, kind="stable")
    assert np.count_nonzero(np.diff(before[order]) == 0.0) > 10
    assert (np.diff(after[order]) >= APART_S).all()
    assert (after >= before).all()


@pytest.mark.parametrize("without", [pytest.param((), marks=pytest.mark.soak), ("vision",)])
def test_ten_minutes_of_quickstart_are_as_in_the_simulation(without: tuple[str, ...]) -> None:
    """Mean wait, lost work and starts; no invariant is broken, and API and world agree all the time.

    So it is where a tenant does not use Kueue.
    """
    one, other = compare("quickstart", 1 / 6, policy_of(), without=without)
    assert one.started == other.started > 10
    assert other.mean_wait_s == pytest.approx(one.mean_wait_s, rel=GOAL_RATIO, abs=RESOLUTION_S)
    assert other.lost_gpu_s == pytest.approx(one.lost_gpu_s, rel=GOAL_RATIO)
    assert one.violations == other.violations == ()
    assert other.disagreements == 0
    assert other.outcomes == ()
