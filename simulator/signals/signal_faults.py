"""Faults of signals: one family of input is missing, stands still, or belongs to another entity.

They stand between the simulated cluster and the shipped code: they change the text of exporters before it is parsed,
and the tables before the tick. The cluster itself does not notice them. A fault is one family, one kind, and all nodes
or one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np

from autopilot.core.hardware.dcgm import FIELDS
from autopilot.core.hardware.xid_facts import UNKNOWN_XID
from autopilot.core.model.records import Batch, Inventory, Listing, Work
from autopilot.core.model.snapshot import PlacementTable, WorkloadTable

Text = bytes | None
"""The answer of one exporter; None: it does not answer."""


class Kind(StrEnum):
    """The kind of change to a signal."""

    REMOVED = "removed"
    ZEROED = "zeroed"  # it stands at 0
    FROZEN = "frozen"  # it stays as it was when the fault began
    DOUBLED = "doubled"  # twice the value; an exporter is read twice
    SWAPPED = "swapped"  # that of the next GPU, service or node


@dataclass(frozen=True, slots=True)
class SignalFault:
    """One fault. `one_node`: of the first node alone."""

    family: str
    kind: Kind
    one_node: bool = False
    from_s: float = 0.0
    to_s: float = 0.0

    @property
    def name(self) -> str:
        """As tests and messages name it."""
        return f"{self.family}-{self.kind}{'-one-node' if self.one_node else ''}"


PROFILING = (1001, 1002, 1003, 1004, 1005, 1009, 1010, 1011, 1012)
TEXT_FAMILIES: dict[str, tuple[int, ...]] = {
    "profiling": PROFILING,
    "sm-activity": (1001, 1002, 1003),
    "memory-traffic": (1004, 1005),
    "links": (1009, 1010, 1011, 1012),
    "gpu-util": (203,),
    "all-activity": (*PROFILING, 203),
    "memory-use": (251, 252, 253),
    "power": (155,),
    "exporter": (),
}
"""DCGM fields of each family that exporters print; the family `exporter` is the whole text."""

SERVICE_FAMILIES: dict[str, tuple[str, ...]] = {
    "latencies": ("p99_s", "violation_ratio", "recent_violation_ratio"),
    "rates": ("rate_rps", "recent_rps", "tokens_per_s"),
    "queue-depth": ("queue_depth",),
    "autoscaler": ("load_ratio",),
}
"""Columns of the services in each family."""

_ALL = tuple(Kind)
_PLAIN = (Kind.REMOVED, Kind.FROZEN, Kind.SWAPPED)
KINDS: dict[str, tuple[Kind, ...]] = {
    **dict.fromkeys(TEXT_FAMILIES, _ALL),
    "exporter": (Kind.REMOVED, Kind.FROZEN, Kind.DOUBLED, Kind.SWAPPED),
    **dict.fromkeys(SERVICE_FAMILIES, _ALL),
    "errors": _PLAIN,
    "conditions": _PLAIN,
    "allocatable": (Kind.REMOVED,),
    "pods": _PLAIN,
    "notices": (Kind.REMOVED, Kind.FROZEN, Kind.DOUBLED),
    "checkpoints": (Kind.REMOVED, Kind.FROZEN),
    "lists": (Kind.REMOVED, Kind.FROZEN),
}
"""The kinds of faults that each family can have. A value that is no number cannot be doubled or stand at 0."""

WHOLE = (*SERVICE_FAMILIES, "checkpoints", "lists")
"""Families that belong to no node."""

FAULTS: tuple[SignalFault, ...] = tuple(
    SignalFault(family, kind, one_node)
    for family, kinds in KINDS.items()
    for kind in kinds
    for one_node in ((False,) if family in WHOLE else (False, True))
)
"""Every fault, without its times."""


@dataclass(slots=True)
class SignalFaults:
    """Applies one fault while it lasts."""

    fault: SignalFault
    _texts: dict[tuple[int, str], str] = field(default_factory=dict)  # (node, series) -> value at the begin
    _whole: list[Text] = field(default_factory=list)
    _batch: Batch | None = None

    def active(self, now_s: float) -> bool:
        """True while the fault lasts."""
        return self.fault.from_s <= now_s < self.fault.to_s

    # --- the text of exporters ----------------------------------------------------------------

    def texts(self, at_s: float, given: list[Text]) -> list[Text]:
        """The scraped text of each node, in the order of the nodes."""
        if self.fault.family not in TEXT_FAMILIES or not self.active(at_s):
            return given
        nodes = range(1 if self.fault.one_node else len(given))
        found = list(given)
        for node in nodes:
            other = given[(node + 1) % len(given)]
            found[node] = self._exporter(node, given[node], other, given)
        return found

    def _exporter(self, node: int, text: Text, other: Text, given: list[Text]) -> Text:
        if self.fault.family != "exporter":
            return None if text is None else self._series(node, text, other)
        match self.fault.kind:
            case Kind.REMOVED:
                return None
            case Kind.FROZEN:
                self._whole = self._whole or list(given)
                return self._whole[node]
            case Kind.DOUBLED:
                return None if text is None else text + text
            case _:
                return other

    def _series(self, node: int, text: bytes, other: Text) -> bytes:
        """The text of one exporter with the fault in the series of its family."""
        names = {name for number in TEXT_FAMILIES[self.fault.family] for name in FIELDS[number].names}
        lines = text.decode().splitlines(keepends=True)
        rows = [row for row, line in enumerate(lines) if line[0] != "#" and line.partition("{")[0] in names]
        if self.fault.kind is Kind.REMOVED:
            gone = set(rows)
            return "".join(line for row, line in enumerate(lines) if row not in gone).encode()
        values = [lines[row].rpartition(" ")[2].strip() for row in rows]
        series = [_series_of(lines[row]) for row in rows]
        for row, value in zip(rows, self._values(node, series, values, other), strict=True):
            lines[row] = f"{lines[row].rpartition(' ')[0]} {value}\n"
        return "".join(lines).encode()

    def _values(self, node: int, series: list[str], values: list[str], other: Text) -> list[str]:
        match self.fault.kind:
            case Kind.ZEROED:
                return ["0"] * len(values)
            case Kind.DOUBLED:
                return [f"{2 * float(value):.6f}" for value in values]
            case Kind.FROZEN:
                return [self._texts.setdefault((node, each), v) for each, v in zip(series, values, strict=True)]
            case _:
                found = dict(zip(series, values, strict=True))
                if not self.fault.one_node:
                    known = (line for line in (other or b"").decode().splitlines() if line[:1] != "#")
                    found = {_series_of(line): line.rpartition(" ")[2].strip() for line in known}
                    return [found.get(each, value) for each, value in zip(series, values, strict=True)]
                return [found.get(_next_gpu(each), value) for each, value in zip(series, values, strict=True)]

    # --- tables -------------------------------------------------------------------------------

    def batch(self, given: Batch) -> Batch:
        """The report of the cluster's collector."""
        if self.fault.family in TEXT_FAMILIES or not self.active(given.collected_s):
            return given
        self._batch = self._batch or given
        if self.fault.family == "lists":
            return self._lists(given)
        inventory, work = given.inventory, given.work
        if inventory is not None and self.fault.family in _OF_INVENTORY:
            first = self._batch.inventory or inventory
            nodes = np.arange(len(inventory.nodes.id)) < (1 if self.fault.one_node else len(inventory.nodes.id))
            inventory = _OF_INVENTORY[self.fault.family](self.fault.kind, inventory, first, nodes, given.collected_s)
        if work is not None and self.fault.family not in _OF_INVENTORY:
            work = self._work(work, self._batch.work or work)
        return replace(given, inventory=inventory, work=work)

    def _lists(self, given: Batch) -> Batch:
        if self.fault.kind is Kind.FROZEN and self._batch is not None:
            return self._batch
        missing = Listing(complete=False, reason="no list came")
        return Batch(given.source, given.collected_s, inventory_list=missing, work_list=missing)

    def _work(self, work: Work, first: Work) -> Work:
        if self.fault.family == "pods":
            return replace(work, placements=self._placements(work, first))
        if self.fault.family == "checkpoints":
            return replace(work, workloads=self._checkpoints(work.workloads, first.workloads))
        columns = {}
        for name in SERVICE_FAMILIES[self.fault.family]:
            column, before = getattr(work.services, name), getattr(first.services, name)
            columns[name] = {
                Kind.REMOVED: np.full(len(column), np.nan),
                Kind.ZEROED: np.zeros(len(column)),
                Kind.FROZEN: before if len(before) == len(column) else column,
                Kind.DOUBLED: column * 2.0,
                Kind.SWAPPED: np.roll(column, 1),
            }[self.fault.kind]
        return replace(work, services=replace(work.services, **columns))

    def _placements(self, work: Work, first: Work) -> PlacementTable:
        """The GPUs of the pods: unknown, as at the begin, or those of the neighbours on the node."""
        held = work.placements
        here = held.node < 1 if self.fault.one_node else np.ones(len(held.gpu), np.bool_)
        if self.fault.kind is Kind.REMOVED:
            return replace(held, assumed=held.assumed | here)
        if self.fault.kind is Kind.SWAPPED:
            gpu = held.gpu.copy()
            for node in np.unique(held.node[here]).tolist():
                mine = np.flatnonzero(here & (held.node == node))
                gpu[mine] = np.roll(gpu[mine], 1)
            return replace(held, gpu=gpu)
        was = first.placements
        before: dict[tuple[str, int], list[int]] = {}
        for row, node, gpu_row in zip(was.workload.tolist(), was.node.tolist(), was.gpu.tolist(), strict=True):
            before.setdefault((str(first.workloads.uid[row]), node), []).append(gpu_row)
        gpu, taken = held.gpu.copy(), set[int]()
        for at in np.flatnonzero(here).tolist():
            key = str(work.workloads.uid[held.workload[at]]), int(held.node[at])
            old = [row for row in before.get(key, ()) if row not in taken]
            gpu[at] = old[0] if old else gpu[at]
            taken.update(old[:1])
        return replace(held, gpu=gpu)

    def _checkpoints(self, work: WorkloadTable, first: WorkloadTable) -> WorkloadTable:
        """The last checkpoint of each workload."""
        if self.fault.kind is Kind.REMOVED:
            return replace(work, last_checkpoint_s=np.full(len(work.id), np.nan))
        known = dict(zip(first.uid.tolist(), first.last_checkpoint_s.tolist(), strict=True))
        last_s = [known.get(uid, now) for uid, now in zip(work.uid.tolist(), work.last_checkpoint_s, strict=True)]
        return replace(work, last_checkpoint_s=np.array(last_s, np.float64))


