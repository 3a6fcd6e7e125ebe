"""The manager's state of ClusterQueues, cohorts, flavors and checks: quota, use, and active queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from apiserver.kueue import conditions, workloads
from apiserver.kueue.amounts import FlavorResource, quantity
from apiserver.kueue.info import Info, Key
from apiserver.kueue.names import spec_of
from apiserver.kueue.quota import Node, Usage, quotas_of, rebuild

Obj = dict[str, Any]
COHORT = "cohort"
NEVER = "Never"


class Queue:
    """A ClusterQueue: its spec, its node in the tree of quotas, and the workloads holding its quota."""

    def __init__(self, obj: Obj) -> None:
        self.obj = obj
        self.node = Node(obj["metadata"]["name"], queue=True)
        self.workloads: dict[Key, Info] = {}
        self.admitted: Usage = {}
        self.admitted_count = 0
        self.groups: list[Obj] = []
        self.group_of: dict[str, Obj] = {}
        self.update(obj)

    def update(self, obj: Obj) -> None:
        """Take a new spec."""
        self.obj = obj
        self.groups = spec_of(obj).get("resourceGroups") or []
        self.group_of = {name: group for group in self.groups for name in group["coveredResources"]}
        self.node.quotas = quotas_of(self.groups)

    @property
    def name(self) -> str:
        """Of the ClusterQueue."""
        return self.node.name

    @property
    def spec(self) -> Obj:
        """Of the ClusterQueue."""
        found: Obj = spec_of(self.obj)
        return found

    def policy(self, name: str) -> str:
        """`withinClusterQueue` or `reclaimWithinCohort`."""
        return str((self.spec.get("preemption") or {}).get(name, NEVER))

    def borrow_within_cohort(self) -> tuple[bool, int | None]:
        """Permission to combine preemption with borrowing, and the highest priority of its victims."""
        found = (self.spec.get("preemption") or {}).get("borrowWithinCohort") or {}
        return found.get("policy", NEVER) != NEVER, found.get("maxPriorityThreshold")

    def flavor_names(self) -> list[str]:
        """In order of the spec."""
        return [flavor["name"] for group in self.groups for flavor in group["flavors"]]

    def check_names(self) -> dict[str, set[str]]:
        """Admission checks, with their flavors (empty: all)."""
        strategy = self.spec.get("admissionChecksStrategy") or {}
        return {each["name"]: set(each.get("onFlavors") or []) for each in strategy.get("admissionChecks") or []}

    def checks_for(self, admission: Obj | None) -> list[str]:
        """The checks required of a workload; without an admission only those for all flavors, or for its own."""
        named = self.check_names()
        if admission is None:
            every = set(self.flavor_names())
            return sorted(name for name, flavors in named.items() if not flavors or flavors >= every)
        given = {flavor for each in admission["podSetAssignments"] for flavor in (each.get("flavors") or {}).values()}
        return sorted(name for name, flavors in named.items() if not flavors or flavors & given)

    def add(self, info: Info) -> None:
        """Count a workload."""
        self.remove(info.key)
        self.workloads[info.key] = info
        for fr, value in info.usage().items():
            self.node.add(fr, value)
        if workloads.is_admitted(info.obj):
            self._count_admitted(info, 1)

    def remove(self, key: Key) -> Info | None:
        """Count it no longer."""
        info = self.workloads.pop(key, None)
        if info is None:
            return None
        for fr, value in info.usage().items():
            self.node.remove(fr, value)
        if workloads.is_admitted(info.obj):
            self._count_admitted(info, -1)
        return info

    def _count_admitted(self, info: Info, sign: int) -> None:
        self.admitted_count += sign
        for fr, value in info.usage().items():
            self.admitted[fr] = self.admitted.get(fr, 0) + sign * value

    @contextmanager
    def without(self, infos: Iterable[tuple[Queue, Info]]) -> Iterator[None]:
        """The tree as if workloads (of any queue) were gone."""
        gone = [(queue, fr, value) for queue, info in infos for fr, value in info.usage().items()]
        for queue, fr, value in gone:
            queue.node.remove(fr, value)
        try:
            yield
        finally:
            for queue, fr, value in reversed(gone):
                queue.node.add(fr, value)


class State:
    """All queues, cohorts, flavors and checks."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.cohorts: dict[str, Node] = {}
        self.cohort_objects: dict[str, Obj] = {}
        self.flavors: dict[str, Obj] = {}
        self.checks: dict[str, Obj] = {}
        self.topologies: dict[str, Obj] = {}
        self.where: dict[Key, str] = {}  # the queue that counts a workload

    def put_queue(self, obj: Obj) -> Queue:
        """A ClusterQueue is there, or is changed."""
        name = obj["metadata"]["name"]
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = Queue(obj)
        else:
            queue.update(obj)
        self._attach(queue.node, spec_of(obj).get("cohortName") or "")
        return queue

    def drop_queue(self, name: str) -> None:
        """A ClusterQueue is gone."""
        queue = self.queues.pop(name, None)
        if queue is not None:
            self._attach(queue.node, "")

    def put_cohort(self, obj: Obj) -> None:
        """A Cohort is there, or is changed."""
        name = obj["metadata"]["name"]
        self.cohort_objects[name] = obj
        node = self.cohorts.setdefault(name, Node(name))
        node.quotas = quotas_of(spec_of(obj).get("resourceGroups"))
        self._attach(node, spec_of(obj).get("parentName") or "")

    def drop_cohort(self, name: str) -> None:
        """A Cohort is gone; it stays as a name while queues belong to it."""
        self.cohort_objects.pop(name, None)
        node = self.cohorts.get(name)
        if node is not None:
            node.quotas = {}
            self._attach(node, "")
            self._sweep(node)

    def _attach(self, node: Node, parent: str) -> None:
        old = node.parent
        new = self.cohorts.setdefault(parent, Node(parent)) if parent else None
        if old is not None and old is not new:
            (old.queues if node.is_queue else old.cohorts).pop(node.name, None)
            if not old.in_cycle():
                rebuild(old.root())
            self._sweep(old)
        node.parent = new
        if new is not None:
            (new.queues if node.is_queue else new.cohorts)[node.name] = node
        if not node.in_cycle():
            rebuild(node.root())

    def _sweep(self, node: Node) -> None:
        if not node.cohorts and not node.queues and node.name not in self.cohort_objects:
            self.cohorts.pop(node.name, None)

    def count(self, info: Info) -> bool:
        """Count a workload with quota; False if its queue is unknown."""
        self.forget(info.key)
        queue = self.queues.get(info.cluster_queue)
        if queue is None:
            return False
        queue.add(info)
        self.where[info.key] = queue.name
        return True

    def forget(self, key: Key) -> Queue | None:
        """A workload holds quota no longer; its former queue."""
        queue = self.queues.get(self.where.pop(key, ""))
        if queue is not None:
            queue.remove(key)
        return queue

    def in_tree(self, root: Node) -> list[Queue]:
        """The queues below a cohort."""
        found = [self.queues[name] for name in root.queues]
        for child in root.cohorts.values():
            found += self.in_tree(child)
        return found

    def inactive(self, queue: Queue) -> list[tuple[str, str]]:
        """Reasons of a queue to admit nothing, with texts; empty if it is active."""
        found = []
        if queue.spec.get("stopPolicy", "None") != "None":
            found.append(("Stopped", "is stopped"))
        missing = [name for name in dict.fromkeys(queue.flavor_names()) if name not in self.flavors]
        if missing:
            found.append(("FlavorNotFound", f"references missing ResourceFlavor(s): {','.join(missing)}"))
        names = list(queue.check_names())
        missing = [name for name in names if name not in self.checks]
        if missing:
            found.append(("AdmissionCheckNotFound", f"references missing AdmissionCheck(s): {','.join(missing)}"))
        idle = [name for name in names if name in self.checks and not conditions.is_true(self.checks[name], "Active")]
        if idle:
            found.append(("AdmissionCheckInactive", f"references inactive AdmissionCheck(s): {','.join(idle)}"))
        for name in queue.flavor_names():
            topology = self.flavors.get(name, {}).get("spec", {}).get("topologyName")
            if topology and topology not in self.topologies:
                found.append(("TopologyNotFound", f'there is no Topology "{topology}" for TAS flavor "{name}"'))
        return found

    def readiness(self, queue: Queue) -> tuple[bool, str, str]:
        """The condition Active of a queue: value, reason and message."""
        if queue.obj["metadata"].get("deletionTimestamp"):
            return False, "Terminating", "Can't admit new workloads; clusterQueue is terminating"
        found = self.inactive(queue)
        if found:
            return False, found[0][0], f"Can't admit new workloads: {', '.join(text for _, text in found)}."
        return not queue.node.in_cycle(), "Ready", "Can admit new workloads"

    def is_active(self, name: str) -> bool:
        """True if a queue admits workloads."""
        queue = self.queues.get(name)
        return queue is not None and self.readiness(queue)[0]

    def borrowed(self, queue: Queue, fr: FlavorResource, used: int) -> int:
        """The borrowed part of its use; 0 outside a cohort."""
        if queue.node.parent is None:
            return 0
        return max(0, used - queue.node.nominal(fr))

    def usage_of(self, queue: Queue, usage: Usage, *, borrowed: bool = True) -> list[Obj]:
        """`flavorsReservation` or `flavorsUsage` of a status."""
        found = []
        for group in queue.groups:
            for flavor in group["flavors"]:
                rows = []
                for each in sorted(flavor["resources"], key=lambda each: str(each["name"])):
                    fr = (flavor["name"], each["name"])
                    used = usage.get(fr, 0)
                    row = {"name": each["name"], "total": quantity(each["name"], used)}
                    if borrowed:
                        row = {"borrowed": quantity(each["name"], self.borrowed(queue, fr, used)), **row}
                    rows.append(row)
                found.append({"name": flavor["name"], "resources": rows})
        return found
