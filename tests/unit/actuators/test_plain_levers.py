"""Levers on work without Kueue: scheduling gates, suspended Jobs, evictions of pods."""

from __future__ import annotations

import itertools
import json

import pytest

from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.api import Answer, Api, Ref, Refusal
from autopilot.contract.annotations import CONTROLLER, EFFECT, MANAGE
from autopilot.core.model.records import Cause, OutcomeKind
from autopilot.core.model.stops import StopReason
from tests.kits.acting_kit import PODS, Acting, admit, evict, pod_spec
from tests.kits.kueue_kit import JOBS

OURS = {MANAGE: "true"}
GATED = {**pod_spec(8), "schedulingGates": [{"name": CONTROLLER}]}
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def running_on(acting: Acting, name: str = "") -> dict[str, str]:
    """Pods that run, with their nodes."""
    return {
        each["metadata"]["name"]: each["spec"]["nodeName"]
        for each in acting.pods(name)
        if each["status"]["phase"] == "Running" and not each["metadata"].get("deletionTimestamp")
    }


def test_gated_pods_get_their_nodes_and_start(acting: Acting) -> None:
    """One patch for each pod opens our gate and selects its node."""
    for number in range(3):
        acting.pod(f"g{number}", 8, gates=(CONTROLLER,), group="three")
    instruction = acting.instruction("group/default/three", admit("n3", "n1", "n2"))
    outcome = acting.actuator().apply(instruction, acting.now_s)
    assert outcome.reason == "the scheduler binds its pods"
    acting.run(5)
    assert sorted(running_on(acting).values()) == ["n1", "n2", "n3"]
    acting.finish()


def test_pods_with_claims_take_equal_parts_of_the_place(acting: Acting) -> None:
    """What a claim asks for is not read; two pods for two equal parts do not go to one node."""
    for number in range(2):
        acting.pod(f"q{number}", 0, gates=(CONTROLLER,), claim=f"c{number}", group="pair")
    instruction = acting.instruction("group/default/pair", admit("n1", "n2"))
    assert acting.actuator().apply(instruction, acting.now_s).reason == "the scheduler binds its pods"
    acting.run(5)
    assert sorted(running_on(acting).values()) == ["n1", "n2"]
    acting.finish()


def test_a_gate_of_somebody_else_keeps_all_pods_waiting(acting: Acting) -> None:
    """Our gate stays as long as another one holds a pod of the gang: it would start in part."""
    acting.pod("h0", 8, gates=(CONTROLLER,), group="two")
    acting.pod("h1", 8, gates=(CONTROLLER, "example.com/other"), group="two")
    outcome = acting.actuator().apply(acting.instruction("group/default/two", admit("n1", "n2")), acting.now_s)
    assert outcome.kind == OutcomeKind.ACCEPTED
    assert "example.com/other" in outcome.reason
    assert all(len(each["spec"]["schedulingGates"]) >= 1 for each in acting.pods())
    acting.finish()


@pytest.mark.parametrize("forged", [True, False])
def test_a_selector_of_others_stays_whatever_a_record_says(acting: Acting, forged: bool) -> None:
    """A tenant writes a record of ours on its Job, so that we would remove the selector that a webhook has set."""
    record = json.dumps({"id": "1/p", "selector": {"pool": "cheap", "kubernetes.io/hostname": "n2"}})
    template = {"spec": {**pod_spec(8), "nodeSelector": {"pool": "cheap"}}}
    notes = {EFFECT: record} if forged else {}
    acting.plain_job("kept", suspend=True, labels=OURS, annotations=notes, template=template)
    instruction = acting.instruction(acting.job("kept")["metadata"]["uid"], admit("n1"))
    outcome = acting.actuator().apply(instruction, acting.now_s)
    assert outcome.reason == "it cannot run there: node n1 does not have the label pool=cheap"
    job = acting.job("kept")["spec"]
    assert (job["suspend"], job["template"]["spec"]["nodeSelector"]) == (True, {"pool": "cheap"})
    acting.finish("kept")


