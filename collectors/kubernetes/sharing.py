"""Layers that share or cut the GPUs of a node, beside the device plugin and feature discovery of NVIDIA.

Each offers parts as if they were GPUs: GKE (partitions, and clients that share a GPU), HAMi and the vGPU of Volcano
(parts of memory and compute). Physical GPUs are the unit of capacity, so the layer gives their number. A node is
`barred` from decisions if its layer hands out parts by its own scheduler, or does not tell the parts of its pods.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from autopilot.contract.notes import shown
from autopilot.core.hardware.mig_profiles import find_profile_name
from autopilot.core.model.snapshot import GPU_MILLI
from collectors.kubernetes import quantity
from collectors.kubernetes.asks import GPU, MIG, SUFFIX, is_gpu
from collectors.kubernetes.gangs import PodFacts
from collectors.kubernetes.lent import Lent
from collectors.kubernetes.parts import NO_PARTS
from collectors.kubernetes.wire import REGISTERS, Meta, Node

GKE = "cloud.google.com/gke-"
PRODUCT, COUNT, REPLICAS = "nvidia.com/gpu.product", "nvidia.com/gpu.count", "nvidia.com/gpu.replicas"
SLICED = "time slicing of MIG instances"

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
"""Resources of a node for parts of its GPUs, by their layer."""

VENDORS = {
    "amd.com/": "AMD",
    "gpu.intel.com/": "Intel",
    "habana.ai/": "Intel Gaudi",
    "google.com/tpu": "Google TPU",
    "aws.amazon.com/neuron": "AWS Neuron",
    "huawei.com/": "Huawei Ascend",
    "cambricon.com/": "Cambricon",
    "hygon.com/": "Hygon",
    "metax-tech.com/": "MetaX",
    "mthreads.com/": "Moore Threads",
    "iluvatar.": "Iluvatar",
    "enflame.com/": "Enflame",
    "birentech.com/": "Biren",
    "kunlunxin.com/": "Kunlunxin",
    "qualcomm.com/qaic": "Qualcomm",
}
"""Beginnings of unread resources of accelerators, by their maker. From the device plugins of the makers."""

OTHER_NAME = "NVIDIA, under a name that is not known"
"""In place of a maker: offers of the plugins of KubeVirt and of nos, for instance."""

OTHER_DEVICES = re.compile(r"nvidia\.com/(?:hostdev|.*(?:rdma|sriov|mlnx|ib|nic|imex)).*")
"""Resources of NVIDIA's network operator and of IMEX; they are no GPUs."""


class Layer(NamedTuple):
    """One layer on one node. Zero and "": not stated."""

    name: str
    gpus: int = 0  # physical
    clients: int = 1  # pods sharing a GPU
    profile: str = ""  # of the MIG instances offered as GPUs
    product: str = ""
    memory_mib: int = 0  # of a GPU
    barred: str = ""  # reason against decisions on the node
    uuids: tuple[str, ...] = ()  # of its GPUs


NONE = Layer("")


def layer_of(node: Node) -> Layer:
    """The layer that shares or cuts the GPUs of a node; `NONE` for none."""
    meta, capacity = node.metadata, node.status.capacity or {}
    for key, name in LAYERS.items() if meta.annotations else ():
        if text := meta.note(key):
            return _registered(name, key, text)
    for key in capacity.keys() & PARTS.keys():
        if quantity.parse(capacity[key]):
            return Layer(PARTS[key], barred=_why(PARTS[key], f"it offers {key}"))
    shared = next((name for name in capacity if name.startswith(MIG) and shared_by(node, name) > 1), "")
    if shared or ("-MIG-" in meta.label(PRODUCT) and quantity.whole(meta.label(REPLICAS)) > 1):
        return Layer(SLICED, barred=_why(SLICED, f"{shared or meta.label(PRODUCT)}"))
    return _gke(meta) or _renamed(node) or NONE


def shared_by(node: Node, resource: str) -> int:
    """Pods sharing each instance of a MIG resource by time, by the label of feature discovery."""
    count = quantity.whole(node.metadata.label(f"{resource.removesuffix(SUFFIX)}.replicas"))
    return max(count, 2 if resource.endswith(SUFFIX) else 1)


def vendor_of(node: Node) -> tuple[str, str]:
    """The resource and the maker of unread accelerators of a node; ("", "") for none."""
    for name, value in (node.status.capacity or {}).items():
        if name.startswith(tuple(VENDORS)) and quantity.parse(value):
            return name, next(maker for prefix, maker in VENDORS.items() if name.startswith(prefix))
    return next(((name, OTHER_NAME) for name in unread(node)), ("", ""))


def unread(node: Node) -> list[str]:
    """Resources of NVIDIA's device plugins under unknown names.

    These are GPUs for virtual machines, or parts of GPUs.
    """
    return sorted(
        name
        for name, value in (node.status.capacity or {}).items()
        if name.startswith("nvidia.com/") and not is_gpu(name) and not OTHER_DEVICES.fullmatch(name)
        if quantity.parse(value)
    )


