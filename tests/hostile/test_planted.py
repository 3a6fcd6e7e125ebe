"""Defects put back on purpose: the hostile world finds each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from autopilot.core.decision import planner, reconciler, sending
from autopilot.core.guards import mode
from autopilot.core.intake import sight
from autopilot.core.model.changes import Change
from tests.hostile.machine import Hostile

SEEDS = 6
RUNS = 25
"""A planted defect must show within this number of seeds and of runs."""


def found(words: str) -> str:
    """The first violation that names one of `words` ("|" between them); "" when there is none."""
    rules = settings(
        max_examples=RUNS,
        stateful_step_count=50,
        deadline=None,
        database=None,
        print_blob=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for number in range(SEEDS):
        try:
            run_state_machine_as_test(seed(number)(Hostile), settings=rules)
        except Exception as error:  # noqa: BLE001 - any way in which it shows
            if any(word in str(error) for word in words.split("|")):
                return str(error)
    return ""


def sees_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick with a partial or missing view is taken for a complete one."""
    look = reconciler.look  # type: ignore[attr-defined]
    monkeypatch.setattr(reconciler, "look", lambda *given: replace(look(*given), blind=""))


def believes_any_shrinkage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that lost most of its objects is believed at once."""
    monkeypatch.setattr(sight, "_suspicion", lambda *_: "")


def sends_again_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent again, and what starts late, is asked nothing."""
    monkeypatch.setattr(sending.Sender, "_ask", lambda *_: None)


def approves_any_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """An approval does not say where a victim goes."""
    digest: Callable[..., str] = planner._state_digest
    monkeypatch.setattr(
        planner, "_state_digest", lambda draft, subject, _change, ctx: digest(draft, subject, Change(), ctx)
    )


def approves_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """An approval neither expires nor ends when the price moves."""
    monkeypatch.setattr(mode, "approval_ended", lambda *_: None)


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (sees_everything, ""),  # it shows in many ways
        (believes_any_shrinkage, "after the list shrank"),
        (sends_again_unchecked, "the mode of|opted out|protected|not preemptible|is over"),
        (approves_any_state, "approved for another state"),
        (approves_for_ever, "expired|more than was approved|less than was approved"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_planted_defect_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them shows as the violation that it is."""
    plant(monkeypatch)
    assert found(words)
