"""The shipped controller on a simulated cluster: every port filled, nothing special inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autopilot.app.recorder import DecisionRecorder
from autopilot.app.telemetry_feed import Occupants, TelemetryFeed
from autopilot.controller import Controller, Wiring
from autopilot.core.actions import ACTIONS
from autopilot.core.draft import Propose
from autopilot.core.guards import GUARDS
from autopilot.core.guards.base import Check
from autopilot.core.policy import Policy
from autopilot.core.ports import Collector, Forecaster, Journal
from autopilot.core.records import Command, Instruction, Outcome, OutcomeKind
from autopilot.core.snapshot import QueueOrder, QueueTable, ServiceTable, make
from autopilot.journal import SqliteJournal
from autopilot.memory import InMemoryStore
from autopilot.settings import StaticPolicySource
from models.last_two import LastTwo
from simulator.adapters import ClusterActuator, ClusterCollector, ControllerScheduler
from simulator.cluster import Cluster
from simulator.clusterqueues import QueueSpec
from simulator.faults import FateKind, Faults
from simulator.oracle import Oracle
from simulator.telemetry import TelemetryGenerator
from simulator.telemetry_entities import TelemetryFaults

SCRAPE_S = 30.0
"""Scrape interval of the simulated exporters."""


class NoInbox:
    """No people in a simulation: no commands, the kill switch off."""

    def drain(self, now_s: float) -> tuple[Command, ...]:
        """Nothing."""
        return ()

    def kill_switch(self) -> bool:
        """Off."""
        return False


class SoleLeader:
    """Leadership of a process that runs alone."""

    def fence(self) -> int | None:
        """Always the same token."""
        return 1


class NoJournal:
    """A run that leaves no record (its caller keeps one elsewhere, or needs none)."""

    def intend(self, *_: Any) -> None:
        """Nothing."""

    def conclude(self, *_: Any) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Managed:
    """How a controller is to run a cluster."""

    name: str
    policy: Policy
    seed: int = 0
    durations: str = "last-two"
    telemetry: str = "off"  # full | windowed | off
    queues: tuple[QueueSpec, ...] = ()
    journal: Path | None = None
    run: dict[str, Any] | None = None  # description kept in the journal
    faults: Faults | None = None
    services: Callable[[float], ServiceTable] | None = None
    recorder: DecisionRecorder | None = None
    actions: tuple[tuple[str, Propose], ...] = ACTIONS
    guards: tuple[tuple[str, Check], ...] = GUARDS


@dataclass(slots=True)
class Running:
    """A controller in charge, with what its caller may want to look at afterwards."""

    controller: Controller
    occupants: Occupants | None
    journal: SqliteJournal | NoJournal


def manage(cluster: Cluster, managed: Managed) -> tuple[ControllerScheduler, Running]:
    """Wire the controller to `cluster`; the scheduler goes to the engine."""
    queues, queue_of_tenant = queue_table(managed.queues, cluster)
    collectors: list[Collector] = [ClusterCollector(cluster, queues, queue_of_tenant, managed.services)]
    occupants = None
    if managed.telemetry != "off":
        occupants = Occupants(cluster, managed.seed)
        collectors.append(TelemetryFeed(occupants, _generator(managed), full=managed.telemetry == "full"))
    actuator = ClusterActuator(cluster, _fate_of(managed.faults))
    forecaster: Forecaster = Oracle(cluster) if managed.durations == "exact" else LastTwo()
    journal: SqliteJournal | NoJournal = NoJournal()
    if managed.journal is not None:
        journal = SqliteJournal(
            managed.journal, durable=False, rules=managed.policy.journal, run=managed.run, replace=True
        )
    controller = Controller(Wiring(
        collectors=collectors, forecasters=[forecaster], actuators=dict.fromkeys(("admit", "evict", "resize"), actuator),
        journal=as_port(journal), memory=InMemoryStore(), inbox=NoInbox(), policy=StaticPolicySource(managed.policy),
        leadership=SoleLeader(), on_decision=managed.recorder.on_tick if managed.recorder else None,
        actions=managed.actions, guards=managed.guards,
    ))  # fmt: skip
    return ControllerScheduler(managed.name, controller, actuator), Running(controller, occupants, journal)


def as_port(journal: SqliteJournal | NoJournal) -> Journal:
    """The journal as the controller sees it."""
    return journal


def _generator(managed: Managed) -> TelemetryGenerator:
    lost = managed.faults.options.scrape_loss_ratio if managed.faults else 0.0
    return TelemetryGenerator(
        managed.seed, scrape_interval_s=SCRAPE_S, faults=TelemetryFaults(lost_scrape_ratio=lost)
    )


def _fate_of(faults: Faults | None) -> Callable[[Instruction, float], Outcome | None] | None:
    """Injected conflicts and failures of effects; an effect that is late fails for now and is tried again."""
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


def queue_table(specs: tuple[QueueSpec, ...], cluster: Cluster) -> tuple[QueueTable, dict[str, int]]:
    """The queue tree of a cluster file, root first, and the queue of each tenant.

    A tenant without a queue of its own name gets one of guarantee 0 and weight 1 under the root.
    """
    models = cluster.inventory.names.gpu_models
    named = {spec.name for spec in specs}
    rows: list[tuple[str, str, dict[str, int], int, float, int, str]] = [
        ("root", "", {}, -1, 1.0, 0, "index")
    ]
    rows += [
        (spec.name, spec.parent or "root", dict(spec.guarantee), -1 if spec.limit is None else spec.limit,
         spec.weight, spec.priority, spec.order or "index")
        for spec in specs  # parents stand before their children
    ]  # fmt: skip
    rows += [
        (tenant, "root", {}, -1, 1.0, 0, "index") for tenant in cluster.jobs.tenants if tenant not in named
    ]
    place = {row[0]: number for number, row in enumerate(rows)}
    ids = np.empty(len(rows), object)
    ids[:] = [row[0] for row in rows]
    orders = {"submission": QueueOrder.SUBMISSION, "index": QueueOrder.INDEX}
    table: QueueTable = make(
        QueueTable,
        id=ids,
        parent=np.array([place.get(row[1], -1) for row in rows], np.int32),
        guarantee=np.array([[row[2].get(model, 0) for model in models] for row in rows], np.int32).reshape(
            len(rows), len(models)
        ),
        limit=np.array([row[3] for row in rows], np.int32),
        weight=np.array([row[4] for row in rows], float),
        priority=np.array([row[5] for row in rows], np.int32),
        order=np.array([orders[row[6]] for row in rows], np.int8),
    )
    return table, {tenant: place[tenant] for tenant in cluster.jobs.tenants}
