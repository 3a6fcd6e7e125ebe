"""Places for instances on demand. With dynamic MIG an instance exists only while a claim has it.

The snapshot lists no such place, so nothing counts one as capacity. A what-if numbers the places behind the existing
instances, hands their memory slices out once, and gives a GPU out either whole or by places. A decision fixes the node
and the profile; the scheduler chooses the place of that profile.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autopilot.core.hardware import mig
from autopilot.core.hardware.mig_profiles import find_gpu_model
from autopilot.core.model.snapshot import F64, I32, ClusterSnapshot

Option = tuple[str, int, int, float]
"""Profile, first memory slice, mask and part of the GPU of one place."""


@dataclass(frozen=True, slots=True)
class Places:
    """Places for new instances, by GPU and first slice. Columns [places].

    Row `first` + k of a what-if's instances is place k. `mask`: its memory slices as bits and, above them, the media
    engines. `part`: its memory as a part of the GPU.
    """

    first: int
    gpu: I32
    profile: I32
    start: I32
    mask: I32
    part: F64

    def __len__(self) -> int:
        """Number of places."""
        return len(self.gpu)

    def id_of(self, snapshot: ClusterSnapshot, row: int) -> str:
        """The name of a place in decisions: `<UUID>/<profile>@<first slice>`."""
        at = row - self.first
        name = snapshot.names.profiles[int(self.profile[at])]
        return f"{snapshot.gpus.uuid[self.gpu[at]]}/{name}@{int(self.start[at])}"


def profile_of(instance: str) -> str:
    """The profile in the name of a place; "" for the id of an instance."""
    name, at, _ = instance.rpartition("/")[2].partition("@")
    return name if at else ""


def places_of(snapshot: ClusterSnapshot) -> Places:
    """The places in `GpuTable.on_demand` of a snapshot."""
    gpus, names = snapshot.gpus, snapshot.names
    rows = np.flatnonzero(gpus.on_demand > 0).astype(np.int32)
    first = len(snapshot.instances.id)
    if not len(rows):
        none = np.empty(0, np.int32)
        return Places(first, none, none, none, none, np.empty(0))
    model = snapshot.nodes.gpu_model[gpus.node[rows]]
    kinds, kind = np.unique(np.stack([model.astype(np.int64), gpus.on_demand[rows]]), axis=1, return_inverse=True)
    code = {name: number for number, name in enumerate(names.profiles)}
    columns: list[NDArray[np.float64]] = []
    for number, (model_code, bits) in enumerate(kinds.T.tolist()):
        options = [each for each in _options(names.gpu_models[model_code], bits) if each[0] in code]
        table = np.array([(code[name], *rest) for name, *rest in options], np.float64).reshape(-1, 4)
        here = rows[kind.reshape(-1) == number]
        columns.append(np.column_stack([np.repeat(here, len(table)), np.tile(table, (len(here), 1))]))
    found = np.concatenate(columns)
    found = found[np.lexsort((found[:, 1], found[:, 2], found[:, 0]))]
    gpu, profile, start, mask = found[:, :4].T.astype(np.int32)
    return Places(first, gpu, profile, start, mask, found[:, 4])


@lru_cache(maxsize=4096)
def _options(model_name: str, bits: int) -> tuple[Option, ...]:
    """The places in a bit set of GpuTable.on_demand; none for an unknown model."""
    model = find_gpu_model(model_name)
    if model is None:
        return ()
    found = []
    for number, (index, start, mask) in enumerate(mig.placement_masks(model)):
        profile = model.profiles[index]
        media = 1 << model.memory_slices if profile.media_extension else 0
        if bits >> number & 1:
            found.append((profile.name, start, mask | media, profile.memory_slices / model.memory_slices))
    return tuple(found)
