"""The GPUs of each pod on its node, and the table of placements."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

import numpy as np

from autopilot.core.model.snapshot import PlacementTable, empty, make
from collectors.kubernetes.gangs import PodFacts
from collectors.kubernetes.inventory import Nodes
from collectors.kubernetes.lent import Lent
from collectors.kubernetes.parts import NO_PARTS, Parts

NOBODY: AbstractSet[str] = frozenset()


@dataclass(slots=True)
class Holdings:
    """The pods with GPUs, including holders of GPUs for others."""

    nodes: Nodes
    pods: Mapping[str, PodFacts]  # by uid
    lent: Lent = field(init=False)
    _holding: dict[str, tuple[str, str]] = field(default_factory=dict)  # pod -> (gang, node)
    _over: tuple[tuple[int, int], frozenset[str]] | None = None  # see `overbooked`; None from a change of a gang

    def __post_init__(self) -> None:
        """Parts of GPUs are asked for by memory, too."""
        self.lent = Lent(self.nodes.gpu_mib)

    def put(self, found: PodFacts) -> AbstractSet[str]:
        """Book the GPUs of a pod, or free them. Returns the affected gangs."""
        uid, node, parts = found.pod.metadata.uid, found.pod.spec.node_name, found.parts
        asks, touched = found.holds and found.ask.any_gpu, NOBODY
        if parts is not NO_PARTS or uid in self.lent.known:
            touched = self._lend(uid, node, parts if asks else NO_PARTS)
        if asks and not parts.gpus:
            ask = replace(found.ask, named=parts.named) if parts.named else found.ask
            self.nodes.give(node, uid, ask, leaving=found.leaving)
            now = (found.key, node)
            if self._holding.get(uid) != now:
                self._holding[uid], self._over = now, None
        elif uid in self._holding:
            self.nodes.take(self._holding.pop(uid)[1], uid)
        return touched

    def drop(self, uid: str) -> AbstractSet[str]:
        """Remove a pod. Returns the affected gangs."""
        if uid in self._holding:
            self.nodes.take(self._holding.pop(uid)[1], uid)
        return self._lend(uid, "", NO_PARTS) if uid in self.lent.known else NOBODY

    def _lend(self, uid: str, node: str, parts: Parts) -> AbstractSet[str]:
        changed = self.lent.put(uid, node, parts)
        self.nodes.given += bool(changed)
        return {self.pods[each].key for each in changed if each in self.pods}

    def holders(self) -> dict[tuple[str, str], tuple[str, str]]:
        """(namespace, name) -> (uid, node) of every pod with GPUs held or used."""
        found = {
            (meta.namespace, meta.name): (uid, node)
            for uid, (_, node) in self._holding.items()
            for meta in (self.pods[uid].pod.metadata,)
        }
        for uid, node in self.lent.users().items():
            meta = self.pods[uid].pod.metadata
            found[meta.namespace, meta.name] = (uid, node)
        return found

    def overbooked(self) -> frozenset[str]:
        """Gangs with a pod on a node with too few GPUs for it."""
        key = (self.nodes.version, self.nodes.given)
        if self._over is None or self._over[0] != key:
            waiting = [uid for slots in self.nodes.slots.values() for uid in slots.waiting]
            self._over = (key, frozenset(self._holding[uid][0] for uid in waiting if uid in self._holding))
        return self._over[1]

    def table(self, stopping: Collection[str], row_of: Callable[[str], int]) -> PlacementTable:
        """The table of placements. `stopping`: gangs stopping as a whole. `row_of`: the row of a gang."""
        leaving = {uid: self.pods[uid].leaving or key in stopping for uid, (key, _) in self._holding.items()}
        loans = {
            holder: [
                (self.pods[uid].key, self.pods[uid].leaving or self.pods[uid].key in stopping, milli)
                for uid, milli in users
            ]
            for holder, users in self.lent.loans().items()
        }
        return placement_table(self._holding, leaving, self.nodes, row_of, loans)


def placement_table(
    holding: Mapping[str, tuple[str, str]],
    leaving: Mapping[str, bool],
    nodes: Nodes,
    row_of: Callable[[str], int],
    loans: Mapping[str, Sequence[tuple[str, bool, int]]],
) -> PlacementTable:
    """One row for each GPU, share or instance of a pod.

    `holding`: gang and node of each pod, by uid; `row_of`: the row of a gang, -1 for none. `loans`: users by the uid of
    the holder of their GPU: gang, True if leaving, thousandths.
    """
    workloads: list[int] = []
    node_column: list[int] = []
    leaving_column: list[bool] = []
    gpus: list[int] = []
    parts: list[int] = []
    milli: list[int] = []
    assumed_column: list[bool] = []
    assumed = _assumed_pods(holding, nodes)
    for uid, (key, node) in holding.items():
        at = nodes.slots.get(node)
        held = at.held.get(uid) if at is not None else None
        if not held:
            continue
        node_row, first = nodes.first_rows[node]
        count = len(held)
        for gang, leaves, lent in loans.get(uid) or ((key, leaving[uid], 0),):
            if (row := row_of(gang)) < 0:
                continue
            workloads += [row] * count
            node_column += [node_row] * count
            leaving_column += [leaves] * count
            assumed_column += [uid in assumed] * count
            for index, part, share in held:
                gpus.append(first + index)
                parts.append(nodes.part_rows[node, index, part] if part >= 0 else -1)
                milli.append(lent or share)
    if not workloads:
        nothing: PlacementTable = empty(PlacementTable)
        return nothing
    table: PlacementTable = make(
        PlacementTable,
        workload=workloads,
        node=node_column,
        gpu=gpus,
        instance=parts,
        milli=milli,
        leaving=leaving_column,
        rank=np.zeros(len(workloads), np.int32),
        assumed=assumed_column,
    )
    return table


def _assumed_pods(holding: Mapping[str, tuple[str, str]], nodes: Nodes) -> set[str]:
    """Pods whose GPUs are assumed; `holding` as in `placement_table`."""
    on = {node for _, node in holding.values()}
    found: set[str] = set()
    for node in on & nodes.slots.keys():
        found |= nodes.slots[node].assumed(lambda uid: holding[uid][0] if uid in holding else uid)
    return found
