"""A service on virtual time whose sources a test stops one by one, or all of them with the cluster's clock."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from autopilot.controller import Controller, Wiring
from autopilot.core.intake.sight import INVENTORY, WORK
from autopilot.core.model.forecast import Forecasts
from autopilot.core.model.records import Batch, Gap, Inventory, Telemetry, Work
from autopilot.core.model.service_signals import ServiceSignals
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.http.desk import Desk
from autopilot.records.memory import InMemoryStore
from autopilot.service.exposed import Exposed
from autopilot.service.known import LastKnown
from autopilot.service.published import Publisher, WatchedCollector
from autopilot.service.ticks import Stopwatch, Ticks
from tests.kits.core_world import AUTO
from tests.kits.demand_world import forecast, serving
from tests.kits.http_kit import desk_over
from tests.kits.scraping import scrape
from tests.properties.strategies import Held, Quiet
from tests.unit.metrics.test_metrics_exposition import NOW_S, a_world

PERIOD_S = 5.0
"""Between two ticks."""
SOURCES = ("inventory", "work", "telemetry", "slo")


@dataclass
class Source:
    """One part of the cluster. `stopped`: it answers with the reason alone, as a source that cannot be reached."""

    name: str
    show: Any
    stopped: bool = False

    def collect(self, now_s: float) -> Batch:
        """What it shows."""
        if self.stopped:
            return Batch(self.name, now_s, gaps=(Gap(self.name, "", "", f"{self.name} does not answer"),))
        snap: ClusterSnapshot = self.show()
        if self.name == "inventory":
            return Batch(self.name, now_s, Inventory(snap.names, snap.nodes, snap.gpus, snap.instances))
        if self.name == "work":
            names = snap.names.tenants
            work = Work(names, snap.workloads, snap.placements, snap.services, snap.queues)
            return Batch(self.name, now_s, work=work)
        if self.name == "telemetry":
            table, entities = snap.telemetry, np.concatenate([snap.gpus.uuid, snap.instances.id])
            columns = {each.name: getattr(table, each.name) for each in fields(Telemetry) if hasattr(table, each.name)}
            return Batch(self.name, now_s, telemetry=Telemetry(entity_ids=entities, **columns))
        columns = {each.name: np.ones(1) for each in fields(ServiceSignals) if each.name != "latencies"}
        columns |= {"service": np.array(["chat"], dtype=object), "age_s": np.zeros(1)}
        return Batch(self.name, now_s, services=ServiceSignals(**columns))


class StoppingService:
    """The controller with what publishes its ticks. `pass_s` lets time go by; `tick` decides."""

    name = "forecaster"

    def __init__(self, folder: Path) -> None:
        self.now_s, self.monotonic_s = NOW_S, 50.0
        self.standing = False  # the cluster's process stands still, and its clock with it
        self.forecasts = True
        self.sampled_s: float | None = None  # the time of the newest sample; None: always now
        self.sources = {name: Source(name, self._show) for name in SOURCES}
        self.publisher = Publisher(LastKnown(1.0, PERIOD_S, lambda: self.monotonic_s))
        self.desk: Desk = replace(desk_over(folder), publisher=self.publisher)
        self.exposed = Exposed(self.publisher, None, "1", self.desk.record)
        store, quiet = Held(AUTO), Quiet()
        self.ticks = Ticks(self.publisher, store, self.desk.kill_switch, Stopwatch(), self.exposed, self.desk.record)
        self.ticks.collectors = tuple(WatchedCollector(each, lambda: 0.0) for each in self.sources.values())
        self.ticks.controller = self.controller = Controller(
            Wiring(
                self.ticks.collectors,
                [self],
                {},
                quiet,
                InMemoryStore(),
                quiet,
                store,
                quiet,
                on_decision=self.ticks.on_decision,
                on_step=self.ticks.on_step,
                lists=((INVENTORY, "inventory"), (WORK, "work")),
            )
        )
        self.tick()

    def _show(self) -> ClusterSnapshot:
        unmeasured = {name: [np.nan] for name in ("p99_s", "violation_ratio", "recent_violation_ratio", "queue_depth")}
        snap = serving(replace(a_world(), now_s=self.now_s), **unmeasured).snapshot
        age_s = 0.0 if self.sampled_s is None else self.now_s - self.sampled_s
        return replace(snap, telemetry=replace(snap.telemetry, age_s=np.full_like(snap.telemetry.age_s, age_s)))

    def update(self, *_: Any) -> None:
        """Learn nothing."""

    def forecast(self, now_s: float, _snap: ClusterSnapshot) -> Forecasts:
        """A demand, unless it is stopped."""
        if not self.forecasts:
            raise ConnectionError("no model answers")
        return Forecasts(demand=(forecast({"chat": 5.0}, made_s=now_s),))

    def stop(self, what: str) -> None:
        """Stop a source, the `forecaster`, or the whole `cluster`."""
        self.standing |= what == "cluster"
        self.forecasts &= what != "forecaster"
        for name, source in self.sources.items():
            source.stopped |= what in {name, "cluster"}

    def pass_s(self, seconds: float) -> None:
        """Time goes by without a tick."""
        self.monotonic_s += seconds
        self.now_s += 0.0 if self.standing else seconds

    def tick(self) -> None:
        """One tick."""
        self.ticks.after_tick(self.controller.tick(self.now_s), 0.1)

    def scrape(self) -> dict[str, float]:
        """The metrics now."""
        return scrape(self.exposed.text())
