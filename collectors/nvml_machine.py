"""GPUs and MIG instances of this machine according to the driver, also as inventory tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autopilot.core.hardware import dcgm
from autopilot.core.hardware.xid_facts import REMAP_UNKNOWN, UNKNOWN_XID
from autopilot.core.model.objects import Sharing
from autopilot.core.model.records import Inventory
from autopilot.core.model.snapshot import GpuTable, InstanceTable, Names, NodeTable


@dataclass(slots=True)
class Instance:
    """A GPU instance as the driver lists it."""

    gi_id: int
    profile: str
    start: int


@dataclass(slots=True)
class Device:
    """One GPU as listed by the driver. `handle` is None for a lost GPU."""

    index: int
    uuid: str
    model: str
    handle: Any
    healthy: bool
    mig: bool
    instances: list[Instance]


def profile_name(profile: Any) -> str:
    """`1g.10gb` from the driver's profile `MIG 1g.10gb`."""
    return str(profile.name).removeprefix("MIG ").strip()


def inventory_of(node: str, devices: Sequence[Device]) -> Inventory:
    """The machine as inventory tables: one node, its GPUs, their MIG instances."""
    models = tuple(dict.fromkeys(device.model.replace(" ", "-") for device in devices))
    parts = [(row, i, d) for row, d in enumerate(devices) for i in d.instances]
    profiles = tuple(dict.fromkeys(instance.profile for _, instance, _ in parts))
    zero, size = np.zeros(1, np.int32), len(devices)
    no, unstated = np.zeros(1, bool), np.full(1, -1, np.int64)
    nodes = NodeTable(
        id=np.array([node], dtype=object),
        pool=zero,
        gpu_model=zero if models else zero - 1,
        first_gpu=zero,
        gpus=np.array([size], np.int32),
        cpu_milli=unstated,
        memory_mib=unstated,
        island=zero,
        leaf=zero,
        block=zero,
        zone=zero,
        ready=np.ones(1, bool),
        cordoned=no,
        spot=no,
        reclaim_at_s=np.full(1, np.nan),
        labels=np.empty((1, 0), np.uint8),
        hints=np.zeros(1, np.int64),
        mig_scopes=np.zeros(1, np.int8),
        boot=np.full(1, "", object),
        sharing=np.full(1, Sharing.WHOLE, np.int8),
        replicas=np.ones(1, np.int32),
        sharing_offers=np.zeros(1, np.int64),
        scrubbed_s=np.full(1, np.nan),
    )
    gpus = GpuTable(
        uuid=np.array([device.uuid for device in devices], dtype=object),
        node=np.zeros(size, np.int32),
        index=np.array([device.index for device in devices], np.int32),
        healthy=np.array([device.healthy for device in devices], bool),
        mig=np.array([device.mig for device in devices], bool),
        xid=np.full(size, UNKNOWN_XID, np.int32),
        remap=np.full(size, REMAP_UNKNOWN, np.int8),
        recut=np.zeros(size, np.int8),  # NVML does not report changes under way
        on_demand=np.full(size, -1, np.int64),
    )
    instances = InstanceTable(
        id=np.array([dcgm.entity_id(d.uuid, str(i.gi_id)) for _, i, d in parts], dtype=object),
        gpu=np.array([row for row, _, _ in parts], np.int32),
        profile=np.array([profiles.index(i.profile) for _, i, _ in parts], np.int32),
        start=np.array([i.start for _, i, _ in parts], np.int32),
        gi_id=np.array([i.gi_id for _, i, _ in parts], np.int32),
    )
    return Inventory(Names(models, ("default",), (), profiles), nodes, gpus, instances)
