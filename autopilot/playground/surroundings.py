"""The engine's questions to the API: labels of nodes and flavors, templates, and absent owners."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from apiserver.server import Server
from autopilot.playground.entries import Placement, Surroundings
from autopilot.playground.gangs import Gang
from autopilot.playground.projection import Projection
from autopilot.playground.queues import flavor_of

Obj = dict[str, Any]
EFFECTS = {"NoSchedule", "NoExecute"}


class ApiSurroundings(Surroundings):
    """The API server's objects as they are at the moment."""

    def __init__(self, projection: Projection, away: Collection[int]) -> None:
        """`away`: jobs of absent owners."""
        self._projection, self._away = projection, away
        self._server: Server = projection.server
        self.start_s = projection.start_s

    def template(self, job: int) -> Obj:
        """As its owner wrote it, or changed it while the Job was suspended."""
        gang: Gang | None = self._projection.gangs.get(job)
        stored = self._server.store.get(*gang.job_key) if gang is not None else None
        if stored is None or gang is None or self._projection.cluster.jobs.service[job] >= 0:
            return {"spec": {}}
        spec: Obj = stored["spec"]["template"]["spec"]
        return {"spec": spec}

    def flavor_labels(self, model: int) -> dict[str, str]:
        """Node labels of the flavor of a GPU model."""
        if model < 0:
            return {}
        name = flavor_of(self._projection.cluster.inventory.names.gpu_models[model])
        stored = self._server.store.get("resourceflavors.kueue.x-k8s.io", "", name)
        return dict((stored or {}).get("spec", {}).get("nodeLabels") or {})

    def nodes(self, placement: Placement) -> int:
        """Nodes with all labels of the selector, and only tolerated taints, as a bit set."""
        found = 0
        for row, name in enumerate(self._projection.nodes.names):
            node = self._server.store.get("nodes", "", name)
            if node is None:
                continue
            labels = node["metadata"].get("labels") or {}
            if all(labels.get(key) == value for key, value in placement.selector.items()) and not _kept_away(
                node["spec"].get("taints") or (), placement.tolerations
            ):
                found |= 1 << row
        return found

    def away(self, job: int) -> bool:
        """True if its owner is away."""
        return job in self._away


def _kept_away(taints: Collection[Obj], tolerations: Collection[Obj]) -> bool:
    """True if a taint keeps pods with these tolerations away."""
    strict = [each for each in taints if each["effect"] in EFFECTS]
    return any(not any(_tolerates(other, each) for other in tolerations) for each in strict)


def _tolerates(toleration: Obj, taint: Obj) -> bool:
    if toleration.get("effect") not in {None, "", taint["effect"]}:
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in {None, "", taint["key"]}
    return bool(toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", ""))
