"""NVIDIA's device plugin with its config-manager, MPS daemons and feature discovery, for whole GPUs.

Written from the sources of k8s-device-plugin (2026-08-19); no recording of it exists. The times are assumed, but for
the 30 s after which a plugin whose MPS daemon is not healthy tries again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from apiserver.actors.base import Actor
from apiserver.actors.kubelet import Kubelet
from apiserver.actors.objects import present
from apiserver.actors.plugin_config import GPU, MPS, NONE, WHOLE, BadConfigError, PluginConfig, plugin_config_of
from apiserver.actors.pod_status import is_terminal
from apiserver.actors.timing import PLUGIN_LABELS_S, PLUGIN_MOUNT_S, PLUGIN_RESTART_S, PLUGIN_RETRY_S
from apiserver.pod_requests import pod_requests
from apiserver.server import Server
from apiserver.store import Event
from apiserver.timeline import Timer
from apiserver.users import service_account

Obj = dict[str, Any]
CONFIG = "nvidia.com/device-plugin.config"
COUNT, PRODUCT, REPLICAS = f"{GPU}.count", f"{GPU}.product", f"{GPU}.replicas"
STRATEGY, MPS_CAPABLE, MIG_STRATEGY = (
    "nvidia.com/gpu.sharing-strategy",
    "nvidia.com/mps.capable",
    "nvidia.com/mig.strategy",
)
SUFFIX = "-SHARED"


@dataclass(slots=True)
class DevicePluginOptions:
    """Setup of the plugins, and their faults by node.

    `config_map` is namespace and name of the map of ClusterPolicy.spec.devicePlugin.config.name; `default` its default
    entry. `packed`: shares of one GPU are given out before those of the next.
    """

    config_map: tuple[str, str]
    default: str = ""
    packed: bool = False
    mps_fails: set[str] = field(default_factory=set)  # nodes on which the MPS daemon dies at each start


@dataclass(slots=True)
class _Plugin:
    """The pod of the plugin on one node."""

    uuids: tuple[str, ...]
    product: str
    wanted: str = ""  # value of the label
    entry: tuple[str, str] = ("", "")  # key and text in effect
    config: PluginConfig = WHOLE  # of the running plugin
    running: bool = False
    lost: str = ""  # why the plugin or its config-manager does not run; "" if they do
    timer: Timer | None = None
    draws: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311 - times of restarts
    held: dict[str, tuple[str, ...]] = field(default_factory=dict)  # ids by uid of a pod, as the kubelet keeps them

    def ids(self) -> list[str]:
        """The devices that the kubelet knows now."""
        if not self.running:
            return []
        if self.config is WHOLE:
            return list(self.uuids)
        return [f"{uuid}::{share}" for uuid in self.uuids for share in range(self.config.replicas)]


class DevicePlugin(Actor):
    """The plugins of all nodes with the label nvidia.com/gpu.count, which show GPUs in their capacity or are new.

    - A change of the label nvidia.com/device-plugin.config selects another key of the ConfigMap, as the node sees it:
      a changed map is there a while later. The plugin starts anew, and its node offers no GPU meanwhile.
    - A key that does not exist ends the config-manager: the plugin keeps its entry until its pod starts anew
      (`restart`). Then the node has no GPUs.
    - The kubelet knows devices by their id. Pods from before a change hold ids that do not exist any more, so it hands
      their GPUs out again: `crowded` names these.
    """

    user = service_account("gpu-operator", "nvidia-device-plugin")
    manager = "nvidia-device-plugin"
    process = "nvidia-device-plugin"

    def __init__(self, server: Server, options: DevicePluginOptions) -> None:
        self.options = options
        super().__init__(server)

    def start(self) -> None:
        """Follow nodes and the map, and answer the kubelets."""
        self._plugins: dict[str, _Plugin] = {}
        self._mounted: dict[str, str] = self._map()
        self.turned_in_use: list[str] = []
        """Changes of a node on which a pod held a GPU: node and first pod. A controller never causes one."""
        for actor in self.server.actors:
            if isinstance(actor, Kubelet):
                actor.devices = self
        self.follow("nodes", self._on_node)
        self.follow("configmaps", self._on_map)

    # --- what a test asks --------------------------------------------------------------------------

    def lost(self, node: str) -> str:
        """Why the plugin or its config-manager does not run; "" if they do. Raises KeyError for an unknown node."""
        return self._plugins[node].lost

    def restart(self, node: str) -> None:
        """The pod of the plugin starts anew: config-manager runs first."""
        held = self._plugins[node]
        self._stop(node, held)
        held.timer = self.clock.at(held.draws.uniform(*PLUGIN_RESTART_S), lambda: self._begin(node, held))

    def devices(self, node: str) -> Mapping[str, tuple[str, ...]]:
        """The ids of the devices of each pod (uid), as the kubelet keeps them."""
        return dict(self._plugins[node].held)

    def crowded(self, node: str) -> list[str]:
        """GPUs (UUID) that more pods hold than the ids of one configuration allow."""
        held = self._plugins[node]
        owners = Counter(uuid for ids in held.held.values() for uuid in {each.partition("::")[0] for each in ids})
        whole = {each for ids in held.held.values() for each in ids if "::" not in each}
        most = held.config.replicas
        return sorted(uuid for uuid, count in owners.items() if count > (1 if uuid in whole else most))

    # --- what the kubelet asks ---------------------------------------------------------------------

    def serves(self, node: str, resource: str) -> bool:
        """Whether this plugin hands out the resource on the node."""
        held = self._plugins.get(node)
        return held is not None and resource in {GPU, f"{GPU}.shared"}

    def allocate(self, node: str, uid: str, resource: str, count: int) -> str:
        """Devices for a pod; or the reason of the refusal."""
        held = self._plugins[node]
        taken = {each for ids in held.held.values() for each in ids}
        free = [each for each in held.ids() if each not in taken] if resource == held.config.resource else []
        if count > len(free):
            return f"requested number of devices unavailable for {resource}. Requested: {count}, Available: {len(free)}"
        if count > 1 and held.config.single:
            return (
                f"rpc error: code = Unknown desc = invalid allocation request for {resource!r}: invalid request: "
                f"maximum request size for shared resources is 1; found {count}"
            )
        held.held[uid] = self._chosen(free, taken & set(held.ids()), count)
        return ""

    def free(self, node: str, uid: str) -> None:
        """A pod has left."""
        if node in self._plugins:
            self._plugins[node].held.pop(uid, None)

    def _chosen(self, free: list[str], taken: set[str], count: int) -> tuple[str, ...]:
        """The preferred devices: those of the GPU with the fewest shares given out (the most, where `packed`)."""
        given = Counter(each.partition("::")[0] for each in taken)
        sign = -1 if self.options.packed else 1
        chosen: list[str] = []
        for _ in range(count):
            best = min(free, key=lambda each: sign * given[each.partition("::")[0]])
            free.remove(best)
            chosen.append(best)
            given[best.partition("::")[0]] += 1
        return tuple(chosen)

    # --- what happens on a node --------------------------------------------------------------------

    def _on_node(self, event: Event) -> None:
        node, name = event.obj, event.obj["metadata"]["name"]
        labels = node["metadata"].get("labels") or {}
        if event.type == "DELETED" or not labels.get(COUNT, "").isdecimal():
            self._plugins.pop(name, None)
            return
        held, wanted = self._plugins.get(name), labels.get(CONFIG, "")
        if held is None:
            uuids = tuple(f"GPU-{name}-{index}" for index in range(int(labels[COUNT])))
            product = labels.get(PRODUCT, "").removesuffix(SUFFIX)
            held = self._plugins[name] = _Plugin(uuids, product, wanted, draws=random.Random(name))  # noqa: S311
            held.timer = self.clock.at(0, lambda: self._begin(name, held))
        elif held.wanted != wanted:
            held.wanted = wanted
            self._manage(name, held)

    def _on_map(self, event: Event) -> None:
        """The kubelet brings a changed map to the nodes a while later. config-manager does not follow it."""
        meta = event.obj["metadata"]
        if (meta["namespace"], meta["name"]) == self.options.config_map:
            seen = self._map()
            self.clock.at(PLUGIN_MOUNT_S, lambda: self._remount(seen))

    def _remount(self, seen: dict[str, str]) -> None:
        self._mounted = seen

    def _map(self) -> dict[str, str]:
        found = self.server.store.get("configmaps", *self.options.config_map) or {}
        return dict(found.get("data") or {})

    def _selected(self, held: _Plugin) -> bool:
        """Whether config-manager has selected an entry; it ends where the key does not exist."""
        key = held.wanted or self.options.default
        text = self._mounted.get(key) if key else ""
        if text is None:
            held.lost = f"specified config {key} does not exist"
            return False
        held.lost, held.entry = "", (key, text)
        return True

    def _manage(self, name: str, held: _Plugin) -> None:
        """config-manager: another entry is a signal to the plugin."""
        before = held.entry
        if not self._selected(held) or (held.entry == before and held.running):
            return
        user = self._user_of(name)
        if user:
            self.turned_in_use.append(f"{name}: {user}")
        self._stop(name, held)
        held.timer = self.clock.at(held.draws.uniform(*PLUGIN_RESTART_S), lambda: self._load(name, held))

    def _begin(self, name: str, held: _Plugin) -> None:
        """The pod of the plugin starts."""
        if self._selected(held):
            self._load(name, held)
        else:
            self._offer(name, {})

    def _stop(self, name: str, held: _Plugin) -> None:
        """Its devices are not healthy any more."""
        if held.timer is not None:
            held.timer.cancel()
        held.running = False
        self._offer(name, {})

    def _load(self, name: str, held: _Plugin) -> None:
        """Load the entry, wait for the MPS daemon, and announce the devices."""
        if self._plugins.get(name) is not held:
            return
        try:
            config = plugin_config_of(held.entry[1])
            self._check(name, config)
        except BadConfigError as error:
            held.lost = str(error)  # it ends, and is started again with the same result
            return
        self.clock.at(PLUGIN_LABELS_S, lambda: self._label(name, held, config))
        if config.strategy == MPS and (name in self.options.mps_fails or not self._is_mps(name)):
            held.lost = "error checking MPS daemon health"
            held.timer = self.clock.at(PLUGIN_RETRY_S, lambda: self._load(name, held))
            return
        held.lost, held.config, held.running = "", config, True
        self._offer(name, {config.resource: len(held.ids())})

    def _check(self, name: str, config: PluginConfig) -> None:
        """Raises BadConfigError for MPS beside MIG."""
        node = self.server.store.get("nodes", "", name) or {"metadata": {}}
        if config.strategy != MPS:
            return
        if (node["metadata"].get("labels") or {}).get(MIG_STRATEGY) == "mixed":
            raise BadConfigError("using --mig-strategy=mixed is not supported with MPS")
        amounts = (node.get("status") or {}).get("capacity") or {}
        if any(key.startswith("nvidia.com/mig-") and each != "0" for key, each in amounts.items()):
            raise BadConfigError("sharing using MPS is not supported for MIG devices")

    def _is_mps(self, name: str) -> bool:
        """Whether feature discovery has announced MPS: the pod of the daemon goes where that label is."""
        node = self.server.store.get("nodes", "", name) or {"metadata": {}}
        return (node["metadata"].get("labels") or {}).get(MPS_CAPABLE) == "true"

    def _label(self, name: str, held: _Plugin, config: PluginConfig) -> None:
        """What feature discovery says of an entry, whether or not the plugin runs with it."""
        if self._plugins.get(name) is not held:
            return
        shared = config is not WHOLE
        labels = {REPLICAS: str(config.replicas), STRATEGY: config.strategy if shared else NONE}
        labels[MPS_CAPABLE] = str(config.strategy == MPS).lower()
        if held.product:
            labels[PRODUCT] = held.product + (SUFFIX if shared and not config.renamed else "")
        present(lambda: self.client.patch("nodes", "", name, {"metadata": {"labels": labels}}))

    def _offer(self, name: str, resources: Mapping[str, int]) -> None:
        """Capacity and allocatable of whole GPUs; without a plugin the capacity stays for some minutes."""
        node = self.server.store.get("nodes", "", name)
        if node is None:
            return
        known = (node.get("status") or {}).get("capacity") or {}
        amounts = {each: "0" for each in (GPU, f"{GPU}.shared") if each in known}
        amounts |= {each: str(count) for each, count in resources.items()}
        patch: Obj = {"allocatable": amounts}
        if resources:
            patch["capacity"] = amounts
        present(lambda: self.client.patch("nodes", "", name, {"status": patch}, "status"))

    def _user_of(self, node: str) -> str:
        """The first pod with GPUs on a node; "" for none."""
        names = (
            each["metadata"]["name"]
            for each in self.server.store.objects("pods")
            if each["spec"].get("nodeName") == node and not is_terminal(each)
            if any(count and resource.startswith(GPU) for resource, count in pod_requests(each["spec"]).items())
        )
        return min(names, default="")
