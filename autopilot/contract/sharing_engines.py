"""Engines that share GPUs by software: what a controller may write for each, and the manifest of what it may not.

From the sources of k8s-device-plugin (1b826acc), KAI (72de64fc), HAMi (4707fb02), Volcano (2026) and NVIDIA's DRA
driver (95932046).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from autopilot.core.model.objects import Sharing
from autopilot.core.model.snapshot import GPU_MILLI

PLUGIN_CONFIG: Final = "nvidia.com/device-plugin.config"
"""The label of a node that names its entry in the ConfigMap of NVIDIA's device plugin."""


class Engine(StrEnum):
    """Who shares the GPUs of a node."""

    DEVICE_PLUGIN = "device-plugin"
    KAI = "kai"
    HAMI = "hami"
    VOLCANO = "volcano"
    DRA = "dra"


@dataclass(frozen=True, slots=True)
class Row:
    """One engine. `node_label` and `pod_annotation`: what it takes from a controller; "": nothing of that kind."""

    words: str
    node_label: str = ""
    pod_annotation: str = ""  # UUIDs with commas between them, while the pod has no node
    at_creation: str = ""  # what a pod must have said when it was created


ENGINES: Mapping[Engine, Row] = {
    Engine.DEVICE_PLUGIN: Row(
        "NVIDIA's device plugin, time slicing or MPS of a node", node_label=PLUGIN_CONFIG, at_creation="nvidia.com/gpu"
    ),
    Engine.KAI: Row("KAI: a part of a GPU chosen by KAI", at_creation="gpu-fraction or gpu-memory"),
    Engine.HAMI: Row(
        "HAMi: a part of a GPU that may be named",
        pod_annotation="nvidia.com/use-gpuuuid",
        at_creation="nvidia.com/gpumem and nvidia.com/gpucores",
    ),
    Engine.VOLCANO: Row(
        "Volcano vGPU: a part of a GPU that may be named",
        pod_annotation="volcano.sh/vgpu-use-gpuuuid",
        at_creation="volcano.sh/vgpu-memory and volcano.sh/vgpu-cores",
    ),
    Engine.DRA: Row("NVIDIA's DRA driver: pods that share a claim", at_creation="a claim with a GpuConfig"),
}


@dataclass(frozen=True, slots=True)
class Part:
    """The part of each of its GPUs that a pod would get. `key`: of the device plugin's ConfigMap."""

    sharing: Sharing
    milli: int  # of a GPU
    memory_mib: int  # of each GPU
    gpus: int = 1
    uuids: Sequence[str] = ()  # "" for none
    node: str = ""
    key: str = ""


def annotations_for(engine: Engine, part: Part) -> dict[str, str]:
    """Annotations that a controller may write on a pod without a node, so that it gets these GPUs; {} for none."""
    key = ENGINES[engine].pod_annotation
    return {key: ",".join(part.uuids)} if key and part.uuids else {}


def manifest_for(engine: Engine, part: Part) -> str:
    """What a person applies so that a pod gets this part: YAML, or a command for a node."""
    return {
        Engine.DEVICE_PLUGIN: _node,
        Engine.KAI: _kai,
        Engine.HAMI: _hami,
        Engine.VOLCANO: _volcano,
        Engine.DRA: _claim,
    }[engine](part)


def _node(part: Part) -> str:
    return f"kubectl label node {part.node} {PLUGIN_CONFIG}={part.key} --overwrite  # once no pod holds a GPU there\n"


def _kai(part: Part) -> str:
    notes = {"gpu-fraction": _fraction(part)}
    if part.gpus > 1:
        notes["gpu-fraction-num-devices"] = str(part.gpus)
    if part.sharing == Sharing.MPS:
        notes["mps"] = "true"
    return _pod("kai-scheduler", notes, {})


def _hami(part: Part) -> str:
    limits = {"nvidia.com/gpu": part.gpus, "nvidia.com/gpumem": part.memory_mib, "nvidia.com/gpucores": _percent(part)}
    return _pod("", annotations_for(Engine.HAMI, part), limits)


def _volcano(part: Part) -> str:
    names = ("number", "memory", "cores")
    amounts = (part.gpus, part.memory_mib, _percent(part))
    limits = {f"volcano.sh/vgpu-{name}": amount for name, amount in zip(names, amounts, strict=True)}
    return _pod("volcano", annotations_for(Engine.VOLCANO, part), limits)


def _claim(part: Part) -> str:
    """All pods that share name this claim, in one namespace."""
    if part.sharing == Sharing.MPS:
        limits = f"defaultActiveThreadPercentage: {_percent(part)}, defaultPinnedDeviceMemoryLimit: {part.memory_mib}Mi"
        sharing = f"{{strategy: MPS, mpsConfig: {{{limits}}}}}"
    else:
        sharing = "{strategy: TimeSlicing}"
    return f"""\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: shared-gpu}}
spec:
  devices:
    requests:
    - name: gpu
      exactly: {{deviceClassName: gpu.nvidia.com, count: {part.gpus}}}
    config:
    - requests: [gpu]
      opaque:
        driver: gpu.nvidia.com
        parameters: {{apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {sharing}}}
"""


def _pod(scheduler: str, notes: Mapping[str, str], limits: Mapping[str, int]) -> str:
    """The fields of a pod that say so; JSON is YAML."""
    lines = [f"metadata: {{annotations: {json.dumps(dict(notes))}}}"] if notes else []
    spec: dict[str, object] = {"schedulerName": scheduler} if scheduler else {}
    if limits:
        spec["containers"] = [{"name": "main", "resources": {"limits": dict(limits)}}]
    return "\n".join([*lines, f"spec: {json.dumps(spec)}"]) + "\n"


def _fraction(part: Part) -> str:
    return f"{part.milli / GPU_MILLI:g}"


def _percent(part: Part) -> int:
    return part.milli * 100 // GPU_MILLI