def test_a_pod_that_selects_another_node_opens_no_gate(acting: Acting) -> None:
    """The contradiction of one pod is found before any pod is patched."""
    acting.pod("i0", 8, gates=(CONTROLLER,), group="pinned")
    pinned = {**GATED, "nodeSelector": {"kubernetes.io/hostname": "n3"}}
    meta = {"name": "i1", "labels": {"group": "pinned"}}
    acting.ask("POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pinned})
    outcome = acting.actuator().apply(acting.instruction("group/default/pinned", admit("n1", "n2")), acting.now_s)
    assert (outcome.kind, outcome.retryable) == (OutcomeKind.FAILED, False)
    assert "it selects node n3 itself" in outcome.reason
    assert all(each["spec"].get("schedulingGates") for each in acting.pods())
    acting.finish()


def test_a_pod_whose_labels_its_node_lacks_opens_no_gate(acting: Acting) -> None:
    """A gate cannot be closed again: the pod would wait for good on a node that was relabelled since the decision."""
    acting.pod("j0", 8, gates=(CONTROLLER,), group="zoned")
    zoned = {**GATED, "nodeSelector": {"zone": "a"}}
    meta = {"name": "j1", "labels": {"group": "zoned"}}
    acting.ask("POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": zoned})
    instruction = acting.instruction("group/default/zoned", admit("n1", "n2"))
    outcome = acting.actuator().apply(instruction, acting.now_s)
    assert (outcome.kind, outcome.cause) == (OutcomeKind.CONFLICT, Cause.PLACE)
    assert "pod j1 cannot run there" in outcome.reason
    assert "does not have the label zone=a" in outcome.reason
    assert all(each["spec"].get("schedulingGates") for each in acting.pods())
    acting.finish()


def test_a_job_with_the_label_starts_at_its_place(acting: Acting) -> None:
    """One write starts it with the selector of its node."""
    uid = acting.plain_job("opted", suspend=True, labels=OURS)
    acting.actuator().apply(acting.instruction(uid, admit("n2")), acting.now_s)
    acting.run(3)
    assert list(running_on(acting, "opted").values()) == ["n2"]
    acting.finish("opted")


def test_a_job_whose_label_came_later_is_not_started(acting: Acting) -> None:
    """The owner decides at creation; a label that is set later by another client does not count."""
    uid = acting.plain_job("late", suspend=True)
    acting.ask("PATCH", f"{JOBS}/late", {"metadata": {"labels": OURS}}, fieldManager="kubectl-label")
    outcome = acting.actuator().apply(acting.instruction(uid, admit("n2")), acting.now_s)
    assert outcome.kind == OutcomeKind.FAILED
    assert "was not on its Job from the beginning" in outcome.reason
    assert acting.job("late")["spec"]["suspend"]
    acting.finish("late")


def test_a_later_suspension_by_a_person_wins(acting: Acting) -> None:
    """A Job that we started and a person suspended again stays suspended."""
    uid = acting.plain_job("stopped", suspend=True, labels=OURS)
    acting.actuator().apply(acting.instruction(uid, admit("n2")), acting.now_s)
    acting.run(3)
    acting.ask("PATCH", f"{JOBS}/stopped", {"spec": {"suspend": True}}, fieldManager="kubectl-patch")
    acting.run(40)
    outcome = acting.actuator().apply(acting.instruction(uid, admit("n1"), number="2/p/w"), acting.now_s)
    assert outcome.kind == OutcomeKind.FAILED
    assert "a person suspended its Job later" in outcome.reason
    acting.finish("stopped")


