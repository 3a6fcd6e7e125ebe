"""Retry is written once: a second one during an eviction would strand the Workload (recordings 35b and 35c)."""

from __future__ import annotations

from typing import Any

import pytest

from actuators.kubernetes.levers.check_state import our_check
from actuators.kubernetes.levers.leftover import PATIENCE_S, LeftoverRetries
from autopilot.contract.annotations import CHECK, STOPPED
from autopilot.core.model.records import Cause, OutcomeKind
from autopilot.core.model.stops import StopReason
from tests.kits.acting_kit import TIME, Acting, admit, evict
from tests.kits.kueue_kit import JOBS, SPACE

MOVE = evict(StopReason.MOVE)


def say(acting: Acting, job: str, state: str, text: str = "by hand") -> None:
    """Our check as somebody else sets it."""
    meta = acting.workload(job)["metadata"]
    check = {"name": CHECK, "state": state, "message": text, "lastTransitionTime": TIME}
    body = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": meta["name"], "namespace": "default"},
        "status": {"admissionChecks": [check]},
    }
    acting.ask(
        "PATCH",
        f"{SPACE}/workloads/{meta['name']}/status",
        body,
        media="application/apply-patch+yaml",
        fieldManager="gpu-autopilot-check",
        force="true",
    )


def state(acting: Acting, job: str) -> str:
    """What our check says."""
    return str(our_check(acting.workload(job)).get("state"))


def stranded(acting: Acting, name: str) -> str:
    """A Job whose Workload got a second Retry during its eviction, some time later; its uid."""
    uid = acting.running_job(name, "n1")
    say(acting, name, "Retry", "first")
    acting.run(0.3)
    assert acting.kueue.condition(name, "Evicted")[0] == "True"
    say(acting, name, "Retry", "second")
    acting.run(20)
    assert (state(acting, name), acting.kueue.condition(name, "QuotaReserved")[0]) == ("Retry", "False")
    return uid


def upkeep(acting: Acting, seconds: float, every_s: float = 1.0) -> None:
    """Ticks of processes that know nothing of each other."""
    for _ in range(round(seconds / every_s)):
        LeftoverRetries().run(acting.tools("evict"), 2, acting.now_s)
        acting.run(every_s)


def starts(acting: Acting, name: str, uid: str, number: str) -> bool:
    """Whether its next admission starts it."""
    actuator = acting.actuator()
    start = acting.instruction(uid, admit("n2"), number=number, revision=acting.revision(uid), fence=3)
    actuator.apply(start, acting.now_s)
    for _ in range(4):
        acting.run(3)
        actuator.advance(acting.now_s, 3, [start])
    return [each["spec"].get("nodeName") for each in acting.pods(name)] == ["n2"]


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.3, 0.9])
def test_a_second_effect_says_no_second_retry(acting: Acting, after_s: float) -> None:
    """Before Kueue has begun the eviction, and while it runs; also one of a new leader."""
    uid = acting.running_job("once", "n1")
    acting.actuator().apply(acting.instruction(uid, MOVE), acting.now_s)
    acting.run(after_s)
    again = acting.instruction(uid, MOVE, number="2/p/w", revision=acting.revision(uid), fence=2)
    assert acting.actuator().apply(again, acting.now_s).kind == OutcomeKind.ACCEPTED
    assert "2/p/w" not in our_check(acting.workload("once"))["message"]
    acting.run(20)
    assert (state(acting, "once"), acting.kueue.condition("once", "QuotaReserved")[0]) == ("Pending", "True")
    acting.finish("once")


def test_ready_waits_for_the_end_of_the_eviction(acting: Acting) -> None:
    """The next reservation may be another one: the place is checked against it."""
    uid = acting.running_job("early", "n1")
    acting.actuator().apply(acting.instruction(uid, MOVE), acting.now_s)
    acting.run(0.3)
    actuator, start = acting.actuator(), acting.instruction(uid, admit("n2"), number="2/p/w", revision=1)
    outcome = actuator.apply(start, acting.now_s)
    assert (outcome.kind, "its eviction is not over" in outcome.reason) == (OutcomeKind.ACCEPTED, True)
    assert state(acting, "early") == "Pending"
    acting.run(5)
    actuator.advance(acting.now_s, 1, [start])
    acting.run(40)
    assert [each["spec"]["nodeName"] for each in acting.pods("early")] == ["n2"]
    acting.finish("early")


