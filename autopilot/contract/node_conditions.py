"""Node conditions of monitoring agents: no work should start on this node.

The node problem detector, agents of clouds and NVSentinel write them into the status of the node. Most have no effect
by themselves: the taint or the repair is an option, or comes later.
"""

from __future__ import annotations

KNOWN = (
    # EKS node monitoring agent 1.7
    "AcceleratedHardwareReady=False",
    "ContainerRuntimeReady=False",
    "KernelReady=False",
    "NetworkingReady=False",
    "StorageReady=False",
    # node problem detector of AKS
    "GPUMissing=True",
    "XIDErrors=True",
    "NVLinkStatusInactive=True",
    "IBLinkFlapping=True",
    "UnhealthyNvidiaDevicePlugin=True",
    "FilesystemCorruptionProblem=True",
    "KubeletProblem=True",
    "ContainerRuntimeProblem=True",
    # node problem detector, its shipped configurations
    "KernelDeadlock=True",
    "ReadonlyFilesystem=True",
    "CperHardwareErrorFatal=True",
    "XfsShutdown=True",
    "KubeletUnhealthy=True",
    "ContainerRuntimeUnhealthy=True",
    # NVSentinel 1.0, its checks of GPUs, links and system logs
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
    # Managed Kubernetes of Nebius
    "NebiusBootDiskIOError=True",
    "NebiusGPUError=True",
)
"""Type and status of conditions that keep new work away from their node."""


def pairs(conditions: tuple[str, ...]) -> frozenset[tuple[str, str]]:
    """The same as (type, status)."""
    return frozenset((kind, status) for kind, _, status in (each.partition("=") for each in conditions))


BAD = pairs(KNOWN)
"""The same of `KNOWN`, for where no setting names others."""
