"""Where the autopilot acts: what is written through the API happens in the world, and Kueue's conditions follow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from apiserver.errors import StatusError
from autopilot.contract.annotations import CHECK, CHECKPOINT_ACK, CHECKPOINT_REQUEST, CONTROLLER
from autopilot.core.model.snapshot import State
from autopilot.playground import levers
from autopilot.playground.levers import NOTICED_S
from autopilot.playground.stage import Stage
from autopilot.playground.steps import GATED_BY
from tests.kits.playground_kit import found_until, job, person, stage_of

LONG = {
    "playground.gpu-autopilot.io/duration": "4h",
    "gpu-autopilot.io/checkpoint-on-request": "true",
    "gpu-autopilot.io/checkpoint-write-s": "20",
}
"""Four hours of work that saves on request."""
WORKLOADS, JOBS = "workloads.kueue.x-k8s.io", "jobs.batch"


class Acting:
    """A quickstart without work of its own, and one Job of a person in it."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.client = stage, person(stage)

    def create(self, name: str, **more: Any) -> int:
        """A Job; its row in the world."""
        self.client.create(JOBS, job(name, **more))
        assert found_until(self.stage, self.now_s) == []
        return self.stage.cluster.jobs.id.index(f"vision/{name}")

    @property
    def now_s(self) -> float:
        return self.stage.clock.virtual_s

    def run(self, for_s: float) -> None:
        """Let time pass; API and world agree at every instant."""
        assert found_until(self.stage, self.now_s + for_s) == []

    def workload(self, row: int) -> dict[str, Any]:
        gang = self.stage.projection.gangs[row]
        found = self.client.get(WORKLOADS, gang.namespace, gang.workload)
        assert found is not None
        return found

    def says(self, row: int) -> dict[str, str]:
        """Condition -> status/reason."""
        rows = self.workload(row)["status"]["conditions"]
        return {each["type"]: f"{each['status']}/{each['reason']}" for each in rows}

    def check(self, row: int) -> dict[str, Any]:
        found: dict[str, Any] = self.workload(row)["status"]["admissionChecks"][0]
        return found

    def write(self, row: int, state: str, **more: Any) -> None:
        """Write the state of our check by apply, as its controller does."""
        found = self.workload(row)
        metadata = {name: found["metadata"][name] for name in ("name", "namespace", "uid")}
        at = "2026-11-19T00:00:00Z"
        entry = {"name": CHECK, "state": state, "message": "epoch 1: test", "lastTransitionTime": at, **more}
        body = {"apiVersion": found["apiVersion"], "kind": "Workload", "metadata": metadata}
        self.client.patch(
            WORKLOADS,
            metadata["namespace"],
            metadata["name"],
            body | {"status": {"admissionChecks": [entry]}},
            "status",
            how="apply",
        )
        assert found_until(self.stage, self.now_s) == []

    def place(self, row: int, **selector: str) -> None:
        """Ready, with a node selector."""
        self.write(row, "Ready", podSetUpdates=[{"name": "main", "nodeSelector": selector}])

    def activate(self, row: int, *, active: bool) -> None:
        gang = self.stage.projection.gangs[row]
        self.client.patch(WORKLOADS, gang.namespace, gang.workload, {"spec": {"active": active}})
        assert found_until(self.stage, self.now_s) == []


@pytest.fixture
def acting() -> Acting:
    """At 10 s, when nothing of the scenario was admitted."""
    found = Acting(stage_of(acts=True))
    found.run(10.0)
    assert not found.stage.cluster.holding
    return found


def hosts(acting: Acting, row: int) -> set[str]:
    """The nodes on which it runs."""
    hardware, held = acting.stage.cluster.hardware, acting.stage.cluster.held[row]
    assert held is not None
    return {acting.stage.projection.nodes.names[hardware.node_of[gpu]] for gpu in held.gpus}


def test_nothing_starts_by_itself(acting: Acting) -> None:
    """Work of the scenario is gated; a Job of a person holds quota, and its check is Pending."""
    row = acting.create("mine")
    assert acting.says(row) == {"QuotaReserved": "True/QuotaReserved"}
    assert acting.check(row)["state"] == "Pending"
    assert acting.workload(row)["status"]["admission"]["clusterQueue"] == "vision"
    acting.run(300.0)
    assert row in acting.stage.cluster.pending
    gated = next(each for each in acting.stage.projection.gangs.values() if each.first_gates)
    condition = acting.says(gated.job)["QuotaReserved"]
    assert condition == "False/AdmissionGated"
    assert acting.workload(gated.job)["metadata"]["annotations"][GATED_BY] == CONTROLLER


