"""A person drains a node for maintenance with kubectl, and the gang that has a pod there moves as a whole.

`kubectl drain` cordons the node and evicts its pods, one by one. The pod of a gang that is evicted cannot come back:
its gang is bound to its nodes, and one of them is closed. The other pods hold their GPUs and make no progress. After
`recovery.stale_grace_s` the autopilot stops what is left, Kueue gives the quota back to the gang, and it starts on
other nodes. The node stays cordoned: only who closed it opens it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autopilot.contract.annotations import CHECKPOINT_ACK, CHECKPOINT_REQUEST, MANAGE
from autopilot.core.model.snapshot import State
from tests.kits.acting_kit import PODS
from tests.kits.acting_story import Story
from tests.kits.core_world import with_policy
from tests.kits.deciding_kit import Deciding, during
from tests.kits.playground_acting import policy_of

GRACE_S = 60.0
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
SAVES = {"gpu-autopilot.io/checkpoint-on-request": "true", "gpu-autopilot.io/checkpoint-write-s": "20"}


def open_cluster(folder: Path, kind: Callable[..., Deciding] = Deciding) -> Deciding:
    """Three nodes of eight GPUs, and the autopilot in charge of their queue."""
    return kind(folder, with_policy(policy_of(), preemption={"grace_s": 300.0}))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Deciding]:
    """That cluster."""
    found = open_cluster(tmp_path)
    yield found
    found.close()


@pytest.fixture
def kubectl(cluster: Deciding, require_tool: Callable[[str], str]) -> list[str]:
    """Kubectl as the administrator of the cluster."""
    return [require_tool("kubectl"), f"--kubeconfig={cluster.kubeconfig}"]


def test_a_gang_leaves_a_node_that_is_drained_as_a_whole(cluster: Deciding, kubectl: list[str]) -> None:
    """Half of it is evicted by kubectl, the rest by the autopilot; then it runs on the two nodes that are open."""
    cluster.run_gang("gang", pods=2)
    before = cluster.hosts("gang")
    drained = before[0]
    done = cluster.during([*kubectl, "drain", drained])
    assert done.returncode == 0, done.stderr
    assert "evicting pod default/gang-" in done.stdout
    cluster.wait(10.0)
    assert cluster.hosts("gang") == before[1:]
    cluster.wait(GRACE_S + 60.0)
    assert cluster.actions["recover"] == 1, cluster.actions
    assert len(cluster.hosts("gang")) == 2
    assert drained not in cluster.hosts("gang")
    node = cluster.ask("GET", f"/api/v1/nodes/{drained}")
    assert node["spec"]["unschedulable"] is True


def test_a_gang_of_the_playground_moves_without_loss(
    begin: Callable[..., Story], require_tool: Callable[[str], str]
) -> None:
    """There a gang stops as soon as one of its pods is evicted. It has saved, and goes on where it was."""
    story = begin()
    server = story.run.stage.server
    server.authorize_path, server.authorize = lambda *_: None, lambda _: None  # kubectl sends no token without TLS
    story.create("gang", pods=2, lasts="3h", checkpoint_on_request="true", checkpoint_write_s="20")
    story.wait(300.0)
    drained, stays = story.hosts("gang")
    command = [require_tool("kubectl"), f"--kubeconfig={story.run.kubeconfig}", "drain", drained]
    done = during(command, story.wait)
    assert done.returncode == 0, done.stderr
    story.wait(420.0)
    assert story.state("gang") == State.RUNNING
    assert len(story.hosts("gang")) == 2
    assert drained not in story.hosts("gang")
    assert stays in story.hosts("gang")
    assert story.lost_gpu_s("gang") == 0.0
    node = story.client.get("nodes", "", drained)
    assert node is not None
    assert node["spec"]["unschedulable"] is True


def test_what_is_left_saves_before_it_moves(cluster: Deciding, kubectl: list[str]) -> None:
    """A gang that saves on request is asked, and stops once it has answered."""
    cluster.run_gang("gang", pods=2, annotations=SAVES)
    before = cluster.hosts("gang")
    cluster.during([*kubectl, "drain", before[0]])
    cluster.wait(GRACE_S + 10.0)
    (left,) = [each for each in cluster.pods("gang") if each["status"].get("phase") == "Running"]
    request = json.loads(left["metadata"]["annotations"][CHECKPOINT_REQUEST])
    assert cluster.hosts("gang") == before[1:]
    answer = {CHECKPOINT_ACK: json.dumps({"id": request["id"], "step": 7, "path": "/ckpt/7"})}
    cluster.ask("PATCH", f"{PODS}/{left['metadata']['name']}", {"metadata": {"annotations": answer}})
    cluster.wait(60.0)
    assert len(cluster.hosts("gang")) == 2
    assert before[0] not in cluster.hosts("gang")


def test_a_disruption_budget_keeps_the_gang_where_it_is(cluster: Deciding, kubectl: list[str]) -> None:
    """Kubectl asks again and again, and gives up; the autopilot does not do what the budget refuses to a person."""
    cluster.run_gang("gang", pods=2)
    before = cluster.hosts("gang")
    budget = {"minAvailable": 2, "selector": {"matchLabels": {"job-name": "gang"}}}
    meta = {"name": "whole", "namespace": "default"}
    cluster.ask(
        "POST", BUDGETS, {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": budget}
    )
    cluster.wait(10.0)
    done = cluster.during([*kubectl, "drain", before[0], "--timeout=3s"])
    assert done.returncode != 0
    assert "Cannot evict pod as it would violate the pod's disruption budget" in done.stdout + done.stderr
    cluster.wait(GRACE_S + 60.0)
    assert cluster.hosts("gang") == before
    assert cluster.actions["recover"] == 0


def test_a_gang_without_another_place_waits_as_a_whole(cluster: Deciding, kubectl: list[str]) -> None:
    """It does not hold half of its GPUs meanwhile, and starts when the person opens the node again."""
    cluster.run_gang("gang", pods=3)
    cluster.during([*kubectl, "drain", "n2"])
    cluster.wait(GRACE_S + 60.0)
    assert cluster.hosts("gang") == []
    assert cluster.ask("GET", "/api/v1/nodes/n2")["spec"]["unschedulable"] is True
    cluster.during([*kubectl, "uncordon", "n2"])
    cluster.wait(60.0)
    assert cluster.hosts("gang") == ["n1", "n2", "n3"]


def test_a_job_without_kueue_whose_pods_all_left_starts_elsewhere(cluster: Deciding, kubectl: list[str]) -> None:
    """Its new pod waits for the node that its template selects. The autopilot suspends it, and starts it elsewhere."""
    cluster.plain_job("alone", labels={MANAGE: "true"}, suspend=True)
    cluster.wait(30.0)
    (drained,) = cluster.hosts("alone")
    done = cluster.during([*kubectl, "drain", drained])
    assert done.returncode == 0, done.stderr
    cluster.wait(60.0)
    (there,) = cluster.hosts("alone")
    assert there != drained
    (label,) = cluster.job("alone")["spec"]["template"]["spec"]["nodeSelector"]
    nodes = cluster.ask("GET", "/api/v1/nodes", labelSelector=label)["items"]
    assert [each["metadata"]["name"] for each in nodes] == [there], "only its present node has the label"
    assert cluster.job("alone")["spec"]["suspend"] is False
