"""Measured use in words and as plain values: of one workload, and of the fleet, its pools and its tenants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from math import isfinite, isnan
from typing import Any

import numpy as np

from autopilot.core.hardware.dcgm import Quality
from autopilot.core.intake.usage.contradiction import contradicted
from autopilot.core.intake.usage.parts import parts_of
from autopilot.core.intake.usage.plausibility import DOUBTS, doubts
from autopilot.core.intake.usage.rollup import WITH_WORKLOADS, Ratios, Rollup, ratios, rollups, strays
from autopilot.core.intake.usage.table import UsageTable, usage_of
from autopilot.core.model.codes import Code
from autopilot.core.model.records import Observation
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.model.units import counted, format_duration, format_ratio

SHOWN_WINDOW_S = 300.0
"""The window of tables of groups, and of the utilizations in the record."""

MOST_STRAYS = 5

MOST_GROUPS, MOST_WORKLOADS = 12, 5
"""Groups of a level, and workloads, in one table; the rest is in the JSON."""

ROOT = 0
"""Row of the root of the queue tree: the fleet."""

_HEAD = ["", "GPUs", "held", "allocation", "hardware", "real", "gap GPUs", "measured"]

HEADS = {
    "sm_active_ratio": "SM",
    "sm_occupancy_ratio": "occupancy",
    "tensor_active_ratio": "tensor",
    "dram_active_ratio": "DRAM",
    "nvlink_bytes_s": "NVLink",
    "pcie_bytes_s": "PCIe",
    "fb_used_mib": "memory",
    "power_w": "power",
    "energy_j": "energy",
}
COUNTERS = {
    Quality.NONE: "nothing",
    Quality.GPU_UTIL: "GPU_UTIL (some kernel ran)",
    Quality.GR_ENGINE: "GR_ENGINE_ACTIVE (engine busy)",
    Quality.SM_ACTIVE: "SM_ACTIVE",
}


_RATES = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))


def format_signal(signal: str, value: float) -> str:
    """A signal with its unit: `61.2 %`, `1.8 GB/s`, `12.5 GiB`, `420 W`, `0.12 kWh`; `-` if unknown."""
    if isnan(value):
        return "-"
    if signal.endswith("_ratio"):
        return format_ratio(value)
    if signal.endswith("_bytes_s"):
        size, unit = next((step for step in _RATES if value >= step[0]), (1.0, "B/s"))
        return f"{value / size:.1f} {unit}"
    if signal.endswith("_mib"):
        return f"{value / 1024:.1f} GiB"
    if signal.endswith("_j"):
        return f"{value / 3.6e6:.2f} kWh" if value >= 3.6e5 else f"{value / 1e3:.1f} kJ"
    return f"{value:,.0f} W"


# --- one workload -----------------------------------------------------------------------------------


def workload_use(workload: str, observation: Observation) -> tuple[list[str], dict[str, Any] | None]:
    """The measured use of a workload over all windows, as lines and as plain values; none if it holds no GPUs."""
    snapshot = observation.snapshot
    found = np.flatnonzero(snapshot.workloads.id == workload)
    use = usage_of(snapshot, observation.now_s)
    if not len(found) or not use.held_units[found[0]]:
        return [], None
    row = int(found[0])
    entities = _entities(observation, row)
    doubted = doubts(snapshot, parts_of(snapshot), contradicted(snapshot), float("inf"))
    codes = [DOUBTS[code] for code in np.unique(doubted[entities]).tolist()]
    in_doubt = tuple(code.value for code in codes if code is not Code.OK)
    groups = _groups_of(snapshot, row)
    lines = _lines(use, row)
    if isfinite(use.age_s[row]):
        lines += [*_group_table(groups), *(f"its telemetry is in doubt: {code}" for code in in_doubt)]
    document = _document(use, row, in_doubt)
    rows = [each for groups_of, at in groups for w in groups_of.windows_s for each in _leveled(groups_of, w, at)]
    return lines, document | {"levels": rows}


def _groups_of(snapshot: ClusterSnapshot, row: int) -> list[tuple[Rollup, tuple[int, ...]]]:
    """The groups of a workload by level: itself, its service, tenant, queues, pools, and the fleet."""
    found, work, queue = rollups(snapshot, WITH_WORKLOADS), snapshot.workloads, int(snapshot.workloads.queue[row])
    queues = []
    while queue > ROOT:  # the root is the fleet
        queues.append(queue)
        queue = int(snapshot.queues.parent[queue])
    nodes = snapshot.placements.node[snapshot.placements.workload == row]
    pools = tuple(sorted(set(snapshot.nodes.pool[nodes].tolist())))
    service, tenant = int(work.service[row]), int(work.tenant[row])
    places = {
        "workload": (row,),
        "service": (service,) if service >= 0 else (),
        "tenant": (tenant,) if tenant >= 0 else (),
        "queue": tuple(queues),
        "pool": tuple(pool for pool in pools if pool >= 0),
        "fleet": (0,),
    }
    return [(found[level], at) for level, at in places.items()]


def _group_table(groups: Sequence[tuple[Rollup, tuple[int, ...]]]) -> list[str]:
    """The utilizations of a workload and of its groups, over the shown window."""
    if SHOWN_WINDOW_S not in groups[0][0].windows_s:
        return []
    table, measured_ratio = [_HEAD], 1.0
    for level, at in groups:
        values = ratios(level, SHOWN_WINDOW_S)
        table += [_row(level, values, row) for row in at]
        measured_ratio = float(np.nanmin([measured_ratio, *values.measured_ratio[list(at)]]))
    return [
        f"utilization over {format_duration(SHOWN_WINDOW_S)}:",
        *(f"  {line}" for line in aligned(table)),
        *covered_lines(measured_ratio),
    ]


def _leveled(level: Rollup, window_s: float, groups: Iterable[int]) -> list[dict[str, Any]]:
    return [{"level": level.level} | each for each in _rows(level, window_s, groups)]


def _entities(observation: Observation, row: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Telemetry rows of one workload's entities."""
    held = observation.snapshot.placements
    at = np.flatnonzero(held.workload == row)
    gpus = len(observation.snapshot.gpus.uuid)
    return np.where(held.instance[at] < 0, held.gpu[at], gpus + held.instance[at]).astype(np.int64)


