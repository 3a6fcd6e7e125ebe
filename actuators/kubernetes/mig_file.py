"""The configuration file of NVIDIA's MIG manager, in the format of mig-parted: named geometries of the GPUs of a node.

An entry states the number of instances of each profile on a GPU. Places cannot be given: the driver chooses them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

Obj = dict[str, Any]
OURS = "gpu-autopilot-"
"""Prefix of the autopilot's generated entries. The rest is a hash of their content."""
KEPT = 64
"""Most of these entries kept in the file without a node that names them."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """One GPU: None with MIG off, else its instances by profile."""

    instances: Mapping[str, int] | None = field(default=None)

    @property
    def shown(self) -> str:
        """In words, for messages."""
        if self.instances is None:
            return "not in MIG mode"
        return ", ".join(f"{count} x {name}" for name, count in sorted(self.instances.items())) or "without instances"


Layout = tuple[Cuts, ...]
"""The GPUs of a node by index."""


class BadFileError(ValueError):
    """The file, or an entry, cannot be used; the text has the reason."""


def entries_of(text: str) -> Obj:
    """The entries by name. Raises BadFileError."""
    try:
        parsed = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadFileError(f"config.yaml is not YAML: {' '.join(str(error).split())[:200]}") from error
    configs = parsed.get("mig-configs") if isinstance(parsed, dict) else None
    if not isinstance(configs, dict) or parsed.get("version") != "v1":
        raise BadFileError("config.yaml is not a file of mig-parted: it needs `version: v1` and `mig-configs`")
    return configs


def layouts_of(configs: Obj, name: str, gpus: int) -> list[Layout]:
    """Possible meanings of the entry `name` for a node of `gpus` GPUs: one layout for each device filter in it.

    Raises BadFileError for an unknown name, and for an entry that does not state every GPU.
    """
    if name not in configs:
        raise BadFileError(f"config.yaml has no entry {name!r}")
    parts = [part for part in configs[name] or () if isinstance(part, dict)]
    filters = sorted({repr(part["device-filter"]) for part in parts if "device-filter" in part}) or [""]
    found = []
    for only in filters:
        layout: list[Cuts | None] = [None] * gpus
        for part in parts:
            if "device-filter" in part and repr(part["device-filter"]) != only:
                continue
            for index in _devices(part.get("devices"), gpus):
                layout[index] = _cuts(part)
        if all(each is not None for each in layout):
            found.append(tuple(each for each in layout if each is not None))
    if not found:
        raise BadFileError(f"the entry {name!r} of config.yaml does not state all {gpus} GPUs")
    return found


def _devices(value: object, gpus: int) -> Iterable[int]:
    if value == "all":
        return range(gpus)
    if isinstance(value, list) and all(isinstance(each, int) for each in value):
        return [each for each in value if 0 <= each < gpus]
    raise BadFileError(f"config.yaml: devices: {value!r} is neither `all` nor a list of indexes")


def _cuts(part: Obj) -> Cuts:
    if not part.get("mig-enabled"):
        return Cuts(None)
    devices = part.get("mig-devices") or {}
    if not isinstance(devices, dict) or not all(isinstance(count, int) and count >= 0 for count in devices.values()):
        raise BadFileError(f"config.yaml: mig-devices: {devices!r} are not numbers of instances by profile")
    return Cuts({str(name): count for name, count in devices.items() if count})


def resources_of(layout: Layout) -> dict[str, int]:
    """Resources of the device plugin under strategy `mixed`."""
    counts: Counter[str] = Counter()
    for each in layout:
        counts.update(each.instances or {})
    found = {f"nvidia.com/mig-{name.replace('+', '.')}": count for name, count in counts.items()}
    return {"nvidia.com/gpu": sum(each.instances is None for each in layout)} | found


def entry_of(layout: Layout) -> tuple[str, list[Obj]]:
    """Name and content of the entry for a layout. Equal layouts have equal names."""
    groups: dict[tuple[tuple[str, int], ...] | None, list[int]] = {}
    for index, each in enumerate(layout):
        key = None if each.instances is None else tuple(sorted(each.instances.items()))
        groups.setdefault(key, []).append(index)
    parts: list[Obj] = [
        {"devices": indexes, "mig-enabled": False}
        if key is None
        else {"devices": indexes, "mig-enabled": True, "mig-devices": dict(key)}
        for key, indexes in groups.items()
    ]
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:10]
    return OURS + digest, parts


def with_entries(configs: Obj, new: Mapping[str, Sequence[Obj]], used: Iterable[str]) -> str:
    """The text of the file with these entries. Generated and unused ones are dropped beyond `KEPT`."""
    kept = {*used, *new}
    idle = [name for name in configs if name.startswith(OURS) and name not in kept]
    gone = set(idle[: max(len(idle) - KEPT, 0)])
    entries = {name: parts for name, parts in configs.items() if name not in gone} | dict(new)
    return str(yaml.safe_dump({"version": "v1", "mig-configs": entries}, sort_keys=False, default_flow_style=None))
