"""The table of sources: how each inference server, gateway or mesh says what the autopilot needs of a service.

Every query aggregates to the one label that names the service. `$W` is the window and `$M` the matchers of the
operator. A server that two jobs scrape, or two replicas of Prometheus, counts once: the maximum of each of its series
counts by pod (by address where no label names the pod), then the sum over pods. A source that is not `verified` has
names from general knowledge: it is off unless it is named, and its values should be compared once with what the
service itself reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    "waited",
    "ran",
    "finished",
)
"""What a source may measure. `within`: requests/s by bucket (`le`) of latency; `requests`: in the window.

`waited`, `ran` and `finished` are by engine: requests that wait where some waited for the whole window, the most that
ran at once, and those that ended.
"""
PLACE = ("autopilot_namespace", "autopilot_pod")
"""Labels that queries add: where a server runs, by whatever label says it."""
_SAID_BY = (
    (PLACE[0], ("kubernetes_namespace", "namespace", "exported_namespace")),
    (PLACE[1], ("instance", "kubernetes_pod_name", "pod", "exported_pod")),
)
"""For each of them the labels that say it; the last that is there counts. Annotation jobs, operators and collectors of
OpenTelemetry use different ones."""
_ENGINE = ("engine", "dp_rank", "engine_type", "ReplicaId", "WorkerId")
"""Labels of the engines of one pod that share its requests. Ranks of tensor parallelism repeat the same requests."""
_PARTS = ("finished_reason", "reason", "version", "target_model_name", "priority", "fairness_id")
"""Labels of counters whose parts sum up."""
_VLLM = ("vllm:", "vllm_", "ray_vllm:", "ray_vllm_")
"""Prefixes of the metrics of vLLM: its own, that of collectors of OpenTelemetry, and those of Ray Serve."""
_SGLANG = ("sglang:", "sglang_")


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


def _named(prefixes: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(prefix + name for prefix in prefixes)


def _any(names: Iterable[str], form: str = "{}") -> str:
    """The series with any of these names, each in a form such as a rate: servers rename their metrics."""
    return " or ".join(form.format(name + "{$M}") for name in names)


def _placed(vector: str) -> str:
    """The vector with the labels of `PLACE`."""
    for place, labels in _SAID_BY:
        for label in labels:
            vector = f'label_replace({vector},"{place}","$$1","{label}","(.+)")'
    return vector


def _by(by: str, *more: str) -> str:
    return ", ".join((by, *more))


def _pods(by: str, vector: str, how: str = "sum") -> str:
    """One value for each pod: each series counts once, then those of the pod together."""
    once = f"max by ({_by(by, *_ENGINE, *_PARTS, *PLACE)}) ({_placed(vector)})"
    return f"{how} by ({_by(by, *PLACE)}) ({once})"


def _total(by: str, vector: str) -> str:
    """The sum over all series, each once."""
    return f"sum by ({by}) (max by ({_by(by, *_ENGINE, *_PARTS, *PLACE)}) ({_placed(vector)}))"


def _rate(by: str, names: Iterable[str]) -> str:
    return _total(by, _any(names, "rate({}[$W])"))


def _sum(by: str, names: Iterable[str]) -> str:
    return _total(by, _any(names))


def _fullest(by: str, vector: str) -> str:
    """The mean over pods of the fullest engine of each."""
    return f"avg by ({by}) ({_pods(by, vector, 'max')})"


def _replicas(by: str, names: Iterable[str]) -> str:
    """Pods that report."""
    return f"count by ({by}) ({_pods(by, _any(names))})"


def _latency(by: str, histograms: Iterable[str]) -> dict[str, str]:
    """p99, buckets and number of requests from one histogram."""
    names = tuple(histograms)
    buckets = _rate(f"le, {by}", [f"{name}_bucket" for name in names])
    return {
        "p99_s": f"histogram_quantile(0.99, {buckets})",
        "within": buckets,
        "requests": _total(by, _any([f"{name}_count" for name in names], "increase({}[$W])")),
    }


def _engines(by: str, waiting: Iterable[str], running: Iterable[str], finished: Iterable[str]) -> dict[str, str]:
    """What shows an engine whose requests wait for nothing: clients that left may stay in the gauge for ever."""

    def each(vector: str) -> str:
        return f"max by ({_by(by, *_ENGINE, *PLACE)}) ({_placed(vector)})"

    return {
        "waited": each(_any(waiting, "({0} and min_over_time({0}[$W]) > 0 and {0} offset $W)")),
        "ran": each(_any(running, "max_over_time({}[$W])")),
        "finished": f"max by ({_by(by, *PLACE)}) ({_placed(_any(finished, 'increase({}[$W])'))})",
    }


def _renamed(by: str, names: Iterable[str], form: str) -> str:
    """The sum over pods; the first name that a pod has counts, because the labels differ between both."""
    return f"sum by ({by}) ({' or '.join(_pods(by, _any([name], form)) for name in names)})"


def _pool(by: str, *names: str) -> str:
    """A gauge of a whole pool, that each of its gateways repeats."""
    return f"max by ({_by(by, PLACE[0])}) ({_placed(_any(names))})"


def _mesh(by: str, histogram: str, requests: str) -> dict[str, str]:
    """Latency (from milliseconds) and rate by proxies, whose labels are those of the operator: all but jobs count."""
    copies = "job, endpoint, container, prometheus, prometheus_replica, replica, __replica__"

    def total(vector: str, more: str = "") -> str:
        return f"sum by ({more}{by}) (max without ({copies}) ({vector}))"

    buckets = total(f"rate({histogram}_bucket{{$M}}[$W])", "le, ")
    return {
        "p99_s": f"histogram_quantile(0.99, {buckets}) * 0.001",
        "within": buckets,
        "requests": total(f"increase({histogram}_count{{$M}}[$W])"),
        "rate_rps": total(f"rate({requests}{{$M}}[$W])"),
    }


VLLM = Source(
    "vllm",
    "vLLM, also behind Ray Serve or a collector of OpenTelemetry",
    ("model_name",),
    {
        **_latency("model_name", _named(_VLLM, "e2e_request_latency_seconds")),
        "rate_rps": _rate("model_name", _named(_VLLM, "request_success_total")),
        "tokens_per_s": _rate("model_name", _named(_VLLM, "prompt_tokens_total"))
        + " + "
        + _rate("model_name", _named(_VLLM, "generation_tokens_total")),
        "queue_depth": _sum("model_name", _named(_VLLM, "num_requests_waiting")),
        "kv_cache_ratio": _fullest(
            "model_name", _any(_named(_VLLM, "kv_cache_usage_perc") + _named(_VLLM, "gpu_cache_usage_perc"))
        ),
        "replicas": _replicas("model_name", _named(_VLLM, "num_requests_running")),
        **_engines(
            "model_name",
            _named(_VLLM, "num_requests_waiting"),
            _named(_VLLM, "num_requests_running"),
            _named(_VLLM, "request_success_total"),
        ),
    },
    like=("vllm",),
)
SGLANG = Source(
    "sglang",
    "SGLang, started with --enable-metrics",
    ("model_name",),
    {
        **_latency("model_name", _named(_SGLANG, "e2e_request_latency_seconds")),
        "rate_rps": _rate("model_name", _named(_SGLANG, "e2e_request_latency_seconds_count")),
        # The gauge keeps its last value while nothing runs; the running requests have the same labels.
        "tokens_per_s": _total(
            "model_name",
            " or ".join(
                f"{prefix}gen_throughput{{$M}} * ({prefix}num_running_reqs{{$M}} > bool 0)" for prefix in _SGLANG
            ),
        ),
        "queue_depth": _sum("model_name", _named(_SGLANG, "num_queue_reqs")),
        "kv_cache_ratio": _fullest("model_name", _any(_named(_SGLANG, "token_usage"))),
        "replicas": _replicas("model_name", _named(_SGLANG, "num_running_reqs")),
        **_engines(
            "model_name",
            _named(_SGLANG, "num_queue_reqs"),
            _named(_SGLANG, "num_running_reqs"),
            _named(_SGLANG, "e2e_request_latency_seconds_count"),
        ),
    },
    like=("sglang",),
)
TRITON = Source(
    "triton",
    "Triton, started with --metrics-config summary_latencies=true; a p99 over replicas is the worst of theirs",
    ("model",),
    {
        "p99_s": 'max by (model) (nv_inference_request_summary_us{quantile="0.99",$M}) / 1e6',
        "requests": _total("model", _any(["nv_inference_request_success"], "increase({}[$W])")),
        "rate_rps": _rate("model", ["nv_inference_request_success"])
        + " + "
        + _rate("model", ["nv_inference_request_failure"]),
        "queue_depth": _sum("model", ["nv_inference_pending_request_count"]),
        "kv_cache_ratio": _fullest("model", 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",$M}'),
        "replicas": _replicas("model", ["nv_inference_request_success"]),
    },
    like=("nv_inference", "nv_trt_llm"),
)
TGI = Source(
    "tgi",
    "Text Generation Inference; its metrics name no model, so the scrape job names the service",
    ("job",),
    {
        **_latency("job", ["tgi_request_duration"]),
        "rate_rps": _rate("job", ["tgi_request_success"]),
        "queue_depth": _sum("job", ["tgi_queue_size"]),
        "replicas": _replicas("job", ["tgi_queue_size"]),
        **_engines("job", ["tgi_queue_size"], ["tgi_batch_current_size"], ["tgi_request_success"]),
    },
    like=("tgi_",),
)
_EPP = ("llm_d_epp_request", "inference_objective_request", "inference_model_request")
_EPP_SIZE = _pool("name", "llm_d_epp_ready_endpoints", "inference_pool_ready_pods")
_EPP_QUEUE = _pool("name", "llm_d_epp_average_queue_size", "inference_pool_average_queue_size")
_EPP_BUCKETS = _renamed("le, model_name", [f"{name}_duration_seconds_bucket" for name in _EPP], "rate({}[$W])")
LLM_D = Source(
    "llm-d",
    "the endpoint picker of llm-d and of the Gateway API inference extension; queue and cache are those of the pool",
    ("model_name", "name"),
    {
        "p99_s": f"histogram_quantile(0.99, {_EPP_BUCKETS})",
        "within": _EPP_BUCKETS,
        "requests": _renamed("model_name", [f"{name}_duration_seconds_count" for name in _EPP], "increase({}[$W])"),
        "rate_rps": _renamed("model_name", [f"{name}_total" for name in _EPP], "rate({}[$W])"),
        "queue_depth": f"sum by (name) ({_EPP_QUEUE} * {_EPP_SIZE})",
        "kv_cache_ratio": "avg by (name) ("
        + _pool("name", "llm_d_epp_average_kv_cache_utilization", "inference_pool_average_kv_cache_utilization")
        + ")",
        "replicas": f"sum by (name) ({_EPP_SIZE})",
    },
    like=("llm_d", "inference_objective", "inference_pool", "inference_model", "inference_extension"),
)
KSERVE = Source(
    "kserve",
    "the Python server of KServe",
    ("model_name",),
    {
        **_latency("model_name", ["request_predict_seconds"]),
        "rate_rps": _rate("model_name", ["request_predict_seconds_count"]),
    },
    verified=False,
    like=("request_predict",),
)
ISTIO = Source(
    "istio",
    "the Istio sidecar of the service",
    ("destination_workload",),
    _mesh("destination_workload", "istio_request_duration_milliseconds", "istio_requests_total"),
    verified=False,
    unit_s=1e-3,
    gateway=True,
    like=("istio_request",),
)
ENVOY = Source(
    "envoy",
    "an Envoy in front of the service",
    ("envoy_cluster_name",),
    _mesh("envoy_cluster_name", "envoy_cluster_upstream_rq_time", "envoy_cluster_upstream_rq_time_count"),
    verified=False,
    unit_s=1e-3,
    gateway=True,
    like=("upstream_rq_time",),
)

SOURCES: tuple[Source, ...] = (VLLM, SGLANG, TRITON, TGI, LLM_D, KSERVE, ISTIO, ENVOY)
"""All sources. Where two measure the same service, the one that is named first counts."""

DEFAULT_SOURCES = tuple(source.name for source in SOURCES if source.verified)
