"""The what-if: place, evict, move and set aside on a copy of the capacity books, then keep or roll back.

Theory of operation. A `WhatIf` copies the capacity columns of planning and leaves the snapshot alone. All planning of
one tick happens on one WhatIf, so each choice sees the effects of earlier ones. Every change is an integer delta with
an entry in an undo log; `rollback` restores the columns bit for bit (property test). A search tries a scenario, looks,
and rolls back to its `checkpoint`. The `stamp` names the state of the columns, so caches know a state again.

The books count a whole GPU and a share in thousandths of the GPU, and an instance by its row. A GPU beyond its whole,
or an instance with two holders, raises InvariantError. Only observed work may exceed a GPU: a source may show more
work on it than fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopilot.core.hardware.takes_work import takes_work
from autopilot.core.model.errors import InvariantError, invariant
from autopilot.core.model.snapshot import F64, GPU_MILLI, I32, Bools, ClusterSnapshot
from autopilot.core.model.work import divided_mask
from autopilot.core.placement.on_demand import places_of


@dataclass(frozen=True, slots=True)
class Layout:
    """The place of one gang: one entry for each GPU, share or instance.

    `gpu`: rows of GpuTable. `instance`: rows of the what-if's instances, -1 for the GPU itself; places on demand are
    numbered behind the existing instances (on_demand.py). `milli`: thousandths of the GPU (1000 for a whole GPU, 0
    beside an instance).
    """

    gpu: I32
    instance: I32
    milli: I32

    @classmethod
    def whole(cls, gpu: I32) -> Layout:
        """These GPUs, each as a whole."""
        return cls(gpu, np.full(len(gpu), -1, np.int32), np.full(len(gpu), GPU_MILLI, np.int32))

    def __len__(self) -> int:
        """Number of GPUs, shares or instances."""
        return len(self.gpu)

    @property
    def plain(self) -> Bools:
        """True for GPUs and shares, False for MIG instances. Shape [entries]."""
        return self.instance < 0

    @property
    def parts(self) -> F64:
        """GPUs by entry: a share is its part, an instance counts as one. Shape [entries]."""
        return np.where(self.plain, self.milli / GPU_MILLI, 1.0)

    @property
    def gpus(self) -> float:
        """Sum of `parts`."""
        return float(self.parts.sum())

    def places(self) -> list[tuple[int, int]]:
        """GPU and instance of each entry."""
        return list(zip(self.gpu.tolist(), self.instance.tolist(), strict=True))

    def is_at(self, other: Layout) -> bool:
        """True for the same GPUs and instances, in any order."""
        return sorted(self.places()) == sorted(other.places())

    def per_node(self, snapshot: ClusterSnapshot) -> I32:
        """Entries on each node. Shape [nodes]."""
        node = snapshot.gpus.node[self.gpu]
        return np.bincount(node, minlength=len(snapshot.nodes.id)).astype(np.int32)

    def only(self, stays: Bools) -> Layout:
        """These entries only. `stays` [entries]."""
        return Layout(self.gpu[stays], self.instance[stays], self.milli[stays])

    def without(self, entries: Sequence[int]) -> Layout:
        """All entries but these."""
        stays = np.ones(len(self), np.bool_)
        stays[list(entries)] = False
        return self.only(stays)

    def minus(self, other: Layout) -> Layout:
        """The entries with a GPU or instance that `other` lacks."""
        has = set(other.places())
        return self.only(np.array([place not in has for place in self.places()], np.bool_))

    def joined(self, other: Layout) -> Layout:
        """Both layouts as one."""
        return Layout(
            np.concatenate([self.gpu, other.gpu]),
            np.concatenate([self.instance, other.instance]),
            np.concatenate([self.milli, other.milli]),
        )

    def fits_beside(self, gpu_used: NDArray[np.integer], instance_used: NDArray[np.integer]) -> bool:
        """True if the layout is free beside the use in `gpu_used` [gpus] (thousandths) and `instance_used` [instances].

        Places on demand count as free here.
        """
        plain = self.plain
        gpus, cuts = self.gpu[plain], self.instance[~plain & (self.instance < len(instance_used))]
        asked = np.bincount(gpus, self.milli[plain], minlength=len(gpu_used))
        return bool((gpu_used[gpus] + asked[gpus] <= GPU_MILLI).all() and (instance_used[cuts] == 0).all())


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the undo log."""

    kind: str  # place | evict | aside
    workload: int
    layout: Layout
    before: tuple[Bools, Bools, I32] | None = None  # columns of GPUs and nodes, for aside


