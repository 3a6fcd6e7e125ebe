"""The facts read of a node and its pods before and after a change of MIG geometry."""

from __future__ import annotations

from collections import Counter

from actuators.kubernetes.api import Obj
from actuators.kubernetes.mig_file import Cuts
from actuators.kubernetes.objects import devices, label
from autopilot.core.model.objects import Geometry

CONFIG, STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
DEPLOY, PAUSED = "nvidia.com/gpu.deploy.", "paused-for-mig-change"


def holds_gpu(pod: Obj) -> bool:
    """True for a pod that has not ended and holds a GPU, an instance, or a device by a claim."""
    if (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
        return False
    spec = pod["spec"]
    asks = [
        name
        for each in (*(spec.get("initContainers") or ()), *spec["containers"])
        for kind in ("requests", "limits")
        for name in ((each.get("resources") or {}).get(kind) or {})
    ]
    return bool(spec.get("resourceClaims")) or any(name.startswith("nvidia.com/") for name in asks)


def cuts_of(geometry: Geometry | None) -> Cuts:
    """A geometry as numbers of instances: the manager takes no places."""
    return Cuts(None if geometry is None else dict(sorted(Counter(profile for profile, _ in geometry).items())))


def offered(node: Obj) -> dict[str, int]:
    """Allocatable GPUs and instances; zeros are left out, except for whole GPUs."""
    amounts = (node.get("status") or {}).get("allocatable") or {}
    found = {
        name: devices(name, amount)
        for name, amount in amounts.items()
        if name.startswith(("nvidia.com/gpu", "nvidia.com/mig-"))
    }
    return {"nvidia.com/gpu": 0} | {
        name: amount for name, amount in found.items() if amount or name == "nvidia.com/gpu"
    }


def gpus_of(node: Obj) -> int:
    """Number of its GPUs by its label; 0 for no number, or an impossible one: no node has a thousand GPUs."""
    value = label(node, "nvidia.com/gpu.count")
    return int(value) if value.isdecimal() and len(value) < 4 else 0


def counts_gpus(node: Obj) -> bool:
    """True if a device plugin has announced GPUs or instances as resources; a stopped plugin leaves their number at 0.

    With GPUs allocated by claims (dynamic resource allocation), none are.
    """
    amounts = (node.get("status") or {}).get("capacity") or {}
    return any(name.startswith(("nvidia.com/gpu", "nvidia.com/mig-")) for name in amounts)


def paused_clients(node: Obj) -> list[str]:
    """GPU clients not yet brought back by the manager."""
    labels = (node.get("metadata") or {}).get("labels") or {}
    return sorted(
        key.removeprefix(DEPLOY) for key, value in labels.items() if key.startswith(DEPLOY) and value == PAUSED
    )


def shown(amounts: dict[str, int]) -> str:
    """Amounts in words."""
    return ", ".join(f"{name}: {count}" for name, count in sorted(amounts.items()))
