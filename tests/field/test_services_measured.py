"""What inference servers, gateways and stores have been reported to show, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from math import isnan
from typing import Any

import pytest

from autopilot.oncall.payload import parse_payload
from collectors.slo.collector import SloCollector
from tests.kits.field_kit import FOLDER
from tests.kits.field_services import PROM, Found, answering, answers_of, measured, stub

Ask = Callable[..., tuple[Found, list[str]]]


@pytest.fixture(scope="module")
def ask(require_tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Asks for the services of one file."""
    with answering(require_tool, tmp_path_factory.mktemp("field"), PROM) as url:

        def asked(case: str, ours: Collection[str] = (), **more: Any) -> tuple[Found, list[str]]:
            collector = SloCollector(url, matchers={"file": case}, **more)
            collector.learn(lambda: ours)
            return measured(collector)

        yield asked


def test_an_answer_of_a_part_of_the_stores_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of a rate is unknown, and a gap says so (thanos-io/thanos: partial_response)."""
    spec, turn = answers_of("23a-partial-answer/answers.yaml"), [0]
    for module in ("collector", "names"):
        monkeypatch.setattr(f"collectors.slo.{module}.get_limited", stub(spec, lambda: turn[0]))
    collector = SloCollector("http://thanos", sources=spec["sources"], interval_s=1.0)
    whole, _ = measured(collector, 0.0)
    turn[0] = 1
    part, gaps = measured(collector, 10.0)
    assert whole["prod/chat"]["rate_rps"] == pytest.approx(30.0)
    assert not part
    assert any("No StoreAPIs matched" in each for each in gaps)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_gateway_that_renamed_its_metrics_is_read(ask: Ask, when: str) -> None:
    """By its old and its new names (llm-d/llm-d-router#2821)."""
    found, _ = ask(f"23d-renamed-gateway/{when}.prom")
    assert found["qwen"]["queue_depth"] == 21
    assert found["qwen"]["replicas"] == 3
    assert found["qwen"]["rate_rps"] == pytest.approx(500, rel=0.02)


@pytest.mark.parametrize(("file", "model"), [("ray", "ray-model"), ("otel", "otel-model")])
def test_servers_behind_a_prefix_are_read(ask: Ask, file: str, model: str) -> None:
    """Ray Serve and collectors of OpenTelemetry write one (ray-project/ray#52719)."""
    found, _ = ask(f"23e-prefixed-servers/{file}.prom")
    assert found[model]["queue_depth"] == 2
    assert found[model]["tokens_per_s"] == pytest.approx(100_000, rel=0.02)


def test_a_throughput_that_is_left_over_is_none_and_ranks_are_no_replicas(ask: Ask) -> None:
    """SGLang keeps it after the last request; eight ranks of one pod are one replica (sgl-project/sglang#4244)."""
    found, _ = ask("23f-sglang/sglang.prom")
    assert not found["idle"]["tokens_per_s"] > 0
    assert found["ranks"]["replicas"] == 1
    assert found["ranks"]["kv_cache_ratio"] == pytest.approx(0.98)


def test_requests_that_wait_for_ever_are_no_queue(ask: Ask) -> None:
    """Their clients left; nothing runs and nothing ends (vllm-project/vllm#29928)."""
    found, gaps = ask("23g-waiting-for-ever/stuck.prom")
    assert isnan(found["stuck"]["queue_depth"])
    assert any("37 requests wait at servers that ran and ended none" in each for each in gaps)


@pytest.mark.parametrize("engine", ["sglang", "trtllm", "triton", "tgi", "llm-d"])
def test_no_server_of_the_table_keeps_a_queue_that_nobody_serves(ask: Ask, engine: str) -> None:
    """The same of every kind of server that has a queue; one that serves keeps its own."""
    found, gaps = ask(f"stuck-servers/{engine}.prom")
    assert isnan(found["stuck"]["queue_depth"])
    assert found["busy"]["queue_depth"] == 12
    assert [each for each in gaps if "ran and ended none" in each] == [
        f"{engine}: 12 requests wait at servers that ran and ended none for 5 min; they do not count"
    ]


@pytest.mark.parametrize("file", ["once", "jobs", "replicas"])
def test_a_server_that_is_scraped_twice_counts_once(ask: Ask, file: str) -> None:
    """By two jobs, or by two replicas of Prometheus (prometheus-operator/prometheus-operator#5274)."""
    found, _ = ask(f"37-scraped-twice/{file}.prom", services={"Qwen/Qwen3-32B": "prod/qwen"})
    assert found["prod/qwen"]["queue_depth"] == 10
    assert found["prod/qwen"]["rate_rps"] == pytest.approx(600, rel=0.02)
    assert found["prod/qwen"]["tokens_per_s"] == pytest.approx(120_000, rel=0.02)
    assert found["prod/qwen"]["replicas"] == 1


OURS = ("prod/llm", "dev/llm", "prod/triton")


@pytest.mark.parametrize(
    ("file", "expected", "gap"),
    [
        ("two-models", {"prod/llm": {"replicas": 1, "queue_depth": 3, "rate_rps": 10}}, ""),
        ("otel", {"prod/llm": {"queue_depth": 2, "rate_rps": 5}, "dev/llm": {"queue_depth": 9, "rate_rps": 5}}, ""),
        ("clusters", {}, "series of 2 clusters (label cluster: east, west) are read as of one"),
        ("no-prefix", {"prod/llm": {"queue_depth": 2}}, "vllm: series without a prefix are read"),
        ("router", {"qwen": {"replicas": 2, "queue_depth": 7}}, ""),
        ("steps", {"prod/triton": {"replicas": 1, "rate_rps": 15}}, "triton: the requests to its 3 models add up"),
        ("old-dynamo", {"qwen": {"rate_rps": 5, "ttft_p99_s": 4.6}}, "the prefix nv_llm_http_service_"),
    ],
)
def test_servers_as_others_deploy_and_label_them(
    ask: Ask, file: str, expected: dict[str, dict[str, float]], gap: str
) -> None:
    """A pod counts once, a namespace is none of another, a worker behind a router counts (smg-project/smg#813); what
    may be counted twice is said (triton-inference-server/tensorrtllm_backend#49).
    """
    found, gaps = ask(f"servers-of-others/{file}.prom", ours=OURS)
    for service, values in expected.items():
        assert {name: found[service][name] for name in values} == pytest.approx(values, rel=0.02)
    said = [each for each in gaps if "no source measures" not in each and "no service of the cluster" not in each]
    assert [gap in each for each in said] == ([True] if gap else [])


@pytest.mark.parametrize(
    ("file", "alerts", "skipped"), [("24-grafana-control/grafana", 2, 0), ("24b-nameless-alert/nameless", 1, 1)]
)
def test_an_alert_without_a_name_costs_no_other(file: str, alerts: int, skipped: int) -> None:
    """A delivery of Grafana is read whole; one of two alerts that has no name is skipped (grafana/grafana#41330)."""
    found = parse_payload((FOLDER / f"{file}.json").read_bytes())
    assert len(found.alerts) == alerts
    assert len(found.refused) == skipped
