"""Small worlds whose nodes software shares, with what their work does alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autopilot.core.model.kinds import kind_of
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.profiles import LoneProfile, ProfilesMemory
from autopilot.core.model.modes import Mode
from autopilot.core.model.objects import Share, Sharing, SharingConfig, Trust
from autopilot.core.model.records import Observation
from autopilot.core.model.snapshot import GPU_MILLI, ClusterSnapshot, SloClass
from tests.kits.core_world import AUTO, Item, holds, observe, snapshot, waits, with_policy

GPU_MIB = 81_920.0
CONFIGS = (
    SharingConfig("whole", Sharing.WHOLE, 1),
    SharingConfig("time-slicing-4", Sharing.TIME_SLICING, 4, named=True),
    SharingConfig("mps-2", Sharing.MPS, 2, named=True),
)
SLICED, MPS = 1, 2
"""Places in CONFIGS."""

NOTEBOOK: dict[str, Any] = {
    "slo_class": int(SloClass.INTERACTIVE),
    "share": int(Share.DEV),
    "trust": int(Trust.TRUSTED),
    "tenant": 1,
}
BATCH: dict[str, Any] = {"share": int(Share.PAIR), "trust": int(Trust.TRUSTED), "tenant": 1}
LIGHT = {"sm_ratio": 0.1, "dram_ratio": 0.05, "duty_ratio": 0.15, "power_ratio": 0.3, "peak_mib": 10_000.0}
HEAVY = {"sm_ratio": 0.7, "dram_ratio": 0.4, "duty_ratio": 0.9, "power_ratio": 0.8, "peak_mib": 10_000.0}
SHARING = with_policy(AUTO, modes={"share": Mode.AUTO, "unshare": Mode.AUTO})


def book(name: str, gpus: int = 1, **columns: Any) -> Item:
    """A notebook that waits."""
    return named(waits(name, gpus, **{"gpus_per_member": gpus, **NOTEBOOK, **columns}))


def sits(name: str, on: Sequence[int], **columns: Any) -> Item:
    """A notebook on these GPUs."""
    return named(holds(name, len(on), on, **{"gpus_per_member": len(on), **NOTEBOOK, **columns}))


def named(item: Item) -> Item:
    """A kind of its own: its ID is its name too."""
    return replace(item, columns={**item.columns, "name": item.id})


def shared(
    shape: str, work: Sequence[Item], on: Mapping[int, int], *, named: bool = True, offers: int = 0b111, **more: Any
) -> ClusterSnapshot:
    """A cluster whose nodes `on` (row -> place in CONFIGS) are shared; all nodes can be turned to `offers` (bits)."""
    snap = snapshot(shape, work, **more)
    nodes, held = snap.nodes, snap.placements
    sharing, replicas = nodes.sharing.copy(), nodes.replicas.copy()
    for row, at in on.items():
        sharing[row], replicas[row] = CONFIGS[at].sharing, CONFIGS[at].replicas
    milli = np.where(replicas[held.node] > 1, GPU_MILLI // replicas[held.node], held.milli).astype(np.int32)
    return replace(
        snap,
        names=replace(snap.names, sharing_configs=tuple(replace(each, named=named) for each in CONFIGS)),
        nodes=replace(
            nodes, sharing=sharing, replicas=replicas, sharing_offers=np.full(len(nodes.id), offers, np.int64)
        ),
        placements=replace(held, milli=milli),
    )


def known(
    snap: ClusterSnapshot, now_s: float, heavy: Collection[str] = (), unknown: Collection[str] = (), **more: float
) -> ControllerMemory:
    """What each workload does alone: little, or much (`heavy`); nothing is known of `unknown`."""
    profiles = {
        kind_of(snap, row): LoneProfile(
            **{**(HEAVY if name in heavy else LIGHT), **more}, alone_s=7200.0, seen_s=now_s - 600.0
        )
        for row, name in enumerate(snap.workloads.id.tolist())
        if name not in unknown
    }
    model = snap.names.gpu_models[int(snap.nodes.gpu_model[0])]
    return ControllerMemory(profiles=ProfilesMemory({model: profiles}, now_s))


def seen(snap: ClusterSnapshot, now_s: float = 7200.0, **more: Any) -> Observation:
    """It as an observation, with run times of four hours."""
    total_s = {str(name): 14_400.0 for name in snap.workloads.id.tolist()}
    return observe(snap, now_s, **{"total_s": total_s, **more})