def test_a_job_that_we_suspended_starts_again_elsewhere(acting: Acting) -> None:
    """Our own suspension is marked; the earlier placement is replaced."""
    uid = acting.plain_job("again", suspend=True, labels=OURS)
    actuator = acting.actuator()
    actuator.apply(acting.instruction(uid, admit("n1")), acting.now_s)
    acting.run(3)
    assert actuator.apply(acting.instruction(uid, evict(), number="2/p/w"), acting.now_s).reason == "its pods stop"
    acting.run(40)
    assert running_on(acting, "again") == {}
    outcome = actuator.apply(acting.instruction(uid, admit("n3"), number="3/p/w"), acting.now_s)
    assert outcome.reason == "the scheduler binds its pods"
    acting.run(5)
    assert list(running_on(acting, "again").values()) == ["n3"]
    acting.finish("again")


def test_a_job_that_runs_at_its_place_is_not_taken_from_it(acting: Acting) -> None:
    """Its pods were bound since the decision: nothing is written."""
    uid = acting.plain_job("stays", suspend=True, labels=OURS)
    acting.actuator().apply(acting.instruction(uid, admit("n1")), acting.now_s)
    acting.run(3)
    outcome = acting.actuator().apply(acting.instruction(uid, admit("n2"), number="2/p/w"), acting.now_s)
    assert (outcome.kind, outcome.cause) == (OutcomeKind.CONFLICT, Cause.CHANGED)
    assert list(running_on(acting, "stays").values()) == ["n1"]
    acting.finish("stays")


def test_a_job_that_does_not_start_in_time_is_suspended_again(acting: Acting) -> None:
    """Its node filled up meanwhile: nothing keeps waiting for it."""
    acting.pod("squatter", 8)
    (node,) = running_on(acting).values()
    uid = acting.plain_job("unlucky", suspend=True, labels=OURS)
    actuator, instruction = acting.actuator(), acting.instruction(uid, admit(node))
    actuator.apply(instruction, acting.now_s)
    acting.run(61)
    (outcome,) = actuator.advance(acting.now_s, 1, [instruction])
    assert (outcome.kind, "it waits again" in outcome.reason) == (OutcomeKind.CONFLICT, True)
    assert acting.job("unlucky")["spec"]["suspend"]
    acting.finish("unlucky")


def test_the_next_process_follows_a_job_that_was_started(acting: Acting) -> None:
    """The start makes the lever unsuitable, so it is read from the record: the start is followed, then undone."""
    acting.pod("lodger", 8)
    (node,) = running_on(acting).values()
    uid = acting.plain_job("orphan", suspend=True, labels=OURS)
    instruction = acting.instruction(uid, admit(node))
    acting.actuator().apply(instruction, acting.now_s)
    acting.run(30)
    second = acting.actuator()
    assert second.advance(acting.now_s, 1, [instruction]) == ()
    assert second.apply(instruction, acting.now_s).reason == "the scheduler binds its pods"
    acting.run(31)
    (outcome,) = acting.actuator().advance(acting.now_s, 1, [instruction])
    assert (outcome.kind, "it waits again" in outcome.reason) == (OutcomeKind.CONFLICT, True)
    assert acting.job("orphan")["spec"]["suspend"]
    acting.finish("orphan", "lodger")


class Deaf(Api):
    """An API server that does not answer while `deaf`."""

    deaf = False

    def read(self, ref: Ref) -> Answer:
        """Nothing comes back."""
        return Answer({}, Refusal.UNREACHABLE, "no answer", 0) if self.deaf else super().read(ref)


