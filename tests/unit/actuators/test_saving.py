"""A checkpoint is asked for before work is stopped."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pytest

from actuators.kubernetes.actuator import KubernetesActuator
from autopilot.contract.annotations import CHECKPOINT_ACK, CHECKPOINT_REQUEST, HEARTBEAT, HEARTBEAT_OLD_S
from autopilot.core.model.records import Cause, Instruction, OutcomeKind
from autopilot.core.model.stops import Save, StopReason
from tests.kits.acting_kit import PODS, Acting, Silent, evict

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
    assert (outcome.cause, "it cannot be asked for a checkpoint" in outcome.reason) == (Cause.UNASKED, True)
    acting.finish("cut-off")


def test_work_whose_pods_cannot_be_read_is_not_stopped_without_its_checkpoint(acting: Acting) -> None:
    """It is not known whether it saves: it is asked after the outage."""
    _, instruction = saving(acting, "kept", Save.TRY)
    api = Silent(acting.rights.access("evict"))
    actuator = KubernetesActuator(api, acting)
    assert actuator.apply(instruction, acting.now_s).kind == OutcomeKind.ACCEPTED
    assert not acting.job("kept")["spec"].get("suspend")
    api.silent = False
    acting.run(12)
    assert actuator.advance(acting.now_s, 1, [instruction]) == ()
    (pod,) = acting.pods("kept")
    assert CHECKPOINT_REQUEST in pod["metadata"]["annotations"]
    acting.finish("kept")


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


class Reported:
    """What a Prometheus knows of training programs (port `Reports`)."""

    def __init__(self, request: str = "", pod: str = "", beat_s: float | None = None) -> None:
        self._ack, self._pod, self._beat_s = request, pod, beat_s

    def acknowledged(self, request: str, pods: Collection[tuple[str, str]]) -> bool:
        """Whether the pod acknowledged it."""
        return request == self._ack and ("default", self._pod) in pods

    def heartbeats_s(self, pods: Collection[tuple[str, str]]) -> dict[tuple[str, str], float]:
        """Its heartbeat."""
        return {each: self._beat_s for each in pods if self._beat_s is not None}


def test_an_acknowledgement_by_metric_counts(acting: Acting) -> None:
    """Only of a pod of the work, and only for this request."""
    _, instruction = saving(acting, "metric", Save.MUST)
    (pod,) = acting.pods("metric")
    actuator = acting.actuator()
    actuator.apply(instruction, acting.now_s)
    for reports in (Reported("1/p/w", "another"), Reported("2/p/w", pod["metadata"]["name"])):
        actuator.of("evict").read_reports(reports)
        assert actuator.advance(acting.now_s, 1, [instruction]) == ()
        assert not acting.job("metric")["spec"].get("suspend")
    actuator.of("evict").read_reports(Reported("1/p/w", pod["metadata"]["name"]))
    actuator.advance(acting.now_s, 1, [instruction])
    assert acting.job("metric")["spec"]["suspend"]
    acting.finish("metric")


@pytest.mark.parametrize("way", ["annotation", "metric"])
def test_a_trainer_whose_heartbeat_is_old_is_not_saving(acting: Acting, way: str) -> None:
    """It is not asked: work that must save keeps its place at once, other work is stopped at once."""
    name = f"hangs-{way}"
    for save, kind in ((Save.MUST, OutcomeKind.DECLINED), (Save.TRY, OutcomeKind.ACCEPTED)):
        _, instruction = saving(acting, name, save)
        old_s = acting.now_s - HEARTBEAT_OLD_S - 60.0
        (pod,) = acting.pods(name)
        path = f"{PODS}/{pod['metadata']['name']}"
        actuator = acting.actuator()
        if way == "annotation":
            acting.ask("PATCH", path, {"metadata": {"annotations": {HEARTBEAT: f"{old_s:.3f}"}}})
        else:
            actuator.of("evict").read_reports(Reported(beat_s=old_s))
        outcome = actuator.apply(instruction, acting.now_s)
        assert outcome.kind == kind
        assert CHECKPOINT_REQUEST not in acting.ask("GET", path)["metadata"].get("annotations", {})
        assert bool(acting.job(name)["spec"].get("suspend")) == (save == Save.TRY)
        if save == Save.MUST:
            assert outcome.cause == Cause.UNSAVED
            assert "the last heartbeat of pod" in outcome.reason
        acting.finish(name)


@pytest.mark.parametrize(
    ("reason", "kind"), [(StopReason.PREEMPT, OutcomeKind.DECLINED), (StopReason.RECLAIM, OutcomeKind.ACCEPTED)]
)
def test_a_request_that_cannot_be_written_keeps_work_that_may_be_stopped_too(
    acting: Acting, reason: StopReason, kind: OutcomeKind
) -> None:
    """It was priced as work that saves. Work that is stopped by contract is stopped in any case."""
    uid = acting.plain_job("unwritten", annotations=SAVES)
    stop = evict(reason, grace_s=200.0, save=Save.TRY)
    instruction = acting.instruction(uid, stop, deadline_s=acting.now_s + 260.0)
    acting.kueue.kueue.stop()
    outcome = acting.actuator().apply(instruction, acting.now_s)
    acting.kueue.kueue.restart()
    assert outcome.kind == kind
    if kind == OutcomeKind.DECLINED:
        assert outcome.cause == Cause.UNASKED
        assert "counts as not saving" in outcome.reason
    acting.finish("unwritten")
