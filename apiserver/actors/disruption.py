"""The disruption controller: the status of PodDisruptionBudgets."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction
from math import ceil
from typing import Any

from apiserver.actors.base import Actor
from apiserver.actors.objects import Name, controller_of, name_of, present
from apiserver.actors.pod_status import is_ready, is_terminating, with_condition
from apiserver.actors.timing import CONTROLLER_S, DISRUPTED_TIMEOUT_S
from apiserver.selectors import matches_labels
from apiserver.store import Event
from apiserver.timeline import parse_stamp, stamp
from apiserver.users import service_account

Obj = dict[str, Any]
BUDGETS = "poddisruptionbudgets.policy"
SCALED = {"ReplicaSet": "replicasets.apps", "StatefulSet": "statefulsets.apps"}


class Disruption(Actor):
    """Counts the pods of every budget as soon as one of them or the budget changes.

    It acts on its own copy of the pods, as they were announced to it: while an eviction writes the budget, the pod's
    condition and its deletion one after the other, each of them is answered by itself.
    """

    user = service_account("kube-system", "disruption-controller")
    manager = "kube-controller-manager"

    def start(self) -> None:
        """Follow budgets and pods."""
        self._store = self.server.store
        self._timeline = self.clock
        self._pods: dict[str, dict[str, Obj]] = {}
        self.follow(BUDGETS, self._on_budget)
        self.follow("pods", self._on_pod)

    def _on_budget(self, event: Event) -> None:
        if event.type == "DELETED":
            return
        key = name_of(event.obj)
        old = event.old.obj if event.old is not None else None
        if old is None or old["spec"] != event.obj["spec"]:
            self._timeline.at(CONTROLLER_S, lambda: self._sync(key))
        else:
            self._sync(key)

    def _on_pod(self, event: Event) -> None:
        pod = event.obj
        held = self._pods.setdefault(pod["metadata"]["namespace"], {})
        if event.type == "DELETED":
            held.pop(pod["metadata"]["name"], None)
        else:
            held[pod["metadata"]["name"]] = pod
        for budget in self._store.objects(BUDGETS, pod["metadata"]["namespace"]):
            if matches_labels(budget["spec"].get("selector"), pod["metadata"].get("labels")):
                self._sync(name_of(budget))

    def _sync(self, key: Name) -> None:
        budget = self._store.get(BUDGETS, *key)
        if budget is None or is_terminating(budget):
            return
        old = budget.get("status") or {}
        pods = [
            pod
            for _, pod in sorted(self._pods.get(key[0], {}).items())
            if matches_labels(budget["spec"].get("selector"), pod["metadata"].get("labels"))
        ]
        expected, desired = self._wanted(budget, pods)
        disrupted = self._disrupted(old.get("disruptedPods") or {}, {pod["metadata"]["name"]: pod for pod in pods})
        healthy = sum(
            is_ready(pod) and not is_terminating(pod) and pod["metadata"]["name"] not in disrupted for pod in pods
        )
        allowed = max(healthy - desired, 0) if expected > 0 else 0
        generation = budget["metadata"].get("generation", 1)
        now = stamp(self._timeline.now)
        conditions = old.get("conditions") or []
        held: Obj = next((each for each in conditions if each["type"] == "DisruptionAllowed"), {})
        value = "True" if allowed else "False"
        made = {"type": "DisruptionAllowed", "status": value, "observedGeneration": generation}
        made["lastTransitionTime"] = held["lastTransitionTime"] if held.get("status") == value else now
        made |= {"reason": "SufficientPods" if allowed else "InsufficientPods", "message": ""}
        status: Obj = {
            "observedGeneration": generation,
            "disruptionsAllowed": allowed,
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected,
            "conditions": with_condition(conditions, made),
        }
        if disrupted:
            status["disruptedPods"] = disrupted
        if status != old:
            present(lambda: self.client.update(BUDGETS, budget | {"status": status}, "status"))

    def _wanted(self, budget: Obj, pods: list[Obj]) -> tuple[int, int]:
        """Expected pods, and the least number of healthy ones. Percentages and maxUnavailable need owners."""
        spec = budget["spec"]
        if "maxUnavailable" not in spec and isinstance(spec.get("minAvailable"), int):
            return len(pods), int(spec["minAvailable"])
        expected = self._owned(pods)
        if "maxUnavailable" in spec:
            return expected, max(expected - _scaled(spec["maxUnavailable"], expected), 0)
        return expected, _scaled(spec.get("minAvailable", 1), expected)

    def _owned(self, pods: list[Obj]) -> int:
        """Sum of the sizes of the controllers of the pods."""
        sizes: dict[str, int] = {}
        for pod in pods:
            owner = controller_of(pod)
            if owner is None or owner["uid"] in sizes:
                continue
            resource = SCALED.get(owner["kind"], "")
            found = self._store.get(resource, pod["metadata"]["namespace"], owner["name"]) if resource else None
            if found is not None and found["metadata"]["uid"] == owner["uid"]:
                sizes[owner["uid"]] = int(found["spec"].get("replicas", 1))
        return sum(sizes.values())

    def _disrupted(self, named: dict[str, str], pods: dict[str, Obj]) -> dict[str, str]:
        """Evicted pods, less the deleted ones and those listed for longer than the timeout."""
        oldest = self._timeline.now - timedelta(seconds=DISRUPTED_TIMEOUT_S)
        return {
            name: since
            for name, since in named.items()
            if name in pods and not is_terminating(pods[name]) and parse_stamp(since) > oldest
        }


def _scaled(value: int | str, total: int) -> int:
    """A number, or a percentage of the total, rounded up."""
    if isinstance(value, int):
        return value
    return ceil(Fraction(int(value.rstrip("%")), 100) * total)