def _series_of(line: str) -> str:
    """Name and GPU number of one series."""
    name, _, labels = line.partition("{")
    number = labels.partition('gpu="')[2].partition('"')[0]
    return f"{name} {number}"


def _next_gpu(series: str) -> str:
    """The same series of the other GPU of a pair."""
    name, _, number = series.rpartition(" ")
    return f"{name} {int(number) ^ 1}"


def _column(kind: Kind, column: Any, first: Any, rows: Any, unknown: object) -> Any:
    """A column of nodes or GPUs with the fault in these rows."""
    other = {Kind.REMOVED: np.full_like(column, unknown), Kind.FROZEN: first}.get(kind, np.roll(column, 1))
    return np.where(rows, other, column)


def _errors(kind: Kind, now: Inventory, first: Inventory, nodes: Any, _now_s: float) -> Inventory:
    rows = nodes[now.gpus.node]
    return replace(now, gpus=replace(now.gpus, xid=_column(kind, now.gpus.xid, first.gpus.xid, rows, UNKNOWN_XID)))


def _conditions(kind: Kind, now: Inventory, first: Inventory, nodes: Any, _now_s: float) -> Inventory:
    ready = _column(kind, now.nodes.ready, first.nodes.ready, nodes, unknown=False)
    return replace(now, nodes=replace(now.nodes, ready=ready))


def _allocatable(kind: Kind, now: Inventory, first: Inventory, nodes: Any, _now_s: float) -> Inventory:
    healthy = _column(kind, now.gpus.healthy, first.gpus.healthy, nodes[now.gpus.node], unknown=False)
    return replace(now, gpus=replace(now.gpus, healthy=healthy))


def _notices(kind: Kind, now: Inventory, first: Inventory, nodes: Any, now_s: float) -> Inventory:
    gone_s = now.nodes.reclaim_at_s
    if kind is Kind.DOUBLED:
        gone_s = np.where(nodes, now_s + 2.0 * (gone_s - now_s), gone_s)
    else:
        gone_s = _column(kind, gone_s, first.nodes.reclaim_at_s, nodes, np.nan)
    return replace(now, nodes=replace(now.nodes, reclaim_at_s=gone_s))


_OF_INVENTORY: dict[str, Callable[[Kind, Inventory, Inventory, Any, float], Inventory]] = {
    "errors": _errors,
    "conditions": _conditions,
    "allocatable": _allocatable,
    "notices": _notices,
}
