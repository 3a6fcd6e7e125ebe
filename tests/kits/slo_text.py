"""Expositions of inference servers, gateways and meshes, by the names of their documentation, for tests.

`TRAFFIC` is what happens at each of them per second: the tests know what a collector has to find.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

RPS, TOKENS_PER_S, QUEUE, CACHE, REPLICAS = 40.0, 4000.0, 7.0, 0.5, 2
LATE_RATIO = 0.1
"""A tenth of the requests takes between 2.5 s and 5 s, the rest at most 1 s. The first token takes as long, and each
further token takes a hundredth of that.
"""

E2E = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
EPP = (0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
TTFT = (0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0, 2.5, 5.0)
MESH_MS = (0.5, 1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000)

Text = Callable[[float], list[str]]
"""The lines of one replica after so many seconds of traffic."""


def _histogram(name: str, labels: str, edges: Sequence[float], t_s: float, unit: float = 1.0) -> list[str]:
    """The latencies of half of the traffic: one replica of two."""
    count = RPS / REPLICAS * t_s
    lines = []
    for edge in (*edges, float("inf")):
        share = 0.0 if edge * unit < 1.0 else 1.0 - LATE_RATIO if edge * unit < 5.0 else 1.0
        text = "+Inf" if edge == float("inf") else f"{edge:g}"
        lines.append(f'{name}_bucket{{{labels},le="{text}"}} {share * count}')
    return [*lines, f"{name}_sum{{{labels}}} {count}", f"{name}_count{{{labels}}} {count}"]


def _tokens(ttft: str, itl: str, labels: str, t_s: float) -> list[str]:
    """The times of tokens, in seconds."""
    return [*_histogram(ttft, labels, TTFT, t_s), *_histogram(itl, labels, ITL, t_s, 100.0)]


def _vllm(t_s: float) -> list[str]:
    own = 'model_name="chat",engine="0"'
    return [
        *_histogram("vllm:e2e_request_latency_seconds", own, E2E, t_s),
        *_tokens("vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds", own, t_s),
        f'vllm:request_success_total{{{own},finished_reason="stop"}} {RPS / 4 * t_s}',
        f'vllm:request_success_total{{{own},finished_reason="length"}} {RPS / 4 * t_s}',
        f"vllm:prompt_tokens_total{{{own}}} {TOKENS_PER_S / 8 * 3 * t_s}",
        f"vllm:generation_tokens_total{{{own}}} {TOKENS_PER_S / 8 * t_s}",
        f"vllm:num_requests_waiting{{{own}}} {QUEUE / 2}",
        f"vllm:num_requests_running{{{own}}} 3",
        f"vllm:kv_cache_usage_perc{{{own}}} {CACHE}",
    ]


def _old_vllm(t_s: float) -> list[str]:
    """The same with the old names of the cache metric and of the time between tokens."""
    old = {"kv_cache_usage_perc": "gpu_cache_usage_perc", "inter_token_latency": "time_per_output_token"}
    return [re.sub("|".join(old), lambda found: old[found[0]], line) for line in _vllm(t_s)]


def _behind_ray(t_s: float) -> list[str]:
    """With the labels that Ray Serve adds."""
    ray = 'engine="0",WorkerId="w-1",ReplicaId="llm#1"'
    return [line.replace("vllm:", "ray_vllm:").replace('engine="0"', ray) for line in _vllm(t_s)]


def _collected_vllm(t_s: float) -> list[str]:
    """As a collector of OpenTelemetry names it."""
    return [line.replace("vllm:", "vllm_") for line in _vllm(t_s)]


def _ranked_sglang(t_s: float) -> list[str]:
    """Two ranks share the requests of a replica: the second has nothing to do, and its throughput is left over."""
    busy = [line.replace('{model_name="chat"', '{model_name="chat",dp_rank="0"') for line in _sglang(t_s)]
    idle = [
        f'sglang:{name}{{model_name="chat",dp_rank="1"}} {value}'
        for name, value in (("gen_throughput", 900), ("num_queue_reqs", 0), ("num_running_reqs", 0), ("token_usage", 0))
    ]
    return [*busy, *idle]


def _renamed_llm_d(t_s: float) -> list[str]:
    """While the endpoint picker writes its new names and the old ones; the new ones have labels more. The first token
    of an answer that is not streamed comes with the last one, and does not count.
    """
    new = []
    for line in _llm_d(t_s):
        name = line.replace("inference_objective_", "llm_d_epp_").replace("inference_pool_", "llm_d_epp_")
        name = name.replace("ready_pods", "ready_endpoints").replace(
            "request_tpot_seconds", "request_streaming_itl_seconds"
        )
        new.append(name.replace("target_model", 'fairness_id="a",priority="0",target_model'))
        if "ttft" in name:
            new[-1] = new[-1].replace("fairness_id", 'streaming="true",fairness_id')
    whole = 'model_name="chat",streaming="false",fairness_id="a",target_model_name="chat-v2"'
    late = f'llm_d_epp_request_ttft_seconds_bucket{{{whole},le="+Inf"}} {RPS * t_s}'
    return [*new, late, *_llm_d(t_s)]


def _trtllm(t_s: float) -> list[str]:
    own = 'model_name="chat",engine_type="trtllm"'
    return [
        *_histogram("trtllm_e2e_request_latency_seconds", own, E2E, t_s),
        *_tokens("trtllm_time_to_first_token_seconds", "trtllm_time_per_output_token_seconds", own, t_s),
        f'trtllm_request_success_total{{{own},finished_reason="stop"}} {RPS / 4 * t_s}',
        f'trtllm_request_success_total{{{own},finished_reason="length"}} {RPS / 4 * t_s}',
        f"trtllm_num_requests_waiting{{{own}}} {QUEUE / 2}",
        f"trtllm_num_requests_running{{{own}}} 3",
        f"trtllm_kv_cache_utilization{{{own}}} {CACHE}",
    ]


def _dynamo(t_s: float) -> list[str]:
    own = 'model="chat"'
    at = "dynamo_frontend_"
    return [
        *_histogram(f"{at}request_duration_seconds", own, E2E, t_s),
        *_tokens(f"{at}time_to_first_token_seconds", f"{at}inter_token_latency_seconds", own, t_s),
        f"{at}input_sequence_tokens_sum{{{own}}} {TOKENS_PER_S / 8 * 3 * t_s}",
        f"{at}output_sequence_tokens_sum{{{own}}} {TOKENS_PER_S / 8 * t_s}",
    ]


def _sglang(t_s: float) -> list[str]:
    own = 'model_name="chat",engine_type="unified"'
    return [
        *_histogram("sglang:e2e_request_latency_seconds", own, E2E, t_s),
        *_tokens("sglang:time_to_first_token_seconds", "sglang:inter_token_latency_seconds", own, t_s),
        f"sglang:gen_throughput{{{own}}} {TOKENS_PER_S / 2}",
        f"sglang:num_queue_reqs{{{own}}} {QUEUE / 2}",
        f"sglang:num_running_reqs{{{own}}} 3",
        f"sglang:token_usage{{{own}}} {CACHE}",
    ]


def _triton(t_s: float) -> list[str]:
    own = 'model="chat",version="1"'
    return [
        *_histogram("nv_inference_first_response_histogram_ms", own, MESH_MS, t_s, 1e-3),
        f"nv_inference_request_success{{{own}}} {RPS / 2 * t_s}",
        f"nv_inference_request_failure{{{own}}} 0",
        f"nv_inference_request_duration_us{{{own}}} {RPS / 2 * t_s * 6e5}",
        f"nv_inference_exec_count{{{own}}} {RPS / 4 * t_s}",
        f"nv_inference_pending_request_count{{{own}}} {QUEUE / 2}",
        f'nv_inference_request_summary_us{{{own},quantile="0.5"}} 600000',
        f'nv_inference_request_summary_us{{{own},quantile="0.99"}} 4750000',
        f'nv_trt_llm_kv_cache_block_metrics{{{own},kv_cache_block_type="fraction"}} {CACHE}',
        f'nv_trt_llm_kv_cache_block_metrics{{{own},kv_cache_block_type="max"}} 1000',
    ]


def _tgi(t_s: float) -> list[str]:
    return [
        *_histogram("tgi_request_duration", 'kind="all"', E2E, t_s),
        *_histogram("tgi_request_mean_time_per_token_duration", 'kind="all"', ITL, t_s, 100.0),
        f"tgi_request_success {RPS / 2 * t_s}",
        f"tgi_queue_size {QUEUE / 2}",
        "tgi_batch_current_size 3",
    ]


def _llm_d(t_s: float) -> list[str]:
    own = 'model_name="chat",target_model_name="chat-v2"'
    return [
        *_histogram("inference_objective_request_duration_seconds", own, EPP, t_s),
        *_tokens("inference_objective_request_ttft_seconds", "inference_objective_request_tpot_seconds", own, t_s),
        f"inference_objective_request_total{{{own}}} {RPS / 2 * t_s}",
        f'inference_pool_average_queue_size{{name="chat"}} {QUEUE / REPLICAS}',
        f'inference_pool_ready_pods{{name="chat"}} {REPLICAS}',
        f'inference_pool_average_kv_cache_utilization{{name="chat"}} {CACHE}',
        'inference_pool_average_running_requests{name="chat"} 3',
    ]


def _kserve(t_s: float) -> list[str]:
    return _histogram("request_predict_seconds", 'model_name="chat"', E2E, t_s)


def _istio(t_s: float) -> list[str]:
    own = 'destination_workload="chat",destination_workload_namespace="models",response_code="200"'
    return [
        *_histogram("istio_request_duration_milliseconds", own, MESH_MS, t_s, 1e-3),
        f"istio_requests_total{{{own}}} {RPS / 2 * t_s}",
    ]


def _envoy(t_s: float) -> list[str]:
    return _histogram("envoy_cluster_upstream_rq_time", 'envoy_cluster_name="chat"', MESH_MS, t_s, 1e-3)


TEXTS: dict[str, Text] = {
    "vllm": _vllm,
    "old-vllm": _old_vllm,
    "behind-ray": _behind_ray,
    "collected-vllm": _collected_vllm,
    "sglang": _sglang,
    "ranked-sglang": _ranked_sglang,
    "trtllm": _trtllm,
    "triton": _triton,
    "tgi": _tgi,
    "dynamo": _dynamo,
    "llm-d": _llm_d,
    "renamed-llm-d": _renamed_llm_d,
    "kserve": _kserve,
    "istio": _istio,
    "envoy": _envoy,
}
