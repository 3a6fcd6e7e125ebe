"""The GPUs of gangs, and those freed by an eviction: exactly for one eviction, in columns for thousands of gangs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.snapshot import F64, GPU_MILLI, I32
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.quota.rules.base import Target

I64 = NDArray[np.int64]

NO_BOUND = np.iinfo(np.int64).max
"""What a node that states no CPU or no memory has of it."""

Cleared = tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]
"""((node, whole GPUs) that come free, (GPU, milli) given up of GPUs on which others stay)."""


def leave_order(whatif: WhatIf, row: int, first: int = -1) -> tuple[tuple[int, ...], ...]:
    """Entries of the layout of `row`, member by member, in the order in which members would leave.

    Members on the node `first`; then lower rank first, then members on nodes with more free GPUs, then the last entries
    first.
    """
    layout = whatif.layout_of(row)
    snapshot = whatif.snapshot
    size = max(int(snapshot.workloads.gpus_per_member[row]), 1)
    held = snapshot.placements
    mine = held.workload == row
    ranks = dict(zip(held.gpu[mine].tolist(), held.rank[mine].tolist(), strict=True))
    nodes = snapshot.gpus.node[layout.gpu].tolist()
    members: list[tuple[int, ...]] = []
    by_node: dict[tuple[int, int], list[int]] = {}
    for entry, (gpu, node) in enumerate(zip(layout.gpu.tolist(), nodes, strict=True)):
        by_node.setdefault((node, ranks.get(gpu, 0)), []).append(entry)
    for entries in by_node.values():
        members += [tuple(entries[at : at + size]) for at in range(0, len(entries), size)]
    free = whatif.node_free
    members.sort(
        key=lambda part: (
            nodes[part[0]] != first,
            ranks.get(int(layout.gpu[part[0]]), 0),
            -int(free[nodes[part[0]]]),
            -part[0],
        )
    )
    return tuple(members)


class Takings:
    """GPUs freed by evictions on one what-if. Each is computed once, for the what-if as of the first question.

    `first`: the node of the members that leave before the others of their gang; -1 for none.
    """

    def __init__(self, whatif: WhatIf, first: int = -1) -> None:
        self.whatif, self.first = whatif, first
        self._members: dict[int, tuple[tuple[int, ...], ...]] = {}
        self._cleared: dict[tuple[int, float, bool], Cleared] = {}
        self._hosts: dict[tuple[int, float, bool], tuple[tuple[int, int, int], ...]] = {}

    def entries(self, target: Target) -> tuple[int, ...]:
        """Entries of the victim's layout removed by a partial eviction."""
        if target.row not in self._members:
            self._members[target.row] = leave_order(self.whatif, target.row, self.first)
        chosen: list[int] = []
        for member in self._members[target.row]:
            if len(chosen) >= target.gpus - 1e-9:
                break
            chosen += member
        return tuple(chosen)

    def cleared(self, target: Target) -> Cleared:
        """Whole GPUs that it frees by itself, by node, and the shares that it gives up beside others."""
        key = (target.row, target.gpus, target.whole)
        if key not in self._cleared:
            whatif, layout = self.whatif, self.whatif.layout_of(target.row)
            at = np.arange(len(layout)) if target.whole else np.array(self.entries(target), np.int32)
            at = at[layout.plain[at] & whatif.gpu_whole[layout.gpu[at]]]
            gone: dict[int, int] = {}
            for gpu, milli in zip(layout.gpu[at].tolist(), layout.milli[at].tolist(), strict=True):
                gone[gpu] = gone.get(gpu, 0) + milli
            nodes: dict[int, int] = {}
            shares = []
            for gpu, milli in gone.items():
                if milli == whatif.gpu_used[gpu]:
                    node = int(whatif.snapshot.gpus.node[gpu])
                    nodes[node] = nodes.get(node, 0) + 1
                else:
                    shares.append((gpu, milli))
            self._cleared[key] = (tuple(sorted(nodes.items())), tuple(shares))
        return self._cleared[key]

    def free_after(self, room: I32, targets: Sequence[Target]) -> I32:
        """Whole free GPUs per node once these were taken, beside `room`. Shape [nodes]."""
        free, parts = room.copy(), dict[int, int]()
        for target in targets:
            nodes, shares = self.cleared(target)
            for node, gpus in nodes:
                free[node] += gpus
            for gpu, milli in shares:
                parts[gpu] = parts.get(gpu, 0) + milli
        for gpu, milli in parts.items():
            if milli == self.whatif.gpu_used[gpu]:
                free[self.whatif.snapshot.gpus.node[gpu]] += 1
        return free

    def host_after(self, targets: Sequence[Target]) -> tuple[I64, I64]:
        """Free milli-CPU and MiB per node after these evictions; the largest int64 if a node states none. Shape
        [nodes].
        """
        cpu, memory = self.whatif.node_cpu.copy(), self.whatif.node_memory.copy()
        for target in targets:
            for node, milli, mib in self._host(target):
                cpu[node] += milli if cpu[node] != NO_BOUND else 0
                memory[node] += mib if memory[node] != NO_BOUND else 0
        return cpu, memory

    def _host(self, target: Target) -> tuple[tuple[int, int, int], ...]:
        """(node, milli-CPU, MiB) freed by an eviction, rounded as the what-if books it."""
        key = (target.row, target.gpus, target.whole)
        if key not in self._hosts:
            work, node_of = self.whatif.snapshot.workloads, self.whatif.snapshot.gpus.node
            size = max(int(work.gpus_per_member[target.row]), 1)
            held = node_of[self.whatif.layout_of(target.row).gpu].tolist()
            gone = range(len(held)) if target.whole else self.entries(target)
            before, left = Counter(held), Counter(held)
            left.subtract(held[entry] for entry in gone)
            asked = (int(work.cpu_milli[target.row]) / size, int(work.memory_mib[target.row]) / size)
            back = {
                node: [round(count * each) - round(left[node] * each) for each in asked]
                for node, count in before.items()
            }
            self._hosts[key] = tuple((node, cpu, memory) for node, (cpu, memory) in back.items())
        return self._hosts[key]


