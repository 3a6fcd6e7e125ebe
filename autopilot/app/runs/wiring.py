"""The shipped controller wired to a simulated cluster: every port connected, no special cases inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autopilot.app.runs.recorder import DecisionRecorder
from autopilot.app.runs.telemetry_feed import TelemetryFeed
from autopilot.controller import Controller, Wiring
from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.capabilities.guards import GUARDS
from autopilot.core.capabilities.verbs import OPERATIONS
from autopilot.core.effects.action import Action
from autopilot.core.guards.base import Check
from autopilot.core.intake.sight import INVENTORY, WORK
from autopilot.core.model.latencies import ReplicaLatency
from autopilot.core.model.memory import Step
from autopilot.core.model.policy import Effect, Policy, RuleSetName
from autopilot.core.model.policy.tenancy import GUARANTEES_KEPT
from autopilot.core.model.ports import Collector, Forecaster, Inbox, Journal
from autopilot.core.model.records import Command, Decision, Instruction, Observation, Outcome, OutcomeKind
from autopilot.core.model.snapshot import QueueOrder, QueueTable, ServiceTable, make
from autopilot.metering.meter import Meter
from autopilot.records.journal import SqliteJournal
from autopilot.records.memory import InMemoryStore
from autopilot.registry import Registry
from autopilot.settings import StaticPolicySource
from autopilot.worker import InlineWorker
from models.colocation import Colocations
from models.expected_mix import MixForecaster
from models.interference import Interferences
from models.last_two import LastTwo
from models.stragglers import Stragglers
from simulator.running.cluster_actuator import ClusterActuator, SetBound
from simulator.running.cluster_collector import ClusterCollector
from simulator.running.faults import FateKind, Faults
from simulator.running.oracle import Oracle
from simulator.running.patchy import FaultyCollector, PatchyCollector
from simulator.running.turn import ControllerScheduler
from simulator.signals.occupants import Occupants
from simulator.signals.paces import Paces
from simulator.signals.signal_faults import SignalFaults
from simulator.signals.telemetry import TelemetryGenerator
from simulator.signals.telemetry_entities import TelemetryFaults
from simulator.specs.advance_spec import AdvanceSpec, advance_table
from simulator.specs.clusterqueues import ROOT, QueueSpec
from simulator.world.cluster import Cluster

if TYPE_CHECKING:
    from autopilot.app.backtests.promotion import Promoter

COHORTS = frozenset({RuleSetName.COHORT_CLASSIC, RuleSetName.COHORT_FAIR})
ORDERS = {"submission": QueueOrder.SUBMISSION, "index": QueueOrder.INDEX}
COLUMNS = (
    "weight",
    "priority",
    "strict",
    "within_queue",
    "reclaim",
    "while_borrowing",
    "while_borrowing_priority",
)
"""Columns of the queue table stated directly in a cluster file."""
SCRAPE_S = 30.0
"""Scrape interval of the simulated exporters."""


class NoInbox:
    """A simulation has no operators: no commands, the kill switch off."""

    def drain(self, now_s: float) -> tuple[Command, ...]:
        """Nothing."""
        return ()

    def kill_switch(self) -> bool:
        """Off."""
        return False


class SoleLeader:
    """Leadership of a sole process."""

    def fence(self) -> int | None:
        """Always the same token."""
        return 1


class NoJournal:
    """A run without a record (its caller keeps one elsewhere, or needs none)."""

    def intend(self, *_: Any) -> None:
        """Nothing."""

    def conclude(self, *_: Any) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Managed:
    """The settings of a controller on a cluster."""

    name: str
    policy: Policy
    seed: int = 0
    durations: str = "predicted"
    telemetry: str = "off"  # full | windowed | off
    queues: tuple[QueueSpec, ...] = ()
    advance: tuple[AdvanceSpec, ...] = ()
    journal: Path | None = None
    run: dict[str, Any] | None = None  # description kept in the journal
    faults: Faults | None = None
    signals: SignalFaults | None = None  # faults of what is read; those of exporters need telemetry `full`
    services: Callable[[float], ServiceTable] | None = None
    latencies: Callable[[float], ReplicaLatency] | None = None
    scale: SetBound | None = None  # sets a service's floor
    ceil: SetBound | None = None  # sets a service's ceiling
    registry: Path | None = None  # None: every fit is used, and none is stored
    demand: Forecaster | None = None  # forecaster of service demand; None: the shipped one
    recorder: DecisionRecorder | None = None
    watch: Callable[[Observation, Decision], None] | None = None  # called after each tick as well
    inbox: Inbox = field(default_factory=NoInbox)
    acts: bool = True  # False: there are no actuators
    meter: Meter | None = None
    actions: tuple[Action, ...] = ACTIONS
    guards: tuple[tuple[str, Check], ...] = GUARDS


@dataclass(slots=True)
class Running:
    """A running controller, with objects for later inspection by its caller."""

    controller: Controller
    occupants: Occupants | None
    journal: SqliteJournal | NoJournal
    passed_over: tuple[str, ...] = ()  # unusable versions in the registry, with the reason

    def works(self, job: int, now_s: float) -> bool:
        """True if the GPUs of a job worked in the last half hour, or if nothing is measured."""
        return self.occupants is None or self.occupants.worked(job, now_s)


def manage(cluster: Cluster, managed: Managed) -> tuple[ControllerScheduler, Running]:
    """Wire the controller to `cluster`; the engine gets the scheduler."""
    queues, queue_of_tenant = queue_table(managed.queues, cluster, managed.policy.rules)
    reserved = advance_table(managed.advance, queues.id.tolist(), cluster.inventory.names.gpu_models)
    paces = Paces(cluster, managed.seed) if managed.telemetry != "off" else None
    whole = ClusterCollector(cluster, queues, queue_of_tenant, managed.services, reserved, paces, managed.latencies)
    seen: Collector = PatchyCollector(whole, managed.faults.view) if managed.faults else whole
    collectors = [seen if managed.signals is None else FaultyCollector(seen, managed.signals)]
    occupants = None
    if managed.telemetry != "off":
        occupants = Occupants(cluster, managed.seed)
        collectors.append(
            TelemetryFeed(
                occupants,
                generator_of(managed.seed, managed.faults),
                full=managed.telemetry == "full",
                faults=managed.signals,
            )
        )
    actuator = ClusterActuator(cluster, fate_of(managed.faults), managed.scale, managed.ceil)
    keep = _promoter(managed)
    forecasters = foreseers(cluster, managed, keep)
    journal: SqliteJournal | NoJournal = NoJournal()
    if managed.journal is not None:
        journal = SqliteJournal(
            managed.journal, durable=False, rules=managed.policy.journal, run=managed.run, replace=True
        )
    controller = Controller(
        Wiring(
            collectors=collectors,
            forecasters=forecasters,
            actuators=dict.fromkeys(OPERATIONS, actuator) if managed.acts else {},
            journal=as_port(journal),
            memory=InMemoryStore(),
            inbox=managed.inbox,
            policy=StaticPolicySource(managed.policy),
            leadership=SoleLeader(),
            worker=InlineWorker(keep),
            on_decision=_observers(managed),
            on_step=None if managed.meter is None else partial(_metered, managed.meter),
            actions=managed.actions,
            guards=managed.guards,
            lists=((INVENTORY, whole.name), (WORK, whole.name)),
        )
    )
    return ControllerScheduler(managed.name, controller, actuator), Running(
        controller, occupants, journal, keep.notes if keep is not None else ()
    )


def _observers(managed: Managed) -> Callable[[Observation, Decision], None] | None:
    """The calls after each tick: the recorder of the run, and its watcher."""
    observers = [each for each in (managed.recorder and managed.recorder.on_tick, managed.watch) if each]

    def call(observation: Observation, decision: Decision) -> None:
        for observer in observers:
            observer(observation, decision)

    return call if observers else None


def _metered(meter: Meter, observation: Observation, step: Step) -> None:
    meter.take(observation, step.instructions)


def foreseers(cluster: Cluster, managed: Managed, keep: Promoter | None = None) -> list[Forecaster]:
    """All forecasters of a run, that of run times first."""
    from autopilot.app.backtests.gate import bootstrap_rng

    runtimes, demand = _runtimes(cluster, managed, keep), _demand(managed, keep)
    return [runtimes, *demand, MixForecaster(), Colocations(bootstrap_rng), Stragglers(), Interferences()]


def _promoter(managed: Managed) -> Promoter | None:
    """The registry for the fitted models; None for a run without one."""
    if managed.registry is None:
        return None
    from autopilot.app.backtests.promotion import Promoter

    return Promoter(Registry(managed.registry))


def _demand(managed: Managed, keep: Promoter | None) -> list[Forecaster]:
    """The forecaster of service demand; empty if there are no services, or no action uses it."""
    if managed.demand is not None:
        return [managed.demand]
    if managed.services is None or not managed.policy.modes.on(Effect.FLOOR):
        return []
    from autopilot.app.backtests.gate import bootstrap_rng
    from models.bursts import Bursts  # imports the libraries of its models

    return [Bursts(managed.seed, gate=bootstrap_rng if keep else None, champion=keep.champion if keep else None)]


def _runtimes(cluster: Cluster, managed: Managed, keep: Promoter | None) -> Forecaster:
    """The configured forecaster of run times."""
    if managed.durations == "exact":
        return Oracle(cluster)
    if managed.durations == "predicted":
        from autopilot.app.backtests.gate import bootstrap_rng
        from models.runtimes import Runtimes

        return Runtimes(
            managed.policy.forecasting,
            managed.seed,
            gate=bootstrap_rng if keep else None,
            champion=keep.boosted if keep else None,
            hazards=keep.hazards if keep else None,
        )
    if managed.durations == "hazard":
        from autopilot.app.backtests.gate import bootstrap_rng
        from models.hazard_index import Hazards

        gate, champion = (bootstrap_rng, keep.hazards) if keep else (None, None)
        return Hazards(managed.policy.forecasting, gate=gate, champion=champion)
    return LastTwo()


def as_port(journal: SqliteJournal | NoJournal) -> Journal:
    """Adapts the journal to the controller's port."""
    return journal


