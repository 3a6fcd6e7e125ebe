"""Every source of service measurements, read through a real Prometheus."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import requests

from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Batch, ServiceSignals
from collectors.slo.collector import SloCollector
from collectors.slo.sources import DEFAULT_SOURCES, MEASURES, SOURCES
from tests.kits.prometheus_kit import prometheus, until
from tests.kits.slo_text import CACHE, LATE_RATIO, QUEUE, REPLICAS, RPS, TEXTS, TOKENS_PER_S
from tests.service.kit import poll

PROMETHEUS = shutil.which("prometheus")
SPEED = 60.0
"""Windows of 5 minutes and 1 minute are 5 s and 1 s of the scraped time."""
CASES = [(name, name) for name in TEXTS if name != "old-vllm"] + [("old-vllm", "vllm")]


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """Two replicas of every kind of server, under their load since the start."""
    began_s = time.monotonic()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = urlsplit(self.path).path.strip("/").split("/")[0]
            body = ("\n".join(TEXTS[name](time.monotonic() - began_s)) + "\n").encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def url(served: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that scrapes them, each kind with a label of its own."""
    if PROMETHEUS is None:
        pytest.skip("needs prometheus")
    jobs: list[dict[str, Any]] = [
        {
            "job_name": "chat" if name == "tgi" else name,
            "metrics_path": f"/{name}/{replica}",
            "static_configs": [{"targets": [served], "labels": {"kind": name, "instance": f"{name}-{replica}"}}],
        }
        for name in TEXTS
        for replica in range(REPLICAS)
    ]
    for number, job in enumerate(jobs):
        job["job_name"] = f"job-{number}"
        if job["metrics_path"].startswith("/tgi/"):
            job["relabel_configs"] = [{"target_label": "job", "replacement": "chat"}]
    config = {"global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"}, "scrape_configs": jobs}
    with prometheus(PROMETHEUS, tmp_path_factory.mktemp("slo"), config) as found:
        query = {"query": "count(count_over_time(up[5s]) >= 18)"}

        def full() -> bool:
            result = requests.get(f"{found}/api/v1/query", query, timeout=5).json()["data"]["result"]
            return bool(result) and int(result[0]["value"][1]) == len(jobs)

        until(full, "each target has a window of samples", 40.0)
        yield found


def _collector(url: str, kind: str, *sources: str, objective_s: float = 2.0) -> SloCollector:
    return SloCollector(
        url, sources=sources, objectives={"chat": objective_s}, matchers={"kind": kind}, speed=SPEED, min_requests=50
    )


def _chat(batch: Batch) -> dict[str, float]:
    signals = batch.services
    assert signals is not None, batch.gaps
    assert signals.service.tolist() == ["chat"]
    return {name: float(getattr(signals, name)[0]) for name in ServiceSignals.__slots__ if name != "service"}


def _settled(url: str, kind: str, source: str) -> Batch | None:
    """An answer once its rates are those of the traffic: a machine under load misses scrapes."""
    batch = _collector(url, kind, source).collect(100.0)
    found = _chat(batch)
    near = [abs(found[measure] * SPEED / RPS - 1) < 0.2 for measure in ("rate_rps", "recent_rps")]
    return batch if all(near) else None


@pytest.mark.parametrize(("kind", "source"), CASES, ids=[kind for kind, _ in CASES])
def test_a_source_tells_latency_demand_and_pressure(url: str, kind: str, source: str) -> None:
    """Each measure that its table row has is what happens at the server, over both replicas."""
    batch = poll(lambda: _settled(url, kind, source), "both windows are full of samples", 20.0)
    found, has = _chat(batch), next(each.queries for each in SOURCES if each.name == source)
    expected = {
        "rate_rps": RPS / SPEED,
        "recent_rps": RPS / SPEED,
        "tokens_per_s": TOKENS_PER_S / SPEED,
        "queue_depth": QUEUE,
        "kv_cache_ratio": CACHE,
        "replicas": REPLICAS,
    }
    for measure, value in expected.items():
        if measure in has or measure == "recent_rps":
            assert found[measure] == pytest.approx(value, rel=0.25), measure
        else:
            assert np.isnan(found[measure]), measure
    assert 2.4 < found["p99_s"] <= 5.0
    if "within" in has:
        assert found["violation_ratio"] == pytest.approx(LATE_RATIO, abs=0.02)
        assert found["recent_violation_ratio"] == pytest.approx(LATE_RATIO, abs=0.02)
    assert not [gap for gap in batch.gaps if "failed" in gap.reason]


def test_an_objective_between_two_edges_is_rounded_up_and_reported(url: str) -> None:
    """2.2 s is no edge of vLLM's buckets."""
    batch = _collector(url, "vllm", "vllm", objective_s=2.2).collect(0.0)
    assert [gap.reason for gap in batch.gaps] == ["the objective of 2.2 s is no bucket edge of vllm; 2.5 s is used"]
    assert _chat(batch)["violation_ratio"] == pytest.approx(LATE_RATIO, abs=0.02)


def test_too_few_requests_tell_no_latency(url: str) -> None:
    """The p99 of a handful of requests is noise; the rate is known all the same."""
    collector = SloCollector(url, sources=["vllm"], matchers={"kind": "vllm"}, speed=SPEED, min_requests=1e6)
    found = _chat(collector.collect(0.0))
    assert np.isnan(found["p99_s"])
    assert found["rate_rps"] > 0


def test_a_service_that_a_source_does_not_know_is_unknown_and_not_zero(url: str) -> None:
    """Nothing matches: no service, and no signal."""
    batch = _collector(url, "nothing", *DEFAULT_SOURCES).collect(0.0)
    assert batch.services is not None
    assert len(batch.services.service) == 0


def test_a_prometheus_that_is_down_is_a_gap_for_each_query() -> None:
    """The batch has no signals: those of the cluster stay as they are, and age."""
    batch = SloCollector("http://127.0.0.1:1", sources=["vllm"]).collect(0.0)
    assert batch.services is None
    assert len(batch.gaps) == len(next(each.queries for each in SOURCES if each.name == "vllm"))
    assert "vllm: the query of p99_s failed: " in batch.gaps[0].reason


def test_an_answer_ages_until_the_next_question(url: str) -> None:
    """Between two questions nothing is asked."""
    collector = _collector(url, "vllm", "vllm")
    assert _chat(collector.collect(100.0))["age_s"] == 0.0
    assert _chat(collector.collect(110.0))["age_s"] == 10.0
    assert _chat(collector.collect(115.0))["age_s"] == 0.0


def test_unverified_sources_are_off_and_unknown_ones_refused() -> None:
    """A name from general knowledge has to be asked for."""
    assert DEFAULT_SOURCES == ("vllm", "sglang", "triton", "tgi", "llm-d")
    assert {each.name for each in SOURCES if not each.verified} == {"kserve", "istio", "envoy"}
    assert all(set(each.queries) <= set(MEASURES) for each in SOURCES)
    with pytest.raises(InputError, match=r"slo.sources: 'vlm' is no source; did you mean vllm\?"):
        SloCollector("http://x", sources=["vlm"])
