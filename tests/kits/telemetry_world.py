"""A small world of simulated GPUs that the telemetry tests share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autopilot.core.model.records import Inventory
from autopilot.core.model.snapshot import InstanceTable
from simulator.signals.behaviours import Archetype
from simulator.signals.telemetry_entities import GpuState, idle_state
from simulator.specs.clusterfile import shape_cluster
from simulator.specs.inventory import build_inventory

SM, OCCUPANCY, TENSOR, DRAM, NVLINK, PCIE, MEMORY, POWER = range(8)


def inventory(nodes: int, gpus: int, cut: dict[int, Sequence[tuple[str, int]]] | None = None) -> Inventory:
    """H100 nodes; `cut` gives the (profile, start) of the instances of a GPU row."""
    whole = build_inventory(shape_cluster(nodes, gpus, "H100-80GB"))
    rows = [(gpu, *placed, 7 + k) for gpu, all_placed in (cut or {}).items() for k, placed in enumerate(all_placed)]
    profiles = tuple(dict.fromkeys(row[1] for row in rows))
    instances = InstanceTable(
        id=np.array([f"{whole.gpus.uuid[gpu]}/{gi}" for gpu, _, _, gi in rows], object),
        gpu=np.array([row[0] for row in rows], np.int32),
        profile=np.array([profiles.index(row[1]) for row in rows], np.int32),
        start=np.array([row[2] for row in rows], np.int32),
        gi_id=np.array([row[3] for row in rows], np.int32),
    )
    return replace(whole, names=replace(whole.names, profiles=profiles), instances=instances)


def running(count: int, archetype: Archetype, level: float = 0.3, since_s: float = 0.0) -> GpuState:
    """Every entity runs a job of its own, a part of an eight-GPU gang by its NVLink."""
    state = idle_state(count)
    state.job_code[:] = np.arange(count)
    state.archetype[:], state.level[:], state.since_s[:], state.gpus[:] = archetype, level, since_s, 8
    return state
