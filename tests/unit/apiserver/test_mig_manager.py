"""The MIG manager: when it acts, its states, the clients that it pauses, and what the node offers afterwards."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from apiserver.actors.kubelet import KubeletOptions
from apiserver.actors.mig_config import Layout, UnknownConfigError, layouts_of, resources_of
from apiserver.actors.mig_manager import CLIENTS, CONFIG, DEPLOY, PAUSED, STATE, MigManager, MigOptions
from apiserver.cluster import cluster
from apiserver.timeline import Timeline
from apiserver.users import ADMIN

Obj = dict[str, Any]
FILE = """version: v1
mig-configs:
  all-disabled: [{devices: all, mig-enabled: false}]
  all-1g.10gb: [{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}]
  half:
    - {devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 2}}
    - {devices: [1], mig-enabled: false}
  first-only: [{devices: [0], mig-enabled: false}]
"""


class Scene:
    """One node of two GPUs with its clients."""

    def __init__(self, options: MigOptions | None = None, strategy: str = "mixed") -> None:
        self.timeline = Timeline(datetime(2026, 1, 1, tzinfo=UTC))
        self.server = cluster(self.timeline, random.Random(1), kubelets=KubeletOptions(served=lambda _node: False))
        self.client = self.server.client(ADMIN, "test")
        self.options = options or MigOptions()
        self.options.config_map = ("default", "mig")
        self.manager = MigManager(self.server, self.options)
        self.client.create(
            "configmaps",
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "mig", "namespace": "default"},
                "data": {"config.yaml": FILE},
            },
        )
        labels = {DEPLOY + each: "true" for each in CLIENTS} | {
            "nvidia.com/mig.capable": "true",
            "nvidia.com/mig.strategy": strategy,
            "nvidia.com/gpu.count": "2",
            "nvidia.com/gpu.product": "H100",
        }
        amounts = {"cpu": "64", "nvidia.com/gpu": "2"}
        status = {"capacity": amounts, "allocatable": amounts}
        metadata = {"name": "n1", "labels": labels}
        self.client.create(
            "nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status}
        )
        self.timeline.run_for(1)

    @property
    def node(self) -> Obj:
        """The node now."""
        found = self.server.store.get("nodes", "", "n1")
        assert found is not None
        return found

    @property
    def labels(self) -> dict[str, str]:
        """Its labels."""
        found: dict[str, str] = self.node["metadata"]["labels"]
        return found

    @property
    def gpus(self) -> dict[str, str]:
        """What of its GPUs can be allocated."""
        allocatable: dict[str, str] = self.node["status"]["allocatable"]
        return {name: amount for name, amount in allocatable.items() if name.startswith("nvidia.com/")}

    def paused(self) -> set[str]:
        """The clients that are paused."""
        return {each for each in CLIENTS if self.labels[DEPLOY + each] == PAUSED}

    def want(self, config: str | None, **more: str | None) -> None:
        """Set the label, as the autopilot would: the state is removed in the same patch."""
        self.client.patch("nodes", "", "n1", {"metadata": {"labels": {CONFIG: config, STATE: None, **more}}})

    def pod(self, name: str, limits: Obj, app: str = "") -> None:
        """A pod on the node."""
        spec = {"nodeName": "n1", "containers": [{"name": "main", "image": "app:1", "resources": {"limits": limits}}]}
        metadata = {"name": name, "namespace": "default", "labels": {"app": app}}
        self.client.create("pods", {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def test_a_change_goes_through_pending_with_paused_clients_to_success() -> None:
    """While it is pending nothing can be allocated; afterwards the instances can, and labels count them."""
    scene = Scene()
    scene.want("all-1g.10gb")
    scene.timeline.run_for(1)
    assert scene.labels[STATE] == "pending"
    assert scene.paused() == set(CLIENTS)
    assert scene.gpus == {"nvidia.com/gpu": "0"}
    scene.timeline.run_for(20)
    assert scene.labels[STATE] == "success"
    assert scene.paused() == set()
    assert scene.gpus == {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "14"}
    assert scene.labels["nvidia.com/mig-1g.10gb.count"] == "14"
    assert scene.labels["nvidia.com/mig-1g.10gb.slices.gi"] == "1"


def test_a_profile_that_vanishes_is_offered_as_zero() -> None:
    """The resource stays in allocatable; its labels go."""
    scene = Scene()
    for config in ("all-1g.10gb", "half"):
        scene.want(config)
        scene.timeline.run_for(30)
    assert scene.gpus == {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": "0", "nvidia.com/mig-3g.40gb": "2"}
    assert "nvidia.com/mig-1g.10gb.count" not in scene.labels


def test_an_unknown_config_fails_and_the_same_value_again_does_nothing() -> None:
    """A new value is needed, or the label removed and set."""
    scene = Scene()
    scene.want("none-such")
    scene.timeline.run_for(5)
    assert scene.labels[STATE] == "failed"
    scene.want("none-such")
    scene.timeline.run_for(5)
    assert STATE not in scene.labels
    scene.want(None)
    scene.timeline.run_for(1)
    scene.want("none-such")
    scene.timeline.run_for(5)
    assert scene.labels[STATE] == "failed"


def test_what_is_applied_already_succeeds_at_once() -> None:
    """It is never pending, and nobody is paused."""
    scene = Scene()
    seen: list[str] = []
    scene.server.store.listen("nodes", lambda event: seen.append(event.obj["metadata"]["labels"].get(STATE, "")))
    scene.want("all-disabled")
    scene.timeline.run_for(1)
    assert scene.labels[STATE] == "success"
    assert "pending" not in seen


def test_only_the_last_value_counts() -> None:
    """What is set and replaced while a change is under way is never applied."""
    scene = Scene()
    scene.want("all-1g.10gb")
    scene.timeline.run_for(1)
    scene.want("half")
    scene.timeline.run_for(1)
    scene.want("all-disabled")
    scene.timeline.run_for(60)
    assert scene.labels[STATE] == "success"
    assert scene.manager.layouts("n1") == (Layout(), Layout())


def test_a_client_that_does_not_go_leaves_the_node_pending_until_a_new_value() -> None:
    """After five minutes the manager gives up without a state; the clients stay paused."""
    scene = Scene()
    scene.pod("plugin", {}, CLIENTS["device-plugin"])
    scene.want("all-1g.10gb")
    scene.timeline.run_for(1000)
    assert scene.labels[STATE] == "pending"
    assert scene.paused() == set(CLIENTS)
    scene.client.delete("pods", "default", "plugin", {"gracePeriodSeconds": 0})
    scene.timeline.run_for(1000)
    assert scene.labels[STATE] == "pending"
    scene.want("half")
    scene.timeline.run_for(30)
    assert scene.labels[STATE] == "success"
    assert scene.paused() == set()


@pytest.mark.parametrize("after_success", [False, True])
def test_a_failure_brings_the_clients_back_only_before_the_first_success(*, after_success: bool) -> None:
    """Afterwards they stay paused: the deploy labels tell more than the state."""
    scene = Scene()
    if after_success:
        scene.want("half")
        scene.timeline.run_for(30)
    scene.pod("user", {"nvidia.com/gpu": "1"})
    scene.want("all-1g.10gb")
    scene.timeline.run_for(30)
    assert scene.labels[STATE] == "failed"
    assert scene.paused() == (set(CLIENTS) if after_success else set())
    before = layouts_of(FILE, "half", 2) if after_success else (Layout(), Layout())
    assert scene.manager.layouts("n1") == before


@pytest.mark.parametrize(("helps", "state"), [(True, "success"), (False, "failed")])
def test_a_mode_that_does_not_change_needs_a_reboot(*, helps: bool, state: str) -> None:
    """The state says so; after the reboot the mode is right, or the change failed."""
    scene = Scene(MigOptions(may_reboot=True, mode_fails={"n1"}, reboot_helps=helps))
    scene.want("all-1g.10gb")
    scene.timeline.run_for(30)
    assert scene.labels[STATE] == "rebooting"
    scene.timeline.run_for(300)
    assert scene.labels[STATE] == state


def test_host_clients_take_half_a_minute_to_stop() -> None:
    """Only where the mode changes."""
    scene = Scene(MigOptions(stops_host_clients=True))
    scene.want("all-1g.10gb")
    scene.timeline.run_for(29)
    assert scene.labels[STATE] == "pending"
    scene.timeline.run_for(10)
    assert scene.labels[STATE] == "success"


def test_the_old_success_stays_until_pending_is_written() -> None:
    """So a success counts only if the state was removed with the change."""
    scene = Scene()
    scene.want("all-disabled")
    scene.timeline.run_for(5)
    scene.client.patch("nodes", "", "n1", {"metadata": {"labels": {CONFIG: "half"}}})
    assert scene.labels[STATE] == "success"
    scene.timeline.run_for(0)
    assert scene.labels[STATE] == "pending"


def test_a_single_strategy_calls_the_instances_gpus() -> None:
    """Product and count are those of the instances."""
    scene = Scene(strategy="single")
    scene.want("all-1g.10gb")
    scene.timeline.run_for(30)
    assert scene.gpus == {"nvidia.com/gpu": "14"}
    assert scene.labels["nvidia.com/gpu.product"] == "H100-MIG-1g.10gb"
    assert scene.labels["nvidia.com/gpu.count"] == "14"


def test_a_restarted_manager_forgets_its_success() -> None:
    """A failure brings the clients back again."""
    scene = Scene()
    scene.want("half")
    scene.timeline.run_for(30)
    scene.options.apply_fails.add("n1")
    scene.manager.restart("n1")
    scene.want("all-1g.10gb")
    scene.timeline.run_for(30)
    assert scene.labels[STATE] == "failed"
    assert scene.paused() == set()


@pytest.mark.parametrize(
    ("text", "name", "why"),
    [
        ("mig-configs: [", "x", "not YAML"),
        ("version: v1", "x", "no entry 'x'"),
        (FILE, "first-only", "says nothing about GPU 1"),
        ("mig-configs: {x: [{devices: [7], mig-enabled: false}]}", "x", "neither all nor a list of indexes below 2"),
        ("mig-configs: {x: [{devices: all, mig-enabled: true, mig-devices: {big: 1}}]}", "x", "not a profile"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(text: str, name: str, why: str) -> None:
    """Each with the place."""
    with pytest.raises(UnknownConfigError, match=why):
        layouts_of(text, name, 2)


def test_a_mixed_strategy_names_a_resource_for_each_profile() -> None:
    """Attributes of a profile are part of the name."""
    layouts = (Layout(), Layout(enabled=True, instances={"1g.10gb+me": 1, "2g.20gb": 2}))
    assert resources_of(layouts, "mixed") == {
        "nvidia.com/gpu": 1,
        "nvidia.com/mig-1g.10gb.me": 1,
        "nvidia.com/mig-2g.20gb": 2,
    }
