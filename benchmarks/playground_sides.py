"""Both sides of a comparison of the playground: the simulation that is armed, and the controller beside the API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from autopilot.app.runs.wiring import NoInbox, NoJournal, SoleLeader
from autopilot.app.runs.world import World
from autopilot.controller import Wiring
from autopilot.core.intake.sight import INVENTORY, WORK
from autopilot.core.model.operations import OPERATIONS
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Decision, Observation
from autopilot.memory_store import InMemoryStore
from autopilot.playground.live import Live
from autopilot.service.site import Site
from autopilot.settings import StaticPolicySource
from autopilot.worker import InlineWorker
from collectors.exporter import ExporterCollector, Target
from models.expected_mix import MixForecaster
from models.last_two import LastTwo
from simulator.inference.services import ServiceFleet
from simulator.running.faults import Faults
from simulator.running.owners import Owners
from simulator.running.simulation import Simulation
from simulator.signals.occupants import Occupants

START = datetime(2026, 11, 19, tzinfo=UTC)
INTERVAL_S = 30.0
Watch = Callable[[Observation, Decision], None]


def faults_of(world: World) -> Faults | None:
    """The faults of a scenario; None where it has none."""
    return Faults(world.faults, world.seed) if world.faults is not None else None


def arm(
    simulation: Simulation,
    world: World,
    services: ServiceFleet | None,
    faults: Faults | None,
    occupants: Sequence[Occupants],
) -> None:
    """Let the owners, services and faults of a scenario act in a simulation."""
    owners = Owners(simulation.cluster, world.seed)
    owners.arm(simulation.engine)
    owners.listeners += [each.on_owner for each in occupants]
    if services is not None:
        services.arm(simulation.engine)
    if faults is not None:
        faults.arm(simulation.engine, simulation.cluster)


def exporter_of(live: Live) -> ExporterCollector:
    """A reader of the exporters of a playground."""
    return ExporterCollector([Target(url) for url in live.exporters()], interval_s=INTERVAL_S)


def wiring_of(site: Site, exporter: ExporterCollector, policy: Policy, watch: Watch) -> Wiring:
    """What a controller is built from that reads a playground over HTTP, and acts where the site has an actuator."""
    return Wiring(
        collectors=(site.collector, exporter),
        forecasters=[LastTwo(), MixForecaster()],
        actuators=dict.fromkeys(OPERATIONS, site.actuator) if site.actuator is not None else {},
        journal=NoJournal(),
        memory=InMemoryStore(),
        inbox=NoInbox(),
        policy=site.policy(StaticPolicySource(policy)),
        leadership=SoleLeader(),
        worker=InlineWorker(),
        on_decision=watch,
        lists=((INVENTORY, site.source), (WORK, site.source)),
    )