def test_a_workload_requests_what_a_limit_range_gives_its_pods(acting: Acting) -> None:
    """As Kueue counts it, so that work without requests of its own is seen as work for a GPU."""
    row = acting.create("plain", gpus=0)
    (container,) = acting.workload(row)["spec"]["podSets"][0]["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == {"nvidia.com/gpu": "1"}


def test_a_ready_check_starts_the_gang_on_the_node_that_it_names(acting: Acting) -> None:
    """With the labels of the flavor in the template, and the conditions that Kueue writes."""
    row = acting.create("mine", pods=2)
    acting.place(row, **{"kubernetes.io/hostname": "default-002"})
    assert hosts(acting, row) == {"default-002"}
    assert acting.says(row)["Admitted"] == "True/Admitted"
    stored = acting.client.get(JOBS, "vision", "mine") or {}
    assert stored["spec"]["suspend"] is False
    selector = stored["spec"]["template"]["spec"]["nodeSelector"]
    assert selector["kubernetes.io/hostname"] == "default-002"
    assert selector["nvidia.com/gpu.product"].startswith("NVIDIA-A100")
    acting.run(900.0)
    assert acting.stage.cluster.state[row] == State.SUCCEEDED
    assert acting.says(row)["Finished"] == "True/Succeeded"


def test_a_gang_on_several_nodes_is_selected_by_a_label_of_its_own(acting: Acting) -> None:
    """The label is on exactly the chosen nodes."""
    row = acting.create("wide", gpus=8, pods=2)
    label = "placement.gpu-autopilot.io/0123456789"
    for name in ("default-001", "default-003"):
        acting.client.patch("nodes", "", name, {"metadata": {"labels": {label: "true"}}})
    acting.place(row, **{label: "true"})
    assert hosts(acting, row) == {"default-001", "default-003"}


def test_without_room_its_pods_wait_and_start_when_there_is_some(acting: Acting) -> None:
    """Quota is not room: an admitted gang on a full node waits as Unschedulable."""
    first, second = acting.create("first", gpus=8), acting.create("second", gpus=8)
    for row in (first, second):
        acting.place(row, **{"kubernetes.io/hostname": "default-000"})
    assert first in acting.stage.cluster.holding
    assert second in acting.stage.cluster.pending
    pods = [each for each in acting.client.list("pods", "vision") if each["metadata"]["name"].startswith("second")]
    assert [each["status"]["conditions"][0]["reason"] for each in pods] == ["Unschedulable"]
    acting.run(600.0)
    assert hosts(acting, second) == {"default-000"}


def test_retry_evicts_gives_quota_back_and_moves(acting: Acting) -> None:
    """Evicted, suspended, gone, requeued, reserved again with a check that is Pending."""
    row = acting.create("mine", gpus=8)
    acting.place(row, **{"kubernetes.io/hostname": "default-000"})
    acting.run(120.0)
    acting.write(row, "Retry")
    acting.run(60.0)
    assert row in acting.stage.cluster.pending
    check = acting.check(row)
    assert (check["state"], check["message"]) == ("Pending", "Reset to Pending after eviction. Previously: Retry")
    assert check["retryCount"] == 1
    says = acting.says(row)
    assert says["Evicted"] == "False/QuotaReserved"
    assert says["Admitted"] == "False/NoReservationUnsatisfiedChecks"
    assert says["Requeued"] == "True/BackoffFinished"
    assert says["QuotaReserved"] == "True/QuotaReserved"
    stored = acting.client.get(JOBS, "vision", "mine") or {}
    assert stored["spec"]["suspend"] is True
    assert "nodeSelector" not in stored["spec"]["template"]["spec"]
    acting.place(row, **{"kubernetes.io/hostname": "default-001"})
    assert hosts(acting, row) == {"default-001"}


@pytest.mark.parametrize(("reason", "moves"), [("move", 1), ("reclaim-move", 1), ("reclaim", 0), ("", 0)])
def test_a_move_counts_as_a_migration(acting: Acting, reason: str, moves: int) -> None:
    """As in a simulation, by what our check says; every other stop is a preemption."""
    row = acting.create("mine", gpus=8)
    acting.place(row, **{"kubernetes.io/hostname": "default-000"})
    acting.run(120.0)
    acting.write(row, "Retry", message=f"epoch 1: 4/pipeline-a: stopped: {reason}")
    acting.run(60.0)
    accounts = acting.stage.simulation.accounts
    assert (accounts.migrations, accounts.preemptions) == (moves, 1 - moves)


def test_inactive_work_stays_out_until_it_is_active_again(acting: Acting) -> None:
    """`spec.active`: evicted as Deactivated, and no quota is held."""
    row = acting.create("mine", gpus=8)
    acting.place(row, **{"kubernetes.io/hostname": "default-000"})
    acting.run(60.0)
    acting.activate(row, active=False)
    acting.run(60.0)
    says = acting.says(row)
    assert says["Evicted"] == "True/Deactivated"
    assert says["QuotaReserved"] == "False/Pending"
    assert says["Requeued"] == "False/Deactivated"
    acting.activate(row, active=True)
    assert acting.says(row)["Requeued"] == "True/Reactivated"
    assert acting.says(row)["QuotaReserved"] == "True/QuotaReserved"
    acting.place(row, **{"kubernetes.io/hostname": "default-001"})
    assert hosts(acting, row) == {"default-001"}


def test_a_gate_that_is_removed_lets_work_into_its_queue(acting: Acting) -> None:
    """Quota is reserved only then; the check still holds it."""
    row = acting.create("mine", annotations={GATED_BY: f"example.com/other,{CONTROLLER}"})
    assert acting.says(row)["QuotaReserved"] == "False/AdmissionGated"
    acting.client.patch(JOBS, "vision", "mine", {"metadata": {"annotations": {GATED_BY: "example.com/other"}}})
    acting.run(0.0)
    assert acting.says(row)["QuotaReserved"] == "False/AdmissionGated"
    acting.client.patch(JOBS, "vision", "mine", {"metadata": {"annotations": {GATED_BY: None}}})
    acting.run(0.0)
    assert acting.says(row) == {"QuotaReserved": "True/QuotaReserved"}
    acting.place(row, **{"kubernetes.io/hostname": "default-003"})
    assert hosts(acting, row) == {"default-003"}


def test_a_placement_that_contradicts_the_flavor_ends_the_work(acting: Acting) -> None:
    """As Kueue does: Finished, for good, and the Job stays suspended."""
    row = acting.create("mine")
    acting.place(row, **{"nvidia.com/gpu.product": "NVIDIA-H100"})
    assert acting.says(row)["Finished"] == "True/FailedToStart"
    text = next(each for each in acting.workload(row)["status"]["conditions"] if each["type"] == "Finished")["message"]
    assert "conflict for key=nvidia.com/gpu.product" in text
    acting.run(300.0)
    assert (acting.client.get(JOBS, "vision", "mine") or {})["spec"]["suspend"] is True


def test_a_rejected_check_deactivates(acting: Acting) -> None:
    """`spec.active` is false afterwards, and a person who sets it does not bring the Workload back (recording 23)."""
    row = acting.create("mine")
    acting.write(row, "Rejected")
    assert acting.workload(row)["spec"]["active"] is False
    assert acting.says(row)["Evicted"] == "True/DeactivatedDueToAdmissionCheck"
    acting.activate(row, active=True)
    acting.run(300.0)
    assert acting.says(row)["QuotaReserved"].startswith("False/")


def test_a_taint_keeps_new_work_away(acting: Acting) -> None:
    """Another node takes it; the taint stays when the projection writes the node."""
    taint = {"key": "gpu-autopilot.io/condemned", "value": "xid", "effect": "NoSchedule"}
    for name in ("default-000", "default-001", "default-002"):
        acting.client.patch("nodes", "", name, {"spec": {"taints": [taint]}})
    row = acting.create("mine")
    acting.write(row, "Ready")
    assert hosts(acting, row) == {"default-003"}
    acting.client.patch("nodes", "", "default-000", {"spec": {"unschedulable": True}})
    acting.run(1.0)
    keys = {each["key"] for each in (acting.client.get("nodes", "", "default-000") or {})["spec"]["taints"]}
    assert keys == {"gpu-autopilot.io/condemned", "node.kubernetes.io/unschedulable"}


def test_a_requested_checkpoint_is_acknowledged_when_it_is_complete(acting: Acting) -> None:
    """Every pod answers; a stop that nobody announces loses only what was done since."""
    row = acting.create("mine", gpus=4, pods=2, annotations=LONG)
    acting.place(row, **{"kubernetes.io/hostname": "default-000"})
    acting.run(1000.0)
    pods = list(acting.stage.projection.gangs[row].shown)
    request = json.dumps({"id": "7/preempt/mine", "deadline": acting.stage.projection.real_s(acting.now_s + 300.0)})
    for key in pods:
        acting.client.patch(*key, {"metadata": {"annotations": {CHECKPOINT_REQUEST: request}}})
    asked_s = acting.now_s
    acting.run(NOTICED_S)
    assert CHECKPOINT_ACK not in (acting.client.get(*pods[0]) or {})["metadata"]["annotations"]
    acting.run(240.0)
    for key in pods:
        notes = (acting.client.get(*key) or {})["metadata"]["annotations"]
        told = json.loads(notes[CHECKPOINT_ACK])
        assert told["id"] == "7/preempt/mine"
        assert asked_s + NOTICED_S < told["at"] - acting.stage.projection.start_s < asked_s + 300.0
        assert float(notes["gpu-autopilot.io/last-checkpoint"]) <= told["at"]
    before_s = acting.stage.cluster.progress_s(row, acting.now_s)
    acting.client.delete("pods", *pods[0][1:])
    acting.run(0.0)
    assert before_s - acting.stage.cluster.served_s[row] == pytest.approx(240.0, abs=1.0)


def test_an_eviction_gives_work_its_grace(acting: Acting) -> None:
    """It saves, and nothing is lost; the gang leaves as a whole."""
    row = acting.create("mine", gpus=4, pods=2, annotations=LONG)
    acting.place(row, **{"kubernetes.io/hostname": "default-000"})
    acting.run(1000.0)
    before_s = acting.stage.cluster.progress_s(row, acting.now_s)
    key = next(iter(acting.stage.projection.gangs[row].shown))
    acting.client.call(*key, "eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": key[2]}})
    acting.run(200.0)
    assert row in acting.stage.cluster.pending
    assert acting.stage.cluster.served_s[row] == pytest.approx(before_s)


