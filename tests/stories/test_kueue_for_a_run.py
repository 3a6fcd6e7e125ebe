"""Kueue is installed for a test run where it is absent, and nothing that was there before is removed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from actuators.kubernetes.api import Api
from apiserver.audit import AuditLog
from apiserver.client import Client
from apiserver.cluster import cluster
from apiserver.http.serve import serve
from apiserver.kueue.crds import definitions
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import ADMIN
from autopilot.kube.access import Access, Address
from tests.kits.kueue_install import VARIABLE, KueueAbsentError, installed_kueue
from tests.kits.real_cluster import E2E, KUEUE
from tests.service.kit import poll

CRDS = "customresourcedefinitions.apiextensions.k8s.io"
FLAVORS = "resourceflavors.kueue.x-k8s.io"
SPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}}
SETTINGS: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}}
SETTINGS["metadata"] = {"name": "kueue-manager-config", "namespace": "kueue-system"}
WEBHOOKS: dict[str, Any] = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
WEBHOOKS |= {"metadata": {"name": "kueue"}, "webhooks": []}


@pytest.fixture
def server() -> Server:
    """A cluster without Kueue."""
    made = cluster(Timeline(datetime.now(UTC)), random.Random(1))
    made.audit = AuditLog()
    return made


@pytest.fixture
def client(server: Server) -> Client:
    """A person."""
    return server.client(ADMIN, "test")


@pytest.fixture
def kubeconfig(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, require_tool: Callable[[str], str]
) -> Iterator[Path]:
    """Of the cluster; kubectl is there, and the manifest of Kueue is a file."""
    require_tool("kubectl")
    manifest, path = tmp_path / "manifests.yaml", tmp_path / "kubeconfig"
    manifest.write_text(yaml.safe_dump_all([SPACE, *definitions(), SETTINGS, WEBHOOKS]), "utf-8")
    monkeypatch.setenv(VARIABLE, str(manifest))
    monkeypatch.setenv("HOME", str(tmp_path))
    with serve(server, tls=True) as running:
        path.write_text(running.kubeconfig(), "utf-8")
        yield path


def left(client: Client) -> set[str]:
    """What of Kueue is there."""
    return {each["metadata"]["name"] for kind in (CRDS, "namespaces") for each in client.list(kind)} - {
        "default",
        "kube-node-lease",
        "kube-public",
        "kube-system",
    }


def test_it_is_there_for_the_run_and_gone_afterwards(server: Server, client: Client, kubeconfig: Path) -> None:
    """Definitions and namespace carry the label of the run, and all are removed; webhooks before their manager."""
    with installed_kueue(kubeconfig, "run1"):
        assert "kueue-system" in left(client)
        found = client.get(CRDS, "", FLAVORS) or {}
        assert found["metadata"]["labels"][E2E] == "run1"
    assert left(client) == set()
    assert server.audit is not None
    removed = [each.resource for each in server.audit.by(ADMIN.name) if each.verb == "delete" and each.done]
    assert removed.index("validatingwebhookconfigurations.admissionregistration.k8s.io") == 0
    assert max(at for at, each in enumerate(removed) if each == CRDS) < removed.index("namespaces")


def test_it_is_left_where_somebody_uses_it(client: Client, kubeconfig: Path) -> None:
    """A queue that is not of the run was created meanwhile."""
    flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "theirs"}}
    with pytest.raises(AssertionError, match="in use: resourceflavors/theirs"), installed_kueue(kubeconfig, "run1"):
        Api(Access(Address(kubeconfig))).post(f"{KUEUE}/resourceflavors", {**flavor, "spec": {}})
    assert client.get(FLAVORS, "", "theirs") is not None


def test_nothing_is_applied_where_parts_of_it_are_there(client: Client, kubeconfig: Path) -> None:
    """Its namespace belongs to somebody, and stays."""
    client.create("namespaces", SPACE)
    with pytest.raises(KueueAbsentError, match="namespace/kueue-system"), installed_kueue(kubeconfig, "run1"):
        pass
    assert left(client) == {"kueue-system"}


def test_without_a_manifest_the_reason_says_what_to_do(
    client: Client, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such file, and a release that cannot be read."""
    monkeypatch.setenv(VARIABLE, "missing.yaml")
    with pytest.raises(KueueAbsentError, match="there is no such file"), installed_kueue(kubeconfig, "r"):
        pass
    monkeypatch.setattr("tests.kits.kueue_install.RELEASE", "http://127.0.0.1:1/{}")
    monkeypatch.setenv(VARIABLE, "v0.0.1")
    with pytest.raises(KueueAbsentError, match="give its manifests"), installed_kueue(kubeconfig, "r"):
        pass
    assert left(client) == set()


def test_what_was_there_before_stays(client: Client, kubeconfig: Path) -> None:
    """Kueue that is served is used as it is."""
    for each in definitions():
        client.create(CRDS, each)
    api = Api(Access(Address(kubeconfig)))
    poll(lambda: api.get(KUEUE).ok, "Kueue is served")
    before = left(client)
    with installed_kueue(kubeconfig, "run1"):
        assert left(client) == before
    assert left(client) == before
