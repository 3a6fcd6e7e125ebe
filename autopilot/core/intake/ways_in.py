"""The matrix of signals and ways in: the names of a signal on each way, and its uses.

An empty cell of the table is a stated limit of that way. At run time the snapshot decides: if no GPU or service has a
signal, each use of it in the policy in force gets a gap, for any cause. The gap names the disabled actions and the
names of the signal on the other ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from autopilot.core.hardware import dcgm
from autopilot.core.hardware.xid_facts import REMAP_UNKNOWN, UNKNOWN_XID
from autopilot.core.model.modes import Mode
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Gap
from autopilot.core.model.snapshot import ClusterSnapshot


class Way(StrEnum):
    """The way of a signal into the controller. Services are measured through a Prometheus alone (setting `slo`)."""

    SCRAPE = "direct scrape"
    PROMETHEUS = "Prometheus"
    NVML = "NVML"
    KUBERNETES = "Kubernetes"


@dataclass(frozen=True, slots=True)
class Use:
    """The use of a signal by some actions. `actions` are fields of `Modes`."""

    words: str
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Signal:
    """One row: `cells` has the names of the signal by way in. Without `uses`, no action needs it."""

    name: str
    words: str
    cells: Mapping[Way, tuple[str, ...]] = field(default_factory=dict)
    uses: tuple[Use, ...] = ()


_IDLE = Use("tell idle GPUs from active ones", ("notify_idle", "mark_idle", "suspend_idle"))
_HUNG = Use("detect hung gangs", ("recover",))
_BROKEN = Use("stop work on a broken GPU, or close its node", ("recover",))
_CUT = Use("cut GPUs anew", ("regeometry",))
_DEMAND = Use("foresee the demand of services", ("scale_ahead", "make_room"))
_AWAKE = Use("find services without requests", ("shrink_idle",))
_LATE = Use("see missed objectives of services", ("make_room", "scale_ahead"))
_SAVE = Use("save work before its node goes", ("recover",))
_PLACE = Use("place work", ("admit_gang", "backfill"))
_QUOTA = Use("give queues their guarantees", ("reclaim_borrowed", "preempt"))
_PRICE = Use("weigh a stop by its lost progress", ("preempt", "reclaim_borrowed", "defragment", "make_room"))


def _exported(*numbers: int, nvml: tuple[str, ...], counts: tuple[str, ...] = ()) -> dict[Way, tuple[str, ...]]:
    """The cells of DCGM fields: an exporter writes them under the same names for every reader. `counts`: its own."""
    names = (*(dcgm.FIELDS[number].names[0] for number in numbers), *counts)
    return {Way.SCRAPE: names, Way.PROMETHEUS: names} | ({Way.NVML: nvml} if nvml else {})


def _labelled(*labels: str) -> dict[Way, tuple[str, ...]]:
    return {Way.SCRAPE: labels, Way.PROMETHEUS: labels}


def _served(*names: str) -> dict[Way, tuple[str, ...]]:
    return {Way.PROMETHEUS: names}


def _written(*fields: str) -> dict[Way, tuple[str, ...]]:
    return {Way.KUBERNETES: fields}


_GPM = "NVML_GPM_METRIC_"
SIGNALS = (
    Signal("sm_active_ratio", "activity of the SMs",
           _exported(1002, 1001, nvml=(_GPM + "SM_UTIL", _GPM + "GRAPHICS_UTIL")), (_IDLE, _HUNG)),
    Signal("sm_occupancy_ratio", "resident warps", _exported(1003, nvml=(_GPM + "SM_OCCUPANCY",))),
    Signal("tensor_active_ratio", "activity of the tensor cores",
           _exported(1004, nvml=(_GPM + "ANY_TENSOR_UTIL",)), (_IDLE,)),
    Signal("dram_active_ratio", "activity of the memory",
           _exported(1005, nvml=(_GPM + "DRAM_BW_UTIL",)), (_IDLE, _HUNG)),
    Signal("gpu_util_ratio", "time in which a kernel ran, against counters that stand at 0",
           _exported(203, nvml=("nvmlDeviceGetUtilizationRates",))),
    Signal("fb_used_mib", "memory in use", _exported(252, nvml=("nvmlDeviceGetMemoryInfo",)), (_IDLE,)),
    Signal("power_w", "power", _exported(155, nvml=("nvmlDeviceGetPowerUsage",)), (_IDLE, _HUNG)),
    Signal("video_ratio", "use of the video engines; without it a GPU that only decodes may seem idle",
           _exported(206, 207, nvml=("nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization"))),
    Signal("duty_ratio", "busy time of the engine, for predictions on shared GPUs",
           _exported(1001, nvml=(_GPM + "GRAPHICS_UTIL",))),
    Signal("energy_mj", "energy counter, for metering", _exported(156, nvml=("nvmlDeviceGetTotalEnergyConsumption",))),
    Signal("nvlink_bytes_s", "traffic of NVLink",
           _exported(1011, 1012, nvml=(_GPM + "NVLINK_TOTAL_RX_PER_SEC", _GPM + "NVLINK_TOTAL_TX_PER_SEC"))),
    Signal("pcie_bytes_s", "traffic of PCIe",
           _exported(1009, 1010, nvml=(_GPM + "PCIE_TX_PER_SEC", _GPM + "PCIE_RX_PER_SEC"))),
    Signal("xid_code", "errors of GPUs (XIDs)",
           _exported(230, nvml=("nvmlEventTypeXidCriticalError",), counts=dcgm.XID_COUNTS), (_BROKEN,)),
    Signal("row_remap", "row remapping that failed or is pending",
           _exported(395, 396, nvml=("nvmlDeviceGetRemappedRows",)), (_BROKEN,)),
    Signal("ecc_errors", "counters of ECC errors; those that matter are XIDs too (48, 94, 95)"),
    Signal("sm_clock_mhz", "clock of the SMs, for stragglers", _exported(100, nvml=())),
    Signal("pcie_width", "PCIe lanes in use, for stragglers", _exported(238, nvml=())),
    Signal("gpu_uuid", "which GPUs a node has",
           {**_labelled("UUID"), Way.NVML: ("nvmlDeviceGetUUID",), Way.KUBERNETES: ("ResourceSlice attribute uuid",)}),
    Signal("mig", "MIG instances",
           {**_labelled("GPU_I_ID", "GPU_I_PROFILE"), Way.NVML: ("nvmlDeviceGetGpuInstances",),
            Way.KUBERNETES: ("nvidia.com/mig-*", "ResourceSlice attribute profile")}, (_CUT,)),
    Signal("pods", "which pod holds a GPU",
           {Way.SCRAPE: ("pod", "pod_name", "exported_pod"), Way.PROMETHEUS: ("exported_pod", "pod_name", "pod"),
            Way.KUBERNETES: ("ResourceClaim status.allocation",)}, (_IDLE, _HUNG, _BROKEN)),
    Signal("nodes", "nodes that are ready and open",
           _written("status.conditions Ready", "spec.unschedulable", "spec.taints"), (_PLACE,)),
    Signal("notice", "notices of spot nodes", _written("spec.taints", "status.conditions"), (_SAVE,)),
    Signal("checkpoint", "last checkpoint of work",
           {Way.PROMETHEUS: ("gpu_autopilot_checkpoint_timestamp_seconds",),
            Way.KUBERNETES: ("annotation last-checkpoint",)}, (_PRICE,)),
    Signal("heartbeat", "last progress of work that saves on request",
           {Way.PROMETHEUS: ("gpu_autopilot_heartbeat_timestamp_seconds",),
            Way.KUBERNETES: ("annotation heartbeat",)}, (_PRICE,)),
    Signal("quota", "queues and what they are guaranteed", _written("ClusterQueue", "Cohort", "LocalQueue"), (_QUOTA,)),
    Signal("replicas", "replicas of services",
           {Way.PROMETHEUS: ("vllm:num_requests_running",), Way.KUBERNETES: ("spec.replicas",)}, (_DEMAND,)),
    Signal("rate_rps", "requests to services", _served("vllm:request_success_total"), (_DEMAND, _AWAKE)),
    Signal("p99_s", "latency of services", _served("vllm:e2e_request_latency_seconds"), (_LATE,)),
    Signal("ttft_p99_s", "time to the first token", _served("vllm:time_to_first_token_seconds"), (_LATE,)),
    Signal("itl_p99_s", "time from one token to the next", _served("vllm:inter_token_latency_seconds"), (_LATE,)),
    Signal("queue_depth", "requests that wait", _served("vllm:num_requests_waiting"), (_DEMAND,)),
    Signal("tokens_per_s", "tokens of services", _served("vllm:generation_tokens_total"), (_DEMAND,)),
    Signal("kv_cache_ratio", "use of the KV cache", _served("vllm:kv_cache_usage_perc")),
)  # fmt: skip
"""Every signal. Of services it names the metrics of vLLM; docs/settings.md (`slo.sources`) has the other servers."""


def unread(snapshot: ClusterSnapshot, policy: Policy) -> tuple[Gap, ...]:
    """One gap for each use in the policy in force of a signal that no GPU, or no service, has."""
    lacking = [each for each in SIGNALS if each.uses and _unread(each.name, snapshot)]
    found = []
    for use in dict.fromkeys(use for each in lacking for use in each.uses):
        on = [name for name in use.actions if getattr(policy.modes, name) != Mode.OFF]
        if on:
            signals = [each for each in lacking if use in each.uses]
            reason = f"{', '.join(on)} cannot {use.words}: no source reads {'; '.join(map(_told, signals))}"
            found.append(Gap("policy", f"modes.{on[0]}", signals[0].name, reason))
    return tuple(found)


def _told(signal: Signal) -> str:
    ways = ", ".join(f"{way} {names[0]}" for way, names in signal.cells.items())
    return f"{signal.name} ({ways})"


def _unread(name: str, snapshot: ClusterSnapshot) -> bool:
    """True if no GPU, or no service, has a value. Other signals report their own absence."""
    gpus, services, table = snapshot.gpus, snapshot.services, snapshot.telemetry
    if name in dcgm.SIGNALS:
        return len(gpus.uuid) > 0 and not np.isfinite(table.means(name)).any()
    if name == "xid_code":
        return len(gpus.uuid) > 0 and bool((gpus.xid == UNKNOWN_XID).all())
    if name == "row_remap":
        return len(gpus.uuid) > 0 and bool((gpus.remap == REMAP_UNKNOWN).all())
    return name == "rate_rps" and len(services.id) > 0 and not np.isfinite(services.rate_rps).any()
