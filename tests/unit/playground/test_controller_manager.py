"""The playground while kube-controller-manager stands still, and what its users see then (recording 35)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from autopilot.contract.annotations import CHECK
from autopilot.core.model.snapshot import State
from autopilot.playground.stage import Stage
from tests.kits.playground_acting import figures
from tests.kits.playground_kit import found_until, job, person, stage_of

JOBS, WORKLOADS = "jobs.batch", "workloads.kueue.x-k8s.io"
HOST = "kubernetes.io/hostname"
STANDS_S, ENDS_S = 600.0, 20.0
Obj = dict[str, Any]


class Late:
    """A quickstart with a controller-manager that a test stops, and pods that take some time to end."""

    def __init__(self, **more: Any) -> None:
        self.stage: Stage = stage_of(acts=True, **more)
        self.client = person(self.stage)
        self.stage.cluster.linger_s = lambda *_: ENDS_S
        self.run(10.0)

    def run(self, for_s: float) -> None:
        """Let time pass; API and world agree at every instant."""
        assert found_until(self.stage, self.stage.clock.virtual_s + for_s) == []

    def stand_still(self) -> None:
        """It does nothing for ten minutes."""
        assert self.stage.checked is not None
        self.stage.checked.manager.stand_still(self.stage.clock.virtual_s + STANDS_S)

    def create(self, name: str, **spec: Any) -> int:
        """A Job of two pods with four GPUs each; its row in the world."""
        made = job(name, gpus=4, pods=2, annotations={"playground.gpu-autopilot.io/duration": "4h"})
        made["spec"] |= spec
        self.client.create(JOBS, made)
        self.run(0.0)
        return self.stage.cluster.jobs.id.index(f"vision/{name}")

    def say(self, row: int, state: str, **more: Any) -> None:
        """Our check on its Workload."""
        gang = self.stage.projection.gangs[row]
        check = {"name": CHECK, "state": state, "message": "epoch 1: 1/a: test", **more}
        body = {"status": {"admissionChecks": [check | {"lastTransitionTime": "2026-11-19T00:00:00Z"}]}}
        self.client.patch(WORKLOADS, gang.namespace, gang.workload, body, "status")
        self.run(0.0)

    def place(self, row: int, node: str) -> None:
        """It may start on a node."""
        self.say(row, "Ready", podSetUpdates=[{"name": "main", "nodeSelector": {HOST: node}}])

    def status(self, row: int) -> Obj:
        """Of its Workload."""
        gang = self.stage.projection.gangs[row]
        found: Obj = (self.client.get(WORKLOADS, gang.namespace, gang.workload) or {})["status"]
        return found

    def job(self, name: str) -> Obj:
        """A Job."""
        return self.client.get(JOBS, "vision", name) or {}

    def pods(self, name: str) -> list[Obj]:
        """The pods of a Job."""
        return [each for each in self.client.list("pods", "vision") if each["metadata"]["labels"]["job-name"] == name]


def true(status: Obj) -> set[str]:
    """The conditions that are true."""
    return {each["type"] for each in status["conditions"] if each["status"] == "True"}


def deleted(pods: list[Obj]) -> list[bool]:
    """Of each pod whether it has a deletionTimestamp."""
    return ["deletionTimestamp" in each["metadata"] for each in pods]


@pytest.fixture
def late() -> Late:
    """That cluster."""
    return Late()


def counts(status: Mapping[str, Any]) -> dict[str, int]:
    """Of the pods of a Job."""
    return {name: status.get(name, 0) for name in ("active", "ready", "terminating")}


def test_evicted_work_runs_on_until_it_goes_on(late: Late) -> None:
    """Kueue has evicted and counted; the Job is suspended, and its pods run without a deletionTimestamp."""
    row = late.create("mine")
    late.place(row, "default-000")
    late.run(300.0)
    assert "startTime" in late.job("mine")["status"]
    late.stand_still()
    late.say(row, "Retry")
    late.run(STANDS_S - 1.0)
    status, found = late.status(row), late.job("mine")
    assert true(status) == {"QuotaReserved", "Admitted", "PodsReady", "Evicted"}
    assert status["schedulingStats"]["evictions"][0]["count"] == 1
    assert status["admissionChecks"][0]["state"] == "Pending"
    assert "admission" in status
    assert found["spec"]["suspend"] is True
    assert "startTime" not in found["status"]
    assert counts(found["status"]) == {"active": 2, "ready": 2, "terminating": 0}
    assert "Suspended" not in true(found["status"])
    assert deleted(late.pods("mine")) == [False, False]
    assert late.stage.cluster.state[row] == State.RUNNING
    assert late.stage.cluster.progress_s(row, late.stage.clock.virtual_s) > STANDS_S

    late.run(2.0)
    assert deleted(late.pods("mine")) == [True, True]
    assert counts(late.job("mine")["status"]) == {"active": 0, "ready": 0, "terminating": 2}
    assert "Suspended" in true(late.job("mine")["status"])
    late.run(ENDS_S + 60.0)
    assert late.pods("mine") == []
    assert late.status(row)["schedulingStats"]["evictions"][0]["count"] == 1
    assert "Evicted" not in true(late.status(row))


@pytest.mark.parametrize("more", [0, 1])
def test_a_stop_that_its_beneficiary_does_not_need_is_seen(late: Late, more: int) -> None:
    """Also where one was evicted minutes before the other: both leave when it goes on."""
    victims = [late.create(f"victim-{number}") for number in range(2)]
    for row, node in zip(victims, ("default-000", "default-001"), strict=True):
        late.place(row, node)
    for number in range(2):  # no other node is free
        late.place(late.create(f"beside-{number}"), f"default-00{2 + number}")
    late.create("owed")
    late.run(60.0)
    late.stand_still()
    for row in victims[: 1 + more]:
        late.say(row, "Retry", message=f"epoch 1: 7/pipeline-vision/owed-0123abcd/{row}: stopped: preempt")
        late.run(120.0)
    late.run(STANDS_S)
    found = figures(late.stage.simulation, late.stage.clock.virtual_s, cpu_s=0.0).violations
    assert [each.checker for each in found] == ["needed"] * more


def test_admitted_work_has_no_pods_until_it_goes_on(late: Late) -> None:
    """Its Job is resumed, and its GPUs are free."""
    row = late.create("mine")
    late.stand_still()
    late.place(row, "default-000")
    late.run(STANDS_S - 1.0)
    assert "Admitted" in true(late.status(row))
    assert late.job("mine")["spec"]["suspend"] is False
    assert counts(late.job("mine")["status"]) == {"active": 0, "ready": 0, "terminating": 0}
    assert "Suspended" in true(late.job("mine")["status"])
    assert late.pods("mine") == []
    assert late.stage.cluster.held[row] is None
    late.run(2.0)
    assert {each["spec"]["nodeName"] for each in late.pods("mine")} == {"default-000"}
    assert "Suspended" not in true(late.job("mine")["status"])


def test_work_that_was_admitted_and_evicted_meanwhile_never_has_pods(late: Late) -> None:
    """It gives its quota back at once, and waits again."""
    row = late.create("mine")
    late.stand_still()
    late.place(row, "default-000")
    late.say(row, "Retry")
    late.run(STANDS_S + 60.0)
    assert late.pods("mine") == []
    assert late.job("mine")["spec"]["suspend"] is True
    assert true(late.status(row)) == {"QuotaReserved", "Requeued"}
    late.place(row, "default-001")
    assert {each["spec"]["nodeName"] for each in late.pods("mine")} == {"default-001"}


def test_a_job_in_no_queue_that_is_resumed_meanwhile_keeps_its_pods() -> None:
    """The Job controller sees the last word only."""
    late = Late(without=("vision",))
    row = late.create("mine", suspend=False)
    late.run(300.0)
    late.stand_still()
    late.client.patch(JOBS, "vision", "mine", {"spec": {"suspend": True}})
    late.run(30.0)
    assert deleted(late.pods("mine")) == [False, False]
    late.client.patch(JOBS, "vision", "mine", {"spec": {"suspend": False}})
    late.run(STANDS_S)
    assert deleted(late.pods("mine")) == [False, False]
    assert late.stage.cluster.incarnation[row] == 0
    late.client.patch(JOBS, "vision", "mine", {"spec": {"suspend": True}})
    late.run(1.0)
    assert deleted(late.pods("mine")) == [True, True]


def test_a_service_that_is_scaled_changes_when_it_goes_on(late: Late) -> None:
    """The Deployment asks for other replicas than there are."""
    key = ("deployments.apps", "assistants", "chat")
    before = (late.client.get(*key) or {})["status"]["replicas"]
    late.stand_still()
    late.client.patch(*key, {"spec": {"replicas": before + 2}})
    late.run(30.0)
    found = late.client.get(*key) or {}
    assert (found["spec"]["replicas"], found["status"]["replicas"]) == (before + 2, before)
    late.run(STANDS_S - 29.0)
    assert (late.client.get(*key) or {})["status"]["replicas"] == before + 2
