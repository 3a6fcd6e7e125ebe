"""A checkpoint is asked for before work is stopped."""

from __future__ import annotations

import json
from typing import Any

from autopilot.contract.annotations import CHECKPOINT_ACK, CHECKPOINT_REQUEST
from autopilot.core.model.operations import Save
from autopilot.core.model.records import Instruction, OutcomeKind
from tests.kits.acting_kit import PODS, Acting, evict

SAVES = {"gpu-autopilot.io/checkpoint-on-request": "true"}


def saving(acting: Acting, name: str, save: Save, grace_s: float = 200.0, **more: Any) -> tuple[str, Instruction]:
    """A running Job that saves on request, and the instruction to stop it."""
    uid = acting.plain_job(name, annotations={**SAVES, **more})
    deadline_s = acting.now_s + grace_s + 60.0
    return uid, acting.instruction(uid, evict(grace_s=grace_s, save=save), deadline_s=deadline_s)


def answer(acting: Acting, name: str, number: str) -> None:
    """The trainer reports its checkpoint."""
    (pod,) = acting.pods(name)
    ack = json.dumps({"id": number, "step": 7, "path": "/ckpt/7", "at": acting.now_s})
    acting.ask("PATCH", f"{PODS}/{pod['metadata']['name']}", {"metadata": {"annotations": {CHECKPOINT_ACK: ack}}})


def test_work_is_stopped_once_it_has_saved(acting: Acting) -> None:
    """The request has id and deadline; the Job is suspended after the answer, and not before."""
    _, instruction = saving(acting, "saves", Save.MUST)
    actuator = acting.actuator()
    assert "it was asked for a checkpoint" in actuator.apply(instruction, acting.now_s).reason
    (pod,) = acting.pods("saves")
    request = json.loads(pod["metadata"]["annotations"][CHECKPOINT_REQUEST])
    assert request == {"id": "1/p/w", "deadline": round(acting.now_s + 200.0, 3)}
    acting.run(30)
    answer(acting, "saves", "another")
    assert actuator.advance(acting.now_s, 1, [instruction]) == ()
    assert not acting.job("saves")["spec"].get("suspend")
    answer(acting, "saves", "1/p/w")
    actuator.advance(acting.now_s, 1, [instruction])
    assert acting.job("saves")["spec"]["suspend"]
    acting.finish("saves")


def test_a_new_leader_keeps_the_deadline_of_the_request(acting: Acting) -> None:
    """It resumes the effect and does not ask again."""
    _, instruction = saving(acting, "resumed", Save.TRY)
    acting.actuator().apply(instruction, acting.now_s)
    acting.run(150)
    other = acting.actuator()
    assert other.advance(acting.now_s, 2, [instruction]) == ()
    acting.run(55)
    other.advance(acting.now_s, 2, [instruction])
    assert acting.job("resumed")["spec"]["suspend"]
    acting.finish("resumed")


def test_work_that_must_save_and_does_not_keeps_its_place(acting: Acting) -> None:
    """At the deadline the effect is declined and the request is taken back."""
    _, instruction = saving(acting, "silent", Save.MUST)
    actuator = acting.actuator()
    actuator.apply(instruction, acting.now_s)
    acting.run(201)
    (outcome,) = actuator.advance(acting.now_s, 1, [instruction])
    assert (outcome.kind, "has not reported a checkpoint" in outcome.reason) == (OutcomeKind.DECLINED, True)
    (pod,) = acting.pods("silent")
    assert CHECKPOINT_REQUEST not in pod["metadata"].get("annotations", {})
    assert not acting.job("silent")["spec"].get("suspend")
    acting.finish("silent")


def test_a_request_that_cannot_be_written_declines(acting: Acting) -> None:
    """While Kueue's webhooks refuse writes to pods, work that must save keeps its place."""
    _, instruction = saving(acting, "cut-off", Save.MUST)
    acting.kueue.kueue.stop()
    outcome = acting.actuator().apply(instruction, acting.now_s)
    acting.kueue.kueue.restart()
    assert outcome.kind == OutcomeKind.DECLINED
    assert "the request for a checkpoint cannot be written" in outcome.reason
    acting.finish("cut-off")


def test_a_short_grace_relies_on_the_signal(acting: Acting) -> None:
    """With less than 180 s, work is stopped where its pods have the time that it declares to need; else it stays."""
    for name, write_s, kind in (("quick", "20", OutcomeKind.ACCEPTED), ("slow", "90", OutcomeKind.DECLINED)):
        _, instruction = saving(acting, name, Save.MUST, 120.0, **{"gpu-autopilot.io/checkpoint-write-s": write_s})
        assert acting.actuator().apply(instruction, acting.now_s).kind == kind
        assert bool(acting.job(name)["spec"].get("suspend")) == (kind == OutcomeKind.ACCEPTED)
        acting.finish(name)


def test_work_that_does_not_save_on_request_is_stopped_at_once(acting: Acting) -> None:
    """Nothing is asked of it."""
    uid = acting.plain_job("plain")
    outcome = acting.actuator().apply(acting.instruction(uid, evict(grace_s=200.0)), acting.now_s)
    assert outcome.reason == "its pods stop"
    acting.finish("plain")
