"""Parts of GPUs that a pod holds or requests, as stated by sharing layers beside its resources.

HAMi and the vGPU of Volcano write the GPUs of a pod and its memory on each into an annotation of the pod. Pods request
parts from KAI by annotations. KAI joins the pods on a GPU with the pod that holds it by the label of a group, and
writes the UUID of the GPU on the holder. Sources: HAMi 2.10 (pkg/device/devices.go), Volcano 1.13
(devices/nvidia/vgpu/utils.go), KAI-Scheduler 0.17 (pkg/common/constants, pkg/binder/binding/resourcereservation).
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import isfinite
from typing import NamedTuple

from autopilot.contract.notes import shown
from autopilot.core.model.snapshot import GPU_MILLI
from collectors.kubernetes import quantity
from collectors.kubernetes.asks import Ask
from collectors.kubernetes.wire import ALLOCATED, LONGEST_REGISTER, RESERVED_GPU, Meta

GROUP = "runai-gpu-group"
"""Label of KAI and Run:ai that joins pods on one GPU. Pods with parts of several GPUs have one with `/` and the group
behind it for each.
"""

RESERVATIONS = ("kai-resource-reservation", "runai-reservation")
"""Values of the label `app` on holders of a GPU for a group."""

FRACTION, MEMORY = "gpu-fraction", "gpu-memory"
DEVICES = "gpu-fraction-num-devices"
"""Annotations of a pod's request to KAI for a part of a GPU, or for the same part of several."""


class Parts(NamedTuple):
    """The parts of GPUs of one pod by such a layer. Zero and empty for unstated values."""

    named: tuple[tuple[str, int], ...] = ()  # UUIDs of its GPUs with its MiB on each; 0 MiB: the whole GPU
    gpus: int = 0  # of a request to KAI for parts
    milli: int = 0  # thousandths of each; 0: by memory, or not readable
    memory_mib: int = 0  # of each
    groups: tuple[str, ...] = ()  # of KAI, one for each GPU in use
    holds_for: str = ""  # it holds the GPU of this group
    asked: str = ""  # the annotation with the request to KAI, for people

    def share(self, gpu_mib: int) -> int:
        """Thousandths of each GPU requested from KAI, for GPUs with this memory; 0 for unknown."""
        if self.milli or not gpu_mib:
            return self.milli
        return min(max(GPU_MILLI * self.memory_mib // gpu_mib, 1), GPU_MILLI) if self.memory_mib else 0

    def beside(self, ask: Ask, *, bound: bool = True) -> Ask:
        """The request of a pod with its parts. A request by memory has no size until the pod has a node."""
        if self.gpus:
            known = self.milli or (self.memory_mib and bound)
            return replace(ask, gpus=self.gpus, milli=self.milli) if known else ask
        return replace(ask, gpus=len(self.named)) if self.named and not self.holds_for else ask


NO_PARTS = Parts()


def parts_of(meta: Meta) -> Parts:
    """The parts of a pod, or of the pods of a template; `NO_PARTS` for none."""
    notes, labels = meta.annotations, meta.labels
    if notes:
        if FRACTION in notes or MEMORY in notes:
            return _asked(meta)
        text = next((value for key in ALLOCATED if (value := notes.get(key))), "")
        if text:
            return Parts(named=_named(text))
    if labels and (GROUP in labels or labels.get("app") in RESERVATIONS):
        uuid = meta.note(RESERVED_GPU)
        return Parts(((uuid, 0),) if uuid.startswith("GPU-") else (), holds_for=labels.get(GROUP, "") or "of no name")
    return NO_PARTS


def _asked(meta: Meta) -> Parts:
    """The request of a pod to KAI, and its groups once it has a node."""
    key = FRACTION if meta.note(FRACTION) else MEMORY
    found = (meta.labels or {}).items()
    groups = {value for name, value in found if (name == GROUP or name.startswith(f"{GROUP}/")) and value}
    memory_mib = quantity.whole(meta.note(MEMORY)) if key == MEMORY else 0
    gpus = quantity.whole(meta.note(DEVICES)) if meta.note(DEVICES) else 1
    asked = f"{key} {shown(meta.note(key))}"
    milli = _milli(meta.note(FRACTION)) if key == FRACTION else 0
    return Parts((), max(gpus, 1), milli, memory_mib, tuple(sorted(groups)), asked=asked)


def _milli(text: str) -> int:
    """A fraction in thousandths; 0 for an invalid one."""
    try:
        value = float(text)
    except ValueError:
        return 0
    return max(int(value * GPU_MILLI + 1e-6), 1) if isfinite(value) and 0 < value <= 1 else 0


def _named(text: str) -> tuple[tuple[str, int], ...]:
    """UUIDs and MiB: `;` between containers, `:` between GPUs, `,` between UUID, vendor, MiB and percent of compute.

    Empty if any of them is not readable.
    """
    found: dict[str, int] = {}
    for entry in re.split("[:;]", text if len(text) <= LONGEST_REGISTER else "?"):
        uuid, *rest = entry.split(",")
        if not entry.strip():
            continue
        memory_mib = quantity.whole(rest[1]) if len(rest) > 2 else 0
        if not uuid.startswith("GPU-") or not memory_mib:
            return ()
        uuid = uuid.partition("[")[0]  # in mode MIG the place of the instance follows
        found[uuid] = found.get(uuid, 0) + memory_mib
    return tuple(sorted(found.items()))