def test_what_is_late_is_taken_back_once_the_server_answers(acting: Acting) -> None:
    """At the deadline the Job cannot be read: its start is decided again, and not forgotten."""
    acting.pod("guest", 8)
    (node,) = running_on(acting).values()
    uid = acting.plain_job("unheard", suspend=True, labels=OURS)
    api = Deaf(acting.rights.access("admit"))
    actuator, instruction = KubernetesActuator(api, acting), acting.instruction(uid, admit(node))
    actuator.apply(instruction, acting.now_s)
    acting.run(61)
    api.deaf = True
    (outcome,) = actuator.advance(acting.now_s, 1, [instruction])
    assert (outcome.kind, outcome.cause) == (OutcomeKind.CONFLICT, Cause.SERVER)
    assert "its objects cannot be read or written: no answer" in outcome.reason
    acting.run(12)
    assert actuator.advance(acting.now_s, 1, []) == ()
    assert not acting.job("unheard")["spec"]["suspend"]
    api.deaf = False
    acting.run(12)
    assert actuator.advance(acting.now_s, 1, []) == ()
    assert acting.job("unheard")["spec"]["suspend"]
    assert acting.job("unheard")["spec"]["suspend"]
    acting.finish("unheard", "guest")


def test_a_server_that_answers_slowly_holds_no_tick_up(acting: Acting) -> None:
    """After twenty seconds of requests the other effects of the tick wait, and the next tick begins them."""
    slow = Api(acting.rights.access("admit"), steady_s=itertools.count(0.0, 12.0).__next__)
    actuator = KubernetesActuator(slow, acting)
    nodes = {name: f"n{number}" for number, name in enumerate(("early", "later"), 1)}
    instructions = {
        name: acting.instruction(acting.plain_job(name, suspend=True, labels=OURS), admit(node))
        for name, node in nodes.items()
    }
    first, second = (actuator.apply(each, acting.now_s) for each in instructions.values())
    assert not acting.job("early")["spec"]["suspend"], first.reason
    assert acting.job("later")["spec"]["suspend"]
    assert (second.kind, "the requests of one tick took" in second.reason) == (OutcomeKind.ACCEPTED, True)
    acting.run(11)
    actuator.apply(instructions["later"], acting.now_s)
    assert not acting.job("later")["spec"]["suspend"]
    acting.finish("early", "later")


def budget(acting: Acting, app: str, **amount: int) -> None:
    """A PodDisruptionBudget on the pods of an app."""
    spec = {"selector": {"matchLabels": {"app": app}}, **amount}
    body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": app}, "spec": spec}
    acting.ask("POST", BUDGETS, body)


@pytest.mark.parametrize("reason", [StopReason.RECLAIM, StopReason.PREEMPT])
def test_the_owner_of_work_that_is_taken_back_is_told_why_once(acting: Acting, reason: StopReason) -> None:
    """One Event says that its declarations protect work inside the guarantee of its own queue; others do not say so."""
    name = f"told-{reason.value}"
    acting.pod(name, 8, group=name)
    acting.run(2)
    actuator, stop = acting.actuator(), acting.instruction(f"group/default/{name}", evict(reason))
    for _ in range(3):
        actuator.apply(stop, acting.now_s)
        acting.run(1)
    told = [note for word, note in acting.events(name) if word == "EvictBegun" and "exclude and window protect" in note]
    assert len(told) == (reason is StopReason.RECLAIM)
    acting.finish()


def test_a_budget_that_forbids_keeps_every_pod(acting: Acting) -> None:
    """No pod of the gang is evicted where the budget refuses one; the Event names the budget."""
    acting.pod("k0", 8, group="kept")
    acting.pod("k1", 8, group="kept", app="kept")
    budget(acting, "kept", maxUnavailable=0)
    acting.run(2)
    outcome = acting.actuator().apply(acting.instruction("group/default/kept", evict()), acting.now_s)
    assert (outcome.kind, "a PodDisruptionBudget forbids it" in outcome.reason) == (OutcomeKind.CONFLICT, True)
    assert len(running_on(acting)) == 2
    assert ("EvictConflict", True) in [(reason, "PodDisruptionBudget" in note) for reason, note in acting.events("k0")]
    acting.ask("DELETE", f"{BUDGETS}/kept")
    acting.finish()


