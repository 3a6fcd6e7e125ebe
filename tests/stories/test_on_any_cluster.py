"""The stories that run on real clusters (`make e2e`), on our own API server, which they know by its kubeconfig only."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from actuators.kubernetes.api import MERGE, Api, Refusal
from apiserver.actors.kubelet import KubeletOptions
from apiserver.cluster import cluster
from apiserver.http.faults import FaultPlan, Faults
from apiserver.http.serve import serve
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import ADMIN
from autopilot.contract.annotations import CHECK
from autopilot.crds.definitions import recommendation_definition
from autopilot.kube.access import Access, Address
from autopilot.playground.gpu_operator import DEFINITION
from tests.kits.cluster_stories import STORIES
from tests.kits.deciding_service import KINDS as KINDS_OF_STORIES
from tests.kits.deciding_service import RECOMMENDATIONS, define_recommendations
from tests.kits.played_mig import PlayedMig
from tests.kits.real_cluster import CORE, RealCluster
from tests.kits.run_account import make_account

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
KIND = {"apiVersion": "gpu-autopilot.io/v1alpha1", "kind": "Recommendation"}
VERSION = "kueue.x-k8s.io/v1beta2"
KINDS = (
    "nodes",
    "resourceflavors.kueue.x-k8s.io",
    "clusterqueues.kueue.x-k8s.io",
    "admissionchecks.kueue.x-k8s.io",
    "jobs.batch",
    "pods",
)


@pytest.fixture(scope="module")
def server() -> Server:
    """A cluster with Kueue and without a kubelet."""
    kubelets = KubeletOptions(served=lambda _node: False)
    return cluster(Timeline(datetime.now(UTC)), random.Random(1), kueue=True, kubelets=kubelets)


@pytest.fixture(scope="module")
def kubeconfig(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Its kubeconfig while it listens."""
    path = tmp_path_factory.mktemp("any") / "kubeconfig"
    with serve(server) as running:
        path.write_text(running.kubeconfig(), "utf-8")
        yield path


def left(server: Server) -> list[str]:
    """Objects of the stories that are still there."""
    client = server.client(ADMIN, "test")
    spaces = [each["metadata"]["name"] for each in client.list("namespaces")]
    return [each for each in spaces if "e2e" in each] + [
        f"{kind} {each['metadata']['name']}" for kind in KINDS for each in client.list(kind)
    ]


@pytest.mark.parametrize("name", sorted(STORIES))
def test_story_leaves_nothing(server: Server, kubeconfig: Path, name: str) -> None:
    """It goes as told, and everything that it created is removed."""
    found = RealCluster(kubeconfig)
    try:
        STORIES[name](found)
    finally:
        found.close()
    assert left(server) == []


def test_a_story_that_fails_leaves_nothing_either(server: Server, kubeconfig: Path) -> None:
    """Also where it fails in its middle, with pods that run and a queue that is in use."""
    found = RealCluster(kubeconfig, nodes=1)
    with pytest.raises(AssertionError, match="pods/one cannot be created"):
        fail_in_the_middle(found)
    assert left(server) == []


