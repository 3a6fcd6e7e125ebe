"""A controller that reads a playground over HTTP, for benchmarks and tests that move its clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from autopilot.app.runs.wiring import NoInbox, NoJournal, SoleLeader
from autopilot.controller import Wiring
from autopilot.core.capabilities.verbs import OPERATIONS
from autopilot.core.intake.sight import INVENTORY, WORK
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Decision, Observation
from autopilot.playground.live import Live
from autopilot.records.memory import InMemoryStore
from autopilot.service.site import Site
from autopilot.settings import StaticPolicySource
from autopilot.worker import InlineWorker
from collectors.exporter import ExporterCollector, Target
from models.expected_mix import MixForecaster
from models.last_two import LastTwo

START = datetime(2026, 11, 19, tzinfo=UTC)
INTERVAL_S = 30.0
Watch = Callable[[Observation, Decision], None]


def exporter_of(live: Live) -> ExporterCollector:
    """A reader of the exporters of a playground."""
    return ExporterCollector([Target(url) for url in live.exporters()], interval_s=INTERVAL_S)


def wiring_of(site: Site, exporter: ExporterCollector, policy: Policy, watch: Watch) -> Wiring:
    """The parts of a controller beside a playground. It acts where the site has an actuator."""
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
