"""What is made of the answers of a Prometheus about services, and how they join what the cluster says."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from autopilot.core.intake.assemble import _with_signals, assemble
from autopilot.core.model.records import Batch, ServiceSignals
from autopilot.core.model.snapshot import ServiceTable
from collectors.promql import Series
from collectors.slo.collector import RECENT_S, SloCollector, _share
from collectors.slo.naming import Naming
from collectors.slo.queries import SPLIT
from collectors.slo.sources import SOURCES, Source


class Answered(SloCollector):
    """A collector whose Prometheus is the test: values of service `chat` by measure."""

    def __init__(self, values: dict[str, float], within: dict[str, float], objective_s: float = 2.0) -> None:
        super().__init__("http://prometheus", sources=["vllm"], objectives={"chat": objective_s})
        self._values_of, self._buckets = values, within

    def _names_there(self) -> tuple[str, ...]:
        return ()

    def _query(self, source: Source, measure: str, window_s: float) -> list[Series] | str:
        if measure == "within":
            return [Series({"model_name": "chat", "le": edge}, (0.0, f"{v}")) for edge, v in self._buckets.items()]
        value = self._values_of.get(measure)
        return [] if value is None else [Series({"model_name": "chat"}, (0.0, f"{value}"))]


BUCKETS = {"1": 80.0, "2.5": 90.0, "5.0": 100.0, "+Inf": 100.0}
BUSY = {"p99_s": 4.0, "requests": 5000.0, "rate_rps": 17.0, "queue_depth": 3.0}


def _chat(batch: Batch) -> ServiceSignals:
    assert batch.services is not None
    assert batch.services.service.tolist() == ["chat"]
    return batch.services


@pytest.mark.parametrize(("objective_s", "late"), [(1.0, 0.2), (2.0, 0.1), (2.5, 0.1), (5.0, 0.0), (60.0, 0.0)])
def test_the_objective_is_rounded_up_to_an_edge(objective_s: float, late: float) -> None:
    """Requests under the next edge count as good, and a gap says which edge that is."""
    batch = Answered(BUSY, BUCKETS, objective_s).collect(0.0)
    assert _chat(batch).violation_ratio.tolist() == pytest.approx([late])
    assert [gap.reason for gap in batch.gaps] == (
        ["the objective of 2 s is no bucket edge of vllm; 2.5 s is used"] if objective_s == 2.0 else []
    )


def test_few_requests_are_noise_and_no_answer_is_unknown() -> None:
    """Neither is 0: p99 and violations are left out, what is known stays."""
    few = _chat(Answered(BUSY | {"requests": 99.0}, BUCKETS).collect(0.0))
    assert np.isnan([few.p99_s[0], few.violation_ratio[0], few.recent_violation_ratio[0]]).all()
    assert (few.rate_rps[0], few.queue_depth[0]) == (17.0, 3.0)
    quiet = _chat(Answered({"queue_depth": 0.0, "p99_s": math.nan}, {}).collect(0.0))
    assert np.isnan([quiet.rate_rps[0], quiet.p99_s[0], quiet.tokens_per_s[0], quiet.kv_cache_ratio[0]]).all()
    assert quiet.queue_depth[0] == 0.0


@pytest.mark.parametrize(
    ("edge", "value", "late", "words"),
    [
        ("\x1b[31m", "7", 0.1, r"le='\x1b[31m' is no edge of a bucket (value '7')"),
        ("", "7", 0.1, "le='' is no edge"),
        ("2.50", "70", math.nan, "the bucket le='2.50' is there twice (value '70')"),
        ("2.2", "-4", math.nan, "the bucket le='2.2' is out of range (value '-4')"),
        ("2.2", "1e300", math.nan, "the bucket le='2.2' is out of range"),
        ("2.2", "2000", math.nan, "the bucket of 2.2 s counts 2000/s of 100/s requests"),
        ("9", "-4", 0.1, "the bucket le='9' is out of range"),
    ],
)
def test_one_odd_bucket_is_named_and_never_guessed(edge: str, value: str, late: float, words: str) -> None:
    """The share of late requests is unknown where the bucket that it needs is odd. All else of the service counts."""
    batch = _with_rows("within", {"model_name": "chat", "le": edge}, value)
    assert batch.services is not None
    assert batch.services.violation_ratio.tolist() == pytest.approx([late, 0.0], nan_ok=True)
    assert batch.services.p99_s.tolist() == [4.0, 1.0]
    assert sum(words in gap.reason for gap in batch.gaps) == 1


@pytest.mark.parametrize("value", ["5", "-1", "1e300"])
def test_one_odd_series_makes_one_measure_of_one_service_unknown(value: str) -> None:
    """A value out of range does not count, nor do two that differ. Other measures and services are as without it."""
    batch = _with_rows("queue_depth", {"model_name": "chat"}, value)
    assert batch.services is not None
    assert batch.services.queue_depth.tolist() == pytest.approx([math.nan if value == "5" else 3.0, 1.0], nan_ok=True)
    assert batch.services.rate_rps.tolist() == [17.0, 1.0]
    assert [gap.object_id for gap in batch.gaps if gap.signal == "queue_depth"] == ["chat"]


def _with_rows(measure: str, labels: dict[str, str], value: str) -> Batch:
    """The answer for services `chat` and `code`, with one more series of a measure."""

    class More(Answered):
        def _query(self, source: Source, asked: str, window_s: float) -> list[Series] | str:
            rows = super()._query(source, asked, window_s)
            assert not isinstance(rows, str)
            other = [Series({**row.metric, "model_name": "code"}, (0.0, "100")) for row in rows]
            if asked not in {"within", "requests"}:
                other = [Series({"model_name": "code"}, (0.0, "1")) for _ in rows]
            return [*rows, *other, *([Series(labels, (0.0, value))] if asked == measure else [])]

    collector = More(BUSY, BUCKETS)
    collector._objectives["code"] = 1.0
    return collector.collect(0.0)


class Tokens(Answered):
    """The buckets of tokens are the test's too: a tenth of them over 0.5 s."""

    asked: list[tuple[str, float]]

    def _query(self, source: Source, measure: str, window_s: float) -> list[Series] | str:
        self.asked.append((measure, window_s))
        if measure.startswith(("ttft_within", "itl_within")):
            edges = {"0.025": 40.0, "0.5": 90.0, "+Inf": 100.0}
            return [Series({"model_name": "chat", "le": edge}, (0.0, f"{v}")) for edge, v in edges.items()]
        return super()._query(source, measure, window_s)


