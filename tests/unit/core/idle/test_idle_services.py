"""How far an idle service may be reduced."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from autopilot.core.idle.services import kept_replicas
from autopilot.core.model.snapshot import ServiceTable, make
from tests.kits.idle_world import QUICK

ALLOWED = {"min_replicas": 0, "wake_rps": 0.0, "wake_age_s": 10.0}


def _kept(**columns: Any) -> tuple[int, str]:
    given = {name: [value] for name, value in (ALLOWED | columns).items()}
    return kept_replicas(make(ServiceTable, id=["chat"], uid=["chat"], **given), 0, QUICK)


def test_zero_needs_the_owners_word_and_a_signal_that_is_seen() -> None:
    """A minimum of 0, a signal that is named, and a fresh value of it without requests."""
    assert _kept() == (0, "its owner allows zero, and the signal that wakes it is seen")


@pytest.mark.parametrize(
    ("columns", "kept", "why"),
    [
        ({"min_replicas": 2}, 2, "its owner keeps at least that"),
        ({"wake_age_s": nan}, 1, "names no signal that would wake it"),
        ({"wake_age_s": inf}, 1, "was never seen"),
        ({"wake_age_s": 4000.0}, 1, "was last seen 1 h 6 min ago"),
        ({"wake_age_s": -5.0}, 1, "was last seen"),
        ({"wake_rps": 0.01}, 1, "requests for it arrive"),
        ({"wake_rps": nan}, 1, "requests for it arrive"),
    ],
)
def test_in_doubt_a_replica_stays(columns: dict[str, float], kept: int, why: str) -> None:
    """Each missing condition alone keeps one."""
    assert _kept(**columns)[0] == kept
    assert why in _kept(**columns)[1]
