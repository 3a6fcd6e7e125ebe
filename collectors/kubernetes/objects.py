"""The API objects of a subject of a decision: for actuators, which then read them afresh."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


class Identity(NamedTuple):
    """One object."""

    kind: str
    namespace: str
    name: str
    uid: str


class Found(NamedTuple):
    """The objects of a subject, and its incarnation (0: none)."""

    incarnation: int
    objects: tuple[Identity, ...]


class ObjectsOfView:
    """Finds objects in the view of a collector. For the collecting thread only."""

    def __init__(self, gangs: Gangs, nodes: Nodes) -> None:
        self._gangs, self._nodes = gangs, nodes

    def find(self, kind: str, uid: str) -> Found | None:
        """The objects of a workload or service, a node by its name, or the node of a GPU; None: unknown."""
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
        """Every offered node."""
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
        """Uids of all work that has not ended, or still has pods with GPUs."""
        for gang in self._gangs.gangs.values():
            if end_of(gang).at_s is None or any(each.holds for each in gang.pods.values()):
                yield uid_of(gang)

    def reservations(self, uids: Sequence[str]) -> Iterator[Identity]:
        """Those of these Workloads that hold quota and wait for our check.

        Opted-out ones and those with running pods are left out: Kueue makes another Workload for a growing elastic Job.
        """
        for uid in uids:
            place = self._gangs.place(uid)
            gang = place[0] if place is not None else None
            if gang is None or gang.workload is None or self._gangs.alone(gang.key):
                continue
            if waits_with_quota(gang.workload) and not any(pod.holds for pod in gang.pods.values()):
                yield _identity("Workload", gang.workload.metadata)

    def taken(self) -> Iterator[Identity]:
        """Workloads deactivated by us to free their quota for other work."""
        for gang in self._gangs.gangs.values():
            if gang.workload is not None and gang.workload.taken:
                yield _identity("Workload", gang.workload.metadata)

    def left_over(self) -> Iterator[Identity]:
        """Workloads with a Retry of our check that is left over, or was taken back."""
        for gang in self._gangs.gangs.values():
            if gang.workload is not None and left_over(gang.workload):
                yield _identity("Workload", gang.workload.metadata)


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
