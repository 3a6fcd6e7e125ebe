"""Several sources of telemetry beside each other in one running service."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.service.kit import poll, service, settings
from tests.tidy.tree import ROOT

STRANGER = "gpu GPU-stranger NVIDIA_A100-SXM4-80GB 37 20480 250500 0 0 0 0\n"


def test_the_driver_of_one_machine_does_not_replace_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, require_tool: Callable[[str], str]
) -> None:
    """Exporters, the driver and a Prometheus that is down: the cluster keeps its nodes, and ticks decide."""
    stub = ROOT / "tests" / "kits" / "nvml_stub.c"
    built = tmp_path / "libnvidia-ml.so.1"
    command = [
        require_tool("gcc"),
        "-shared",
        "-fPIC",
        "-o",
        str(built),
        str(stub),
        "-lm",
        "-Wl,-soname,libnvidia-ml.so.1",
    ]
    subprocess.run(command, check=True)
    (tmp_path / "gpus").write_text(STRANGER)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("NVML_STUB_STATE", str(tmp_path / "gpus"))
    down = {"url": "http://127.0.0.1:9"}
    content = settings(
        tmp_path / "state",
        simulation={"scenario": "quickstart", "speed": 10, "telemetry": "scrape"},
        collectors={"nvml": {"node": "node-0"}, "prometheus": dict(down), "slo": dict(down)},
    )
    with service(tmp_path, content) as running:
        first = poll(running.tick, "a tick")
        poll(lambda: running.tick() > first + 3, "more ticks")
        state = running.ask("/api/v1/state").json()
    health = {each["name"]: each for each in state["collectors"]}
    assert {"nvml", "prometheus", "slo"} <= health.keys(), health
    assert not health["nvml"]["problem"]
    assert health["prometheus"]["problem"]
    assert not state["halted"]
    assert state["signals"]["capacity_gpus"] > 1, "those of the cluster, not the one of this machine"
