"""Levers on work of Kueue: its gate, Retry of our check, deactivation and return."""

from __future__ import annotations

import json

import pytest

from actuators.kubernetes.changes import GATED_BY
from actuators.kubernetes.levers.check_state import our_check
from apiserver.http.faults import QUIET, FaultPlan
from autopilot.contract.annotations import CHECK, CONTROLLER, STOPPED
from autopilot.core.model.records import Cause, OutcomeKind
from autopilot.core.model.stops import StopReason
from tests.kits.acting_kit import Acting, admit, evict
from tests.kits.kueue_kit import SPACE


def test_only_our_gate_is_removed(acting: Acting) -> None:
    """The gate of another controller stays on the Job and on its Workload; without it the gang would be admitted."""
    uid = acting.waiting_job("gated", 8, queue="free", gate=f"example.com/other,{CONTROLLER}")
    outcome = acting.actuator().apply(acting.instruction(uid, admit("n1")), acting.now_s)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.ACCEPTED, "Kueue admits it")
    for found in (acting.job("gated"), acting.workload("gated")):
        assert found["metadata"]["annotations"]["kueue.x-k8s.io/admission-gated-by"] == "example.com/other"
    assert acting.kueue.admitted() == set()
    acting.finish("gated")


def test_a_gate_and_then_our_check(acting: Acting) -> None:
    """A gang behind both is released, waits for its quota, and starts at its place."""
    uid = acting.waiting_job("both", 8, gate=CONTROLLER)
    actuator, instruction = acting.actuator(), acting.instruction(uid, admit("n2"))
    actuator.apply(instruction, acting.now_s)
    acting.run(2)
    assert actuator.advance(acting.now_s, 1, [instruction]) == ()
    acting.run(3)
    (pod,) = acting.pods("both")
    assert pod["spec"]["nodeName"] == "n2"
    acting.finish("both")


def test_a_moved_gang_returns_to_our_check(acting: Acting) -> None:
    """Retry without a delay: the pods stop, the quota is reserved again, and the gang starts elsewhere."""
    uid = acting.running_job("moved", "n1")
    actuator, stop = acting.actuator(), acting.instruction(uid, evict(StopReason.MOVE))
    assert actuator.apply(stop, acting.now_s).reason == "Kueue stops it"
    acting.run(5)
    workload = acting.workload("moved")
    (check,) = workload["status"]["admissionChecks"]
    assert (check["state"], check.get("requeueAfterSeconds")) == ("Pending", None)
    assert acting.kueue.condition("moved", "QuotaReserved")[0] == "True"
    assert actuator.advance(acting.now_s, 1, [stop]) == ()  # the view shows that it was stopped
    start = acting.instruction(uid, admit("n3"), number="2/p/w", revision=1)
    actuator.apply(start, acting.now_s)
    acting.run(40)
    running = [each["spec"]["nodeName"] for each in acting.pods("moved") if each["status"]["phase"] == "Running"]
    assert running == ["n3"]
    acting.finish("moved")


