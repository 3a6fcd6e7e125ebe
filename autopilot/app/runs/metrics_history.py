"""The metrics of a simulated run over time, as a Prometheus would have scraped them.

`history_of` returns OpenMetrics text for `promtool tsdb create-blocks-from openmetrics`: for tests of dashboards, and
for pictures. The metrics are those of the shipped controller; only the durations of ticks are of this machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.recorder import DecisionRecorder
from autopilot.app.runs.wiring import Managed, manage
from autopilot.app.runs.world import build_world
from autopilot.controller import Controller
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Decision, Observation
from autopilot.metering.prices import load_prices
from autopilot.metrics.exposition import Counted, Exposition, history_text
from autopilot.metrics.samples import Samples
from simulator.running.engine import Scheduler
from simulator.running.simulation import Simulation
from simulator.world.cluster import Cluster
from simulator.world.physics import PHYSICS


class MetricsRecorder(DecisionRecorder):
    """Feeds an exposition from a simulated controller."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.exposition = Exposition(None, version("gpu-autopilot"), load_prices())
        self._policy = policy
        self._began_s = 0.0
        self.controller: Controller | None = None

    def follow(self, controller: Controller) -> None:
        """Time the ticks of a controller from now on."""
        self.controller, tick = controller, controller.tick

        def timed(now_s: float) -> Any:
            self._began_s = time.perf_counter()
            return tick(now_s)

        controller.tick = timed  # type: ignore[method-assign]

    def on_tick(self, observation: Observation, decision: Decision) -> None:
        """Take in one decision, with the memory that its controller has now."""
        super().on_tick(observation, decision)
        if self.controller is not None:
            spent = {"whole": time.perf_counter() - self._began_s}
            self.exposition.tick(observation, decision, self.controller.memory, self._policy, spent)


@dataclass(slots=True)
class RecordedRun:
    """A simulation that is recorded; `simulation.engine` may get events before `record`."""

    simulation: Simulation
    recorder: MetricsRecorder
    horizon_s: float

    def at_each(self, every_s: float, scrape: Callable[[float, Exposition], None]) -> None:
        """Call `scrape` every `every_s` of virtual time, from the first one on, and run to the end."""
        for at_s in np.arange(every_s, self.horizon_s, every_s).tolist():
            self.simulation.engine.at(at_s, lambda now_s: scrape(now_s, self.recorder.exposition), essential=False)
        self.simulation.run()


def recorded_run(options: SimulateOptions, policy: Policy, horizon_s: float) -> RecordedRun:
    """The scenario of `options` under `policy`, up to `horizon_s`, without the checkers."""
    world = build_world(options)
    jobs = world.jobs()
    services = world.fleet(jobs)
    recorder = MetricsRecorder(policy)

    def make(cluster: Cluster) -> Scheduler:
        managed = Managed(
            name=policy.name,
            policy=policy,
            seed=world.seed,
            durations=options.durations or "last-two",
            telemetry="windowed",
            queues=world.spec.queues,
            advance=world.spec.advance,
            services=services.table if services is not None else None,
            latencies=services.latencies if services is not None else None,
            scale=services.set_floor if services is not None else None,
            ceil=services.set_ceiling if services is not None else None,
            recorder=recorder,
        )
        scheduler, running = manage(cluster, managed)
        recorder.follow(running.controller)
        return scheduler

    simulation = Simulation(
        world.inventory,
        jobs,
        make,
        PHYSICS[world.physics],
        checkers=(),
        services=services.table if services is not None else None,
        horizon_s=horizon_s,
        ready_wakes=services is not None,
    )
    if services is not None:
        services.arm(simulation.engine)
    return RecordedRun(simulation, recorder, horizon_s)


def history_of(
    options: SimulateOptions, policy: Policy, horizon_s: float, every_s: float = 60.0, ends_at_s: float = 0.0
) -> bytes:
    """The metrics every `every_s` of the first `horizon_s`; the last scrape is at `ends_at_s` (seconds since 1970)."""
    kept: list[tuple[float | None, Samples, Counted]] = []
    shift_s = ends_at_s - horizon_s

    def scrape(now_s: float, exposition: Exposition) -> None:
        samples, counted = exposition.samples(now_s)
        kept.append((round(shift_s + now_s, 3), samples, counted))

    recorded_run(options, policy, horizon_s).at_each(every_s, scrape)
    return history_text(kept)
