"""A Job in no queue of Kueue that its owner leaves to the autopilot: it starts when there is room, where there is room.

The owner creates it with `suspend: true` and the label `gpu-autopilot.io/manage: "true"`. The autopilot resumes it and
writes its place into the template in one write, so that no pod starts anywhere else. A person who suspends it later
keeps it. Jobs without the label are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autopilot.contract.annotations import MANAGE, PLACEMENT, STOPPED
from tests.kits.acting_kit import PODS, pod_spec
from tests.kits.deciding_kit import Deciding
from tests.kits.kueue_kit import JOBS, SPACE
from tests.kits.playground_acting import policy_of


def open_cluster(folder: Path, kind: Callable[..., Deciding] = Deciding) -> Deciding:
    """Three nodes of eight GPUs."""
    return kind(folder, policy_of())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Deciding]:
    """That cluster."""
    found = open_cluster(tmp_path)
    yield found
    found.close()


def left_to_us(cluster: Deciding, name: str, pods: int, **more: Any) -> None:
    """Its owner creates it."""
    cluster.plain_job(name, 8, pods, labels={MANAGE: "true"}, suspend=True, **more)


def test_it_starts_whole_at_its_place_once_there_is_room(cluster: Deciding) -> None:
    """Two pods wait for the second node, although one is free; then both start on nodes that were chosen for them."""
    cluster.run_gang("first", pods=2)
    left_to_us(cluster, "gang", pods=2)
    cluster.wait(60.0)
    assert cluster.job("gang")["spec"]["suspend"] is True
    assert cluster.hosts("gang") == []
    cluster.finish("first")
    cluster.wait(60.0)
    found = cluster.job("gang")["spec"]
    assert found["suspend"] is False
    (label,) = found["template"]["spec"]["nodeSelector"]
    assert label.startswith(PLACEMENT)
    marked = [
        each["metadata"]["name"]
        for each in cluster.ask("GET", "/api/v1/nodes")["items"]
        if label in each["metadata"]["labels"]
    ]
    assert cluster.hosts("gang") == sorted(marked)
    assert len(marked) == 2


def test_its_owner_may_take_it_back(cluster: Deciding) -> None:
    """A Job that a person suspends after its start stays suspended, and is not even decided on any more."""
    left_to_us(cluster, "gang", pods=1)
    cluster.wait(30.0)
    assert len(cluster.hosts("gang")) == 1
    cluster.ask("PATCH", f"{JOBS}/gang", {"spec": {"suspend": True}})
    cluster.wait(120.0)
    assert cluster.job("gang")["spec"]["suspend"] is True
    assert cluster.hosts("gang") == []
    assert {reason for reason, _ in cluster.events("gang")} == {"AdmitBegun", "AdmitDone"}
    assert cluster.failures == 0


def test_its_owner_may_take_work_of_kueue_out_of_its_queue(tmp_path: Path) -> None:
    """Work that the autopilot had stopped once, and that its owner brought back and deactivates later, is left out."""
    cluster = open_cluster(tmp_path)
    cluster.run_gang("gang", pods=1)
    found = cluster.workload("gang")["metadata"]
    path = f"{SPACE}/workloads/{found['name']}"
    mark = json.dumps({"uid": found["uid"], "id": "0/p", "reason": "preempt", "returns": True})
    cluster.ask("PATCH", path, {"metadata": {"annotations": {STOPPED: mark}}}, fieldManager="gpu-autopilot")
    cluster.ask("PATCH", path, {"spec": {"active": False}}, fieldManager="kubectl-patch")
    before = cluster.events("gang")
    cluster.wait(120.0)
    assert cluster.workload("gang")["spec"]["active"] is False
    assert cluster.events("gang") == before
    assert cluster.actions["admit_gang"] == 1
    cluster.close()


def test_a_job_without_the_label_is_left_alone(cluster: Deciding) -> None:
    """It was suspended for reasons of its owner."""
    cluster.plain_job("other", 8, 1, suspend=True)
    cluster.wait(60.0)
    assert cluster.job("other")["spec"]["suspend"] is True


def test_a_place_that_fills_up_is_not_the_last_word(cluster: Deciding) -> None:
    """Somebody else takes the node before the scheduler binds. The Job waits again, and starts where there is room."""
    left_to_us(cluster, "gang", pods=1)
    while cluster.job("gang")["spec"]["suspend"]:
        cluster.wait(2.0)
    (label,) = cluster.job("gang")["spec"]["template"]["spec"]["nodeSelector"]
    nodes = cluster.ask("GET", "/api/v1/nodes", labelSelector=label)["items"]
    (taken,) = (each["metadata"]["name"] for each in nodes)
    spec = {**pod_spec(8), "nodeName": taken}
    cluster.ask("POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "intruder"}, "spec": spec})
    cluster.wait(300.0)
    assert {reason for reason, _ in cluster.events("gang")} == {"AdmitBegun", "AdmitGaveUp", "AdmitDone"}
    hosts = cluster.hosts("gang")
    assert len(hosts) == 1
    assert hosts != [taken]