def generator_of(seed: int, faults: Faults | None) -> TelemetryGenerator:
    """The telemetry of a run, with the lost scrapes of its faults."""
    lost = faults.options.scrape_loss_ratio if faults else 0.0
    return TelemetryGenerator(seed, scrape_interval_s=SCRAPE_S, faults=TelemetryFaults(lost_scrape_ratio=lost))


def fate_of(faults: Faults | None) -> Callable[[Instruction, float], Outcome | None] | None:
    """Injected conflicts and failures of effects; a late effect fails now and is retried."""
    if faults is None:
        return None
    tries: dict[str, int] = {}

    def answer(instruction: Instruction, now_s: float) -> Outcome | None:
        tries[instruction.id] = tries.get(instruction.id, 0) + 1
        fate = faults.fate(f"{instruction.id}#{tries[instruction.id]}", now_s)
        if fate.kind is FateKind.CONFLICT:
            return Outcome(instruction.id, OutcomeKind.CONFLICT, now_s, "injected: the object changed")
        if fate.kind is FateKind.FAILED:
            return Outcome(instruction.id, OutcomeKind.FAILED, now_s, "injected: no answer", retryable=True)
        if fate.kind is FateKind.LATE:
            return Outcome(instruction.id, OutcomeKind.FAILED, now_s, "injected: too slow", retryable=True)
        return None

    return answer