@pytest.mark.parametrize(
    ("declared", "late"),
    [
        ((math.nan, 0.5, math.nan), (math.nan, 0.1, math.nan)),
        ((math.nan, 0.5, 0.025), (math.nan, 0.1, 0.6)),
        ((2.5, math.nan, 0.02), (0.1, math.nan, 0.6)),
        ((math.nan,) * 3, (math.nan,) * 3),
    ],
)
def test_objectives_of_tokens_are_those_that_services_declare(
    declared: tuple[float, float, float], late: tuple[float, float, float]
) -> None:
    """Shares and p99 by kind. Buckets of tokens are asked for where an objective counts, and of the last minute."""
    collector = Tokens(BUSY | {"ttft_p99_s": 0.8, "itl_p99_s": 0.04}, BUCKETS)
    collector.asked, collector._objectives, collector._declared = [], {}, lambda: {"chat": declared}
    found = _chat(collector.collect(0.0))
    columns = (found.recent_violation_ratio, found.recent_ttft_violation_ratio, found.recent_itl_violation_ratio)
    assert [float(column[0]) for column in columns] == pytest.approx(list(late), nan_ok=True)
    assert (found.ttft_p99_s[0], found.itl_p99_s[0]) == (0.8, 0.04)
    asked = {each for each in collector.asked if each[0] in {"ttft_within", "itl_within"}}
    assert asked == {
        (name, RECENT_S)
        for name, objective_s in zip(("ttft_within", "itl_within"), declared[1:], strict=True)
        if objective_s > 0
    }


