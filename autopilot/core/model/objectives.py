"""The objectives of services: the ones that count, and their measurements.

A service may promise a p99 of latency, of the time to the first token (TTFT) and of the time between two tokens (ITL).
With separate pools for prefill and decode, each pool is a service: TTFT is the work of prefill and ITL that of decode,
so an objective counts for its own pool only. A pool of unknown role answers for both. Pools inside the gangs of another
service share its fate: a stop of a replica of that service stops a part of each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autopilot.core.model.objects import ServingRole
from autopilot.core.model.snapshot import F64, Bools, ServiceTable


@dataclass(frozen=True, slots=True)
class Objective:
    """One kind of objective: the columns of `ServiceTable`, and the role of the pools exempt from it."""

    name: str
    words: str
    objective: str
    p99: str
    missed: str  # share of the last minute over the objective
    not_of: ServingRole | None
    metric: str  # of vLLM, as an example


OBJECTIVES = (
    Objective(
        "latency",
        "latency",
        "objective_s",
        "p99_s",
        "recent_violation_ratio",
        None,
        "vllm:e2e_request_latency_seconds",
    ),
    Objective(
        "ttft",
        "time to the first token",
        "ttft_objective_s",
        "ttft_p99_s",
        "recent_ttft_violation_ratio",
        ServingRole.DECODE,
        "vllm:time_to_first_token_seconds",
    ),
    Objective(
        "itl",
        "time between two tokens",
        "itl_objective_s",
        "itl_p99_s",
        "recent_itl_violation_ratio",
        ServingRole.PREFILL,
        "vllm:inter_token_latency_seconds",
    ),
)


def counting(services: ServiceTable) -> Bools:
    """True if the service has the objective and its role answers for it. Shape [OBJECTIVES, services]."""
    declared = [
        (getattr(services, each.objective) > 0) & (each.not_of is None or services.role != each.not_of)
        for each in OBJECTIVES
    ]
    return np.stack(declared)


def promised_s(services: ServiceTable) -> F64:
    """The counting objectives in seconds; NaN for the others. Shape as `counting`."""
    return np.where(counting(services), [getattr(services, each.objective) for each in OBJECTIVES], np.nan)


def over_objective(services: ServiceTable) -> F64:
    """p99 / objective; NaN if the objective does not count or is not measured. Shape as `counting`."""
    counts = counting(services)
    ratios: F64 = np.full(counts.shape, np.nan)
    for row, each in enumerate(OBJECTIVES):
        measured, promised = getattr(services, each.p99), getattr(services, each.objective)
        np.divide(measured, promised, out=ratios[row], where=counts[row])
    return ratios


def breached(services: ServiceTable) -> Bools:
    """True if a measured p99 exceeds an objective that counts. Shape [services]."""
    return np.asarray((over_objective(services) > 1.0).any(axis=0))


def with_pools(services: ServiceTable, rows: Sequence[int]) -> list[int]:
    """These services, and the pools inside their gangs."""
    pools: list[int] = np.flatnonzero(np.isin(services.part_of, rows) & (services.part_of >= 0)).tolist()
    return sorted({*rows, *pools})


def of_pools(services: ServiceTable, true: Bools) -> Bools:
    """The mask, also true for a service whose gangs contain a pool in it. Shape [services]."""
    found = true.copy()
    found[services.part_of[true & (services.part_of >= 0)]] = True
    return found


def missed_ratio(services: ServiceTable) -> tuple[F64, Bools]:
    """The largest share of requests of the last minute over a measured objective (NaN: none measured), and True if an
    objective that counts is not measured. Both have shape [services].

    Measured latency always counts: its objective may be a setting, unknown to the cluster.
    """
    counts = counting(services)
    shares = np.stack([getattr(services, each.missed) for each in OBJECTIVES])
    unknown = (counts & np.isnan(shares)).any(axis=0)
    shares[1:][~counts[1:]] = np.nan
    return np.fmax.reduce(shares, axis=0), unknown


def declared(services: ServiceTable) -> dict[str, tuple[float, ...]]:
    """Service -> its objectives that count, in seconds and in the order of `OBJECTIVES`; NaN for the others. Services
    without any are left out.
    """
    values_s = promised_s(services)
    rows = np.flatnonzero(np.isfinite(values_s).any(axis=0)).tolist()
    return {str(services.id[row]): tuple(values_s[:, row].tolist()) for row in rows}


def unanswered(services: ServiceTable) -> Iterator[tuple[str, Objective, ServingRole]]:
    """(service, objective, role) of declared objectives if the role answers for none of them and no latency is measured
    against a setting: nothing judges the service.
    """
    promises = np.stack([getattr(services, each.objective) > 0 for each in OBJECTIVES])
    unjudged = promises.any(axis=0) & ~counting(services).any(axis=0) & np.isnan(services.recent_violation_ratio)
    for row in np.flatnonzero(unjudged).tolist():
        for kind in np.flatnonzero(promises[:, row]).tolist():
            yield str(services.id[row]), OBJECTIVES[kind], ServingRole(int(services.role[row]))


def unmeasured(services: ServiceTable) -> Iterator[tuple[str, Objective, float]]:
    """(service, objective, seconds) of token objectives that count and lack a measurement, unless no requests come."""
    quiet = (services.rate_rps == 0) & np.isfinite(services.age_s)
    lacks = counting(services) & np.isnan(over_objective(services)) & ~quiet
    lacks[0] = False  # latency is asked for where a setting says so, and may be unknown by choice
    for kind, row in zip(*(places.tolist() for places in np.nonzero(lacks)), strict=True):
        each = OBJECTIVES[kind]
        yield str(services.id[row]), each, float(getattr(services, each.objective)[row])
