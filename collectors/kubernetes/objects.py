"""Which API objects belong to a subject of a decision: for actuators, which then read them afresh."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from autopilot.contract.annotations import EFFECT, OFFERED, PLACEMENT
from autopilot.contract.scaling import CEILING
from autopilot.contract.tree import PREFIX
from collectors.kubernetes.gang_life import end_of
from collectors.kubernetes.gangs import Gang, uid_of
from collectors.kubernetes.inventory import Nodes
from collectors.kubernetes.services import generation_of
from collectors.kubernetes.wire import Meta
from collectors.kubernetes.work import Gangs
from collectors.kueue.state import left_over, waits_with_quota
from collectors.kueue.wire import Workload


class Identity(NamedTuple):
    """One object."""

    kind: str
    namespace: str
    name: str
    uid: str


class Found(NamedTuple):
    """The objects of a subject, and its incarnation (0 where it has none)."""

    incarnation: int
    objects: tuple[Identity, ...]


class ObjectsOfView:
    """Finds objects in the view of a collector. For the thread that collects only."""

    def __init__(self, gangs: Gangs, nodes: Nodes, quota_of: Callable[[Gang], int]) -> None:
        """`quota_of`: the row of the topmost queue from which a gang gets quota; -1 for none."""
        self._gangs, self._nodes, self._quota_of = gangs, nodes, quota_of

    def find(self, kind: str, uid: str) -> Found | None:
        """The objects of a workload or service, a node by its name, or the node of a GPU; None where there are none."""
        if kind == "workload":
            place = self._gangs.place(uid)
            return None if place is None else Found(place[1], tuple(_of_gang(place[0])))
        if kind == "service":
            for (_, name), found in self._gangs.served.services.items():
                if found.metadata.uid == uid:
                    title = name.partition("/")[0]
                    return Found(generation_of(found), (_identity(title, found.metadata),))
            return None
        if kind == "node":
            found_node = self._nodes.objects.get(uid)
            return None if found_node is None else Found(0, (_identity("Node", found_node.metadata),))
        for name, slots in self._nodes.slots.items():
            if any(gpu.uuid == uid for gpu in slots.gpus):
                return Found(0, (_identity("Node", self._nodes.objects[name].metadata),))
        return None

    def changing(self) -> Iterator[tuple[Identity, str]]:
        """Every node with a record of an effect, and the record."""
        for node in self._nodes.objects.values():
            if node.metadata.note(EFFECT):
                yield _identity("Node", node.metadata), node.metadata.note(EFFECT)

    def offered(self) -> Iterator[Identity]:
        """Every node that is offered back."""
        return (
            _identity("Node", node.metadata) for node in self._nodes.objects.values() if node.metadata.note(OFFERED)
        )

    def ceiled(self) -> Iterator[tuple[Identity, str]]:
        """Every service with a record of a ceiling, and the record."""
        for (_, name), found in self._gangs.served.services.items():
            if found.metadata.note(PREFIX + CEILING):
                yield _identity(name.partition("/")[0], found.metadata), found.metadata.note(PREFIX + CEILING)

    def placed(self) -> Iterator[tuple[str, str, str]]:
        """Name and uid of a node, and a label of placements on it."""
        for name, node in self._nodes.objects.items():
            for key in node.metadata.labels or ():
                if key.startswith(PLACEMENT):
                    yield name, node.metadata.uid, key

    def uids(self) -> Iterator[str]:
        """Uids of all work that has not ended, or whose pods are still there."""
        for gang in self._gangs.gangs.values():
            if end_of(gang).at_s is None or any(each.holds for each in gang.pods.values()):
                yield uid_of(gang)

    def reservations(self, uid: str) -> Iterator[Identity]:
        """Workloads with quota that wait for our check, in queues that share quota with those of this work.

        Opted-out ones and those with running pods are left out: Kueue makes another Workload for a growing elastic Job.
        The least important come first, the youngest of these before others.
        """
        place = self._gangs.place(uid)
        if place is None:
            return
        shared = self._quota_of(place[0])
        found = [
            each.workload
            for key, each in self._gangs.gangs.items()
            if each.workload is not None
            and each is not place[0]
            and waits_with_quota(each.workload)
            and not self._gangs.alone(key)
            and not any(pod.holds for pod in each.pods.values())
            and self._quota_of(each) == shared >= 0
        ]
        for each in sorted(found, key=lambda one: (_priority(one), -_made_s(one))):
            yield _identity("Workload", each.metadata)

    def left_over(self) -> Iterator[Identity]:
        """Workloads whose Retry of our check is left over, or was taken back."""
        for gang in self._gangs.gangs.values():
            if gang.workload is not None and left_over(gang.workload):
                yield _identity("Workload", gang.workload.metadata)


def _priority(workload: Workload) -> int:
    return workload.spec.priority or 0


def _made_s(workload: Workload) -> float:
    made = workload.metadata.creation_timestamp
    return made.timestamp() if made is not None else 0.0


def _metas(gang: Gang) -> Iterator[tuple[str, Meta]]:
    if gang.workload is not None:
        yield "Workload", gang.workload.metadata
    if gang.job is not None:
        yield "Job", gang.job.metadata
    for each in gang.pods.values():
        yield "Pod", each.pod.metadata


def _of_gang(gang: Gang) -> Iterator[Identity]:
    return (_identity(kind, meta) for kind, meta in _metas(gang))


def _identity(kind: str, meta: Meta) -> Identity:
    return Identity(kind, meta.namespace, meta.name, meta.uid)
