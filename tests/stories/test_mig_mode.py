"""GPUs of an idle node leave MIG mode for a gang of whole GPUs, and enter it for work that asks for instances.

NVIDIA's MIG manager stops all GPU clients of a node, so nothing may run there. The autopilot cordons the node, writes
an entry into its ConfigMap that states for each GPU whether MIG is on, and sets the label of the manager. It follows
the state label to success, compares what the node offers with what it asked for, and uncordons the node. Then the work
starts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from actuators.kubernetes.levers.mig_config import CONFIG_MAP
from actuators.kubernetes.mig_node import CONFIG, STATE
from apiserver.actors.mig_manager import MigOptions
from autopilot.contract.annotations import MANAGE, MIG_GEOMETRY
from tests.kits.core_world import with_policy
from tests.kits.deciding_kit import Deciding
from tests.kits.kueue_kit import JOBS
from tests.kits.mig_kit import AMOUNTS, SPACE, add_gpu_operator, labels_of_small
from tests.kits.playground_acting import policy_of

GPU, SMALL, HALF = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
WHOLE = {"cpu": "64", GPU: "2"}
NODES = "/api/v1/nodes"


def open_cluster(folder: Path, kind: Callable[..., Deciding] = Deciding) -> Deciding:
    """A node n1 of eight GPUs, all in use and without a manager, and the autopilot, which may change geometries."""
    found = kind(folder, with_policy(policy_of(), regeometry={"dwell_s": 60.0}), nodes=1)
    add_gpu_operator(found.kueue.server, MigOptions(config_map=(SPACE, CONFIG_MAP)), found.run)
    found.run_gang("busy", 1)
    return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Deciding]:
    """That cluster."""
    found = open_cluster(tmp_path)
    yield found
    found.close()


def test_a_node_leaves_mig_mode_for_a_gang(cluster: Deciding) -> None:
    """Both GPUs that the gang lacks on one node change in one step; it starts when the node offers them."""
    add_node(cluster, AMOUNTS)
    leave(cluster, "gang", {GPU: "2"})
    cluster.until(lambda: node(cluster)["spec"].get("unschedulable"))
    assert cluster.actions["regeometry"] == 2, cluster.actions
    cluster.until(lambda: cluster.hosts("gang"), 600.0)
    found = node(cluster)
    assert (found["metadata"]["labels"][STATE], cluster.hosts("gang")) == ("success", ["m1"])
    assert asked_for(cluster, found["metadata"]["labels"][CONFIG]) == [(0, False, {}), (1, False, {})]
    assert json.loads(found["metadata"]["annotations"][MIG_GEOMETRY]) == [None, None]
    assert offers(found) == {GPU: "2"}
    assert "unschedulable" not in found["spec"]
    assert cluster.failures == 0


def test_a_node_of_whole_gpus_enters_mig_mode_for_requests(cluster: Deciding) -> None:
    """One GPU is enough for two halves: the other one stays whole. The node without a manager is not asked."""
    add_node(cluster, WHOLE, **{CONFIG: "all-disabled"})
    leave(cluster, "halves", {HALF: "1"}, pods=2)
    cluster.until(lambda: node(cluster)["spec"].get("unschedulable"))
    cluster.until(lambda: len(cluster.hosts("halves")) == 2, 600.0)
    found = node(cluster)
    assert (found["metadata"]["labels"][STATE], cluster.actions["regeometry"]) == ("success", 1)
    assert cluster.hosts("halves") == ["m1", "m1"]
    assert asked_for(cluster, found["metadata"]["labels"][CONFIG]) == [(0, True, {"3g.40gb": 2}), (1, False, {})]
    assert offers(found) == {GPU: "1", HALF: "2"}
    assert "unschedulable" not in found["spec"]
    assert cluster.failures == 0


def add_node(cluster: Deciding, amounts: Mapping[str, str], **labels: str) -> None:
    """Node m1 with two GPUs and the MIG manager."""
    made = {"name": "m1", "labels": labels_of_small() | {"kubernetes.io/hostname": "m1"} | labels}
    cluster.ask("POST", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": made})
    room = dict(amounts) | {"pods": "110", "memory": "1Ti"}
    ready = {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}
    cluster.ask("PATCH", f"{NODES}/m1/status", {"status": {"capacity": room, "allocatable": room, **ready}})
    cluster.wait(10.0)


def leave(cluster: Deciding, name: str, limits: dict[str, str], pods: int = 1) -> None:
    """A Job whose owner leaves it to the autopilot."""
    container = {"name": "main", "image": "app:1", "resources": {"limits": limits}}
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {MANAGE: "true"}},
        "spec": {
            "suspend": True,
            "parallelism": pods,
            "completions": pods,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }
    cluster.ask("POST", JOBS, body)


def node(cluster: Deciding) -> Any:
    """The node of the story."""
    return cluster.ask("GET", f"{NODES}/m1")


def offers(found: Any) -> dict[str, str]:
    """What of its GPUs can be allocated."""
    amounts = found["status"]["allocatable"]
    return {key: each for key, each in amounts.items() if key.startswith("nvidia.com/") and each != "0"}


def asked_for(cluster: Deciding, entry: str) -> list[tuple[int, bool, dict[str, int]]]:
    """An entry of our ConfigMap: of each GPU whether MIG is on, and its instances."""
    kept = cluster.kueue.server.store.get("configmaps", SPACE, CONFIG_MAP)
    assert kept is not None
    parts = yaml.safe_load(kept["data"]["config.yaml"])["mig-configs"][entry]
    every = [(gpu, part["mig-enabled"], part.get("mig-devices") or {}) for part in parts for gpu in part["devices"]]
    return sorted(every)
