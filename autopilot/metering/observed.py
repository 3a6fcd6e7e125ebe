"""The amounts of the time between two ticks: held GPU time by owner, and the rest of the capacity by kind.

Activity and power are the means of the shortest window over the whole time between the ticks. Time outside the windows
is not measured: it counts as held, never as idle or active.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from autopilot.core.intake.usage.parts import FINE, GPU_UNITS, Parts, activity, attributed, gathered, plausible
from autopilot.core.intake.usage.rollup import usable_gpus
from autopilot.core.model.signal_table import SignalTable
from autopilot.core.model.snapshot import F64, I64, SLO_CLASS_NAMES, TOPOLOGY_NAMES, ClusterSnapshot
from autopilot.core.model.work import whole_gpus
from autopilot.metering.amounts import (
    ACTIVE,
    BORROWED,
    COUNTED,
    ENERGY,
    GFLOP,
    GFLOP_TIME,
    GPU_TIME,
    LOST,
    MEASURED,
    POWERED,
    SAVED,
    TICKS_PER_S,
    UNMEASURED_LOSSES,
    Kind,
    no_amounts,
    to_ticks,
)
from autopilot.metering.holdings import Held, Seen, held_between, moved, rows_in

Amounts = dict[tuple[str, ...], list[int]]
"""Amounts by owner (`amounts.KEYS`)."""
MJ_PER_TICK = 1000.0 / TICKS_PER_S
"""Millijoules of one watt in 1/1,024 s."""


@dataclass(frozen=True, slots=True)
class Extra:
    """Optional input of metering beside the observation."""

    counted_w: Mapping[str, float] = field(default_factory=dict)  # by UUID: mean power since the last tick, by counter
    flops: Mapping[str, float] = field(default_factory=dict)  # by uid: reported operations per second
    labels: Mapping[str, str] = field(default_factory=dict)  # by uid: its metered labels, as a JSON object


NOTHING = Extra()


@dataclass(frozen=True, slots=True)
class Groups:
    """The parts of one `Held`, by owner: `order` sorts them, `first` are the starts of the groups."""

    held: Held
    order: I64
    first: I64
    keys: list[tuple[str, ...]]
    start: I64  # of the workload of each group, in 1/1,024 s


def between(before: Seen, now: Seen, edges: list[int], extra: Extra = NOTHING) -> list[Amounts]:
    """The amounts of each span between consecutive `edges`, from `before.at` to `now.at`.

    If one of the ticks did not see the whole cluster, all of it is a gap.
    """
    spans = list(pairwise(edges))
    if not (before.trusted and now.trusted):
        return gap_of(before, edges, "the view was not complete")
    groups = [_grouped(held, extra) for held in held_between(before, now) if len(held.parts.workload)]
    readings = [_Reading(each.held, now, extra) for each in groups]
    capacity = _Capacity(before, now, extra)
    found = []
    for begin, end in spans:
        amounts: Amounts = {}
        for each, reading in zip(groups, readings, strict=True):
            _add_held(amounts, each, reading, begin, end)
        _add_borrowed(amounts, groups, now.snapshot, begin, end)
        capacity.add(amounts, groups, begin, end)
        _add_reserved(amounts, now.snapshot, end - begin)
        found.append(amounts)
    add_stops(found[-1], before, now, extra)
    return found


def gap_of(before: Seen, edges: list[int], reason: str) -> list[Amounts]:
    """Each span between consecutive `edges` as a gap of the last known capacity."""
    return [_gap(before.inventory, end - begin, reason) for begin, end in pairwise(edges)]


# --- held -----------------------------------------------------------------------------------------


def _grouped(held: Held, extra: Extra = NOTHING) -> Groups:
    """The owners of the parts: workload, pool, GPU model and MIG profile."""
    snapshot, parts = held.snapshot, held.parts
    nodes, names, work = snapshot.nodes, snapshot.names, snapshot.workloads
    node = snapshot.gpus.node[parts.gpu]
    gpus = len(snapshot.gpus.uuid)
    profile = np.full(len(parts.gpu), -1, np.int64)
    inside = parts.instance
    profile[inside] = snapshot.instances.profile[parts.entity[inside] - gpus]
    columns = np.stack([parts.workload, nodes.pool[node], nodes.gpu_model[node], profile]).astype(np.int64)
    order = np.lexsort(columns[::-1])
    ordered = columns[:, order]
    first = np.flatnonzero(np.append(True, (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)))
    rows = ordered[:, first].T.tolist()
    keys = [
        _owner(
            snapshot,
            held.uids,
            row,
            _name(names.gpu_models, model),
            _name(names.profiles, cut),
            _name(names.pools, pool),
            extra,
        )
        for row, pool, model, cut in rows
    ]
    start = np.array([work.start_s[row] for row, *_ in rows])
    known = np.where(np.isfinite(start), np.rint(np.nan_to_num(start) * TICKS_PER_S), 0).astype(np.int64)
    return Groups(held, order, first, keys, known)


def _owner(
    snapshot: ClusterSnapshot, uids: Sequence[str], row: int, model: str, profile: str, pool: str, extra: Extra
) -> tuple[str, ...]:
    """The owner of one workload's holdings, as `amounts.KEYS`."""
    work, tenants = snapshot.workloads, snapshot.names.tenants
    tenant, queue = int(work.tenant[row]), int(work.queue[row])
    return (
        str(Kind.HELD),
        tenants[tenant] if 0 <= tenant < len(tenants) else "",
        str(snapshot.queues.id[queue]) if 0 <= queue < len(snapshot.queues.id) else "",
        str(work.id[row]),
        uids[row],
        model,
        profile,
        SLO_CLASS_NAMES[work.slo_class[row]],
        pool,
        TOPOLOGY_NAMES[work.topology[row]],
        str(work.user[row]),
        extra.labels.get(uids[row], ""),
        "",
    )


