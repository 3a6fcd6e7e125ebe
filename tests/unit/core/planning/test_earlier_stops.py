"""How long work is left to run after it was stopped for other work."""

from __future__ import annotations

import numpy as np
import pytest

from autopilot.core.model.policy.bounds import Protection
from autopilot.core.planning.earlier_stops import earlier_stops
from tests.kits.core_world import holds, snapshot

NOW_S, RULES = 10_000.0, Protection(min_runtime_s=900.0, most_stops=4)


@pytest.mark.parametrize(
    ("stops", "end_s", "guaranteed_s"),
    [
        (0, NOW_S + 90_000.0, 900.0),  # nobody stopped it yet
        (1, NOW_S + 90_000.0, 19_800.0),  # of 99,000 s: three more stops make five parts
        (3, NOW_S + 90_000.0, 33_000.0),
        (3, NOW_S + 600.0, 3200.0),
        (1, NOW_S - 8800.0, 900.0),  # what is left is short
        (1, np.inf, 4000.0),  # unknown: it has done 12,000 s before this run
    ],
)
def test_the_stops_that_are_left_are_spread_over_the_rest(stops: int, end_s: float, guaranteed_s: float) -> None:
    """It has run since 1000 s. The first stop may come at any time after the least run time."""
    work = snapshot("1x8", [holds("v", 8, start_s=1000.0, served_s=12_000.0)]).workloads
    found = earlier_stops(work, {"v": stops}, RULES, np.array([end_s]))
    assert (found.count[0], found.often[0], found.guaranteed_s[0]) == (stops, False, guaranteed_s)


def test_the_last_stop_is_the_last() -> None:
    """Also for work of unknown length."""
    work = snapshot("1x8", [holds("v", 8)]).workloads
    found = earlier_stops(work, {"v": 4}, RULES, np.array([np.inf]))
    assert found.often.all()
