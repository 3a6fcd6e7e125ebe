"""Levers on the width of elastic Jobs: before they start, and while they run."""

from __future__ import annotations

from typing import Any

import pytest

from actuators.kubernetes.objects import conditions
from autopilot.contract.annotations import MANAGE
from autopilot.core.model.objects import Slot
from autopilot.core.model.records import OutcomeKind
from autopilot.core.model.stops import StopReason
from autopilot.core.sharing_time.resize_members import ResizeOperation
from tests.kits.acting_kit import Acting, admit, pod_spec
from tests.kits.kueue_kit import JOBS, SPACE
from tests.unit.actuators.test_plain_levers import running_on

ELASTIC = {"gpu-autopilot.io/members": "3", "gpu-autopilot.io/min-members": "1"}


def resize(*nodes: str, reason: StopReason | None = None) -> ResizeOperation:
    """Go on with eight GPUs of each of these nodes."""
    return ResizeOperation(
        slots=tuple(Slot(name, f"{name}/{gpu}") for name in nodes for gpu in range(8)), reason=reason
    )


def elastic_job(acting: Acting, name: str, **more: Any) -> str:
    """A suspended Job of three pods that may run with one; its uid."""
    spec = {"suspend": True, "completions": None, **more}
    return acting.plain_job(name, 8, 3, labels={MANAGE: "true"}, annotations=ELASTIC, **spec)


def finished(acting: Acting, *instruction: Any, **more: Any) -> Any:
    """The outcome of an instruction once it has ended."""
    actuator, order = acting.actuator(), acting.instruction(*instruction, **more)
    outcome = actuator.apply(order, acting.now_s)
    for _ in range(30):
        if outcome.kind != OutcomeKind.ACCEPTED:
            break
        acting.run(2)
        found = actuator.advance(acting.now_s, 1, [order])
        outcome = found[0] if found else outcome
    return outcome


def test_a_job_starts_narrow_grows_and_gives_up_the_member_that_is_named(acting: Acting) -> None:
    """It starts with the pods that there is room for; the pod on the given node leaves, and the others stay."""
    uid = elastic_job(acting, "wide")
    actuator, order = acting.actuator(), acting.instruction(uid, admit("n1"), number="1/p/start")
    assert "1 pods" in actuator.apply(order, acting.now_s).reason
    actuator.advance(acting.now_s, 1, [order])
    acting.run(4)
    assert list(running_on(acting, "wide").values()) == ["n1"]
    grown = finished(acting, uid, resize("n1", "n2", "n3"), number="2/p/grow")
    assert (grown.kind, grown.reason) == (OutcomeKind.DONE, "it has 3 pods")
    before = running_on(acting, "wide")
    shrunk = finished(acting, uid, resize("n2", "n3", reason=StopReason.PREEMPT), number="3/p/shrink")
    assert (shrunk.kind, shrunk.reason) == (OutcomeKind.DONE, "it has 2 pods")
    after = running_on(acting, "wide")
    assert sorted(after.values()) == ["n2", "n3"]
    assert after.items() < before.items(), "the pods that stay are the same"
    labels = {name for name, _, key in acting.placed()}
    assert labels == {"n2", "n3"}, "no other pod of it may start on the node that it gave up"
    assert acting.job("wide")["spec"]["parallelism"] == 2
    acting.finish("wide")


def test_a_width_that_its_owner_does_not_allow_is_declined(acting: Acting) -> None:
    """Nothing is written where fewer pods than `min-members` would be left."""
    uid = acting.plain_job(
        "least", 8, 3, annotations={**ELASTIC, "gpu-autopilot.io/min-members": "2"}, completions=None
    )
    nodes = sorted(running_on(acting, "least").values())
    outcome = finished(acting, uid, resize(nodes[0], reason=StopReason.PREEMPT))
    assert outcome.kind == OutcomeKind.DECLINED
    assert outcome.reason == "its owner allows 2 to 3 pods, and 1 are asked for"
    assert len(running_on(acting, "least")) == 3
    acting.finish("least")


@pytest.mark.parametrize(
    ("spec", "notes", "why"),
    [
        ({"completions": 3, "completionMode": "Indexed"}, ELASTIC, "counts completions"),
        ({"completions": None}, {}, "does not declare gpu-autopilot.io/members"),
    ],
)
def test_a_rigid_job_keeps_its_width(acting: Acting, spec: dict[str, Any], notes: dict[str, str], why: str) -> None:
    """A Job that counts completions, or whose owner declares no range, has no lever."""
    uid = acting.plain_job("rigid", 8, 3, annotations=notes, **spec)
    outcome = finished(acting, uid, resize("n1", reason=StopReason.PREEMPT))
    assert outcome.kind == OutcomeKind.FAILED
    assert why in outcome.reason
    assert acting.job("rigid")["spec"]["parallelism"] == 3
    acting.finish("rigid")


def test_a_budget_that_forbids_keeps_all_pods(acting: Acting) -> None:
    """The evictions are tried first: neither a pod nor the number of pods changes."""
    uid = acting.plain_job("kept", 8, 3, annotations=ELASTIC, completions=None)
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    spec = {"minAvailable": 3, "selector": {"matchLabels": {"job-name": "kept"}}}
    acting.ask("POST", budgets, {"apiVersion": "policy/v1", "metadata": {"name": "kept"}, "spec": spec})
    acting.run(3)
    outcome = finished(acting, uid, resize("n1", "n2", reason=StopReason.PREEMPT))
    assert outcome.kind == OutcomeKind.CONFLICT
    assert "a PodDisruptionBudget forbids it" in outcome.reason
    assert len(running_on(acting, "kept")) == 3
    assert acting.job("kept")["spec"]["parallelism"] == 3
    acting.ask("DELETE", f"{budgets}/kept")
    acting.finish("kept")


