"""The device plugin: what a node offers after a change of its configuration, and how that goes wrong."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from apiserver.actors.device_plugin import CONFIG, PRODUCT, REPLICAS, STRATEGY, DevicePlugin, DevicePluginOptions
from apiserver.actors.plugin_config import BadConfigError, PluginConfig, plugin_config_of
from apiserver.actors.timing import PLUGIN_MOUNT_S
from apiserver.cluster import cluster
from apiserver.timeline import Timeline
from apiserver.users import ADMIN
from autopilot.core.sharing.apart import lands_apart

Obj = dict[str, Any]
GPU = "nvidia.com/gpu"
ONE = f"resources: [{{name: {GPU}, replicas: 4}}]"
FILES = {
    "whole": "version: v1",
    "four": f"version: v1\nsharing: {{timeSlicing: {{{ONE}}}}}",
    "one-each": f"version: v1\nsharing: {{timeSlicing: {{failRequestsGreaterThanOne: true, {ONE}}}}}",
    "renamed": f"version: v1\nsharing: {{timeSlicing: {{renameByDefault: true, {ONE}}}}}",
    "mps": f"version: v1\nsharing: {{mps: {{{ONE}}}}}",
    "bad": "version: v1\nsharing: {timeSlicing: {resources: []}}",
}


class Scene:
    """A node of two GPUs with its plugin; the kubelet runs its pods."""

    def __init__(self, **labels: str) -> None:
        self.timeline = Timeline(datetime(2026, 1, 1, tzinfo=UTC))
        self.server = cluster(self.timeline, random.Random(1))
        self.client = self.server.client(ADMIN, "test")
        self.client.create("configmaps", self._map(FILES))
        self.options = DevicePluginOptions(("default", "plugin"))
        self.plugin = DevicePlugin(self.server, self.options)
        amounts = {"cpu": "64", "memory": "64Gi", "pods": "100", GPU: "2"}
        meta = {"name": "n1", "labels": {f"{GPU}.count": "2", PRODUCT: "H100"} | labels}
        status = {"capacity": amounts, "allocatable": amounts}
        self.client.create(
            "nodes", {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}, "status": status}
        )
        self.timeline.run_for(10)

    def _map(self, data: Obj) -> Obj:
        meta = {"name": "plugin", "namespace": "default"}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}

    def want(self, key: str | None, run_s: float = 100) -> None:
        """Set the label."""
        self.client.patch("nodes", "", "n1", {"metadata": {"labels": {CONFIG: key}}})
        self.timeline.run_for(run_s)

    def pod(self, name: str, count: int = 1, resource: str = GPU) -> str:
        """A pod on the node runs or is refused: its phase and message."""
        resources = {"limits": {resource: str(count)}, "requests": {resource: str(count)}}
        spec = {"nodeName": "n1", "containers": [{"name": "main", "image": "app:1", "resources": resources}]}
        meta = {"name": name, "namespace": "default"}
        self.client.create("pods", {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        self.timeline.run_for(2)
        status = (self.server.store.get("pods", "default", name) or {})["status"]
        return " ".join((status["phase"], status.get("message", ""))).strip()

    @property
    def seen(self) -> tuple[str, str, str, str, str]:
        """Offered as GPUs and under the other name; replicas, strategy and product by label."""
        node = self.server.store.get("nodes", "", "n1") or {}
        offered, labels = node["status"]["allocatable"], node["metadata"]["labels"]
        names = labels.get(REPLICAS, ""), labels.get(STRATEGY, ""), labels[PRODUCT]
        return offered.get(GPU, ""), offered.get(f"{GPU}.shared", ""), *names


@pytest.mark.parametrize(
    ("key", "labels", "fails", "seen", "lost"),
    [
        ("whole", {}, False, ("2", "", "1", "none", "H100"), ""),
        ("four", {}, False, ("8", "", "4", "time-slicing", "H100-SHARED"), ""),
        ("renamed", {}, False, ("0", "8", "4", "time-slicing", "H100"), ""),
        ("mps", {}, False, ("8", "", "4", "mps", "H100-SHARED"), ""),
        ("mps", {}, True, ("0", "", "4", "mps", "H100-SHARED"), "error checking MPS daemon health"),
        ("mps", {"nvidia.com/mig.strategy": "mixed"}, False, ("0", "", "1", "none", "H100"), "not supported with MPS"),
        ("bad", {}, False, ("0", "", "1", "none", "H100"), "no resources specified"),
        ("none-such", {}, False, ("2", "", "1", "none", "H100"), "specified config none-such does not exist"),
    ],
)
def test_a_key_decides_what_the_node_offers(
    key: str, labels: dict[str, str], fails: bool, seen: tuple[str, ...], lost: str
) -> None:
    """Labels follow the entry even where the plugin does not run with it; without the label all is as before."""
    scene = Scene(**labels)
    if fails:
        scene.options.mps_fails.add("n1")
    scene.want(key, 1)
    if key != "none-such":
        assert scene.seen[0] == "0", "no GPU while the plugin starts anew"
    scene.timeline.run_for(100)
    assert scene.seen == seen
    assert lost in scene.plugin.lost("n1")
    scene.want(None)
    assert scene.seen[0] == "2"
    assert scene.seen[2:] == ("1", "none", "H100")


def test_a_missing_key_takes_the_gpus_at_the_next_start_of_the_plugin() -> None:
    """The node is as it was until then; a new key of the map is on the node a while later."""
    scene = Scene()
    scene.want("later")
    scene.plugin.restart("n1")
    scene.timeline.run_for(40)
    assert scene.seen[0] == "0"
    scene.client.patch("configmaps", "default", "plugin", {"data": {"later": FILES["four"]}})
    scene.want(None)
    scene.want("later", PLUGIN_MOUNT_S)
    assert scene.seen[0] == "8"


def test_a_pod_from_before_is_not_counted_any_more() -> None:
    """The kubelet hands its GPU out again, in both directions."""
    for before, after, most in ((None, "four", 8), ("four", None, 2)):
        scene = Scene()
        scene.want(before)
        assert scene.pod("old") == "Running"
        scene.want(after)
        assert scene.plugin.turned_in_use == ["n1: old"]
        assert [scene.pod(f"new-{number}") for number in range(most)] == ["Running"] * most
        assert scene.plugin.crowded("n1") == ["GPU-n1-0"]


def test_a_request_of_two_gets_different_gpus_where_they_are_free_and_is_refused_by_a_setting() -> None:
    """`packed` gives two shares of one GPU."""
    scene = Scene()
    scene.want("four")
    assert scene.pod("pair", 2) == "Running"
    scene.options.packed = True
    assert scene.pod("packed", 2) == "Running"
    pair, packed = scene.plugin.devices("n1").values()
    assert pair == ("GPU-n1-0::0", "GPU-n1-1::0")
    assert packed == ("GPU-n1-0::1", "GPU-n1-0::2")
    assert "Requested: 5, Available: 4" in scene.pod("many", 5)
    scene.want("one-each")
    assert "maximum request size for shared resources is 1; found 2" in scene.pod("two", 2)
    assert not scene.plugin.crowded("n1")


def test_entries_are_read_as_the_plugin_reads_them() -> None:
    """MPS comes first; less than two replicas, or no YAML, ends the plugin."""
    both = FILES["four"].removesuffix("}") + f", mps: {{{ONE}}}}}"
    assert plugin_config_of(both) == PluginConfig("mps", 4, single=True)
    assert plugin_config_of(f"sharing: {{timeSlicing: {{resources: [{{name: {GPU}.x, replicas: 2}}]}}}}").replicas == 1
    for text in ("[", "sharing: 3", f"sharing: {{mps: {{resources: [{{name: {GPU}, replicas: 1}}]}}}}"):
        with pytest.raises(BadConfigError):
            plugin_config_of(text)


@pytest.mark.parametrize(("held", "apart"), [(0, True), (1, False), (2, False)])
def test_shares_land_apart_where_the_core_says_so(held: int, apart: bool) -> None:
    """One GPU has `held` shares given out more than the other; with one more, the plugin may choose either."""
    scene = Scene()
    scene.want("four")
    scene.options.packed = True
    for number in range(held):
        scene.pod(f"first-{number}")
    scene.options.packed = False
    assert scene.pod("pair", 2) == "Running"
    given = list(scene.plugin.devices("n1").values())[-1]
    assert lands_apart((held, 0), 4, 2) == apart
    assert not apart or len({each.partition("::")[0] for each in given}) == 2
