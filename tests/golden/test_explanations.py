"""One explanation for each action, kind and reason, kept in a file: a change of any is seen and read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from autopilot.core.decision.reconciler import reconcile
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.modes import Mode
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Observation
from autopilot.explain.cases import CASES
from tests.golden.explanation_scenes import BUILT, REAL, Key
from tests.golden.refresh import FOLDER, explanation_of

GOLDEN: dict[str, list[str]] = json.loads((FOLDER / "words" / "explanations.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("key", sorted(CASES), ids=" ".join)
def test_the_explanation_is_the_one_on_file(key: Key) -> None:
    """Every case of the table has a golden explanation; `python -m tests.golden.refresh` writes the file."""
    assert key in REAL or key in BUILT, f"{key} has no scene in tests/golden/explanation_scenes.py"
    assert explanation_of(key) == GOLDEN[" ".join(key)]


def test_no_fact_is_missing_and_no_two_cases_read_alike() -> None:
    """Every field of a format string is on the record; only starts without victims share their words."""
    assert set(GOLDEN) == {" ".join(key) for key in CASES}
    texts = [" ".join(GOLDEN[" ".join(key)]) for key in CASES if key[2] != "leaving" and key[1] != "admit"]
    assert not [text for text in texts if "unknown" in text]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("key", sorted(REAL), ids=" ".join)
def test_an_action_that_is_switched_off_does_nothing(key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the scene in which it proposes, with its own mode off, it does not act, and the tick is as whole as ever."""

    def without(memory: ControllerMemory, observation: Observation, policy: Policy, **more: Any) -> Step:
        off = replace(policy, modes=replace(policy.modes, **{key[0]: Mode.OFF}))
        return reconcile(memory, observation, off, **more)

    monkeypatch.setattr("tests.kits.core_world.reconcile", without)
    step = REAL[key]()
    plan = step.decision.plan
    of = {each.id: each.action for each in plan.proposals}
    assert key[0] not in {of.get(each.proposal_id) for each in step.instructions}
    assert not [each for each in plan.proposals if each.action == key[0] and each.accepted]
    assert step.decision.halted == ""