def test_a_server_that_asks_to_try_again_is_waited_for(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kind that has just been defined answers 429 for a moment; the set-up goes on after it."""
    monkeypatch.setattr("tests.kits.real_cluster.LOOK_S", 0.0)
    with serve(server, faults=Faults(FaultPlan(too_many=0.5))) as running:
        (tmp_path / "kubeconfig").write_text(running.kubeconfig(), "utf-8")
        found = RealCluster(tmp_path / "kubeconfig", nodes=1)
        try:
            assert define_recommendations(found) == ""
            found.queue("gangs", 8)
        finally:
            found.close()
    assert left(server) == []


def test_the_check_of_another_installation_stays(server: Server, kubeconfig: Path) -> None:
    """The story that needs a check of its own is skipped, and what has the same name is not removed."""
    client = server.client(ADMIN, "test")
    meta, spec = {"name": CHECK}, {"controllerName": "example.com/other"}
    client.create(KINDS[3], {"apiVersion": VERSION, "kind": "AdmissionCheck", "metadata": meta, "spec": spec})
    found = RealCluster(kubeconfig, nodes=1)
    try:
        with pytest.raises(pytest.skip.Exception, match="AdmissionCheck gpu-autopilot already"):
            STORIES["gang_under_kueue"](found)
        with pytest.raises(AssertionError, match="cannot be created"):
            found.queue("gangs", 8)
    finally:
        found.close()
    assert left(server) == [f"{KINDS[3]} {CHECK}"]
    client.delete(KINDS[3], "", CHECK)


def test_recommendations_of_another_installation_stay(server: Server, kubeconfig: Path) -> None:
    """Their definition is created where it is absent and then removed; one that was there stays, and is not used."""
    client, name = server.client(ADMIN, "test"), recommendation_definition()["metadata"]["name"]
    for theirs in (False, True):
        if theirs:
            client.create(DEFINITIONS, recommendation_definition())
        found = RealCluster(kubeconfig, nodes=1)
        try:
            assert define_recommendations(found) == ""
        finally:
            found.close()
        assert (client.get(DEFINITIONS, "", name) is not None) is theirs
    found = RealCluster(kubeconfig, nodes=1)
    try:
        spec = {"id": "a", "digest": "a", "action": "admit_gang", "workload": "team/a"}
        answer = found.api.post(RECOMMENDATIONS, {**KIND, "metadata": {"name": "theirs"}, "spec": spec})
        assert answer.ok, answer.message
        assert "another installation" in define_recommendations(found)
    finally:
        found.close()
    client.delete(DEFINITIONS, "", name)


def test_the_account_of_a_run_writes_nothing_of_other_people(server: Server, kubeconfig: Path, tmp_path: Path) -> None:
    """It patches the nodes of the run, and no other node, namespace or ConfigMap."""
    client = server.client(ADMIN, "test")
    client.create("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "theirs"}})
    found = RealCluster(kubeconfig, nodes=1)
    try:
        api = Api(Access(Address(make_account(found, tmp_path, KINDS_OF_STORIES))))
        note = {"metadata": {"annotations": {"a": "b"}}}
        assert api.patch(f"{CORE}/nodes/{found.nodes[0]}", note, MERGE).ok
        for path in ("nodes/theirs", "namespaces/default", "namespaces/default/configmaps/any", "nodes/theirs/status"):
            assert api.patch(f"{CORE}/{path}", note, MERGE).refusal == Refusal.RIGHT
        for path in ("namespaces/default/pods/any", "namespaces/default/configmaps", "secrets"):
            assert api.get(f"{CORE}/{path}").refusal == Refusal.RIGHT
    finally:
        found.close()
    client.delete("nodes", "", "theirs")


def test_a_gpu_operator_of_other_people_stays(server: Server, kubeconfig: Path) -> None:
    """What the story of MIG brings along is removed. Where the cluster has a GPU operator, it is skipped."""
    client, name = server.client(ADMIN, "test"), DEFINITION["metadata"]["name"]
    found = RealCluster(kubeconfig, nodes=1)
    try:
        PlayedMig(found)
    finally:
        found.close()
    assert left(server) == []
    assert client.get(DEFINITIONS, "", name) is None
    client.create(DEFINITIONS, DEFINITION)
    found = RealCluster(kubeconfig, nodes=1)
    try:
        with pytest.raises(pytest.skip.Exception, match="has a GPU operator"):
            PlayedMig(found)
    finally:
        found.close()
    assert client.get(DEFINITIONS, "", name) is not None
    client.delete(DEFINITIONS, "", name)


def fail_in_the_middle(found: RealCluster) -> None:
    """A pod that is created twice."""
    try:
        found.queue("gangs", 8)
        found.pod("one")
        found.until(found.hosts, "the pod runs")
        found.pod("one")
    finally:
        found.close()