def test_a_stop_that_the_view_does_not_show_yet_is_no_conflict(acting: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kueue has stopped it and reserved its quota anew before the view told of the stop: our own Retry did that."""
    uid = acting.running_job("early", "n1")
    seen = acting.find("workload", uid)
    actuator, stop = acting.actuator(), acting.instruction(uid, evict(StopReason.MOVE))
    actuator.apply(stop, acting.now_s)
    acting.run(5)
    assert acting.kueue.condition("early", "Evicted")[0] == "False"
    monkeypatch.setattr(acting, "find", lambda *_: seen)
    assert actuator.advance(acting.now_s, 1, [stop]) == ()
    acting.finish("early")


def test_preempted_work_stays_out_until_it_is_admitted_again(acting: Acting) -> None:
    """It is deactivated with our mark; the next admission activates it and waits for its quota."""
    uid = acting.running_job("victim", "n1")
    actuator = acting.actuator()
    actuator.apply(acting.instruction(uid, evict()), acting.now_s)
    acting.run(40)
    workload = acting.workload("victim")
    assert workload["spec"]["active"] is False
    mark = json.loads(workload["metadata"]["annotations"][STOPPED])
    assert mark == {"uid": workload["metadata"]["uid"], "id": "1/p/w", "reason": "preempt", "returns": True}
    start = acting.instruction(uid, admit("n2"), number="2/p/w", revision=acting.revision(uid))
    assert actuator.apply(start, acting.now_s).reason == "Kueue puts it back in its queue"
    for _ in range(3):
        acting.run(3)
        actuator.advance(acting.now_s, 1, [start])
    running = [each["spec"]["nodeName"] for each in acting.pods("victim") if each["status"]["phase"] == "Running"]
    assert running == ["n2"]
    assert STOPPED not in acting.workload("victim")["metadata"]["annotations"]
    acting.finish("victim")


def test_work_that_a_person_deactivated_is_left_alone(acting: Acting) -> None:
    """Neither a stop nor a start touches it."""
    uid = acting.waiting_job("paused", 8)
    name = acting.workload("paused")["metadata"]["name"]
    acting.ask("PATCH", f"{SPACE}/workloads/{name}", {"spec": {"active": False}})
    acting.run(2)
    actuator, revision = acting.actuator(), acting.revision(uid)
    stopped = actuator.apply(acting.instruction(uid, evict(), revision=revision), acting.now_s)
    assert (stopped.kind, "somebody else has deactivated it" in stopped.reason) == (OutcomeKind.CONFLICT, True)
    started = actuator.apply(acting.instruction(uid, admit("n1"), number="2/p/w", revision=revision), acting.now_s)
    assert (started.kind, started.reason) == (OutcomeKind.CONFLICT, "its Workload was deactivated meanwhile")
    acting.finish("paused")


def test_a_later_deactivation_by_a_person_wins(acting: Acting) -> None:
    """The owner brings work back that we had stopped, and takes it out later: our old mark does not start it."""
    uid = acting.running_job("own", "n1")
    actuator = acting.actuator()
    actuator.apply(acting.instruction(uid, evict()), acting.now_s)
    acting.run(40)
    path = f"{SPACE}/workloads/{acting.workload('own')['metadata']['name']}"
    for active in (True, False):
        acting.ask("PATCH", path, {"spec": {"active": active}}, fieldManager="kubectl-patch")
        acting.run(5)
    assert STOPPED in acting.workload("own")["metadata"]["annotations"]
    again = acting.instruction(uid, admit("n1"), number="2/p/w", revision=acting.revision(uid))
    assert actuator.apply(again, acting.now_s).kind == OutcomeKind.CONFLICT
    assert acting.workload("own")["spec"]["active"] is False
    acting.finish("own")


def test_idle_work_waits_for_its_owner(acting: Acting) -> None:
    """Its mark says that the controller does not start it again."""
    uid = acting.running_job("idle", "n1")
    actuator = acting.actuator()
    actuator.apply(acting.instruction(uid, evict(StopReason.IDLE)), acting.now_s)
    acting.run(40)
    again = acting.instruction(uid, admit("n1"), number="2/p/w", revision=acting.revision(uid))
    assert actuator.apply(again, acting.now_s).kind == OutcomeKind.CONFLICT
    assert acting.workload("idle")["spec"]["active"] is False
    acting.finish("idle")


def test_an_outage_of_kueue_is_waited_out_and_said_once(acting: Acting) -> None:
    """Its webhooks refuse every write with 500: the effect waits, nothing is asked meanwhile, and it goes on after."""
    uid = acting.running_job("waits", "n1")
    said: list[str] = []
    actuator, stop = acting.actuator(on_problem=said.append), acting.instruction(uid, evict())
    acting.kueue.kueue.stop()
    outcome = actuator.apply(stop, acting.now_s)
    assert outcome.kind == OutcomeKind.ACCEPTED
    assert "an admission webhook does not answer" in outcome.reason
    for _ in range(3):
        acting.run(4)
        assert actuator.advance(acting.now_s, 1, [stop]) == ()
    acting.kueue.kueue.restart()
    acting.run(12)
    actuator.advance(acting.now_s, 1, [stop])
    assert acting.workload("waits")["spec"]["active"] is False
    assert len(said) == 2
    assert (said[0] != "", said[1]) == (True, "")
    acting.finish("waits")


def test_a_deadline_in_an_outage_of_kueue_is_no_failure(acting: Acting) -> None:
    """Nothing was written, so no attempt failed: the start is decided again, and the old one does nothing later."""
    uid = acting.waiting_job("held", 8, gate=CONTROLLER)
    actuator, start = acting.actuator(), acting.instruction(uid, admit("n1"))
    acting.kueue.kueue.stop()
    assert actuator.apply(start, acting.now_s).kind == OutcomeKind.ACCEPTED
    acting.run(start.deadline_s - acting.now_s - 5)
    assert actuator.advance(acting.now_s, 1, [start]) == ()
    acting.run(6)  # within the time in which nothing is asked
    (outcome,) = actuator.advance(acting.now_s, 1, [start])
    assert (outcome.kind, outcome.cause) == (OutcomeKind.CONFLICT, Cause.SERVER)
    assert "decided again: an admission webhook does not answer" in outcome.reason
    assert actuator.apply(start, acting.now_s).kind == OutcomeKind.ACCEPTED  # it may be sent once more
    acting.run(15)
    (outcome,) = actuator.advance(acting.now_s, 1, [start])  # and outside of that time
    assert (outcome.kind, outcome.cause) == (OutcomeKind.CONFLICT, Cause.SERVER)
    acting.kueue.kueue.restart()
    acting.run(12)
    assert actuator.advance(acting.now_s, 1, []) == ()
    assert acting.job("held")["metadata"]["annotations"][GATED_BY] == CONTROLLER
    assert "AdmitBegun" not in {reason for reason, _ in acting.events("held")}  # nothing was written
    acting.finish("held")


def test_an_outage_that_ends_right_before_the_deadline_is_no_failure(acting: Acting) -> None:
    """The effect had no time after it: it is decided again."""
    uid = acting.waiting_job("late", 8, gate=CONTROLLER)
    actuator, start = acting.actuator(), acting.instruction(uid, admit("n1"))
    acting.kueue.kueue.stop()
    assert actuator.apply(start, acting.now_s).kind == OutcomeKind.ACCEPTED
    acting.run(start.deadline_s - acting.now_s - 2)
    acting.kueue.kueue.restart()
    acting.run(12)
    (outcome,) = actuator.advance(acting.now_s, 1, [start])
    assert (outcome.kind, outcome.cause) == (OutcomeKind.CONFLICT, Cause.SERVER)
    assert actuator.advance(acting.now_s, 1, []) == ()
    acting.finish("late")


def test_an_effect_begun_before_an_outage_of_kueue_is_no_failure(acting: Acting) -> None:
    """Nothing of its own is refused, so the server tries a write at the deadline; it is taken back afterwards."""
    uid = acting.waiting_job("ready", 8)
    actuator, start = acting.actuator(), acting.instruction(uid, admit("n1"))
    assert actuator.apply(start, acting.now_s).kind == OutcomeKind.ACCEPTED
    acting.kueue.kueue.stop()
    assert {reason for reason, _ in acting.events("ready")} == {"AdmitBegun"}
    acting.run(30)
    assert actuator.advance(acting.now_s, 1, [start]) == ()
    acting.run(40)
    (outcome,) = actuator.advance(acting.now_s, 1, [start])
    assert (outcome.kind, outcome.cause) == (OutcomeKind.CONFLICT, Cause.SERVER)
    assert "decided again: an admission webhook does not answer" in outcome.reason
    acting.run(30)
    assert actuator.advance(acting.now_s, 1, []) == ()
    assert our_check(acting.workload("ready"))["state"] == "Ready"  # it could not be taken back yet
    acting.kueue.kueue.restart()
    with acting.running.clock.lock:
        acting.run(12)
    assert actuator.advance(acting.now_s, 1, []) == ()
    acting.finish("ready")


def test_a_server_that_loses_the_answers_of_reads_is_waited_out(acting: Acting) -> None:
    """At the deadline an effect under way is decided again, also by a process that could not look at it yet."""
    uid = acting.waiting_job("silent", 8)
    first, start = acting.actuator(), acting.instruction(uid, admit("n1"))
    assert first.apply(start, acting.now_s).kind == OutcomeKind.ACCEPTED
    second = acting.actuator()
    acting.faults.plan = FaultPlan(dropped=1.0)
    acting.run(30)
    assert first.advance(acting.now_s, 1, [start]) == ()
    acting.run(40)
    for actuator in (first, second):
        (outcome,) = actuator.advance(acting.now_s, 1, [start])
        assert (outcome.kind, outcome.cause) == (OutcomeKind.CONFLICT, Cause.SERVER)
    acting.faults.plan = QUIET
    acting.run(20)
    assert second.advance(acting.now_s, 1, []) == ()  # it has come about meanwhile, and stays
    assert acting.pods("silent")[0]["status"]["phase"] == "Running"
    acting.finish("silent")


def test_a_server_that_fails_every_request_is_waited_out(acting: Acting) -> None:
    """A read that is answered with 500 (its store is down) says nothing about the effect: it goes on afterwards."""
    uid = acting.waiting_job("patient", 8, gate=CONTROLLER)
    actuator, start = acting.actuator(), acting.instruction(uid, admit("n1"))
    acting.faults.plan = FaultPlan(error=1.0)
    outcome = actuator.apply(start, acting.now_s)
    assert (outcome.kind, "the API server fails" in outcome.reason) == (OutcomeKind.ACCEPTED, True)
    acting.run(12)
    assert actuator.advance(acting.now_s, 1, [start]) == ()
    acting.faults.plan = QUIET
    acting.run(12)
    assert actuator.advance(acting.now_s, 1, [start]) == ()
    assert GATED_BY not in acting.job("patient")["metadata"]["annotations"]
    acting.finish("patient")


@pytest.mark.parametrize("stored", [0.0, 1.0])
def test_a_write_that_etcd_may_have_stored_is_looked_for(acting: Acting, stored: float) -> None:
    """500 of etcd is an outage: the effect waits, looks whether its write came through, and writes it once."""
    uid = acting.running_job("once", "n1")
    actuator, stop = acting.actuator(), acting.instruction(uid, evict(StopReason.MOVE))
    acting.faults.plan = FaultPlan(store=1.0, stored=stored)
    outcome = actuator.apply(stop, acting.now_s)
    assert (outcome.kind, "etcdserver: request timed out" in outcome.reason) == (OutcomeKind.ACCEPTED, True)
    acting.faults.plan = QUIET
    acting.run(12)
    assert actuator.advance(acting.now_s, 1, [stop]) == ()
    acting.run(20)
    assert acting.revision(uid) == 1
    assert actuator.advance(acting.now_s, 1, []) == ()
    acting.finish("once")


def test_a_new_process_resumes_what_was_begun(acting: Acting) -> None:
    """It follows a gate that was opened before, and says of which instruction nothing was written, once."""
    begun, not_begun = acting.waiting_job("begun", 8, gate=CONTROLLER), acting.waiting_job("untouched", 8)
    first = acting.instruction(begun, admit("n1"))
    second = acting.instruction(not_begun, admit("n2"), number="1/p/other")
    acting.actuator().apply(first, acting.now_s)
    acting.run(2)
    actuator = acting.actuator()
    (lost,) = actuator.advance(acting.now_s, 2, [first, second])
    assert (lost.instruction_id, lost.kind, lost.retryable) == (second.id, OutcomeKind.FAILED, True)
    assert lost.reason == "an earlier process did not begin it"
    assert actuator.advance(acting.now_s, 2, [first, second]) == ()
    acting.run(3)
    (check,) = acting.workload("begun")["status"]["admissionChecks"]
    assert check["message"].startswith("epoch 2: 1/p/w: ")
    (check,) = acting.workload("untouched")["status"]["admissionChecks"]
    assert (check["name"], check["state"]) == (CHECK, "Pending")
    acting.finish("begun", "untouched")
