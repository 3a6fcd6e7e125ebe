"""Ways by which running work gives quota back: pods that are done, preemption, stopped queues, time that is over."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.kueue_kit import API_VERSION, GPU, JOBS, ROOT, SPACE, KueueCluster

Obj = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


@pytest.fixture
def kueue() -> KueueCluster:
    """A cluster with Kueue and two nodes."""
    found = KueueCluster()
    found.node("n1")
    found.node("n2")
    return found


def events(kueue: KueueCluster, reason: str) -> list[str]:
    """Texts of the Events with a reason."""
    return [each["note"] for each in kueue.ask("GET", EVENTS)["items"] if each["reason"] == reason]


@pytest.mark.parametrize("mode", ["NonIndexed", "Indexed"])
def test_pods_that_are_done_give_their_quota_back(kueue: KueueCluster, mode: str) -> None:
    """One of two pods has succeeded: another Job takes its part, and the Job comes back with one pod's quota."""
    kueue.queue("a", 8)
    job = kueue.job_of("one", "a", 4, 2)
    job["spec"]["completionMode"] = mode
    kueue.ask("POST", JOBS, job)
    kueue.run(5)
    kueue.job("two", "a", 4)
    kueue.run(2)
    assert kueue.admitted() == {"one"}
    first = kueue.ask("GET", PODS, labelSelector="job-name=one")["items"][0]["metadata"]["name"]
    kueue.ask("PATCH", f"{PODS}/{first}/status", {"status": {"phase": "Succeeded"}})
    kueue.run(5)
    assert kueue.workload("one")["status"]["reclaimablePods"] == [{"name": "main", "count": 1}]
    assert kueue.admitted() == {"one", "two"}
    path = f"{SPACE}/workloads/{kueue.workload('one')['metadata']['name']}"
    for active in (False, True):
        kueue.ask("PATCH", path, {"spec": {"active": active}})
        kueue.run(5)
    (row,) = kueue.workload("one")["status"]["admission"]["podSetAssignments"]
    assert (row["count"], row["resourceUsage"][GPU]) == (1, "4")


LOWER = {"policy": "LowerPriority"}
PREEMPTIONS: dict[str, tuple[Obj, str, int, str]] = {
    "InClusterQueue": ({"withinClusterQueue": "LowerPriority"}, "b", 4, "prioritization in the ClusterQueue"),
    "InCohortReclamation": ({"reclaimWithinCohort": "Any"}, "a", 4, "reclamation within the cohort"),
    "InCohortReclaimWhileBorrowing": (
        {"reclaimWithinCohort": "LowerPriority", "borrowWithinCohort": LOWER},
        "a",
        6,
        "reclamation within the cohort while borrowing",
    ),
}


@pytest.mark.parametrize("reason", PREEMPTIONS)
def test_preempted_work_says_for_whom_and_why(kueue: KueueCluster, reason: str) -> None:
    """Queues `a` and `b` of a cohort with four GPUs each. The victim has all eight, and comes back by itself."""
    preemption, queue, gpus, words = PREEMPTIONS[reason]
    kueue.queue("a", 4, cohortName="all")
    kueue.queue("b", 4, cohortName="all", preemption=preemption)
    kueue.priority("high", 10)
    kueue.job("victim", queue, 8)
    kueue.run(2)
    kueue.job("taker", "b", gpus, priority="high")
    kueue.run(5)
    taker, victim = kueue.workload("taker"), kueue.workload("victim")
    path = f"preemptor path: /all/b; preemptee path: /all/{queue}"
    job = taker["metadata"]["ownerReferences"][0]["uid"]
    text = (
        f"Preempted to accommodate a workload (UID: {taker['metadata']['uid']}, JobUID: {job}) due to {words}; {path}"
    )
    assert kueue.admitted() == {"taker"}
    assert kueue.condition("victim", "Preempted") == ("True", reason, text)
    assert kueue.condition("victim", "Evicted") == ("True", "Preempted", text)
    assert kueue.condition("victim", "Requeued") == ("True", "Preempted", text)
    assert victim["status"]["schedulingStats"]["evictions"] == [
        {"count": 1, "reason": "Preempted", "underlyingCause": ""}
    ]
    assert events(kueue, "EvictedDueToPreempted") == [text]
    effective = [f"effective priority: {each} (base: {each}, boost: 0)" for each in (10, 0)]
    who = f"preemptor {effective[0]}; preemptee {effective[1]}"
    assert events(kueue, "Preempted") == [f"{text}; {who}"]
    name = f"default/{victim['metadata']['name']} (UID: {victim['metadata']['uid']})"
    assert events(kueue, "PreemptedWorkload") == [f"Preempted workload {name} in ClusterQueue {queue}; {who}"]
    kueue.ask("DELETE", f"{JOBS}/taker", {"propagationPolicy": "Background"})
    kueue.run(5)
    assert kueue.condition("victim", "Preempted") == ("False", "QuotaReserved", f"Previously: {text}")


