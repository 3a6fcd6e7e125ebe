"""Nodes that fall silent: conditions, taints, Events, and when their pods go."""

from __future__ import annotations

from typing import Any

import pytest

from apiserver.actors.kubelet import Kubelet, KubeletOptions
from apiserver.timeline import micro_stamp, stamp
from tests.kits.scene_kit import SPACE, Scene

Obj = dict[str, Any]
UNREACHABLE = "node.kubernetes.io/unreachable"
NOT_READY = "node.kubernetes.io/not-ready"
SECONDS_3 = {"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3}


class Lost(Scene):
    """Four nodes of one zone, whose kubelets can fall silent."""

    def __init__(self, kubelets: KubeletOptions | None = None) -> None:
        super().__init__(kubelets)
        for name in ("n1", "n2", "n3", "n4"):
            self.node(name)
        self.kubelet = next(actor for actor in self.server.actors if isinstance(actor, Kubelet))

    def taints(self, name: str = "n1") -> list[str]:
        """Key and effect of the taints of a node."""
        return [f"{each['key']}:{each['effect']}" for each in self.get(name)["spec"].get("taints", [])]

    def get(self, name: str) -> Obj:
        """A node."""
        found = self.server.store.get("nodes", "", name)
        assert found is not None
        return found

    def ready(self, name: str = "n1") -> tuple[str, str]:
        """Status and reason of Ready."""
        return next(
            (each["status"], each["reason"])
            for each in self.get(name)["status"]["conditions"]
            if each["type"] == "Ready"
        )

    def said(self, reason: str) -> list[tuple[str, str, str, str]]:
        """Type, kind and name of the object, and text of the Events of a reason."""
        return [
            (each["type"], each["involvedObject"]["kind"], each["involvedObject"]["name"], each["message"])
            for each in self.events(reason)
        ]


@pytest.fixture
def lost() -> Lost:
    """Four ready nodes."""
    return Lost()


def test_a_lost_node_is_tainted_and_its_pods_stay_until_it_is_back(lost: Lost) -> None:
    """Fifty seconds of silence; every step with its Event."""
    lost.pod("p", nodeName="n1", tolerations=[SECONDS_3])
    lost.pod("waits", nodeName="n1")
    lost.timeline.run_for(1)
    lost.kubelet.silence("n1")
    lost.timeline.run_for(49)
    assert lost.ready() == ("True", "KubeletReady")
    lost.timeline.run_for(7)
    conditions = {each["type"]: (each["status"], each["reason"]) for each in lost.get("n1")["status"]["conditions"]}
    assert set(conditions) == {"Ready", "MemoryPressure", "DiskPressure", "PIDPressure"}
    assert set(conditions.values()) == {("Unknown", "NodeStatusUnknown")}
    assert lost.taints() == [f"{UNREACHABLE}:NoSchedule", f"{UNREACHABLE}:NoExecute"]
    assert ("Ready", "False", "") in lost.conditions("p", "pods")
    assert lost.said("NodeNotReady")[0] == ("Normal", "Node", "n1", "Node n1 status is now: NodeNotReady")
    assert ("Warning", "Pod", "p", "Node is not ready") in lost.said("NodeNotReady")
    lost.timeline.run_for(60)
    assert ("DisruptionTarget", "True", "DeletionByTaintManager") in lost.conditions("p", "pods")
    assert [("deletionTimestamp" in pod["metadata"]) for pod in lost.pods()] == [True, False]
    assert lost.said("TaintManagerEviction") == [("Normal", "Pod", "p", f"Marking for deletion Pod {SPACE}/p")]
    lost.kubelet.resume("n1")
    lost.timeline.run_for(11)
    assert [pod["metadata"]["name"] for pod in lost.pods()] == ["waits"]
    assert lost.ready() == ("True", "KubeletReady")
    assert lost.taints() == []
    assert lost.said("TaintManagerEviction")[1:] == [
        ("Normal", "Pod", "waits", f"Cancelling deletion of Pod {SPACE}/waits")
    ]


def test_a_pod_leaves_a_lost_node_after_five_minutes_and_goes_with_the_node(lost: Lost) -> None:
    """Admission tolerates 300 s; the garbage collector of pods waits 40 s for the node to come again."""
    lost.job("j", 1)
    lost.timeline.run_for(1)
    [pod] = lost.pods()
    first, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    lost.kubelet.silence(node)
    lost.timeline.run_for(340)
    assert len(lost.pods()) == 1
    lost.timeline.run_for(30)
    assert sorted("deletionTimestamp" in pod["metadata"] for pod in lost.pods()) == [
        False,
        True,
    ]  # its replacement runs
    assert (lost.status("j")["active"], lost.status("j")["failed"], lost.status("j")["terminating"]) == (1, 1, 1)
    seen: list[Obj] = []
    lost.server.store.subscribe("pods", lambda event: seen.append(event.obj), lost.timeline)
    lost.client.delete("nodes", "", node)
    lost.timeline.run_for(39)
    assert len(lost.pods()) == 2
    lost.timeline.run_for(22)
    assert len(lost.pods()) == 1
    last = next(each for each in reversed(seen) if each["metadata"]["name"] == first)
    reasons = [each["reason"] for each in last["status"]["conditions"] if each["type"] == "DisruptionTarget"]
    assert (last["status"]["phase"], reasons) == ("Failed", ["DeletionByPodGC"])
    assert lost.said("RemovingNode") == [
        ("Normal", "Node", node, f"Node {node} event: Removing Node {node} from Controller")
    ]


def test_pods_of_a_node_out_of_service_are_removed_by_force(lost: Lost) -> None:
    """Only a node that is not ready is emptied so."""
    lost.pod("p", nodeName="n1")
    lost.timeline.run_for(1)
    lost.kubelet.silence("n1")
    lost.timeline.run_for(56)
    taints = lost.get("n1")["spec"]["taints"]
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    lost.client.patch("nodes", "", "n1", {"spec": {"taints": [*taints, taint]}})
    lost.timeline.run_for(0.1)
    assert "deletionTimestamp" in lost.pods()[0]["metadata"]
    lost.timeline.run_for(20)
    assert lost.pods() == []


def test_a_taint_by_hand_evicts_at_once_those_that_do_not_tolerate_it(lost: Lost) -> None:
    """A toleration without a time keeps a pod; one with a time keeps it so long, unless the taint goes before."""
    taint = {"key": "spot", "value": "x", "effect": "NoExecute"}
    lost.pod("none", nodeName="n1")
    lost.pod("some", nodeName="n1", tolerations=[taint | {"operator": "Equal", "tolerationSeconds": 5}])
    lost.pod("all", nodeName="n1", tolerations=[{"operator": "Exists"}])
    lost.timeline.run_for(1)
    lost.client.patch("nodes", "", "n1", {"spec": {"taints": [taint]}})
    lost.timeline.run_for(3)
    assert [pod["metadata"]["name"] for pod in lost.pods()] == ["all", "some"]
    lost.client.patch("nodes", "", "n1", {"spec": {"taints": None}})
    lost.timeline.run_for(10)
    assert [pod["metadata"]["name"] for pod in lost.pods()] == ["all", "some"]
    lost.client.patch("nodes", "", "n1", {"spec": {"taints": [taint]}})
    lost.timeline.run_for(10)
    assert [pod["metadata"]["name"] for pod in lost.pods()] == ["all"]
    assert [text.partition(" ")[0] + text[-5:] for *_, text in lost.said("TaintManagerEviction")] == [
        "Marking/none",
        "Cancelling/some",
        "Marking/some",
    ]


def test_nodes_of_a_zone_are_emptied_one_after_another_and_not_at_all_when_all_are_lost(lost: Lost) -> None:
    """Ten seconds apart; three of four lost nodes of a small zone are not emptied, four neither."""
    lost.kubelet.silence("n1")
    lost.kubelet.silence("n2")
    lost.timeline.run_for(57)
    no_execute = f"{UNREACHABLE}:NoExecute"
    assert [no_execute in lost.taints(name) for name in ("n1", "n2")] == [True, False]
    lost.timeline.run_for(11)
    assert no_execute in lost.taints("n2")
    lost.kubelet.silence("n3")
    lost.timeline.run_for(80)
    assert (lost.ready("n3")[0], no_execute in lost.taints("n3")) == ("Unknown", False)
    lost.kubelet.silence("n4")
    lost.timeline.run_for(60)
    assert [lost.taints(name) for name in ("n1", "n4")] == 2 * [[f"{UNREACHABLE}:NoSchedule"]]
    lost.kubelet.resume("n4")
    lost.timeline.run_for(30)
    assert (lost.ready("n4")[0], lost.taints("n4")) == ("True", [])


def test_a_node_that_is_not_ready_has_the_other_taint(lost: Lost) -> None:
    """Unknown and False exchange their taints; the one put away by hand comes back."""
    lost.kubelet.silence("n1")
    lost.timeline.run_for(57)
    bad = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "x", "lastHeartbeatTime": None}
    bad["lastTransitionTime"] = stamp(lost.timeline.now)
    lost.client.patch("nodes", "", "n1", {"status": {"conditions": [bad]}}, "status")
    lost.timeline.run_for(0.1)
    assert lost.taints() == [f"{UNREACHABLE}:NoExecute", f"{NOT_READY}:NoSchedule"]
    lost.client.patch("nodes", "", "n1", {"spec": {"taints": None}})
    lost.timeline.run_for(0.1)
    assert lost.taints() == [f"{NOT_READY}:NoSchedule"]


