"""Telemetry of idle GPUs in a Prometheus of the test: 40 minutes of it are there at once, and the next five too.

The autopilot calls work idle after half an hour. So that a story need not take as long, the history is written, and
the kubelet, which the test is, says that the pod has run all the time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autopilot.core.hardware import dcgm
from tests.kits.prometheus_kit import prometheus, write_history
from tests.kits.tools import find_tool

BACK_S, AHEAD_S, EVERY_S = 2400, 300, 15
RESTS = {1002: 0.0, 1004: 0.0, 1005: 1e-5, 1009: 5e5, 1010: 5e5, 203: 0.0, 252: 20_000.0}
"""A loaded GPU without work: field id -> number on the wire."""
IDLE_W, NOISE_W = 96.0, 0.5


@contextmanager
def idle_history(folder: Path, listen: str, node: str, pod: tuple[str, str], gpus: int = 8) -> Iterator[None]:
    """A Prometheus at `listen` which knows that these GPUs, held by `pod` (namespace, name), did nothing.

    Raises `MissingToolError` where there is no Prometheus.
    """
    binary, tool = find_tool("prometheus"), find_tool("promtool")
    folder.mkdir()
    write_history(tool, folder, _text(node, pod, gpus))
    with prometheus(binary, folder, {"scrape_configs": []}, listen=listen):
        yield


def _text(node: str, pod: tuple[str, str], gpus: int) -> str:
    """In the format of OpenMetrics."""
    first_s, lines = int(time.time()) - BACK_S, []
    times_s = range(first_s, first_s + BACK_S + AHEAD_S, EVERY_S)
    for number in (*RESTS, 155):
        name = dcgm.FIELDS[number].names[0]
        lines.append(f"# TYPE {name} gauge")
        for gpu in range(gpus):
            labels = {"gpu": gpu, "UUID": f"GPU-{node}-{gpu}", "modelName": "NVIDIA H100 80GB HBM3", "Hostname": node}
            labels |= {
                "namespace": pod[0],
                "pod": pod[1],
                "container": "main",
                "job": "dcgm",
                "instance": f"{node}:9400",
            }
            shown = ",".join(f'{key}="{value}"' for key, value in labels.items())
            for place, at_s in enumerate(times_s):
                value = RESTS.get(number, IDLE_W + NOISE_W * ((place + gpu) % 7))
                lines.append(f"{name}{{{shown}}} {value} {at_s}")
    return "\n".join([*lines, "# EOF", ""])
