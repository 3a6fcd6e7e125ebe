"""Configuration and measurements of a simulated service: records without behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autopilot.core.model.errors import InputError
from autopilot.core.model.objects import ServingRole
from simulator.inference.requests import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """One service and the speed of one of its replicas."""

    name: str
    slots: int
    """requests that a replica serves at once"""
    prefill_tokens_per_s: float
    """input tokens per second, for one request; infinite in a pool of decode, which gets them ready"""
    decode_tokens_per_s: float
    """output tokens per second of one slot while the others are busy too; infinite in a pool of prefill"""
    objective_s: float | None = None
    """latency above which a request violates the service's objective; None: it has none"""
    ttft_objective_s: float | None = None
    itl_objective_s: float | None = None
    role: ServingRole = ServingRole.WHOLE

    def __post_init__(self) -> None:
        """Raise `InputError` naming the field that is out of range."""
        if self.slots < 1:
            raise InputError(f"service {self.name}: slots = {self.slots} must be 1 or more")
        free = {ServingRole.PREFILL: "decode_tokens_per_s", ServingRole.DECODE: "prefill_tokens_per_s"}.get(self.role)
        objectives = ("objective_s", "ttft_objective_s", "itl_objective_s")
        for field in ("prefill_tokens_per_s", "decode_tokens_per_s", *objectives):
            value = getattr(self, field)
            if value is not None and not ((np.isfinite(value) or field == free) and value > 0):
                raise InputError(f"service {self.name}: {field} = {value!r} must be a finite number above 0")

    def service_s(self, input_tokens: Ints, output_tokens: Ints) -> Floats:
        """Seconds for which each request holds its slot."""
        return input_tokens / self.prefill_tokens_per_s + output_tokens / self.decode_tokens_per_s


class Counters(NamedTuple):
    """Counters of a service since its start; the difference of two gives any interval."""

    now_s: float
    arrived: int
    completed: int
    violations: int
    requeued: int
    busy_slot_s: float
    capacity_slot_s: float
    """slots of ready replicas, and those busy ones of draining replicas, times seconds"""


@dataclass(frozen=True, slots=True)
class Windows:
    """Closed windows by column, (start_s, end_s] each; NaN where nothing was measured.

    Arrivals are counted at their arrival, latencies and violations at completion.
    """

    end_s: Floats
    arrived: Floats
    arrival_rate_rps: Floats
    completed: Floats
    p50_latency_s: Floats
    p99_latency_s: Floats
    violations: Floats
    queue_depth: Floats
    """waiting requests at end_s"""
    utilization_ratio: Floats
    """busy slot-seconds / capacity slot-seconds"""
    tokens: Floats
    """input and output tokens of the requests that arrived"""


@dataclass(frozen=True, slots=True)
class ServingTotals:
    """The `slo` block of a simulation result; None where it does not apply."""

    requests: int
    """all arrivals"""
    p99_latency_s: float | None
    """of the completed requests, within 0.39 %"""
    violation_ratio: float | None
    """requests over the objective / requests, including those still waiting or running beyond it at the end"""


class Served(NamedTuple):
    """Completed requests by column."""

    seq: Ints
    """position among all requests of the service, in order of arrival"""
    arrival_s: Floats
    start_s: Floats
    """of the attempt that completed"""
    service_s: Floats
    latency_s: Floats
