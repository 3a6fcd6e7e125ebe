"""Measure pairs of work on one GPU that you own: how much each slows the other, by mechanism.

    python scripts/measure_pairs.py OUT.json [--seconds 4] [--loads gemm copy ...] [--dry-run]

It runs seven loads alone, two of them also as services at half of the rate that they reach, then pairs of them under
time slicing and under MPS: rates, latencies, and the profiling signals of GPM. After that it stops and continues a
neighbour, and last it kills a client of MPS. About ten minutes with the defaults; `--dry-run` prints the plan. It needs
an NVIDIA driver with `nvidia-ml-py` and PyTorch; `nvidia-cuda-mps-control` for MPS. It uses the first visible GPU, on
which nothing else may run, and changes no setting of it: compute mode, MIG, clocks and power stay as they are. The MPS
server is its own, in a folder of its own. Where something is missing, it says SKIPPED with the reason, and writes
nothing. docs/shared-gpus.md has the format of OUT.json, and what reads it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autopilot.core.hardware.gpu_products import find_product  # the checkout first, not an installed copy
from autopilot.core.model.colocation import Mechanism
from models.colocation_table import SCHEMA
from scripts.measured_loads import BATCH, SERVICES, Client, Gpm

HALF = "half"
"""After the name of a load: served open-loop at half of its rate alone, with Poisson arrivals."""
LOW, FORTY = "batch below normal", "batch below normal, 40 % of the threads"
SETTLE_S = 3.0
CONTROL = "nvidia-cuda-mps-control"
BACK_RATIO = 1.2
"""Latencies are back once they are at most this many times the p99 alone."""


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement: who runs, by which mechanism, and with which settings of the batch client of MPS."""

    names: tuple[str, ...]
    mechanism: str = "alone"
    setting: str = ""


def plan(loads: Sequence[str]) -> list[Case]:
    """All cases of these loads, in their order: alone, by time slicing, by MPS, by MPS with its settings."""
    services = [name for name in SERVICES if name in loads]
    batch = [name for name in BATCH if name in loads]
    alone = [Case((name,)) for name in (*services, *batch)] + [Case((f"{name} {HALF}",)) for name in services]
    under = [(f"{name} {HALF}", other) for name in services for other in batch]
    beside = [(own, other) for at, own in enumerate(batch) for other in batch[at:]]
    pairs = [Case(names, way) for way in (Mechanism.TIME_SLICING, Mechanism.MPS) for names in (*under, *beside)]
    return alone + pairs + [Case(names, Mechanism.MPS, setting) for setting in (LOW, FORTY) for names in under]


def missing() -> str:
    """Why nothing can be measured on this machine; "" where all is there."""
    for module, package in (("torch", "PyTorch"), ("pynvml", "nvidia-ml-py")):
        try:
            import_module(module)
        except ImportError:
            return f"{package} is not installed: install it in this environment"
    torch, nvml = import_module("torch"), import_module("pynvml")
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
    except nvml.NVMLError as error:
        return f"no GPU: {error}; run it on a machine with an NVIDIA GPU and its driver"
    with suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetMigMode(handle)[0]:
            return "the first GPU is in MIG mode: choose a machine whose GPU is whole"
    if not torch.cuda.is_available():
        return "this PyTorch has no CUDA: install a build for the driver of this machine"
    with suppress(nvml.NVMLError):
        busy = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        if busy:
            return f"{len(busy)} other programs use the GPU: end them first"
    return ""


