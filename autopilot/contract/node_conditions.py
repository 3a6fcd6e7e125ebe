"""Node conditions of monitoring agents: no work should start on this node.

The node problem detector, agents of clouds and NVSentinel write them into the status of the node. Most have no effect
by themselves: the taint or the repair is an option, or comes later. gpud of Lepton writes none. Conditions that only
report do not belong here, such as restarts (`Frequent...`), `VMEventScheduled`, `GPUClockThrottling` and
`UnhealthyNvidiaDCGMServices`.
"""

from __future__ import annotations

import re

from autopilot.core.hardware.xid_facts import Remedy, remedy_of

KNOWN = (
    # EKS node monitoring agent 1.7, pkg/reasons/reasons.yaml: False for what is Fatal, all else are Events
    "AcceleratedHardwareReady=False",
    "ContainerRuntimeReady=False",
    "KernelReady=False",
    "NetworkingReady=False",
    "StorageReady=False",
    # node problem detector of AKS, its documentation: "a permanent problem that makes the node unavailable"
    "GPUMissing=True",
    "XIDErrors=True",
    "NVLinkStatusInactive=True",
    "IBLinkFlapping=True",
    "UnhealthyNvidiaDevicePlugin=True",
    "FilesystemCorruptionProblem=True",
    "KubeletProblem=True",
    "ContainerRuntimeProblem=True",
    # node problem detector, config/*.json: rules of type "permanent", without those of Docker and of counters
    "KernelDeadlock=True",
    "ReadonlyFilesystem=True",
    "CperHardwareErrorFatal=True",
    "XfsShutdown=True",
    "KubeletUnhealthy=True",
    "ContainerRuntimeUnhealthy=True",
    # NVSentinel 1.0, platform-connectors/.../process_node_events.go: for fatal events, all else are Events
    "GpuDriverWatch=True",
    "GpuInforomWatch=True",
    "GpuMemWatch=True",
    "GpuNvlinkWatch=True",
    "GpuNvswitchFatalWatch=True",
    "GpuPcieWatch=True",
    "GpuPowerWatch=True",
    "GpuSmWatch=True",
    "GpuThermalWatch=True",
    "SysLogsGPUFallenOff=True",
    "SysLogsSXIDError=True",
    "SysLogsXIDError=True",
    # Managed Kubernetes of Nebius, its documentation: nodes restarted by its repair
    "NebiusBootDiskIOError=True",
    "NebiusGPUError=True",
)
"""Type and status of conditions against new work on their node."""

OF_MONITORING = frozenset({("AcceleratedHardwareReady", "DCGMError")})
"""Type and reason of conditions about the agent: that of EKS cannot reach DCGM. AWS lists no repair for it."""

_CODE = re.compile(r"\bxid\w*(?: errors?| code)?\s*(?:\(pci[^)]*\))?\s*[:=#]?\s*(\d{1,3})\b", re.IGNORECASE)


def harmless(kind: str, reason: str, message: str) -> str:
    """Reason to take a condition of `KNOWN` as harmless to its node; "" for none.

    The check of AKS (azure_gpu_xid of Azure's health checks) also reports harmless codes, such as 63 and 92.
    """
    if (kind, reason) in OF_MONITORING:
        return "it is about the agent, not about a GPU"
    codes = [int(code) for code in _CODE.findall(message)] if kind == "XIDErrors" else []
    if codes and all(remedy_of(code) == Remedy.NONE for code in codes):
        return f"XID {', '.join(map(str, codes))} needs no repair"
    return ""


def pairs(conditions: tuple[str, ...]) -> frozenset[tuple[str, str]]:
    """The same as (type, status)."""
    return frozenset((kind, status) for kind, _, status in (each.partition("=") for each in conditions))


BAD = pairs(KNOWN)
"""The same of `KNOWN`, for settings without others."""
