"""The controller acts through the API alone, and reaches what it reaches when it acts on the simulator."""

from __future__ import annotations

import pytest

from benchmarks.playground_acting import GOAL_RATIO, RESOLUTION_S, compare, policy_of


def test_ten_minutes_of_quickstart_are_as_in_the_simulation() -> None:
    """Mean wait, lost work and starts; no invariant is broken, and API and world agree all the time."""
    one, other = compare("quickstart", 1 / 6, policy_of())
    assert one.started == other.started > 10
    assert other.mean_wait_s == pytest.approx(one.mean_wait_s, rel=GOAL_RATIO, abs=RESOLUTION_S)
    assert other.lost_gpu_s == pytest.approx(one.lost_gpu_s, rel=GOAL_RATIO)
    assert one.violations == other.violations == ()
    assert other.disagreements == 0
    assert other.outcomes == ()
