"""Layers that share or cut the GPUs of a node, beside the device plugin and feature discovery of NVIDIA.

Each offers parts as if they were GPUs: GKE (partitions, and clients that share a GPU), HAMi and the vGPU of Volcano
(parts of memory and compute). Physical GPUs are the unit of capacity, so the layer says how many there are. Where it is
not known what a pod holds of a GPU, the layer is `barred`: its node takes no decision.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from autopilot.contract.notes import shown
from autopilot.core.hardware.mig_profiles import find_profile_name
from autopilot.core.model.snapshot import GPU_MILLI
from collectors.kubernetes import quantity
from collectors.kubernetes.gangs import PodFacts
from collectors.kubernetes.wire import REGISTERS, Meta, Node

GKE = "cloud.google.com/gke-"

LAYERS = dict(zip(REGISTERS, ("HAMi", "HAMi", "Volcano vGPU"), strict=True))
"""Annotations in which a device plugin lists the GPUs of its node: each with its UUID, the parts that it is split into,
its memory in MiB and its model."""

PARTS = {
    "volcano.sh/vgpu-number": "Volcano vGPU",
    "volcano.sh/gpu-memory": "Volcano GPU sharing",
    "koordinator.sh/gpu-core": "Koordinator",
    "aliyun.com/gpu-mem": "gpushare of Alibaba Cloud",
    "tencent.com/vcuda-core": "gpu-manager of Tencent",
    "k8s.amazonaws.com/vgpu": "the virtual GPU plugin of AWS",
}
"""Resources of a node that are parts of its GPUs, by the layer that offers them."""

GROUP_LABEL = "runai-gpu-group"
RESERVATIONS = ("kai-resource-reservation", "runai-reservation")
"""The label by which KAI joins pods on one GPU; its value of `app` on pods that hold the GPU for them."""

FRACTIONS = ("gpu-fraction", "gpu-memory")
"""Annotations by which a pod asks KAI for a part of a GPU."""


class Layer(NamedTuple):
    """One layer on one node. Zero and "" where it does not say."""

    name: str
    gpus: int = 0  # physical
    clients: int = 1  # pods that share a GPU
    profile: str = ""  # of the MIG instances that are offered as GPUs
    product: str = ""
    memory_mib: int = 0  # of a GPU
    barred: str = ""  # why the node takes no decision


NONE = Layer("")


def layer_of(node: Node) -> Layer:
    """The layer that shares or cuts the GPUs of a node; `NONE` for none."""
    for key, name in LAYERS.items():
        if text := node.metadata.note(key):
            return _registered(name, key, text)
    for key, name in PARTS.items():
        if quantity.parse((node.status.capacity or {}).get(key, "0")):
            return Layer(name, barred=_why(name, f"it offers {key}"))
    return _gke(node.metadata)


def why_alone(pods: Iterable[PodFacts], barred: Callable[[str], str]) -> str:
    """Why the work of these pods is left alone; "" where no layer shares its GPUs. `barred`: why a node is."""
    for each in pods:
        if why := _by_kai(each.pod.metadata):
            return why
        node = each.pod.spec.node_name if each.holds and each.ask.any_gpu else ""
        if node and (why := barred(node)):
            return f"on node {node} {why}"
    return ""


def _by_kai(meta: Meta) -> str:
    """What a pod has of a GPU that KAI shares; "" for none."""
    if meta.label("app") in RESERVATIONS:
        group = shown(meta.label(GROUP_LABEL))
        return f"it is a reservation pod of KAI: it holds a GPU for the pods of group {group}, and is left alone"
    asked = next((key for key in FRACTIONS if meta.note(key)), "")
    if asked:
        part = f"{asked} {shown(meta.note(asked))}"
        return (
            f"it asks KAI for a part of a GPU ({part}), which is not read; a reservation pod holds the whole GPU for it"
        )
    return ""


def _why(name: str, seen: str) -> str:
    return f"{name} shares its GPUs ({seen}), and which part a pod holds is not read; it gets no work and loses none"


def _registered(name: str, key: str, text: str) -> Layer:
    """The GPUs in a register: JSON, or entries with colons between them and fields with commas between them."""
    entries = [each for each in map(_entry, _split(text)) if each is not None]
    if not entries:
        return Layer(name, barred=_why(name, f"its annotation {key} cannot be read"))
    clients = min(max(count for count, _, _ in entries), GPU_MILLI)
    _, memory_mib, product = entries[0]
    seen = f"{len(entries)} GPUs, each in {clients} parts"
    return Layer(name, len(entries), clients, "", product, memory_mib, _why(name, seen) if clients > 1 else "")


def _split(text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return [each.split(",") for each in text.split(":") if each]
    return found if isinstance(found, list) else []


def _entry(found: Any) -> tuple[int, int, str] | None:
    """Parts, MiB and model of one GPU; None where that cannot be read."""
    if isinstance(found, dict):
        values = [found.get(key) for key in ("id", "count", "devmem", "type")]
    elif isinstance(found, list) and len(found) > 3:
        values = [*found[:3], next((each for each in found[3:] if not re.fullmatch(r"[0-9]*", each)), "")]
    else:
        return None
    count, memory_mib = (quantity.whole(str(each)) for each in values[1:3])
    product = values[3] if isinstance(values[3], str) else ""
    return (max(count, 1), memory_mib, product[:253]) if values[0] else None


def _gke(meta: Meta) -> Layer:
    """Partitions and shared clients of GKE, by its labels."""
    profile = find_profile_name(meta.label(f"{GKE}gpu-partition-size"))
    strategy = meta.label(f"{GKE}gpu-sharing-strategy")
    clients = max(quantity.whole(meta.label(f"{GKE}max-shared-clients-per-gpu")), 1) if strategy else 1
    if profile is None and clients == 1:
        return NONE
    gpus = quantity.whole(meta.label(f"{GKE}accelerator-count"))
    barred = _why("GKE", f"{profile} in {strategy}") if profile is not None and clients > 1 else ""
    return Layer("GKE", gpus, min(clients, GPU_MILLI), str(profile or ""), barred=barred)