def _name(names: tuple[str, ...], code: int) -> str:
    return names[code] if 0 <= code < len(names) else ""


class _Reading:
    """Telemetry of the later tick for each part."""

    def __init__(self, held: Held, now: Seen, extra: Extra) -> None:
        snapshot = now.snapshot
        parts = held.parts if held.snapshot is snapshot else moved(held.parts, rows_in(held.snapshot, snapshot))
        parts = attributed(parts)
        window, self.power_since = _window(snapshot.telemetry, now.at, int(held.begin.min()))
        self.power_w, self.counted = _power(snapshot, parts, window, extra)
        self.measured, self.steps = np.zeros(len(parts.units), np.int64), np.zeros(len(parts.units), np.int64)
        chosen, self.since = _own_windows(snapshot.telemetry, held, now.at)
        for each in np.unique(chosen[chosen >= 0]).tolist():
            mine = chosen == each
            some = Parts(*(getattr(parts, name)[mine] for name in Parts.__slots__))
            measured, steps = activity(snapshot.telemetry, some, slice(each, each + 1))
            self.measured[mine], self.steps[mine] = measured[0], steps[0]
        self.flops = [extra.flops.get(uid, -1.0) for uid in held.uids] if extra.flops else []


def _own_windows(telemetry: SignalTable, held: Held, now: int) -> tuple[I64, I64]:
    """(window, its first moment) of each part; -1 if none shows this work alone.

    A window from before the start of the work shows the GPU of another. Of the others the longest one within the time
    since the earlier tick is used: longer ones would count the beginning of a stay more often than its end. The
    shortest window may overlap the one before it.
    """
    chosen, since = np.full(len(held.begin), -1, np.int64), np.full(len(held.begin), now, np.int64)
    work = held.snapshot.workloads
    start_s = work.start_s[held.parts.workload]
    started = np.where(np.isfinite(start_s), np.rint(np.nan_to_num(start_s) * TICKS_PER_S), held.begin).astype(np.int64)
    started = np.minimum(started, held.begin)
    for place, window in enumerate(np.argsort(telemetry.windows_s).tolist()):
        width = to_ticks(telemetry.windows_s[window])
        mine = (started <= now - width) & (held.end == now) & ((width <= now - held.begin) | (place == 0))
        chosen[mine], since[mine] = window, now - width
    return chosen, since


def _window(telemetry: SignalTable, end: int, begin: int) -> tuple[int, int]:
    """(window, its first moment): the shortest one over the whole time, else the longest; -1 for none."""
    if not telemetry.windows_s:
        return -1, end
    widths = [to_ticks(width_s) for width_s in telemetry.windows_s]
    enough = [width for width in widths if width >= end - begin]
    width = min(enough) if enough else max(widths)
    return widths.index(width), end - width