def _lines(use: UsageTable, row: int) -> list[str]:
    held, age_s = float(use.held_gpus[row]), float(use.age_s[row])
    if not isfinite(age_s):
        return [f"measured use of its {counted(round(held, 3), 'GPU')}: not measured"]
    by = COUNTERS[Quality(int(use.quality[row]))]
    lines = [
        f"measured use of its {counted(round(held, 3), 'GPU')}, SM activity by {by}, oldest part "
        f"{format_duration(age_s)} old:"
    ]
    shown = [(name, use.values(name)[:, row]) for name in HEADS]
    shown = [(name, values) for name, values in shown if not np.isnan(values).all()]
    table = [["window", "samples", "measured", *(HEADS[name] for name, _ in shown)]]
    for window, width_s in enumerate(use.windows_s):
        cells = [
            f"{'~' if use.estimates(name)[window, row] else ''}{format_signal(name, float(values[window]))}"
            for name, values in shown
        ]
        measured = format_ratio(float(use.measured_ratio[window, row]))
        table.append([format_duration(width_s), f"{int(use.samples[window, row])}", measured, *cells])
    lines += [f"  {line}" for line in aligned(table)]
    if any("~" in cell for cells in table for cell in cells):
        lines.append(
            "  ~ estimated: divided from a shared GPU, extrapolated to parts without a value, or from a window that "
            "begins before it held these GPUs"
        )
    return lines


def _document(use: UsageTable, row: int, in_doubt: Sequence[str]) -> dict[str, Any]:
    windows = []
    for window, width_s in enumerate(use.windows_s):
        values = {name: known(float(use.values(name)[window, row])) for name in HEADS}
        windows.append(
            {
                "window_s": width_s,
                "samples": int(use.samples[window, row]),
                "measured_ratio": float(use.measured_ratio[window, row]),
                "covered": bool(use.covered[window, row]),
                **values,
                "estimated": [name for name in HEADS if use.estimates(name)[window, row]],
            }
        )
    return {
        "held_gpus": float(use.held_gpus[row]),
        "age_s": known(float(use.age_s[row])),
        "quality": Quality(int(use.quality[row])).name.lower(),
        "in_doubt": list(in_doubt),
        "windows": windows,
    }


# --- groups -----------------------------------------------------------------------------------------


def groups_document(observation: Observation) -> dict[str, Any]:
    """Utilizations of every level over each window, and the busy GPUs held by no workload.

    The level `workload` has the workloads on GPUs.
    """
    snapshot = observation.snapshot
    found = rollups(snapshot, WITH_WORKLOADS)
    return {
        "levels": {
            level: [row for window_s in each.windows_s for row in _rows(each, window_s, range(len(each.names)))]
            for level, each in found.items()
            if level != "workload"
        }
        | {"workload": _workload_rows(found["workload"])},
        "busy_without_workload": [asdict(stray) for stray in strays(snapshot, parts_of(snapshot))],
    }


def _workload_rows(level: Rollup) -> list[dict[str, Any]]:
    holders = np.flatnonzero(level.held_units > 0).tolist()
    return [row for window_s in level.windows_s for row in _rows(level, window_s, holders)]


