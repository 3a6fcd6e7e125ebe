"""A cluster with the GPU operator and its device plugins, for the tests of nodes that are turned to sharing."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.api import Api
from actuators.kubernetes.levers.base import Probe
from actuators.kubernetes.levers.sharing_config import CONFIG_MAP
from apiserver.actors.device_plugin import DevicePlugin, DevicePluginOptions
from apiserver.actors.kubelet import KubeletOptions
from apiserver.cluster import cluster
from apiserver.http.serve import serve
from apiserver.timeline import Timeline
from apiserver.users import ADMIN
from autopilot.contract.sharing_engines import PLUGIN_CONFIG
from autopilot.core.model.objects import Sharing, SharingConfig, Subject, SubjectKind
from autopilot.core.model.records import Instruction
from autopilot.core.sharing.set_sharing import SetSharing, sharing_words
from tests.kits.acting_kit import Found, Identity
from tests.kits.mig_kit import SPACE, Scene, add_cluster_policy
from tests.kits.rights_kit import Rights

Obj = dict[str, Any]
GPU = "nvidia.com/gpu"
FOUR, TWO = (f"resources: [{{name: {GPU}, replicas: {count}}}]" for count in (4, 2))
FILES = {
    "whole": "version: v1",
    "time-slicing-4": f"version: v1\nsharing: {{timeSlicing: {{{FOUR}}}}}",
    "mps-2": f"version: v1\nsharing: {{mps: {{failRequestsGreaterThanOne: false, {TWO}}}}}",
    "mps-single": f"version: v1\nsharing: {{mps: {{{TWO}}}}}",
    "renamed": f"version: v1\nsharing: {{timeSlicing: {{renameByDefault: true, {FOUR}}}}}",
}
WHOLE = SharingConfig("whole", Sharing.WHOLE, 1)
SLICED = SharingConfig("time-slicing-4", Sharing.TIME_SLICING, 4)
PROBE = Probe("registry.example/vectoradd:1", "gpu-autopilot")
MPS = SharingConfig("mps-2", Sharing.MPS, 2)


class SharingScene(Scene):
    """Nodes of two whole GPUs with a device plugin each. Pods are not run."""

    def __init__(self, folder: Any) -> None:
        self.timeline = Timeline(datetime(2026, 1, 1, tzinfo=UTC))
        self.server = cluster(self.timeline, random.Random(1), kubelets=KubeletOptions(served=lambda _node: False))
        self.client = self.server.client(ADMIN, "test")
        add_cluster_policy(self.client, self.timeline.run_for, {"devicePlugin": {"config": {"name": CONFIG_MAP}}})
        meta = {"name": CONFIG_MAP, "namespace": SPACE}
        self.client.create("configmaps", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": FILES})
        self.plugin = DevicePlugin(self.server, DevicePluginOptions((SPACE, CONFIG_MAP)))
        self.timeline.run_for(300)
        self.running = serve(self.server)
        self._hold = self.running.clock.hold()
        self._hold.__enter__()
        self.rights = Rights(self.server, self.running, folder)
        self._uids = {}

    def add_node(self, name: str, **labels: str) -> None:
        """A node whose plugin has the default configuration, or the one that `labels` name."""
        given = {f"{GPU}.count": "2", f"{GPU}.product": "NVIDIA-H100-80GB-HBM3"} | labels
        amounts = {"cpu": "64", GPU: "2"}
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": given},
            "spec": {},
            "status": {"capacity": amounts, "allocatable": amounts},
        }
        with self.running.clock.lock:
            self._uids[name] = self.client.create("nodes", body)["metadata"]["uid"]
        self.run(10)

    def api(self) -> Api:
        """Requests with the rights of turns. They take no time."""
        return Api(self.rights.access("set_sharing"), steady_s=lambda: self.now_s)

    def find(self, kind: str, uid: str) -> Found | None:
        """A node, as the view showed it first (port `Objects`)."""
        return Found(0, (Identity("Node", "", uid, self._uids[uid]),)) if kind == "node" else None

    def prober(self) -> KubernetesActuator:
        """A process that tries each node that it has turned."""
        return KubernetesActuator(self.api(), self, probe=PROBE)

    def probes(self) -> list[Obj]:
        """The probe pods of now."""
        return [each for each in self.server.store.objects("pods") if each["metadata"]["namespace"] == PROBE.namespace]

    def end_probe(self, phase: str, **status: str) -> None:
        """The container of the probe pod ends."""
        (pod,) = self.probes()
        with self.running.clock.lock:
            meta = pod["metadata"]
            self.client.patch("pods", meta["namespace"], meta["name"], {"status": {"phase": phase, **status}}, "status")

    def stop_probe(self) -> None:
        """The kubelet has stopped the container of a deleted pod."""
        (pod,) = self.probes()
        assert "deletionTimestamp" in pod["metadata"]
        with self.running.clock.lock:
            self.client.delete("pods", pod["metadata"]["namespace"], pod["metadata"]["name"], {"gracePeriodSeconds": 0})

    def set_label(self, name: str, value: str | None) -> None:
        """Set the label as a person would."""
        with self.running.clock.lock:
            self.client.patch("nodes", "", name, {"metadata": {"labels": {PLUGIN_CONFIG: value}}})

    def config(self, name: str) -> str:
        """The value of the label; "" for none."""
        return self.labels(name).get(PLUGIN_CONFIG, "")

    def turn(self, node: str, to: SharingConfig = SLICED, was: SharingConfig = WHOLE, number: int = 1) -> Instruction:
        """An instruction about one node."""
        operation = SetSharing(
            config=to.key,
            sharing=to.sharing,
            replicas=to.replicas,
            single=to.single,
            was_sharing=was.sharing,
            was_replicas=was.replicas,
        )
        subject = Subject(SubjectKind.NODE, node, node, 0)
        return Instruction(f"{number}/p/{node}", subject, operation, self.now_s + 600.0, 1, "p")

    def seen(self, name: str) -> str:
        """How its labels and its offer say that it is shared."""
        labels, amount = self.labels(name), self.offers(name).get(GPU, "0")
        kind = {"time-slicing": Sharing.TIME_SLICING, "mps": Sharing.MPS}.get(labels.get(f"{GPU}.sharing-strategy", ""))
        replicas = int(labels.get(f"{GPU}.replicas", "1"))
        return f"{sharing_words(Sharing.WHOLE if kind is None else kind, replicas)}, {amount} offered"
