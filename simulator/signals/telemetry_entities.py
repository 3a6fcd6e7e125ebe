"""Entities of the simulated telemetry, their occupants, and faults in transit.

An entity is a GPU or a MIG instance. All tables are columns, GPUs first, then instances.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autopilot.core.hardware.dcgm import entity_id
from autopilot.core.hardware.mig import compute_share, memory_mib
from autopilot.core.model.errors import InputError, invariant
from autopilot.core.model.records import Inventory
from simulator.signals.behaviours import board_of

Bools = NDArray[np.bool_]
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I8 = NDArray[np.int8]
I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class TelemetryFaults:
    """Faults between the GPU and the collector. Ratios are probabilities in [0, 1]."""

    lost_scrape_ratio: float = 0.0  # of a node's scrapes, each alone
    outage_ratio: float = 0.0  # of stretches of `outage_s` in which a node is silent
    outage_s: float = 300.0
    stuck_ratio: float = 0.0  # of stretches of `stuck_s` in which an exporter repeats itself
    stuck_s: float = 300.0
    blank_ratio: float = 0.0  # of watch intervals in which an entity's PROF fields have no value
    blank_style: str = "absent"  # or "sentinel", "nan": printed for a missing value
    first_interval_blank: bool = True  # PROF fields of a new entity have no value for one interval
    gr_engine_only_ratio: float = 0.0  # of nodes with the default counters file (no SM, no NVLink)
    gpu_util_only_ratio: float = 0.0  # of nodes without any PROF field
    hostname_label: str = "hostname"  # or "Hostname" (before May 2026), "" (--no-hostname)
    names: str = "old"  # or "new": field names since DCGM 4.6
    empty_pod_labels: bool = False  # old exporters print pod="" for devices without a pod
    vgpu: bool = False  # a shared GPU's samples are copied to each of its pods
    mig_parent: bool = False  # a partitioned GPU is reported beside its instances
    mig_board_repeat: bool = True  # board-level values are repeated on each instance, else missing

    def __post_init__(self) -> None:
        """Raise `InputError` for a meaningless value."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_ratio") and not 0.0 <= value <= 1.0:
                raise InputError(f"telemetry faults: {field.name} is {value}; give a probability from 0 to 1")
            if field.name.endswith("_s") and not 0.0 < value < float("inf"):
                raise InputError(f"telemetry faults: {field.name} is {value}; give seconds above 0")
        words = {
            "blank_style": ("absent", "sentinel", "nan"),
            "names": ("old", "new"),
            "hostname_label": ("hostname", "Hostname", ""),
        }
        for name, allowed in words.items():
            if getattr(self, name) not in allowed:
                choices = ", ".join(repr(word) for word in allowed)
                raise InputError(f"telemetry faults: {name} is {getattr(self, name)!r}; give one of {choices}")


@dataclass(frozen=True, slots=True)
class Entities:
    """The measured entities: GPUs, then MIG instances. Columns of length E; `parent` is the GPU's row."""

    id: NDArray[np.object_]
    key: U64
    node: I32
    parent: I32
    instance: Bools
    cut: Bools  # a GPU that currently has instances
    share: F64  # of the GPU's SMs
    memory_mib: F64
    limit_w: F64
    idle_w: F64
    loaded_w: F64
    since_s: F64  # exists in this shape since

    def rows_of(self, node: int) -> NDArray[np.intp]:
        """Rows of the entities of one node."""
        return np.flatnonzero(self.node == node)

    def take(self, rows: NDArray[np.intp]) -> Entities:
        """Only these entities. An instance must come with its GPU, and a partitioned GPU with its instances."""
        place = np.full(len(self.id), -1, np.int32)
        place[rows] = np.arange(len(rows), dtype=np.int32)
        columns: dict[str, Any] = {f.name: getattr(self, f.name)[rows] for f in fields(self)}
        columns["parent"] = place[columns["parent"]]
        invariant(bool((columns["parent"] >= 0).all()), "an instance was taken without its GPU")
        return Entities(**columns)


def entities_of(inventory: Inventory, since_s: F64 | None = None) -> Entities:
    """The entities of an inventory: rows of its GPUs, then rows of its instances.

    `since_s`, shape [entities]: when each came into its present shape (re-geometry, reboot); inf: it is not measured.
    An instance without a profile was destroyed.
    """
    gpus, instances, names = inventory.gpus, inventory.instances, inventory.names
    parent = np.concatenate([np.arange(len(gpus.uuid)), instances.gpu]).astype(np.int32)
    node = gpus.node[parent]
    models = [names.gpu_models[code] if code >= 0 else "" for code in inventory.nodes.gpu_model[node]]
    boards = {model: board_of(model) for model in set(models)}
    uuids = list(gpus.uuid)
    ids = uuids + [entity_id(uuids[g], str(gi)) for g, gi in zip(instances.gpu, instances.gi_id, strict=True)]
    share = np.ones(len(ids))
    memory = np.array([boards[model].memory_mib for model in models], float)
    there = instances.profile >= 0
    for row, profile in enumerate(instances.profile.tolist(), start=len(uuids)):
        if profile < 0:
            continue
        share[row] = float(compute_share(models[row], names.profiles[profile]))
        memory[row] = memory_mib(models[row], names.profiles[profile])
    cut = np.zeros(len(ids), bool)
    cut[instances.gpu[there]] = True
    watts = np.array([(boards[m].limit_w, boards[m].idle_w, boards[m].loaded_w) for m in models]).reshape(-1, 3).T
    digests = b"".join(blake2b(str(name).encode(), digest_size=8).digest() for name in ids)
    born = np.full(len(ids), -np.inf) if since_s is None else np.asarray(since_s, float)
    instance = np.arange(len(ids)) >= len(uuids)
    return Entities(
        np.array(ids, object),
        np.frombuffer(digests, "<u8").astype(np.uint64),
        node,
        parent,
        instance,
        cut,
        share,
        memory,
        watts[0],
        watts[1],
        watts[2],
        born,
    )


@dataclass(slots=True)
class GpuState:
    """The current occupants of the entities; the simulator writes into these columns of length E.

    For several slots with different occupants the columns may be [T, E] instead.
    """

    job_code: I32  # -1: none
    archetype: I8
    level: F32  # the job's mean SM activity
    since_s: F64  # in this state since
    gpus: I32  # GPUs of the job: NVLink is silent for one
    memory_mib: F64  # held; NaN: by its behaviour
    clock_mhz: F64  # of its SMs; NaN: its exporter has none


def idle_state(count: int) -> GpuState:
    """`count` unoccupied entities."""
    return GpuState(
        np.full(count, -1, np.int32),
        np.zeros(count, np.int8),
        np.zeros(count, np.float32),
        np.full(count, -np.inf),
        np.ones(count, np.int32),
        np.full(count, np.nan),
        np.full(count, np.nan),
    )
