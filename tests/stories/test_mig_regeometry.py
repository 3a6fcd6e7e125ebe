"""The MIG geometry of a node changes for work that waits for larger instances.

Each GPU of a node is cut into seven small instances, all of them free. A pod that asks for half a GPU waits: no node
offers that. The autopilot cordons the node, writes the new geometry into its own ConfigMap, and sets the label of
NVIDIA's MIG manager. It follows the state label to success, compares what the node offers with what it asked for, and
uncordons the node. Then the scheduler starts the pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actuators.kubernetes.levers.mig_config import CONFIG_MAP
from actuators.kubernetes.mig_node import CONFIG, STATE
from apiserver.actors.mig_manager import MigOptions
from autopilot.contract.annotations import MANAGE
from autopilot.core.model.records import OutcomeKind
from tests.kits.core_world import with_policy
from tests.kits.deciding_kit import Deciding
from tests.kits.kueue_kit import JOBS
from tests.kits.mig_kit import AMOUNTS, HALVES, SMALL, SPACE, Scene, add_gpu_operator, labels_of_small
from tests.kits.playground_acting import policy_of

HALF = "nvidia.com/mig-3g.40gb"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A cluster with the GPU operator."""
    found = Scene(tmp_path)
    yield found
    found.close()


def test_a_gpu_is_cut_for_work_that_waits(scene: Scene) -> None:
    """Cordon, label, success, uncordon: in this order; the other GPU of the node keeps its geometry."""
    scene.add_node("m1")
    room = {"pods": "110"}
    with scene.running.clock.lock:
        scene.client.patch("nodes", "", "m1", {"status": {"capacity": room, "allocatable": room}}, "status")
    ask(scene, "half")
    assert node_of(scene, "half") == ""
    actuator, instruction = scene.actuator(), scene.recut("m1", before=SMALL, after=HALVES)
    assert actuator.apply(instruction, scene.now_s).kind == OutcomeKind.ACCEPTED
    assert scene.node("m1")["spec"]["unschedulable"]
    (outcome,) = scene.follow(actuator, instruction)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.DONE, "it is 2 x 3g.40gb")
    name = scene.labels("m1")[CONFIG]
    kept = scene.server.store.get("configmaps", SPACE, CONFIG_MAP)
    assert kept is not None
    assert name in kept["data"]["config.yaml"]
    assert scene.labels("m1")[STATE] == "success"
    assert scene.offers("m1") == {HALF: "2", "nvidia.com/mig-1g.10gb": "7"}
    assert scene.is_open("m1")
    scene.run(10)
    assert node_of(scene, "half") == "m1"


def open_cluster(folder: Path, kind: Callable[..., Deciding] = Deciding) -> Deciding:
    """A node of two GPUs, both cut into small instances, and the autopilot, which may change geometries."""
    found = kind(folder, with_policy(policy_of(), regeometry={"dwell_s": 60.0}), nodes=1)
    add_gpu_operator(found.kueue.server, MigOptions(config_map=(SPACE, CONFIG_MAP)), found.run)
    made = {"name": "m1", "labels": labels_of_small() | {"kubernetes.io/hostname": "m1"}}
    found.ask("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": made})
    room = AMOUNTS | {"pods": "110", "memory": "1Ti"}
    ready = {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}
    found.ask("PATCH", "/api/v1/nodes/m1/status", {"status": {"capacity": room, "allocatable": room, **ready}})
    found.wait(10.0)
    return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Deciding]:
    """That cluster."""
    found = open_cluster(tmp_path)
    yield found
    found.close()


def test_the_autopilot_cuts_a_gpu_for_a_job_that_waits(cluster: Deciding) -> None:
    """From the Job of its owner to its pod: the decision, the label of the manager, and the start."""
    leave(cluster, "half")
    cluster.until(lambda: cluster.ask("GET", "/api/v1/nodes/m1")["spec"].get("unschedulable"))
    assert cluster.actions["regeometry"] == 1, cluster.actions
    cluster.wait(600.0)
    node = cluster.ask("GET", "/api/v1/nodes/m1")
    assert node["metadata"]["labels"][STATE] == "success"
    assert node["metadata"]["labels"][CONFIG].startswith("gpu-autopilot-")
    assert int(node["status"]["allocatable"][HALF]) >= 1
    assert "unschedulable" not in node["spec"]
    assert cluster.hosts("half") == ["m1"]


def leave(cluster: Deciding, name: str) -> None:
    """A Job that asks for half a GPU, which its owner leaves to the autopilot."""
    container = {"name": "main", "image": "app:1", "resources": {"limits": {HALF: "1"}}}
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {MANAGE: "true"}},
        "spec": {"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }
    cluster.ask("POST", JOBS, body)


def ask(scene: Scene, name: str) -> None:
    """A pod that asks for one half of a GPU, and what the scheduler does at once."""
    limits = {HALF: "1"}
    container = {"name": "main", "image": "app:1", "resources": {"limits": limits}}
    ready = {"key": "node.kubernetes.io/not-ready", "operator": "Exists"}  # the node of the story has no kubelet
    spec = {"containers": [container], "tolerations": [ready]}
    meta = {"name": name, "namespace": "default"}
    with scene.running.clock.lock:
        scene.client.create("pods", {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    scene.run(10)


def node_of(scene: Scene, name: str) -> str:
    """The node of a pod; "" while it waits."""
    found = scene.server.store.get("pods", "default", name)
    assert found is not None
    node: str = found["spec"].get("nodeName", "")
    return node