def _power(snapshot: ClusterSnapshot, parts: Parts, window: int, extra: Extra) -> tuple[F64, np.ndarray]:
    """Watts of the whole GPU of each part, NaN if unknown, and the mask of those from the energy counter."""
    telemetry = snapshot.telemetry
    power = np.full(len(parts.gpu), np.nan)
    if window >= 0 and "power_w" in telemetry.signals:
        values = gathered(telemetry.means("power_w")[window], "power_w", parts)
        power = np.where(plausible("power_w", values), values, np.nan).astype(np.float64)
    counted = np.zeros(len(parts.gpu), np.bool_)
    if extra.counted_w:
        by_row = np.array([extra.counted_w.get(uuid, np.nan) for uuid in snapshot.gpus.uuid.tolist()])
        there = parts.gpu < len(by_row)
        values = np.where(there, by_row[np.where(there, parts.gpu, 0)], np.nan)
        counted = np.isfinite(values)
        power = np.where(counted, values, power)
    return power, counted


def _overlap(held: Held, begin: int, end: int) -> I64:
    """Time of holding of each part between two moments (1/1,024 s)."""
    return np.asarray(np.maximum(np.minimum(held.end, end) - np.maximum(held.begin, begin), 0))


def _add_held(amounts: Amounts, groups: Groups, reading: _Reading, begin: int, end: int) -> None:
    """The amounts of one span by owner."""
    held, units = groups.held, groups.held.parts.units
    shares = ~held.parts.instance & (units < GPU_UNITS) & whole_gpus(held.snapshot.workloads)[held.parts.workload]
    long = _overlap(held, begin, end)
    seen = np.maximum(np.minimum(held.end, end) - np.maximum(np.maximum(held.begin, begin), reading.since), 0)
    known = np.where(reading.counted, long, _overlap(held, max(begin, reading.power_since), end))
    active = (reading.steps // FINE) * seen + (reading.steps % FINE) * seen // FINE
    powered = np.isfinite(reading.power_w)
    energy = np.rint(np.nan_to_num(reading.power_w) * (units / GPU_UNITS) * known * MJ_PER_TICK).astype(np.int64)
    columns = np.stack(
        [
            units * long,
            reading.measured * seen,
            active,
            energy,
            np.where(powered, units * known, 0),
            np.where(reading.counted, units * long, 0),
            np.where(shares, (GPU_UNITS - units) * long, 0),
        ]
    )
    sums = np.add.reduceat(columns[:, groups.order], groups.first, axis=1).T.tolist()
    rows = held.parts.workload[groups.order][groups.first].tolist() if reading.flops else []
    for at, (key, total) in enumerate(zip(groups.keys, sums, strict=True)):
        if not total[0]:
            continue
        into = amounts.setdefault(key, no_amounts())
        for place, value in zip((GPU_TIME, MEASURED, ACTIVE, ENERGY, POWERED, COUNTED, SAVED), total, strict=True):
            into[place] += value
        if rows and reading.flops[rows[at]] >= 0:
            _add_flops(into, held, rows[at], reading.flops[rows[at]], total[0], begin, end)


def _add_flops(into: list[int], held: Held, row: int, flops: float, gpu_time: int, begin: int, end: int) -> None:
    """Operations reported by a workload, divided among its groups by their GPU time."""
    mine = held.parts.workload == row
    whole = int((held.parts.units[mine] * _overlap(held, begin, end)[mine]).sum())
    long = int(_overlap(held, begin, end)[mine].max())
    into[GFLOP] += round(flops / 1e9 * long / TICKS_PER_S * (gpu_time / whole))
    into[GFLOP_TIME] += gpu_time


def _add_borrowed(amounts: Amounts, groups: list[Groups], snapshot: ClusterSnapshot, begin: int, end: int) -> None:
    """Holdings of a queue's work beyond its guarantee; the latest started work has borrowed."""
    own, names = _own_guarantees(snapshot), snapshot.names.gpu_models
    guarantee = {
        (queue, model): int(own[row, code]) * GPU_UNITS * (end - begin)
        for row, queue in enumerate(snapshot.queues.id.tolist())
        for code, model in enumerate(names[: own.shape[1]])
    }
    owners: dict[tuple[str, str], list[tuple[int, str, tuple[str, ...]]]] = {}
    for each in groups:
        for key, start in zip(each.keys, each.start.tolist(), strict=True):
            if key in amounts:
                owners.setdefault((key[2], key[5]), []).append((start, key[4], key))
    for place, rows in owners.items():
        left = guarantee.get(place, 0)
        for _, _, key in sorted(set(rows)):
            mine = amounts[key][GPU_TIME]
            amounts[key][BORROWED] = max(mine - left, 0)
            left = max(left - mine, 0)


def _own_guarantees(snapshot: ClusterSnapshot) -> I64:
    """The guarantee of each queue by GPU model, without those of the queues below it."""
    queues = snapshot.queues
    own = queues.guarantee.astype(np.int64).copy()
    for row, parent in enumerate(queues.parent.tolist()):
        if parent > 0:
            own[parent] -= queues.guarantee[row]
    return np.maximum(own, 0)


def _add_reserved(amounts: Amounts, snapshot: ClusterSnapshot, long: int) -> None:
    """The own guarantee of each queue."""
    queues, names, own = snapshot.queues, snapshot.names, _own_guarantees(snapshot)
    for row, code in np.argwhere(own > 0).tolist():
        queue = str(queues.id[row])
        tenant = queue if queue in names.tenants else ""
        key = (str(Kind.RESERVED), tenant, queue, "", "", names.gpu_models[code], *[""] * 7)
        amounts.setdefault(key, no_amounts())[GPU_TIME] += int(own[row, code]) * GPU_UNITS * long


def add_stops(amounts: Amounts, before: Seen, now: Seen, extra: Extra = NOTHING) -> None:
    """Lost progress of work stopped between two ticks: its incarnation is a later one."""
    rows = {uid: row for row, uid in enumerate(now.uids)}
    work, was = now.snapshot.workloads, before.snapshot.workloads
    stopped = [
        (row, rows[uid])
        for row, uid in enumerate(before.uids)
        if uid in rows and work.incarnation[rows[uid]] > was.incarnation[row]
    ]
    if not stopped:
        return
    keys = _owners(before, [row for row, _ in stopped], extra)
    for row, place in stopped:
        into = amounts.setdefault(keys[row], no_amounts())
        lost_gpu_s = float(work.lost_gpu_s[place])
        if np.isfinite(lost_gpu_s):
            into[LOST] += to_ticks(lost_gpu_s) * GPU_UNITS
        else:
            into[UNMEASURED_LOSSES] += 1


def _owners(before: Seen, rows: list[int], extra: Extra) -> dict[int, tuple[str, ...]]:
    """The owner of each row's first part; without pool and GPU model for work not shown on its GPUs by any tick."""
    mine = np.isin(before.parts.workload, rows)
    parts = Parts(*(getattr(before.parts, name)[mine] for name in Parts.__slots__))
    none = np.zeros(len(parts.workload), np.int64)
    keys: dict[int, tuple[str, ...]] = {}
    if len(none):
        groups = _grouped(Held(before.snapshot, before.uids, parts, none, none), extra)
        for row, key in zip(parts.workload[groups.order][groups.first].tolist(), groups.keys, strict=True):
            keys.setdefault(row, key)
    for row in rows:
        if row not in keys:
            keys[row] = _owner(before.snapshot, before.uids, row, "", "", "", extra)
    return keys


# --- the rest of the capacity ---------------------------------------------------------------------


class _Capacity:
    """Every GPU of the earlier tick, and its part held by no workload."""

    def __init__(self, before: Seen, now: Seen, extra: Extra) -> None:
        self._before, snapshot = before, before.snapshot
        gpus = len(snapshot.gpus.uuid)
        self._usable = usable_gpus(snapshot)
        node = snapshot.gpus.node
        columns = np.stack([snapshot.nodes.pool[node], snapshot.nodes.gpu_model[node]])
        self._kinds, self._kind = np.unique(columns, axis=1, return_inverse=True)
        self._kind = self._kind.ravel()
        whole = np.arange(gpus, dtype=np.int32)
        none = np.zeros(gpus, np.bool_)
        parts = Parts(whole, whole, whole, np.full(gpus, GPU_UNITS, np.int64), none, none, none)
        rows = rows_in(snapshot, now.snapshot)
        window, _ = _window(now.snapshot.telemetry, now.at, before.at)
        self._power_w, self._counted = _power(now.snapshot, moved(parts, rows), window, extra)

    def add(self, amounts: Amounts, groups: list[Groups], begin: int, end: int) -> None:
        """Capacity, idle, fragmented and out of use, by pool and GPU model."""
        snapshot, long = self._before.snapshot, end - begin
        free = np.full(len(self._kind), GPU_UNITS * long, np.int64)
        for each in groups:
            rows = None if each.held.snapshot is snapshot else rows_in(each.held.snapshot, snapshot)
            gpu = moved(each.held.parts, rows).gpu
            there = gpu < len(free)
            np.subtract.at(free, gpu[there], (each.held.parts.units * _overlap(each.held, begin, end))[there])
        free = np.maximum(free, 0)
        powered = np.isfinite(self._power_w)
        energy = np.rint(np.nan_to_num(self._power_w) * (free / GPU_UNITS) * MJ_PER_TICK).astype(np.int64)
        columns = np.stack([free, energy, np.where(powered, free, 0), np.where(self._counted, free, 0)])
        count = self._kinds.shape[1]
        whole = np.bincount(self._kind, minlength=count).tolist()
        idle, unusable = (_by_kind(columns, self._kind, count, mask) for mask in (self._usable, ~self._usable))
        fragmented = self._fragmented([each[0] for each in idle], long)
        for at, (pool, model) in enumerate(self._kinds.T.tolist()):
            place = _place(snapshot, pool, model)
            amounts.setdefault(_key(Kind.CAPACITY, place), no_amounts())[GPU_TIME] += whole[at] * GPU_UNITS * long
            _add_free(amounts, _key(Kind.OUT_OF_USE, place), unusable[at])
            part = fragmented[at]
            lost = [part, *(value * part // max(idle[at][0], 1) for value in idle[at][1:])]
            _add_free(amounts, _key(Kind.FRAGMENTED, place), lost)
            rest = [value - taken for value, taken in zip(idle[at], lost, strict=True)]
            _add_free(amounts, _key(Kind.IDLE, place), rest)

    def _fragmented(self, idle: list[int], long: int) -> list[int]:
        """The part of the idle time out of reach for pending work, divided in proportion; exact in total."""
        stranded, total = self._before.stranded_gpus, sum(idle)
        if not np.isfinite(stranded) or stranded <= 0 or not total:
            return [0] * len(idle)
        whole = min(round(stranded * GPU_UNITS) * long, total)
        sums = np.cumsum([0, *idle]).tolist()
        edges = [each * whole // total for each in sums]
        return [after - before for before, after in pairwise(edges)]


def _by_kind(columns: I64, kind: I64, count: int, mask: np.ndarray) -> list[list[int]]:
    """Exact sums of each column by pool and GPU model."""
    sums = np.zeros((count, len(columns)), np.int64)
    np.add.at(sums, kind[mask], columns[:, mask].T)
    return [[int(value) for value in row] for row in sums]


def _add_free(amounts: Amounts, key: tuple[str, ...], values: list[int]) -> None:
    """Add GPU time and energy of free capacity; nothing if there is none."""
    if values[0]:
        into = amounts.setdefault(key, no_amounts())
        for place, value in zip((GPU_TIME, ENERGY, POWERED, COUNTED), values, strict=True):
            into[place] += value


def _gap(snapshot: ClusterSnapshot, long: int, reason: str) -> Amounts:
    """All capacity of a span as not observed."""
    amounts: Amounts = {}
    for (pool, model), gpus in _counts(snapshot):
        place = _place(snapshot, pool, model)
        for kind, why in ((Kind.CAPACITY, ""), (Kind.GAP, reason)):
            amounts.setdefault(_key(kind, place, why), no_amounts())[GPU_TIME] += gpus * GPU_UNITS * long
    return amounts


def _counts(snapshot: ClusterSnapshot) -> Iterator[tuple[tuple[int, int], int]]:
    """GPUs by pool and model."""
    node = snapshot.gpus.node
    columns = np.stack([snapshot.nodes.pool[node], snapshot.nodes.gpu_model[node]])
    kinds, counts = np.unique(columns, axis=1, return_counts=True)
    yield from (((pool, model), gpus) for (pool, model), gpus in zip(kinds.T.tolist(), counts.tolist(), strict=True))


def _place(snapshot: ClusterSnapshot, pool: int, model: int) -> tuple[str, str]:
    return _name(snapshot.names.gpu_models, model), _name(snapshot.names.pools, pool)


def _key(kind: Kind, place: tuple[str, str], reason: str = "") -> tuple[str, ...]:
    model, pool = place
    return (str(kind), "", "", "", "", model, "", "", pool, "", "", "", reason)
