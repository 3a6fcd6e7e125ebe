"""Small services for tests: a request holds its slot for as many seconds as it has output tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from simulator.inference.autoscaler import AutoscalerSpec
from simulator.inference.deployments import Deployment, Services
from simulator.inference.requests import Arrivals, Floats, ListedArrivals
from simulator.inference.serving_records import ServiceSpec

# an output token is a second
CHAT = ServiceSpec(name="chat", slots=2, prefill_tokens_per_s=1e9, decode_tokens_per_s=1.0, objective_s=30.0)


def deployment(low: int = 1, high: int = 4, initial: int = 1, **more: Any) -> Deployment:
    """A service of two slots a replica, looked at every 30 s; `more` are fields of Deployment."""
    scaler = AutoscalerSpec(target=0.5, min_replicas=low, max_replicas=high, period_s=30.0, down_stabilisation_s=60.0)
    values: dict[str, Any] = {
        "serving": CHAT,
        "tenant": "web",
        "autoscaler": scaler,
        "initial_replicas": initial,
    }
    return Deployment(**(values | more))


def calls(t_s: Sequence[float] | Floats, seconds: ArrayLike) -> Arrivals:
    """Requests that each hold a slot for `seconds`."""
    times = np.asarray(t_s, float)
    tokens = np.broadcast_to(np.asarray(seconds, np.int64), times.shape)
    return Arrivals(times, np.zeros(len(times), np.int64), tokens)


def services(arrivals: Arrivals, horizon_s: float, plan: Deployment | None = None) -> Services:
    """One service with these requests."""
    return Services(
        deployments=(plan or deployment(),), horizon_s=horizon_s, sources=lambda: [ListedArrivals(arrivals)]
    )