def _rows(level: Rollup, window_s: float, groups: Iterable[int]) -> list[dict[str, Any]]:
    """These groups of a level over one window; of GPUs held by no workload only the activity."""
    found = ratios(level, window_s)
    columns = {name: getattr(found, name).tolist() for name in Ratios.__slots__}
    return [
        {"name": level.names[at], "window_s": window_s, "workloads": int(level.workloads[at])}
        | {column: known(values[at]) for column, values in columns.items()}
        for at in groups
    ]


def group_lines(observation: Observation) -> list[str]:
    """A table of the fleet, its pools, and the tenants, queues, services and workloads on GPUs, the largest gap first;
    then busy free GPUs.

    Queues are left out if each of them is one tenant's.
    """
    snapshot = observation.snapshot
    found = rollups(snapshot, WITH_WORKLOADS)
    window_s = SHOWN_WINDOW_S
    table = [_HEAD]
    for level in ("fleet", "pool", "tenant", "queue", "service", "workload"):
        if level == "queue" and _same_groups(found["tenant"], found["queue"]):
            continue
        values, groups = ratios(found[level], window_s), found[level]
        rows = np.flatnonzero((groups.held_units > 0) | (level in {"fleet", "pool"}))
        rows = rows[(rows < len(groups.names) - 1) & ~((level == "queue") & (rows == ROOT))]
        order = np.argsort(-np.nan_to_num(values.gap_gpus[rows]), kind="stable")
        most = MOST_WORKLOADS if level == "workload" else MOST_GROUPS
        table += [_row(groups, values, row) for row in rows[order][:most].tolist()]
        if len(rows) > most:
            table.append([f"and {counted(len(rows) - most, level)} more"])
    fleet, use = found["fleet"], ratios(found["fleet"], window_s)
    table.append(["free", f"{float(fleet.gpus('free_gpus')[0]):.4g}"])
    if (out_of_use := float(fleet.gpus("out_of_use_gpus")[0])) > 0:
        table.append(["out of use", f"{out_of_use:.4g}"])
    return [
        f"use over {format_duration(window_s)}:",
        *(f"  {line}" for line in aligned(table)),
        *covered_lines(float(use.measured_ratio[0])),
        *stray_lines(observation.snapshot),
    ]


def covered_lines(measured_ratio: float) -> list[str]:
    """The meaning of the figures of activity if a part of the held GPUs is not measured."""
    if not measured_ratio < 1.0:
        return []
    return [
        "  what is not measured counts as neither active nor idle: hardware, real and gap are lower bounds where less "
        "than 100 % is measured"
    ]


def _same_groups(tenants: Rollup, queues: Rollup) -> bool:
    """True if each queue on GPUs, below the root, holds as much as the tenant of its name."""
    held = dict(zip(tenants.names, tenants.held_units.tolist(), strict=True))
    below = zip(queues.names[ROOT + 1 :], queues.held_units[ROOT + 1 :].tolist(), strict=True)
    return all(held.get(name) == units for name, units in below if units)


def _row(groups: Rollup, values: Ratios, row: int) -> list[str]:
    """The line of one group in a table; only the fleet and pools have GPUs of their own."""
    name = groups.names[row] if groups.level == "fleet" else f"{groups.level} {groups.names[row]}"
    own = groups.level in {"fleet", "pool"}
    return [name, f"{groups.gpus('capacity_gpus')[row]:g}" if own else "", *_cells(values, row)]


def _cells(values: Ratios, row: int) -> list[str]:
    """Held GPUs, the three utilizations, the gap and the measured part of one group."""
    gap = float(values.gap_gpus[row])
    return [
        f"{float(values.held_gpus[row]):.4g}",
        *(
            format_ratio(float(each[row]))
            for each in (values.allocation_ratio, values.hardware_ratio, values.real_utilization_ratio)
        ),
        "-" if isnan(gap) else f"{gap:.1f}",
        format_ratio(float(values.measured_ratio[row])),
    ]


def stray_lines(snapshot: ClusterSnapshot) -> list[str]:
    """One line for each busy GPU held by no workload, up to five."""
    found = strays(snapshot, parts_of(snapshot))
    lines = [
        f"busy without a workload: {each.entity_id} on {each.node} ({format_ratio(each.activity_ratio)} SM activity "
        f"over {format_duration(each.window_s)}); find its processes before it is allocated"
        for each in found[:MOST_STRAYS]
    ]
    return lines + (
        [f"and {counted(len(found) - MOST_STRAYS, 'more GPU')} like that"] if len(found) > MOST_STRAYS else []
    )


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines: the first column to the left, numbers to the right."""
    count = max(len(row) for row in rows)
    widths = [max((len(row[at]) for row in rows if at < len(row) and len(row) > 1), default=0) for at in range(count)]
    return [
        "  ".join(cell.ljust(widths[at]) if at == 0 else cell.rjust(widths[at]) for at, cell in enumerate(row)).rstrip()
        for row in rows
    ]


def known(value: float) -> float | None:
    """A number, None if it is not finite."""
    return value if isfinite(value) else None
