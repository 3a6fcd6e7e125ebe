"""Acknowledgements, heartbeats and checkpoints as metrics: the helper of trainers, a real Prometheus, what is asked."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator

import numpy as np
import pytest

from autopilot.checkpoint import Request, Trainer
from autopilot.core.planning.losses import stop_losses
from collectors.checkpoint_reports import AGAIN_S, ASK_S, CheckpointReports
from collectors.prometheus import PrometheusCollector
from tests.kits.kube_objects import node, pod
from tests.kits.prometheus_kit import prometheus, until
from tests.unit.collectors.kubernetes.view import Seen

PROMETHEUS = shutil.which("prometheus")
POD, OTHER = ("team", "train-0"), ("team", "train-1")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that scrapes a trainer which has answered a request for a checkpoint."""
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
    with prometheus(PROMETHEUS, tmp_path_factory.mktemp("prometheus"), config) as address:
        yield address
    server.shutdown()
    server.server_close()


def test_a_trainer_that_may_not_annotate_is_heard(url: str) -> None:
    """Its own labels name the pod, whatever target was scraped. Another pod or request is not acknowledged."""
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


def test_its_checkpoint_is_in_the_price_of_a_stop(url: str) -> None:
    """Two pods have run for two hours. One saved just now, and says so by metric; the other one would lose its time."""
    begun_s = time.time() - 7200.0
    seen = Seen(node("n"), *(pod(name, 1, node="n", namespace=space, at_s=begun_s) for space, name in (POD, OTHER)))

    def known() -> PrometheusCollector | None:
        seen.now_s, source = time.time(), PrometheusCollector(url, joins=True)
        source.collect(seen.now_s)
        return source if source.training(seen.now_s) else None

    seen.collector.join(until(known, "the metrics of the trainer"))
    snapshot = seen.snapshot()
    losses = stop_losses(snapshot, seen.now_s, np.zeros(2))
    lost_s = dict(zip(snapshot.workloads.id.tolist(), losses.worst_gpu_s.tolist(), strict=True))
    assert 0.0 <= lost_s["team/train-0"] < 300.0
    assert lost_s["team/train-1"] == pytest.approx(7200.0, abs=300.0)


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
