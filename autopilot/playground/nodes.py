"""Nodes of the simulated cluster as Node objects: labels of GPU feature discovery, resources, taints, readiness."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import isfinite
from typing import Any

from autopilot.core.hardware.mig import find_gpu_model
from autopilot.core.hardware.mig_profiles import find_profile_name
from autopilot.core.model.objects import Sharing
from autopilot.core.model.snapshot import Recut
from autopilot.playground.naming import MODEL, Slugs, slug
from autopilot.playground.shapes import GPU, resource_of_profile
from autopilot.playground.times import stamp
from simulator.signals.behaviours import board_of
from simulator.world.cluster import Cluster

Obj = dict[str, Any]
NOTICE = "aws-node-termination-handler/spot-itn"
"""Taint of a node before its reclaim by the cloud. The clouds' handlers write no time."""
UNSCHEDULABLE, UNREACHABLE = "node.kubernetes.io/unschedulable", "node.kubernetes.io/unreachable"
HOST_CPUS, HOST_MEMORY = "192", "2Ti"
"""Amounts of a node without a statement of its pool: more than GPU work asks for."""
NOT_READY = "node.kubernetes.io/not-ready"
OWN_TAINTS = {NOTICE, UNSCHEDULABLE, UNREACHABLE, NOT_READY}
"""Taints written by Kubernetes and clouds; others stay as set by people."""
DRIVER = "gpu.nvidia.com"
STRATEGIES = {Sharing.WHOLE: "none", Sharing.TIME_SLICING: "time-slicing", Sharing.MPS: "mps"}
VERSION = "v1.36.2"


@dataclass(frozen=True, slots=True)
class _Offer:
    """GPUs and instances by resource, and the labels of feature discovery about them."""

    capacity: dict[str, str]
    labels: dict[str, str]


