"""Jobs under Kueue on a whole server: admission, waiting, preemption, checks, gates, and a manager that is down."""

from __future__ import annotations

from itertools import pairwise

import pytest

from apiserver.audit import AuditLog
from apiserver.kueue.config import Config
from tests.kits.kueue_kit import JOBS, ROOT, SPACE, KueueCluster

CHECKED = {"admissionChecks": [{"name": "placed"}]}
TIME = "2026-01-01T00:00:00Z"
PREEMPTS = {"withinClusterQueue": "LowerPriority"}
PODS = "/api/v1/namespaces/default/pods"
JOB_CONTROLLER = "system:serviceaccount:kube-system:job-controller"


@pytest.fixture
def kueue() -> KueueCluster:
    """A cluster with Kueue and nothing in it."""
    return KueueCluster()


def test_a_job_is_suspended_then_started_with_the_labels_of_its_flavor(kueue: KueueCluster) -> None:
    """The webhook suspends it; admission resumes it where its flavor is."""
    kueue.queue("a", 8)
    assert kueue.job("one", "a", 2, pods=3)["spec"]["suspend"] is True
    kueue.run(2)
    job = kueue.ask("GET", f"{JOBS}/one")
    assert job["spec"]["suspend"] is False
    assert job["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "h100"}
    admission = kueue.workload("one")["status"]["admission"]
    assert admission["podSetAssignments"][0]["resourceUsage"] == {"cpu": "3", "nvidia.com/gpu": "6"}


def test_what_does_not_fit_waits_and_says_why(kueue: KueueCluster) -> None:
    """Missing quota for now, and quota that can never suffice."""
    kueue.queue("a", 8)
    for name, gpus in (("one", 6), ("two", 6), ("huge", 10)):
        kueue.job(name, "a", gpus)
        kueue.run(1)
    assert kueue.admitted() == {"one"}
    assert kueue.condition("two", "QuotaReserved")[2] == (
        "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor h100, "
        "4 more needed"
    )
    assert kueue.condition("huge", "QuotaReserved")[2].endswith("current podset request (10) > maximum capacity (8)")
    kueue.ask("DELETE", f"{JOBS}/one", {"propagationPolicy": "Background"})
    kueue.run(3)
    assert kueue.admitted() == {"two"}


def test_quota_is_never_exceeded_and_everything_runs_in_the_end(kueue: KueueCluster) -> None:
    """Twenty jobs of different sizes through two queues of a cohort."""
    kueue.queue("a", 4, cohortName="all")
    kueue.queue("b", 4, cohortName="all")
    for number in range(20):
        kueue.job(f"j{number}", "ab"[number % 2], 1 + number % 3)
    done: set[str] = set()
    for _ in range(40):
        kueue.run(2)
        running = kueue.admitted()
        used = sum(1 + int(name[1:]) % 3 for name in running)
        assert used <= 8
        for name in sorted(running)[:2]:
            kueue.ask("DELETE", f"{JOBS}/{name}", {"propagationPolicy": "Background"})
            done.add(name)
        if len(done) == 20:
            break
    assert done == {f"j{number}" for number in range(20)}


def test_a_higher_priority_preempts_the_lowest_and_no_more_than_it_needs(kueue: KueueCluster) -> None:
    """Of two low jobs one leaves."""
    kueue.queue("a", 8, preemption=PREEMPTS)
    kueue.priority("low", 10)
    kueue.priority("high", 1000)
    kueue.job("first", "a", 4, priority="low")
    kueue.run(2)
    kueue.job("second", "a", 4, priority="low")
    kueue.run(2)
    kueue.job("urgent", "a", 4, priority="high")
    kueue.run(5)
    assert kueue.admitted() == {"first", "urgent"}, "the one that was admitted last leaves"
    assert kueue.condition("second", "Preempted")[1] == "InClusterQueue"
    assert kueue.ask("GET", f"{JOBS}/second")["spec"]["suspend"] is True


def test_quota_lent_comes_back_to_its_owner(kueue: KueueCluster) -> None:
    """Reclaim within a cohort."""
    kueue.queue("a", 4, cohortName="all")
    kueue.queue("b", 4, cohortName="all", preemption={"reclaimWithinCohort": "Any"})
    kueue.job("borrower", "a", 8)
    kueue.run(2)
    assert kueue.admitted() == {"borrower"}
    kueue.job("owner", "b", 4)
    kueue.run(5)
    assert kueue.admitted() == {"owner"}
    assert kueue.condition("borrower", "Preempted")[1] == "InCohortReclamation"


def test_a_check_holds_a_job_until_it_is_ready_and_adds_its_updates(kueue: KueueCluster) -> None:
    """Quota is reserved, the job waits; Ready starts it with the node selector of the check."""
    kueue.create("AdmissionCheck", "admissionchecks", "placed", {"controllerName": "example.com/check"})
    active = {
        "type": "Active",
        "status": "True",
        "reason": "Ready",
        "message": "",
        "lastTransitionTime": TIME,
    }
    kueue.ask("PATCH", f"{ROOT}/admissionchecks/placed/status", {"status": {"conditions": [active]}})
    kueue.queue("a", 8, admissionChecksStrategy=CHECKED)
    kueue.run(2)
    kueue.job("one", "a", 2)
    kueue.run(2)
    assert kueue.condition("one", "QuotaReserved")[0] == "True"
    assert kueue.admitted() == set()
    name = kueue.workload("one")["metadata"]["name"]
    ready = {
        "name": "placed",
        "state": "Ready",
        "message": "",
        "lastTransitionTime": TIME,
        "podSetUpdates": [{"name": "main", "nodeSelector": {"kubernetes.io/hostname": "n1"}}],
    }
    kueue.ask("PATCH", f"{SPACE}/workloads/{name}/status", {"status": {"admissionChecks": [ready]}})
    kueue.run(2)
    template = kueue.ask("GET", f"{JOBS}/one")["spec"]["template"]["spec"]
    assert template["nodeSelector"] == {"gpu": "h100", "kubernetes.io/hostname": "n1"}


def test_what_a_queue_refers_to_is_held_until_the_queue_is_gone(kueue: KueueCluster) -> None:
    """A flavor and a check that were deleted before their queue go with it."""
    kueue.create("AdmissionCheck", "admissionchecks", "placed", {"controllerName": "example.com/ours"})
    kueue.queue("a", 8, admissionChecksStrategy=CHECKED)
    kueue.run(2)
    held = (f"{ROOT}/resourceflavors/h100", f"{ROOT}/admissionchecks/placed")
    for path in held:
        kueue.ask("DELETE", path)
    kueue.run(2)
    for path in held:
        assert "deletionTimestamp" in kueue.ask("GET", path)["metadata"]
    kueue.ask("DELETE", f"{ROOT}/clusterqueues/a")
    kueue.run(2)
    assert [kueue.ask.response("GET", path).status for path in held] == [404, 404]


def test_a_deactivated_workload_stops_and_comes_back(kueue: KueueCluster) -> None:
    """spec.active false gives the quota back; true queues it again."""
    kueue.queue("a", 8)
    kueue.job("one", "a", 8)
    kueue.run(2)
    name = kueue.workload("one")["metadata"]["name"]
    kueue.ask("PATCH", f"{SPACE}/workloads/{name}", {"spec": {"active": False}})
    kueue.run(5)
    assert kueue.ask("GET", f"{JOBS}/one")["spec"]["suspend"] is True
    assert kueue.condition("one", "Evicted")[1] == "Deactivated"
    kueue.job("other", "a", 8)
    kueue.run(2)
    assert kueue.admitted() == {"other"}
    kueue.ask("DELETE", f"{JOBS}/other", {"propagationPolicy": "Background"})
    kueue.ask("PATCH", f"{SPACE}/workloads/{name}", {"spec": {"active": True}})
    kueue.run(5)
    assert kueue.admitted() == {"one"}


def test_a_gate_keeps_a_job_out_until_it_is_removed(kueue: KueueCluster) -> None:
    """Gated workloads do not hold others up."""
    kueue.queue("a", 8)
    kueue.job("gated", "a", 8, gate="example.com/hold")
    kueue.job("free", "a", 8)
    kueue.run(2)
    assert kueue.admitted() == {"free"}
    assert "example.com/hold" in kueue.condition("gated", "QuotaReserved")[2]
    kueue.ask("DELETE", f"{JOBS}/free", {"propagationPolicy": "Background"})
    gone = {"metadata": {"annotations": {"kueue.x-k8s.io/admission-gated-by": None}}}
    kueue.ask("PATCH", f"{JOBS}/gated", gone)
    kueue.run(5)
    assert kueue.admitted() == {"gated"}


def test_without_its_manager_nothing_passes_the_webhooks_and_nothing_is_lost(kueue: KueueCluster) -> None:
    """500 while it is down; after its return the waiting job is admitted."""
    kueue.queue("a", 8)
    kueue.job("one", "a", 8)
    kueue.run(2)
    kueue.job("two", "a", 8)
    kueue.kueue.stop()
    refused = kueue.ask.response("POST", JOBS, kueue.ask("GET", f"{JOBS}/one") | {"metadata": {"name": "three"}})
    assert refused.status == 500
    assert "connection refused" in refused.plain()["message"]
    assert kueue.ask.response("GET", "/apis/kueue.x-k8s.io/v1beta1/clusterqueues/a").status == 500
    kueue.ask("DELETE", f"{JOBS}/one", {"propagationPolicy": "Background"})
    kueue.run(5)
    assert kueue.ask("GET", f"{JOBS}/two")["spec"]["suspend"] is True
    kueue.kueue.restart()
    kueue.run(5)
    assert kueue.admitted() == {"two"}


def test_a_pod_without_a_job_is_released_when_the_webhooks_answer_again(kueue: KueueCluster) -> None:
    """The Job controller tries again later each time, once a minute at the end."""
    kueue.queue("a", 8)
    kueue.job("one", "a", 8)
    kueue.run(2)
    kueue.kueue.stop()
    kueue.ask("DELETE", f"{JOBS}/one", {"propagationPolicy": "Background"})
    kueue.server.audit = AuditLog()
    kueue.run(240)
    tries_s = [each.at_s for each in kueue.server.audit.by(JOB_CONTROLLER) if each.resource == "pods"]
    assert [round(later - earlier) for earlier, later in pairwise(tries_s)][-2:] == [60, 60]
    assert len(tries_s) < 20
    assert len(kueue.ask("GET", PODS)["items"]) == 1
    kueue.kueue.restart()
    kueue.run(61)
    assert kueue.ask("GET", PODS)["items"] == []


def test_pending_workloads_have_positions_in_their_queues(kueue: KueueCluster) -> None:
    """The visibility API orders by priority, then by age."""
    kueue.queue("a", 0)
    kueue.priority("high", 10)
    kueue.job("one", "a", 1)
    kueue.run(1)
    kueue.job("two", "a", 1)
    kueue.job("three", "a", 1, priority="high")
    kueue.run(2)
    path = "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/a/pendingworkloads"
    items = kueue.ask("GET", path)["items"]
    assert [each["metadata"]["ownerReferences"][0]["name"] for each in items] == ["three", "one", "two"]
    assert [each["positionInClusterQueue"] for each in items] == [0, 1, 2]
    assert len(kueue.ask("GET", path, limit="1", offset="1")["items"]) == 1
    assert kueue.ask.response("GET", path.replace("/a/", "/none/")).status == 404


def test_the_priority_boost_counts_only_with_its_gate() -> None:
    """Annotation kueue.x-k8s.io/priority-boost on a Workload."""
    outcomes = []
    for gate in (False, True):
        kueue = KueueCluster(Config(priority_boost=gate))
        kueue.queue("a", 8, preemption=PREEMPTS)
        kueue.job("one", "a", 8)
        kueue.run(2)
        kueue.job("two", "a", 8)
        kueue.run(2)
        name = kueue.workload("two")["metadata"]["name"]
        boost = {"metadata": {"annotations": {"kueue.x-k8s.io/priority-boost": "50"}}}
        kueue.ask("PATCH", f"{SPACE}/workloads/{name}", boost)
        kueue.run(5)
        outcomes.append(kueue.admitted())
    assert outcomes == [{"one"}, {"two"}]
