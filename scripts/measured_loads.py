"""Known loads on a GPU, in processes of their own, and the signals of GPM, for scripts/measure_pairs.py."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import TracebackType
from typing import Any, Self

SERVICES = ("decode", "vision")
"""One token of a decoder of 48 layers, in which every weight is read once; four images through a residual network."""
BATCH = ("gemm", "train_small", "train_mid", "copy", "starved")
"""Dense products; small and larger training of a transformer; copies inside the memory; training that waits for its
input 30 ms a step.
"""
INPUT_S = 0.03
ANSWER_S = 120.0
LEAST_LATENCIES = 20
MIB = 1 << 20

_GPM = {"sm_ratio": 2, "occupancy_ratio": 3, "tensor_ratio": 5, "dram_ratio": 10, "duty_ratio": 1}
"""NVML_GPM_METRIC_* numbers, as in collectors/nvml.py."""


def build(name: str, torch: Any) -> Callable[[], object]:
    """A load, ready on the GPU: each call is one step."""
    half: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    if name == "gemm":
        matrix = torch.randn(8192, 8192, **half)
        return lambda: matrix @ matrix
    if name == "copy":
        source = torch.empty(1 << 29, device="cuda", dtype=torch.int16)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)
    if name == "decode":
        weights, token = [torch.randn(4096, 4096, **half) for _ in range(48)], torch.randn(4, 4096, **half)
        return lambda: _decoded(token, weights)
    if name == "vision":
        layers = [torch.nn.Conv2d(256, 256, 3, padding=1, **half) for _ in range(50)]
        images = torch.randn(4, 256, 56, 56, **half)
        return lambda: _seen(images, layers, torch)
    return _training(name, torch, half)


def _decoded(token: Any, weights: list[Any]) -> Any:
    for weight in weights:
        token = (token @ weight).clamp_(-1, 1)
    return token


def _seen(images: Any, layers: list[Any], torch: Any) -> Any:
    with torch.inference_mode():
        for layer in layers:
            images = images + layer(images).relu_()
    return images


def _training(name: str, torch: Any, half: dict[str, Any]) -> Callable[[], object]:
    width, batch = (1024, 32) if name == "train_mid" else (512, 8)
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, **half)
    model = torch.nn.TransformerEncoder(layer, 8)
    optimizer, given = torch.optim.SGD(model.parameters(), 1e-4), torch.randn(batch, 256, width, **half)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(given).float().pow(2).mean().backward()
        optimizer.step()
        torch.cuda.synchronize()
        if name == "starved":
            time.sleep(INPUT_S)

    return step


def serve(pipe: Any) -> None:
    """Run the load that the parent process names."""
    torch, step = import_module("torch"), None
    while (told := pipe.recv()) is not None:
        try:
            if told[0] == "load":
                step = None
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                step = build(told[1], torch)
                for _ in range(5):
                    step()
                torch.cuda.synchronize()
                pipe.send({})
            elif step is not None:
                pipe.send(_timed(step, told[1], told[2], torch))
            else:
                pipe.send({"error": "nothing is loaded"})
        except Exception as error:  # noqa: BLE001 - out of memory, or the server is gone: it is a result
            pipe.send({"error": repr(error)[:300]})


def _timed(step: Callable[[], object], seconds: float, rate_per_s: float, torch: Any) -> dict[str, Any]:
    """Steps for `seconds`; with a rate as arrivals by chance, each with its latency from when it was due."""
    chance, began_s = random.Random(1), time.monotonic()
    due_s, count, latencies = began_s, 0, list[tuple[float, float]]()
    while (now_s := time.monotonic()) - began_s < seconds:
        if rate_per_s:
            due_s += chance.expovariate(rate_per_s)
            time.sleep(max(due_s - now_s, 0.0))
        step()
        torch.cuda.synchronize()
        count += 1
        if rate_per_s:
            latencies.append((due_s - began_s, 1e3 * (time.monotonic() - due_s)))
    # the context of CUDA is no part of what torch counts
    used = torch.cuda.mem_get_info()
    found = {
        "rate_per_s": round(count / (time.monotonic() - began_s), 4),
        "peak_mib": round(torch.cuda.max_memory_reserved() / MIB),
        "device_used_mib": round((used[1] - used[0]) / MIB),
        "latencies": latencies,
    }
    if len(latencies) >= LEAST_LATENCIES:
        ordered = sorted(ms for _, ms in latencies)
        found |= {
            "mean_ms": round(sum(ordered) / len(ordered), 3),
            "p50_ms": round(ordered[len(ordered) // 2], 3),
            "p99_ms": round(ordered[int(0.99 * len(ordered))], 3),
        }
    return found


class Client:
    """One process on the GPU. `environment` is added to its own: that of an MPS server, or nothing."""

    def __init__(self, environment: dict[str, str]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, there = spawn.Pipe()
        self._process = spawn.Process(target=serve, args=(there,), daemon=True)
        self._loaded = ""
        before = dict(os.environ)
        os.environ.update(environment)  # the child takes it at its start
        try:
            self._process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)

    def __enter__(self) -> Self:
        """The client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process by itself, so that an MPS server loses no client by a signal."""
        with suppress(OSError):
            self._pipe.send(None)
        self._process.join(ANSWER_S / 4)

    def load(self, name: str) -> None:
        """Have a load ready. A failure shows in the result of the next run."""
        if self._loaded != name:
            self._loaded = name
            self._send("load", name)
            if self._answer(ANSWER_S).get("error"):
                self._loaded = ""

    def start(self, seconds: float, rate_per_s: float) -> None:
        """Let it run, as fast as it can, or with arrivals of this rate."""
        self._send("run", seconds, rate_per_s)

    def result(self, seconds: float, *, times: bool = False) -> dict[str, Any]:
        """What came of the run: rate, memory, latencies; or its `error`."""
        found = self._answer(seconds + ANSWER_S)
        if not times:
            found.pop("latencies", None)
        return found

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        if self._process.pid is not None:
            os.kill(self._process.pid, number)

    def _send(self, *told: Any) -> None:
        with suppress(OSError):
            self._pipe.send(told)

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        try:
            return dict(self._pipe.recv()) if self._pipe.poll(timeout_s) else {"error": "no answer"}
        except (EOFError, OSError) as error:
            return {"error": f"the process ended: {error!r}"}


class Gpm:
    """Activity of the first GPU over a stretch, from two GPM samples; nothing where it has no GPM (before Hopper)."""

    def __init__(self) -> None:
        self._nvml = import_module("pynvml")
        self._nvml.nvmlInit()
        self._handle = self._nvml.nvmlDeviceGetHandleByIndex(0)
        with suppress(self._nvml.NVMLError):
            self._limit_w = self._nvml.nvmlDeviceGetEnforcedPowerLimit(self._handle) / 1000

    def over(self, seconds: float) -> dict[str, float]:
        """Wait, and return ratios over all but the first and last tenth of `seconds`; the power is at the end."""
        nvml = self._nvml
        time.sleep(0.1 * seconds)
        before = self._sample()
        time.sleep(0.8 * seconds)
        found: dict[str, float] = {}
        with suppress(nvml.NVMLError):
            found["power_w"] = nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000
            found["power_ratio"] = round(min(found["power_w"] / self._limit_w, 1.0), 4)
        after = self._sample()
        if before is None or after is None:
            return found
        ask = nvml.c_nvmlGpmMetricsGet_t()
        ask.version, ask.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(_GPM)
        ask.sample1, ask.sample2 = before, after
        for place, number in enumerate(_GPM.values()):
            ask.metrics[place].metricId = number
        with suppress(nvml.NVMLError):
            nvml.nvmlGpmMetricsGet(ask)
            for place, name in enumerate(_GPM):
                if ask.metrics[place].nvmlReturn == nvml.NVML_SUCCESS:
                    found[name] = round(min(ask.metrics[place].value / 100, 1.0), 4)
        for sample in (before, after):
            with suppress(nvml.NVMLError):
                nvml.nvmlGpmSampleFree(sample)
        return found

    def _sample(self) -> Any:
        nvml = self._nvml
        with suppress(nvml.NVMLError):
            sample = nvml.nvmlGpmSampleAlloc()
            nvml.nvmlGpmSampleGet(self._handle, sample)
            return sample
        return None
