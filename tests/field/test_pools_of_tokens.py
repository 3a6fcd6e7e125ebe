"""Pools of prefill and decode, as llm-d, Dynamo and others deploy them: each is judged by its own part of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isnan, nan
from typing import Any

import pytest

from autopilot.core.model.objectives import breached, missed_ratio
from autopilot.core.model.objects import ServingRole
from collectors.promql import Series
from collectors.slo.collector import SloCollector
from collectors.slo.queries import SPLIT
from collectors.slo.sources import Source
from tests.kits.field_kit import made, play_objects
from tests.kits.field_services import answering, measured

POOLS = ("prod/llama-prefill", "prod/llama-decode")
PROMISED = {POOLS[0]: (nan, 0.5, nan), POOLS[1]: (nan, nan, 0.5)}
Json = dict[str, Any]


@pytest.fixture(scope="module")
def url(require_tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that scrapes the servers."""
    files = [f"prefill-decode/{name}.prom" for name in ("vllm", "dynamo", "grove")]
    with answering(require_tool, tmp_path_factory.mktemp("pools"), files) as found:
        yield found


def _asked(url: str, case: str, **more: Any) -> Mapping[str, Mapping[str, float]]:
    collector = SloCollector(url, matchers={"file": f"prefill-decode/{case}.prom"}, **more)
    collector.learn(lambda: POOLS, lambda: PROMISED)
    return measured(collector)[0]


def test_two_pools_that_serve_one_model_are_measured_apart(url: str) -> None:
    """By the owners of their pods: the first tokens of the pool of prefill, the others of that of decode."""
    found = _asked(url, "vllm")
    assert set(found) == set(POOLS)
    prefill, decode = (found[each] for each in POOLS)
    assert (prefill["queue_depth"], decode["queue_depth"]) == (2, 0)
    assert 1.0 < prefill["ttft_p99_s"] <= 5.0
    assert 1.0 < decode["itl_p99_s"] <= 5.0
    assert isnan(prefill["itl_p99_s"])
    assert prefill["recent_ttft_violation_ratio"] == pytest.approx(0.5, abs=0.01)
    assert decode["recent_itl_violation_ratio"] == pytest.approx(0.5, abs=0.01)


def test_what_frontends_of_dynamo_measure_is_that_of_both_pools(url: str) -> None:
    """Where the operator names the pools behind the model."""
    found = _asked(url, "dynamo", services={"llama": POOLS})
    assert set(found) == set(POOLS)
    for each in found.values():
        assert each["rate_rps"] == pytest.approx(5.0, rel=0.02)
        assert 1.0 < each["ttft_p99_s"] <= 5.0
        assert each["recent_ttft_violation_ratio"] == pytest.approx(0.5, abs=0.01)
        assert each["recent_itl_violation_ratio"] == pytest.approx(0.5, abs=0.01)


GROUPS = {
    "prod/dyn-0-vllmprefillworker-x2v4k": "prod/dyn~prefill",
    "prod/dyn-0-decode-0-d-ldr-m8q2z": "prod/dyn~decode",
    "prod/dyn-0-frontend-q7w2x": "prod/dyn",
    "prod/qwen-0": "prod/qwen",
    "prod/qwen-0-1": "prod/qwen",
}


def test_groups_of_pods_are_measured_as_their_services(url: str) -> None:
    """Cliques of Grove apart by their pools, the frontend for the whole set, and all pods of a LeaderWorkerSet."""
    collector = SloCollector(url, matchers={"file": "prefill-decode/grove.prom"})
    promised = {"prod/dyn~prefill": (nan, 0.5, nan), "prod/dyn~decode": (nan, nan, 0.5)}
    collector.learn(lambda: set(GROUPS.values()), lambda: promised, lambda: GROUPS)
    found, gaps = measured(collector)
    assert set(found) == set(GROUPS.values())
    prefill, decode, whole, qwen = (found[f"prod/{each}"] for each in ("dyn~prefill", "dyn~decode", "dyn", "qwen"))
    assert [each["queue_depth"] for each in (prefill, decode, qwen)] == [2, 0, 3]
    assert [each["rate_rps"] for each in (prefill, decode, whole, qwen)] == pytest.approx([5, 4, 5, 4], rel=0.02)
    assert prefill["recent_ttft_violation_ratio"] == pytest.approx(0.5, abs=0.01)
    assert decode["recent_itl_violation_ratio"] == pytest.approx(0.5, abs=0.01)
    assert 1.0 < whole["itl_p99_s"] <= 5.0
    assert not any("no service of the cluster" in each or "tell apart" in each for each in gaps)


