"""What a cluster does to an effect: each is named, contained, and visible in status, Event and metric.

Nothing is half done: after each of them the objects are as before, or as the other writer left them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from actuators.kubernetes.levers.check_state import message, said_by
from autopilot.contract.annotations import CHECK, CONTROLLER, MANAGE
from autopilot.core.model.records import Cause, Instruction, Outcome, OutcomeKind
from autopilot.core.model.stops import StopReason
from tests.kits.acting_kit import PODS, Acting, admit, evict
from tests.kits.kueue_kit import SPACE
from tests.kits.mig_kit import Scene
from tests.kits.told_kit import told

Obj = dict[str, Any]
Judge = Callable[[Instruction, Outcome, list[tuple[str, str]], Cause, str], None]
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


@pytest.fixture
def is_told(tmp_path: Path) -> Judge:
    """The effect is named in the outcome, the Event on its object, the API, its Recommendation, and the metric."""

    def judge(
        instruction: Instruction, outcome: Outcome, events: list[tuple[str, str]], cause: Cause, words: str
    ) -> None:
        assert (outcome.instruction_id, outcome.cause) == (instruction.id, cause)
        assert words in outcome.reason
        assert [reason for reason, note in events if words in note and instruction.id in note], events
        shown = told(tmp_path, instruction, outcome)
        assert shown.api == (cause.value, outcome.reason)
        assert words in shown.message
        assert shown.counted == {(instruction.kind, cause.value): 1.0}

    return judge


@contextmanager
def refusing(acting: Acting, name: str, expression: str) -> Iterator[None]:
    """An admission policy of somebody else that refuses writes of Jobs."""
    rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["jobs"]}
    refuses = {"expression": expression, "message": "the team decides that", "reason": "Forbidden"}
    policy = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule]}, "validations": [refuses]}
    binding = {"policyName": name, "validationActions": ["Deny"]}
    kinds = (
        ("ValidatingAdmissionPolicy", "policies", policy),
        ("ValidatingAdmissionPolicyBinding", "policybindings", binding),
    )
    for kind, plural, spec in kinds:
        body = {"apiVersion": ADMISSION.removeprefix("/apis/"), "kind": kind, "metadata": {"name": name}, "spec": spec}
        acting.ask("POST", f"{ADMISSION}/validatingadmission{plural}", body)
    acting.run(2)
    yield
    for _, plural, _ in kinds:
        acting.ask("DELETE", f"{ADMISSION}/validatingadmission{plural}/{name}")
    acting.run(2)


def ended(outcomes: tuple[Outcome, ...]) -> Outcome:
    """The only outcome."""
    (outcome,) = outcomes
    return outcome


def test_a_budget_that_forbids(acting: Acting, is_told: Judge) -> None:
    """No pod of the gang is evicted where the budget protects one of them."""
    acting.pod("b0", 8, group="budget")
    acting.pod("b1", 8, group="budget", app="budget")
    spec = {"selector": {"matchLabels": {"app": "budget"}}, "maxUnavailable": 0}
    body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "budget"}, "spec": spec}
    acting.ask("POST", BUDGETS, body)
    acting.run(2)
    instruction = acting.instruction("group/default/budget", evict())
    outcome = acting.actuator().apply(instruction, acting.now_s)
    is_told(instruction, outcome, acting.events("b0"), Cause.BUDGET, "a PodDisruptionBudget forbids it")
    assert not any(each["metadata"].get("deletionTimestamp") for each in acting.pods())
    acting.ask("DELETE", f"{BUDGETS}/budget")
    acting.finish()


def test_two_budgets_that_forbid(acting: Acting, is_told: Judge) -> None:
    """A pod that two budgets select cannot be evicted: the server answers 500, which is no failure of ours."""
    acting.pod("c0", 8, group="twice", app="twice")
    for name in ("once", "again"):
        spec = {"selector": {"matchLabels": {"app": "twice"}}, "maxUnavailable": 1}
        body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}
        acting.ask("POST", BUDGETS, body)
    acting.run(2)
    instruction = acting.instruction("group/default/twice", evict())
    outcome = acting.actuator().apply(instruction, acting.now_s)
    assert outcome.kind == OutcomeKind.CONFLICT
    is_told(instruction, outcome, acting.events("c0"), Cause.BUDGET, "more than one PodDisruptionBudget")
    for name in ("once", "again"):
        acting.ask("DELETE", f"{BUDGETS}/{name}")
    acting.finish()


def test_a_webhook_that_refuses(acting: Acting, is_told: Judge) -> None:
    """The Job stays suspended, without a selector of ours; the reason names the policy and asks for no right."""
    uid = acting.plain_job("refused", suspend=True, labels={MANAGE: "true"})
    before = acting.job("refused")["spec"]
    instruction = acting.instruction(uid, admit("n2"))
    with refusing(acting, "team", "object.spec.suspend"):
        outcome = acting.actuator().apply(instruction, acting.now_s)
    is_told(instruction, outcome, acting.events("refused"), Cause.WEBHOOK, "the team decides that")
    assert "rights" not in outcome.reason
    assert acting.job("refused")["spec"] == before
    acting.finish("refused")


def test_a_user_who_patches_the_same_object(acting: Acting, is_told: Judge) -> None:
    """Between two steps of an admission a person takes the work out of its queue: that stays."""
    uid = acting.waiting_job("shared", 8, gate=CONTROLLER)
    actuator, instruction = acting.actuator(), acting.instruction(uid, admit("n1"))
    assert actuator.apply(instruction, acting.now_s).kind == OutcomeKind.ACCEPTED
    acting.run(2)
    name = acting.workload("shared")["metadata"]["name"]
    acting.ask("PATCH", f"{SPACE}/workloads/{name}", {"spec": {"active": False}})
    acting.run(2)
    instruction = acting.instruction(uid, admit("n1"), revision=acting.revision(uid))
    outcome = actuator.apply(instruction, acting.now_s)
    is_told(instruction, outcome, acting.events("shared"), Cause.CHANGED, "was deactivated meanwhile")
    assert acting.workload("shared")["spec"]["active"] is False
    assert acting.job("shared")["spec"]["suspend"] is True
    acting.finish("shared")


def test_an_object_that_is_replaced_under_its_name(acting: Acting, is_told: Judge) -> None:
    """The admission ends as a conflict; the new Job is not started, and has the Event."""
    uid = acting.waiting_job("reborn", 8, gate=CONTROLLER)
    actuator, instruction = acting.actuator(), acting.instruction(uid, admit("n1"))
    assert actuator.apply(instruction, acting.now_s).kind == OutcomeKind.ACCEPTED
    acting.finish("reborn")
    acting.waiting_job("reborn", 8, gate=CONTROLLER)
    outcome = ended(actuator.advance(acting.now_s, 1, [instruction]))
    is_told(instruction, outcome, acting.events("reborn"), Cause.REPLACED, "was replaced by another object")
    assert acting.job("reborn")["spec"]["suspend"] is True
    assert not acting.pods("reborn")
    assert actuator.advance(acting.now_s, 1, [instruction]) == ()
    acting.finish("reborn")


def test_work_that_is_gone_is_no_failed_eviction(acting: Acting) -> None:
    """The view says that it is gone, which is what the eviction was for."""
    uid = acting.running_job("left", "n1")
    actuator, instruction = acting.actuator(), acting.instruction(uid, evict())
    assert actuator.apply(instruction, acting.now_s).kind == OutcomeKind.ACCEPTED
    acting.finish("left")
    assert actuator.advance(acting.now_s, 1, [instruction]) == ()


def test_a_check_that_somebody_else_also_writes(acting: Acting, is_told: Judge) -> None:
    """A person rejects the work by our check: it is not admitted over that, and the rejection stays."""
    uid = acting.waiting_job("fought", 8)
    name = acting.workload("fought")["metadata"]["name"]
    state = {"name": CHECK, "state": "Rejected", "message": "by hand", "lastTransitionTime": "2026-11-23T00:00:00Z"}
    acting.ask("PATCH", f"{SPACE}/workloads/{name}/status", {"status": {"admissionChecks": [state]}})
    acting.run(2)
    instruction = acting.instruction(uid, admit("n1"), revision=acting.revision(uid))
    outcome = acting.actuator().apply(instruction, acting.now_s)
    is_told(instruction, outcome, acting.events("fought"), Cause.CHANGED, "was deactivated meanwhile")
    assert not acting.pods("fought")
    acting.finish("fought")


def test_a_check_that_changes_between_decision_and_write(acting: Acting) -> None:
    """Another writer says Ready first: its words stay, and ours are not written over them."""
    uid = acting.waiting_job("doubly", 8)
    name = acting.workload("doubly")["metadata"]["name"]
    state = {"name": CHECK, "state": "Ready", "message": "by hand", "lastTransitionTime": "2026-11-23T00:00:00Z"}
    acting.ask("PATCH", f"{SPACE}/workloads/{name}/status", {"status": {"admissionChecks": [state]}})
    acting.run(3)
    instruction = acting.instruction(uid, admit("n1"))
    outcome = acting.actuator().apply(instruction, acting.now_s)
    assert (outcome.kind, outcome.cause) == (OutcomeKind.CONFLICT, Cause.CHANGED)
    (check,) = acting.workload("doubly")["status"]["admissionChecks"]
    assert check["message"] == "by hand"
    acting.finish("doubly")


@pytest.mark.parametrize("way", ["kueue", "plain"])
def test_a_placement_on_a_node_that_fills_up(acting: Acting, is_told: Judge, way: str) -> None:
    """At the deadline the work waits as before, and its reservation is given back."""
    name = f"late-{way}"
    if way == "kueue":
        uid = acting.waiting_job(name, 8)
    else:
        uid = acting.plain_job(name, suspend=True, labels={MANAGE: "true"})
    acting.pod(f"squatter-{way}", 8)
    (node,) = {each["spec"]["nodeName"] for each in acting.pods() if each["metadata"]["name"] == f"squatter-{way}"}
    actuator, instruction = acting.actuator(), acting.instruction(uid, admit(node))
    assert actuator.apply(instruction, acting.now_s).kind == OutcomeKind.ACCEPTED
    acting.run(61)
    outcome = ended(actuator.advance(acting.now_s, 1, [instruction]))
    assert outcome.kind == OutcomeKind.CONFLICT
    is_told(instruction, outcome, acting.events(name), Cause.PLACE, "in time")
    acting.run(5)
    assert acting.job(name)["spec"]["suspend"] is True
    assert not any(each["spec"].get("nodeName") for each in acting.pods(name))
    acting.finish(name)
    acting.ask.response("DELETE", f"{PODS}/squatter-{way}", {"gracePeriodSeconds": 1})
    acting.run(40)


def test_an_object_that_changed_since_the_decision(acting: Acting, is_told: Judge) -> None:
    """Work that was stopped since is another incarnation: nothing is written, and its object says so."""
    uid = acting.waiting_job("aged", 8)
    before = acting.workload("aged")["metadata"]["resourceVersion"]
    instruction = acting.instruction(uid, admit("n1"), revision=3)
    outcome = acting.actuator().apply(instruction, acting.now_s)
    is_told(instruction, outcome, acting.events("aged"), Cause.CHANGED, "changed since the decision")
    assert acting.workload("aged")["metadata"]["resourceVersion"] == before
    acting.finish("aged")


def test_an_instruction_that_comes_after_its_deadline(acting: Acting, is_told: Judge) -> None:
    """Nothing is begun that would have to be taken back at once."""
    uid = acting.plain_job("tardy", suspend=True, labels={MANAGE: "true"})
    instruction = acting.instruction(uid, admit("n2"), deadline_s=acting.now_s)
    outcome = acting.actuator().apply(instruction, acting.now_s)
    assert outcome.kind == OutcomeKind.CONFLICT
    is_told(instruction, outcome, acting.events("tardy"), Cause.LATE, "its deadline was over before it was sent")
    assert acting.job("tardy")["spec"]["suspend"] is True
    acting.finish("tardy")


def test_the_words_of_another_instruction_are_not_ours() -> None:
    """The id of one instruction may be a part of another one."""
    check = {"state": "Ready", "message": message(1, "11/p/w", "placed")}
    assert said_by(check, "11/p/w")
    assert not said_by(check, "1/p/w")


def test_an_older_controller_is_refused(acting: Acting) -> None:
    """Its instruction is named as one of an older epoch."""
    uid = acting.waiting_job("older", 8)
    actuator = acting.actuator()
    actuator.advance(acting.now_s, 7, ())
    outcome = actuator.apply(acting.instruction(uid, admit("n1"), fence=6), acting.now_s)
    assert (outcome.kind, outcome.cause) == (OutcomeKind.FAILED, Cause.EPOCH)
    acting.finish("older")


def test_a_mig_configuration_that_the_manager_does_not_know(tmp_path: Path, is_told: Judge) -> None:
    """Nothing is written to the node; its Event says what the file lacks."""
    scene = Scene(tmp_path)
    scene.add_node("n1")
    scene.label("n1", config="of-somebody", state=None)
    scene.run(2)
    scene.label("n1", state="success")
    before = scene.node("n1")["metadata"]["resourceVersion"]
    instruction = scene.recut("n1")
    outcome = scene.actuator().apply(instruction, scene.now_s)
    found = [each for each in scene.client.list("events", "default") if each["involvedObject"]["name"] == "n1"]
    events = [(each["reason"], each["message"]) for each in found]
    is_told(instruction, outcome, events, Cause.CONFIG, "has no entry 'of-somebody'")
    assert scene.node("n1")["metadata"]["resourceVersion"] == before
    scene.close()


def test_admissions_that_worked_are_said_to_be_done(acting: Acting) -> None:
    """The controller saw the gang run and waits no more: no Event says that anything was given up."""
    for name, gate in (("worked", ""), ("worked-gated", CONTROLLER)):
        uid = acting.waiting_job(name, 8, gate=gate) if gate else acting.waiting_job(name, 8)
        actuator, instruction = acting.actuator(), acting.instruction(uid, admit("n1"), number=f"1/p/{name}")
        actuator.apply(instruction, acting.now_s)
        for _ in range(3):
            acting.run(3)
            actuator.advance(acting.now_s, 1, [instruction])
        assert [each["status"]["phase"] for each in acting.pods(name)] == ["Running"]
        actuator.advance(acting.now_s, 1, ())
        reasons = [reason for reason, _ in acting.events(name)]
        assert "AdmitGaveUp" not in reasons
        assert "AdmitDone" in reasons
        acting.finish(name)


def test_an_eviction_of_another_kind_of_cause_is_still_named(acting: Acting, is_told: Judge) -> None:
    """A move that would end the work of a bare pod."""
    acting.pod("alone", 8, group="alone")
    instruction = acting.instruction("group/default/alone", evict(StopReason.MOVE))
    outcome = acting.actuator().apply(instruction, acting.now_s)
    is_told(instruction, outcome, acting.events("alone"), Cause.HARM, "no controller makes pod alone again")
    acting.finish()
