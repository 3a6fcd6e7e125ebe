"""Every source of service measurements, read through a real Prometheus whose history was written before it started."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Batch, ServiceSignals
from collectors.promql import Series
from collectors.slo.collector import WINDOW_S, SloCollector
from collectors.slo.sources import DEFAULT_SOURCES, MEASURES, SOURCES, Source
from tests.kits.prometheus_kit import prometheus, write_history
from tests.kits.slo_text import CACHE, LATE_RATIO, QUEUE, REPLICAS, RPS, TEXTS, TOKENS_PER_S

SPEED = 2.0
"""Windows of 5 minutes and 1 minute are 150 s and 30 s of the history."""
EVERY_S, AHEAD_S = 10.0, 1200.0
"""Between two samples, and from the start of Prometheus to the last one."""
VARIANTS = {
    "old-vllm": "vllm",
    "behind-ray": "vllm",
    "collected-vllm": "vllm",
    "ranked-sglang": "sglang",
    "renamed-llm-d": "llm-d",
}
TWICE = {
    "two-jobs": (
        'job="a",namespace="prod",pod="{pod}"',
        'job="b",kubernetes_namespace="prod",kubernetes_pod_name="{pod}"',
    ),
    "two-stores": ('job="a",namespace="prod",pod="{pod}",ha="0"', 'job="a",namespace="prod",pod="{pod}",ha="1"'),
    "by-collector": (
        'job="a",namespace="prod",pod="{pod}"',
        'job="b",namespace="otel",pod="collector",exported_namespace="prod",exported_pod="{pod}"',
    ),
}
"""Labels of the two copies of each series of vLLM, where a server is scraped twice."""
SPACES = {
    "two-spaces": ('job="a",namespace="a",pod="chat-0"', 'job="a",namespace="b",pod="chat-0"'),
    "two-owners": ('job="a",namespace="a",pod="chat-0"', 'job="a",namespace="a",pod="code-5d9c7b9f64-x7k2p"'),
}
"""Labels of the two replicas of vLLM, where each is of a service of its own."""
CASES = [(name, VARIANTS.get(name, name)) for name in TEXTS] + [(name, "vllm") for name in TWICE]


@pytest.fixture(scope="module")
def url(require_tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that knows two replicas of every kind of server, each kind with a label `server` of its own."""
    folder = tmp_path_factory.mktemp("slo")
    write_history(require_tool("promtool"), folder, _history(time.time()))
    with prometheus(require_tool("prometheus"), folder, {"scrape_configs": []}) as found:
        yield found


def _history(now_s: float) -> str:
    """Load since long before `now_s`, in the format of OpenMetrics."""
    first_s = now_s - 2 * WINDOW_S / SPEED
    times_s = np.arange(first_s, now_s + AHEAD_S, EVERY_S).tolist()
    lines: list[str] = []
    shape = re.compile(r"([\w:]+)(?:\{(.*)\})? (\S+)")
    for name, text in [*TEXTS.items(), ("prefixed", _prefixed), ("half-dead", TEXTS["vllm"])]:
        for replica in range(REPLICAS):
            dead = name == "half-dead" and replica == 1
            job = "chat" if name == "tgi" else f"{name}-{replica}"
            owns = [f'server="{name}",instance="{name}-{replica}",job="{job}"']
            for twice, copies in TWICE.items() if name == "vllm" else ():
                owns += [f'server="{twice}",{each.format(pod=f"chat-{replica}")}' for each in copies]
            owns += [f'server="{each}",{own[replica]}' for each, own in SPACES.items() if name == "vllm"]
            for at_s in times_s:
                for found in map(shape.fullmatch, _dead() if dead else text(1000.0 + at_s - first_s)):
                    assert found is not None
                    series, labels, value = found.groups("")
                    inner = f"{labels}," if labels else ""
                    lines.extend(f"{series}{{{inner}{own}}} {value} {at_s:.3f}" for own in owns)
    return "\n".join([*lines, "# EOF", ""])


