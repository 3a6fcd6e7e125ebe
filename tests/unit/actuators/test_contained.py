"""Objects that say anything: their own effects fail, and those of others go on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from actuators.kubernetes.levers import LEVERS
from autopilot.contract.annotations import CHECKPOINT_REQUEST, EFFECT, MANAGE, STOPPED
from autopilot.core.model.records import OutcomeKind
from tests.kits.acting_kit import Acting, admit

DEEP = "[" * 3000
RECORDS = (EFFECT, STOPPED, CHECKPOINT_REQUEST)


@pytest.mark.parametrize("text", [DEEP, '{"selector": 7, "id": 7, "gpus": 7}', '{"selector": {"a": [1]}}'])
def test_a_job_with_a_broken_record_of_ours_starts_as_without_it(acting: Acting, text: str) -> None:
    """A text that is no record of ours says nothing."""
    uid = acting.plain_job("bad", suspend=True, labels={MANAGE: "true"}, annotations=dict.fromkeys(RECORDS, text))
    outcome = acting.actuator().apply(acting.instruction(uid, admit("n2")), acting.now_s)
    assert outcome.kind == OutcomeKind.ACCEPTED, outcome.reason
    acting.run(3)
    acting.finish("bad")


def test_an_effect_that_raises_fails_alone(acting: Acting) -> None:
    """Its outcome names the error; the other effect is followed to its end."""
    bad = acting.plain_job("bad", suspend=True, labels={MANAGE: "true"})
    good = acting.plain_job("good", suspend=True, labels={MANAGE: "true"})
    broken = False

    def step(inner: Any) -> Any:
        def stepped(tools: Any, effect: Any, target: Any, now_s: float) -> Any:
            if broken and effect.instruction.subject.uid == bad:
                raise RecursionError("too deep")
            return inner(tools, effect, target, now_s)

        return stepped

    actuator = acting.actuator(levers=[replace(each, step=step(each.step)) for each in LEVERS])
    sent = [acting.instruction(bad, admit("n1")), replace(acting.instruction(good, admit("n2")), id="1/p/g")]
    for each in sent:
        assert actuator.apply(each, acting.now_s).kind == OutcomeKind.ACCEPTED
    broken = True
    acting.run(3)
    outcomes = {each.instruction_id: each for each in actuator.advance(acting.now_s, 1, sent)}
    assert outcomes[sent[0].id].reason == "RecursionError: too deep"
    assert sent[1].id not in outcomes or outcomes[sent[1].id].kind == OutcomeKind.DONE
