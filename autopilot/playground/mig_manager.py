"""The MIG manager of each node, as NVIDIA's GPU operator brings it into a cluster.

It follows the label nvidia.com/mig.config of its node, reads the entry of that name, and asks the simulated cluster for
that geometry. The outcome and its time are up to the cluster: the manager writes the labels of the outcome. It is
written from the sources of mig-parted; there is no recording of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from apiserver.actors.mig_config import UnknownConfigError, layouts_of
from apiserver.actors.mig_manager import CLIENTS, CONFIG, DEPLOY, PAUSED, STATE
from apiserver.client import Client
from apiserver.crd.definition import CRDS
from apiserver.crd.serve import kinds_of
from apiserver.store import Event
from apiserver.users import ADMIN, User
from autopilot.contract.annotations import MIG_GEOMETRY
from autopilot.core.hardware.mig import find_gpu_model
from autopilot.core.model.snapshot import Recut
from autopilot.playground.gpu_operator import (
    CONFIG_MAP,
    DEFINITION,
    SPACE,
    entry_for,
    geometry_note,
    operator_objects,
    usual_entries,
)
from autopilot.playground.projection import Projection
from simulator.running.engine import Engine

Obj = dict[str, Any]
MANAGER = User(f"system:serviceaccount:{SPACE}:nvidia-mig-manager", ADMIN.groups)


@dataclass(slots=True)
class _Held:
    """Knowledge of one node's manager."""

    acted_on: str  # the last handled value of the label
    busy: bool = False
    failed: bool = False  # until the node is repaired


class MigManagers:
    """The managers of all nodes with MIG, in a cluster with MIG instances."""

    def __init__(self, engine: Engine, projection: Projection) -> None:
        self._engine, self._projection = engine, projection
        self._server = projection.server
        self._client = self._server.client(MANAGER, "nvidia-mig-manager")
        self._held: dict[int, _Held] = {}

    def begin(self) -> None:
        """Create the operator's objects, and follow the existing nodes from now on.

        Their annotation tells the GPUs apart as if the autopilot had cut them: a node's offered amounts do not tell the
        instances of each GPU.
        """
        nodes, inventory = self._projection.nodes, self._projection.cluster.inventory
        if not nodes.managed:
            return
        client = self._server.client(ADMIN, "gpu-operator")
        rows = sorted(nodes.managed)
        models = [find_gpu_model(inventory.names.gpu_models[int(inventory.nodes.gpu_model[row])]) for row in rows]
        entries = usual_entries(dict.fromkeys(each for each in models if each is not None))
        for row in rows:
            layout = nodes.layouts(row)
            self._held[row] = _Held(entry_for(layout, entries))
            labels = {CONFIG: self._held[row].acted_on, STATE: "success"}
            labels |= {DEPLOY + each: "true" for each in CLIENTS}
            meta = {"labels": labels, "annotations": {MIG_GEOMETRY: geometry_note(layout)}}
            client.patch("nodes", "", nodes.names[row], {"metadata": meta})
        self._create(client, entries)
        self._server.store.subscribe("nodes", self._on_node)

    def _create(self, client: Client, entries: Obj) -> None:
        for kind in kinds_of(DEFINITION):
            self._server.kinds.add(kind)
        client.create(CRDS, DEFINITION)
        for resource, obj in operator_objects(entries):
            client.create(resource, obj)

    def _on_node(self, event: Event) -> None:
        """A label was written."""
        row = self._projection.nodes.row.get(event.obj["metadata"]["name"])
        held = self._held.get(row) if row is not None else None
        if row is None or held is None:
            return
        if not held.busy and self._value(row) != held.acted_on:
            self._engine.at(self._engine.now_s, partial(self._act, row))

    def _act(self, row: int, now_s: float) -> None:
        """Carry out the last value of the label, unless a change is under way."""
        held, value = self._held[row], self._value(row)
        cluster, nodes = self._projection.cluster, self._projection.nodes
        if held.busy or value == held.acted_on or not cluster.hardware.ready[row]:
            return
        held.acted_on = value
        if not value:
            return
        try:
            entry = layouts_of(self._file(), value, len(nodes.layouts(row)))
        except UnknownConfigError:
            self._label(row, {STATE: "failed"})
            return
        wanted = [
            [name for name, count in each.instances.items() for _ in range(count)] if each.enabled else None
            for each in entry
        ]
        refused = cluster.recuts.begin_node(row, wanted, now_s) is not None
        held.busy = not refused and cluster.recuts.node_state(row) == Recut.CHANGING
        if held.busy:
            self._label(row, {STATE: "pending"} | {DEPLOY + each: PAUSED for each in CLIENTS})
        else:
            self._label(row, {STATE: "failed" if refused else "success"})

    def follow(self, now_s: float) -> None:
        """After each instant of the cluster: report the ended changes."""
        recuts = self._projection.cluster.recuts
        for row, held in self._held.items():
            if not held.busy and not held.failed:
                continue
            state = recuts.node_state(row)
            if held.busy and state != Recut.CHANGING:
                held.busy, held.failed = False, state == Recut.FAILED
                labels = {DEPLOY + each: "true" for each in CLIENTS}
                self._label(row, labels | {STATE: "failed" if held.failed else "success"})
                self._engine.at(now_s, partial(self._act, row))
            elif held.failed and state == Recut.SETTLED:  # repaired: the process starts anew, and forgets
                held.failed, held.acted_on = False, ""
                self._engine.at(now_s, partial(self._act, row))

    def _value(self, row: int) -> str:
        labels = self._node(row)["metadata"].get("labels") or {}
        return str(labels.get(CONFIG, ""))

    def _node(self, row: int) -> Obj:
        return self._server.store.get("nodes", "", self._projection.nodes.names[row]) or {"metadata": {}}

    def _file(self) -> str:
        found = self._server.store.get("configmaps", SPACE, CONFIG_MAP) or {}
        return str(found.get("data", {}).get("config.yaml", ""))

    def _label(self, row: int, labels: Mapping[str, str]) -> None:
        name = self._projection.nodes.names[row]
        if self._server.store.get("nodes", "", name) is not None:
            self._client.patch("nodes", "", name, {"metadata": {"labels": dict(labels)}})
