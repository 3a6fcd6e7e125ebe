"""A simulated cluster as the wiring of the service needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autopilot.core.model.ports import Collector
from autopilot.service.settings import Simulation, Telemetry
from autopilot.service.site import Site
from autopilot.simulated.cluster import SimulatedCluster, open_cluster
from collectors import load
from simulator.scenarios import policy_values
from simulator.serving.client import ChangeWatch, ServedActuator, ServedClient, ServedCollector

SIMULATED, SIMULATED_TELEMETRY = "simulated-cluster", "simulated-telemetry"
LEAST_S = 0.1


@contextmanager
def open_site(settings: Simulation, note: Path) -> Iterator[Site]:
    """The cluster that the settings name; it ends with the context. Arguments and errors: see `open_cluster`."""
    cluster = open_cluster(settings, note)
    try:
        yield simulated_site(cluster, settings.telemetry)
    finally:
        cluster.stop()


def simulated_site(cluster: SimulatedCluster, telemetry: Telemetry = Telemetry.OFF) -> Site:
    """A simulated cluster in a process of its own."""
    client, clock = ServedClient(cluster.url), cluster.clock
    known = {"scenario": clock.scenario, "run": clock.run, "speed": clock.speed}
    return Site(
        source=SIMULATED,
        collector=ServedCollector(client, SIMULATED),
        now_s=client.now_s,
        last_now_s=client.last_now_s,
        watch=lambda on_change: ChangeWatch(cluster.url, lambda: on_change(False)).close,
        about={**known, "start_s": clock.start_s},
        start_s=clock.start_s,
        least_s=LEAST_S,
        run=clock.run,
        speed=clock.speed,
        actuator=ServedActuator(client),
        conclude=client.conclude,
        logged={"cluster": cluster.url, **known},
        telemetry=lambda: _telemetry(client, telemetry),
        at_once=ServedCollector,
        policy_under=policy_values(None),
    )


def _telemetry(client: ServedClient, telemetry: Telemetry) -> Iterator[Collector]:
    if telemetry == Telemetry.WINDOWS:
        yield ServedCollector(client, SIMULATED_TELEMETRY, place=1)
    elif telemetry == Telemetry.SCRAPE:
        from collectors.exporter import Target

        yield load("exporter")([Target(url, node) for node, url in client.exporters().items()])
