"""A real Prometheus that scrapes the simulated cluster: the loop's collector sees what the simulator measured."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from autopilot.core.hardware.dcgm import SIGNALS, Quality
from collectors.prometheus import PrometheusCollector
from simulator.signals.behaviours import draw_jobs
from simulator.signals.dcgm_text import NodeExporter, PodLabels
from simulator.signals.telemetry import TelemetryGenerator
from simulator.signals.telemetry_entities import entities_of, idle_state
from simulator.specs.clusterfile import parse_cluster
from simulator.specs.inventory import build_inventory
from tests.e2e.test_prometheus_collector import free_port, samples_of, serving, until

SLOT = 100


def test_prometheus_brings_what_the_simulated_cluster_measured(
    tmp_path: Path, require_tool: Callable[[str], str]
) -> None:
    """Every GPU of the cluster arrives by its UUID, with the activity that its job has, busy or idle."""
    binary = require_tool("prometheus")
    inventory = build_inventory(parse_cluster("2x4"))
    entities, generator = entities_of(inventory), TelemetryGenerator(seed=5)
    state = idle_state(len(entities.id))
    names = [f"train-{n}" for n in range(5)]
    archetypes, levels = draw_jobs(5, names)
    for row in range(5):  # five of eight GPUs work
        state.job_code[row], state.archetype[row], state.level[row], state.since_s[row] = (
            row,
            archetypes[row],
            levels[row],
            0.0,
        )
    exporters = [NodeExporter(generator, inventory, entities, node) for node in range(2)]

    def answer(path: str) -> tuple[int, bytes]:
        exporter = exporters[int(path.rsplit("/", 1)[-1])]
        pods = [(PodLabels("team", names[row]),) if row < 5 else () for row in exporter.rows.tolist()]
        text = exporter.render(SLOT, state, pods)
        return (200, text) if text is not None else (503, b"")

    with serving(answer) as cluster:
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [
                {
                    "job_name": f"node-{node}",
                    "metrics_path": f"/{node}",
                    "static_configs": [{"targets": [urlsplit(cluster).netloc]}],
                }
                for node in range(2)
            ],
        }
        (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        address = f"127.0.0.1:{free_port()}"
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={tmp_path / 'prometheus.yml'}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address={address}",
                "--log.level=error",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            collector = PrometheusCollector(f"http://{address}", refresh=0.0, workers=2)
            batch = until(collector, lambda found: all(samples_of(found, name) >= 2 for name in entities.id.tolist()))
        finally:
            process.terminate()
            process.wait(10)
    telemetry = batch.telemetry
    assert telemetry is not None
    assert (telemetry.quality == Quality.SM_ACTIVE).all()
    expected, _ = generator.values(np.array([SLOT]), entities, state)
    place = {name: row for row, name in enumerate(telemetry.entity_ids.tolist())}
    rows = [place[name] for name in entities.id.tolist()]
    seen = telemetry.mean[SIGNALS.index("sm_active_ratio"), 0, rows]
    np.testing.assert_allclose(seen, expected[SIGNALS.index("sm_active_ratio"), 0], rtol=1e-5, atol=1e-6)
    assert (seen[:5] > 0.01).any()
    assert (seen[5:] < 0.01).all()