def _prefixed(t_s: float) -> list[str]:
    return [line.replace("vllm:", "ours_vllm:") for line in TEXTS["vllm"](t_s)]


def _dead() -> list[str]:
    """A replica of vLLM whose clients left."""
    return [re.sub(r"(num_requests_running\S+) .*", r"\1 0", line) for line in TEXTS["vllm"](1000.0)]


def _collector(url: str, kind: str, *sources: str, objective_s: float = 2.0) -> SloCollector:
    collector = SloCollector(
        url, sources=sources, objectives={"chat": objective_s}, matchers={"server": kind}, speed=SPEED, min_requests=50
    )
    collector.learn(tuple, lambda: {"chat": (np.nan, 2.5, 0.025)})
    return collector


def _chat(batch: Batch) -> dict[str, float]:
    signals = batch.services
    assert signals is not None, batch.gaps
    assert signals.service.tolist() == ["chat"]
    return {
        name: float(getattr(signals, name)[0])
        for name in ServiceSignals.__slots__
        if name not in {"service", "latencies"}
    }


@pytest.mark.parametrize(("kind", "source"), CASES, ids=[kind for kind, _ in CASES])
def test_a_source_tells_latency_demand_and_pressure(url: str, kind: str, source: str) -> None:
    """Each measure that its table row has is what happens at the server, over both replicas."""
    batch = _collector(url, kind, source).collect(100.0)
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
            assert found[measure] == pytest.approx(value, rel=0.01), measure
        else:
            assert np.isnan(found[measure]), measure
    assert 2.4 < found["p99_s"] <= 5.0
    for token, most_s in (("ttft", 5.0), ("itl", 0.05)):
        p99_s, late = found[f"{token}_p99_s"], found[f"recent_{token}_violation_ratio"]
        if f"{token}_within" in has:
            assert most_s / 2 < p99_s <= most_s
            assert late == pytest.approx(LATE_RATIO, abs=0.002)
        else:
            assert np.isnan([p99_s, late]).all()
    if "within" in has:
        assert found["violation_ratio"] == pytest.approx(LATE_RATIO, abs=0.002)
        assert found["recent_violation_ratio"] == pytest.approx(LATE_RATIO, abs=0.002)
    assert not [gap for gap in batch.gaps if "failed" in gap.reason]


def test_an_objective_between_two_edges_is_rounded_up_and_reported(url: str) -> None:
    """2.2 s is no edge of vLLM's buckets."""
    batch = _collector(url, "vllm", "vllm", objective_s=2.2).collect(0.0)
    assert [gap.reason for gap in batch.gaps] == ["the objective of 2.2 s is no bucket edge of vllm; 2.5 s is used"]
    assert _chat(batch)["violation_ratio"] == pytest.approx(LATE_RATIO, abs=0.002)


def test_too_few_requests_tell_no_latency(url: str) -> None:
    """The p99 of a handful of requests is noise; the rate is known all the same."""
    collector = SloCollector(url, sources=["vllm"], matchers={"server": "vllm"}, speed=SPEED, min_requests=1e6)
    found = _chat(collector.collect(0.0))
    assert np.isnan(found["p99_s"])
    assert found["rate_rps"] > 0


def test_a_service_that_a_source_does_not_know_is_unknown_and_not_zero(url: str) -> None:
    """Nothing matches: no service, and no signal. A gap says it, by source where sources are named."""
    batch = _collector(url, "nothing", *DEFAULT_SOURCES).collect(0.0)
    assert batch.services is not None
    assert len(batch.services.service) == 0
    assert [gap.reason for gap in batch.gaps] == ["holds no series of vllm, sglang, trtllm, triton, tgi, dynamo, llm-d"]
    batch = _collector(url, "vllm", "vllm", "tgi").collect(0.0)
    assert [gap.reason for gap in batch.gaps if "bucket" not in gap.reason] == ["tgi: holds no series"]