def machine() -> dict[str, Any]:
    """Where the numbers come from."""
    torch, nvml = import_module("torch"), import_module("pynvml")
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    name = nvml.nvmlDeviceGetName(handle)
    memory_mib = nvml.nvmlDeviceGetMemoryInfo(handle).total >> 20
    product = find_product(name, memory_mib)
    return {
        "gpu": name,
        "gpu_model": product.name if product is not None else name,
        "memory_mib": memory_mib,
        "power_limit_w": nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def document(where: Mapping[str, Any], seconds: float, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The file from the measured cases: kinds from those alone, pairs relative to them, and all cases as they were.

    The rate of a load is its steps per second over those alone. A service at half load has its speed in that place: its
    mean latency alone over that beside the other.
    """
    alone = {case["names"][0]: case for case in results if case["mechanism"] == "alone" and _runs(case["clients"][0])}
    kinds = {
        name: {
            "rate_per_s": case["clients"][0]["rate_per_s"],
            "peak_mib": max(case["clients"][0]["peak_mib"], case["clients"][0]["device_used_mib"]),
            **{key: case["signals"].get(key) for key in ("sm_ratio", "dram_ratio", "duty_ratio", "power_ratio")},
        }
        for name, case in alone.items()
    }
    together = [case for case in results if len(case["names"]) == 2 and not case["setting"]]
    together = [case for case in together if kinds.keys() >= set(case["names"])]
    pairs = []
    for case in together:
        (a, b), clients = case["names"], case["clients"]
        rates = {"rate_a": _relative(alone[a], clients[0]), "rate_b": _relative(alone[b], clients[1])}
        pairs.append({"mechanism": case["mechanism"], "a": a, "b": b, **rates})
    return {
        "schema": SCHEMA,
        "machine": dict(where),
        "seconds": seconds,
        "kinds": kinds,
        "pairs": pairs,
        "activity": [_activity(case, kinds) for case in together],
        "cases": list(results),
    }


def _runs(client: Mapping[str, Any]) -> bool:
    return "error" not in client and client["rate_per_s"] > 0


def _relative(alone: Mapping[str, Any], own: Mapping[str, Any]) -> float | None:
    """The rate of one of a pair; None for a case that failed."""
    if not _runs(own):
        return None
    lone = alone["clients"][0]
    if lone.get("mean_ms") and own.get("mean_ms"):
        return round(float(lone["mean_ms"]) / float(own["mean_ms"]), 4)
    return round(float(own["rate_per_s"]) / float(lone["rate_per_s"]), 4)


def _activity(case: Mapping[str, Any], kinds: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The SM activity of a pair beside what could stand for it: the sum, at most 1, and the union by chance."""
    one, two = (kinds[name]["sm_ratio"] for name in case["names"])
    known = one is not None and two is not None
    return {
        "mechanism": case["mechanism"],
        "a": case["names"][0],
        "b": case["names"][1],
        "sm_ratio": case["signals"].get("sm_ratio"),
        "sum_ratio": round(min(one + two, 1.0), 4) if known else None,
        "union_ratio": round(one + two - one * two, 4) if known else None,
    }


# --- measuring -----------------------------------------------------------------------------------------


@contextmanager
def mps_server() -> Iterator[dict[str, str] | None]:
    """The environment of clients of an MPS server of our own; None where there is no MPS."""
    if shutil.which(CONTROL) is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        started = subprocess.run([CONTROL, "-d"], env={**os.environ, **own}, check=False)
        try:
            yield own if started.returncode == 0 else None
        finally:
            subprocess.run([CONTROL], input=b"quit\n", env={**os.environ, **own}, check=False)


def run_case(
    case: Case, clients: Sequence[Client], rates: Mapping[str, float], seconds: float, gpm: Gpm
) -> dict[str, Any]:
    """Load what is not loaded, let all run at the same time, and read GPM in between."""
    for client, name in zip(clients, case.names, strict=True):
        client.load(name.removesuffix(f" {HALF}"))
    for client, name in zip(clients, case.names, strict=True):
        client.start(seconds, rates[name.removesuffix(f" {HALF}")] / 2 if name.endswith(HALF) else 0.0)
    signals = gpm.over(seconds)
    found = [client.result(seconds) for client in clients]
    return {**_named(case), "signals": signals, "clients": found}


def step_back(service: str, batch: str, clients: Sequence[Client], rate: float, p99_ms: float) -> dict[str, Any]:
    """Seconds from SIGSTOP of the batch client until the latencies of the service are back, and that it goes on."""
    seconds = 9.0
    for client, name in zip(clients, (service, batch), strict=True):
        client.load(name)
    clients[0].start(seconds, rate)
    clients[1].start(seconds, 0.0)
    time.sleep(SETTLE_S)
    clients[1].signal(signal.SIGSTOP)
    stopped_s = SETTLE_S
    time.sleep(SETTLE_S)
    clients[1].signal(signal.SIGCONT)
    front, behind = (client.result(seconds, times=True) for client in clients)
    late = [
        at_s for at_s, ms in front.pop("latencies", []) if stopped_s <= at_s < 2 * SETTLE_S and ms > BACK_RATIO * p99_ms
    ]
    behind.pop("latencies", None)
    return {"service": front, "batch": behind, "back_after_s": round(max(late, default=stopped_s) - stopped_s, 3)}


def measure(cases: Sequence[Case], seconds: float) -> list[dict[str, Any]]:
    """Run every case in order. The row of a case that fails has the error."""
    results, gpm = list[dict[str, Any]](), Gpm()
    rates: dict[str, float] = {}
    lone_p99: dict[str, float] = {}

    def run(case: Case, clients: Sequence[Client]) -> None:
        plain = [name.removesuffix(f" {HALF}") for name in case.names]
        loaded_alone = case.mechanism == "alone" and tuple(plain) == case.names
        if not loaded_alone and not rates.keys() >= set(plain):
            return  # it failed alone
        results.append(run_case(case, clients, rates, seconds, gpm))
        print(f"  {case.mechanism}: {', '.join(case.names)} {case.setting}", file=sys.stderr, flush=True)
        first = results[-1]["clients"][0]
        if case.mechanism == "alone" and _runs(first):
            rates.setdefault(plain[0], first["rate_per_s"])
            lone_p99[case.names[0]] = first.get("p99_ms", 0.0)

    def of(mechanism: str, setting: str = "") -> list[Case]:
        return [case for case in cases if (case.mechanism, case.setting) == (mechanism, setting)]

    with Client({}) as front, Client({}) as behind:
        for case in of("alone"):
            run(case, [front])
        for case in of(Mechanism.TIME_SLICING):
            run(case, [front, behind])
        results += _stepped(of(Mechanism.TIME_SLICING), [front, behind], rates, lone_p99)
    with mps_server() as environment:
        if environment is None:
            print(f"SKIPPED: MPS: {CONTROL} is not there, or did not start", file=sys.stderr)
            return results
        low = environment | {"CUDA_MPS_CLIENT_PRIORITY": "1"}
        settings = {"": environment, LOW: low, FORTY: low | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40"}}
        for setting, own in settings.items():
            with Client(environment) as front, Client(own) as behind:
                for case in of(Mechanism.MPS, setting):
                    run(case, [front, behind])
                results += _stepped(of(Mechanism.MPS, setting), [front, behind], rates, lone_p99)
        results += _killed(of(Mechanism.MPS), environment, rates)
    return results


def _stepped(
    cases: Sequence[Case], clients: Sequence[Client], rates: Mapping[str, float], lone_p99: Mapping[str, float]
) -> list[dict[str, Any]]:
    """The step back of the first service of these cases; none where there is no service."""
    for case in cases:
        service, batch = case.names[0].removesuffix(f" {HALF}"), case.names[1]
        if case.names[0].endswith(HALF) and {service, batch} <= rates.keys():
            found = step_back(service, batch, clients, rates[service] / 2, lone_p99.get(case.names[0], 0.0))
            return [_named(case) | {"names": [], "clients": [], "signals": {}, "step_back": found}]
    return []


def _killed(cases: Sequence[Case], environment: dict[str, str], rates: Mapping[str, float]) -> list[dict[str, Any]]:
    """Last, because it may take the server with it: whether a client of MPS survives the SIGKILL of its neighbour."""
    for case in cases:
        names = [name.removesuffix(f" {HALF}") for name in case.names]
        if rates.keys() >= set(names):
            with Client(environment) as front, Client(environment) as behind:
                for client, name in zip((front, behind), names, strict=True):
                    client.load(name)
                    client.start(6.0, 0.0)
                time.sleep(2.0)
                behind.signal(signal.SIGKILL)
                found = front.result(6.0)
            return [_named(case) | {"names": [], "clients": [], "signals": {}, "neighbour_killed": found}]
    return []


def _named(case: Case) -> dict[str, Any]:
    return {"mechanism": str(case.mechanism), "setting": case.setting, "names": list(case.names)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or say why not. The exit code is 0 in both cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT.json")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one case")
    parser.add_argument("--loads", nargs="+", choices=(*SERVICES, *BATCH), default=[*SERVICES, *BATCH], metavar="NAME")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, and measure nothing")
    given = parser.parse_args(arguments)
    if not 1.0 <= given.seconds <= 600.0:
        parser.error(f"--seconds is {given.seconds:g}; give 1 to 600")
    cases = plan(given.loads)
    if given.dry_run:
        for case in cases:
            print(f"{case.mechanism}: {', '.join(case.names)}{f' ({case.setting})' if case.setting else ''}")
        print(f"{len(cases)} cases, about {len(cases) * (given.seconds + 1) / 60:.0f} min")
        return 0
    why = missing()
    if why:
        print(f"SKIPPED: {why}")
        return 0
    results = measure(cases, given.seconds)
    given.out.write_text(json.dumps(document(machine(), given.seconds, results), indent=1) + "\n", encoding="utf-8")
    print(f"wrote {given.out}: {len(results)} cases. Read it with: python -m benchmarks colocation {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