_UNLIMITED = int(np.iinfo(np.int64).max)
"""CPU or memory of a node that states none: no limit."""


class WhatIf:
    """Capacity books of one snapshot.

    Columns:

    - `gpu_used` [gpus]: thousandths in use. `gpu_ok` [gpus]: healthy, free of errors that bar new work, and with a
      settled geometry. `gpu_usable` [gpus]: such a GPU without MIG, on a ready and open node. `gpu_whole` [gpus]: one
      that is given out whole, because software does not share it.
    - `node_free` [nodes]: usable GPUs without work; `node_cpu`, `node_memory` [nodes]: free milli-CPU and MiB.
    - `instance_gpu`, `instance_profile`, `instance_start`, `instance_used` (thousandths), `instance_alive` [instances].
    - `gpu_cuts`, `gpu_cuts_used` [gpus]: instances, and those in use. `places`: instances on demand; `slices_taken`
      [gpus]: their memory slices given out by planning, as bits.
    """

    def __init__(
        self, snapshot: ClusterSnapshot, open_to_work: tuple[Bools, Bools] | None = None, *, spot_saves: bool = False
    ) -> None:
        """`open_to_work`: nodes and GPUs, where they are known (takes_work.py). `spot_saves`: only work with
        checkpoints may start on spot nodes.
        """
        self.snapshot = snapshot
        self.spot_saves = spot_saves and bool(snapshot.nodes.spot.any())
        nodes, gpus, held = snapshot.nodes, snapshot.gpus, snapshot.placements
        node_ok, gpu_ok = takes_work(nodes, gpus) if open_to_work is None else open_to_work
        self.node_ok = node_ok
        self.suited: dict[tuple[int, tuple[int, ...], int, bool, bytes], Bools] = {}  # see shapes.suited_nodes
        self.gpu_ok: Bools = gpu_ok
        self.gpu_usable: Bools = self.gpu_ok & ~gpus.mig & node_ok[gpus.node]
        self._given_whole = (~divided_mask(nodes))[gpus.node] if nodes.sharing_offers.any() else None
        self.instance_gpu: I32 = snapshot.instances.gpu
        self.instance_profile: I32 = snapshot.instances.profile
        self.instance_start: I32 = snapshot.instances.start
        self.instance_used: I32 = np.zeros(len(snapshot.instances.gpu), np.int32)
        self.instance_alive: Bools = snapshot.instances.profile >= 0  # a destroyed one may keep its row
        self.places = places_of(snapshot)
        self._gpu_of: I32 = np.concatenate([self.instance_gpu, self.places.gpu])
        self.slices_taken: I32 = np.zeros(len(gpus.uuid), np.int32)
        self.gpu_used: I32 = np.zeros(len(gpus.uuid), np.int32)
        plain = held.instance < 0
        np.add.at(self.gpu_used, held.gpu[plain], held.milli[plain])
        np.add.at(self.instance_used, held.instance[~plain], GPU_MILLI)
        in_use = (self.instance_used > 0) & self.instance_alive
        self.gpu_cuts_used = np.bincount(self.instance_gpu[in_use], minlength=len(gpus.uuid))
        alive = self.instance_gpu[self.instance_alive]
        self.gpu_cuts = np.bincount(alive, minlength=len(gpus.uuid))
        self._free: dict[int, I32] = {}  # by profile: rows with all instances that are free, and some that were
        free = self.gpu_whole & (self.gpu_used == 0)
        self.node_free: I32 = np.bincount(gpus.node[free], minlength=len(nodes.id)).astype(np.int32)
        self.node_cpu, self.node_memory = self._free_host_capacity(held.workload, held.node)
        self.layouts: dict[int, Layout] = {}
        self._log: list[Change] = []
        self._stamps = [0]  # of the state after each entry of the log; what is undone is the state of before
        self._last_stamp = 0
        self._order: tuple[I32, list[int]] | None = None
        self._observed: dict[int, Layout] = {}  # what work holds in the snapshot, as far as it was asked for

    def opened(self, *, spot_saves: bool = False) -> WhatIf:
        """Books of one's own, as unchanged as these are. Raises InvariantError where these have been changed."""
        invariant(not self._log, "books that were changed cannot be opened anew")
        own = copy(self)
        vars(own).update({column: getattr(self, column).copy() for column in _CHANGED_IN_PLACE})
        vars(own).update(suited={}, layouts={}, _free={}, _log=[], _stamps=[0])
        own.spot_saves = spot_saves and bool(self.snapshot.nodes.spot.any())
        return own

    def _free_host_capacity(self, workload: I32, node: I32) -> tuple[np.ndarray, np.ndarray]:
        """Milli-CPU and MiB left on each node; the largest int64 for a node without a statement."""
        nodes, work = self.snapshot.nodes, self.snapshot.workloads
        cpu = np.where(nodes.cpu_milli < 0, _UNLIMITED, nodes.cpu_milli)
        memory = np.where(nodes.memory_mib < 0, _UNLIMITED, nodes.memory_mib)
        if len(workload) and bool((work.cpu_milli.any()) or work.memory_mib.any()):
            share = 1.0 / np.maximum(work.gpus_per_member[workload], 1)
            for free, asked in ((cpu, work.cpu_milli), (memory, work.memory_mib)):
                used = np.bincount(node, asked[workload] * share, minlength=len(free)).round().astype(np.int64)
                np.subtract(free, used, out=free, where=free != _UNLIMITED)
        return cpu, memory

    @property
    def gpu_whole(self) -> Bools:
        """Usable GPUs that are given out whole. Shape [gpus]."""
        return self.gpu_usable if self._given_whole is None else self.gpu_usable & self._given_whole

    # --- the books of holders --------------------------------------------------------------

    def layout_of(self, workload: int) -> Layout:
        """The present layout of `workload` (row); empty if it holds nothing."""
        layout = self.layouts.get(workload)
        if layout is None:
            layout = self._observed.get(workload)
        if layout is None:
            layout = self._observed[workload] = self._observed_layout(workload)
        return layout

    def _observed_layout(self, workload: int) -> Layout:
        """The layout of a workload in the snapshot."""
        held = self.snapshot.placements
        if self._order is None:
            order = np.argsort(held.workload, kind="stable").astype(np.int32)
            count = np.bincount(held.workload, minlength=len(self.snapshot.workloads.id))
            self._order = (order, [0, *np.cumsum(count).tolist()])
        order, first = self._order
        rows = order[first[workload] : first[workload + 1]]
        if not len(rows):
            return _NOTHING
        milli = np.where(held.instance[rows] < 0, held.milli[rows], 0).astype(np.int32)
        return Layout(held.gpu[rows], held.instance[rows], milli)

    def fits(self, layout: Layout) -> bool:
        """True if a layout is free and its GPUs are fit for use."""
        plain, made = layout.plain, layout.instance >= self.places.first
        return bool(
            layout.fits_beside(self.gpu_used, self.instance_used)
            and self.gpu_usable[layout.gpu[plain]].all()
            and self.instance_alive[layout.instance[~plain & ~made]].all()
            and self.node_ok[self.snapshot.gpus.node[layout.gpu]].all()
            and (not made.any() or (self.open(layout.instance[made]).all() and self._apart(layout.instance[made])))
        )

    # --- changes ---------------------------------------------------------------------------

    def place(self, workload: int, layout: Layout) -> None:
        """Put a gang without GPUs onto `layout`. Raises InvariantError if it has GPUs or does not fit."""
        invariant(len(self.layout_of(workload)) == 0, f"workload row {workload} already holds GPUs")
        cuts = layout.instance[(layout.instance >= 0) & (layout.instance < self.places.first)]
        invariant(not len(cuts) or bool(self.instance_alive[cuts].all()), "a destroyed instance cannot be used")
        self._apply(workload, layout, +1, GPU_MILLI)
        self.layouts[workload] = layout
        self._note(Change("place", workload, layout))

    def evict(self, workload: int) -> Layout:
        """Take a gang off whole and return its layout. Raises InvariantError if it holds nothing."""
        layout = self.layout_of(workload)
        invariant(len(layout) > 0, f"workload row {workload} holds nothing to evict")
        self._apply(workload, layout, -1)
        self.layouts[workload] = _NOTHING
        self._note(Change("evict", workload, layout))
        return layout

    def move(self, workload: int, layout: Layout) -> Layout:
        """Evict and place in one; returns the old layout. Two entries of the undo log."""
        old = self.evict(workload)
        self.place(workload, layout)
        return old

    def set_aside(self, gpus: I32) -> None:
        """These GPUs (rows) take no new work: their geometry changes or is unknown. Their work goes on."""
        before = (self.gpu_ok, self.gpu_usable, self.node_free)
        free = gpus[self.gpu_whole[gpus] & (self.gpu_used[gpus] == 0)]
        self.gpu_ok, self.gpu_usable, self.node_free = before[0].copy(), before[1].copy(), before[2].copy()
        self.gpu_ok[gpus] = self.gpu_usable[gpus] = False
        self._free.clear()
        np.subtract.at(self.node_free, self.snapshot.gpus.node[free], 1)
        self._note(Change("aside", -1, _NOTHING, before))

    def _apply(self, workload: int, layout: Layout, sign: int, most: int = _UNLIMITED) -> None:
        """Add (+1) or remove (-1) a layout in every column. `most`: limit of use of a GPU or an instance afterwards.

        Restored work has no limit: a source may show more work on a GPU than fits.
        """
        gpu_node = self.snapshot.gpus.node
        cut = layout.instance >= 0
        if not cut.any():
            self._apply_gpus(layout.gpu, layout.milli, sign, gpu_node, most)
        else:
            plain = ~cut
            self._apply_gpus(layout.gpu[plain], layout.milli[plain], sign, gpu_node, most)
            made = layout.instance >= self.places.first
            self._apply_instances(layout.instance[cut & ~made], sign, most)
            if made.any():
                self._apply_places(layout.instance[made], sign)
        work = self.snapshot.workloads
        asked = (int(work.cpu_milli[workload]), int(work.memory_mib[workload]))
        if not any(asked):
            return
        size = max(int(work.gpus_per_member[workload]), 1)
        held = Counter(gpu_node[layout.gpu].tolist())
        nodes, members = list(held), [count / size for count in held.values()]
        for free, each in zip((self.node_cpu, self.node_memory), asked, strict=True):
            if each:
                free[nodes] = [
                    left if left == _UNLIMITED else left - sign * round(count * each)
                    for left, count in zip(free[nodes].tolist(), members, strict=True)
                ]

    def _apply_gpus(self, rows: I32, milli: I32, sign: int, gpu_node: I32, most: int) -> None:
        used, usable = self.gpu_used, self.gpu_whole
        if not len(rows):
            return
        was_free = used[rows] == 0
        np.add.at(used, rows, sign * milli)  # a gang may hold two shares of one GPU
        now = used[rows]
        if now.min() < 0 or now.max() > most:
            np.subtract.at(used, rows, sign * milli)
            invariant(False, "a GPU is allocated beyond its whole")
        changed = rows[(was_free != (now == 0)) & usable[rows]]
        if len(changed):
            if milli.min() < GPU_MILLI:
                changed = np.unique(changed)
            np.subtract.at(self.node_free, gpu_node[changed], sign)

    def _apply_instances(self, rows: I32, sign: int, most: int) -> None:
        np.add.at(self.instance_used, rows, sign * GPU_MILLI)
        now = self.instance_used[rows]
        if ((now < 0) | (now > most)).any():
            np.subtract.at(self.instance_used, rows, sign * GPU_MILLI)
            invariant(False, "a MIG instance is allocated twice")

        for profile in set(self.instance_profile[rows].tolist()) if sign < 0 else ():
            self._free.pop(profile, None)
        turned = (now == 0) if sign < 0 else (now == GPU_MILLI)  # another holder may be on it
        there = rows[self.instance_alive[rows] & turned]
        np.add.at(self.gpu_cuts_used, self.instance_gpu[there], sign)

    def _apply_places(self, rows: I32, sign: int) -> None:
        """Give memory slices out (+1) or back (-1). A GPU without other cuts is in use while any are out."""
        places, at = self.places, rows - self.places.first
        invariant(sign < 0 or self._apart(rows), "memory slices of a GPU are allocated twice")
        gpus = np.unique(places.gpu[at])
        gpus = gpus[~self.snapshot.gpus.mig[gpus]]
        before = self.slices_taken.copy()
        np.bitwise_xor.at(self.slices_taken, places.gpu[at], places.mask[at])
        turned = gpus[(before[gpus] == 0) != (self.slices_taken[gpus] == 0)]
        try:
            whole = np.full(len(turned), GPU_MILLI, np.int32)
            self._apply_gpus(turned, whole, sign, self.snapshot.gpus.node, GPU_MILLI)
        except InvariantError:
            self.slices_taken = before
            raise
        np.add.at(self.gpu_cuts_used, places.gpu[at], sign)

    def _apart(self, rows: I32) -> bool:
        """True if these places share no slice, neither with each other nor with taken ones."""
        at, taken = rows - self.places.first, dict[int, int]()
        for gpu, mask in zip(self.places.gpu[at].tolist(), self.places.mask[at].tolist(), strict=True):
            if mask & taken.setdefault(gpu, int(self.slices_taken[gpu])):
                return False
            taken[gpu] |= mask
        return True

    def open(self, rows: I32) -> Bools:
        """True for each place with room for an instance now, on a fit GPU that is cut already or idle. Shape [rows]."""
        at = rows - self.places.first
        gpu = self.places.gpu[at]
        idle = self.gpu_usable[gpu] & (self.gpu_used[gpu] == 0)
        fit = self.gpu_ok[gpu] & self.node_ok[self.snapshot.gpus.node[gpu]]
        apart = (self.slices_taken[gpu] & self.places.mask[at]) == 0
        return np.asarray(fit & apart & (idle | self.cut(gpu)))

    def cut(self, gpus: I32) -> Bools:
        """True for GPUs in MIG mode, now or by the plan. Shape [gpus]."""
        return np.asarray(self.snapshot.gpus.mig[gpus] | (self.slices_taken[gpus] != 0))

    def gpus_of(self, instances: I32) -> I32:
        """The GPUs (rows) of these instances, made or not. Shape [instances]."""
        return self._gpu_of[instances]

    def instance_id(self, row: int) -> str:
        """The name of an instance in decisions; "" for a GPU itself."""
        if row >= self.places.first:
            return self.places.id_of(self.snapshot, row)
        return str(self.snapshot.instances.id[row]) if row >= 0 else ""

    def usable_instances(self, profile: int) -> I32:
        """Rows of the free instances of a profile (code) on fit GPUs and nodes. One that ends with its claim is never
        free.
        """
        rows = self._free.get(profile)
        if rows is None:
            usable = self.gpu_ok & self.node_ok[self.snapshot.gpus.node] & (self.snapshot.gpus.on_demand < 0)
            alive = self.instance_alive & (self.instance_profile == profile) & usable[self.instance_gpu]
            rows = np.flatnonzero(alive).astype(np.int32)
        rows = self._free[profile] = rows[np.flatnonzero(self.instance_used[rows] == 0)]
        return rows

    def _note(self, change: Change) -> None:
        self._log.append(change)
        self._last_stamp += 1
        self._stamps.append(self._last_stamp)

    # --- keep or undo ----------------------------------------------------------------------

    @property
    def stamp(self) -> int:
        """Names the state of the columns: equal stamps, equal columns, also after a rollback."""
        return self._stamps[-1]

    def checkpoint(self) -> int:
        """A mark to roll back to."""
        return len(self._log)

    def rollback(self, mark: int) -> None:
        """Undo everything since `mark`, newest first."""
        while len(self._log) > mark:
            change = self._log.pop()
            self._stamps.pop()
            if change.kind == "aside":
                assert change.before is not None  # noqa: S101 - such entries always carry it
                self.gpu_ok, self.gpu_usable, self.node_free = change.before
                self._free.clear()
            elif change.kind == "place":
                self._apply(change.workload, change.layout, -1)
                self.layouts[change.workload] = _NOTHING
            else:
                self._apply(change.workload, change.layout, +1)
                self.layouts[change.workload] = change.layout

    def diff(self, mark: int = 0) -> tuple[Change, ...]:
        """Changes since `mark`, oldest first."""
        return tuple(self._log[mark:])


_CHANGED_IN_PLACE = (
    "gpu_used", "instance_used", "slices_taken", "node_free", "node_cpu", "node_memory", "gpu_cuts_used",
)  # fmt: skip
_NOTHING = Layout(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int32))
