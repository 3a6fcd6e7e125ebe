"""Acknowledgements and heartbeats as metrics: the helper of trainers, a real Prometheus, and what the actuator asks."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from autopilot.checkpoint import Request, Trainer
from collectors.checkpoint_reports import AGAIN_S, ASK_S, CheckpointReports
from tests.kits.prometheus_kit import prometheus, until

PROMETHEUS = shutil.which("prometheus")
POD, OTHER = ("team", "train-0"), ("team", "train-1")


def test_a_trainer_that_may_not_annotate_is_heard(tmp_path: Path) -> None:
    """Its own labels name the pod, whatever target was scraped. Another pod or request is not acknowledged."""
    if PROMETHEUS is None:
        pytest.skip("needs prometheus")
    trainer = Trainer({"POD_NAMESPACE": POD[0], "POD_NAME": POD[1]})
    server = trainer.serve(0, host="127.0.0.1")
    trainer.heartbeat(6)
    trainer.post(Request('7/p/"w"'))
    trainer.acknowledge(7, "/ckpt/7")
    target = f"127.0.0.1:{server.server_address[1]}"
    labels = {"namespace": "monitoring", "pod": "sidecar-0"}
    scrape = {"job_name": "trainers", "static_configs": [{"targets": [target], "labels": labels}]}
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}
    with prometheus(PROMETHEUS, tmp_path, config) as url:
        clock = [0.0]
        reports = CheckpointReports(url, steady_s=lambda: clock[0])

        def heard() -> bool:
            clock[0] += ASK_S
            return reports.acknowledged('7/p/"w"', [POD])

        until(heard, "the acknowledgement")
        assert not reports.acknowledged('7/p/"w"', [OTHER, ("monitoring", "sidecar-0")])
        assert not reports.acknowledged("8/p/w", [POD])
        (beat,) = reports.heartbeats_s([POD, OTHER]).items()
        assert beat[0] == POD
        assert abs(beat[1] - time.time()) < 120.0
    server.shutdown()
    server.server_close()


def test_a_prometheus_that_does_not_answer_acknowledges_nothing() -> None:
    """It is asked again after half a minute, and not at each tick."""
    clock = [0.0]
    reports = CheckpointReports("http://127.0.0.1:9", steady_s=lambda: clock[0])
    assert not reports.acknowledged("7/p/w", [POD])
    assert reports.problem
    reports.problem = ""
    assert reports.heartbeats_s([POD]) == {}
    assert reports.problem == ""
    clock[0] = AGAIN_S
    assert not reports.acknowledged("7/p/w", [POD])
    assert reports.problem