def queue_table(
    specs: tuple[QueueSpec, ...], cluster: Cluster, rules: RuleSetName = RuleSetName.HIERARCHICAL_FAIR_SHARE
) -> tuple[QueueTable, dict[str, int]]:
    """The queue tree of a cluster file, root first, and the queue of each tenant.

    A tenant without a queue of its name gets one of guarantee 0 and weight 1 under the root. Under cohort rules an
    inner queue owns its guarantee in addition to those of its children: there the guarantees are added.
    """
    models = cluster.inventory.names.gpu_models
    named = {spec.name for spec in specs}
    others = [tenant for tenant in cluster.jobs.tenants if tenant not in named]
    plain = [QueueSpec(name, ROOT, {}, None, 1.0, 0, None) for name in (ROOT, *others)]
    rows = [plain[0], *specs, *plain[1:]]  # parents precede their children
    place = {spec.name: number for number, spec in enumerate(rows)}
    parent = [-1, *(place[spec.parent or ROOT] for spec in rows[1:])]
    ids = np.empty(len(rows), object)
    ids[:] = [spec.name for spec in rows]
    guarantee = np.array([[spec.guarantee.get(model, 0) for model in models] for spec in rows], np.int32)
    if rules in COHORTS:
        promised = guarantee.copy()
        for row, above in enumerate(parent[1:], 1):
            guarantee[above] -= promised[row] if above else 0
    columns: dict[str, Any] = {name: [getattr(spec, name) for spec in rows] for name in COLUMNS}
    for name in ("limit", "borrow_limit", "lend_limit"):
        columns[name] = [-1 if getattr(spec, name) is None else getattr(spec, name) for spec in rows]
    for name, unstated in (("limit_by_model", -1), ("weight_by_model", nan)):
        if any(getattr(spec, name) for spec in rows):
            columns[name] = [[getattr(spec, name).get(model, unstated) for model in models] for spec in rows]
    table: QueueTable = make(
        QueueTable,
        id=ids,
        parent=parent,
        guarantee=guarantee.reshape(len(rows), len(models)),
        order=[ORDERS[spec.order or "index"] for spec in rows],
        guarantee_kept=[GUARANTEES_KEPT.index(spec.guarantee_kept) for spec in rows],
        **columns,
    )
    return table, {tenant: place[tenant] for tenant in cluster.jobs.tenants}
