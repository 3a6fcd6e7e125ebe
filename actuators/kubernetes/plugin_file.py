"""One entry of the ConfigMap of NVIDIA's device plugin: how it shares the GPUs of a node. It is read, never written."""

from __future__ import annotations

from typing import Any, NamedTuple

import yaml

from autopilot.contract.notes import shown
from autopilot.core.model.objects import Sharing
from autopilot.core.model.snapshot import GPU_MILLI
from autopilot.core.sharing.set_sharing import sharing_words

GPU = "nvidia.com/gpu"
WAYS = {"timeSlicing": Sharing.TIME_SLICING, "mps": Sharing.MPS}


class BadEntryError(ValueError):
    """An entry that the device plugin refuses, or that shares GPUs in a way that pods cannot use."""


class Shares(NamedTuple):
    """What an entry does with each GPU of a node. `single`: pods that request more than one GPU fail there."""

    sharing: Sharing = Sharing.WHOLE
    replicas: int = 1
    single: bool = False

    @property
    def shown(self) -> str:
        """As the setting kubernetes.sharing_configs states it."""
        return sharing_words(self.sharing, self.replicas) + ("-single" if self.single else "")


def shares_of(text: str) -> Shares:
    """The sharing of an entry. Raises BadEntryError."""
    try:
        parsed = yaml.safe_load(text) or {}
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BadEntryError(f"it is not YAML: {shown(str(error))}") from error
    sharing = parsed.get("sharing") or {} if isinstance(parsed, dict) else None
    if not isinstance(sharing, dict):
        raise BadEntryError("it is not a configuration of the device plugin")
    given = {key: each for key, each in sharing.items() if key in WAYS and each}
    if len(given) > 1:
        raise BadEntryError("it has timeSlicing and mps: keep one of them")
    for key, each in given.items():
        replicas, single = _replicas(each), each.get("failRequestsGreaterThanOne")
        if not isinstance(single, bool | None):
            raise BadEntryError(f"failRequestsGreaterThanOne is {shown(str(single))}: state true or false")
        return Shares(WAYS[key], replicas, WAYS[key] == Sharing.MPS if single is None else single)
    return Shares()


def _replicas(given: Any) -> int:
    if not isinstance(given, dict) or not isinstance(given.get("resources"), list):
        raise BadEntryError("it has no list of resources")
    if given.get("renameByDefault"):
        raise BadEntryError(f"set renameByDefault to false: pods that request {GPU} get no {GPU}.shared")
    for each in given["resources"]:
        if not isinstance(each, dict) or each.get("name") != GPU:
            raise BadEntryError(f"it shares another resource than {GPU}: {shown(str(each))}")
    counts = [each.get("replicas") for each in given["resources"]]
    if len(counts) != 1 or not isinstance(counts[0], int) or not 2 <= counts[0] <= GPU_MILLI:
        raise BadEntryError(f"replicas of {GPU} is {shown(str(counts))}: state one number from 2")
    return counts[0]
