"""Several sources of telemetry beside each other in one running service."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from apiserver.http.serve import Running as Api
from tests.kits.exporter_text import Device, render
from tests.kits.prometheus_kit import prometheus
from tests.kits.slo_text import TEXTS
from tests.service.kit import poll, service, settings
from tests.service.test_kubernetes_service import api  # noqa: F401 - a fixture
from tests.tidy.tree import ROOT

STRANGER = "gpu GPU-stranger NVIDIA_A100-SXM4-80GB 37 20480 250500 0 0 0 0\n"


def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gcc: str, gpus: str) -> None:
    """Build the stub of the driver with these GPUs, and let the service find it."""
    stub = ROOT / "tests" / "kits" / "nvml_stub.c"
    built = tmp_path / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-o", str(built), str(stub), "-lm", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([gcc, *flags], check=True)
    (tmp_path / "gpus").write_text(gpus)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("NVML_STUB_STATE", str(tmp_path / "gpus"))


@contextmanager
def exporters() -> Iterator[str]:
    """Texts of the exporters of two nodes (/n1, /n2) and of an inference server (/vllm)."""
    began_s = time.monotonic()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.strip("/")
            if name == "vllm":
                text = "\n".join(TEXTS["vllm"](time.monotonic() - began_s)) + "\n"
            else:
                text = render([Device(f"GPU-{name}-{k}", k) for k in range(8)], node=name)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_four_sources_deliver_at_once(
    api: Api,  # noqa: F811 - the fixture
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    require_tool: Callable[[str], str],
) -> None:
    """The exporter of one node, a Prometheus for both, the driver and services: each GPU has its best counter."""
    driver(tmp_path, monkeypatch, require_tool("gcc"), STRANGER.replace("GPU-stranger", "GPU-n1-0"))
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(api.kubeconfig(), "utf-8")
    with exporters() as address:
        jobs = [
            {"job_name": name, "metrics_path": f"/{name}", "static_configs": [{"targets": [address]}]}
            for name in ("n1", "n2", "vllm")
        ]
        scraping: dict[str, Any] = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
        with prometheus(require_tool("prometheus"), tmp_path, scraping) as url:
            content = settings(
                tmp_path / "state",
                kubernetes={"kubeconfig": str(kubeconfig), "watch_s": 2},
                collectors={
                    "exporters": {"targets": [f"http://{address}/n1"], "interval_s": 1},
                    "prometheus": {"url": url},
                    "nvml": {"node": "n1"},
                    "slo": {"url": url, "interval_s": 1},
                },
            )
            del content["simulation"]
            with service(tmp_path, content) as running:

                def measured() -> dict[str, Any] | None:
                    state: dict[str, Any] = running.ask("/api/v1/state").json()
                    health = {each["name"]: each for each in state.get("collectors", ())}
                    sources = ("exporter", "prometheus", "nvml", "slo")
                    good = all(name in health and not health[name]["problem"] for name in sources)
                    shown = running.ask("/api/v1/nodes").json()["gpus"]["activity_percent"] if good else [None]
                    return state if None not in shown else None

                state = poll(measured, "not every source delivers")
                percent = running.ask("/api/v1/nodes").json()["gpus"]["activity_percent"]
                named = {name: running.ask(f"/api/v1/nodes/{name}").json() for name in ("n1", "n2")}
    assert not state["halted"]
    assert state["signals"]["capacity_gpus"] == 16.0
    assert percent == [62] * 16, "the driver's 37 % of one GPU is a lesser counter than the exporter's"
    assert [each["uuid"] for found in named.values() for each in found["gpus"]] == [
        f"GPU-{name}-{k}" for name in ("n1", "n2") for k in range(8)
    ]


def test_the_driver_of_one_machine_does_not_replace_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, require_tool: Callable[[str], str]
) -> None:
    """Exporters, the driver and a Prometheus that is down: the cluster keeps its nodes, and ticks decide."""
    driver(tmp_path, monkeypatch, require_tool("gcc"), STRANGER)
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
