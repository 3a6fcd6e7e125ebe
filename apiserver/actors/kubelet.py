"""Kubelets: bound pods start, run, stop and fail; a node can fall silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from apiserver.actors import pod_status
from apiserver.actors.base import Actor
from apiserver.actors.fit import requests_milli
from apiserver.actors.objects import Name, delete, name_of, patch
from apiserver.actors.pod_status import Host, is_terminal, is_terminating
from apiserver.actors.timing import (
    KUBELET_NOTICES_S,
    KUBELET_REMOVES_S,
    KUBELET_STARTS_S,
    KUBELET_STOPS_S,
    KUBELET_TAKES_S,
)
from apiserver.server import Server
from apiserver.store import Event
from apiserver.timeline import Callback, Timer, stamp
from apiserver.users import User

Obj = dict[str, Any]
Served = Callable[[Obj], bool]  # whether a node has a kubelet
KUBELET = "kubelet"
NODES = User("system:node", ("system:nodes", "system:authenticated"))


def every_node(_node: Obj) -> bool:
    """All nodes have a kubelet."""
    return True


@dataclass(frozen=True, slots=True)
class KubeletOptions:
    """The nodes with a kubelet, the prefix of its annotations, its field manager and version."""

    served: Served = every_node
    annotations: str = "kubelet.playground"
    manager: str = "kubelet"
    version: str = "v1.36.2"


@dataclass(frozen=True, slots=True)
class Life:
    """Behaviour of a pod: annotations `start-delay`, `run-seconds`, `exit-code`, `stop-seconds`, `stop-exit-code`."""

    start_s: float
    run_s: float | None  # None: until it is stopped
    exit_code: int
    stop_s: float
    stop_exit_code: int


def life_of(pod: Obj, prefix: str) -> Life:
    """Behaviour of a pod by its annotations; an annotation without a number is ignored."""
    annotations = pod["metadata"].get("annotations") or {}

    def number(name: str, default: float) -> float:
        try:
            return max(float(annotations.get(f"{prefix}/{name}", default)), 0.0)
        except ValueError:
            return default

    run_s = number("run-seconds", -1.0) if f"{prefix}/run-seconds" in annotations else -1.0
    return Life(
        start_s=number("start-delay", KUBELET_STARTS_S),
        run_s=None if run_s < 0 else run_s,
        exit_code=int(number("exit-code", 0)),
        stop_s=number("stop-seconds", KUBELET_STOPS_S),
        stop_exit_code=int(number("stop-exit-code", pod_status.SIGTERM)),
    )


class Devices(Protocol):
    """A device plugin with devices that have names."""

    def serves(self, node: str, resource: str) -> bool:
        """Whether it hands out a resource on a node."""

    def allocate(self, node: str, uid: str, resource: str, count: int) -> str:
        """Devices for a pod; or the reason of the refusal."""

    def free(self, node: str, uid: str) -> None:
        """A pod has left."""


@dataclass(slots=True)
class _Held:
    """A pod on its node: its devices are taken until it is removed."""

    uid: str
    node: str
    host: Host
    asked: dict[str, int]
    timer: Timer | None = None  # to the next phase
    taken: bool = False
    stop: Timer | None = None


class Kubelet(Actor):
    """The kubelets of all nodes chosen by the options. Nothing happens to pods of other nodes."""

    user = NODES
    process = KUBELET
    devices: Devices | None = None  # without one, devices of all resources are only counted

    def __init__(self, server: Server, options: KubeletOptions | None = None) -> None:
        self._options = options or KubeletOptions()
        self.manager = self._options.manager
        super().__init__(server)

    def start(self) -> None:
        """Follow pods and nodes."""
        self._store = self.server.store
        self._timeline = self.clock
        self._held: dict[Name, _Held] = {}
        self._bound: dict[str, set[Name]] = {}  # pods by the node that they name
        self._silent: dict[str, int] = {}  # nodes that fell silent, and when (microseconds)
        self._missed: dict[str, list[Callback]] = {}  # what became due on them meanwhile
        self._beat_us = self._timeline.now_us
        self._pod_addresses = 2
        self._node_addresses: dict[str, str] = {}
        self.follow("pods", self._on_pod)
        self.follow("nodes", self._on_node)

    def silence(self, node: str) -> None:
        """The node is lost: no heartbeats, and its pods act unseen."""
        self._silent.setdefault(node, self._timeline.now_us)

    def resume(self, node: str) -> None:
        """The node is back: overdue actions run, and deleted pods stop."""
        self._silent.pop(node, None)
        for callback in self._missed.pop(node, ()):
            callback()
        self._look_at(node)

    def beat(self) -> None:
        """A heartbeat of all nodes but the silent ones."""
        self._beat_us = self._timeline.now_us

    def heard_us(self, node: Obj) -> int | None:
        """Last heartbeat of the kubelet of a node (us); None for a node without a kubelet."""
        name = node["metadata"]["name"]
        if name in self._silent:
            return self._silent[name]
        return self._beat_us if self._options.served(node) else None

    def _on_node(self, event: Event) -> None:
        name = event.obj["metadata"]["name"]
        if event.type == "ADDED":
            self.resume(name)
        elif event.type == "MODIFIED" and event.old is not None:
            served = self._options.served(event.obj)
            if served != self._options.served(event.old.obj):
                (self.resume if served else self.silence)(name)

    def _later(self, held: _Held, delay_s: float, callback: Callback) -> Timer:
        """Call back after a delay, or after that at the return of a silent node."""

        def due() -> None:
            if held.node in self._silent:
                self._missed.setdefault(held.node, []).append(callback)
            else:
                callback()

        return self._timeline.at(delay_s, due)

    def _look_at(self, node: str) -> None:
        for name in sorted(self._bound.get(node, ())):
            pod = self._store.get("pods", *name)
            if pod is not None and pod["spec"].get("nodeName") == node:
                self._consider(pod)

    def _on_pod(self, event: Event) -> None:
        pod = event.obj
        node = pod["spec"].get("nodeName")
        if not node:
            return
        if event.type == "DELETED":
            self._bound[node].discard(name_of(pod))
            held = self._held.get(name_of(pod))
            if held is not None and held.uid == pod["metadata"]["uid"]:
                self._forget(name_of(pod))
            return
        self._bound.setdefault(node, set()).add(name_of(pod))
        self._consider(pod)

    def _consider(self, pod: Obj) -> None:
        node = self._store.get("nodes", "", pod["spec"]["nodeName"])
        if node is None or node["metadata"]["name"] in self._silent:
            return
        if not self._options.served(node):
            return
        name, uid = name_of(pod), pod["metadata"]["uid"]
        held = self._held.get(name)
        if held is not None and held.uid != uid:
            self._forget(name)
            held = None
        if held is None:
            if is_terminal(pod):
                return
            held = self._held[name] = _Held(uid, node["metadata"]["name"], self._host(node), requests_milli(pod))
            held.timer = self._later(held, KUBELET_TAKES_S, lambda: self._take(name, uid))
        if is_terminating(pod) and held.taken:
            self._stop(name, held, pod)

    def _forget(self, name: Name) -> None:
        held = self._held.pop(name)
        if self.devices is not None:
            self.devices.free(held.node, held.uid)
        for timer in (held.timer, held.stop):
            if timer is not None:
                timer.cancel()

    def _host(self, node: Obj) -> Host:
        name = node["metadata"]["name"]
        count = len(self._node_addresses) + 1
        address = self._node_addresses.setdefault(name, f"10.1.{count >> 8}.{count & 255}")
        for each in (node.get("status") or {}).get("addresses") or []:
            if each["type"] == "InternalIP":
                address = each["address"]
        self._pod_addresses += 1
        count = self._pod_addresses
        return Host(address, f"10.{2 + (count >> 16)}.{count >> 8 & 255}.{count & 255}")

    def _current(self, name: Name, uid: str) -> tuple[Obj, _Held] | None:
        pod, held = self._store.get("pods", *name), self._held.get(name)
        if pod is None or held is None or held.uid != uid or pod["metadata"]["uid"] != uid:
            return None
        return pod, held

    def _take(self, name: Name, uid: str) -> None:
        found = self._current(name, uid)
        if found is None:
            return
        pod, held = found
        held.taken = True
        if is_terminating(pod):  # it never started
            self._stop(name, held, pod)
            return
        refusal = self._refusal(pod, held)
        if refusal is not None:
            self._write(pod, pod_status.rejected(pod, stamp(self._timeline.now), *refusal))
            self._forget(name)
            return
        self._write(pod, pod_status.creating(pod, held.host, stamp(self._timeline.now)))
        start_s = life_of(pod, self._options.annotations).start_s
        held.timer = self._later(held, start_s, lambda: self._start(name, uid))

    def _refusal(self, pod: Obj, held: _Held) -> tuple[str, str] | None:
        """Reason and message if the devices requested by the pod are taken."""
        node = self._store.get("nodes", "", held.node) or {}
        allocatable = (node.get("status") or {}).get("allocatable") or {}
        for resource, amount in held.asked.items():
            if "/" not in resource or resource not in allocatable or not amount:
                continue
            if self.devices is not None and self.devices.serves(held.node, resource):
                text = self.devices.allocate(held.node, held.uid, resource, amount // 1000)
                if text:
                    text = f"Pod was rejected: Allocate failed due to {text}, which is unexpected"
                    return "UnexpectedAdmissionError", text
                continue
            others = (self._held[key] for key in self._bound[held.node] if key in self._held)
            taken = sum(other.asked.get(resource, 0) for other in others if other.uid != held.uid)
            free = max(int(allocatable[resource]) - taken // 1000, 0)
            if amount // 1000 > free:
                return "UnexpectedAdmissionError", (
                    f"Pod was rejected: Allocate failed due to requested number of devices unavailable for {resource}. "
                    f"Requested: {amount // 1000}, Available: {free}, which is unexpected"
                )
        return None

    def _start(self, name: Name, uid: str) -> None:
        found = self._current(name, uid)
        if found is None or is_terminating(found[0]):
            return
        pod, held = found
        self._write(pod, pod_status.running(pod, held.host, stamp(self._timeline.now)))
        life = life_of(pod, self._options.annotations)
        if life.run_s is not None:
            held.timer = self._later(held, life.run_s, lambda: self._end(name, uid, life.exit_code))

    def _end(self, name: Name, uid: str, exit_code: int) -> None:
        found = self._current(name, uid)
        if found is None or is_terminating(found[0]):
            return
        pod, held = found
        self._write(pod, pod_status.finished(pod, held.host, stamp(self._timeline.now), exit_code))
        self._forget(name)

    def _stop(self, name: Name, held: _Held, pod: Obj) -> None:
        """The pod stops after its own time or at the end of its grace: the earlier of the two."""
        grace_s = float(pod["metadata"].get("deletionGracePeriodSeconds", 0))
        life = life_of(pod, self._options.annotations)
        wait_s = min(life.stop_s, grace_s) + KUBELET_NOTICES_S
        exit_code = life.stop_exit_code if life.stop_s <= grace_s else pod_status.SIGKILL
        at_us = self._timeline.now_us + round(wait_s * 1e6)
        if held.stop is not None:
            if held.stop.at_us <= at_us:
                return
            held.stop.cancel()
        held.stop = self._later(held, wait_s, lambda: self._stopped(name, held.uid, exit_code))

    def _stopped(self, name: Name, uid: str, exit_code: int) -> None:
        found = self._current(name, uid)
        if found is None:
            return
        pod, held = found
        if not is_terminal(pod):
            self._write(pod, pod_status.finished(pod, held.host, stamp(self._timeline.now), exit_code))
        held.stop = self._later(held, KUBELET_REMOVES_S, lambda: self._remove(name, uid))

    def _remove(self, name: Name, uid: str) -> None:
        found = self._current(name, uid)
        if found is not None:
            self._forget(name)
            delete(self.client, "pods", found[0], grace_s=0)

    def _write(self, pod: Obj, status: Obj) -> None:
        patch(self.client, "pods", pod, {"status": status}, "status")
