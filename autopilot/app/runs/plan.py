"""One decision at a moment of a scenario, for `autopilot plan`: shown, never carried out."""

from __future__ import annotations

from dataclasses import replace

from autopilot.app.options import SimulateOptions, past_end
from autopilot.app.runs.wiring import Managed, manage
from autopilot.app.runs.world import World, build_world
from autopilot.core.decision.reconciler import reconcile
from autopilot.core.model.errors import InputError
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy_names import check_models
from autopilot.core.model.records import Decision, Observation
from autopilot.core.model.units import format_duration
from autopilot.settings import load_policy
from simulator.baselines.textbook import fifo
from simulator.running.simulation import Simulation
from simulator.world.physics import PHYSICS

LATEST_S = 366 * 86_400.0
"""Scenarios last hours to months; a later moment is probably a typing error, and takes long to simulate."""


def plan_at(options: SimulateOptions, at_s: float, policy_name: str) -> tuple[World, Observation, Decision]:
    """The world, and what the autopilot observes and would decide in it after `at_s` of strict first come first served.

    That order leaves room that other gangs could use, so there is something to decide. Raises `InputError`.
    """
    if at_s > LATEST_S:
        raise InputError(f"--at: {format_duration(at_s)} is not allowed; write at most {LATEST_S / 86_400:g}d")
    policy = load_policy(policy_name)
    world = build_world(options)
    check_models(policy, world.spec.gpus_by_model, f"--policy: {policy_name}")
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
        ),
    )
    run = simulation.engine.run()
    if run.interrupted:
        raise KeyboardInterrupt
    if run.end_s < at_s:
        raise InputError(past_end(at_s, run.end_s))
    observation = running.controller.observe(at_s)
    step = reconcile(replace(ControllerMemory(), fence=1), observation, policy)
    return world, observation, step.decision
