"""One decision at a moment of a scenario, for `autopilot plan`: shown, never carried out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autopilot.app.options import SimulateOptions, past_end
from autopilot.app.runs.wiring import Managed, manage, queue_table
from autopilot.app.runs.world import World, build_world
from autopilot.core.decision.reconciler import reconcile
from autopilot.core.intake.assemble import assemble
from autopilot.core.model.errors import InputError
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy.names import check_names
from autopilot.core.model.records import Decision, Observation
from autopilot.core.model.units import format_duration
from autopilot.settings import load_policy
from models.expected_mix import MixForecaster
from simulator.baselines.textbook import fifo
from simulator.running.cluster_collector import ClusterCollector
from simulator.running.simulation import Simulation
from simulator.world.physics import PHYSICS

LATEST_S = 366 * 86_400.0
"""Scenarios last hours to months; a later moment is probably a typing error, and takes long to simulate."""


LOOK_S, MOST_LOOKS = 300.0, 2000
"""Interval of the demand mix's views of the cluster before `--at`; shorter work may be missed."""


def plan_at(options: SimulateOptions, at_s: float, policy_name: str) -> tuple[World, Observation, Decision]:
    """The world, and the autopilot's observation and decision in it after `at_s` of strict first come first served.

    That order leaves usable room for other gangs, so there is something to decide. Raises `InputError`.
    """
    if at_s > LATEST_S:
        raise InputError(f"--at: {format_duration(at_s)} is not allowed; write at most {LATEST_S / 86_400:g}d")
    policy = load_policy(policy_name)
    world = build_world(options)
    check_names(policy, world.names, f"--policy: {policy_name}")
    jobs = world.jobs()
    services = world.fleet(jobs)
    simulation = Simulation(
        world.inventory,
        jobs,
        lambda _: fifo(),
        PHYSICS[world.physics],
        horizon_s=at_s,
        ready_wakes=services is not None,
    )
    if services is not None:
        services.arm(simulation.engine)
    mix = MixForecaster()
    _watch(simulation, mix, at_s)
    _, running = manage(
        simulation.cluster,
        Managed(
            name=policy.name,
            policy=policy,
            seed=world.seed,
            telemetry="windowed",
            queues=world.spec.queues,
            advance=world.spec.advance,
            services=services.table if services is not None else None,
            latencies=services.latencies if services is not None else None,
        ),
    )
    run = simulation.engine.run()
    if run.interrupted:
        raise KeyboardInterrupt
    if run.end_s < at_s:
        raise InputError(past_end(at_s, run.end_s))
    observation = running.controller.observe(at_s)
    mix.update(at_s, observation.snapshot)
    expected = mix.forecast(at_s, observation.snapshot).mix
    observation = replace(observation, forecasts=replace(observation.forecasts, mix=expected))
    step = reconcile(replace(ControllerMemory(), fence=1), observation, policy)
    return world, observation, step.decision


def _watch(simulation: Simulation, mix: MixForecaster, until_s: float) -> None:
    """Teach `mix` the submissions until then, as the loop would have."""
    queues, queue_of_tenant = queue_table((), simulation.cluster)
    collector = ClusterCollector(simulation.cluster, queues, queue_of_tenant)

    def look(now_s: float) -> None:
        mix.update(now_s, assemble([collector.peek(now_s)], now_s)[0])

    for at_s in np.arange(0.0, until_s, max(LOOK_S, until_s / MOST_LOOKS)).tolist():
        simulation.engine.at(at_s, look, essential=False)