@pytest.mark.parametrize("kind", ["LocalQueue", "ClusterQueue"])
def test_a_drained_queue_takes_its_work_back_when_it_goes_on(kueue: KueueCluster, kind: str) -> None:
    """Hold keeps what runs, HoldAndDrain does not."""
    kueue.queue("a", 8)
    kueue.job("one", "a", 4)
    kueue.run(2)
    path = f"{SPACE}/localqueues/a" if kind == "LocalQueue" else f"{ROOT}/clusterqueues/a"
    for policy, held in (("Hold", True), ("HoldAndDrain", False)):
        kueue.ask("PATCH", path, {"spec": {"stopPolicy": policy}})
        kueue.run(5)
        assert (kueue.admitted() == {"one"}) == held
    text = f"The {kind} is stopped"
    assert kueue.condition("one", "Evicted") == ("True", f"{kind}Stopped", text)
    assert kueue.condition("one", "Requeued") == ("False", f"{kind}Stopped", text)
    assert kueue.condition("one", "QuotaReserved") == ("False", "Inadmissible", f"{kind} a is inactive")
    assert events(kueue, f"EvictedDueTo{kind}Stopped") == [text]
    kueue.ask("PATCH", path, {"spec": {"stopPolicy": "None"}})
    kueue.run(5)
    assert kueue.admitted() == {"one"}
    restarted = f"The {kind} was restarted after being stopped"
    assert kueue.condition("one", "Requeued") == ("True", f"{kind}Restarted", restarted)


def test_the_time_of_earlier_runs_counts_against_the_limit(kueue: KueueCluster) -> None:
    """Label max-exec-time-seconds: 12 s in two runs, then the Workload is deactivated."""
    kueue.queue("a", 8)
    job = kueue.job_of("one", "a", 4)
    job["metadata"]["labels"]["kueue.x-k8s.io/max-exec-time-seconds"] = "12"
    kueue.ask("POST", JOBS, job)
    kueue.run(6)
    path = f"{SPACE}/workloads/{kueue.workload('one')['metadata']['name']}"
    for active in (False, True):
        kueue.ask("PATCH", path, {"spec": {"active": active}})
        kueue.run(3)
    assert kueue.workload("one")["status"]["accumulatedPastExecutionTimeSeconds"] == 7
    kueue.run(4)
    assert kueue.workload("one")["spec"]["active"] is False
    text = "The workload is deactivated due to exceeding the maximum execution time"
    assert kueue.condition("one", "Evicted") == ("True", "DeactivatedDueToMaximumExecutionTimeExceeded", text)
    assert events(kueue, "MaximumExecutionTimeExceeded") == ["The maximum execution time (12s) exceeded"]


def test_a_workload_that_nobody_owns_is_queued_as_well(kueue: KueueCluster) -> None:
    """A Workload made by hand holds quota like one of a Job."""
    kueue.queue("a", 8)
    pod = kueue.job_of("x", "a", 8)["spec"]["template"]
    spec = {"queueName": "a", "podSets": [{"name": "main", "count": 1, "template": pod}]}
    made = {"apiVersion": API_VERSION, "kind": "Workload", "metadata": {"name": "own"}, "spec": spec}
    kueue.ask("POST", f"{SPACE}/workloads", made)
    kueue.run(2)
    kueue.job("one", "a", 8)
    kueue.run(2)
    assert kueue.ask("GET", f"{SPACE}/workloads/own")["status"]["admission"]["clusterQueue"] == "a"
    assert kueue.condition("one", "QuotaReserved")[0] == "False"