def test_a_budget_for_one_pod_lets_the_job_shrink_one_by_one(acting: Acting) -> None:
    """A budget that refuses the second pod ends nothing half-way, and the Job controller replaces no pod that left."""
    uid = acting.plain_job("slow", 8, 3, annotations=ELASTIC, completions=None)
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    spec = {"minAvailable": 2, "selector": {"matchLabels": {"job-name": "slow"}}}
    acting.ask("POST", budgets, {"apiVersion": "policy/v1", "metadata": {"name": "slow"}, "spec": spec})
    acting.run(3)
    before = running_on(acting, "slow")
    actuator = acting.actuator()
    order = acting.instruction(uid, resize("n1", reason=StopReason.PREEMPT), deadline_s=acting.now_s + 600.0)
    outcome = actuator.apply(order, acting.now_s)
    assert (outcome.kind, "a part of it stops" in outcome.reason) == (OutcomeKind.ACCEPTED, True)
    for _ in range(3):
        acting.run(30)
        assert actuator.advance(acting.now_s, 1, [order]) == ()
        assert len(running_on(acting, "slow")) == 2
        assert running_on(acting, "slow").items() < before.items(), "nothing was made again"
    assert acting.job("slow")["spec"]["parallelism"] == 2
    acting.ask("PATCH", f"{budgets}/slow", {"spec": {"minAvailable": 1}})
    acting.run(3)
    second = acting.actuator()  # the next process goes on
    assert second.advance(acting.now_s, 1, [order]) == ()
    acting.run(30)
    (outcome,) = second.advance(acting.now_s, 1, [order])
    assert (outcome.kind, outcome.reason) == (OutcomeKind.DONE, "it has 1 pods")
    assert list(running_on(acting, "slow").values()) == ["n1"]
    acting.ask("DELETE", f"{budgets}/slow")
    acting.finish("slow")


def test_growth_that_finds_no_room_is_given_back(acting: Acting) -> None:
    """At its deadline the Job asks for the pods that run."""
    uid = elastic_job(acting, "late")
    actuator, order = acting.actuator(), acting.instruction(uid, admit("n1"), number="1/p/start")
    actuator.apply(order, acting.now_s)
    actuator.advance(acting.now_s, 1, [order])
    acting.run(4)
    acting.plain_job("other", 8, 2, completions=None)
    order = acting.instruction(uid, resize("n1", "n2"), number="2/p/grow", deadline_s=acting.now_s + 5)
    actuator.apply(order, acting.now_s)
    acting.run(6)
    assert acting.job("late")["spec"]["parallelism"] == 2
    (outcome,) = actuator.advance(acting.now_s, 1, [order])
    assert outcome.kind == OutcomeKind.CONFLICT
    assert outcome.reason.endswith("its width was given back")
    assert acting.job("late")["spec"]["parallelism"] == 1
    acting.finish("late", "other")


def test_a_job_of_kueue_gets_another_workload_when_it_grows(acting: Acting) -> None:
    """Kueue reserves quota for the wider one, which passes our check and lets its pods go. Shrinking needs none."""
    notes = {**ELASTIC, "kueue.x-k8s.io/elastic-job": "true"}
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "sliced", "labels": {"kueue.x-k8s.io/queue-name": "a"}, "annotations": notes},
        "spec": {"parallelism": 1, "template": {"spec": pod_spec(8)}},
    }
    uid = acting.ask("POST", JOBS, body)["metadata"]["uid"]
    acting.run(2)
    acting.actuator().apply(acting.instruction(uid, admit("n1"), number="1/p/start"), acting.now_s)
    acting.run(5)
    assert list(running_on(acting, "sliced").values()) == ["n1"]
    first = acting.workload("sliced")["metadata"]
    grown = finished(acting, uid, resize("n1", "n2"), number="2/p/grow")
    assert (grown.kind, grown.reason) == (OutcomeKind.DONE, "it has 2 pods")
    assert sorted(running_on(acting, "sliced").values()) == ["n1", "n2"]
    found = {each["metadata"]["name"]: each for each in acting.ask("GET", f"{SPACE}/workloads")["items"]}
    assert conditions(found.pop(first["name"]))["Finished"]["reason"] == "WorkloadSliceReplaced"
    (wider,) = found.values()
    assert (
        wider["metadata"]["annotations"]["kueue.x-k8s.io/workload-slice-replacement-for"] == f"default/{first['name']}"
    )
    (check,) = wider["status"]["admissionChecks"]
    assert (check["state"], "it grows on the nodes of its placement" in check["message"]) == ("Ready", True)
    shrunk = finished(acting, uid, resize("n2", reason=StopReason.PREEMPT), number="3/p/shrink")
    assert (shrunk.kind, list(running_on(acting, "sliced").values())) == (OutcomeKind.DONE, ["n2"])
    kept = acting.ask("GET", f"{SPACE}/workloads/{wider['metadata']['name']}")
    assert (kept["spec"]["podSets"][0]["count"], conditions(kept)["Admitted"]["status"]) == (1, "True")
    acting.finish("sliced")
