"""The request of a gang (`Shape`), its match with nodes, and the answer of a search (`Fit`, `Miss`).

Gangs of equal shape fit or fail together. `shape_classes` gives them one code, and a queue of thousands costs as many
searches as it has classes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.records import Code, Evidence
from autopilot.core.model.snapshot import F64, I32, Bools, ClusterSnapshot, NodeTable, Topology, WorkloadTable
from autopilot.core.placement.whatif import Layout, WhatIf

EVERY = slice(None)


@dataclass(frozen=True, slots=True)
class Shape:
    """The request of one gang. Equal shapes are interchangeable for fitting.

    `members` of `per_member` GPUs and, for a width with a remainder, one of `tail` GPUs. With `milli` > 0 each member
    is a share of one GPU, with `profile` >= 0 one MIG instance. `models` is a bit set over Names.gpu_models (0: any).
    """

    members: int
    per_member: int
    tail: int
    milli: int
    profile: int
    models: int
    memory_mib: int
    cpu_milli: int
    host_memory_mib: int
    topology: int
    preferred: int = 0
    selector: tuple[int, ...] = ()  # labels that its nodes must have, by place in Names.labels
    saves: bool = True  # it writes checkpoints

    @property
    def gpus(self) -> int:
        """Whole GPUs, shares or instances over all members."""
        return self.members * self.per_member + self.tail

    @property
    def whole_gpus(self) -> bool:
        """True if its members take whole GPUs, not shares or MIG instances."""
        return self.milli == 0 and self.profile < 0

    @property
    def is_single(self) -> bool:
        """True for one member."""
        return self.members + (self.tail > 0) == 1

    @property
    def unit_gpus(self) -> int:
        """GPUs of a member; of the tail if it is the only one."""
        return self.per_member if self.members else self.tail

    @property
    def asks_hosts(self) -> bool:
        """True if a member needs CPU or memory of its node."""
        return self.cpu_milli > 0 or self.host_memory_mib > 0


@dataclass(frozen=True, slots=True)
class Fit:
    """A place for a gang now: its layout, nodes in order of members, score and the terms of the score."""

    layout: Layout
    nodes: I32
    score: float
    terms: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class Miss:
    """The reason for a shape without a place: code, GPUs there (`value`), GPUs needed (`threshold`)."""

    code: Code
    value: float
    threshold: float


def shape_of(snapshot: ClusterSnapshot, row: int, gpus: int | None = None) -> Shape:
    """The shape of workload `row`, at its full width or at `gpus` GPUs (elastic gangs)."""
    work = snapshot.workloads
    per_member = max(int(work.gpus_per_member[row]), 1)
    width = int(work.gpus[row]) if gpus is None else gpus
    return Shape(
        members=width // per_member,
        per_member=per_member,
        tail=width % per_member,
        milli=int(work.gpu_milli[row]),
        profile=int(work.mig_profile[row]),
        models=int(work.gpu_models[row]),
        memory_mib=int(work.gpu_memory_mib[row]),
        cpu_milli=int(work.cpu_milli[row]),
        host_memory_mib=int(work.memory_mib[row]),
        topology=int(work.topology[row]),
        preferred=int(work.preferred[row]),
        selector=snapshot.names.selectors[int(work.selector[row])],
        saves=bool(work.checkpoint_interval_s[row] > 0 or work.checkpoint_on_request[row]),
    )


def saves_mask(work: WorkloadTable) -> Bools:
    """Work with declared checkpoints, periodic or on request. Shape [workloads]."""
    return np.asarray((work.checkpoint_interval_s > 0) | work.checkpoint_on_request)


def shape_classes(
    snapshot: ClusterSnapshot, rows: I32, differ: Collection[int] = (), *, spot_saves: bool = False
) -> I32:
    """A code for each of `rows`; equal shapes with equal elastic minima share one. Shape [rows].

    Gangs of `differ` (rows), with unlike members, have a code each. With `spot_saves` the places of work with
    checkpoints differ from those of other work, so the codes do.
    """
    work = snapshot.workloads
    columns: tuple[NDArray[Any], ...] = (
        work.gpus,
        work.gpus_per_member,
        work.min_gpus,
        work.gpu_milli,
        work.mig_profile,
        work.gpu_models,
        work.gpu_memory_mib,
        work.cpu_milli,
        work.memory_mib,
        work.topology,
        work.preferred,
        work.selector,
        *([saves_mask(work)] if spot_saves else []),
    )
    key = np.zeros(len(rows), np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            key = (key ^ column[rows].astype(np.int64).view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            key ^= key >> np.uint64(29)
    _, codes = np.unique(key, return_inverse=True)
    alone = np.isin(rows, np.fromiter(differ, np.int32, len(differ)))
    codes[alone] = len(rows) + np.arange(int(alone.sum()))
    return codes.astype(np.int32)


def carriers(nodes: NodeTable, labels: Sequence[int], at: I32 | slice = EVERY) -> Bools:
    """Nodes with all these labels, by place in `Names.labels`. Shape [nodes at `at`]."""
    mask = np.ones(nodes.gpu_model[at].shape, np.bool_)
    for label in labels:
        mask &= (nodes.labels[at, label >> 3] >> (label & 7)) & 1 == 1
    return mask


def suitable_models(nodes: NodeTable, shape: Shape, memory_mib_of_model: F64, at: I32 | slice) -> Bools:
    """Nodes with a GPU model, GPU memory and labels for a member. Shape [nodes at `at`]."""
    mask = np.ones(nodes.gpu_model[at].shape, np.bool_)
    if shape.models:
        mask &= ((shape.models >> nodes.gpu_model[at].astype(np.int64)) & 1) == 1
    if shape.selector:
        mask &= carriers(nodes, shape.selector, at)
    if shape.memory_mib:
        mask &= memory_mib_of_model[nodes.gpu_model[at]] >= shape.memory_mib
    return mask


def suited_nodes(whatif: WhatIf, shape: Shape, memory_mib_of_model: F64) -> Bools:
    """Nodes for a member by condition, GPU model, GPU memory and labels, full or empty. Shape [nodes].

    The array is read only and shared by all equal members: a what-if changes nothing of this.
    """
    saves = shape.saves or not whatif.spot_saves
    key = (shape.models, shape.selector, shape.memory_mib, saves, memory_mib_of_model.tobytes())
    if key not in whatif.suited:
        nodes = whatif.snapshot.nodes
        mask = whatif.node_ok & suitable_models(nodes, shape, memory_mib_of_model, slice(None))
        whatif.suited[key] = mask if saves else mask & ~nodes.spot
        whatif.suited[key].setflags(write=False)
    return whatif.suited[key]


def suitable_nodes(
    whatif: WhatIf, shape: Shape, memory_mib_of_model: F64, *, empty: bool = False, rows: I32 | None = None
) -> Bools:
    """Nodes with GPU model, GPU memory and host capacity for one member now, or once `empty`. Shape [nodes].

    With `rows`, the answer is about these nodes alone. Shape [rows].
    """
    nodes, at = whatif.snapshot.nodes, slice(None) if rows is None else rows
    mask = suited_nodes(whatif, shape, memory_mib_of_model)[at]
    for asked, stated, free in (
        (shape.cpu_milli, nodes.cpu_milli, whatif.node_cpu),
        (shape.host_memory_mib, nodes.memory_mib, whatif.node_memory),
    ):
        if asked:
            mask = mask & (((stated < 0) | (stated >= asked))[at] if empty else free[at] >= asked)
    return mask


def members_on(shape: Shape, free: I32) -> I32:
    """Members for `free` GPUs on each node; a spread gang has one at most. Shape [nodes]."""
    members = free // shape.per_member
    return np.minimum(members, 1) if shape.topology == Topology.SPREAD else members


def host_members(shape: Shape, cpu_milli: NDArray[np.int64], memory_mib: NDArray[np.int64]) -> I32:
    """Members for the free CPU (thousandths) and memory (MiB) of each node. Shape [nodes]."""
    members = np.full(len(cpu_milli), np.iinfo(np.int32).max, np.int64)
    if shape.cpu_milli:
        members = np.minimum(members, cpu_milli // shape.cpu_milli)
    if shape.host_memory_mib:
        members = np.minimum(members, memory_mib // shape.host_memory_mib)
    return np.maximum(members, 0).astype(np.int32)  # a node may be promised beyond what it has


def level_of(nodes: NodeTable, topology: int, rows: I32 | None = None) -> I32 | None:
    """Domain of each node (of `rows`) at a level of topology. Shape [nodes]. None: the level is no domain."""
    level = {
        Topology.ISLAND: nodes.island,
        Topology.LEAF: nodes.leaf,
        Topology.BLOCK: nodes.block,
        Topology.ZONE: nodes.zone,
    }.get(Topology(topology))
    return level if level is None or rows is None else level[rows]
