"""The cluster of the service in the form needed by its wiring, and a real one through its API server."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from autopilot.contract import node_conditions
from autopilot.contract.sharing_configs import configs_of
from autopilot.core.model.policy import Policy, RuleSetName
from autopilot.core.model.ports import Actuator, Collector, PolicySource
from autopilot.kube.access import Access, Address
from autopilot.kube.cluster_api import ClusterApi
from autopilot.service.acting import cluster_actuator, may_resize
from autopilot.service.capping import Capped
from autopilot.service.settings import Kubernetes
from collectors import load
from collectors.kubernetes.collector import KubernetesCollector, Options
from collectors.kubernetes.kinds import Kind
from collectors.kubernetes.reflector import RESUME_S, OnChange, Timing
from collectors.kubernetes.source import Cluster
from collectors.kubernetes.transport import Transport

log: Any = structlog.get_logger("service")
LEAST_S = 1.0
COHORTS = {RuleSetName.COHORT_CLASSIC, RuleSetName.COHORT_FAIR}


@dataclass(frozen=True, slots=True)
class Site:
    """One cluster. `now_s` may ask it, `last_now_s` never does; both are by its clock.

    `watch` calls back after changes and returns the function to end that. Without an `actuator` nothing acts.
    """

    source: str  # the name of its lists of inventory and work
    collector: Collector
    now_s: Callable[[], float]
    last_now_s: Callable[[], float]
    watch: Callable[[OnChange], Callable[[], None]]
    about: dict[str, object]
    start_s: float | None  # time 0 of its clock since 1970
    least_s: float
    run: str = ""
    speed: float = 1.0
    actuator: Actuator | None = None
    conclude: Callable[[], None] | None = None
    logged: Mapping[str, object] = field(default_factory=dict)  # of it, at the start of the service; empty: `about`
    telemetry: Callable[[], Iterable[Collector]] = tuple  # sources of its own, beside those of the settings
    at_once: type[Collector] | None = None  # a collector without requests during its `collect`
    api: ClusterApi | None = None  # of a real cluster
    policy: Callable[[PolicySource], PolicySource] = lambda source: source
    policy_under: Mapping[str, Any] = field(default_factory=dict)  # values of policy fields, under a policy file
    still: Callable[[], AbstractContextManager[object]] = nullcontext  # open during each tick
    join: Callable[[Collector], None] = lambda _: None  # told of each source of telemetry
    guard: Callable[[Callable[[], str]], None] = lambda _: None  # takes the reason against any write now
    approved: Callable[[], Mapping[str, str]] | None = None  # uid of work -> the approving annotation
    lists: Callable[[Kind], Cluster] | None = None  # a list of its own for a kind of a real cluster, not started
    counts: Callable[[], Mapping[str, Mapping[tuple[str, ...], float]]] | None = None  # metrics of its own


def kubernetes_site(
    settings: Kubernetes,
    access: Access | None = None,
    now_s: Callable[[], float] = time.time,
    *,
    one_clock: bool = False,
    resume_s: float = RESUME_S,
) -> Site:
    """A real cluster. Raises `InputError` for an unusable configuration.

    `one_clock`: `now_s` is the server's own clock, so there is no skew to watch. `resume_s`: see `Timing`. The cluster
    is only read, unless the settings say `act`.
    """
    access = access or Access(Address(settings.kubeconfig, settings.context, settings.in_cluster))
    transport = Transport(access, now_s)
    timing = Timing(watch_s=round(settings.watch_s), silence_s=settings.watch_s + 10.0, resume_s=resume_s)
    cluster = Cluster(transport, now_s, namespaces=settings.namespaces, timing=timing, rng=random.Random())  # noqa: S311
    kind: type[KubernetesCollector] = load("kubernetes")
    options = Options(
        {level.value: label for level, label in settings.topology.items()},
        acts=settings.act,
        resizes=may_resize(settings),
        approvals=settings.approve_on_work,
        bad=node_conditions.pairs(settings.node_conditions),
        sharing=configs_of(settings.sharing_configs),
    )
    collector = kind(cluster, options, skew_s=lambda: 0.0 if one_clock else transport.skew_s)

    def guard(may_write: Callable[[], str]) -> None:
        if actuator is not None:
            actuator.api.may_write = may_write

    def watch(on_change: OnChange) -> Callable[[], None]:
        cluster.on_change = on_change
        cluster.start()
        return cluster.close

    actuator = cluster_actuator(settings, access, collector.objects)
    kinds = actuator.kinds if actuator is not None else frozenset[str]()
    return Site(
        source=collector.name,
        collector=collector,
        now_s=now_s,
        last_now_s=now_s,
        watch=watch,
        about={"cluster": access.host},
        start_s=0.0,
        least_s=LEAST_S,
        join=collector.join,
        actuator=actuator,
        at_once=KubernetesCollector,
        guard=guard,
        api=ClusterApi(access),
        approved=collector.approved if settings.approve_on_work else None,
        lists=lambda kind: Cluster(transport, now_s, kinds=(kind,), urgent=(kind,), timing=timing),
        counts=cluster.counts,
        policy=lambda source: BesidePolicy(source, lambda: collector.engine, lambda: collector.fair_sharing, kinds),
    )


class BesidePolicy:
    """A policy beside a real cluster: modes as far as there are levers, and the rules of the queues' scheduler."""

    def __init__(
        self,
        source: PolicySource,
        engine: Callable[[], str],
        fair_sharing: Callable[[], str] = lambda: "",
        kinds: Collection[str] = (),
    ) -> None:
        """`engine`: the engine of the work's queues, as found by the collector.

        `fair_sharing`: evidence that Kueue shares fairly, "" without it. `kinds`: instructions with a lever.
        """
        self._source, self._engine, self._fair_sharing = source, engine, fair_sharing
        self._capped = Capped(kinds)
        self._last: tuple[Policy, str, str, Policy] | None = None

    @property
    def problem(self) -> str | None:
        """Reason for a policy that is not in force as written; None for none."""
        return getattr(self._source, "problem", None)

    def current(self) -> Policy:
        """The policy in force; the same object while nothing changed."""
        policy, engine, fair = self._capped.of(self._source.current()), self._engine(), self._fair_sharing()
        if self._last is None or self._last[0] is not policy or self._last[1:3] != (engine, fair):
            rules, why = policy.rules, "they are those of the policy"
            if engine == "kueue" and fair:
                rules, why = RuleSetName.COHORT_FAIR, f"Kueue shares fairly: {fair}"
            elif engine == "kueue" and rules not in COHORTS:
                rules, why = RuleSetName.COHORT_CLASSIC, "Kueue owns the queues, and none states fair sharing"
            if engine and (self._last is None or self._last[1] != engine or self._last[3].rules != rules):
                log.info("rules", rules=str(rules), because=why)
            self._last = (policy, engine, fair, policy if rules == policy.rules else replace(policy, rules=rules))
        return self._last[3]