def test_a_budget_for_one_pod_lets_the_gang_stop_one_by_one(acting: Acting) -> None:
    """A gang that has lost a pod is of no use: the rest follows, and the effect does not end half-way."""
    for name in ("b0", "b1"):
        acting.pod(name, 8, group="both", app="both")
    budget(acting, "both", minAvailable=1)
    acting.run(2)
    actuator, instruction = acting.actuator(), acting.instruction("group/default/both", evict(grace_s=20.0))
    outcome = actuator.apply(instruction, acting.now_s)
    assert (outcome.kind, "a part of it stops" in outcome.reason) == (OutcomeKind.ACCEPTED, True)
    assert len([each for each in acting.pods() if each["metadata"].get("deletionTimestamp")]) == 1
    acting.pod("b2", 8, app="both")  # another pod of the service is healthy, so that the budget allows one again
    acting.run(30)
    actuator.advance(acting.now_s, 1, [instruction])
    left = [each for each in acting.pods() if each["metadata"]["name"] in {"b0", "b1"}]
    assert all(each["metadata"].get("deletionTimestamp") for each in left)
    acting.ask("DELETE", f"{BUDGETS}/both")
    acting.finish()


def test_pods_are_evicted_with_their_grace(acting: Acting) -> None:
    """The Eviction API stops them; repeating the instruction evicts nothing else."""
    acting.pod("e0", 8, group="out")
    actuator, instruction = acting.actuator(), acting.instruction("group/default/out", evict(grace_s=50.0))
    assert actuator.apply(instruction, acting.now_s).reason == "its pods stop"
    (pod,) = acting.pods()
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 50
    assert actuator.apply(instruction, acting.now_s).reason == "its pods stop"
    acting.finish()


def test_pods_that_nobody_makes_again_are_not_moved(acting: Acting) -> None:
    """A move of a bare pod would end its work."""
    acting.pod("bare", 8, group="bare")
    outcome = acting.actuator().apply(acting.instruction("group/default/bare", evict(StopReason.MOVE)), acting.now_s)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.DECLINED, "no controller makes pod bare again")
    assert len(running_on(acting)) == 1
    acting.finish()


def test_a_job_that_an_eviction_would_fail_is_left_alone(acting: Acting) -> None:
    """No failure of the Job is left, and it does not ignore disruptions."""
    acting.plain_job("fragile", backoffLimit=0)
    (pod,) = acting.pods("fragile")
    outcome = acting.actuator().apply(acting.instruction(pod["metadata"]["uid"], evict()), acting.now_s)
    assert outcome.kind == OutcomeKind.DECLINED
    assert outcome.reason == "the eviction would fail Job fragile: 0 of its 0 allowed failures are used"
    acting.finish("fragile")


def test_a_webhook_that_refuses_is_named(acting: Acting) -> None:
    """A 403 of an admission policy is no missing right, and nothing is half done."""
    uid = acting.plain_job("denied", suspend=True, labels=OURS)
    root = "/apis/admissionregistration.k8s.io/v1"
    rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["jobs"]}
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "object.spec.suspend", "message": "Jobs stay suspended", "reason": "Forbidden"}],
    }
    for kind, path, spec in (
        ("ValidatingAdmissionPolicy", "validatingadmissionpolicies", policy),
        (
            "ValidatingAdmissionPolicyBinding",
            "validatingadmissionpolicybindings",
            {"policyName": "stay", "validationActions": ["Deny"]},
        ),
    ):
        body = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": "stay"},
            "spec": spec,
        }
        acting.ask("POST", f"{root}/{path}", body)
    acting.run(2)
    outcome = acting.actuator().apply(acting.instruction(uid, admit("n2")), acting.now_s)
    assert (outcome.kind, outcome.retryable) == (OutcomeKind.FAILED, False)
    assert "Jobs stay suspended" in outcome.reason
    assert "rights" not in outcome.reason
    for path in ("validatingadmissionpolicies", "validatingadmissionpolicybindings"):
        acting.ask("DELETE", f"{root}/{path}/stay")
    acting.run(2)
    acting.finish("denied")
