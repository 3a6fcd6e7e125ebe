"""The latencies of single replicas from a Prometheus: which are asked for, and what is unknown."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from autopilot.core.model.latencies import ReplicaLatency, sharing_replicas
from collectors.promql import Series
from collectors.slo.replicas import AT_ONCE, Replicas, queries_of
from collectors.slo.sources import SOURCES, Source

BY_NAME = {each.name: each for each in SOURCES}
BUCKETS = {"0.5": 10.0, "1.0": 30.0, "2.5": 40.0, "+Inf": 40.0}


def series(pod: str, value: float, **labels: str) -> Series:
    """One series of a pod of namespace `web`."""
    return Series({"autopilot_namespace": "web", "autopilot_pod": pod, **labels}, (0.0, str(value)))


def asked(answers: dict[str, dict[str, float]], *, pods: list[str] | None = None) -> tuple[ReplicaLatency, list[str]]:
    """The table of vLLM's buckets by pod, and the queries."""
    found, texts = Replicas(), list[str]()
    found.sharing = lambda: [f"web/{each}" for each in (list(answers) if pods is None else pods)]

    def ask(query: str) -> list[Series] | str:
        texts.append(query)
        return [series(pod, count, le=edge) for pod, each in answers.items() for edge, count in each.items()]

    return found.table([BY_NAME["vllm"], BY_NAME["dynamo"]], 125.0, 1.0, ask), texts


def test_the_mean_log_latency_is_that_of_the_buckets_of_the_last_minute() -> None:
    """By replica, with the mark of its buckets; a gateway is not asked."""
    table, texts = asked({"a": BUCKETS, "b": {**BUCKETS, "0.5": 30.0}})
    assert (table.id.tolist(), table.minute_s.tolist(), table.age_s.tolist()) == (
        ["web/a", "web/b"],
        [60.0] * 2,
        [5.0] * 2,
    )
    assert table.requests.tolist() == [40.0, 40.0]
    assert table.mean_log_s[1] < table.mean_log_s[0] < math.log(1.0)
    assert table.buckets[0] == table.buckets[1] != 0
    (text,) = texts
    assert 'pod=~"a|b"' in text
    assert "vllm:e2e_request_latency_seconds_bucket" in text


def test_only_replicas_that_share_are_asked_for_some_at_once_and_once_a_minute() -> None:
    """Without one there is no question."""
    assert asked({})[1] == []
    _, texts = asked({}, pods=[f"p{at}" for at in range(AT_ONCE + 1)])
    assert len(texts) == 2
    found = Replicas()
    found.sharing = lambda: ["web/a"]

    def silent(query: str) -> str:
        texts.append(query)
        return "no answer"

    for now_s in (120.0, 135.0, 165.0, 180.0):
        found.table([BY_NAME["tgi"]], now_s, 1.0, silent)
    assert len(texts) == 4


@pytest.mark.parametrize(
    "buckets",
    [
        {each: count for each, count in BUCKETS.items() if each != "+Inf"},
        {**BUCKETS, "2.5": 5.0},
        {**BUCKETS, "1.0": math.nan},
        {**BUCKETS, "1.00": 30.0},
        {**BUCKETS, "odd": 30.0},
        {"1.0": 1.0, "+Inf": 1.0},
    ],
)
def test_a_histogram_that_lost_buckets_or_was_reset_is_unknown(buckets: dict[str, float]) -> None:
    """Never guessed; another replica is as without it."""
    table, _ = asked({"a": buckets, "b": BUCKETS})
    assert np.isnan([table.requests[0], table.mean_log_s[0]]).all()
    assert table.requests[1] == 40.0
    assert table.buckets[0] == 0


def test_other_buckets_have_another_mark_and_no_request_has_no_latency() -> None:
    """A release with other buckets differs from a slower replica."""
    table, _ = asked({"a": BUCKETS, "b": {**BUCKETS, "5.0": 40.0}, "c": dict.fromkeys(BUCKETS, 0.0)})
    assert len(set(table.buckets.tolist())) == 2
    assert table.requests[2] == 0.0
    assert np.isnan(table.mean_log_s[2])


def test_triton_gives_the_mean_of_its_requests() -> None:
    """It has no histogram of whole requests."""
    source: Source = BY_NAME["triton"]
    ((query, read),) = queries_of(source)
    assert "nv_inference_request_duration_us" in query
    rows: list[Any] = [series("a", 0.5, le="mean"), series("a", 30.0, le="requests"), series("b", 4.0, le="requests")]
    found = read(source, rows)
    assert found["web/a"] == (30.0, math.log(0.5), 1)
    assert math.isnan(found["web/b"][1])
    assert {each.name for each in SOURCES if queries_of(each)} == {
        "vllm",
        "sglang",
        "trtllm",
        "triton",
        "tgi",
        "kserve",
    }


def test_a_replica_shares_where_other_work_is_on_its_node() -> None:
    """Alone on its nodes it does not."""
    service, of = np.array([0, 0, -1, 1], np.int32), np.array([0, 1, 2, 3, 3], np.int32)
    assert sharing_replicas(service, of, np.array([0, 1, 1, 2, 3], np.int32)).tolist() == [1]
    assert not len(sharing_replicas(service, of[:0], of[:0]))
