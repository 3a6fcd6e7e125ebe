"""Record what the driver of this machine's first GPU says, idle and under known loads.

    python scripts/record_nvml.py FILE [--seconds 40] [--loads NAME ...]

FILE (JSON) gets the driver's facts (MIG profiles with their placements, memory, energy counter), and for
each load one reading a second of the NVML collector, beside what the load itself counted (FLOP/s, bytes/s). It needs an
NVIDIA driver with `nvidia-ml-py`, and PyTorch for the loads. It changes no setting of the GPU. tests/data/nvml holds
recordings; tests/unit/collectors/test_nvml_recordings.py says what they show.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_uint
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autopilot.core.hardware import dcgm  # the checkout first, not an installed copy
from collectors.nvml import NvmlCollector

SETTLE_S = 4.0
"""Between the start of a load and its first reading: clocks and power settle."""
PERIOD_S = 0.1


def facts(nvml: Any) -> dict[str, Any]:
    """The driver's answers about the first GPU, call by call; an error is recorded as its text."""
    handle = nvml.nvmlDeviceGetHandleByIndex(0)

    def ask(call: Callable[..., Any], *given: Any) -> Any:
        try:
            found = call(*given)
        except nvml.NVMLError as error:
            return type(error).__name__
        return found.decode() if isinstance(found, bytes) else found

    memory = nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
    return {
        "driver": ask(nvml.nvmlSystemGetDriverVersion),
        "name": ask(nvml.nvmlDeviceGetName, handle),
        "uuid_length": len(ask(nvml.nvmlDeviceGetUUID, handle)),
        "mig_mode": ask(nvml.nvmlDeviceGetMigMode, handle),
        "gpm": ask(lambda: bool(nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)),
        "memory_mib": {name: getattr(memory, name) / 2**20 for name in ("total", "reserved", "free", "used")},
        "power_limit_w": ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
        "energy_mj": ask(nvml.nvmlDeviceGetTotalEnergyConsumption, handle),
        "remapped_rows": ask(nvml.nvmlDeviceGetRemappedRows, handle),
        "pci_device_id": ask(lambda: f"{nvml.nvmlDeviceGetPciInfo(handle).pciDeviceId:#010x}"),
        "profiles": [_profile(nvml, handle, number) for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT)],
    }


def _profile(nvml: Any, handle: Any, number: int) -> dict[str, Any]:
    """One MIG profile of the GPU, with the legal places of its instances."""
    try:
        info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number)
    except nvml.NVMLError as error:
        return {"number": number, "error": type(error).__name__}
    named = ("id", "sliceCount", "instanceCount", "multiprocessorCount", "memorySizeMB")
    found: dict[str, Any] = {"number": number, **{name: int(getattr(info, name)) for name in named}}
    found["name"] = info.name.decode() if isinstance(info.name, bytes) else str(info.name)
    try:
        places = (nvml.c_nvmlGpuInstancePlacement_t * 16)()
        count = c_uint(16)
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, info.id, places, byref(count))
        found["placements"] = [[place.start, place.size] for place in places[: count.value]]
    except (nvml.NVMLError, AttributeError) as error:
        found["placements"] = type(error).__name__
    return found


# --- loads ---------------------------------------------------------------------------------------


def _loop(torch: Any, seconds: float, step: Callable[[], float], every_s: float = 0.0) -> float:
    """Repeat `step` for `seconds`, one in each `every_s`; the amount returned by the steps, per second."""
    begun = time.monotonic()
    done = 0.0
    while (now_s := time.monotonic()) < begun + seconds:
        done += step()
        torch.cuda.synchronize()
        if every_s:
            time.sleep(max(0.0, now_s + every_s - time.monotonic()))
    return done / (time.monotonic() - begun)