class _Counted(SloCollector):
    """Remembers what it asked; the names that it was told last are those of a SGLang."""

    def __init__(self, url: str) -> None:
        super().__init__(url, matchers={"server": "vllm"}, speed=SPEED, interval_s=1.0)
        self.asked: list[str] = []

    def _names_there(self) -> tuple[str, ...]:
        return ("sglang:num_queue_reqs",)

    def _query(self, source: Source, measure: str, window_s: float) -> list[Series] | str:
        self.asked.append(f"{source.name} {measure}")
        return super()._query(source, measure, window_s)


def test_a_kind_of_server_that_is_not_there_is_asked_one_thing(url: str) -> None:
    """Names are seldom looked at. A server that appears between two looks answers that, and is asked all next time."""
    collector = _Counted(url)
    answers = []
    for at_s in (0.0, 10.0, 20.0):
        before = len(collector.asked)
        collector.collect(at_s)
        answers.append(sorted(each for each in collector.asked[before:] if "sglang" not in each))
    first, second, third = answers
    signs = [f"{each} replicas" for each in ("llm-d", "tgi", "triton", "trtllm", "vllm")]
    assert first == ["dynamo rate_rps", "dynamo rate_rps", *signs]
    assert {*second} > {*first, "vllm p99_s", "vllm within"}
    assert second == third


def test_series_with_a_prefix_that_is_not_known_are_read(url: str) -> None:
    """They have all names by which a server is known; a gap says so."""
    batch = _collector(url, "prefixed", *DEFAULT_SOURCES).collect(0.0)
    assert _chat(batch)["queue_depth"] == QUEUE
    reasons = [gap.reason for gap in batch.gaps if "bucket" not in gap.reason]
    assert reasons == ["vllm: series with the prefix ours_vllm: are read, by the shape of their names"]


@pytest.mark.parametrize(
    ("kind", "known", "names"),
    [
        ("two-spaces", (), ["a/chat", "b/chat"]),
        ("two-spaces", ("a/chat", "b/chat"), ["a/chat", "b/chat"]),
        ("two-owners", ("a/chat", "a/code"), ["a/chat", "a/code"]),
    ],
)
def test_one_model_of_two_services_is_not_summed_up(
    url: str, kind: str, known: tuple[str, ...], names: list[str]
) -> None:
    """Each namespace and each owner of pods has its own rate and queue."""
    collector = _collector(url, kind, "vllm")
    collector.learn(lambda: known)
    found = collector.collect(0.0).services
    assert found is not None
    assert found.service.tolist() == names
    assert found.queue_depth.tolist() == [QUEUE / 2] * 2
    assert found.rate_rps.tolist() == pytest.approx([RPS / SPEED / 2] * 2, rel=0.01)
    assert found.replicas.tolist() == [1, 1]


def test_requests_that_wait_at_a_dead_engine_do_not_count(url: str) -> None:
    """One of two replicas ran and ended nothing for the whole window: what waits there is named and no queue."""
    batch = _collector(url, "half-dead", "vllm").collect(0.0)
    assert _chat(batch)["queue_depth"] == QUEUE / REPLICAS
    assert any("3.5 requests wait at servers that ran and ended none for 5 min" in gap.reason for gap in batch.gaps)


def test_a_prometheus_that_is_down_is_a_gap_for_each_query() -> None:
    """The batch has no signals: those of the cluster stay as they are, and age."""
    batch = _collector("http://127.0.0.1:1", "vllm", "vllm").collect(0.0)
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
    assert DEFAULT_SOURCES == ("vllm", "sglang", "trtllm", "triton", "tgi", "dynamo", "llm-d")
    assert {each.name for each in SOURCES if not each.verified} == {"kserve", "istio", "envoy"}
    assert all(set(each.queries) <= set(MEASURES) for each in SOURCES)
    with pytest.raises(InputError, match=r"slo.sources: 'vlm' is no source; did you mean vllm\?"):
        SloCollector("http://x", sources=["vlm"])