def test_a_scaled_service_gets_its_replicas(acting: Acting) -> None:
    """By the subresource that `kubectl scale` writes; the replicas wait for the check like all work."""
    body = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "chat", "namespace": "assistants"}}
    acting.client.update("deployments.apps", body | {"spec": {"replicas": 3}}, "scale")
    acting.run(0.0)
    assert (acting.client.get("deployments.apps", "assistants", "chat") or {})["status"]["replicas"] == 3
    replicas = [row for row in acting.stage.cluster.pending if acting.stage.cluster.jobs.service[row] == 0]
    assert len(replicas) == 3
    for row in replicas:
        acting.place(row, **{"kubernetes.io/hostname": "default-001"})
    assert all(hosts(acting, row) == {"default-001"} for row in replicas)


def test_more_replicas_than_the_cluster_can_hold_stop_nothing(acting: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thousand million replicas: as many as it may hold are simulated, and an Event says so."""
    monkeypatch.setattr(levers, "MOST_OF_GPU", 1)
    acting.client.patch("deployments.apps", "assistants", "chat", {"spec": {"replicas": 2**31 - 1}})
    acting.stage.clock.run_to(acting.now_s + 1.0)
    assert (acting.client.get("deployments.apps", "assistants", "chat") or {})["spec"]["replicas"] == 32
    (event,) = acting.stage.server.store.objects("events", "assistants")
    assert event["reason"] == "NotSimulated"
    assert event["message"].startswith("2,147,483,647 replicas are more than this cluster can hold; 32 are simulated")


def test_what_kueue_refuses_is_refused(acting: Acting) -> None:
    """A gate after creation, and another placement while the check is Ready."""
    row = acting.create("mine")
    acting.place(row, **{"kubernetes.io/hostname": "default-000"})
    with pytest.raises(StatusError, match="podSetUpdates"):
        acting.place(row, **{"kubernetes.io/hostname": "default-001"})
    with pytest.raises(StatusError, match="cannot add admission gate after creation"):
        acting.client.patch(JOBS, "vision", "mine", {"metadata": {"annotations": {GATED_BY: CONTROLLER}}})
