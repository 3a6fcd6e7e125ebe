"""The one way to write, and what refusals mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.api import Answer, Api, Obj, Ref, Refusal, answer_of
from actuators.kubernetes.upkeep import EVERY_S, GONE_S, ActiveCheck, OldPlacements
from actuators.kubernetes.writing import Stop, Writer
from autopilot.contract.annotations import CHECK, EFFECT, EPOCH
from autopilot.core.model.records import OutcomeKind
from autopilot.core.model.stops import StopReason
from tests.kits.acting_kit import Acting, admit, evict
from tests.kits.kueue_kit import JOBS, ROOT, SPACE


@pytest.mark.parametrize(
    ("status", "body", "refusal"),
    [
        (404, {"message": 'pods "a" not found'}, Refusal.GONE),
        (409, {"message": "Operation cannot be fulfilled: the object has been modified"}, Refusal.CHANGED),
        (409, {"message": "Precondition failed: UID in precondition: a, UID in object meta: b"}, Refusal.OTHER_OBJECT),
        (422, {"message": "metadata.uid: Invalid value: field is immutable"}, Refusal.OTHER_OBJECT),
        (422, {"message": "spec.template: field is immutable"}, Refusal.INVALID),
        (403, {"message": 'admission webhook "vjob.kb.io" denied the request: no'}, Refusal.WEBHOOK),
        (422, {"message": "ValidatingAdmissionPolicy 'x' with binding 'x' denied request: no"}, Refusal.WEBHOOK),
        (403, {"message": "ValidatingAdmissionPolicy 'gpu-autopilot-fence' denied request: old"}, Refusal.FENCED),
        (403, {"message": 'pods is forbidden: User "u" cannot patch resource "pods"'}, Refusal.RIGHT),
        (429, {"message": "no", "details": {"causes": [{"reason": "DisruptionBudget"}]}}, Refusal.BUDGET),
        (429, "Too many requests, please try again later.", Refusal.BUSY),
        (500, {"message": 'failed calling webhook "mjob.kb.io": connection refused'}, Refusal.WEBHOOK_DOWN),
        (500, {"message": "failed to create typed patch object"}, Refusal.SERVER),
        (500, {"message": "etcdserver: request timed out"}, Refusal.UNREACHABLE),
        (500, {"message": "etcdserver: leader changed"}, Refusal.UNREACHABLE),
        (500, {"message": "etcdserver: no leader"}, Refusal.UNREACHABLE),
        (500, {"message": "etcdserver: request is too large"}, Refusal.SERVER),
        (500, {"message": "rpc error: code = Unavailable desc = transport is closing"}, Refusal.UNREACHABLE),
        (500, {"message": 'admission webhook "w" denied the request: etcdserver: no leader'}, Refusal.WEBHOOK),
        (400, {"message": 'admission webhook "kyverno" denied the request: no'}, Refusal.WEBHOOK),
        (400, {"message": "the body is not JSON"}, Refusal.INVALID),
        (403, {"message": 'pods "a" is forbidden: exceeded quota: gpus, requested: 8'}, Refusal.WEBHOOK),
        (403, {"message": 'x "a" is forbidden: unable to create because it is being terminated'}, Refusal.GONE),
        (403, "Forbidden", Refusal.RIGHT),
        (500, {"message": "conversion webhook for kueue.x-k8s.io/v1beta1 failed: refused"}, Refusal.WEBHOOK_DOWN),
        (500, {"message": "This pod has more than one PodDisruptionBudget, which ..."}, Refusal.BUDGET),
        (500, {"reason": "ServerTimeout", "message": "could not be completed"}, Refusal.UNREACHABLE),
        (503, "apiserver is shutting down", Refusal.UNREACHABLE),
    ],
)
def test_refusals_are_told_apart(status: int, body: Any, refusal: Refusal) -> None:
    """By code, and by text where the code means several things."""
    content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    assert answer_of(status, content).refusal == refusal


def test_a_server_that_asks_to_try_again_is_waited_for() -> None:
    """A 500 with Retry-After is no failure of the instruction; other answers mean what they mean without it."""
    body = b'{"message": "the server was unable to respond"}'
    assert [answer_of(500, body, after).refusal for after in ("", "3")] == [Refusal.SERVER, Refusal.UNREACHABLE]
    assert answer_of(409, b'{"message": "modified"}', "3").refusal == Refusal.CHANGED


def job_ref(acting: Acting, name: str) -> Ref:
    """A Job as it is now."""
    return Ref("Job", "default", name, acting.job(name)["metadata"]["uid"])


def test_a_write_of_somebody_else_in_between_is_noticed(acting: Acting) -> None:
    """The step is decided again on the new object, and nothing of the other write is lost."""
    acting.plain_job("shared", suspend=True)
    seen: list[str] = []

    def decide(found: Obj) -> Obj:
        seen.append(found["metadata"].get("labels", {}).get("theirs", ""))
        if len(seen) == 1:
            acting.ask("PATCH", f"{JOBS}/shared", {"metadata": {"labels": {"theirs": "1"}}})
        return {"metadata": {"annotations": {EFFECT: str(len(seen))}}}

    answer = Writer(Api(acting.rights.access("admit"))).change(job_ref(acting, "shared"), decide, 3)
    assert (answer.ok, seen) == (True, ["", "1"])
    meta = acting.job("shared")["metadata"]
    assert (meta["labels"]["theirs"], meta["annotations"][EFFECT], meta["annotations"][EPOCH]) == ("1", "2", "3")
    acting.finish("shared")


def test_a_trial_writes_nothing_and_neither_does_a_stop(acting: Acting) -> None:
    """`dry` only asks the server; a `Stop` does not even ask."""
    acting.plain_job("kept", suspend=True)
    writer, version = Writer(Api(acting.rights.access("admit"))), acting.job("kept")["metadata"]["resourceVersion"]
    assert writer.change(
        job_ref(acting, "kept"), lambda _: {"metadata": {"annotations": {EFFECT: "b"}}}, 1, dry=True
    ).ok
    assert writer.change(job_ref(acting, "kept"), lambda _: Stop("nothing to do", done=True), 1).ok
    stopped = writer.change(job_ref(acting, "kept"), lambda _: Stop("no", refusal=Refusal.GONE), 1)
    assert (stopped.refusal, stopped.message) == (Refusal.GONE, "no")
    assert acting.job("kept")["metadata"]["resourceVersion"] == version
    acting.finish("kept")


def test_an_object_that_was_replaced_under_way_is_left_alone(acting: Acting) -> None:
    """A request names the uid: the new object of the name is not written."""
    acting.plain_job("replaced", suspend=True)
    ref = job_ref(acting, "replaced")
    acting.finish("replaced")
    acting.plain_job("replaced", suspend=True)
    answer = Writer(Api(acting.rights.access("admit"))).change(ref, lambda _: {"spec": {"suspend": False}}, 1)
    assert answer.refusal == Refusal.OTHER_OBJECT
    assert acting.job("replaced")["spec"]["suspend"]
    acting.finish("replaced")


def test_a_check_that_somebody_else_writes_is_a_conflict(acting: Acting) -> None:
    """A person rejects the Workload by hand while it waits for our instruction: it is not admitted over that."""
    uid = acting.waiting_job("rejected", 8)
    name = acting.workload("rejected")["metadata"]["name"]
    state = {"name": CHECK, "state": "Rejected", "message": "by hand", "lastTransitionTime": "2026-11-23T00:00:00Z"}
    acting.ask("PATCH", f"{SPACE}/workloads/{name}/status", {"status": {"admissionChecks": [state]}})
    acting.run(2)
    revision = acting.revision(uid)
    outcome = acting.actuator().apply(acting.instruction(uid, admit("n1"), revision=revision), acting.now_s)
    assert outcome.kind == OutcomeKind.CONFLICT
    assert not any(each["spec"].get("nodeName") for each in acting.pods("rejected"))
    acting.finish("rejected")


def test_nothing_is_written_while_the_kill_switch_is_on(acting: Acting) -> None:
    """Without a fence effects under way stand; they go on afterwards."""
    uid = acting.waiting_job("held", 8, gate="gpu-autopilot.io/admission")
    actuator, instruction = acting.actuator(), acting.instruction(uid, admit("n1"))
    actuator.apply(instruction, acting.now_s)
    acting.run(2)
    assert actuator.advance(acting.now_s, None, [instruction]) == ()
    (check,) = acting.workload("held")["status"]["admissionChecks"]
    assert check["state"] == "Pending"
    actuator.advance(acting.now_s, 1, [instruction])
    (check,) = acting.workload("held")["status"]["admissionChecks"]
    assert check["state"] == "Ready"
    acting.finish("held")


def test_a_running_gang_survives_that_nobody_waits_for_it_any_more(acting: Acting) -> None:
    """The controller has seen it start: what has come about is not taken back."""
    uid = acting.waiting_job("started", 8)
    actuator = acting.actuator()
    actuator.apply(acting.instruction(uid, admit("n1")), acting.now_s)
    acting.run(5)
    assert actuator.advance(acting.now_s, 1, ()) == ()
    acting.run(10)
    assert [each["status"]["phase"] for each in acting.pods("started")] == ["Running"]
    acting.finish("started")


class Cut(Api):
    """An API server that is shutting down."""

    def read(self, ref: Ref) -> Answer:
        """No object can be read."""
        return answer_of(503, f"{ref.shown}: shutting down".encode())


def test_an_api_server_that_does_not_answer_is_waited_out(acting: Acting) -> None:
    """The effect stays under way, and nothing is asked for some seconds."""
    uid = acting.running_job("cut", "n1")
    said: list[str] = []
    actuator = KubernetesActuator(Cut(acting.rights.access("evict")), acting, on_problem=said.append)
    outcome = actuator.apply(acting.instruction(uid, evict(StopReason.RESTART)), acting.now_s)
    assert outcome.kind == OutcomeKind.ACCEPTED
    assert len(said) == 1
    assert acting.kueue.condition("cut", "Evicted")[0] != "True"
    acting.finish("cut")


def test_our_check_is_kept_active(acting: Acting) -> None:
    """It is set where it is missing, and the check of another controller is left alone."""
    path = f"{ROOT}/admissionchecks/{CHECK}/status"
    off = {
        "type": "Active",
        "status": "False",
        "reason": "Off",
        "message": "",
        "lastTransitionTime": "2026-11-23T00:00:00Z",
    }
    acting.ask("PATCH", path, {"status": {"conditions": [off]}})
    keep, tools = ActiveCheck(), acting.tools()
    keep.run(tools, 4, acting.now_s)
    assert acting.check_is_active()
    acting.ask("PATCH", path, {"status": {"conditions": [off]}})
    keep.run(tools, 4, acting.now_s + EVERY_S / 2)
    assert not acting.check_is_active()
    keep.run(tools, 4, acting.now_s + EVERY_S)
    assert acting.check_is_active()


def test_labels_of_gangs_that_are_gone_are_removed(acting: Acting) -> None:
    """Not at once: the view may have lost the gang for a moment. Labels of gangs that live stay."""
    acting.running_job("wide", "n1", "n2")
    keep, tools = OldPlacements(), acting.tools()
    start_s = acting.now_s
    keep.run(tools, 1, start_s)
    keep.run(tools, 1, start_s + GONE_S)
    assert len(list(acting.placed())) == 2
    acting.finish("wide")
    for elapsed_s, left in ((GONE_S + EVERY_S, 2), (2 * GONE_S, 2), (2 * GONE_S + EVERY_S, 0)):
        keep.run(tools, 1, start_s + elapsed_s)
        assert len(list(acting.placed())) == left


class Deletes(Api):
    """Keeps whether each deletion was only tried."""

    tried: list[bool]

    def delete(self, path: str, body: Any, query: Mapping[str, str] | None = None) -> Answer:
        """As it is sent."""
        self.tried.append(bool(query) and bool(body.get("dryRun")))
        return super().delete(path, body, query)


def test_a_deletion_is_tried_first(acting: Acting) -> None:
    """One that the server refuses is not sent: here it is no object of ours."""
    acting.plain_job("own", suspend=True)
    api, path = Deletes(acting.rights.access("provision")), f"{JOBS}/own"
    api.tried = []
    assert not Writer(api).delete(path, {"preconditions": {"uid": "another"}}).ok
    assert api.tried == [True]
    assert acting.job("own")
    acting.finish("own")