def test_what_a_gateway_measures_in_front_of_two_pools_counts_for_both() -> None:
    """Each objective is that of the pool that declares it; a pool with servers of its own keeps what they say."""
    found = Tokens(BUSY | {"ttft_p99_s": 0.8}, BUCKETS)
    found.asked, found._objectives = [], {}
    pools = ("p/prefill", "p/decode", "p/other")
    found._pools, found.naming = {"joint": pools}, Naming({"chat": "joint"})
    promised = {"p/prefill": (math.nan, 0.5, math.nan), "p/decode": (math.nan, math.nan, 0.025)}
    found.learn(lambda: pools, lambda: promised)
    batch = found.collect(0.0)
    assert batch.services is not None
    assert batch.services.service.tolist() == sorted(pools)
    assert batch.services.ttft_p99_s.tolist() == [0.8] * 3
    assert batch.services.recent_ttft_violation_ratio.tolist() == pytest.approx([0.1] * 3)
    assert batch.services.recent_itl_violation_ratio.tolist() == pytest.approx([0.6] * 3)
    assert not [gap for gap in batch.gaps if "no service of the cluster" in gap.reason]
    known = {"joint": 1.0, "p/other": 2.0}
    _share(known, "joint", pools)
    assert known == {"p/other": 2.0, "p/prefill": 1.0, "p/decode": 1.0}


def test_few_requests_tell_nothing_of_tokens() -> None:
    """As of latency."""
    collector = Tokens(BUSY | {"requests": 9.0, "ttft_p99_s": 0.8}, BUCKETS)
    collector.asked, collector._declared = [], lambda: {"chat": (math.nan, 0.5, 0.5)}
    found = _chat(collector.collect(0.0))
    assert np.isnan([found.ttft_p99_s[0], found.recent_ttft_violation_ratio[0]]).all()


def _services() -> ServiceTable:
    ids = np.array(["chat", "code"], object)
    columns: dict[str, object] = {name: np.full(2, 1.0) for name in ServiceTable.__slots__}
    return ServiceTable(**{**columns, "id": ids, "uid": ids, "queue": np.zeros(2, np.int32)})  # type: ignore[arg-type]


def test_what_servers_measure_replaces_what_the_cluster_says() -> None:
    """Value by value: what is not measured stays, and a measured service is as old as its measurement."""
    nan = np.full(1, np.nan)
    signals = ServiceSignals(
        np.array(["chat"], object),
        np.array([4.0]),
        nan,
        np.array([9.0]),
        nan,
        nan,
        nan,
        nan,
        nan,
        nan,
        np.array([3.0]),
        np.array([7.0]),
        nan,
        nan,
        nan,
        nan,
    )
    joined = _with_signals(_services(), [(signals, 2.0)])
    assert joined.p99_s.tolist() == [4.0, 1.0]
    assert joined.rate_rps.tolist() == [9.0, 1.0]
    assert joined.queue_depth.tolist() == [1.0, 1.0]
    assert joined.age_s.tolist() == [5.0, 1.0]
    assert (joined.wake_rps.tolist(), joined.wake_age_s.tolist()) == ([7.0, 1.0], [5.0, 1.0])
    unnamed = replace(_services(), wake_age_s=np.full(2, np.nan))
    assert np.isnan(_with_signals(unnamed, [(signals, 2.0)]).wake_age_s).all(), "only a signal that is named counts"
    assert assemble([Batch("slo", 0.0, services=signals)], 0.0)[0].services.id.tolist() == []


class Engines(Answered):
    """The answers by engine are the test's too; each row names pod and engine."""

    rows: dict[str, dict[str, float]]

    def _query(self, source: Source, measure: str, window_s: float) -> list[Series] | str:
        if measure not in {"waited", "ran", "finished"}:
            return super()._query(source, measure, window_s)
        if measure not in self.rows:
            return "partial answer"
        ends = {} if measure == "finished" else {"engine": "0"}
        return [
            Series({"model_name": "chat", "autopilot_pod": pod} | ends, (0.0, f"{value}"))
            for pod, value in self.rows[measure].items()
        ]


