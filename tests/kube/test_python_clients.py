"""The official Python client and lightkube against the server over HTTPS."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightkube
import pytest
from lightkube.core.exceptions import ApiError
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Pod
from lightkube.types import PatchType

# the official client declares types that strict checking does not accept
client: Any = importlib.import_module("kubernetes.client")
config: Any = importlib.import_module("kubernetes.config")
dynamic: Any = importlib.import_module("kubernetes.dynamic")
watch: Any = importlib.import_module("kubernetes.watch")
election: Any = importlib.import_module("kubernetes.leaderelection.leaderelection")
election_config: Any = importlib.import_module("kubernetes.leaderelection.electionconfig")
LeaseLock: Any = importlib.import_module("kubernetes.leaderelection.resourcelock.leaselock").LeaseLock
WAIT_S = 20.0


@pytest.fixture(scope="module")
def official(kubeconfig: Path) -> Iterator[Any]:
    """The official client; its defaults are set too, which LeaseLock uses."""
    config.load_kube_config(str(kubeconfig))
    with client.ApiClient() as api:
        yield api


@pytest.fixture(scope="module")
def light(kubeconfig: Path) -> lightkube.Client:
    """A lightkube client."""
    return lightkube.Client(lightkube.KubeConfig.from_file(kubeconfig), field_manager="light", trust_env=False)


def _map(name: str, **data: str) -> Any:
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name), data=data)


def test_the_official_client_writes_reads_and_pages(official: Any) -> None:
    """Typed objects there and back; a list in pages has every object once."""
    core = client.CoreV1Api(official)
    for number in range(5):
        core.create_namespaced_config_map("kube-public", _map(f"m{number}", k=str(number)))
    first = core.list_namespaced_config_map("kube-public", limit=3)
    second = core.list_namespaced_config_map("kube-public", limit=3, _continue=first.metadata._continue)
    names = [each.metadata.name for each in [*first.items, *second.items]]
    assert [name for name in names if name.startswith("m")] == [f"m{number}" for number in range(5)]
    patched = core.patch_namespaced_config_map("m0", "kube-public", {"data": {"k": "x"}})
    assert patched.data == {"k": "x"}
    core.delete_namespaced_config_map("m0", "kube-public")
    with pytest.raises(client.ApiException) as refusal:
        core.read_namespaced_config_map("m0", "kube-public")
    assert refusal.value.status == 404


def test_the_official_client_watches_from_a_version(official: Any) -> None:
    """Events of what happened after the list arrive in order."""
    core = client.CoreV1Api(official)
    version = core.list_namespaced_config_map("default").metadata.resource_version
    core.create_namespaced_config_map("default", _map("seen", a="1"))
    core.patch_namespaced_config_map("seen", "default", {"data": {"a": "2"}})
    core.delete_namespaced_config_map("seen", "default")
    stream = watch.Watch()
    found = []
    for event in stream.stream(
        core.list_namespaced_config_map, "default", resource_version=version, timeout_seconds=20
    ):
        found.append((event["type"], event["object"].data))
        if event["type"] == "DELETED":
            stream.stop()
    assert found == [("ADDED", {"a": "1"}), ("MODIFIED", {"a": "2"}), ("DELETED", {"a": "2"})]


def test_the_dynamic_client_finds_kinds_by_discovery_and_applies(official: Any) -> None:
    """Server-side apply with an owner; a second owner is refused."""
    maps = dynamic.DynamicClient(official).resources.get(api_version="v1", kind="ConfigMap")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "dyn"}, "data": {"k": "1"}}
    maps.server_side_apply(body=body, name="dyn", namespace="default", field_manager="one")
    body["data"] = {"k": "2"}
    with pytest.raises(dynamic.exceptions.ConflictError):
        maps.server_side_apply(body=body, name="dyn", namespace="default", field_manager="two")


class _Lock(LeaseLock):  # type: ignore[misc]
    """A lease that its holder can be cut off from."""

    cut_off = False

    def update(self, *arguments: Any) -> bool:
        """Renew, or fail as without a network."""
        return bool(super().update(*arguments)) if not self.cut_off else False


def test_leadership_passes_on_when_the_leader_is_cut_off(official: Any) -> None:
    """Of two candidates one leads; when it can no longer renew, it steps down and the other takes over."""
    locks = {name: _Lock("leader", "default", name) for name in ("a", "b")}
    elected = {name: threading.Event() for name in locks}
    stopped = {name: threading.Event() for name in locks}

    def stand(name: str) -> threading.Thread:
        settings = election_config.Config(
            locks[name],
            lease_duration=3,
            renew_deadline=2,
            retry_period=1,
            onstarted_leading=elected[name].set,
            onstopped_leading=stopped[name].set,
        )
        thread = threading.Thread(target=election.LeaderElection(settings).run, daemon=True)
        thread.start()
        return thread

    stand("a")
    assert elected["a"].wait(WAIT_S)
    stand("b")
    assert not elected["b"].is_set()
    locks["a"].cut_off = True
    assert stopped["a"].wait(WAIT_S)
    assert elected["b"].wait(WAIT_S)
    lease = client.CoordinationV1Api(official).read_namespaced_lease("leader", "default")
    assert lease.spec.holder_identity == "b"
    locks["b"].cut_off = True
    assert stopped["b"].wait(WAIT_S)


def test_lightkube_creates_lists_patches_and_deletes(light: lightkube.Client) -> None:
    """Each verb, and what a refusal looks like."""
    spec = PodSpec(containers=[Container(name="main", image="app:1")])
    light.create(Pod(metadata=ObjectMeta(name="lp", namespace="default", labels={"set": "l"}), spec=spec))
    assert [pod.metadata.name for pod in light.list(Pod, namespace="default", labels={"set": "l"}) if pod.metadata] == [
        "lp"
    ]
    light.patch(Pod, "lp", {"metadata": {"labels": {"more": "x"}}}, namespace="default", patch_type=PatchType.MERGE)
    found = light.get(Pod, "lp", namespace="default")
    assert found.metadata is not None
    assert (found.metadata.labels or {})["more"] == "x"
    light.delete(Pod, "lp", namespace="default", grace_period=0)
    with pytest.raises(ApiError) as refusal:
        light.get(Pod, "lp", namespace="default")
    assert refusal.value.status.code == 404


def test_lightkube_applies_and_watches(light: lightkube.Client) -> None:
    """Apply creates, then changes; the watch shows both."""
    made = ConfigMap(metadata=ObjectMeta(name="la", namespace="kube-system"), data={"a": "1"})
    light.apply(made)
    light.apply(ConfigMap(metadata=ObjectMeta(name="la", namespace="kube-system"), data={"a": "2"}))
    for change, seen in light.watch(ConfigMap, namespace="kube-system", fields={"metadata.name": "la"}):
        assert (change, seen.data) == ("ADDED", {"a": "2"})
        break
