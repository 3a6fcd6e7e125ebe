"""The file of the MIG manager: named layouts of the GPUs of a node, in the format of mig-parted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

Obj = dict[str, Any]
PROFILE = re.compile(r"(?:(\d+)c\.)?(\d+)g\.\d+gb(?:\+[\w.]+)?")
DEFAULT_FILE = """version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  all-enabled:
    - devices: all
      mig-enabled: true
      mig-devices: {}
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """One GPU: its MIG mode, and its number of instances by profile."""

    enabled: bool = False
    instances: Mapping[str, int] = field(default_factory=dict)


class UnknownConfigError(ValueError):
    """The file lacks a usable layout of this name."""


def layouts_of(text: str, name: str, gpus: int) -> tuple[Layout, ...]:
    """The layout of each of `gpus` GPUs. Raises UnknownConfigError for a bad file, an unknown name, or missing GPUs."""
    try:
        parsed = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UnknownConfigError(f"the MIG configuration is not YAML: {error}") from error
    configs = parsed.get("mig-configs") if isinstance(parsed, dict) else None
    if not isinstance(configs, dict) or name not in configs:
        raise UnknownConfigError(f"the MIG configuration has no entry {name!r} under mig-configs")
    found: list[Layout | None] = [None] * gpus
    for part in configs[name] or []:
        layout = Layout(bool(part.get("mig-enabled")), _instances(part.get("mig-devices") or {}))
        for index in _devices(part.get("devices"), gpus):
            found[index] = layout
    missing = [index for index, layout in enumerate(found) if layout is None]
    if missing:
        raise UnknownConfigError(f"the MIG configuration {name!r} says nothing about GPU {missing[0]}")
    return tuple(layout for layout in found if layout is not None)


def _devices(value: object, gpus: int) -> Sequence[int]:
    if value == "all":
        return range(gpus)
    if isinstance(value, list) and all(isinstance(each, int) and 0 <= each < gpus for each in value):
        return value
    raise UnknownConfigError(f"devices: {value!r} is neither all nor a list of indexes below {gpus}")


def _instances(value: Mapping[str, int]) -> dict[str, int]:
    for profile, count in value.items():
        if PROFILE.fullmatch(profile) is None or count < 0:
            raise UnknownConfigError(f"mig-devices: {profile}: {count} is not a profile with a number of instances")
    return {profile: count for profile, count in value.items() if count}


def counts_of(layouts: Sequence[Layout]) -> dict[str, int]:
    """Instances of each profile on the whole node."""
    sums: dict[str, int] = {}
    for layout in layouts:
        for profile, count in layout.instances.items():
            sums[profile] = sums.get(profile, 0) + count
    return sums


def resources_of(layouts: Sequence[Layout], strategy: str) -> dict[str, int]:
    """Resources of the device plugin: `mixed` names one for each profile, `single` calls every instance a GPU."""
    whole = sum(not layout.enabled for layout in layouts)
    counts = counts_of(layouts)
    if strategy == "single":
        return {"nvidia.com/gpu": sum(counts.values()) or whole}
    return {"nvidia.com/gpu": whole} | {_resource(profile): count for profile, count in counts.items()}


def labels_of(
    layouts: Sequence[Layout], strategy: str, product: str, gpu_memory_mib: str, memory_mib: Mapping[str, int]
) -> dict[str, str]:
    """Labels of feature discovery for the layout, without unknown amounts (`memory_mib` by profile)."""
    counts = counts_of(layouts)
    if strategy == "single" and len(counts) == 1:
        [(profile, count)] = counts.items()
        labels = {"nvidia.com/gpu.product": f"{product}-MIG-{profile}", "nvidia.com/gpu.count": str(count)}
        if profile in memory_mib:
            labels["nvidia.com/gpu.memory"] = str(memory_mib[profile])
        return labels
    labels = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": str(len(layouts))}
    if gpu_memory_mib:
        labels["nvidia.com/gpu.memory"] = gpu_memory_mib
    for profile, count in counts.items():
        name, found = _resource(profile), PROFILE.fullmatch(profile)
        labels[f"{name}.count"] = str(count)
        if found is not None:
            labels[f"{name}.slices.gi"] = found[2]
            labels[f"{name}.slices.ci"] = found[1] or found[2]
        if profile in memory_mib:
            labels[f"{name}.memory"] = str(memory_mib[profile])
    return labels


def _resource(profile: str) -> str:
    """Resource of a profile; attributes are part of the name (`1g.10gb+me` is `mig-1g.10gb.me`)."""
    return f"nvidia.com/mig-{profile.replace('+', '.')}"
