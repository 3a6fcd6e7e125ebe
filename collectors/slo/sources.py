"""The table of sources: how each inference server, gateway or mesh says what the autopilot needs of a service.

Every query aggregates to the label that names the service, and to the namespace and the owner of its pods (`SPLIT`):
two Deployments may serve one model. `$W` is the window and `$M` the matchers of the operator. A server that two jobs
scrape, or two replicas of Prometheus, counts once: the maximum of each of its series counts by pod (by address where no
label names the pod), then the sum over pods. A source that is not `verified` has names from general knowledge: it is
off unless it is named, and its values should be compared once with what the service itself reports.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
PLACE = ("autopilot_namespace", "autopilot_pod")
"""Labels that queries add: where a server runs, by whatever label says it."""
SPLIT = (PLACE[0], "autopilot_owner")
"""Namespace and owner of the pods of a series: the StatefulSet or Deployment, by the shape of the name of the pod."""
ADDITIVE = frozenset({"rate_rps", "requests", "tokens_per_s", "queue_depth", "replicas"})
"""Measures that add up over the owners of one service. Of all others the largest counts."""
_SAID_BY = (
    (PLACE[0], ("kubernetes_namespace", "namespace", "exported_namespace")),
    (PLACE[1], ("instance", "kubernetes_pod_name", "pod", "exported_pod")),
)
"""For each of them the labels that say it; the last that is there counts. Annotation jobs, operators and collectors of
OpenTelemetry use different ones."""
_OWNER_OF = ("([a-z0-9.-]+)-[0-9]+", "([a-z0-9.-]+)-[a-z0-9]{5,10}-[a-z0-9]{5}")
"""Names of pods by the name of their owner: of a StatefulSet, and of a ReplicaSet, whose own name ends with a hash
(kubernetes, `pod-template-hash`)."""
_ENGINE = ("engine", "dp_rank", "engine_type", "ReplicaId", "WorkerId")
"""Labels of the engines of one pod that share its requests. Ranks of tensor parallelism repeat the same requests."""
_PARTS = ("finished_reason", "reason", "version", "target_model_name", "priority", "fairness_id")
"""Labels of counters whose parts sum up."""

Prefixes = tuple[str, ...]
ANY = ("",)


@dataclass(frozen=True, slots=True)
class Family:
    """Names of metrics that share a prefix. `prefixes` are those that servers and collectors are known to write.

    Another prefix is one of the family where every name of `shape` is there under it, and it contains one of `like`.
    """

    prefixes: Prefixes
    shape: tuple[str, ...]
    like: tuple[str, ...] = ANY

    def found(self, names: Iterable[str]) -> Prefixes:
        """The prefixes of the family among these names of metrics that are not known."""
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
    made: Callable[..., Mapping[str, str]] | None = None  # the queries for the prefixes of each family

    @property
    def alike(self) -> tuple[str, ...]:
        """Parts of names of metrics that look like those of a server of this kind."""
        return *self.like, *(name for each in self.families if each.like == ANY for name in each.shape)

    def seen(self, names: Sequence[str]) -> Source:
        """The source, with the queries for those prefixes of its families that are among these names, too."""
        found = [each.found(names) for each in self.families]
        if self.made is None or not any(found):
            return self
        both = zip(self.families, found, strict=True)
        return replace(self, queries=self.made(*(each.prefixes + more for each, more in both)))


def _named(prefixes: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(prefix + name for prefix in prefixes)


def _any(names: Iterable[str], form: str = "{}") -> str:
    """The series with any of these names, each in a form such as a rate: servers rename their metrics."""
    return " or ".join(form.format(name + "{$M}") for name in names)


def _placed(vector: str) -> str:
    """The vector with the labels of `PLACE` and `SPLIT`."""
    for place, labels in _SAID_BY:
        for label in labels:
            vector = f'label_replace({vector},"{place}","$$1","{label}","(.+)")'
    for shape in _OWNER_OF:
        vector = f'label_replace({vector},"{SPLIT[1]}","$$1","{PLACE[1]}","{shape}")'
    return vector


def _by(by: str, *more: str) -> str:
    return ", ".join((by, *more))


def _pods(by: str, vector: str, how: str = "sum") -> str:
    """One value for each pod: each series counts once, then those of the pod together."""
    once = f"max by ({_by(by, *_ENGINE, *_PARTS, *PLACE, SPLIT[1])}) ({_placed(vector)})"
    return f"{how} by ({_by(by, *PLACE, SPLIT[1])}) ({once})"


def _total(by: str, vector: str) -> str:
    """The sum over all series, each once."""
    return f"sum by ({_by(by, *SPLIT)}) (max by ({_by(by, *_ENGINE, *_PARTS, *PLACE, SPLIT[1])}) ({_placed(vector)}))"


def _rate(by: str, names: Iterable[str]) -> str:
    return _total(by, _any(names, "rate({}[$W])"))


def _sum(by: str, names: Iterable[str]) -> str:
    return _total(by, _any(names))


def _fullest(by: str, vector: str) -> str:
    """The mean over pods of the fullest engine of each."""
    return f"avg by ({_by(by, *SPLIT)}) ({_pods(by, vector, 'max')})"


def _replicas(by: str, names: Iterable[str]) -> str:
    """Pods that report."""
    return f"count by ({_by(by, *SPLIT)}) ({_pods(by, _any(names))})"


def _spread(by: str, histograms: Iterable[str], of: str = "") -> dict[str, str]:
    """p99 and buckets from one histogram, whose first name that a server has counts."""
    buckets = _rate(f"le, {by}", [f"{name}_bucket" for name in histograms])
    return {f"{of}p99_s": f"histogram_quantile(0.99, {buckets})", f"{of}within": buckets}


def _latency(by: str, histograms: Iterable[str]) -> dict[str, str]:
    """p99, buckets and number of requests from one histogram."""
    names = tuple(histograms)
    requests = _total(by, _any([f"{name}_count" for name in names], "increase({}[$W])"))
    return {**_spread(by, names), "requests": requests}


WAITED = "({0} and min_over_time({0}[$W]) > 0 and {0} offset $W)"
"""A gauge where it was above 0 for the whole window."""


def _engines(
    by: str, waiting: Iterable[str], running: Iterable[str], finished: Iterable[str], most: str = "max_over_time"
) -> dict[str, str]:
    """What shows an engine whose requests wait for nothing: clients that left may stay in the gauge for ever."""

    def each(vector: str) -> str:
        return f"max by ({_by(by, *_ENGINE, *PLACE, SPLIT[1])}) ({_placed(vector)})"

    return {
        "waited": each(_any(waiting, WAITED)),
        "ran": each(_any(running, f"{most}({{}}[$W])")),
        "finished": f"max by ({_by(by, *PLACE)}) ({_placed(_any(finished, 'increase({}[$W])'))})",
    }


def _renamed(by: str, names: Iterable[str], form: str) -> str:
    """The sum over pods; the first name that a pod has counts, because the labels differ between both."""
    return f"sum by ({_by(by, PLACE[0])}) ({' or '.join(_pods(by, _any([name], form)) for name in names)})"


def _pool(by: str, vector: str) -> str:
    """A gauge of a whole pool, that each of its gateways repeats."""
    return f"max by ({_by(by, PLACE[0])}) ({_placed(vector)})"


def _mesh(by: str, histogram: str, requests: str, *split: tuple[str, str, str]) -> dict[str, str]:
    """Latency (from milliseconds) and rate by proxies, whose labels are those of the operator: all but jobs count.

    `split`: a label of `SPLIT`, the label that says it, and how it does.
    """
    copies = "job, endpoint, container, prometheus, prometheus_replica, replica, __replica__"

    def total(vector: str, more: str = "") -> str:
        for to, label, shape in split:
            vector = f'label_replace({vector},"{to}","$$1","{label}","{shape}")'
        return f"sum by ({more}{_by(by, *SPLIT)}) (max without ({copies}) ({vector}))"

    buckets = total(f"rate({histogram}_bucket{{$M}}[$W])", "le, ")
    return {
        "p99_s": f"histogram_quantile(0.99, {buckets}) * 0.001",
        "within": buckets,
        "requests": total(f"increase({histogram}_count{{$M}}[$W])"),
        "rate_rps": total(f"rate({requests}{{$M}}[$W])"),
    }


def _vllm(at: Prefixes) -> Mapping[str, str]:
    by, waiting, running = "model_name", _named(at, "num_requests_waiting"), _named(at, "num_requests_running")
    ended, prompts = _named(at, "request_success_total"), _named(at, "prompt_tokens_total")
    return {
        **_latency(by, _named(at, "e2e_request_latency_seconds")),
        **_spread(by, _named(at, "time_to_first_token_seconds"), "ttft_"),
        **_spread(by, _named(at, "inter_token_latency_seconds") + _named(at, "time_per_output_token_seconds"), "itl_"),
        "rate_rps": _rate(by, ended),
        "tokens_per_s": f"{_rate(by, prompts)} + {_rate(by, _named(at, 'generation_tokens_total'))}",
        "queue_depth": _sum(by, waiting),
        "kv_cache_ratio": _fullest(by, _any(_named(at, "kv_cache_usage_perc") + _named(at, "gpu_cache_usage_perc"))),
        "replicas": _replicas(by, running),
        **_engines(by, waiting, running, ended),
    }


def _sglang(at: Prefixes) -> Mapping[str, str]:
    by, waiting, running = "model_name", _named(at, "num_queue_reqs"), _named(at, "num_running_reqs")
    ended = _named(at, "e2e_request_latency_seconds_count")
    # The gauge keeps its last value while nothing runs; the running requests have the same labels.
    made = (f"{each}gen_throughput{{$M}} * ({each}num_running_reqs{{$M}} > bool 0)" for each in at)
    return {
        **_latency(by, _named(at, "e2e_request_latency_seconds")),
        "rate_rps": _rate(by, ended),
        "tokens_per_s": _total(by, " or ".join(made)),
        "queue_depth": _sum(by, waiting),
        "kv_cache_ratio": _fullest(by, _any(_named(at, "token_usage"))),
        "replicas": _replicas(by, running),
        **_engines(by, waiting, running, ended),
    }


def _triton(at: Prefixes) -> Mapping[str, str]:
    by, ended = "model", _named(at, "nv_inference_request_success")
    waiting, failed = _named(at, "nv_inference_pending_request_count"), _named(at, "nv_inference_request_failure")
    worst = (each + '{quantile="0.99",$M}' for each in _named(at, "nv_inference_request_summary_us"))
    cache = (each + '{kv_cache_block_type="fraction",$M}' for each in _named(at, "nv_trt_llm_kv_cache_block_metrics"))
    return {
        "p99_s": f"max by ({_by(by, *SPLIT)}) ({_placed(' or '.join(worst))}) / 1e6",
        "requests": _total(by, _any(ended, "increase({}[$W])")),
        "rate_rps": f"{_rate(by, ended)} + {_rate(by, failed)}",
        "queue_depth": _sum(by, waiting),
        "kv_cache_ratio": _fullest(by, " or ".join(cache)),
        "replicas": _replicas(by, ended),
        # No gauge counts what runs; executions of batches are counted.
        **_engines(by, waiting, _named(at, "nv_inference_exec_count"), ended + failed, "increase"),
    }


def _tgi(at: Prefixes) -> Mapping[str, str]:
    waiting, ended = _named(at, "tgi_queue_size"), _named(at, "tgi_request_success")
    return {
        **_latency("job", _named(at, "tgi_request_duration")),
        "rate_rps": _rate("job", ended),
        "queue_depth": _sum("job", waiting),
        "replicas": _replicas("job", waiting),
        **_engines("job", waiting, _named(at, "tgi_batch_current_size"), ended),
    }


def _llm_d(requests: Prefixes, pools: Prefixes) -> Mapping[str, str]:
    durations = _named(requests, "request_duration_seconds")
    buckets = _renamed("le, model_name", [f"{name}_bucket" for name in durations], "rate({}[$W])")
    size = _pool("name", _any(_named(pools, "ready_endpoints") + _named(pools, "ready_pods")))
    queue = _named(pools, "average_queue_size")
    return {
        "p99_s": f"histogram_quantile(0.99, {buckets})",
        "within": buckets,
        "requests": _renamed("model_name", [f"{name}_count" for name in durations], "increase({}[$W])"),
        "rate_rps": _renamed("model_name", _named(requests, "request_total"), "rate({}[$W])"),
        "queue_depth": f"sum by ({_by('name', PLACE[0])}) ({_pool('name', _any(queue))} * {size})",
        "kv_cache_ratio": _pool("name", _any(_named(pools, "average_kv_cache_utilization"))),
        "replicas": size,
        "waited": f"{_pool('name', _any(queue, WAITED))} * {size}",
        "ran": _pool("name", _any(_named(pools, "average_running_requests"), "max_over_time({}[$W])")),
        "finished": _pool("model_name", _any(_named(requests, "request_total"), "increase({}[$W])")),
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
)
SGLANG = _source(
    "sglang",
    "SGLang, started with --enable-metrics",
    ("model_name",),
    _sglang,
    Family(("sglang:", "sglang_"), ("num_queue_reqs", "num_running_reqs", "token_usage")),
    like=("sglang",),
)
TRITON = _source(
    "triton",
    "Triton, started with --metrics-config summary_latencies=true; a p99 over replicas is the worst of theirs",
    ("model",),
    _triton,
    Family(("",), ("nv_inference_request_success", "nv_inference_request_failure")),
    like=("nv_inference", "nv_trt_llm"),
)
TGI = _source(
    "tgi",
    "Text Generation Inference; its metrics name no model, so the scrape job names the service",
    ("job",),
    _tgi,
    Family(("",), ("tgi_queue_size", "tgi_request_success")),
    like=("tgi_",),
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
    _mesh(
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
    _mesh(
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

SOURCES: tuple[Source, ...] = (VLLM, SGLANG, TRITON, TGI, LLM_D, KSERVE, ISTIO, ENVOY)
"""All sources. Where two measure the same service, the one that is named first counts."""

DEFAULT_SOURCES = tuple(source.name for source in SOURCES if source.verified)