def test_an_admission_during_an_eviction_is_taken_back_without_retry(acting: Acting) -> None:
    """An earlier version said Ready while the eviction ran."""
    uid = acting.running_job("hasty", "n1")
    acting.actuator().apply(acting.instruction(uid, MOVE), acting.now_s)
    acting.run(0.3)
    say(acting, "hasty", "Ready", "epoch 1: 9/p/w: placed by Kueue")
    actuator, start = acting.actuator(), acting.instruction(uid, admit("n3"), number="2/p/w", revision=1)
    assert actuator.apply(start, acting.now_s).reason == "Kueue takes its earlier admission back"
    assert state(acting, "hasty") == "Pending"
    for _ in range(4):
        acting.run(3)
        actuator.advance(acting.now_s, 1, [start])
    acting.run(30)
    assert [each["spec"]["nodeName"] for each in acting.pods("hasty")] == ["n3"]
    acting.finish("hasty")


def test_a_workload_with_a_leftover_retry_comes_back(acting: Acting) -> None:
    """Pending, then active false and true; each step by another process. Its owner reads why."""
    uid = stranded(acting, "lost")
    upkeep(acting, PATIENCE_S + 6)
    workload = acting.workload("lost")
    assert workload["spec"].get("active", True)
    assert STOPPED not in workload["metadata"].get("annotations", {})
    assert (state(acting, "lost"), acting.kueue.condition("lost", "QuotaReserved")[0]) == ("Pending", "True")
    assert [reason for reason, _ in acting.events(workload["metadata"]["name"])] == ["RetryTakenBack"]
    assert starts(acting, "lost", uid, "3/p/w")
    acting.finish("lost")


def test_a_retry_during_an_eviction_is_taken_back_before_its_end(acting: Acting) -> None:
    """Then nothing else is needed, and `active` is not touched."""
    acting.running_job("soon", "n1")
    say(acting, "soon", "Retry", "first")
    acting.run(0.3)
    say(acting, "soon", "Retry", "second")
    upkeep(acting, 10)
    workload = acting.workload("soon")
    assert (state(acting, "soon"), acting.kueue.condition("soon", "QuotaReserved")[0]) == ("Pending", "True")
    written = [each for each in workload["metadata"]["managedFields"] if "f:active" in str(each)]
    assert not any(each["manager"] == "gpu-autopilot" for each in written)
    acting.finish("soon")


def test_a_retry_that_kueue_acts_on_is_left_alone(acting: Acting) -> None:
    """The eviction has not begun yet."""
    acting.running_job("normal", "n1")
    say(acting, "normal", "Retry", "first")
    LeftoverRetries().run(acting.tools("evict"), 2, acting.now_s)
    assert state(acting, "normal") == "Retry"
    acting.run(20)
    assert acting.revision(acting.job("normal")["metadata"]["uid"]) == 1
    acting.finish("normal")


def test_work_that_a_person_keeps_out_stays_out(acting: Acting) -> None:
    """Its check is set back, so that it comes back when that person lets it; `active` stays as it is."""
    stranded(acting, "held")
    path = f"{SPACE}/workloads/{acting.workload('held')['metadata']['name']}"
    acting.ask("PATCH", path, {"spec": {"active": False}}, fieldManager="kubectl-patch")
    acting.run(2)
    upkeep(acting, PATIENCE_S + 6)
    assert (acting.workload("held")["spec"]["active"], state(acting, "held")) == (False, "Pending")
    acting.ask("PATCH", path, {"spec": {"active": True}}, fieldManager="kubectl-patch")
    acting.run(3)
    assert acting.kueue.condition("held", "QuotaReserved")[0] == "True"
    acting.finish("held")


@pytest.mark.parametrize("kind", ["FailureTarget", "SuccessCriteriaMet"])
@pytest.mark.parametrize("reason", [StopReason.MOVE, StopReason.PREEMPT])
def test_a_job_that_is_about_to_end_is_not_stopped(acting: Acting, kind: str, reason: StopReason) -> None:
    """Suspended now, its controller would never state its end. Neither its check nor `active` is written."""
    uid = acting.running_job("failing", "n1")
    ends(acting, "failing", kind)
    outcome = acting.actuator().apply(acting.instruction(uid, evict(reason)), acting.now_s)
    assert (outcome.kind, outcome.cause) == (OutcomeKind.CONFLICT, Cause.CHANGED)
    assert kind in outcome.reason
    workload = acting.workload("failing")
    assert (our_check(workload)["state"], workload["spec"].get("active", True)) == ("Ready", True)
    acting.finish("failing")


def ends(acting: Acting, job: str, kind: str) -> None:
    """Its controller has stated that it is about to end, and stops its pods."""
    row = {"type": kind, "status": "True", "reason": "PodFailurePolicy", "message": "", "lastTransitionTime": TIME}
    old: list[Any] = acting.job(job)["status"].get("conditions", [])
    acting.ask("PATCH", f"{JOBS}/{job}/status", {"status": {"conditions": [*old, row]}})
