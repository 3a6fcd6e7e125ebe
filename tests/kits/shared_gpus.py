"""Work on shared GPUs with what it does alone, for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from autopilot.core.model.kinds import kind_of
from autopilot.core.model.memory.profiles import LoneProfile, ProfilesMemory
from autopilot.core.model.objects import Sharing, Trust
from autopilot.core.model.snapshot import ClusterSnapshot
from tests.kits.core_world import MODELS, Item, holds, snapshot, waits

NOW_S = 10_000.0


def sharer(name: str, on: list[int], steps_per_s: float = np.nan, named: str = "", **columns: Any) -> Item:
    """Running work on shares of these GPUs, under the name of its object, or `named`."""
    own = {"trust": Trust.TRUSTED, "gpus_per_member": len(on), "steps_per_s": steps_per_s}
    item = holds(name, len(on), on, **own | columns)
    return replace(item, columns={**item.columns, "name": named or name})


WORK = (sharer("two", [0, 1], 1.6), sharer("one", [0], 0.9), sharer("alone", [2], 3.0), waits("waits", 1))


def on_shares(
    *work: Item, sharing: Sharing = Sharing.TIME_SLICING, replicas: int = 4, shape: str = "1x4", **nodes: Any
) -> ClusterSnapshot:
    """Nodes whose GPUs are all shared, each piece of work on shares. `WORK` without any."""
    snap = snapshot(shape, work or WORK)
    count = len(snap.nodes.id)
    columns = {"sharing": np.full(count, sharing, np.int8), "replicas": np.full(count, replicas, np.int32), **nodes}
    milli = np.full(len(snap.placements.milli), 1000 // replicas, np.int32)
    return replace(snap, placements=replace(snap.placements, milli=milli), nodes=replace(snap.nodes, **columns))


def lone(duty_ratio: float, steps_hz: float = np.nan, spread: float = 0.0, **more: float) -> LoneProfile:
    """A profile that is fresh and small."""
    columns = {"duty_ratio": duty_ratio, "sm_ratio": duty_ratio, "dram_ratio": 0.1, "power_ratio": 0.5}
    columns |= {"peak_mib": 9e3, "alone_s": 3600.0, "seen_s": NOW_S, "steps_hz": steps_hz, "steps_spread_ratio": spread}
    return LoneProfile(**columns | more)


def profiles(snap: ClusterSnapshot, **by_name: LoneProfile) -> ProfilesMemory:
    """The profiles of work, by its name."""
    rows = {str(name): row for row, name in enumerate(snap.workloads.id.tolist())}
    return ProfilesMemory({MODELS[0]: {kind_of(snap, rows[name]): each for name, each in by_name.items()}}, NOW_S)


KNOWN = {"two": lone(0.5, 2.0), "one": lone(0.4, 1.0), "alone": lone(0.9)}
