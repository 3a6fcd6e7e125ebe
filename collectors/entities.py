"""GPUs and MIG instances as telemetry sources report them, and code that all sources share.

An entity is a GPU ("<UUID>") or a MIG instance ("<UUID>/<GPU instance id>"). DCGM reports a partitioned GPU only as its
instances, so the board's ratios are derived from theirs; and one reason that holds for a thousand GPUs is one gap, not
a thousand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autopilot.core.hardware import dcgm
from autopilot.core.model.records import Gap
from autopilot.core.model.snapshot import F32, I8, Bools

FB_USED = dcgm.SIGNALS.index("fb_used_mib")
BOARD_ONLY = tuple(
    row for row, name in enumerate(dcgm.SIGNALS) if all(f.level is dcgm.Level.BOARD for f in dcgm.fields_of(name))
)
"""Rows of SIGNALS that no instance has its own value for."""
RATIOS = tuple(row for row, name in enumerate(dcgm.SIGNALS) if name.endswith("_ratio") and row not in BOARD_ONLY)
"""Rows of SIGNALS whose board value follows from those of its instances."""

NODE_LABELS = ("node", "hostname", "Hostname", "instance")
"""Labels that may name the node, the most reliable first."""

PROFILED = tuple(
    number for number, known in dcgm.FIELDS.items() if number == 203 or known.names[0].startswith("DCGM_FI_PROF_")
)
"""Fields of the profiling counters, and GPU_UTIL, which does not stand for them where they contradict it."""

GAPS_NAMED = 20
"""Entities with the same gap that are listed individually; more become one gap with their count."""


@dataclass(slots=True)
class Entities:
    """Columns of entities: identity, parent GPU, and the instance's share of it."""

    ids: list[str] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)  # column of the board; -1 for a board
    weight: list[float] = field(default_factory=list)  # compute slices / those of the board; NaN: unknown
    node: list[str] = field(default_factory=list)
    profile: list[str] = field(default_factory=list)
    columns: dict[str, int] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)  # UUID of a GPU -> its name by the driver
    recut: set[str] = field(default_factory=set)  # ids that came back with another profile

    def board(self, uuid: str, node: str = "") -> int:
        """Column of a GPU."""
        return self._add(uuid, -1, float("nan"), node, "")

    def instance(self, uuid: str, gi_id: str, profile: str, model: str, node: str = "") -> int:
        """Column of a MIG instance (and of its GPU). An id that returns with another profile is re-cut."""
        slices = dcgm.profile_slices(profile)
        weight = slices / dcgm.board_slices(model) if slices else float("nan")
        column = self._add(dcgm.entity_id(uuid, gi_id), self.board(uuid, node), weight, node, profile)
        if profile and self.profile[column] != profile:
            if self.profile[column]:
                self.recut.add(self.ids[column])
            self.profile[column], self.weight[column] = profile, weight
        return column

    def _add(self, entity: str, parent: int, weight: float, node: str, profile: str) -> int:
        column = self.columns.get(entity)
        if column is None:
            column = self.columns[entity] = len(self.ids)
            self.ids.append(entity)
            self.parent.append(parent)
            self.weight.append(weight)
            self.node.append(node)
            self.profile.append(profile)
        elif node:
            self.node[column] = node
        return column


def activity(by_quality: Sequence[tuple[dcgm.Quality, NDArray[np.floating[Any]]]]) -> tuple[F32, I8]:
    """SM activity and its quality from the available counters, best first. Each array [entities]."""
    size = len(by_quality[0][1])
    values, quality = np.full(size, np.nan, np.float32), np.zeros(size, np.int8)
    for grade, given in by_quality:
        taken = np.isnan(values) & ~np.isnan(given)
        values[taken] = given[taken]
        quality[taken] = grade
    return values, quality


def dead_counters(fields: Mapping[int, NDArray[np.floating[Any]]], nodes: Sequence[str]) -> Bools:
    """Entities whose profiling counters stand at 0 while GPU_UTIL shows running kernels, on them or beside them.

    One service reads the counters of all GPUs of a node. If more of them fail than work, the zeros of the others are
    unknown too. `fields`: values by DCGM field id, each [entities], NaN for unknown, of one time or means of one
    window. `nodes`: the node of each entity, "" for unknown. The activity of these entities is unknown.
    """
    unknown = np.full(len(next(iter(fields.values()))), np.nan)
    sm, engine, tensor, dram, util = (fields.get(number, unknown) for number in (1002, 1001, 1004, 1005, 203))
    with np.errstate(invalid="ignore"):
        active = np.where(np.isnan(sm), engine, sm)
        silent = ~(tensor > 0.01) & ~(dram > 0.01)
        dead = np.asarray(silent & (active < util / dcgm.MOST_SMS) & (util >= dcgm.KERNELS_RATIO))
        if dead.any():
            _, group = np.unique(np.array(nodes, str), return_inverse=True)
            fails = np.bincount(group, dead) > np.bincount(group, active > 0.01)
            dead |= silent & (active == 0.0) & fails[group]
    return dead


def fill_boards(values: F32, quality: I8, entities: Entities, present: Bools) -> None:
    """Derive the values of each board that is reported only as instances.

    `values` [signals, entities] and `quality` [entities] are changed in place; `present` [entities] marks the entities
    of this observation. Ratios are weighted by compute slices, memory is summed. One present instance of unknown value
    or share makes the board's value unknown; slices without an instance do no work and count as zero.
    """
    parent = np.array(entities.parent, np.intp)
    rows = np.flatnonzero((parent >= 0) & present)
    if not len(rows):
        return
    size, owner = len(parent), parent[rows]
    weight = np.array(entities.weight)[rows]
    cut = np.bincount(owner, minlength=size) > 0
    for row in (*RATIOS, FB_USED):
        part = values[row, rows] * (1.0 if row == FB_USED else weight)
        whole = np.bincount(owner, weights=part, minlength=size)
        if row in RATIOS:
            whole = np.minimum(whole, 1.0)
        missing = cut & np.isnan(values[row])
        if row == 0:
            graded = np.full(size, int(dcgm.Quality.SM_ACTIVE), np.int8)
            np.minimum.at(graded, owner, quality[rows])
            quality[missing] = np.where(np.isnan(whole), dcgm.Quality.NONE, graded)[missing]
        values[row, missing] = whole[missing]


def gaps_of(source: str, signal: str, reason: str, entity_ids: Sequence[str]) -> list[Gap]:
    """One gap per entity, or one for all when they are many."""
    if len(entity_ids) <= GAPS_NAMED:
        return [Gap(source, entity, signal, reason) for entity in entity_ids]
    return [Gap(source, "", signal, f"{reason}, on {len(entity_ids)} entities, the first {entity_ids[0]}")]


def missing_gaps(source: str, entity_ids: Sequence[str], values: F32, reason: str) -> list[Gap]:
    """A gap for each missing signal of an entity. `values` [signals, entities]."""
    is_instance = np.array(["/" in entity for entity in entity_ids], bool)
    found: list[Gap] = []
    for row, signal in enumerate(dcgm.SIGNALS):
        lacking = np.isnan(values[row]) & (signal not in dcgm.OPTIONAL)
        if row in BOARD_ONLY:
            lacking &= ~is_instance
        if lacking.any():
            names = " or ".join(f.names[0] for f in dcgm.fields_of(signal))
            if lacking.all():
                found.append(Gap(source, "", signal, f"{reason}: {names}, on every GPU"))
            else:
                named = [entity_ids[int(column)] for column in np.flatnonzero(lacking)]
                found.extend(gaps_of(source, signal, f"{reason}: {names}", named))
    return found
