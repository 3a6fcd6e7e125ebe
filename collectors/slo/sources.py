"""The table of sources: the queries for each inference server, gateway or mesh.

A source that is not `verified` has names from general knowledge: it is off unless named. Compare its values once with
the reports of the service itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from collectors.slo.queries import (
    PLACE,
    SPLIT,
    WAITED,
    any_of,
    by_labels,
    engines,
    fullest,
    latency,
    mesh,
    named,
    placed,
    pool,
    rate,
    renamed,
    replicas,
    spread,
    summed,
    total,
)

MEASURES = (
    "p99_s",
    "within",
    "ttft_p99_s",
    "ttft_within",
    "itl_p99_s",
    "itl_within",
    "requests",
    "rate_rps",
    "tokens_per_s",
    "queue_depth",
    "kv_cache_ratio",
    "replicas",
    "waited",
    "ran",
    "finished",
)
"""What a source may measure. `within`: requests/s by bucket (`le`) of latency; `requests`: in the window. `ttft_...`:
the same of the time to the first token; `itl_...`: of the time from one token to the next, so of tokens/s.

`waited`, `ran` and `finished` are by engine: requests that wait where some waited for the whole window, the most that
ran at once, and those that ended.
"""
ADDITIVE = frozenset({"rate_rps", "requests", "tokens_per_s", "queue_depth", "replicas"})
"""Measures that add up over the owners of one service. Of all others the largest counts."""
Prefixes = tuple[str, ...]
ANY = ("",)


@dataclass(frozen=True, slots=True)
class Family:
    """Names of metrics with a common prefix. `prefixes` are the known ones of servers and collectors.

    Another prefix belongs to the family if every name of `shape` exists under it, and it contains one of `like`.
    """

    prefixes: Prefixes
    shape: tuple[str, ...]
    like: tuple[str, ...] = ANY

    def found(self, names: Iterable[str]) -> Prefixes:
        """The unknown prefixes of the family among these names of metrics."""
        there = frozenset(names)
        first, *rest = self.shape
        found = {name.removesuffix(first) for name in there if name.endswith(first)}
        whole = {each for each in found if all(each + name in there for name in rest)} - {*self.prefixes}
        plain = (each for each in whole if re.fullmatch(r"[\w:]*", each, re.ASCII))
        return tuple(sorted(each for each in plain if any(part in each.lower() for part in self.like)))


@dataclass(frozen=True, slots=True)
class Source:
    """One kind of server. `queries` by measure; `by`: labels that name a service; `unit_s`: of its buckets."""

    name: str
    words: str
    by: tuple[str, ...]
    queries: Mapping[str, str]
    verified: bool = True
    unit_s: float = 1.0
    gateway: bool = False  # it stands in front of the service, and sees requests while there is no replica
    like: tuple[str, ...] = ()  # parts of names of metrics that a server of this kind has under any prefix
    families: tuple[Family, ...] = ()
    replicas: bool = False  # its histogram of whole requests, or `mean`, is that of one pod
    mean: tuple[str, str] = ("", "")  # counters of microseconds of requests, and of requests, where it has no histogram
    steps: bool = False  # a model may be a step of another one, and counts the requests to that one, too
    made: Callable[..., Mapping[str, str]] | None = None  # the queries for the prefixes of each family

    @property
    def alike(self) -> tuple[str, ...]:
        """Parts of names of metrics typical of a server of this kind."""
        return *self.like, *(name for each in self.families if each.like == ANY for name in each.shape)

    def seen(self, names: Sequence[str]) -> Source:
        """The source, with queries for the unknown prefixes of its families among these names."""
        found = [each.found(names) for each in self.families]
        if self.made is None or not any(found):
            return self
        both = zip(self.families, found, strict=True)
        return replace(self, queries=self.made(*(each.prefixes + more for each, more in both)))


def _vllm(at: Prefixes) -> Mapping[str, str]:
    by, waiting, running = "model_name", named(at, "num_requests_waiting"), named(at, "num_requests_running")
    ended, prompts = named(at, "request_success_total"), named(at, "prompt_tokens_total")
    return {
        **latency(by, named(at, "e2e_request_latency_seconds")),
        **spread(by, named(at, "time_to_first_token_seconds"), "ttft_"),
        **spread(by, named(at, "inter_token_latency_seconds") + named(at, "time_per_output_token_seconds"), "itl_"),
        "rate_rps": rate(by, ended),
        "tokens_per_s": f"{rate(by, prompts)} + {rate(by, named(at, 'generation_tokens_total'))}",
        "queue_depth": summed(by, waiting),
        "kv_cache_ratio": fullest(by, any_of(named(at, "kv_cache_usage_perc") + named(at, "gpu_cache_usage_perc"))),
        "replicas": replicas(by, running),
        **engines(by, waiting, running, ended),
    }


def _sglang(at: Prefixes) -> Mapping[str, str]:
    by, waiting, running = "model_name", named(at, "num_queue_reqs"), named(at, "num_running_reqs")
    ended = named(at, "e2e_request_latency_seconds_count")
    # The gauge keeps its last value while nothing runs; the running requests have the same labels.
    made = (f"{each}gen_throughput{{$M}} * ({each}num_running_reqs{{$M}} > bool 0)" for each in at)
    return {
        **latency(by, named(at, "e2e_request_latency_seconds")),
        **spread(by, named(at, "time_to_first_token_seconds"), "ttft_"),
        **spread(by, named(at, "inter_token_latency_seconds") + named(at, "time_per_output_token_seconds"), "itl_"),
        "rate_rps": rate(by, ended),
        "tokens_per_s": total(by, " or ".join(made)),
        "queue_depth": summed(by, waiting),
        "kv_cache_ratio": fullest(by, any_of(named(at, "token_usage"))),
        "replicas": replicas(by, running),
        **engines(by, waiting, running, ended),
    }


def _triton(at: Prefixes) -> Mapping[str, str]:
    by, ended = "model", named(at, "nv_inference_request_success")
    waiting, failed = named(at, "nv_inference_pending_request_count"), named(at, "nv_inference_request_failure")
    worst = (each + '{quantile="0.99",$M}' for each in named(at, "nv_inference_request_summary_us"))
    cache = (each + '{kv_cache_block_type="fraction",$M}' for each in named(at, "nv_trt_llm_kv_cache_block_metrics"))
    first = spread(by, named(at, "nv_inference_first_response_histogram_ms"), "ttft_")
    return {
        "p99_s": f"max by ({by_labels(by, *SPLIT)}) ({placed(' or '.join(worst))}) / 1e6",
        **first | {"ttft_p99_s": f"{first['ttft_p99_s']} * 0.001"},
        "requests": total(by, any_of(ended, "increase({}[$W])")),
        "rate_rps": f"{rate(by, ended)} + {rate(by, failed)}",
        "queue_depth": summed(by, waiting),
        "kv_cache_ratio": fullest(by, " or ".join(cache)),
        "replicas": replicas(by, ended),
        # No gauge counts what runs; executions of batches are counted.
        **engines(by, waiting, named(at, "nv_inference_exec_count"), ended + failed, "increase"),
    }


def _tgi(at: Prefixes) -> Mapping[str, str]:
    waiting, ended = named(at, "tgi_queue_size"), named(at, "tgi_request_success")
    return {
        **latency("job", named(at, "tgi_request_duration")),
        **spread("job", named(at, "tgi_request_mean_time_per_token_duration"), "itl_"),
        "rate_rps": rate("job", ended),
        "queue_depth": summed("job", waiting),
        "replicas": replicas("job", waiting),
        **engines("job", waiting, named(at, "tgi_batch_current_size"), ended),
    }


def _trtllm(at: Prefixes) -> Mapping[str, str]:
    by, waiting, running = "model_name", named(at, "num_requests_waiting"), named(at, "num_requests_running")
    ended = named(at, "request_success_total")
    return {
        **latency(by, named(at, "e2e_request_latency_seconds")),
        **spread(by, named(at, "time_to_first_token_seconds"), "ttft_"),
        **spread(by, named(at, "time_per_output_token_seconds"), "itl_"),
        "rate_rps": rate(by, ended),
        "queue_depth": summed(by, waiting),
        "kv_cache_ratio": fullest(by, any_of(named(at, "kv_cache_utilization"))),
        "replicas": replicas(by, running),
        **engines(by, waiting, running, ended),
    }


def _dynamo(at: Prefixes) -> Mapping[str, str]:
    tokens = (rate("model", named(at, f"{each}_sequence_tokens_sum")) for each in ("input", "output"))
    return {
        **latency("model", named(at, "request_duration_seconds")),
        **spread("model", named(at, "time_to_first_token_seconds"), "ttft_"),
        **spread("model", named(at, "inter_token_latency_seconds"), "itl_"),
        "rate_rps": rate("model", named(at, "request_duration_seconds_count")),
        "tokens_per_s": " + ".join(tokens),
    }


def _llm_d(requests: Prefixes, pools: Prefixes) -> Mapping[str, str]:
    def spread(of: str, *histograms: str, matchers: str = "$M") -> dict[str, str]:
        names = [f"{name}_bucket" for each in histograms for name in named(requests, each)]
        buckets = renamed("le, model_name", names, "rate({}[$W])", matchers)
        return {f"{of}p99_s": f"histogram_quantile(0.99, {buckets})", f"{of}within": buckets}

    durations, streamed = named(requests, "request_duration_seconds"), 'streaming!="false",$M'
    size = pool("name", any_of(named(pools, "ready_endpoints") + named(pools, "ready_pods")))
    queue = named(pools, "average_queue_size")
    return {
        **spread("", "request_duration_seconds"),
        **spread("ttft_", "request_ttft_seconds", matchers=streamed),
        **spread("itl_", "request_streaming_itl_seconds", "request_streaming_tpot_seconds", "request_tpot_seconds"),
        "requests": renamed("model_name", [f"{name}_count" for name in durations], "increase({}[$W])"),
        "rate_rps": renamed("model_name", named(requests, "request_total"), "rate({}[$W])"),
        "queue_depth": f"sum by ({by_labels('name', PLACE[0])}) ({pool('name', any_of(queue))} * {size})",
        "kv_cache_ratio": pool("name", any_of(named(pools, "average_kv_cache_utilization"))),
        "replicas": size,
        "waited": f"{pool('name', any_of(queue, WAITED))} * {size}",
        "ran": pool("name", any_of(named(pools, "average_running_requests"), "max_over_time({}[$W])")),
        "finished": pool("model_name", any_of(named(requests, "request_total"), "increase({}[$W])")),
    }


def _source(
    name: str, words: str, by: tuple[str, ...], made: Callable[..., Mapping[str, str]], *families: Family, **more: Any
) -> Source:
    queries = made(*(each.prefixes for each in families))
    return Source(name, words, by, queries, families=families, made=made, **more)


VLLM = _source(
    "vllm",
    "vLLM, also behind Ray Serve or a collector of OpenTelemetry",
    ("model_name",),
    _vllm,
    Family(
        ("vllm:", "vllm_", "ray_vllm:", "ray_vllm_"),
        ("num_requests_waiting", "num_requests_running", "generation_tokens_total"),
    ),
    like=("vllm",),
    replicas=True,
)
SGLANG = _source(
    "sglang",
    "SGLang, started with --enable-metrics",
    ("model_name",),
    _sglang,
    Family(("sglang:", "sglang_"), ("num_queue_reqs", "num_running_reqs", "token_usage")),
    like=("sglang",),
    replicas=True,
)
TRITON = _source(
    "triton",
    "Triton, started with --metrics-config summary_latencies=true; a p99 over replicas is the worst of theirs. The "
    "time to the first response of a decoupled model needs histogram_latencies=true",
    ("model",),
    _triton,
    Family(("",), ("nv_inference_request_success", "nv_inference_request_failure")),
    unit_s=1e-3,
    like=("nv_inference", "nv_trt_llm"),
    replicas=True,
    mean=("nv_inference_request_duration_us", "nv_inference_request_success"),
    steps=True,
)
TGI = _source(
    "tgi",
    "Text Generation Inference; its metrics name no model, so the scrape job names the service",
    ("job",),
    _tgi,
    Family(("",), ("tgi_queue_size", "tgi_request_success")),
    like=("tgi_",),
    replicas=True,
)
TRTLLM = _source(
    "trtllm",
    "trtllm-serve of TensorRT-LLM, with return_perf_metrics; its time between tokens is the mean of each request",
    ("model_name",),
    _trtllm,
    Family(
        ("trtllm_", "trtllm:"), ("num_requests_waiting", "num_requests_running", "kv_cache_utilization"), ("trtllm",)
    ),
    like=("trtllm",),
    replicas=True,
)
DYNAMO = _source(
    "dynamo",
    "the frontends of NVIDIA Dynamo; its workers have the metrics of their engines",
    ("model",),
    _dynamo,
    Family(
        ("dynamo_frontend_",),
        ("time_to_first_token_seconds_count", "inter_token_latency_seconds_count"),
        ("dynamo", "nv_llm_http_service"),  # up to 0.3
    ),
    like=("dynamo_frontend", "nv_llm_http_service"),
)
_EPP = ("llm_d", "llmd", "epp_", "inference_objective", "inference_pool", "inference_model", "inference_extension")
LLM_D = _source(
    "llm-d",
    "the endpoint picker of llm-d and of the Gateway API inference extension; queue and cache are those of the pool",
    ("model_name", "name"),
    _llm_d,
    Family(
        ("llm_d_epp_", "inference_objective_", "inference_model_"),
        ("request_total", "request_duration_seconds_count"),
        _EPP,
    ),
    Family(("llm_d_epp_", "inference_pool_"), ("average_queue_size", "average_kv_cache_utilization")),
    like=_EPP,
)
KSERVE = Source(
    "kserve",
    "the Python server of KServe",
    ("model_name",),
    {
        **latency("model_name", ["request_predict_seconds"]),
        "rate_rps": rate("model_name", ["request_predict_seconds_count"]),
    },
    verified=False,
    like=("request_predict",),
    replicas=True,
)
ISTIO = Source(
    "istio",
    "the Istio sidecar of the service",
    ("destination_workload",),
    mesh(
        "destination_workload",
        "istio_request_duration_milliseconds",
        "istio_requests_total",
        (SPLIT[0], "destination_workload_namespace", "(.+)"),
        (SPLIT[1], "destination_workload", "(.+)"),
    ),
    verified=False,
    unit_s=1e-3,
    gateway=True,
    like=("istio_request",),
)
_OF_ISTIO, _OF_GATEWAY = "outbound[|][0-9]*[|][^|]*[|]{}[.]svc[.].*", "httproute/{}/.*"
ENVOY = Source(
    "envoy",
    "an Envoy in front of the service",
    ("envoy_cluster_name",),
    mesh(
        "envoy_cluster_name",
        "envoy_cluster_upstream_rq_time",
        "envoy_cluster_upstream_rq_time_count",
        (SPLIT[0], "envoy_cluster_name", _OF_ISTIO.format("[^.]+[.]([^.]+)")),
        (SPLIT[1], "envoy_cluster_name", _OF_ISTIO.format("([^.]+)[.][^.]+")),
        (SPLIT[0], "envoy_cluster_name", _OF_GATEWAY.format("([^/]+)/[^/]+")),
        (SPLIT[1], "envoy_cluster_name", _OF_GATEWAY.format("[^/]+/([^/]+)")),
    ),
    verified=False,
    unit_s=1e-3,
    gateway=True,
    like=("upstream_rq_time",),
)

SOURCES: tuple[Source, ...] = (VLLM, SGLANG, TRTLLM, TRITON, TGI, DYNAMO, LLM_D, KSERVE, ISTIO, ENVOY)
"""All sources. Where two measure the same service, the one that is named first counts."""

DEFAULT_SOURCES = tuple(source.name for source in SOURCES if source.verified)
