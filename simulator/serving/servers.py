"""The inference servers of a served cluster: one target per service, with the metrics of vLLM.

Names, labels and buckets are those of vLLM. Histograms count completed requests. The time to the first token is that of
`simulator.inference.token_times`; every further token takes the same time, without the stalls by prefills.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.inference.deployments import Services
from simulator.inference.requests import Arrivals, ArrivalSource
from simulator.inference.serving_records import Served, ServiceSpec

Floats = NDArray[np.float64]

E2E_S = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
    960.0,
    1920.0,
    7680.0,
)
TTFT_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    640.0,
    2560.0,
)
ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)


@dataclass(slots=True)
class Histogram:
    """A cumulative histogram."""

    edges: tuple[float, ...]
    counts: NDArray[np.int64] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = np.zeros(len(self.edges) + 1, np.int64)

    def add(self, values: Floats, weights: NDArray[np.int64] | None = None) -> None:
        """Count values, each `weights` times."""
        places = np.searchsorted(self.edges, values)
        self.counts += np.bincount(places, weights, len(self.counts)).astype(np.int64)
        self.total += float((values if weights is None else values * weights).sum())

    def lines(self, name: str, labels: str) -> list[str]:
        """The series of the histogram."""
        sums = np.cumsum(self.counts).tolist()
        edges = [*(repr(edge) for edge in self.edges), "+Inf"]
        return [
            *(f'{name}_bucket{{{labels},le="{edge}"}} {count}' for edge, count in zip(edges, sums, strict=True)),
            f"{name}_sum{{{labels}}} {self.total!r}",
            f"{name}_count{{{labels}}} {sums[-1]}",
        ]


class _Recorded:
    """Another source of requests, which remembers the tokens of those that are not completed yet."""

    def __init__(self, source: ArrivalSource, server: Server) -> None:
        self._source, self._server = source, server

    def upto(self, to_s: float) -> Arrivals:
        """Like the other source."""
        arrivals = self._source.upto(to_s)
        self._server.arrived(arrivals)
        return arrivals


class Server:
    """The counters of one service."""

    def __init__(self, spec: ServiceSpec) -> None:
        self.spec = spec
        self._tokens: deque[tuple[int, int]] = deque()  # (input, output) by request, from `_first` on
        self._first = 0
        self._done: set[int] = set()
        self.prompt_tokens = self.generation_tokens = 0
        self.e2e, self.ttft, self.itl = Histogram(E2E_S), Histogram(TTFT_S), Histogram(ITL_S)
        self.queue_time = Histogram(E2E_S)

    def arrived(self, arrivals: Arrivals) -> None:
        """Requests arrived."""
        self._tokens.extend(zip(arrivals.input_tokens.tolist(), arrivals.output_tokens.tolist(), strict=True))

    def served(self, done: Served) -> None:
        """Requests were completed."""
        pairs = np.array([self._tokens[seq - self._first] for seq in done.seq.tolist()], np.int64).reshape(-1, 2)
        prompt, output = pairs[:, 0], pairs[:, 1]
        waited_s = done.start_s - done.arrival_s
        self.prompt_tokens += int(prompt.sum())
        self.generation_tokens += int(output.sum())
        self.e2e.add(done.latency_s)
        self.queue_time.add(waited_s)
        one_token_s = 1.0 / self.spec.decode_tokens_per_s
        self.ttft.add(waited_s + prompt / self.spec.prefill_tokens_per_s + np.minimum(output, 1) * one_token_s)
        if one_token_s > 0:  # else a pool of prefill
            self.itl.add(np.full(len(output), one_token_s), np.maximum(output - 1, 0))
        self._done.update(done.seq.tolist())
        while self._first in self._done:
            self._done.remove(self._first)
            self._tokens.popleft()
            self._first += 1

    def lines(self, waiting: int, running: int, slots: int) -> list[str]:
        """All series of the service."""
        labels = f'model_name="{self.spec.name}",engine="0"'
        used = min(running / slots, 1.0) if slots else 0.0
        found = [
            *_gauge("vllm:num_requests_running", labels, running),
            *_gauge("vllm:num_requests_waiting", labels, waiting),
            *_gauge("vllm:kv_cache_usage_perc", labels, used),
            "# TYPE vllm:prompt_tokens_total counter",
            f"vllm:prompt_tokens_total{{{labels}}} {self.prompt_tokens}",
            "# TYPE vllm:generation_tokens_total counter",
            f"vllm:generation_tokens_total{{{labels}}} {self.generation_tokens}",
            "# TYPE vllm:request_success_total counter",
            f'vllm:request_success_total{{{labels},finished_reason="stop"}} {int(self.e2e.counts.sum())}',
        ]
        for name, histogram in (
            ("vllm:e2e_request_latency_seconds", self.e2e),
            ("vllm:request_queue_time_seconds", self.queue_time),
            ("vllm:time_to_first_token_seconds", self.ttft),
            ("vllm:inter_token_latency_seconds", self.itl),
        ):
            found += [f"# TYPE {name} histogram", *histogram.lines(name, labels)]
        return found


def _gauge(name: str, labels: str, value: float) -> list[str]:
    return [f"# TYPE {name} gauge", f"{name}{{{labels}}} {value:g}"]


Load = Callable[[str, float], tuple[int, int, int]]
"""(waiting requests, running requests, slots of ready replicas) of a service at a time."""


class Servers:
    """The texts of all services. Wrap the services with `watched` before the fleet is made of them."""

    def __init__(self, services: Services) -> None:
        self._servers = {each.name: Server(each.serving) for each in services.deployments}
        self.load: Load | None = None
        self.watched = replace(services, sources=self._sources_of(services))

    def _sources_of(self, services: Services) -> Callable[[], list[ArrivalSource]]:
        servers = list(self._servers.values())

        def sources() -> list[ArrivalSource]:
            return [_Recorded(source, server) for source, server in zip(services.sources(), servers, strict=True)]

        return sources

    def on_served(self, name: str) -> Callable[[Served], None]:
        """The callback of one service's simulation."""
        return self._servers[name].served

    def targets(self) -> Mapping[str, Mapping[str, str]]:
        """The services."""
        return {name: {"service": name} for name in self._servers}

    def text(self, target: str, now_s: float) -> bytes | None:
        """The answer of one server to a scrape."""
        load: Any = self.load
        lines = self._servers[target].lines(*load(target, now_s))
        return ("\n".join(lines) + "\n").encode()
