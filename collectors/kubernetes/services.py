"""Deployments and StatefulSets with GPUs as services; their pods are workloads of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf, nan
from typing import Any, NamedTuple

from autopilot.contract import Contract, parse_contract
from autopilot.contract.annotations import EXCLUDE, WINDOW
from autopilot.contract.scaling import (
    CEILING,
    FLOOR,
    Ceiling,
    Scaling,
    Way,
    read_ceiling,
    read_floor,
    read_scaling,
    revision_of,
)
from autopilot.contract.tree import PREFIX
from autopilot.core.model.objects import CeilingWay
from autopilot.core.model.records import Gap
from autopilot.core.model.snapshot import ServiceTable, empty, make
from collectors.kubernetes.asks import ask_of
from collectors.kubernetes.autoscalers import has_keda, least_replicas, load_ratio, needed_replicas
from collectors.kubernetes.gangs import declarations
from collectors.kubernetes.opt_outs import OptOuts, consent, unclear
from collectors.kubernetes.wire import Autoscaler, Budget, Scaled

NO_AUTOSCALERS: Mapping[str, Autoscaler] = {}
UNMEASURED = ("p99_s", "violation_ratio", "rate_rps", "queue_depth")


def is_service(found: Scaled) -> bool:
    """True where the containers of its pods ask for GPUs."""
    return ask_of(found.spec.template.spec).any_gpu


def service_table(
    found: Iterable[Scaled],
    queue_of: Mapping[str, int],
    budgets: Mapping[str, Budget],
    autoscalers: Mapping[str, Autoscaler] = NO_AUTOSCALERS,
    opt_outs: OptOuts | None = None,
) -> ServiceTable:
    """One row for each service. `queue_of` by namespace, `budgets` and `autoscalers` by the uid of the service.

    A service that its owner or its namespace keeps away from the autopilot keeps its replicas.
    """
    services = list(found)
    if not services:
        nothing: ServiceTable = empty(ServiceTable)
        return nothing
    bounds = [_bounds(each, budgets.get(each.metadata.uid), autoscalers.get(each.metadata.uid)) for each in services]
    rules = opt_outs or OptOuts()
    bounds = [
        bound._replace(min_replicas=bound.owned, max_replicas=bound.owned) if _alone(each, rules) else bound
        for each, bound in zip(services, bounds, strict=True)
    ]
    columns: dict[str, Any] = {name: [nan] * len(services) for name in UNMEASURED}
    columns |= {name: [getattr(each, name) for each in bounds] for name in _Bounds._fields if name != "owned"}
    table: ServiceTable = make(
        ServiceTable,
        id=[f"{each.metadata.namespace}/{each.metadata.name}" for each in services],
        uid=[each.metadata.uid for each in services],
        queue=[queue_of.get(each.metadata.namespace, 0) for each in services],
        ready_replicas=[each.status.ready_replicas for each in services],
        objective_s=[_objective_s(each) for each in services],
        age_s=[inf] * len(services),
        generation=[generation_of(each) for each in services],
        **columns,
    )
    return table


def service_gaps(source: str, services: Iterable[Scaled]) -> Iterator[Gap]:
    """Why services are not scaled: declarations that are not allowed, opt-outs that are not understood."""
    for each in services:
        name, wrong = f"{each.metadata.namespace}/{each.metadata.name}", unclear(each.metadata)
        problem = read_scaling(each.metadata.annotations or {}).problem
        if problem:
            yield Gap(source, name, "contract", problem)
        if wrong:
            yield Gap(source, name, "opt-out", f"{wrong}; it is not scaled")
        if lost := consent(each.metadata, counts=False)[1]:
            yield Gap(source, name, "approval", lost)


class _Bounds(NamedTuple):
    """Replicas of a service: as they are, and what its owner allows."""

    replicas: int
    min_replicas: int
    max_replicas: int
    needed_replicas: int
    floor: int
    floor_until_s: float
    load_ratio: float
    wake_age_s: float
    ceiling: int
    ceiling_until_s: float
    ceiling_way: int
    owned: int  # the number of its owner: `replicas`, but for a ceiling of ours


def _bounds(found: Scaled, budget: Budget | None, autoscaler: Autoscaler | None) -> _Bounds:
    """The declarations of the owner count before the HPA, and the HPA before the number of replicas.

    Where the controller raised the number, the record of its floor states the owner's number. Where the owner lowered
    the number again, that floor does not count, and the service is not scaled until the floor ends. A ceiling stands as
    long as its record does.
    """
    annotations = found.metadata.annotations or {}
    declared, floor = read_scaling(annotations), read_floor(annotations.get(PREFIX + FLOOR, ""))
    replicas, ceiling = _replicas(found), _ceiling(found)
    of_owner = ceiling.owner if ceiling is not None and _unchanged(found, ceiling) else replicas
    owned = floor is not None and floor.ours is not None and floor.owner is not None
    if autoscaler is None:
        number, most = of_owner, declared.max_replicas if declared.may_scale else None
    else:
        number, most = least_replicas(autoscaler), autoscaler.spec.max_replicas
    refused = floor is not None and owned and number != floor.ours
    stands = floor is not None and not refused and (floor.way == Way.METRIC or number >= floor.replicas)
    owner = floor.owner if floor is not None and floor.owner is not None and stands and owned else number
    if autoscaler is None:
        least = budget.status.desired_healthy if budget is not None else 0
        needed, ratio = (owner if declared.may_scale else -1), nan
    else:
        least, ratio = owner, load_ratio(autoscaler)
        needed = needed_replicas(autoscaler, owner, raised=stands)
    if declared.min_replicas is not None:
        least = declared.min_replicas
    return _Bounds(
        replicas=replicas,
        min_replicas=min(least, of_owner),
        max_replicas=of_owner if most is None or refused else max(min(most, declared.max_replicas or most), of_owner),
        needed_replicas=needed,
        floor=floor.replicas if floor is not None and stands else 0,
        floor_until_s=floor.until_s if floor is not None else nan,
        load_ratio=ratio,
        wake_age_s=nan if declared.wake_signal is None else inf,
        ceiling=-1 if ceiling is None else ceiling.replicas,
        ceiling_until_s=nan if ceiling is None else ceiling.until_s,
        ceiling_way=_ceiling_way(declared, autoscaler),
        owned=of_owner,
    )


def generation_of(found: Scaled) -> int:
    """The generation of a service as the controller counts: what it wrote itself for a ceiling is no change."""
    ceiling = _ceiling(found)
    return ceiling.generation if ceiling is not None and _unchanged(found, ceiling) else found.metadata.generation


def _replicas(found: Scaled) -> int:
    return 1 if found.spec.replicas is None else found.spec.replicas


def _ceiling(found: Scaled) -> Ceiling | None:
    return read_ceiling(found.metadata.note(PREFIX + CEILING))


def _unchanged(found: Scaled, ceiling: Ceiling) -> bool:
    revision = revision_of(found.metadata.annotations or {}, found.status.update_revision)
    return ceiling.unchanged(_replicas(found), revision)


def _ceiling_way(declared: Scaling, autoscaler: Autoscaler | None) -> CeilingWay:
    if not declared.may_scale:
        return CeilingWay.NO_CONSENT
    if autoscaler is None:
        return CeilingWay.UNDECLARED if declared.min_replicas is None else CeilingWay.REPLICAS
    return CeilingWay.KEDA if has_keda(autoscaler) else CeilingWay.TO_ZERO


def _alone(found: Scaled, rules: OptOuts) -> bool:
    meta = found.metadata
    return meta.note(EXCLUDE).strip().lower() not in {"", "false"} or rules.alone(meta.namespace, meta.note(WINDOW))


def _objective_s(found: Scaled) -> float:
    """The declared latency objective; NaN without a valid one."""
    contract = parse_contract(declarations(found.spec.template.metadata, found.metadata))
    objective_s = contract.service.objective_s if isinstance(contract, Contract) else None
    return nan if objective_s is None else objective_s
