"""The stories in which the service decides (`make e2e`), on our own API server, with work of other people beside them.

The service is a process, time is real, and everything that is not of the run stays as it is.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from apiserver.actors.kubelet import KubeletOptions
from apiserver.audit import AuditLog, Entry
from apiserver.client import Client
from apiserver.cluster import cluster
from apiserver.http.serve import serve
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import ADMIN
from autopilot.contract.annotations import CHECK, CONTROLLER, MANAGE
from tests.kits.deciding_service import DecidingService
from tests.kits.decision_stories import LONG, STORIES, tell
from tests.kits.kube_objects import node
from tests.kits.playground_kit import job
from tests.kits.real_cluster import E2E, RealCluster

Obj = dict[str, Any]
KUEUE = "kueue.x-k8s.io"
FLAVORS, CLUSTER_QUEUES = f"resourceflavors.{KUEUE}", f"clusterqueues.{KUEUE}"
LOCAL_QUEUES, WORKLOADS, CHECKS = f"localqueues.{KUEUE}", f"workloads.{KUEUE}", f"admissionchecks.{KUEUE}"
RIGHTS = [
    f"{kind}.rbac.authorization.k8s.io" for kind in ("roles", "clusterroles", "rolebindings", "clusterrolebindings")
]
KINDS = ["namespaces", "nodes", "pods", "jobs.batch", "events", "customresourcedefinitions.apiextensions.k8s.io"]
KINDS += [FLAVORS, CLUSTER_QUEUES, LOCAL_QUEUES, WORKLOADS, CHECKS, *RIGHTS]
SETTLED_S = 30.0
"""After this long the controllers of the cluster have nothing more to write about the work of other people."""
WRITTEN = {"nodes", f"{CHECKS}/status", "recommendations.gpu-autopilot.io", "recommendations.gpu-autopilot.io/status"}
"""What has no namespace and is written all the same."""
SHORT = tuple(name for name in STORIES if name not in LONG)


@pytest.fixture
def server() -> Server:
    """A cluster with Kueue, in which the nodes of the run have no kubelet, and an audit log."""
    kubelets = KubeletOptions(served=lambda node: E2E not in node["metadata"].get("labels", {}))
    start = datetime.now(UTC) - timedelta(seconds=SETTLED_S)
    made = cluster(Timeline(start), random.Random(1), kueue=True, kubelets=kubelets)
    made.audit = AuditLog()
    return made


@pytest.fixture
def kubeconfig(server: Server, tmp_path: Path) -> Iterator[Path]:
    """Its kubeconfig while it listens; other people have work there, which has settled."""
    path = tmp_path / "kubeconfig"
    with serve(server) as running:
        with running.clock.hold() as timeline, running.clock.lock:
            add_bystanders(server.client(ADMIN, "test"))
            timeline.run_for(SETTLED_S)
        path.write_text(running.kubeconfig(), "utf-8")
        yield path


def add_bystanders(client: Client) -> None:
    """A node with free GPUs, a queue with work that runs and work that waits, and work that is handed over to us."""
    client.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "vision"}})
    for name in ("theirs-1", "theirs-2"):
        found = node(name)
        client.create("nodes", {**found, "metadata": {"name": name, "labels": found["metadata"]["labels"]}})
    version = {"apiVersion": f"{KUEUE}/v1beta2"}
    client.create(FLAVORS, {**version, "kind": "ResourceFlavor", "metadata": {"name": "theirs"}, "spec": {}})
    quota = [{"name": "nvidia.com/gpu", "nominalQuota": "8"}]
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "theirs", "resources": quota}]}]
    spec = {"namespaceSelector": {}, "resourceGroups": groups}
    client.create(CLUSTER_QUEUES, {**version, "kind": "ClusterQueue", "metadata": {"name": "theirs"}, "spec": spec})
    place, queue = {"name": "vision", "namespace": "vision"}, {"clusterQueue": "theirs"}
    client.create(LOCAL_QUEUES, {**version, "kind": "LocalQueue", "metadata": place, "spec": queue})
    queued = {f"{KUEUE}/queue-name": "vision"}
    client.create("jobs.batch", job("runs", gpus=8, labels=queued))
    client.create("jobs.batch", job("waits", gpus=8, labels=queued))
    client.create("jobs.batch", job("gated", labels=queued, annotations={f"{KUEUE}/admission-gated-by": CONTROLLER}))
    suspended = job("handed-over", gpus=8, labels={MANAGE: "true"})
    client.create("jobs.batch", {**suspended, "spec": {**suspended["spec"], "suspend": True}})
    pod = job("pod")["spec"]["template"]["spec"] | {"schedulingGates": [{"name": CONTROLLER}]}
    meta = {"name": "held-back", "namespace": "vision"}
    client.create("pods", {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod})


def everything(client: Client) -> dict[str, str]:
    """Every object of the cluster as text, by kind and name."""
    return {
        f"{kind} {each['metadata'].get('namespace', '')}/{each['metadata']['name']}": json.dumps(each, sort_keys=True)
        for kind in KINDS
        for each in client.list(kind)
    }


@pytest.mark.parametrize("names", [SHORT, pytest.param(LONG, marks=pytest.mark.e2e)], ids=["short", "long"])
def test_the_service_decides_and_touches_nothing_else(
    server: Server, kubeconfig: Path, tmp_path: Path, names: tuple[str, ...]
) -> None:
    """All stories go as told beside work of other people; then every object is as it was, and nothing is left."""
    client, audit = server.client(ADMIN, "test"), server.audit
    assert audit is not None
    before = everything(client)
    run = RealCluster(kubeconfig)
    try:
        service = DecidingService(run, tmp_path)
        try:
            for name in names:
                tell(service, name)
        finally:
            service.close()
    finally:
        run.close()
    of_nodes = f"events default/{run.space}-"  # the cluster tells that they came and went
    assert {key: text for key, text in everything(client).items() if not key.startswith(of_nodes)} == before
    account = f"system:serviceaccount:{run.space}:{run.space}"
    written = [each for each in audit.by(account) if each.done]
    assert {each.namespace for each in written} == {"", run.space}
    assert {place(each, run) for each in written if not each.namespace} <= {(each, True) for each in WRITTEN}


def place(entry: Entry, run: RealCluster) -> tuple[str, bool]:
    """What was written outside of namespaces, and whether it is of the run."""
    return entry.resource, entry.resource.startswith("recommendations") or entry.name in {*run.nodes, run.cut, CHECK}
