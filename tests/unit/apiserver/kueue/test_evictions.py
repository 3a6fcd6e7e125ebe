"""Evictions of Kueue: their order of writes, a second Retry, Jobs that fail meanwhile, and Jobs made anew."""

from __future__ import annotations

from typing import Any

import pytest

from apiserver.audit import AuditLog
from tests.kits.kueue_kit import JOBS, ROOT, SPACE, KueueCluster

Obj = dict[str, Any]
TIME = "2026-01-01T00:00:00Z"
PODS = "/api/v1/namespaces/default/pods"
RETRY = {"state": "Retry", "message": "moved"}


class Checked(KueueCluster):
    """A queue with an AdmissionCheck, one node, and a Job `one` of two pods that run."""

    def __init__(self) -> None:
        super().__init__()
        self.node("n1")
        self.create("AdmissionCheck", "admissionchecks", "placed", {"controllerName": "example.com/check"})
        active = {"type": "Active", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": TIME}
        self.ask("PATCH", f"{ROOT}/admissionchecks/placed/status", {"status": {"conditions": [active]}})
        self.queue("a", 8, admissionChecksStrategy={"admissionChecks": [{"name": "placed"}]})
        self.run(2)
        self.start()

    def start(self) -> None:
        """The Job, until it runs."""
        self.job("one", "a", 2, pods=2)
        self.run(2)
        self.check(state="Ready", message="")
        self.run(10)
        assert self.ask("GET", f"{JOBS}/one")["status"]["active"] == 2

    def check(self, **fields: str) -> None:
        """State the check of the Workload."""
        stated = {"name": "placed", "lastTransitionTime": TIME, **fields}
        name = self.workload("one")["metadata"]["name"]
        self.ask("PATCH", f"{SPACE}/workloads/{name}/status", {"status": {"admissionChecks": [stated]}})

    def activate(self, active: bool) -> None:
        """Write `spec.active` of the Workload."""
        self.ask("PATCH", f"{SPACE}/workloads/{self.workload('one')['metadata']['name']}", {"spec": {"active": active}})

    def pods(self) -> list[Obj]:
        """The pods of the Job."""
        found: list[Obj] = self.ask("GET", PODS, labelSelector="job-name=one")["items"]
        return found


@pytest.fixture
def kueue() -> Checked:
    """A Job that runs under a check."""
    return Checked()


def test_an_eviction_is_stated_before_its_pods_are_deleted(kueue: Checked) -> None:
    """While the controller of Jobs stands, the Job is suspended, its pods run, and its quota is held."""
    controllers = kueue.server.process("kube-controller-manager")
    controllers.stop()
    kueue.check(**RETRY)
    kueue.run(5)
    assert kueue.condition("one", "Evicted")[:2] == ("True", "AdmissionCheck")
    assert kueue.condition("one", "QuotaReserved")[0] == "True"
    assert kueue.workload("one")["status"]["admissionChecks"][0]["state"] == "Pending"
    job = kueue.ask("GET", f"{JOBS}/one")
    assert (job["spec"]["suspend"], job["status"]["active"]) == (True, 2)
    assert [each["metadata"].get("deletionTimestamp") for each in kueue.pods()] == [None, None]
    controllers.resume()
    kueue.run(60)
    assert kueue.pods() == []
    assert kueue.workload("one")["status"]["admissionChecks"][0]["state"] == "Pending"
    kueue.check(state="Ready", message="")
    kueue.run(10)
    assert kueue.admitted() == {"one"}


def test_a_job_that_cannot_be_stopped_yet_is_tried_less_and_less_often(kueue: Checked) -> None:
    """As the queues of Kueue do, while nothing changes; a change is seen at once."""
    controllers, audit = kueue.server.process("kube-controller-manager"), AuditLog()
    controllers.stop()
    kueue.check(**RETRY)
    kueue.run(2)
    kueue.server.audit = audit
    kueue.run(600)
    assert 0 < len(audit.entries) < 20
    controllers.resume()
    kueue.run(3)
    assert kueue.pods() == []
    assert kueue.condition("one", "Requeued")[0] == "True"


def test_a_second_retry_during_an_eviction_strands_the_workload(kueue: Checked) -> None:
    """It stays Retry, and neither Ready nor Pending helps; spec.active false and true with Pending does."""
    controllers = kueue.server.process("kube-controller-manager")
    controllers.stop()
    kueue.check(**RETRY)
    kueue.run(3)
    kueue.check(**RETRY)
    kueue.run(3)
    controllers.resume()
    kueue.run(60)
    assert kueue.workload("one")["status"]["admissionChecks"][0]["state"] == "Retry"
    assert kueue.condition("one", "QuotaReserved")[0] == "False"
    kueue.check(state="Pending", message="")
    kueue.run(60)
    assert kueue.condition("one", "QuotaReserved")[0] == "False"
    kueue.activate(active=False)
    kueue.run(5)
    kueue.activate(active=True)
    kueue.run(10)
    assert kueue.condition("one", "QuotaReserved")[0] == "True"


def test_a_job_that_was_made_anew_keeps_its_own_workload(kueue: Checked) -> None:
    """Kueue removes the Workload of the Job before, and admits the new one by itself."""
    before = kueue.workload("one")["metadata"]["uid"]
    kueue.ask("DELETE", f"{JOBS}/one", {"propagationPolicy": "Background"})
    made = kueue.job("one", "a", 2, pods=2)
    kueue.run(60)
    found = kueue.ask("GET", f"{SPACE}/workloads")["items"]
    assert [each["metadata"]["ownerReferences"][0]["uid"] for each in found] == [made["metadata"]["uid"]]
    assert found[0]["metadata"]["uid"] != before
    kueue.check(state="Ready", message="")
    kueue.run(10)
    assert kueue.admitted() == {"one"}


def test_a_deletion_in_the_background_takes_over_from_one_in_the_foreground(kueue: Checked) -> None:
    """The finalizer of the policy before is taken away, so the Job goes before its pods do."""
    kueue.server.process("kube-controller-manager").stop()
    kueue.ask("DELETE", f"{JOBS}/one", {"propagationPolicy": "Foreground"})
    assert kueue.ask("GET", f"{JOBS}/one")["metadata"]["finalizers"] == ["foregroundDeletion"]
    kueue.ask("DELETE", f"{JOBS}/one", {"propagationPolicy": "Background"})
    assert kueue.ask.response("GET", f"{JOBS}/one").status == 404
    assert len(kueue.pods()) == 2


@pytest.mark.parametrize(
    ("kind", "status", "message"),
    [
        ("Failed", {}, "status.active: Invalid value: 2: active>0 is invalid for finished job"),
        ("Complete", {"active": 0}, "completionTime is required for Complete jobs"),
        ("Failed", {"active": 0, "startTime": None}, "status.startTime: Required value"),
    ],
)
def test_the_status_of_a_job_that_ends_is_checked(kueue: Checked, kind: str, status: Obj, message: str) -> None:
    """No active pods, a start, and a time of completion."""
    ended = {"type": kind, "status": "True", "reason": "x", "message": "", "lastTransitionTime": TIME}
    body = {"status": {**status, "conditions": [ended]}}
    assert message in kueue.ask.refused(422, "PATCH", f"{JOBS}/one/status", body)


def test_a_job_that_was_about_to_fail_and_is_evicted_never_fails(kueue: Checked) -> None:
    """Suspension comes before the end: FailureTarget stays, Failed never comes."""
    controllers = kueue.server.process("kube-controller-manager")
    controllers.stop()
    target = {"type": "FailureTarget", "status": "True", "reason": "x", "message": "", "lastTransitionTime": TIME}
    kueue.ask("PATCH", f"{JOBS}/one/status", {"status": {"conditions": [target]}})
    kueue.check(**RETRY)
    kueue.run(5)
    controllers.resume()
    kueue.run(60)
    stated = {each["type"] for each in kueue.ask("GET", f"{JOBS}/one")["status"]["conditions"]}
    assert "Failed" not in stated
