"""The device plugin of each node whose pool offers sharing, as NVIDIA's GPU operator brings it into a cluster.

It follows the label nvidia.com/device-plugin.config of its node, reads the entry of that name, and asks the simulated
cluster for that sharing. `Nodes` shows the outcome. It is written from the sources of k8s-device-plugin.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from apiserver.actors.plugin_config import BadConfigError, plugin_config_of
from apiserver.crd.definition import CRDS
from apiserver.crd.serve import kinds_of
from apiserver.store import Event
from apiserver.users import ADMIN
from autopilot.contract.sharing_engines import PLUGIN_CONFIG
from autopilot.core.model.objects import Sharing
from autopilot.playground.gpu_operator import DEFINITION, SPACE, plugin_objects
from autopilot.playground.projection import Projection
from autopilot.playground.telling import tell
from simulator.running.engine import Engine
from simulator.world.facts import Turned

Obj = dict[str, Any]
KINDS = {"none": Sharing.WHOLE, "time-slicing": Sharing.TIME_SLICING, "mps": Sharing.MPS}


class DevicePlugins:
    """The plugins of all nodes that can be turned, in a cluster with such nodes."""

    def __init__(self, engine: Engine, projection: Projection) -> None:
        self._engine, self._projection = engine, projection
        self._server, self._cluster = projection.server, projection.cluster
        offers = self._cluster.inventory.nodes.sharing_offers.tolist()
        self._acted_on = {row: "" for row, each in enumerate(offers) if each}  # the last handled value of the label

    def begin(self) -> None:
        """Create the operator's objects, and follow the nodes. Nodes that are shared at first have labels."""
        if not self._acted_on:
            return
        client, configs = self._server.client(ADMIN, "gpu-operator"), self._cluster.inventory.names.sharing_configs
        if self._server.store.get("namespaces", "", SPACE) is None:
            for kind in kinds_of(DEFINITION):
                self._server.kinds.add(kind)
            client.create(CRDS, DEFINITION)
        for resource, obj in plugin_objects(configs):
            there = self._server.store.get(resource, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
            if there is None:
                client.create(resource, obj)
            elif "spec" in obj:
                client.patch(resource, "", obj["metadata"]["name"], {"spec": obj["spec"]})
        sharings = self._cluster.sharings
        for row in self._acted_on:
            now = (sharings.kind[row], sharings.replicas()[row])
            if now[0] != Sharing.WHOLE:
                key = next(each.key for each in configs if (each.sharing, each.replicas) == now)
                self._acted_on[row] = key
                meta = {"labels": {PLUGIN_CONFIG: key}}
                client.patch("nodes", "", self._projection.nodes.names[row], {"metadata": meta})
        self._cluster.observe(self)
        self._server.store.subscribe("nodes", self._on_node)

    def on_turned(self, fact: Turned) -> None:
        """The plugin is back: it acts on a label that was written meanwhile."""
        if not fact.begins and fact.node in self._acted_on:
            self._engine.at(fact.at_s, partial(self._act, fact.node))

    def _on_node(self, event: Event) -> None:
        row = self._projection.nodes.row.get(event.obj["metadata"]["name"])
        if row in self._acted_on and self._value(row) != self._acted_on[row]:
            self._engine.at(self._engine.now_s, partial(self._act, row))

    def _act(self, row: int, now_s: float) -> None:
        """Carry out the last value of the label; without one, the default. A missing key changes nothing."""
        value = self._value(row)
        if value == self._acted_on[row] or not self._cluster.hardware.ready[row]:
            return
        name, data = self._projection.nodes.names[row], self._entries()
        policy = self._server.store.get("clusterpolicies.nvidia.com", "", "cluster-policy") or {"spec": {}}
        text = data.get(value or policy["spec"].get("devicePlugin", {}).get("config", {}).get("default", ""))
        try:
            config = plugin_config_of(text) if text is not None else None
        except BadConfigError:
            config = None
        if config is None or config.renamed:
            self._acted_on[row] = value
            self._say(name, f"the device plugin has no usable configuration {value!r}; it keeps the one before")
            return
        sharings = self._cluster.sharings
        if sharings.turning(row):
            return
        self._acted_on[row] = value
        sharing, replicas = KINDS[config.strategy], config.replicas
        if (sharings.kind[row], sharings.replicas()[row]) != (sharing, replicas):
            refusal = self._cluster.set_sharing(row, sharing, replicas, now_s)
            if refusal is not None:
                self._say(name, f"configuration {value!r}: {refusal.value}; a real device plugin would start anew")

    def _value(self, row: int) -> str:
        node = self._server.store.get("nodes", "", self._projection.nodes.names[row]) or {"metadata": {}}
        return str((node["metadata"].get("labels") or {}).get(PLUGIN_CONFIG, ""))

    def _entries(self) -> dict[str, str]:
        policy = self._server.store.get("clusterpolicies.nvidia.com", "", "cluster-policy") or {"spec": {}}
        name = policy["spec"].get("devicePlugin", {}).get("config", {}).get("name", "")
        return dict((self._server.store.get("configmaps", SPACE, name) or {}).get("data") or {})

    def _say(self, node: str, why: str) -> None:
        about = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}
        tell(self._projection.client, about, "default", "NotSimulated", why)
