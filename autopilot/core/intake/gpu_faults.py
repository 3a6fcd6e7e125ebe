"""The errors of GPUs from all sources: the gravest counts, unless another source refutes it.

XID 79 reports a GPU off the bus, beyond any measurement. The gauge is sticky, so an exporter may show the code of an
earlier boot, or of another GPU. If another source measures activity, memory traffic and power of work at present, the
loss of the GPU is unknown. One source alone refutes nothing: it may repeat old values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autopilot.core.hardware.dcgm import Quality
from autopilot.core.hardware.idle_power import WORKS_POWER, loaded_idle_w
from autopilot.core.hardware.xid_facts import OFF_THE_BUS, remedy_of
from autopilot.core.model.records import Batch, Gap, Inventory, Telemetry
from autopilot.core.model.snapshot import GpuTable

FEW_SAMPLES = 3
"""Least number of samples in the shortest window, with differing values: equal ones may be older than the error."""
WORKS_RATIO = 0.05
"""SM activity of a GPU at certain work."""
FRESH_RATIO = 0.75
"""Age of the newest sample / the shortest window, at most: older ones may be from before the error."""


def with_errors(inventory: Inventory, batches: Sequence[Batch], now_s: float) -> tuple[GpuTable, list[Gap]]:
    """GPUs with the gravest credible error of all sources; an error of an instance counts for its GPU."""
    gpus, found = inventory.gpus, [(batch, batch.errors) for batch in batches if batch.errors is not None]
    if not found or not len(gpus.uuid):
        return gpus, []
    place = {str(name): row for row, name in enumerate(gpus.uuid.tolist())}
    xid, remap = gpus.xid.copy(), gpus.remap.copy()
    disbelieved: dict[str, list[tuple[str, str]]] = {}
    for batch, errors in found:
        for name, code, rows in zip(
            errors.entity_ids.tolist(), errors.xid.tolist(), errors.remap.tolist(), strict=True
        ):
            uuid = str(name).partition("/")[0]
            row = place.get(uuid)
            if row is None:
                continue
            remap[row] = max(int(remap[row]), rows)
            if code == OFF_THE_BUS and (other := _shown_at_work(inventory, row, batches, now_s)):
                disbelieved.setdefault(batch.source, []).append((uuid, other))
            elif code >= 0 and (xid[row] < 0 or _graver(code, int(xid[row]))):
                xid[row] = code
    gaps = []
    for source, cases in disbelieved.items():
        uuid, other = cases[0]
        more = f"; {len(cases) - 1} other GPUs have this too" if len(cases) > 1 else ""
        reason = f"shows XID {OFF_THE_BUS} while {other} measures activity, memory traffic and power of work there: "
        gaps.append(Gap(source, uuid, "xid_code", f"{reason}the error does not count; restart this exporter{more}"))
    return replace(gpus, xid=xid, remap=remap), gaps


def _graver(code: int, other: int) -> bool:
    """True if a code says at least as much as another; each says more than 0."""
    return (remedy_of(code), code > 0) >= (remedy_of(other), other > 0)


def _shown_at_work(inventory: Inventory, row: int, batches: Sequence[Batch], now_s: float) -> str:
    """The name of a source with present measurements of work on a GPU and without such an error; "" for none."""
    uuid = str(inventory.gpus.uuid[row])
    model = inventory.names.gpu_models[int(inventory.nodes.gpu_model[inventory.gpus.node[row]])]
    for batch in batches:
        if batch.telemetry is not None and not _shows_lost(batch, uuid):
            older_s = max(now_s - batch.collected_s, 0.0)
            if _works(batch.telemetry, uuid, older_s, loaded_idle_w(model)):
                return batch.source
    return ""


def _shows_lost(batch: Batch, uuid: str) -> bool:
    """True if a source shows a GPU, or an instance of it, off the bus."""
    found = batch.errors
    lost = [] if found is None else found.entity_ids[found.xid == OFF_THE_BUS].tolist()
    return any(str(name).partition("/")[0] == uuid for name in lost)


def _works(telemetry: Telemetry, uuid: str, older_s: float, idle_w: float) -> bool:
    """True if the shortest window has fresh, changing values of work: activity, memory traffic and power."""
    columns = np.flatnonzero(telemetry.entity_ids == uuid)
    if (
        not len(columns)
        or not telemetry.windows_s
        or not {"sm_active_ratio", "dram_active_ratio", "power_w"} <= set(telemetry.signals)
    ):
        return False
    column, window = int(columns[0]), int(np.argmin(telemetry.windows_s))
    if not telemetry.age_s[column] + older_s <= FRESH_RATIO * telemetry.windows_s[window]:
        return False
    few = telemetry.samples[window, column] < FEW_SAMPLES
    least = {"sm_active_ratio": WORKS_RATIO, "dram_active_ratio": WORKS_RATIO, "power_w": WORKS_POWER * idle_w}
    for signal, value in least.items():
        at = (telemetry.signals.index(signal), window, column)
        mean, highest = float(telemetry.mean[at]), float(telemetry.maximum[at])
        if not (mean > value and (few or highest > mean)):
            return False
    return bool(telemetry.quality[column] == Quality.SM_ACTIVE)
