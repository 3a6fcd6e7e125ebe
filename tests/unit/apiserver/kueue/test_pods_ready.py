"""waitForPodsReady of Kueue: what becomes of admitted work whose pods are not ready, and of what waits behind it."""

from __future__ import annotations

from typing import Any

import pytest

from apiserver.kueue.config import Config, WaitForPodsReady
from tests.kits.apiserver_kit import START
from tests.kits.kueue_kit import JOBS, SPACE, KueueCluster

Obj = dict[str, Any]
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
STARTING = "Not all pods are ready or succeeded"
RUNNING = "All pods reached readiness and the workload is running"
RECOVERING = "At least one pod has failed, waiting for recovery"
WAITING = ("False", "Waiting", "waiting for all admitted workloads to be in PodsReady condition")
GIVEN_UP = "The workload is deactivated due to exceeding the maximum number of re-queuing retries"


def waiting(**settings: Any) -> KueueCluster:
    """A cluster without nodes and a queue of 8 GPUs, under settings of waitForPodsReady."""
    kueue = KueueCluster(Config(wait_for_pods_ready=WaitForPodsReady(**settings)))
    kueue.queue("a", 8)
    return kueue


def status(kueue: KueueCluster, job: str) -> Obj:
    """The status of the Workload of a Job."""
    found: Obj = kueue.workload(job)["status"]
    return found


def since_start_s(kueue: KueueCluster, job: str, kind: str) -> int:
    """When a condition changed last."""
    rows = status(kueue, job)["conditions"]
    stamp = next(each["lastTransitionTime"] for each in rows if each["type"] == kind)
    return int((kueue.server.timeline.now.fromisoformat(stamp) - START).total_seconds())


def events(kueue: KueueCluster, kind: str) -> list[tuple[str, str]]:
    """Reason and text of the Events about objects of a kind."""
    found = kueue.ask("GET", EVENTS)["items"]
    return [(each["reason"], each["note"]) for each in found if each["regarding"]["kind"] == kind]


def test_work_that_does_not_start_is_evicted_after_half_an_hour_and_comes_back() -> None:
    """The defaults of 0.19: 30 minutes, then one minute outside of the queue."""
    kueue = KueueCluster()
    kueue.queue("a", 8)
    kueue.job("one", "a", 2)
    kueue.run(1799)
    assert kueue.condition("one", "PodsReady") == ("False", "WaitForStart", STARTING)
    assert "requeueState" not in status(kueue, "one")
    kueue.run(1.5)
    text = f"Exceeded the PodsReady timeout default/{kueue.workload('one')['metadata']['name']}"
    assert kueue.condition("one", "Evicted") == ("True", "PodsReadyTimeout", text)
    assert status(kueue, "one")["requeueState"] == {"count": 1, "requeueAt": "2026-11-23T00:31:00Z"}
    assert status(kueue, "one")["schedulingStats"]["evictions"] == [
        {"count": 1, "reason": "PodsReadyTimeout", "underlyingCause": "WaitForStart"}
    ]
    assert ("EvictedDueToPodsReadyTimeout", text) in events(kueue, "Workload")
    assert ("Stopped", text) in events(kueue, "Job")
    kueue.run(5)
    assert kueue.condition("one", "QuotaReserved") == ("False", "Pending", text)
    assert kueue.condition("one", "Requeued") == ("False", "PodsReadyTimeout", text)
    assert kueue.condition("one", "Admitted")[1] == "NoReservation"
    assert kueue.ask("GET", f"{JOBS}/one")["spec"]["suspend"] is True
    kueue.run(60)
    assert since_start_s(kueue, "one", "Admitted") == 1860
    assert kueue.condition("one", "Requeued") == ("True", "BackoffFinished", "The workload backoff was finished")
    assert kueue.condition("one", "Evicted") == ("False", "QuotaReserved", f"Previously: {text}")
    assert status(kueue, "one")["requeueState"] == {"count": 1}


def test_the_time_outside_of_the_queue_doubles_up_to_its_limit() -> None:
    """Base 10 s, at most 30 s, with 20 s until each eviction."""
    kueue = waiting(timeout_s=20, backoff_base_s=10, backoff_max_s=30)
    kueue.job("one", "a", 2)
    moments = []
    for _ in range(4):
        kueue.run(25)
        while kueue.condition("one", "Admitted")[0] != "True":
            kueue.run(1)
        moments.append(since_start_s(kueue, "one", "Admitted"))
    assert moments == [30, 70, 120, 170]
    assert status(kueue, "one")["requeueState"] == {"count": 4}


def test_after_its_last_retry_a_workload_is_deactivated_for_good() -> None:
    """A person who activates it again does not bring it back: Kueue looks at the reason of a deactivation."""
    kueue = waiting(timeout_s=20, backoff_base_s=1, backoff_limit=1)
    kueue.job("one", "a", 2)
    kueue.run(45)
    assert kueue.workload("one")["spec"]["active"] is False
    for kind, value in (("Evicted", "True"), ("Requeued", "False")):
        assert kueue.condition("one", kind) == (value, "DeactivatedDueToRequeuingLimitExceeded", GIVEN_UP)
    assert kueue.condition("one", "DeactivationTarget")[0] == ""
    assert ("EvictedDueToDeactivatedDueToRequeuingLimitExceeded", GIVEN_UP) in events(kueue, "Workload")
    found = status(kueue, "one")
    assert "requeueState" not in found
    assert found["schedulingStats"]["evictions"][1:] == [
        {"count": 1, "reason": "Deactivated", "underlyingCause": "RequeuingLimitExceeded"}
    ]
    kueue.ask("PATCH", f"{SPACE}/workloads/{kueue.workload('one')['metadata']['name']}", {"spec": {"active": True}})
    kueue.run(60)
    assert kueue.condition("one", "QuotaReserved")[0] == "False"


