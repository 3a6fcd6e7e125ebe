"""Deployments and StatefulSets with GPUs as services; their pods are workloads of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf, nan
from typing import Any

from autopilot.contract import Contract, parse_contract
from autopilot.core.model.snapshot import ServiceTable, empty, make
from collectors.kubernetes.asks import ask_of
from collectors.kubernetes.gangs import declarations
from collectors.kubernetes.wire import Budget, Scaled

UNMEASURED = ("p99_s", "violation_ratio", "rate_rps", "queue_depth")


def is_service(found: Scaled) -> bool:
    """True where its pods ask for GPUs."""
    return ask_of(found.spec.template.spec).any_gpu


def service_table(found: Iterable[Scaled], queue_of: Mapping[str, int], budgets: Mapping[str, Budget]) -> ServiceTable:
    """One row for each service. `queue_of` by namespace, `budgets` by the uid of the service."""
    services = list(found)
    if not services:
        nothing: ServiceTable = empty(ServiceTable)
        return nothing
    replicas = [1 if each.spec.replicas is None else each.spec.replicas for each in services]
    columns: dict[str, Any] = {name: [nan] * len(services) for name in UNMEASURED}
    least = [
        budgets[each.metadata.uid].status.desired_healthy if each.metadata.uid in budgets else 0 for each in services
    ]
    table: ServiceTable = make(
        ServiceTable,
        id=[f"{each.metadata.namespace}/{each.metadata.name}" for each in services],
        uid=[each.metadata.uid for each in services],
        queue=[queue_of.get(each.metadata.namespace, 0) for each in services],
        replicas=replicas,
        ready_replicas=[each.status.ready_replicas for each in services],
        min_replicas=[min(low, wanted) for low, wanted in zip(least, replicas, strict=True)],
        max_replicas=replicas,
        objective_s=[_objective_s(each) for each in services],
        age_s=[inf] * len(services),
        generation=[each.metadata.generation for each in services],
        **columns,
    )
    return table


def _objective_s(found: Scaled) -> float:
    """The declared latency objective; NaN without a valid one."""
    contract = parse_contract(declarations(found.spec.template.metadata, found.metadata))
    objective_s = contract.service.objective_s if isinstance(contract, Contract) else None
    return nan if objective_s is None else objective_s