class Nodes:
    """Builds the objects of each node from the world as it is."""

    def __init__(self, cluster: Cluster, start_s: float) -> None:
        self._cluster, self._start_s = cluster, start_s
        slugs = Slugs(63)
        self.names = [slugs.of(str(each)) for each in cluster.inventory.nodes.id.tolist()]
        self.row = {name: row for row, name in enumerate(self.names)}
        self._changed_s = [0.0] * len(self.names)
        self._ready = list(cluster.hardware.ready)
        cuts = any(cluster.hardware.mig)
        self.managed = {row for row in self.row.values() if cuts and self._model(row)}
        """Nodes with a MIG manager: those with GPUs fit for MIG, if the cluster has instances."""
        self._settled: dict[int, _Offer] = {}  # before the change under way

    def node(self, row: int, now_s: float, stored: Obj | None = None) -> Obj:
        """The Node object, with its status; taints of others on the `stored` one stay."""
        hardware = self._cluster.hardware
        if hardware.ready[row] != self._ready[row]:
            self._ready[row], self._changed_s[row] = hardware.ready[row], now_s
        name = self.names[row]
        spec: Obj = {"providerID": f"playground://{name}"}
        kept = (stored or {}).get("spec", {}).get("taints") or ()
        taints = [*self._taints(row), *(each for each in kept if each["key"] not in OWN_TAINTS)]
        if hardware.cordoned[row]:
            spec["unschedulable"] = True
        if taints:
            spec["taints"] = taints
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": self._labels(row)},
            "spec": spec,
            "status": self._status(row),
        }

    def slices(self, row: int) -> Obj:
        """The driver's ResourceSlice with the GPUs of the node."""
        inventory = self._cluster.inventory
        first, count = int(inventory.nodes.first_gpu[row]), int(inventory.nodes.gpus[row])
        name = self.names[row]
        devices = [
            {
                "name": f"gpu-{int(inventory.gpus.index[gpu])}",
                "attributes": {
                    "uuid": {"string": str(inventory.gpus.uuid[gpu])},
                    "index": {"int": int(inventory.gpus.index[gpu])},
                    "type": {"string": "gpu"},
                    "productName": {"string": self._product(row)},
                },
            }
            for gpu in range(first, first + count)
        ]
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{name}-{DRIVER}"},
            "spec": {
                "driver": DRIVER,
                "nodeName": name,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        }

    # --- parts ----------------------------------------------------------------------------

    def _product(self, row: int) -> str:
        inventory = self._cluster.inventory
        model = inventory.names.gpu_models[int(inventory.nodes.gpu_model[row])]
        return str(board_of(model).product).replace(" ", "-")

    def _labels(self, row: int) -> dict[str, str]:
        inventory = self._cluster.inventory
        nodes, names = inventory.nodes, inventory.names
        model = find_gpu_model(names.gpu_models[int(nodes.gpu_model[row])])
        found = self._offer(row).labels | {
            "kubernetes.io/hostname": self.names[row],
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "node.kubernetes.io/instance-type": names.pools[int(nodes.pool[row])],
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.count": str(int(nodes.gpus[row])),
            "nvidia.com/gpu.clique": f"island-{int(nodes.island[row])}",
            "network.topology.nvidia.com/leaf": f"leaf-{int(nodes.leaf[row])}",
            "network.topology.nvidia.com/spine": f"block-{int(nodes.block[row])}",
            "topology.kubernetes.io/zone": f"zone-{int(nodes.zone[row])}",
        }
        found |= self._sharing_labels(row)
        if model is not None and model.memory_gb:
            found["nvidia.com/gpu.memory"] = str(model.memory_gb * 1024)
        if row in self.managed:
            found |= {"nvidia.com/mig.capable": "true", "nvidia.com/mig.strategy": "mixed"}
        if nodes.spot[row]:
            found["karpenter.sh/capacity-type"] = "spot"
        return found

    def _replicas(self, row: int) -> int:
        return self._cluster.hardware.split.shares.get(row, 1)

    def _sharing_labels(self, row: int) -> dict[str, str]:
        """Labels of feature discovery about shares, and of the model of its GPUs, whose name changes with them."""
        inventory, replicas = self._cluster.inventory, self._replicas(row)
        labels = {
            "nvidia.com/gpu.product": self._product(row) + ("-SHARED" if replicas > 1 else ""),
            "nvidia.com/gpu.replicas": str(replicas),
        }
        if inventory.nodes.sharing_offers[row]:
            kind = self._cluster.sharings.kind[row]
            labels["nvidia.com/gpu.sharing-strategy"] = STRATEGIES[kind]
        if inventory.names.sharing_configs:
            labels[MODEL] = slug(inventory.names.gpu_models[int(inventory.nodes.gpu_model[row])])
        return labels

    def _model(self, row: int) -> bool:
        """True if its GPUs can be cut."""
        inventory = self._cluster.inventory
        model = find_gpu_model(inventory.names.gpu_models[int(inventory.nodes.gpu_model[row])])
        return model is not None and bool(model.profiles)

    def layouts(self, row: int) -> list[list[str] | None]:
        """The profiles of the instances of each GPU of a node; None if MIG mode is off."""
        nodes, hardware = self._cluster.inventory.nodes, self._cluster.hardware
        first, count = int(nodes.first_gpu[row]), int(nodes.gpus[row])
        return [
            [_named(hardware.instances[part].profile) for part in hardware.cut.get(gpu, ())]
            if hardware.mig[gpu]
            else None
            for gpu in range(first, first + count)
        ]

    def _offer(self, row: int) -> _Offer:
        """The announced GPUs: as before while the geometry changes, for device plugin and feature discovery are
        stopped. Vanished resources stay with 0.
        """
        before = self._settled.get(row, _Offer({}, {}))
        if before.capacity and self._cluster.recuts.node_state(row) == Recut.CHANGING:
            return before
        capacity = self._gpus(row, whole=True)
        labels = {f"{name}.count": number for name, number in capacity.items() if name != GPU}
        self._settled[row] = _Offer(dict.fromkeys(before.capacity, "0") | capacity, labels)
        return self._settled[row]

    def _taints(self, row: int) -> list[Obj]:
        hardware = self._cluster.hardware
        found: list[Obj] = []
        if hardware.cordoned[row]:
            found.append({"key": UNSCHEDULABLE, "effect": "NoSchedule"})
        if not hardware.ready[row]:
            at = stamp(self._start_s + self._changed_s[row])
            found += [{"key": UNREACHABLE, "effect": each, "timeAdded": at} for each in ("NoSchedule", "NoExecute")]
        if isfinite(hardware.reclaim_at_s[row]):
            found.append({"key": NOTICE, "effect": "NoSchedule"})
        return found

    def _status(self, row: int) -> Obj:
        hardware = self._cluster.hardware
        capacity, allocatable = self._amounts(row, whole=True), self._amounts(row, whole=False)
        ready = hardware.ready[row]
        at = stamp(self._start_s + self._changed_s[row])
        condition = {
            "type": "Ready",
            "status": "True" if ready else "Unknown",
            "reason": "KubeletReady" if ready else "NodeStatusUnknown",
            "message": "kubelet is posting ready status" if ready else "Kubelet stopped posting node status.",
            "lastHeartbeatTime": at,
            "lastTransitionTime": at,
        }
        return {
            "capacity": capacity,
            "allocatable": allocatable,
            "conditions": [condition],
            "addresses": [{"type": "Hostname", "address": self.names[row]}],
            "nodeInfo": {
                "architecture": "amd64",
                "operatingSystem": "linux",
                "kubeletVersion": VERSION,
                "kubeProxyVersion": VERSION,
                "osImage": "gpu-autopilot playground",
                "kernelVersion": "simulated",
                "containerRuntimeVersion": "simulated://1",
                "machineID": self.names[row],
                "systemUUID": self.names[row],
                "bootID": self.names[row],
            },
        }

    def _amounts(self, row: int, *, whole: bool) -> dict[str, str]:
        """Capacity, or (not `whole`) the allocatable part: without broken GPUs."""
        nodes = self._cluster.inventory.nodes
        cpu_milli, memory_mib = int(nodes.cpu_milli[row]), int(nodes.memory_mib[row])
        found = {
            "cpu": f"{cpu_milli}m" if cpu_milli >= 0 else HOST_CPUS,
            "memory": f"{memory_mib}Mi" if memory_mib >= 0 else HOST_MEMORY,
            "pods": "250",
        }
        capacity = self._offer(row).capacity
        if whole:
            return found | capacity
        changing = self._cluster.recuts.node_state(row) == Recut.CHANGING or self._cluster.sharings.turning(row)
        return found | dict.fromkeys(capacity, "0") | ({} if changing else self._gpus(row, whole=False))

    def _gpus(self, row: int, *, whole: bool) -> dict[str, str]:
        """GPUs and instances of a node, or (not `whole`) of its working GPUs."""
        hardware, nodes = self._cluster.hardware, self._cluster.inventory.nodes
        first = int(nodes.first_gpu[row])
        layouts = [each for gpu, each in enumerate(self.layouts(row), first) if whole or hardware.healthy[gpu]]
        profiles = Counter(name for each in layouts for name in each or ())
        found = {resource_of_profile(name): str(number) for name, number in sorted(profiles.items())}
        return {GPU: str(layouts.count(None) * self._replicas(row))} | found


def _named(profile: str) -> str:
    return str(find_profile_name(profile) or profile)
