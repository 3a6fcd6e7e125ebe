"""Somebody takes one of the nodes of a gang between its admission and the scheduler: the gang does not start in part.

The pod on the other node holds its GPUs and makes no progress. Nothing is stopped at once, because the room may come
back: after `recovery.stale_grace_s` what started is stopped as a whole, and the gang starts on nodes that are free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apiserver.kueue.config import Config, WaitForPodsReady
from autopilot.contract.annotations import MANAGE, PLACEMENT
from autopilot.core.model.snapshot import Gate
from tests.kits.acting_kit import PODS, pod_spec
from tests.kits.deciding_kit import Deciding
from tests.kits.kueue_kit import JOBS
from tests.kits.playground_acting import policy_of


def open_cluster(folder: Path, kind: Callable[..., Deciding] = Deciding) -> Deciding:
    """Four nodes of eight GPUs."""
    return kind(folder, policy_of(), 4)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Deciding]:
    """That cluster."""
    found = open_cluster(tmp_path)
    yield found
    found.close()


def chosen(cluster: Deciding) -> list[str]:
    """The nodes that are marked as the place of a gang."""
    found = cluster.ask("GET", "/api/v1/nodes")["items"]
    return [
        each["metadata"]["name"]
        for each in found
        if any(key.startswith(PLACEMENT) for key in each["metadata"]["labels"])
    ]


def lose_a_place(cluster: Deciding) -> str:
    """The first node that is chosen for a gang, and that a pod takes before the gang has pods."""
    while not chosen(cluster):
        cluster.wait(0.05)
    lost, _ = chosen(cluster)
    assert not cluster.pods("gang")
    spec = {**pod_spec(8), "nodeName": lost}
    cluster.ask("POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "faster"}, "spec": spec})
    return lost


@pytest.mark.parametrize("way", ["kueue", "plain"])
def test_a_gang_whose_place_fills_up_in_part_starts_elsewhere(cluster: Deciding, way: str) -> None:
    """It runs whole within five minutes, beside the pod that was faster. No Event says that it had started before."""
    if way == "kueue":
        cluster.ask("POST", JOBS, cluster.kueue.job_of("gang", "a", 8, 2))
    else:
        cluster.plain_job("gang", 8, 2, labels={MANAGE: "true"}, suspend=True)
    lost = lose_a_place(cluster)
    cluster.wait(40.0)
    assert len(cluster.hosts("gang")) == 1
    assert "AdmitDone" not in {reason for reason, _ in cluster.events("gang")}
    cluster.wait(260.0)
    assert len(cluster.hosts("gang")) == 2
    assert lost not in cluster.hosts("gang")
    assert cluster.actions["recover"] == 1
    assert cluster.failures == 0
    assert "AdmitDone" in {reason for reason, _ in cluster.events("gang")}


def test_a_gang_that_kueue_gives_up_first_is_started_once_its_queue_has_it_back(tmp_path: Path) -> None:
    """Kueue stops what is not ready within 20 s, and keeps it out of its queue as long. Meanwhile the gang asks for no
    room and is not proposed; nothing else stops it.
    """
    late = Config(wait_for_pods_ready=WaitForPodsReady(timeout_s=20, backoff_base_s=20))
    cluster = Deciding(tmp_path, policy_of(), 4, late)
    try:
        cluster.ask("POST", JOBS, cluster.kueue.job_of("gang", "a", 8, 2))
        lost = lose_a_place(cluster)
        cluster.until(lambda: cluster.gates.get("default/gang") == Gate.BACKOFF, 30.0)
        assert cluster.kueue.condition("gang", "Evicted")[1] == "PodsReadyTimeout"
        cluster.wait(14.0)
        assert cluster.actions["admit_gang"] == 1
        cluster.wait(20.0)
        assert len(cluster.hosts("gang")) == 2
        assert lost not in cluster.hosts("gang")
        assert (cluster.actions["admit_gang"], cluster.actions["recover"], cluster.failures) == (2, 0, 0)
    finally:
        cluster.close()