def load_held(torch: Any, seconds: float) -> dict[str, float]:
    """8 GiB are allocated, and nothing runs."""
    kept = torch.zeros(8 * 2**30, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    time.sleep(seconds)
    return {"held_bytes": float(kept.numel())}


def load_keep_alive(torch: Any, seconds: float) -> dict[str, float]:
    """A few small fp32 products each 100 ms: the work of a script against idle reclaim."""
    a = torch.randn(2048, 2048, device="cuda")

    def step() -> float:
        for _ in range(6):
            a @ a
        return 6 * 2.0 * 2048**3

    return {"flop_s": _loop(torch, seconds, step, PERIOD_S)}


def load_keep_alive_bf16(torch: Any, seconds: float) -> dict[str, float]:
    """The same with larger products in bf16, run on the tensor cores."""
    a = torch.randn(4096, 4096, dtype=torch.bfloat16, device="cuda")

    def step() -> float:
        for _ in range(8):
            a @ a
        return 8 * 2.0 * 4096**3

    return {"flop_s": _loop(torch, seconds, step, PERIOD_S)}


def load_one_block(torch: Any, seconds: float) -> dict[str, float]:
    """Kernels of one block, back to back: the GPU is in use all the time, and one of its SMs."""
    a = torch.randn(1024, device="cuda")

    def step() -> float:
        for _ in range(2000):
            a.mul_(1.0)
        return 2000.0

    return {"kernels_s": _loop(torch, seconds, step)}


def load_matmul(torch: Any, seconds: float) -> dict[str, float]:
    """bf16 products of 8192 x 8192 matrices."""
    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    b = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    c = torch.empty_like(a)

    def step() -> float:
        for _ in range(20):
            torch.matmul(a, b, out=c)
        return 20 * 2.0 * 8192**3

    return {"flop_s": _loop(torch, seconds, step)}


def load_copy(torch: Any, seconds: float) -> dict[str, float]:
    """Copies of 4 GiB inside the memory of the GPU: bytes read and written."""
    a = torch.zeros(4 * 2**30, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)

    def step() -> float:
        for _ in range(10):
            b.copy_(a)
        return 10 * 2.0 * 4 * 2**30

    return {"bytes_s": _loop(torch, seconds, step)}


def load_decode(torch: Any, seconds: float) -> dict[str, float]:
    """Products of one vector with 16 GiB of weights, 20 ms apart: the shape of decoding with a small batch."""
    weights = [torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(128)]
    x = torch.randn(8192, 1, dtype=torch.bfloat16, device="cuda")

    def step() -> float:
        for w in weights:
            w @ x
        return 128 * 2.0 * 8192**2

    return {"bytes_s": _loop(torch, seconds, step, 0.02)}


def load_loading(torch: Any, seconds: float) -> dict[str, float]:
    """Copies of 256 MiB from pinned memory of the host."""
    host = torch.zeros(2**28, dtype=torch.uint8).pin_memory()
    device = torch.empty(2**28, dtype=torch.uint8, device="cuda")

    def step() -> float:
        device.copy_(host, non_blocking=True)
        return 2.0**28

    return {"bytes_s": _loop(torch, seconds, step)}


def load_bursts(torch: Any, seconds: float) -> dict[str, float]:
    """Half a second of products, then 9.5 s of nothing: a notebook with a cell run now and then."""
    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")

    def step() -> float:
        until = time.monotonic() + 0.5
        done = 0.0
        while time.monotonic() < until:
            a @ a
            torch.cuda.synchronize()
            done += 2.0 * 8192**3
        return done

    return {"flop_s": _loop(torch, seconds, step, 10.0)}


LOADS: dict[str, Callable[[Any, float], dict[str, float]]] = {
    "held": load_held,
    "keep_alive": load_keep_alive,
    "keep_alive_bf16": load_keep_alive_bf16,
    "one_block": load_one_block,
    "matmul": load_matmul,
    "copy": load_copy,
    "decode": load_decode,
    "loading": load_loading,
    "bursts": load_bursts,
}


def run_load(name: str, seconds: float) -> None:
    """Run a load in this process; a line at its begin, and one with its counts."""
    torch: Any = import_module("torch")
    torch.zeros(1, device="cuda")
    print("begun", flush=True)
    print(json.dumps(LOADS[name](torch, seconds)), flush=True)


# --- readings ------------------------------------------------------------------------------------


def watch(seconds: float) -> dict[str, Any]:
    """One reading a second of the collector: signals in the order of `dcgm.SIGNALS`, None if not measured."""
    collector = NvmlCollector("here", windows_s=(0.9,), slot_s=0.9)
    rows: list[list[float | None]] = []
    gaps: set[tuple[str, str]] = set()
    spent_s: list[float] = []
    quality = 0
    begun = time.time()
    for number in range(int(seconds) + 1):
        time.sleep(max(0.0, begun + number - time.time()))
        at_s = time.time()
        batch = collector.collect(at_s)
        spent_s.append(time.time() - at_s)
        if number:  # the first reading has no GPM value
            gaps |= {(gap.signal, gap.reason) for gap in batch.gaps}
        seen = batch.telemetry
        if seen is not None and len(seen.entity_ids):
            values = seen.mean[:, 0, 0].tolist()
            rows.append([None if math.isnan(value) else float(f"{value:.6g}") for value in values])
            quality = int(seen.quality[0])
    counted = list(collector.counted_w(time.time()).values())
    collector.close()
    return {
        "rows": rows,
        "quality": quality,
        "gaps": sorted(gaps),
        "counted_w": counted,
        "collect_s": [round(max(spent_s[1:]), 5), round(sum(spent_s[1:]) / len(spent_s[1:]), 5)],
    }


def record(name: str, seconds: float) -> dict[str, Any]:
    """The readings under one load, with the counts of the load."""
    command = [sys.executable, __file__, "-", "--run", name, "--seconds", str(seconds + 2 * SETTLE_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
        assert load.stdout is not None
        load.stdout.readline()
        time.sleep(SETTLE_S)
        found = watch(seconds)
        found["counted"] = json.loads(load.stdout.readline())
    return found


def written(found: dict[str, Any]) -> str:
    """The recording as JSON with a line for each fact, profile and load."""
    blocks = {"profiles": [json.dumps(each) for each in found["profiles"]]}
    blocks["loads"] = [f"{json.dumps(name)}: {json.dumps(each)}" for name, each in found["loads"].items()]
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in found.items() if name not in blocks]
    for name, rows in blocks.items():
        opened, closed = "[]" if name == "profiles" else "{}"
        lines.append(f" {json.dumps(name)}: {opened}\n  " + ",\n  ".join(rows) + f"\n {closed}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    """Record and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="where the recording goes")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each load (default 40)")
    parser.add_argument("--loads", nargs="*", choices=LOADS, default=list(LOADS), help="default: all")
    parser.add_argument("--run", choices=LOADS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        run_load(given.run, given.seconds)
        return
    import pynvml

    pynvml.nvmlInit()
    found: dict[str, Any] = {"signals": dcgm.SIGNALS, **facts(pynvml)}
    pynvml.nvmlShutdown()
    found["loads"] = {"none": watch(given.seconds / 2)}
    for name in given.loads:
        found["loads"][name] = record(name, given.seconds)
        kept = found["loads"][name]
        middle = kept["rows"][len(kept["rows"]) // 2]
        print(name, dict(zip(dcgm.SIGNALS, middle, strict=True)), kept["counted"], kept["counted_w"], flush=True)
        given.file.write_text(written(found), "utf-8")


if __name__ == "__main__":
    main()
