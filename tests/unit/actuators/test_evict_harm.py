"""Evictions that would fail a Job are not begun, however many pods would leave, and whatever its rules are."""

from __future__ import annotations

from typing import Any

import pytest

from actuators.kubernetes.levers.evict_pods import job_fails
from autopilot.core.model.records import Cause, OutcomeKind
from autopilot.core.model.stops import Save, StopReason
from tests.kits.acting_kit import PODS, Acting, evict, pod_spec
from tests.kits.kueue_kit import JOBS
from tests.unit.actuators.test_job_width import ELASTIC, finished, resize
from tests.unit.actuators.test_plain_levers import running_on

Obj = dict[str, Any]
DISRUPTED = [{"type": "DisruptionTarget", "status": "True"}]
IGNORE = {"action": "Ignore", "onPodConditions": DISRUPTED}
FAIL_JOB = {"action": "FailJob", "onPodConditions": DISRUPTED}
COUNTED = {"action": "Count", "onPodConditions": DISRUPTED}


def on_codes(action: str, operator: str, *values: int) -> Obj:
    """A rule about exit codes."""
    return {"action": action, "onExitCodes": {"operator": operator, "values": list(values)}}


def job_of_a_set(acting: Acting, name: str, **spec: Any) -> str:
    """A Job of three pods whose gang is known by its pods only, as that of a JobSet; the uid of the gang."""
    template = {"metadata": {"labels": {"group": name}}, "spec": pod_spec(8)}
    body = {"parallelism": 3, "completions": 3, "template": template, **spec}
    meta = {"name": name, "labels": {"of": "a-set"}}
    acting.ask("POST", JOBS, {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": body})
    acting.run(4)
    assert len(running_on(acting, name)) == 3
    return f"group/default/{name}"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"backoffLimit": 2}, "0 of its 2 allowed failures are used and 3 pods would leave"),
        ({"podFailurePolicy": {"rules": [FAIL_JOB]}}, "its podFailurePolicy says FailJob for it"),
        (
            {"backoffLimitPerIndex": 0, "completionMode": "Indexed", "podFailurePolicy": {"rules": [COUNTED]}},
            "would fail index 0 of Job",
        ),
    ],
    ids=["more pods than failures", "a rule that fails it", "an index that may not fail"],
)
def test_a_gang_that_its_eviction_would_fail_keeps_every_pod(acting: Acting, spec: Obj, words: str) -> None:
    """No pod is evicted, and the outcome says why; the controller chooses another victim."""
    uid = job_of_a_set(acting, "harmed", **spec)
    outcome = acting.actuator().apply(acting.instruction(uid, evict()), acting.now_s)
    assert (outcome.kind, outcome.cause) == (OutcomeKind.DECLINED, Cause.HARM)
    assert words in outcome.reason
    assert len(running_on(acting, "harmed")) == 3
    acting.finish("harmed")


@pytest.mark.parametrize(
    "spec",
    [
        {"backoffLimit": 3},
        {"backoffLimit": 0, "podFailurePolicy": {"rules": [on_codes("FailJob", "In", 42), IGNORE]}},
    ],
    ids=["as many failures as pods", "a rule that ignores it"],
)
def test_a_gang_that_survives_its_eviction_is_evicted(acting: Acting, spec: Obj) -> None:
    """Its Job makes other pods, and has not failed."""
    uid = job_of_a_set(acting, "sound", **spec)
    outcome = acting.actuator().apply(acting.instruction(uid, evict()), acting.now_s)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.ACCEPTED, "its pods stop")
    acting.run(60)
    assert not any(each["type"] == "Failed" for each in acting.job("sound").get("status", {}).get("conditions", ()))
    acting.finish("sound")


