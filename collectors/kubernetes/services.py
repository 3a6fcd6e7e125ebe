"""Services with GPUs: Deployments and StatefulSets with pods as workloads, and sets of pod groups.

The autopilot does not scale a LeaderWorkerSet or a PodCliqueSet: their number of replicas is their owner's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf, nan
from typing import Any, NamedTuple

from autopilot.contract import Contract, parse_contract
from autopilot.contract.annotations import EXCLUDE, WINDOW
from autopilot.contract.scaling import (
    CEILING,
    FLOOR,
    MOST_GENERATION,
    Ceiling,
    Scaling,
    Way,
    read_ceiling,
    read_floor,
    read_scaling,
    revision_of,
)
from autopilot.contract.tree import PREFIX
from autopilot.core.model.objects import CeilingWay, ServingRole
from autopilot.core.model.records import Gap
from autopilot.core.model.snapshot import ServiceTable, empty, make
from collectors.kubernetes import kinds
from collectors.kubernetes.asks import ask_of
from collectors.kubernetes.autoscalers import has_keda, least_replicas, load_ratio, needed_replicas
from collectors.kubernetes.constraints import budget_selects
from collectors.kubernetes.gangs import declarations
from collectors.kubernetes.grouped import POOL, whole_of
from collectors.kubernetes.opt_outs import OptOuts, consent, unclear
from collectors.kubernetes.serving import GROUPED, SET_NAME, role_of
from collectors.kubernetes.unreadable import BY_NAME, Unreadable
from collectors.kubernetes.wire import Autoscaler, Budget, Scaled

Key = tuple[str, str]
"""The namespace and the "Kind/name" of a service."""
PRECEDENCE = ("Deployment", "StatefulSet", "LeaderWorkerSet", "PodCliqueSet")
"""If two services of a namespace have one name, the id of the later kind ends with its kind."""
UNMEASURED = ("p99_s", "violation_ratio", "rate_rps", "queue_depth")


def is_service(found: Scaled) -> bool:
    """True if the containers of its pods request GPUs."""
    return ask_of(found.spec.template.spec).any_gpu


def is_inner(found: Scaled) -> bool:
    """True for a part of a LeaderWorkerSet: the set is the service, and its groups are gangs."""
    owner = found.metadata.owner
    return bool(found.metadata.label(SET_NAME)) or (owner is not None and owner.kind in {"LeaderWorkerSet", "Pod"})


class ServiceRows:
    """The rows of services. An unreadable service keeps its last good row and its replicas."""

    def __init__(self, unreadable: Unreadable) -> None:
        """Call `unreadable` for each service that an error leaves without a new row."""
        self._unreadable = unreadable
        self._last: dict[str, ServiceRow] = {}  # by uid

    def make(self, services: Mapping[Key, Scaled], around: Around) -> dict[Key, ServiceRow]:
        """One row for each service with GPUs, in the order of their names; none for a service never read."""
        last, self._last = self._last, {}
        made: dict[Key, ServiceRow] = {}
        for key in sorted(services):
            found, kind = services[key], BY_NAME.get(key[1].partition("/")[0], kinds.PODS)
            group = key[1].startswith(GROUPED)
            row, read = last.get(found.metadata.uid), False
            with self._unreadable.net(kind, found):
                if not group and not around.has_gpus(found):
                    continue
                row, read = _row(key, found, around), True
            if row is None:
                continue
            self._last[found.metadata.uid] = row
            undone = _undone(found, around.autoscalers.get(key))
            keeps = group or not read or undone or around.left(key) or _alone(found, around.opt_outs)
            made[key] = row.kept() if keeps else row
        return made


@dataclass(frozen=True, slots=True)
class Around:
    """Inputs of the row of a service besides the service."""

    has_gpus: Callable[[Scaled], bool]
    has: Callable[[Key], bool]  # a service
    left: Callable[[Key], bool]  # it is left alone, since an object cannot be read
    queue_of: Mapping[str, int]  # by namespace
    budgets: Iterable[Budget]
    autoscalers: Mapping[Key, Autoscaler]
    opt_outs: OptOuts


@dataclass(frozen=True, slots=True)
class ServiceRow:
    """One row of the table of services. `bounds` are its replicas."""

    id: str
    uid: str
    queue: int
    ready_replicas: int
    generation: int
    bounds: Bounds
    promised: Promised

    def kept(self) -> ServiceRow:
        """The row of a service not scaled by the autopilot."""
        owned = self.bounds.owned
        return replace(self, bounds=self.bounds._replace(min_replicas=owned, max_replicas=owned))


def _undone(found: Scaled, autoscaler: Autoscaler | None) -> bool:
    """True if another controller owns the object with the number of replicas, and would undo a change.

    KEDA is none of these: its services follow a metric, and the autopilot changes no number.
    """
    owner = (found if autoscaler is None else autoscaler).metadata.owner
    return owner is not None and owner.kind != "ScaledObject"


def _row(key: Key, found: Scaled, around: Around) -> ServiceRow:
    meta, labels = found.metadata, found.spec.template.metadata.labels or {}
    covers = (each for each in around.budgets if each.metadata.namespace == key[0] and budget_selects(each, labels))
    budget = max(covers, key=lambda each: each.status.desired_healthy, default=None)
    generation = generation_of(found)
    if not 0 <= generation <= MOST_GENERATION:
        raise ValueError(f"its generation is {generation}, and at most {MOST_GENERATION} is read")
    kind = key[1].partition("/")[0]
    other = any(around.has((key[0], f"{each}/{meta.name}")) for each in PRECEDENCE[: PRECEDENCE.index(kind)])
    return ServiceRow(
        id=f"{meta.namespace}/{meta.name}{POOL + kind.lower() if other else ''}",
        uid=meta.uid,
        queue=around.queue_of.get(meta.namespace, 0),
        ready_replicas=found.status.ready_replicas,
        generation=generation,
        bounds=_bounds(found, budget, around.autoscalers.get(key)),
        promised=_promised(found),
    )


def service_table(made: Mapping[Key, ServiceRow]) -> ServiceTable:
    """The table of these rows."""
    rows, places = list(made.values()), {key: row for row, key in enumerate(made)}
    if not rows:
        nothing: ServiceTable = empty(ServiceTable)
        return nothing
    columns: dict[str, Any] = {name: [nan] * len(rows) for name in UNMEASURED}
    columns |= {name: [getattr(each.bounds, name) for each in rows] for name in Bounds._fields if name != "owned"}
    columns |= {name: [getattr(each.promised, name) for each in rows] for name in Promised._fields}
    stated = ("id", "uid", "queue", "ready_replicas", "generation")
    columns |= {name: [getattr(each, name) for each in rows] for name in stated}
    columns["part_of"] = [-1 if (whole := whole_of(key)) is None else places.get(whole, -1) for key in made]
    table: ServiceTable = make(ServiceTable, age_s=[inf] * len(rows), **columns)
    return table


def service_gaps(source: str, services: Iterable[Scaled]) -> Iterator[Gap]:
    """Reasons for services that are not scaled: declarations that are not allowed, and unreadable opt-outs."""
    for each in services:
        name, wrong = f"{each.metadata.namespace}/{each.metadata.name}", unclear(each.metadata)
        declared, owner = read_scaling(each.metadata.annotations or {}), each.metadata.owner
        if declared.problem:
            yield Gap(source, name, "contract", declared.problem)
        if declared.may_scale and owner is not None:
            text = f"it declares {PREFIX}scale, and {owner.kind} {owner.name} manages it and would undo another number"
            yield Gap(source, name, "contract", f"{text}; without an autoscaler of its own it is not scaled")
        if wrong:
            yield Gap(source, name, "opt-out", f"{wrong}; it is not scaled")
        if lost := consent(each.metadata, counts=False)[1]:
            yield Gap(source, name, "approval", lost)


class Bounds(NamedTuple):
    """Replicas of a service: the present number, and the bounds of its owner."""

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


def _bounds(found: Scaled, budget: Budget | None, autoscaler: Autoscaler | None) -> Bounds:
    """The declarations of the owner count before the HPA, and the HPA before the number of replicas.

    After a raise by the controller, the record of its floor states the owner's number. If the owner has lowered the
    number again, that floor does not count, and the service is not scaled until the floor ends. A ceiling stands as
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
    return Bounds(
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
    """The generation of a service as counted by the controller: its own write for a ceiling is no change."""
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


class Promised(NamedTuple):
    """The declared objectives, NaN without a valid one, and the role of the pods."""

    objective_s: float
    ttft_objective_s: float
    itl_objective_s: float
    role: ServingRole


def _promised(found: Scaled) -> Promised:
    template = found.spec.template.metadata
    contract = parse_contract(declarations(template, found.metadata))
    service = contract.service if isinstance(contract, Contract) else Contract().service
    role = role_of(template, found.metadata) if service.serving_role is None else service.serving_role
    promised_s = (service.objective_s, service.ttft_objective_s, service.itl_objective_s)
    latency_s, ttft_s, itl_s = (nan if each is None else each for each in promised_s)
    return Promised(latency_s, ttft_s, itl_s, role)