@pytest.mark.parametrize(
    ("rows", "queue"),
    [
        ({"waited": {"a": 3}, "ran": {"a": 0}, "finished": {}}, math.nan),
        ({"waited": {"a": 3}, "ran": {"a": 0}, "finished": {"a": 0}}, math.nan),
        ({"waited": {"a": 2}, "ran": {"a": 0, "b": 5}, "finished": {"b": 9}}, 1.0),
        ({"waited": {"a": 3}, "ran": {"a": 0}, "finished": {"a": 9}}, 3.0),
        ({"waited": {"a": 3}, "ran": {"a": 1}, "finished": {}}, 3.0),
        ({"waited": {"a": 3}, "ran": {}, "finished": {}}, 3.0),
        ({"waited": {"a": 3}, "ran": {"a": 0}}, 3.0),
        ({"waited": {}, "ran": {"a": 0}, "finished": {}}, 3.0),
    ],
)
def test_a_queue_is_in_doubt_only_where_nothing_runs_and_nothing_ends(
    rows: dict[str, dict[str, float]], queue: float
) -> None:
    """What waits at such an engine does not count, and a gap names it; what is not known doubts nothing."""
    collector = Engines(BUSY, BUCKETS, 2.5)
    collector.rows = rows
    batch = collector.collect(0.0)
    assert _chat(batch).queue_depth.tolist() == pytest.approx([queue], nan_ok=True)
    assert any("ran and ended none" in gap.reason for gap in batch.gaps) == (queue != 3.0)