@pytest.mark.parametrize(("limit_s", "evicted"), [(None, True), (0, False), (100, False)])
def test_work_that_lost_a_pod_has_a_time_of_its_own_to_recover(limit_s: float | None, evicted: bool) -> None:
    """As long as to start where it is not given; 0 is any time."""
    kueue = waiting(timeout_s=20, recovery_timeout_s=limit_s)
    kueue.node("n1")
    kueue.job("one", "a", 2)
    kueue.run(10)
    assert kueue.condition("one", "PodsReady") == ("True", "Started", RUNNING)
    kueue.ask("PATCH", "/api/v1/nodes/n1", {"spec": {"unschedulable": True}})
    pod = kueue.ask("GET", "/api/v1/namespaces/default/pods")["items"][0]["metadata"]["name"]
    kueue.ask("DELETE", f"/api/v1/namespaces/default/pods/{pod}", {"gracePeriodSeconds": 0})
    kueue.run(10)
    assert kueue.condition("one", "PodsReady") == ("False", "WaitForRecovery", RECOVERING)
    kueue.run(20)
    assert kueue.condition("one", "Evicted")[0] == ("True" if evicted else "")
    if evicted:
        assert status(kueue, "one")["schedulingStats"]["evictions"][0]["underlyingCause"] == "WaitForRecovery"
        return
    kueue.ask("PATCH", "/api/v1/nodes/n1", {"spec": {"unschedulable": None}})
    kueue.run(10)
    assert kueue.condition("one", "PodsReady") == ("True", "Recovered", RUNNING)


def test_work_that_was_evicted_for_it_queues_behind_what_came_meanwhile() -> None:
    """Its place is that of its eviction, not that of its creation."""
    kueue = waiting(timeout_s=20, backoff_base_s=1)
    kueue.job("one", "a", 8)
    kueue.run(10)
    kueue.job("two", "a", 8)
    kueue.run(20)
    assert kueue.admitted() == {"two"}
    kueue.run(10)
    assert kueue.admitted() == {"two"}
    kueue.run(20)
    assert kueue.admitted() == {"one"}


def test_with_blocked_admission_one_workload_after_another_becomes_ready() -> None:
    """The next one says what it waits for, in every queue; it goes on when the one before is ready or evicted."""
    kueue = waiting(timeout_s=60, block_admission=True)
    kueue.queue("b", 8)
    for name, queue in (("one", "a"), ("two", "a"), ("three", "b")):
        kueue.job(name, queue, 2)
        kueue.run(2)
    assert kueue.admitted() == {"one"}
    assert kueue.condition("two", "QuotaReserved") == WAITING
    assert kueue.condition("three", "QuotaReserved")[0] == "", "the whole scheduler stands"
    kueue.run(60)
    assert kueue.condition("one", "Evicted")[1] == "PodsReadyTimeout"
    assert kueue.admitted() == {"two"}
    assert kueue.condition("three", "QuotaReserved") == WAITING
    kueue.node("n1")
    kueue.run(5)
    assert kueue.admitted() == {"two", "three"}
    kueue.run(60)
    assert kueue.admitted() == {"one", "two", "three"}


def test_with_blocked_admission_a_reservation_that_waits_for_a_check_holds_up_the_others() -> None:
    """Quota that is reserved counts, not only what is admitted."""
    kueue = waiting(block_admission=True)
    kueue.create("AdmissionCheck", "admissionchecks", "placed", {"controllerName": "example.com/check"})
    active = {
        "type": "Active",
        "status": "True",
        "reason": "Ready",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    kueue.ask(
        "PATCH", "/apis/kueue.x-k8s.io/v1beta2/admissionchecks/placed/status", {"status": {"conditions": [active]}}
    )
    kueue.queue("b", 8, admissionChecksStrategy={"admissionChecks": [{"name": "placed"}]})
    kueue.node("n1")
    kueue.run(2)
    for name, queue in (("checked", "b"), ("free", "a")):
        kueue.job(name, queue, 2)
        kueue.run(2)
    assert kueue.condition("checked", "QuotaReserved")[0] == "True"
    assert kueue.condition("free", "QuotaReserved") == WAITING
    kueue.ask("DELETE", f"{JOBS}/checked", {"propagationPolicy": "Background"})
    kueue.run(5)
    assert kueue.admitted() == {"free"}


def test_without_it_no_workload_has_the_condition() -> None:
    """The feature gate DisableWaitForPodsReady."""
    kueue = KueueCluster(Config(wait_for_pods_ready=None))
    kueue.queue("a", 8)
    kueue.job("one", "a", 2)
    kueue.run(4000)
    assert kueue.admitted() == {"one"}
    assert kueue.condition("one", "PodsReady")[0] == ""
