"""NVIDIA's MIG manager, and the acts of the device plugin and feature discovery after it.

Written from the sources of mig-parted (2026-08-21) and k8s-device-plugin (2026-08-19); no recording of it exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from apiserver.actors.base import Actor
from apiserver.actors.mig_config import DEFAULT_FILE, Layout, UnknownConfigError, labels_of, layouts_of, resources_of
from apiserver.actors.objects import present
from apiserver.actors.pod_status import is_terminal
from apiserver.actors.timing import (
    MIG_APPLY_S,
    MIG_CLIENTS_S,
    MIG_HOST_CLIENTS_S,
    MIG_LOOK_S,
    MIG_PLUGIN_S,
    MIG_REBOOT_S,
)
from apiserver.pod_requests import pod_requests
from apiserver.server import Server
from apiserver.store import Event
from apiserver.users import service_account

Obj = dict[str, Any]
CONFIG = "nvidia.com/mig.config"
STATE = "nvidia.com/mig.config.state"
STRATEGY = "nvidia.com/mig.strategy"
CAPABLE = "nvidia.com/mig.capable"
PAUSED = "paused-for-mig-change"
DEPLOY = "nvidia.com/gpu.deploy."
CLIENTS = {  # component of the deploy label, and the label app of its pods
    "device-plugin": "nvidia-device-plugin-daemonset",
    "gpu-feature-discovery": "gpu-feature-discovery",
    "dcgm-exporter": "nvidia-dcgm-exporter",
    "dcgm": "nvidia-dcgm",
    "nvsm": "nvidia-nvsm",
}
FAMILY = ("nvidia.com/gpu", "nvidia.com/mig-")


@dataclass(slots=True)
class MigOptions:
    """Setup of the managers, and their faults by node.

    `config_map` is namespace and name of the file (key config.yaml); without it the file has all-disabled and
    all-enabled. `memory_mib` is the memory of an instance by profile, for the labels.
    """

    config_map: tuple[str, str] | None = None
    memory_mib: Mapping[str, int] = field(default_factory=dict)
    stops_host_clients: bool = False
    may_reboot: bool = False
    apply_fails: set[str] = field(default_factory=set)  # nodes on which mig-parted fails
    mode_fails: set[str] = field(default_factory=set)  # nodes on which the MIG mode does not change without a reboot
    reboot_helps: bool = True


@dataclass(slots=True)
class _Manager:
    """The manager process of one node, and the hardware."""

    layouts: tuple[Layout, ...]
    product: str
    memory: str
    value: str = ""  # of the label now
    acted_on: str = ""
    busy: bool = False
    succeeded: bool = False  # once in the life of the process
    paused: list[str] = field(default_factory=list)


class MigManager(Actor):
    """The MIG managers of all nodes with the label nvidia.com/mig.capable=true.

    A manager acts on a change of nvidia.com/mig.config, and only on the last value. A wait for clients that
    do not go ends after its time without a state: `pending` stays, and so do the paused labels, until a new value is
    set. After a first success a failure leaves the clients paused as well.
    """

    user = service_account("gpu-operator", "nvidia-mig-manager")
    manager = "nvidia-mig-manager"
    process = "nvidia-mig-manager"

    def __init__(self, server: Server, options: MigOptions | None = None) -> None:
        self.options = options or MigOptions()
        super().__init__(server)

    def start(self) -> None:
        """Follow nodes."""
        self._store = self.server.store
        self._timeline = self.clock
        self._managers: dict[str, _Manager] = {}
        self.follow("nodes", self._on_node)

    def restart(self, node: str) -> None:
        """The manager process of a node starts anew: it forgets its success and acts on the present value."""
        held = self._managers[node]
        held.acted_on, held.busy, held.succeeded = "", False, False
        self._act(node)

    def layouts(self, node: str) -> tuple[Layout, ...]:
        """The present cut of the GPUs of a node. Raises KeyError for a node without a manager."""
        return self._managers[node].layouts

    def _on_node(self, event: Event) -> None:
        node, name = event.obj, event.obj["metadata"]["name"]
        labels = node["metadata"].get("labels") or {}
        if event.type == "DELETED" or labels.get(CAPABLE) != "true":
            self._managers.pop(name, None)
            return
        held = self._managers.get(name)
        if held is None:
            held = self._managers[name] = self._found(node, labels)
        held.value = labels.get(CONFIG, "")
        self._act(name)

    def _found(self, node: Obj, labels: Mapping[str, str]) -> _Manager:
        """The hardware of a new node: cut as its successful configuration says, else whole."""
        capacity = (node.get("status") or {}).get("capacity") or {}
        gpus = int(labels.get("nvidia.com/gpu.count") or capacity.get("nvidia.com/gpu") or 0)
        layouts = tuple(Layout() for _ in range(gpus))
        if labels.get(STATE) == "success":
            with suppress(UnknownConfigError):  # the file changed since
                layouts = layouts_of(self._file(), labels.get(CONFIG, ""), gpus)
        return _Manager(layouts, labels.get("nvidia.com/gpu.product", ""), labels.get("nvidia.com/gpu.memory", ""))

    def _act(self, name: str) -> None:
        """Start on the last value, if it is another one and nothing is under way."""
        held = self._managers.get(name)
        if held is None or held.busy or held.value == held.acted_on:
            return
        held.acted_on = held.value
        if held.value:
            held.busy = True
            self._step(name, held, self._change(name, held))

    def _step(self, name: str, held: _Manager, steps: Iterator[float]) -> None:
        """Run a change up to its next wait; it ends with the process and with the node."""
        if self._managers.get(name) is not held or not held.busy:
            return
        wait_s = next(steps, None)
        if wait_s is None:
            held.busy = False
            self._act(name)
        else:
            self._timeline.at(wait_s, lambda: self._step(name, held, steps))

    def _change(self, name: str, held: _Manager) -> Iterator[float]:
        """One change of configuration; yields seconds to wait."""
        try:
            wanted = layouts_of(self._file(), held.acted_on, len(held.layouts))
        except UnknownConfigError:
            self._label(name, {STATE: "failed"})
            return
        if wanted == held.layouts:
            self._label(name, {STATE: "success"})
            return
        self._label(name, {STATE: "pending"})
        self._pause(name, held)
        for component in held.paused:
            waited_s = 0.0
            while self._has_client(name, CLIENTS[component]):
                if waited_s >= MIG_CLIENTS_S:
                    return  # neither failed nor resumed: pending for ever
                yield MIG_LOOK_S
                waited_s += MIG_LOOK_S
        if any(new.enabled != old.enabled for new, old in zip(wanted, held.layouts, strict=True)):
            if self.options.stops_host_clients:
                yield MIG_HOST_CLIENTS_S
            if name in self.options.mode_fails:
                if self.options.may_reboot:
                    self._label(name, {STATE: "rebooting"})
                    yield MIG_REBOOT_S
                if not (self.options.may_reboot and self.options.reboot_helps):
                    self._fail(name, held)
                    return
        yield MIG_APPLY_S
        if name in self.options.apply_fails or self._in_use(name):
            self._fail(name, held)
            return
        held.layouts = wanted
        held.succeeded = True
        self._resume(name, held)
        self._label(name, {STATE: "success"})

    def _fail(self, name: str, held: _Manager) -> None:
        if not held.succeeded:
            self._resume(name, held)
        self._label(name, {STATE: "failed"})

    def _file(self) -> str:
        if self.options.config_map is None:
            return DEFAULT_FILE
        found = self._store.get("configmaps", *self.options.config_map)
        return str((found or {}).get("data", {}).get("config.yaml", ""))

    def _pause(self, name: str, held: _Manager) -> None:
        """Take the clients of the GPUs from the node; its GPUs cannot be allocated meanwhile."""
        node = self._store.get("nodes", "", name) or {"metadata": {}}
        labels = node["metadata"].get("labels") or {}
        held.paused = [each for each in CLIENTS if labels.get(DEPLOY + each) in {"true", PAUSED}]
        if held.paused:
            self._label(name, dict.fromkeys((DEPLOY + each for each in held.paused), PAUSED))
        if "device-plugin" in held.paused:
            self._offer(name, {})

    def _resume(self, name: str, held: _Manager) -> None:
        """Bring the clients back: device plugin and feature discovery announce the GPUs a moment later."""
        if held.paused:
            self._label(name, dict.fromkeys((DEPLOY + each for each in held.paused), "true"))
        held.paused = []
        self._timeline.at(MIG_PLUGIN_S, lambda: self._announce(name, held))

    def _announce(self, name: str, held: _Manager) -> None:
        node = self._store.get("nodes", "", name)
        if node is None or self._managers.get(name) is not held or held.paused:
            return
        labels = node["metadata"].get("labels") or {}
        strategy = labels.get(STRATEGY, "mixed")
        self._offer(name, resources_of(held.layouts, strategy))
        new: dict[str, str | None] = {label: None for label in labels if label.startswith("nvidia.com/mig-")}
        new.update(labels_of(held.layouts, strategy, held.product, held.memory, self.options.memory_mib))
        self._label(name, new)

    def _offer(self, name: str, resources: Mapping[str, int]) -> None:
        """Capacity and allocatable of the GPUs; a resource no longer offered stays as 0."""
        node = self._store.get("nodes", "", name)
        if node is None:
            return
        status = node.get("status") or {}
        known = [each for each in status.get("capacity") or {} if each.startswith(FAMILY)]
        amounts = dict.fromkeys(known, "0") | {each: str(count) for each, count in resources.items()}
        patch: Obj = {"allocatable": amounts}
        if resources:
            patch["capacity"] = amounts
        present(lambda: self.client.patch("nodes", "", name, {"status": patch}, "status"))

    def _label(self, name: str, labels: Mapping[str, str | None]) -> None:
        present(lambda: self.client.patch("nodes", "", name, {"metadata": {"labels": dict(labels)}}))

    def _has_client(self, node: str, app: str) -> bool:
        return any((pod["metadata"].get("labels") or {}).get("app") == app for pod in self._pods(node))

    def _in_use(self, node: str) -> bool:
        """True if a pod holds a GPU or an instance: they cannot be cut anew."""
        return any(
            amount and resource.startswith(FAMILY)
            for pod in self._pods(node)
            for resource, amount in pod_requests(pod["spec"]).items()
        )

    def _pods(self, node: str) -> Sequence[Obj]:
        pods = self._store.objects("pods")
        return [pod for pod in pods if pod["spec"].get("nodeName") == node and not is_terminal(pod)]