class _Servers(SloCollector):
    """Servers of vLLM in both pools: first tokens take a second in both, and further ones of decode 20 ms."""

    silent = False

    def __init__(self) -> None:
        super().__init__("http://prometheus", sources=["vllm"])

    def _names_there(self) -> tuple[str, ...]:
        return ()

    def _query(self, source: Source, measure: str, window_s: float) -> list[Series] | str:
        values = {"requests": 900.0, "rate_rps": 3.0, "queue_depth": 0.0, "ttft_p99_s": 1.0, "itl_p99_s": 0.02}
        pods = POOLS[1:] if measure == "itl_p99_s" else POOLS
        if measure.endswith("within"):
            edges = {"0.05": 0.0 if measure.startswith("ttft") else 3.0, "0.5": 1.0, "+Inf": 3.0}
        else:
            edges = {"": values[measure]} if measure in values else {}
        return [
            Series(
                {"model_name": "llama", "le": le, **dict(zip(SPLIT, pod.split("/"), strict=True))}, (0.0, f"{value}")
            )
            for pod in pods
            for le, value in edges.items()
            if not (self.silent and measure.startswith("itl"))
        ]


def _pool(name: str, labels: Json) -> Json:
    notes = {f"gpu-autopilot.io/{each}-objective-s": value for each, value in (("ttft", "500ms"), ("itl", "50ms"))}
    limits = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    return {
        "kind": "Deployment",
        "apiVersion": "apps/v1",
        "metadata": {"name": name, "namespace": "prod", "annotations": notes, "generation": 1},
        "spec": {"replicas": 1, "template": {"metadata": {"labels": labels}, "spec": limits}},
        "status": {"readyReplicas": 1},
    }


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize(
    "role_of",
    [
        lambda role: {"llm-d.ai/role": role},
        lambda role: {"nvidia.com/dynamo-component-type": "worker", "nvidia.com/dynamo-sub-component-type": role},
        lambda role: {"app.kubernetes.io/component": f"vllm-{role}"},
    ],
    ids=["llm-d", "dynamo", "component"],
)
def test_a_pool_of_prefill_that_is_late_says_nothing_of_decode(role_of: Callable[[str], Json], *, silent: bool) -> None:
    """Both declare the same objectives. Decode misses none; where its tokens are not measured, that is a gap."""
    servers = _Servers()
    servers.silent = silent
    objects = made(
        {"node": "n1", "gpus": 8, "product": "NVIDIA-H100-80GB-HBM3"},
        *(_pool(f"llama-{role}", role_of(role)) for role in ("prefill", "decode")),
    )
    played = play_objects(objects, others=[servers])
    services = played.snapshot.services
    rows = {str(name): row for row, name in enumerate(services.id.tolist())}
    prefill, decode = (rows[each] for each in POOLS)
    assert services.role[[prefill, decode]].tolist() == [ServingRole.PREFILL, ServingRole.DECODE]
    assert services.id[breached(services)].tolist() == [POOLS[0]]
    worst, unknown = missed_ratio(services)
    assert worst[prefill] == pytest.approx(2 / 3)
    assert bool(unknown[decode]) == silent
    assert silent or worst[decode] == 0.0
    gaps = {(gap.object_id, gap.signal) for gap in played.ticks[-1][1].gaps if gap.signal.endswith("_p99_s")}
    assert gaps == ({(POOLS[1], "itl_p99_s")} if silent else set())


@pytest.mark.parametrize(("role", "alone"), [("prefill", "itl"), ("decode", "ttft")])
def test_a_pool_that_declares_the_objective_of_the_other_role_alone_is_named(role: str, alone: str) -> None:
    """Nothing judges it; the pool that declares its own as well, and a pool of no role, are judged."""
    pools = [_pool("one", {"llm-d.ai/role": role}), _pool("both", {"llm-d.ai/role": role}), _pool("whole", {})]
    for each in (pools[0], pools[2]):
        notes = each["metadata"]["annotations"]
        each["metadata"]["annotations"] = {key: value for key, value in notes.items() if f"/{alone}-" in key}
    played = play_objects(made({"node": "n1", "gpus": 8}, *pools))
    found = {(gap.object_id, gap.signal) for gap in played.gaps() if gap.signal.endswith("_objective_s")}
    assert found == {("prod/one", f"{alone}_objective_s")}
    assert played.said(f"a pool of {role} does not answer for the time .*: nothing judges it; declare one for the time")
