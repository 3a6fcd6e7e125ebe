"""Services with GPUs, their autoscalers and budgets, as the table of services."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from autopilot.core.model.latencies import sharing_replicas
from autopilot.core.model.objectives import declared
from autopilot.core.model.records import Gap, Work
from autopilot.core.model.snapshot import ServiceTable
from collectors.kubernetes import kinds
from collectors.kubernetes.autoscalers import lacks_floor_value, target_of
from collectors.kubernetes.cache import Changes
from collectors.kubernetes.claims import Claims
from collectors.kubernetes.constraints import budget_selects
from collectors.kubernetes.gangs import Gang, PodFacts, is_replica
from collectors.kubernetes.grouped import Grouped
from collectors.kubernetes.opt_outs import OptOuts
from collectors.kubernetes.services import (
    Around,
    Key,
    ServiceRows,
    is_inner,
    is_service,
    service_gaps,
    service_table,
)
from collectors.kubernetes.unreadable import BY_NAME, Alone, Unreadable
from collectors.kubernetes.wire import Autoscaler, Budget, Scaled


@runtime_checkable
class Measuring(Protocol):
    """A source of measurements of services."""

    def learn(
        self,
        services: Callable[[], Collection[str]],
        declared: Callable[[], Mapping[str, tuple[float, ...]]],
        pods: Callable[[], Mapping[str, str]],
        sharing: Callable[[], Collection[str]],
    ) -> None:
        """Take the names of the services, NAMESPACE/NAME, and their declared objectives, if any.

        `pods`: the service of each pod, NAMESPACE/POD, with a name that does not tell it. `sharing`: the replicas,
        NAMESPACE/POD, that share a GPU or a node.
        """
        ...


@dataclass(slots=True)
class Services:
    """The services of the cluster. `table` is None from a change until it is made again."""

    unreadable: Unreadable
    claims: Claims
    opt_outs: OptOuts
    services: dict[Key, Scaled] = field(default_factory=dict)
    budgets: dict[str, Budget] = field(default_factory=dict)
    autoscalers: dict[str, Autoscaler] = field(default_factory=dict)
    rows: dict[Key, int] = field(default_factory=dict)
    table: ServiceTable | None = None
    work: Work | None = None  # as it was last told
    _declared: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    _grouped: Grouped = field(default_factory=Grouped)
    _sets: dict[Key, Scaled] = field(default_factory=dict)  # made of the pods of groups
    _by_pod: Mapping[str, str] = field(default_factory=dict)
    _maker: ServiceRows = field(init=False)

    def __post_init__(self) -> None:
        """Connect the maker of rows."""
        self._maker = ServiceRows(self.unreadable)

    def update(self, changes: Changes, listed: kinds.Kind) -> list[str]:
        """Take in Deployments or StatefulSets; returns the uids of services reported deleted."""
        deleted = []
        reported, kind = set(changes.deleted), next(name for name, each in BY_NAME.items() if each is listed)
        for found in changes.gone:
            key = (found.metadata.namespace, f"{kind}/{found.metadata.name}")
            known = self.services.get(key)
            if known is not None and known.metadata.uid == found.metadata.uid:
                del self.services[key]
                self.table = None
                deleted += [found.metadata.uid] if found.metadata.uid in reported else []
        for found in changes.there:
            if isinstance(found, Scaled):
                with self.unreadable.net(listed, found):
                    asks = is_service(found) or found.spec.template.spec.resource_claims
                    if asks and not is_inner(found):
                        self.services[found.metadata.namespace, f"{kind}/{found.metadata.name}"] = found
                        self.table = None
        return deleted

    def put_pod(self, found: PodFacts) -> None:
        """Take in a pod: it may be of a group that is a replica."""
        if self._grouped.put(found):
            self.table = None

    def drop_pod(self, uid: str) -> None:
        """A pod is gone."""
        if self._grouped.drop(uid):
            self.table = None

    def update_budgets(self, changes: Changes) -> set[str]:
        """Take in PodDisruptionBudgets; returns the namespaces with possibly affected work."""
        spaces = set()
        for found in changes.gone:
            self.budgets.pop(found.metadata.uid, None)
            spaces.add(found.metadata.namespace)
        for found in changes.there:
            if isinstance(found, Budget):
                before = self.budgets.get(found.metadata.uid)
                self.budgets[found.metadata.uid] = found
                if before is None or _blocks(before) != _blocks(found) or before.spec != found.spec:
                    spaces.add(found.metadata.namespace)
                    self.table = None
        return spaces

    def update_autoscalers(self, changes: Changes) -> None:
        """Take in HorizontalPodAutoscalers."""
        for found in changes.gone:
            self.autoscalers.pop(found.metadata.uid, None)
            self.table = None
        for found in changes.there:
            if isinstance(found, Autoscaler):
                self.autoscalers[found.metadata.uid] = found
                self.table = None

    def read_claims(self) -> None:
        """Resource claims changed: look again at the services with any."""
        if any(each.spec.template.spec.resource_claims for each in self.services.values()):
            self.table = None

    def make(self, queue_of: Mapping[str, int], alone: Alone) -> bool:
        """Make the table, in the order of the names of services; true if rows moved. `queue_of` by namespace."""
        self._sets = self._grouped.services()
        services = {**self.services, **self._sets}
        around = Around(
            self._with_gpus,
            services.__contains__,
            lambda key: bool(alone.why_service(key)),
            queue_of,
            self.budgets.values(),
            {target_of(each): each for each in self.autoscalers.values()},
            self.opt_outs,
        )
        made = self._maker.make(services, around)
        before, self.rows = self.rows, {key: row for row, key in enumerate(made)}
        self.table = service_table(made)
        self._by_pod = self._grouped.by_pod({key: row.id for key, row in made.items()})
        self._declared = declared(self.table)
        return self.rows != before

    def names(self) -> frozenset[str]:
        """The names of services, NAMESPACE/NAME, without duplicates. For any thread."""
        count = Counter(f"{space}/{name.partition('/')[2]}" for space, name in self.rows)
        return frozenset(name for name, found in count.items() if found == 1)

    def objectives(self) -> Mapping[str, tuple[float, ...]]:
        """The valid objectives by service: see `objectives.declared`. For any thread."""
        return self._declared

    def by_pod(self) -> Mapping[str, str]:
        """NAMESPACE/POD -> its service, for pods with a name that does not tell it. For any thread."""
        return self._by_pod

    def told(self) -> tuple[Callable[[], Any], ...]:
        """Facts for a source of measurements of services (`Measuring.learn`). Safe in any thread."""
        return self.names, self.objectives, self.by_pod, self._sharing

    def _sharing(self) -> list[str]:
        """The replicas, NAMESPACE/POD, on nodes on which there is other work."""
        if self.work is None:
            return []
        work, placed = self.work.workloads, self.work.placements
        return [str(each) for each in work.id[sharing_replicas(work.service, placed.workload, placed.node)]]

    def gaps(self, source: str) -> Iterator[Gap]:
        """Reasons for services that are not scaled, and autoscalers without a value of our floor."""
        yield from service_gaps(source, [*self.services.values(), *self._sets.values()])
        for each in self.autoscalers.values():
            lacks = False
            with suppress(AttributeError, TypeError):  # an unreadable one is named with its service
                lacks = lacks_floor_value(each)
            if lacks:
                space, name = target_of(each)
                reason = "its HPA shows no value of our floor: KEDA does not reach the address `scale.keda.listen`"
                yield Gap(source, f"{space}/{name.partition('/')[2]}", "floor", reason)

    def budgeted(self, gang: Gang) -> bool:
        """True if a budget refuses the eviction of its pods now. Services have their own rules for that."""
        if any(is_replica(each) for each in gang.pods.values()):
            return False
        holding = [each for each in gang.pods.values() if each.holds]
        if not holding:
            return False
        labels = holding[0].pod.metadata.labels or {}
        return any(
            each.metadata.namespace == gang.namespace
            and each.status.disruptions_allowed < len(holding)
            and budget_selects(each, labels)
            for each in self.budgets.values()
        )

    def _with_gpus(self, found: Scaled) -> bool:
        if is_service(found):
            return True
        claimed = self.claims.of_template(found.metadata.namespace, found.spec.template.spec, 1)
        return claimed.gpus > 0 or bool(claimed.profiles)


def _blocks(budget: Budget) -> tuple[int, int]:
    return budget.status.disruptions_allowed, budget.status.desired_healthy
