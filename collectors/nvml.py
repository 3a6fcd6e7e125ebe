"""GPUs of this machine, read from the driver (NVML): for a node without DCGM, and for the inventory.

Where the GPU has GPM (Hopper and later), SM activity, occupancy, tensor and DRAM activity and traffic come from two GPM
samples, the previous and the current one, so that a value is the mean since the last collect. Older GPUs have only
NVML's utilization, which means that some kernel ran, and are marked so. An error of the driver is a gap with its
reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import byref, c_uint
from typing import Any, TypeVar

import numpy as np

from autopilot.core.hardware import dcgm
from autopilot.core.hardware.dcgm import Quality
from autopilot.core.model.records import Batch, Gap
from collectors.attribution import Sighting, Sightings
from collectors.energy import EnergyCounters
from collectors.entities import Entities, dead_counters, fill_boards, missing_gaps
from collectors.nvml_errors import DriverErrors
from collectors.nvml_machine import Device, Instance, inventory_of, profile_name
from collectors.window import WindowBuffer

MIB = 1024 * 1024
GPM_LEAST_S = 0.1
"""Minimum interval between two GPM samples (NVIDIA's advice)."""

# GPM metric -> (signal, factor to its unit); percentages and MiB/s on the wire
_GPM: dict[str, tuple[tuple[int, ...], float]] = {
    "sm_active_ratio": ((2,), 0.01),
    "sm_occupancy_ratio": ((3,), 0.01),
    "tensor_active_ratio": ((5,), 0.01),
    "dram_active_ratio": ((10,), 0.01),
    "duty_ratio": ((1,), 0.01),
    "pcie_bytes_s": ((20, 21), MIB),
    "nvlink_bytes_s": ((60, 61), MIB),
}
_GPM_ENGINE = 1
_GPM_IDS = tuple(number for numbers, _ in _GPM.values() for number in numbers)
_INSTANCE_SIGNALS = ("sm_active_ratio", "sm_occupancy_ratio", "tensor_active_ratio", "dram_active_ratio", "duty_ratio")

T = TypeVar("T")


class NvmlCollector:
    """Inventory and windows of the GPUs of this machine. `node` is the name of their node.

    `bindings` replaces the `pynvml` module. Nothing is raised without a driver or a GPU: the batch then holds the
    reason as its one gap, and the next collect tries again.
    """

    name = "nvml"

    def __init__(
        self,
        node: str,
        *,
        windows_s: Sequence[float] = dcgm.WINDOWS_S,
        slot_s: float = 10.0,
        lists: bool = True,
        bindings: Any = None,
    ) -> None:
        """`lists`: report the GPUs as inventory; False beside a cluster, whose own inventory counts."""
        self.node, self.lists = node, lists
        self._nvml = bindings
        self._ready = False
        self._window = WindowBuffer(dcgm.SIGNALS, windows_s, slot_s)
        self._known: dict[int, Device] = {}  # by index, as last seen complete
        self._entities = Entities()
        self._gpm: dict[str, tuple[float, Any]] = {}  # entity -> time and last GPM sample
        self._energy = EnergyCounters()
        self._errors = DriverErrors()
        self._gaps: list[Gap] = []
        self._sightings = Sightings()

    def collect(self, now_s: float) -> Batch:
        """Read every GPU once and return the inventory and the windows."""
        self._gaps = []
        reason = self._start()
        if reason:
            return Batch(self.name, now_s, gaps=(Gap(self.name, self.node, "", reason),))
        nvml = self._nvml
        count = self._try("", "", nvml.nvmlDeviceGetCount)
        if count is None:
            return Batch(self.name, now_s, gaps=tuple(self._gaps))
        devices = [device for index in range(count) if (device := self._device(index))]
        self._measure(devices, now_s)
        self._see()
        return Batch(
            self.name,
            now_s,
            inventory=inventory_of(self.node, devices) if self.lists else None,
            telemetry=self._window.windowed(now_s),
            gaps=tuple(self._gaps),
            errors=self._errors.read(nvml, devices),
        )

    def sightings(self) -> Sightings:
        """The GPUs and instances by their UUIDs, as of the last `collect`, for the inventory of a cluster.

        The driver knows no pods.
        """
        return self._sightings

    def _see(self) -> None:
        seen = tuple(
            each
            for _, device in sorted(self._known.items())
            for each in (
                Sighting(device.uuid, host=self.node, model=device.model),
                *(Sighting(device.uuid, str(part.gi_id), part.profile, self.node) for part in device.instances),
            )
        )
        if seen != self._sightings.seen:
            self._sightings = Sightings(seen)

    def counted_w(self, now_s: float) -> dict[str, float]:
        """Mean watts by GPU UUID, by the energy counter; GPUs whose counter tells nothing are not in it."""
        return self._energy.power_w(now_s)

    def close(self) -> None:
        """Release the driver's handles."""
        if self._ready:
            for _, sample in self._gpm.values():
                self._try("", "", self._nvml.nvmlGpmSampleFree, sample)
            self._gpm.clear()
            self._errors.close(self._nvml)
            self._try("", "", self._nvml.nvmlShutdown)
            self._ready = False

    def _start(self) -> str:
        """Load and initialise NVML once; the reason when that fails."""
        if self._ready:
            return ""
        try:
            if self._nvml is None:
                import pynvml

                self._nvml = pynvml
            self._nvml.nvmlInit()
        except ImportError as error:
            return f"the Python package nvidia-ml-py is missing: {error}"
        except self._nvml.NVMLError as error:
            return f"NVML cannot be used: {error}"
        self._ready = True
        return ""

    def _try(self, entity: str, signal: str, call: Callable[..., T], *given: object) -> T | None:
        """The call's answer, or None with a gap that gives the driver's reason."""
        try:
            return call(*given)
        except self._nvml.NVMLError as error:
            self._gaps.append(Gap(self.name, entity or self.node, signal, f"{call.__name__}: {error}"))
            return None

    # --- inventory -----------------------------------------------------------------------------

    def _device(self, index: int) -> Device | None:
        """The GPU with this index; its last known state, marked unhealthy, when the driver lost it."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            device = Device(
                index, nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle), handle, True, False, []
            )
        except nvml.NVMLError as error:
            known = self._known.get(index)
            self._gaps.append(Gap(self.name, known.uuid if known else f"{self.node} GPU {index}", "", str(error)))
            if known:
                known.handle, known.healthy = None, False
            return known
        try:
            device.mig = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
        except nvml.NVMLError_NotSupported:
            device.mig = False
        except nvml.NVMLError as error:
            self._gaps.append(Gap(self.name, device.uuid, "mig", str(error)))
            device.healthy = error.value not in {nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED}
        if device.mig:
            device.instances = self._instances(device)
        self._known[index] = device
        return device

    def _instances(self, device: Device) -> list[Instance]:
        """GPU instances with their placement, by start. The driver lists them by profile."""
        nvml = self._nvml
        found: dict[int, Instance] = {}
        for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                profile = nvml.nvmlDeviceGetGpuInstanceProfileInfo(device.handle, number)
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument, nvml.NVMLError_NotFound):
                continue  # this GPU has no such profile
            except nvml.NVMLError as error:
                self._gaps.append(Gap(self.name, device.uuid, "mig", str(error)))
                return []
            handles = (nvml.c_nvmlGpuInstance_t * max(1, profile.instanceCount))()
            count = c_uint(len(handles))
            if (
                self._try(
                    device.uuid, "mig", nvml.nvmlDeviceGetGpuInstances, device.handle, profile.id, handles, byref(count)
                )
                is None
            ):
                continue
            for handle in handles[: count.value]:
                info = self._try(device.uuid, "mig", nvml.nvmlGpuInstanceGetInfo, handle)
                if info is not None:
                    found[info.id] = Instance(info.id, profile_name(profile), info.placement.start)
        return sorted(found.values(), key=lambda instance: instance.start)

    # --- telemetry -----------------------------------------------------------------------------

    def _measure(self, devices: list[Device], now_s: float) -> None:
        for device in devices:
            for instance in device.instances:
                self._entities.instance(device.uuid, str(instance.gi_id), instance.profile, device.model, self.node)
        # before measuring: GPM samples of the old and the new instance give no value
        recut, self._entities.recut = self._entities.recut, set()
        self._window.forget(recut)
        for entity in recut:
            self._gpm.pop(entity, None)
        readings: dict[int, tuple[dict[str, float], Quality]] = {}
        for device in devices:
            if device.handle is not None:
                readings[self._entities.board(device.uuid, self.node)] = self._board(device, now_s)
                readings |= self._parts(device, now_s)
        size = len(self._entities.ids)
        values, quality = np.full((len(dcgm.SIGNALS), size), np.nan, np.float32), np.zeros(size, np.int8)
        for column, (signals, grade) in readings.items():
            values[:, column] = [signals.get(name, math.nan) for name in dcgm.SIGNALS]
            quality[column] = grade
        present = np.zeros(size, bool)
        present[list(readings)] = True
        fill_boards(values, quality, self._entities, present)
        kept = np.flatnonzero(present)
        ids = np.array(self._entities.ids, dtype=object)[kept]
        self._window.put(now_s, ids, values[:, kept], quality[kept])
        told = {(gap.object_id, gap.signal) for gap in self._gaps}
        for gap in missing_gaps(self.name, list(ids), values[:, kept], "the driver returns no value"):
            if (gap.object_id, gap.signal) not in told:
                self._gaps.append(gap)

    def _board(self, device: Device, now_s: float) -> tuple[dict[str, float], Quality]:
        nvml, handle, uuid = self._nvml, device.handle, device.uuid
        signals: dict[str, float] = {}
        power = self._try(uuid, "power_w", nvml.nvmlDeviceGetPowerUsage, handle)
        if power is not None:
            signals["power_w"] = power / 1000.0
        with suppress(nvml.NVMLError):  # before Volta there is no counter
            self._energy.take([(uuid, now_s, float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)))])
        with suppress(nvml.NVMLError):  # in MIG mode, and on GPUs without such engines, there is none
            engines = nvml.nvmlDeviceGetEncoderUtilization, nvml.nvmlDeviceGetDecoderUtilization
            signals["video_ratio"] = max(engine(handle)[0] for engine in engines) / 100.0
        memory = self._try(uuid, "fb_used_mib", nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
        if memory is not None:
            signals["fb_used_mib"] = memory.used / MIB
        if device.instances:
            return signals, Quality.NONE  # the ratios are derived from its instances
        if self._has_gpm(device):
            return self._agreed(device, *self._gpm_signals(uuid, nvml.nvmlGpmSampleGet, (handle,), now_s, {}), signals)
        if not device.mig:
            rates = self._try(uuid, dcgm.SIGNALS[0], nvml.nvmlDeviceGetUtilizationRates, handle)
            if rates is not None:
                signals[dcgm.SIGNALS[0]] = rates.gpu / 100.0
                return signals, Quality.GPU_UTIL
        return signals, Quality.NONE

    def _agreed(
        self, device: Device, found: dict[str, float], grade: Quality, signals: dict[str, float]
    ) -> tuple[dict[str, float], Quality]:
        """`signals` with those of the counters, unless the utilization contradicts the counters."""
        rates = None
        with suppress(self._nvml.NVMLError):  # in MIG mode there is none
            rates = self._nvml.nvmlDeviceGetUtilizationRates(device.handle)
        if rates is not None and grade > Quality.NONE:
            given = {1002: dcgm.SIGNALS[0], 1004: "tensor_active_ratio", 1005: "dram_active_ratio"}
            fields = {number: np.array([found.get(name, math.nan)]) for number, name in given.items()}
            if dead_counters(fields | {203: np.array([rates.gpu / 100.0])}, [self.node])[0]:
                reason = f"GPM {dcgm.FAULT_TEXT[dcgm.Fault.CONTRADICTED]}"
                self._gaps.append(Gap(self.name, device.uuid, dcgm.SIGNALS[0], reason))
                return signals, Quality.NONE
        return signals | found, grade

    def _parts(self, device: Device, now_s: float) -> dict[int, tuple[dict[str, float], Quality]]:
        """Readings of the MIG instances of one GPU, by column."""
        nvml = self._nvml
        memory = self._instance_memory(device) if device.instances else {}
        gpm = bool(device.instances) and self._has_gpm(device)
        readings: dict[int, tuple[dict[str, float], Quality]] = {}
        for instance in device.instances:
            entity = dcgm.entity_id(device.uuid, str(instance.gi_id))
            signals: dict[str, float] = {}
            grade = Quality.NONE
            if gpm:
                source = (device.handle, instance.gi_id)
                signals, grade = self._gpm_signals(entity, nvml.nvmlGpmMigSampleGet, source, now_s, {})
                signals = {name: signals[name] for name in _INSTANCE_SIGNALS if name in signals}
            if instance.gi_id in memory:
                signals["fb_used_mib"] = memory[instance.gi_id]
            readings[self._entities.columns[entity]] = (signals, grade)
        return readings

    def _instance_memory(self, device: Device) -> dict[int, float]:
        """MiB in use by GPU instance id, summed over the MIG devices (compute instances) inside it."""
        nvml = self._nvml
        used: dict[int, float] = {}
        for index in range(self._try(device.uuid, "mig", nvml.nvmlDeviceGetMaxMigDeviceCount, device.handle) or 0):
            try:
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device.handle, index)
            except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
                continue  # fewer MIG devices than the maximum
            except nvml.NVMLError as error:
                self._gaps.append(Gap(self.name, device.uuid, "fb_used_mib", str(error)))
                continue
            gi_id = self._try(device.uuid, "mig", nvml.nvmlDeviceGetGpuInstanceId, part)
            memory = self._try(device.uuid, "fb_used_mib", nvml.nvmlDeviceGetMemoryInfo, part, nvml.nvmlMemory_v2)
            if gi_id is not None and memory is not None:
                # compute instances share the memory of their GPU instance: each reports the same use
                used[gi_id] = max(used.get(gi_id, 0.0), memory.used / MIB)
        return used

    def _has_gpm(self, device: Device) -> bool:
        try:
            return bool(self._nvml.nvmlGpmQueryDeviceSupport(device.handle).isSupportedDevice)
        except self._nvml.NVMLError:
            return False

    def _gpm_signals(
        self,
        entity: str,
        sample_of: Callable[..., Any],
        source: tuple[Any, ...],
        now_s: float,
        signals: dict[str, float],
    ) -> tuple[dict[str, float], Quality]:
        """Signals since the last sample of this entity, added to `signals`."""
        nvml = self._nvml
        before = self._gpm.get(entity)
        if before is not None and abs(now_s - before[0]) < GPM_LEAST_S:
            return signals, Quality.NONE
        sample = self._try(entity, dcgm.SIGNALS[0], nvml.nvmlGpmSampleAlloc)
        if sample is None:
            return signals, Quality.NONE
        if self._try(entity, dcgm.SIGNALS[0], sample_of, *source, sample) is None:
            self._try(entity, "", nvml.nvmlGpmSampleFree, sample)
            return signals, Quality.NONE
        self._gpm[entity] = (now_s, sample)
        if before is None:
            self._gaps.append(Gap(self.name, entity, dcgm.SIGNALS[0], "first GPM sample: a value needs two"))
            return signals, Quality.NONE
        found = self._gpm_metrics(entity, before[1], sample)
        self._try(entity, "", nvml.nvmlGpmSampleFree, before[1])
        for name, (numbers, factor) in _GPM.items():
            parts = [found.get(number, math.nan) for number in numbers]
            signals[name] = sum(parts) * factor
        grade = Quality.SM_ACTIVE
        if math.isnan(signals[dcgm.SIGNALS[0]]):
            signals[dcgm.SIGNALS[0]] = found.get(_GPM_ENGINE, math.nan) * 0.01
            grade = Quality.NONE if math.isnan(signals[dcgm.SIGNALS[0]]) else Quality.GR_ENGINE
        return {n: min(v, 1.0) if n.endswith("_ratio") else v for n, v in signals.items()}, grade

    def _gpm_metrics(self, entity: str, before: Any, after: Any) -> dict[int, float]:
        """GPM metrics between two samples, without those that this GPU lacks, or NaN."""
        nvml = self._nvml
        ask = nvml.c_nvmlGpmMetricsGet_t()
        ask.version, ask.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(_GPM_IDS)
        ask.sample1, ask.sample2 = before, after
        for place, number in enumerate(_GPM_IDS):
            ask.metrics[place].metricId = number
        answer = self._try(entity, dcgm.SIGNALS[0], nvml.nvmlGpmMetricsGet, ask)
        if answer is None:
            return {}
        given = {m.metricId: (m.nvmlReturn, m.value) for m in answer.metrics[: len(_GPM_IDS)]}
        return {n: v for n, (code, v) in given.items() if code == nvml.NVML_SUCCESS and v >= 0 and math.isfinite(v)}