@pytest.mark.parametrize(
    ("warnings", "rate_rps"),
    [
        ([], 30.0),
        (["PromQL info: metric might not be a counter"], 30.0),
        (["No StoreAPIs matched for this query"], None),
        (
            ["PromQL info: metric might not be a counter", "receive series from store-1: context deadline exceeded"],
            None,
        ),
    ],
)
def test_an_answer_from_a_part_of_the_data_is_none(
    warnings: list[str], rate_rps: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gap says why the value is unknown. A note on the query says nothing of the data."""

    def answer(*_: object) -> bytes:
        rows = [{"metric": {"model_name": "chat"}, "value": [1, "30"]}]
        return json.dumps({"status": "success", "data": {"result": rows}, "warnings": warnings}).encode()

    monkeypatch.setattr("collectors.slo.collector.get_limited", answer)
    monkeypatch.setattr("collectors.slo.names.get_limited", lambda *_: b"{}")
    batch = SloCollector("http://prometheus", sources=["vllm"]).collect(0.0)
    if rate_rps is not None:
        assert _chat(batch).rate_rps.tolist() == [rate_rps]
        return
    assert batch.services is None
    assert all(f"partial answer: '{warnings[-1]}'" in gap.reason for gap in batch.gaps)


@pytest.mark.parametrize(
    ("sources", "names", "gaps"),
    [
        (None, [], ["holds no series of vllm, sglang, trtllm, triton, tgi, dynamo, llm-d"]),
        (["tgi"], [], ["tgi: holds no series"]),
        (None, ["x_SGLang_queue"], ["sglang: no series has a name that is read; the nearest seen: x_SGLang_queue"]),
        (["vllm"], None, ["vllm: holds no series"]),
    ],
)
def test_a_source_that_holds_nothing_is_a_gap(
    sources: list[str] | None, names: list[str] | None, gaps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first answer, with the nearest names where Prometheus tells them."""
    asked: list[str] = []

    def told(_session: object, url: str, *_: object) -> bytes:
        asked.append(url)
        return json.dumps({"data": names if names is not None else {"result": []}}).encode()

    monkeypatch.setattr("collectors.slo.names.get_limited", told)
    monkeypatch.setattr("collectors.slo.collector.get_limited", lambda *_: b'{"status":"success","data":{"result":[]}}')
    collector = SloCollector("http://prometheus", sources=sources)
    for now_s in (0.0, 15.0, 30.0):
        assert [gap.reason for gap in collector.collect(now_s).gaps] == gaps
    assert len(asked) == len(set(asked)), "the names and the clusters are asked for seldom"


def test_series_that_name_no_service_are_a_gap() -> None:
    """A server without the label of its model is not silent."""
    batch = _with_rows("queue_depth", {}, "5")
    assert [gap.reason for gap in batch.gaps if gap.signal == "queue_depth"] == [
        "vllm: series without a label model_name do not count"
    ]


class Places(Answered):
    """Each row has a namespace and an owner: those of `rows`, with a queue."""

    def __init__(self, rows: dict[tuple[str, str], float], services: dict[str, str], known: tuple[str, ...]) -> None:
        super().__init__({}, {})
        self.rows, self.naming = rows, Naming(services)
        self.learn(lambda: known)

    def _query(self, source: Source, measure: str, window_s: float) -> list[Series] | str:
        if measure not in {"queue_depth", "p99_s", "requests"}:
            return []
        return [
            Series(
                {"model_name": "m", SPLIT[0]: space, SPLIT[1]: owner},
                (0.0, "1000" if measure == "requests" else f"{v}"),
            )
            for (space, owner), v in self.rows.items()
        ]


@pytest.mark.parametrize(
    ("rows", "services", "known", "found"),
    [
        ([("a", "m")], {}, (), {"m": 1}),
        ([("a", "m"), ("a", "n")], {}, (), {"m": 3}),
        ([("a", "m"), ("b", "m")], {}, (), {"a/m": 1, "b/m": 2}),
        ([("a", "m"), ("b", "m")], {"m": "b/chat"}, (), {"a/m": 1, "b/chat": 2}),
        ([("a", "m"), ("b", "m")], {"m": "c/chat"}, (), {"a/m": 1, "b/m": 2}),
        ([("a", "m"), ("b", "m")], {"a/m": "c/x", "b/m": "c/y"}, (), {"c/x": 1, "c/y": 2}),
        ([("a", "x")], {"m": "c/chat"}, (), {"c/chat": 1}),
        ([("a", "x"), ("a", "y")], {}, ("a/x", "a/y"), {"a/x": 1, "a/y": 2}),
        ([("a", "x"), ("a", "y")], {"m": "a/z"}, ("a/x", "b/y"), {"a/x": 1, "a/z": 2}),
        ([("", ""), ("a", "x")], {}, (), {"m": 3}),
    ],
    ids=str,
)
def test_a_service_is_a_namespace_and_an_owner(
    rows: list[tuple[str, str]], services: dict[str, str], known: tuple[str, ...], found: dict[str, float]
) -> None:
    """Where the cluster knows the owner of the pods, it is that; else the name, apart by namespace."""
    batch = Places({each: number + 1.0 for number, each in enumerate(rows)}, services, known).collect(0.0)
    assert batch.services is not None
    assert dict(zip(batch.services.service.tolist(), batch.services.queue_depth.tolist(), strict=True)) == found


def test_the_worst_owner_of_a_service_tells_its_latency() -> None:
    """A p99 of several owners is at most the largest of theirs."""
    batch = Places({("a", "x"): 1.0, ("a", "y"): 7.0}, {}, ()).collect(0.0)
    assert batch.services is not None
    assert batch.services.p99_s.tolist() == [7.0]


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ((), []),
        (("a/x",), []),
        (("a/x", "b/y"), ["no source measures b/y"]),
        (("b/y",), ["m: no service of the cluster; services of the cluster without a measurement: b/y"]),
    ],
)
def test_services_and_measurements_that_do_not_meet_are_named(known: tuple[str, ...], words: list[str]) -> None:
    """A service that no source measures is never a silent miss."""
    reasons = [gap.reason for gap in Places({("a", "x"): 1.0}, {}, known).collect(0.0).gaps]
    assert [each.partition("; name")[0] for each in reasons] == words


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["vllm:num_requests_waiting"], ()),
        (["my_vllm_num_requests_waiting", "my_vllm_num_requests_running"], ()),
        ([f"my_vllm_{each}" for each in SOURCES[0].families[0].shape], ("my_vllm_",)),
        ([f"vllm.{each}" for each in SOURCES[0].families[0].shape], ()),
        ([f"a:{each}" for each in SOURCES[0].families[0].shape], ("a:",)),
    ],
)
def test_a_prefix_is_one_of_a_family_where_all_names_of_its_shape_are_there(
    names: list[str], found: tuple[str, ...]
) -> None:
    """Known ones need no look; one that PromQL cannot name is not read."""
    assert SOURCES[0].families[0].found(names) == found
    queries = SOURCES[0].seen(names).queries
    assert all(f"{each}num_requests_waiting" in queries["queue_depth"] for each in found)
    assert (queries == SOURCES[0].queries) == (not found)


@pytest.mark.parametrize("source", SOURCES, ids=lambda each: str(each.name))
def test_no_gauge_of_a_server_outlives_its_load(source: Source) -> None:
    """Each queue has what shows that nothing is served; tokens are counted, or count only while something runs."""
    if "queue_depth" in source.queries:
        assert {"waited", "ran", "finished"} <= source.queries.keys()
    tokens = source.queries.get("tokens_per_s", "rate(")
    assert "rate(" in tokens or "> bool 0" in tokens