def why_alone(pods: Iterable[PodFacts], barred: Mapping[str, str], lent: Lent) -> str:
    """The reason to leave the work of these pods alone; "" if no layer shares its GPUs. `barred`: reasons by node."""
    for each in pods:
        if each.parts is not NO_PARTS and (why := _by_kai(each, lent)):
            return why
        if barred and each.holds and (why := barred.get(each.pod.spec.node_name, "")) and each.ask.any_gpu:
            return f"on node {each.pod.spec.node_name} {why}"
    return ""


def apart(pods: Iterable[PodFacts], lent: Lent) -> bool:
    """True if one of these pods uses a part of an unknown GPU."""
    return any(each.parts.asked and each.holds and not lent.joined(each.pod.metadata.uid) for each in pods)


def _by_kai(found: PodFacts, lent: Lent) -> str:
    """The reason to leave a pod with a part of a GPU of KAI alone; "" for none."""
    parts, joined = found.parts, lent.joined(found.pod.metadata.uid)
    if parts.holds_for:
        group = shown(parts.holds_for)
        text = f"it is a reservation pod of KAI: it holds a GPU for the pods of group {group}"
        return f"{text}, whose parts are not known; it is left alone"
    if not parts.asked:
        return ""
    part = f"a part of a GPU ({parts.asked})"
    if not found.holds:
        return f"it requests {part} from KAI, and KAI alone starts it"
    if joined:
        return f"it uses {part} from KAI; work on parts of KAI is left alone"
    return f"it uses {part} from KAI on an unknown GPU: its group does not have exactly one reservation pod"


def _why(name: str, seen: str) -> str:
    return f"{name} shares its GPUs ({seen}) and hands out their parts itself; it gets no work here and loses none"


def _registered(name: str, key: str, text: str) -> Layer:
    """The GPUs in a register: JSON, or entries with colons between them and fields with commas between them."""
    entries = [each for each in map(_entry, _split(text)) if each is not None]
    if not entries:
        return Layer(name, barred=_why(name, f"its annotation {key} cannot be read"))
    clients = min(max(each.parts for each in entries), GPU_MILLI)
    first, uuids = entries[0], tuple(each.uuid for each in entries)
    same = {each.memory_mib for each in entries} == {first.memory_mib} and len(set(uuids)) == len(uuids)
    barred = _why(name, f"{len(entries)} GPUs, each in {clients} parts") if clients > 1 else ""
    memory_mib = first.memory_mib if same else 0
    return Layer(name, len(entries), clients, "", first.product, memory_mib, barred, uuids if same else ())


def _split(text: str) -> list[Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return [each.split(",") for each in text.split(":") if each]
    return found if isinstance(found, list) else []


class _Registered(NamedTuple):
    """One GPU of a register."""

    uuid: str
    parts: int
    memory_mib: int
    product: str


def _entry(found: Any) -> _Registered | None:
    """One GPU; None if not readable."""
    if isinstance(found, dict):
        values = [found.get(key) for key in ("id", "count", "devmem", "type")]
    elif isinstance(found, list) and len(found) > 3:
        values = [*found[:3], next((each for each in found[3:] if not re.fullmatch(r"[0-9]*", each)), "")]
    else:
        return None
    count, memory_mib = (quantity.whole(str(each)) for each in values[1:3])
    product = values[3] if isinstance(values[3], str) else ""
    return _Registered(str(values[0])[:253], max(count, 1), memory_mib, product[:253]) if values[0] else None


def _gke(meta: Meta) -> Layer | None:
    """Partitions and shared clients of GKE, by its labels."""
    size, strategy = meta.label(f"{GKE}gpu-partition-size"), meta.label(f"{GKE}gpu-sharing-strategy")
    if not size and not strategy:
        return None
    profile = find_profile_name(size)
    clients = max(quantity.whole(meta.label(f"{GKE}max-shared-clients-per-gpu")), 1) if strategy else 1
    if profile is None and clients == 1:
        return None
    gpus = quantity.whole(meta.label(f"{GKE}accelerator-count"))
    barred = _why("GKE", f"{profile} in {strategy}") if profile is not None and clients > 1 else ""
    return Layer("GKE", gpus, min(clients, GPU_MILLI), str(profile or ""), barred=barred)


def _renamed(node: Node) -> Layer | None:
    """GPUs found by feature discovery, but offered by the node under an unknown name."""
    capacity = node.status.capacity or {}
    if quantity.parse(capacity.get(GPU, "0")) or not (node.metadata.label(COUNT) or node.metadata.label(PRODUCT)):
        return None
    if any(is_gpu(name) and quantity.parse(value) for name, value in capacity.items()):
        return None
    names = unread(node)
    if not names:
        return None
    text = f"it offers its GPUs under an unknown resource name ({', '.join(names[:3])}); it gets no work here"
    return Layer("the device plugin", barred=f"{text} and loses none")
