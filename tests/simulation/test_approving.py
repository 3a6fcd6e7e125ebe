"""A person who looks now and then: what is approved is carried out, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from autopilot.app.runs.people import Somebody
from autopilot.core.guards import mode
from benchmarks.approvals import play

SCENARIO = "quickstart"


def test_what_a_person_approved_is_carried_out_and_nothing_else() -> None:
    """Also what was read minutes ago, while other work started and ended."""
    person, _ = play(SCENARIO, 0, Somebody)
    carried = [each for each in person.given if each.plans]
    left = [each for each in person.given if not each.plans and each.waits]
    assert person.outside == []
    assert len(carried) >= 3
    assert len(left) <= 0.05 * len(carried)


def test_an_effect_that_nobody_approved_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted defect: an approval of one recommendation lets all others pass."""

    def anything(approvals: dict[str, Any], _proposal: Any) -> Any:
        return next(iter(approvals.values()), None)

    monkeypatch.setattr(mode, "approval_of", anything)
    monkeypatch.setattr(mode, "outside", lambda *_: None)
    person, _ = play(SCENARIO, 0, Somebody)
    assert person.outside
