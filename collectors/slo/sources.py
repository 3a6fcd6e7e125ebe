"""The table of sources: how each inference server, gateway or mesh says what the autopilot needs of a service.

Every query aggregates to the one label that names the service. `$W` is the window and `$M` the matchers of the
operator. A source that is not `verified` has names from general knowledge: it is off unless it is named, and its values
should be compared once with what the service itself reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MEASURES = (
    "p99_s",
    "within",
    "requests",
    "rate_rps",
    "tokens_per_s",
    "queue_depth",
    "kv_cache_ratio",
    "replicas",
)
"""What a source may measure. `within`: requests/s by bucket (`le`) of latency; `requests`: in the window."""


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


def _any(*names: str) -> str:
    """A selector of the first of these metrics that exists: servers rename their metrics."""
    return " or ".join(f"{name}{{$M}}" for name in names)


def _rate(by: str, *names: str) -> str:
    """The sum of the rates of all these counters."""
    return " + ".join(f"sum by ({by}) (rate({name}{{$M}}[$W]))" for name in names)


def _latency(by: str, histogram: str, unit_s: float = 1.0) -> dict[str, str]:
    """p99, buckets and number of requests from one histogram."""
    buckets = f"sum by (le, {by}) (rate({histogram}_bucket{{$M}}[$W]))"
    scale = "" if unit_s == 1.0 else f" * {unit_s:g}"
    return {
        "p99_s": f"histogram_quantile(0.99, {buckets}){scale}",
        "within": buckets,
        "requests": f"sum by ({by}) (increase({histogram}_count{{$M}}[$W]))",
    }


def _sum(by: str, *names: str) -> str:
    return f"sum by ({by}) ({_any(*names)})"


def _mean(by: str, *names: str) -> str:
    return f"avg by ({by}) ({_any(*names)})"


VLLM = Source(
    "vllm",
    "vLLM",
    ("model_name",),
    {
        **_latency("model_name", "vllm:e2e_request_latency_seconds"),
        "rate_rps": _rate("model_name", "vllm:request_success_total"),
        "tokens_per_s": _rate("model_name", "vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
        "queue_depth": _sum("model_name", "vllm:num_requests_waiting"),
        "kv_cache_ratio": _mean("model_name", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "replicas": "count by (model_name) (count by (model_name, instance, pod) (vllm:num_requests_running{$M}))",
    },
)
SGLANG = Source(
    "sglang",
    "SGLang, started with --enable-metrics",
    ("model_name",),
    {
        **_latency("model_name", "sglang:e2e_request_latency_seconds"),
        "rate_rps": _rate("model_name", "sglang:e2e_request_latency_seconds_count"),
        "tokens_per_s": _sum("model_name", "sglang:gen_throughput"),
        "queue_depth": _sum("model_name", "sglang:num_queue_reqs"),
        "kv_cache_ratio": _mean("model_name", "sglang:token_usage"),
        "replicas": "count by (model_name) (sglang:num_running_reqs{$M})",
    },
)
TRITON = Source(
    "triton",
    "Triton, started with --metrics-config summary_latencies=true; a p99 over replicas is the worst of theirs",
    ("model",),
    {
        "p99_s": 'max by (model) (nv_inference_request_summary_us{quantile="0.99",$M}) / 1e6',
        "requests": "sum by (model) (increase(nv_inference_request_success{$M}[$W]))",
        "rate_rps": _rate("model", "nv_inference_request_success", "nv_inference_request_failure"),
        "queue_depth": _sum("model", "nv_inference_pending_request_count"),
        "kv_cache_ratio": 'avg by (model) (nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",$M})',
        "replicas": "count by (model) (sum by (model, instance, pod) (nv_inference_request_success{$M}))",
    },
)
TGI = Source(
    "tgi",
    "Text Generation Inference; its metrics name no model, so the scrape job names the service",
    ("job",),
    {
        **_latency("job", "tgi_request_duration"),
        "rate_rps": _rate("job", "tgi_request_success"),
        "queue_depth": _sum("job", "tgi_queue_size"),
        "replicas": "count by (job) (tgi_queue_size{$M})",
    },
)
LLM_D = Source(
    "llm-d",
    "the endpoint picker of llm-d and of the Gateway API inference extension; queue and cache are those of the pool",
    ("model_name", "name"),
    {
        **_latency("model_name", "inference_objective_request_duration_seconds"),
        "rate_rps": _rate("model_name", "inference_objective_request_total"),
        "queue_depth": "sum by (name) (inference_pool_average_queue_size{$M} * inference_pool_ready_pods{$M})",
        "kv_cache_ratio": _mean("name", "inference_pool_average_kv_cache_utilization"),
        "replicas": _sum("name", "inference_pool_ready_pods"),
    },
)
KSERVE = Source(
    "kserve",
    "the Python server of KServe",
    ("model_name",),
    {
        **_latency("model_name", "request_predict_seconds"),
        "rate_rps": _rate("model_name", "request_predict_seconds_count"),
    },
    verified=False,
)
ISTIO = Source(
    "istio",
    "the Istio sidecar of the service",
    ("destination_workload",),
    {
        **_latency("destination_workload", "istio_request_duration_milliseconds", 1e-3),
        "rate_rps": _rate("destination_workload", "istio_requests_total"),
    },
    verified=False,
    unit_s=1e-3,
    gateway=True,
)
ENVOY = Source(
    "envoy",
    "an Envoy in front of the service",
    ("envoy_cluster_name",),
    {
        **_latency("envoy_cluster_name", "envoy_cluster_upstream_rq_time", 1e-3),
        "rate_rps": _rate("envoy_cluster_name", "envoy_cluster_upstream_rq_time_count"),
    },
    verified=False,
    unit_s=1e-3,
    gateway=True,
)

SOURCES: tuple[Source, ...] = (VLLM, SGLANG, TRITON, TGI, LLM_D, KSERVE, ISTIO, ENVOY)
"""All sources. Where two measure the same service, the one that is named first counts."""

DEFAULT_SOURCES = tuple(source.name for source in SOURCES if source.verified)
