"""The true state of a small cluster, and what its owners, nodes and clocks do to it.

`Cluster` is the truth: gangs by name, each with a uid, on GPU rows of `NODES` x `PER_NODE`. Effects arrive through
`carry_out`; an effect may be delayed until later. Time is `true_s`; a controller reads `true_s + skew_s`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from autopilot.core.model.records import Instruction, Slot, Telemetry
from autopilot.core.model.snapshot import GPU_MILLI, ClusterSnapshot, QueueTable, State
from tests.kits.core_world import Item, snapshot_on
from tests.kits.hardware_world import Hardware, hardware
from tests.kits.ticking_world import tenants

NODES, PER_NODE = 4, 4
GPUS = NODES * PER_NODE
TENANTS = ("t0", "t1")
SIGNALS = ("sm_active_ratio", "dram_active_ratio", "tensor_active_ratio")
WINDOWS_S = (60.0, 1800.0)
HOLDING = frozenset({State.STARTING, State.RUNNING, State.CHECKPOINTING})


@cache
def queues(limit: int = -1) -> QueueTable:
    """Two teams below the root; each is guaranteed half of the GPUs, and the second may have a limit."""
    return tenants(("a", 0, GPUS // 2), ("b", 0, GPUS // 2), limit={"b": limit} if limit >= 0 else None)


@dataclass
class Gang:
    """One workload. A gang that is deleted and created again under its name has another uid."""

    name: str
    uid: str
    columns: dict[str, Any]
    state: State = State.PENDING
    on: tuple[int, ...] = ()
    incarnation: int = 0
    hangs: bool = False
    counted: bool = False  # its eviction is counted, and it holds its GPUs still

    def item(self) -> Item:
        """As the builders of tests/kits/core_world.py take it."""
        columns = {**self.columns, "state": self.state, "incarnation": self.incarnation, "uid": self.uid}
        if self.state not in HOLDING:
            columns["start_s"] = np.nan
        return Item(self.name, columns, self.on or None)


@dataclass
class Late:
    """An effect that was accepted and takes place at `at_s`, unless `until_s` is over by then."""

    instruction: Instruction
    at_s: float
    until_s: float


@dataclass
class Cluster:
    """See the module."""

    gangs: dict[str, Gang] = field(default_factory=dict)
    down: set[int] = field(default_factory=set)
    true_s: float = 0.0
    limit: int = -1
    late: list[Late] = field(default_factory=list)
    slow: bool = False  # evictions take until `leave`
    counts_first: bool = False  # slow evictions are counted when they begin, as Kueue does
    made: int = 0
    ended: list[Gang] = field(default_factory=list)  # finished since the last view; shown once more
    deleted: list[str] = field(default_factory=list)  # uids deleted by their owners since the last view
    problems: list[str] = field(default_factory=list)
    stopped: list[tuple[float, str]] = field(default_factory=list)  # (true time, uid) of each eviction that took place

    # --- owners and hardware --------------------------------------------------------------------

    def submit(self, name: str, **columns: Any) -> Gang:
        """Create a workload; its name must be free."""
        self.made += 1
        gang = Gang(name, f"uid-{self.made}", {"submit_s": self.true_s, "gpus_per_member": 1, **columns})
        self.gangs[name] = gang
        return gang

    def finish(self, name: str) -> None:
        """The work ends by itself; it is shown once more, as ended."""
        gang = self.gangs.pop(name)
        gang.state, gang.on = State.SUCCEEDED, ()
        self.ended.append(gang)

    def delete(self, name: str) -> None:
        """Its owner deletes it; the deletion is an event that names the uid."""
        self.deleted.append(self.gangs.pop(name).uid)

    def recreate(self, name: str) -> None:
        """Its owner deletes it and creates another one of the same name and shape."""
        old = self.gangs[name]
        columns = {key: value for key, value in old.columns.items() if key not in {"start_s", "submit_s"}}
        self.delete(name)
        self.submit(name, **columns)

    def lose_node(self, node: int) -> None:
        """A node fails; whatever has a member there is pending again."""
        self.down.add(node)
        for gang in self.gangs.values():
            if any(gpu // PER_NODE == node for gpu in gang.on):
                self._stop(gang)

    def leave(self) -> None:
        """All evicted work has left."""
        for gang in self.gangs.values():
            if gang.state == State.CHECKPOINTING:
                self._stop(gang)

    def pass_time(self, seconds: float) -> None:
        """Time passes; effects that are due by then take place."""
        self.true_s += seconds
        due = sorted((each for each in self.late if each.at_s <= self.true_s), key=lambda each: each.at_s)
        self.late = [each for each in self.late if each.at_s > self.true_s]
        for each in due:
            if each.at_s <= each.until_s:
                self.carry_out(each.instruction)

    def _stop(self, gang: Gang) -> None:
        gang.incarnation += not gang.counted
        gang.state, gang.on, gang.hangs, gang.counted = State.PENDING, (), False, False

    # --- effects --------------------------------------------------------------------------------

    def refusal(self, order: Instruction) -> str:
        """Why the object is not as the instruction expects it; "" when it is."""
        gang = self.gangs.get(order.subject.name)
        if gang is None or gang.uid != order.subject.uid or gang.incarnation != order.subject.revision:
            return "another object"
        if order.kind == "admit" and gang.state != State.PENDING:
            return "not pending"
        if order.kind in {"evict", "resize"} and gang.state != State.RUNNING:
            return "not running"
        if any(gpu // PER_NODE in self.down for gpu in rows_of(order.operation.slots)):
            return "node is down"
        return ""

    def carry_out(self, order: Instruction) -> str:
        """The effect takes place now; why not, or ""."""
        refusal = self.refusal(order)
        if refusal:
            return refusal
        gang = self.gangs[order.subject.name]
        if order.kind == "evict":
            self.stopped.append((self.true_s, gang.uid))
            if self.slow:
                gang.state, gang.counted = State.CHECKPOINTING, self.counts_first
                gang.incarnation += gang.counted
            else:
                self._stop(gang)
            return ""
        rows = rows_of(order.operation.slots)
        taken = {gpu for other in self.gangs.values() if other is not gang for gpu in other.on}
        if not taken.isdisjoint(rows):
            self.problems.append(f"{order.subject.name} starts on GPUs {sorted(taken & set(rows))}, which are in use")
            return "in use"
        if order.kind == "admit":
            if not gang.columns.get("min_gpus", gang.columns["gpus"]) <= len(rows) <= gang.columns["gpus"]:
                self.problems.append(f"{order.subject.name} of {gang.columns['gpus']} GPUs starts on {len(rows)}")
            gang.columns["start_s"] = self.true_s
            gang.state = State.RUNNING
        else:
            gang.incarnation += 1
        gang.on = rows
        return ""

    # --- views ----------------------------------------------------------------------------------

    def view(self, items: Iterable[Item] | None = None) -> ClusterSnapshot:
        """The tables as a truthful collector sees them."""
        shown = [gang.item() for gang in (*self.gangs.values(), *self.ended)] if items is None else list(items)
        return snapshot_on(self.reported(), shown, queues=queues(self.limit), tenants=TENANTS)

    def reported(self) -> Hardware:
        """The hardware as its nodes report it."""
        return _hardware(frozenset(self.down))

    def telemetry(self, *, broken: bool) -> Telemetry:
        """Activity of each GPU over the windows; a broken exporter says zero of all, freshly."""
        active = np.zeros(GPUS, np.float32)
        for gang in self.gangs.values():
            if gang.state == State.RUNNING and not gang.hangs and not broken:
                active[list(gang.on)] = 0.8
        shape = (len(SIGNALS), len(WINDOWS_S), GPUS)
        values = np.broadcast_to(active, shape).astype(np.float32)
        samples = np.broadcast_to(np.array([[2], [60]], np.int32), (len(WINDOWS_S), GPUS)).copy()
        uuids = np.array([f"GPU-{gpu}" for gpu in range(GPUS)], object)
        return Telemetry(
            SIGNALS, WINDOWS_S, uuids, values, values, samples, np.zeros(GPUS, np.float32), np.full(GPUS, 2, np.int8)
        )

    def places(self, gang: Gang) -> set[str]:
        """The GPUs that a gang holds, by UUID."""
        return {f"GPU-{gpu}" for gpu in gang.on}

    def free(self) -> int:
        """Free GPUs on healthy nodes."""
        good = {gpu for gpu in range(GPUS) if gpu // PER_NODE not in self.down}
        return len(good.difference(*(gang.on for gang in self.gangs.values())))


@cache
def _hardware(down: frozenset[int]) -> Hardware:
    ready = [node not in down for node in range(NODES)]
    return hardware(f"{NODES}x{PER_NODE}", nodes={"ready": ready, "spot": [spot(node) for node in range(NODES)]})


def spot(node: int) -> bool:
    """Whether the cloud may take the node: every second one."""
    return node % 2 == 1


def rows_of(slots: Iterable[Slot]) -> tuple[int, ...]:
    """GPU rows that slots name."""
    return tuple(int(slot.gpu.removeprefix("GPU-")) for slot in slots if slot.milli == GPU_MILLI)