def test_nodes_whose_kubelets_all_stop_are_lost_together_and_come_back(lost: Lost) -> None:
    """No pod is evicted meanwhile."""
    kubelets = lost.server.process("kubelet")
    kubelets.stop()
    lost.timeline.run_for(61)
    assert {(lost.ready(name)[0], *lost.taints(name)) for name in ("n1", "n4")} == {
        ("Unknown", f"{UNREACHABLE}:NoSchedule")
    }
    assert lost.said("RegisteredNode")[0][3] == "Node n1 event: Registered Node n1 in Controller"
    kubelets.resume()
    lost.timeline.run_for(6)
    assert {(lost.ready(name)[0], *lost.taints(name)) for name in ("n1", "n4")} == {("True",)}


def test_a_node_without_a_kubelet_is_judged_by_the_heartbeats_that_it_shows() -> None:
    """A Lease that is renewed counts; a node that shows none keeps what somebody wrote."""
    lost = Lost(KubeletOptions(served=lambda _node: False))
    lease = {"metadata": {"name": "n1", "namespace": "kube-node-lease"}, "spec": {"holderIdentity": "n1"}}
    lost.client.create("leases.coordination.k8s.io", lease)
    for _ in range(5):
        lost.timeline.run_for(20)
        change = {"spec": {"renewTime": micro_stamp(lost.timeline.now)}}
        lost.client.patch("leases.coordination.k8s.io", "kube-node-lease", "n1", change)
    assert lost.ready()[0] == "True"
    lost.timeline.run_for(61)
    assert [lost.ready(name)[0] for name in ("n1", "n2")] == ["Unknown", "True"]