def test_work_that_no_lever_can_stop_is_no_failure(acting: Acting) -> None:
    """The Job of another controller keeps its place, and other work is chosen; failures would pause the autopilot."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}
    uid = acting.ask("POST", "/api/v1/namespaces/default/configmaps", owner)["metadata"]["uid"]
    by = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid, "controller": True}
    body = {"parallelism": 1, "completions": 1, "template": {"spec": pod_spec(8)}}
    meta = {"name": "owned", "ownerReferences": [by]}
    job = acting.ask("POST", JOBS, {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": body})
    acting.run(4)
    outcome = acting.actuator().apply(acting.instruction(job["metadata"]["uid"], evict()), acting.now_s)
    assert (outcome.kind, outcome.cause) == (OutcomeKind.DECLINED, Cause.LEVER)
    assert "ConfigMap owner manages its Job" in outcome.reason
    assert len(running_on(acting, "owned")) == 1
    acting.finish("owned")


def test_a_job_does_not_shrink_by_more_pods_than_may_fail(acting: Acting) -> None:
    """Two of three pods would leave, and one failure is left."""
    uid = acting.plain_job("fragile-width", 8, 3, annotations=ELASTIC, completions=None, backoffLimit=1)
    (stays, *_) = sorted(running_on(acting, "fragile-width").values())
    outcome = finished(acting, uid, resize(stays, reason=StopReason.PREEMPT))
    assert (outcome.kind, outcome.cause) == (OutcomeKind.DECLINED, Cause.HARM)
    assert "and 2 pods would leave" in outcome.reason
    assert len(running_on(acting, "fragile-width")) == 3
    acting.finish("fragile-width")


@pytest.mark.parametrize(
    ("rules", "harm"),
    [
        ([IGNORE], False),
        ([on_codes("FailJob", "In", 1, 42), IGNORE], False),
        ([on_codes("FailJob", "In", 143), IGNORE], True),
        ([on_codes("FailJob", "NotIn", 0, 3), IGNORE], True),
        ([on_codes("FailJob", "NotIn", 137, 143), IGNORE], False),
        ([on_codes("FailIndex", "In", 137), IGNORE], True),
        ([on_codes("Ignore", "In", 143)], True),  # the program may end with another code
        ([{"action": "Ignore", "onPodConditions": [{"type": "ConfigIssue"}]}], True),
        ([IGNORE, FAIL_JOB], False),
    ],
)
def test_the_first_rule_that_matches_decides(rules: list[Obj], harm: bool) -> None:
    """As the Job controller reads them, with the exit codes of SIGTERM and SIGKILL; no failure is left here."""
    job = {"metadata": {"name": "j"}, "spec": {"backoffLimit": 0, "podFailurePolicy": {"rules": rules}}}
    assert bool(job_fails(job, [{"metadata": {}}])) is harm


def test_an_index_that_may_still_fail_is_no_harm() -> None:
    """Each pod says how often its index has failed."""
    pod = {"metadata": {"annotations": {"batch.kubernetes.io/job-index-failure-count": "1"}}}
    job = {"metadata": {"name": "j"}, "spec": {"backoffLimitPerIndex": 2}}
    assert job_fails(job, [pod] * 100) == ""
    assert "its 1 allowed failures" in job_fails({**job, "spec": {"backoffLimitPerIndex": 1}}, [pod])


@pytest.mark.parametrize(("asked_s", "given_s"), [(20.0, 600), (900.0, 900)])
def test_the_grace_that_its_owner_declares_is_never_shortened(acting: Acting, asked_s: float, given_s: int) -> None:
    """A pod that declares ten minutes to save on SIGTERM gets them, also where the decision has less patience."""
    spec = {**pod_spec(8), "terminationGracePeriodSeconds": 600}
    meta = {"name": "slow", "labels": {"group": "slow"}}
    acting.ask("POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    acting.run(3)
    order = acting.instruction("group/default/slow", evict(grace_s=asked_s, save=Save.TRY))
    acting.actuator().apply(order, acting.now_s)
    (pod,) = acting.pods()
    assert pod["metadata"]["deletionGracePeriodSeconds"] == given_s
    acting.finish()