@dataclass(frozen=True, slots=True)
class Holdings:
    """Whole GPUs free once a gang is gone, by node. Shape [entries]; a gang and node may stand in several.

    Gangs that share a GPU free it together: `leader` [gangs] is the first of them, and entries name leaders.
    """

    gang: I32  # place in the rows that were asked for
    node: I32
    gpus: I32
    leader: I32


def holdings_of(whatif: WhatIf, rows: I32) -> Holdings:
    """GPUs of the workloads `rows`, as far as usable."""
    gang, gpu, milli = entries_of(whatif, rows)
    leader = np.arange(len(rows), dtype=np.int32)
    whole = milli == GPU_MILLI
    if not whole.all():
        part = (0 < milli) & ~whole
        together, freed = _shared(whatif, gang[part], gpu[part], milli[part], leader)
        gang, gpu = (
            np.concatenate([leader[gang[whole]], leader[together]]),
            np.concatenate([gpu[whole], freed]),
        )
    node = whatif.snapshot.gpus.node[gpu]
    fresh = np.ones(len(gang), np.bool_)
    fresh[1:] = (gang[1:] != gang[:-1]) | (node[1:] != node[:-1])
    first = np.flatnonzero(fresh)
    count = np.diff(np.append(first, len(gang)))
    return Holdings(gang[first], node[first], count.astype(np.int32), leader)


def entries_of(whatif: WhatIf, rows: I32) -> tuple[I32, I32, I32]:
    """(place in `rows`, GPU, milli) of their present layouts on usable GPUs; milli 0 beside an instance."""
    held, place = whatif.snapshot.placements, np.full(len(whatif.snapshot.workloads.id), -1, np.int32)
    place[rows] = np.arange(len(rows))
    moved = np.fromiter(whatif.layouts, np.int64, len(whatif.layouts))
    changed = [(int(place[row]), whatif.layouts[row]) for row in moved[place[moved] >= 0].tolist()]
    place[rows[[at for at, _ in changed]]] = -1
    gang = place[held.workload]
    mine = (gang >= 0) & whatif.gpu_whole[held.gpu]
    columns = [(gang[mine], held.gpu[mine], np.where(held.instance[mine] < 0, held.milli[mine], 0))]
    for at, layout in changed:
        usable = np.flatnonzero(whatif.gpu_whole[layout.gpu])
        columns.append(
            (
                np.full(len(usable), at, np.int32),
                layout.gpu[usable],
                np.where(layout.instance[usable] < 0, layout.milli[usable], 0),
            )
        )
    gangs, gpus, millis = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    return gangs, gpus, millis


def _shared(whatif: WhatIf, gang: I32, gpu: I32, milli: I32, leader: I32) -> tuple[I32, I32]:
    """(gang, GPU) of GPUs in parts with all their holders among the gangs; joins these under one `leader`."""
    taken = np.bincount(gpu, milli, minlength=len(whatif.gpu_used))
    free = taken[gpu] == whatif.gpu_used[gpu]
    first: dict[int, int] = {}
    for holder, part in zip(gang[free].tolist(), gpu[free].tolist(), strict=True):
        mine, other = leader[holder], leader[first.setdefault(part, holder)]
        leader[leader == max(mine, other)] = min(mine, other)
    return np.array(list(first.values()), np.int32), np.array(list(first), np.int32)


def cheapest_groups(group: I32, gpus: I32, rank: I32, cost: F64, missing: NDArray[Any]) -> I32:
    """Groups of entries (nodes, domains) that can free the GPUs `missing` in them, the cheapest first.

    By estimate, the cheaper of two: one sufficient entry; or entries by rank and by cost for a GPU, until they suffice.
    Cheapest is the lowest needed rank, in it the least cost, then the least in all. `rank` and `cost` are of whole
    entries. `missing` [groups].
    """
    count = len(missing)
    can = np.bincount(group, gpus, minlength=count) >= missing
    open_ = np.flatnonzero(can[group])
    group, gpus, rank, cost = group[open_], gpus[open_], rank[open_], cost[open_]
    order = np.lexsort((cost / gpus, group.astype(np.int64) * (int(rank.max(initial=0)) + 1) + rank))
    group, gpus, rank, cost = group[order], gpus[order], rank[order], cost[order]
    before = np.cumsum(gpus) - gpus
    first = np.searchsorted(group, np.arange(count))
    before -= before[first[group]]
    used = before < missing[group]
    last = np.flatnonzero(used & (before + gpus >= missing[group]))  # one in each group: of the highest rank
    top = np.zeros(count, np.int64)
    top[group[last]] = rank[last]
    spent = cost * used
    highest = np.bincount(group, spent * (rank == top[group]), minlength=count)
    whole = np.bincount(group, spent, minlength=count)
    alone = np.flatnonzero(gpus >= missing[group])
    ways = np.lexsort(
        (
            np.append(whole[group[last]], cost[alone]),
            np.append(highest[group[last]], cost[alone]),
            np.append(top[group[last]], rank[alone]),
        )
    )
    found = np.append(group[last], group[alone])[ways]
    return found[np.sort(np.unique(found, return_index=True)[1])].astype(np.int32)
