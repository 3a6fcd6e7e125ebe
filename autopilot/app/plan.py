"""One decision at a moment of a scenario, for `autopilot plan`: shown, never carried out."""

from __future__ import annotations

from dataclasses import replace

from autopilot.app.options import SimulateOptions
from autopilot.app.wiring import Managed, manage
from autopilot.app.world import build_world
from autopilot.core.reconciler import reconcile
from autopilot.core.records import ControllerMemory, Decision, Observation
from autopilot.settings import load_policy
from simulator.baselines.textbook import fifo_skip
from simulator.physics import PHYSICS
from simulator.simulation import Simulation


def plan_at(scenario: str | None, cluster: str | None, seed: int | None, at_s: float,
            policy_name: str) -> tuple[Observation, Decision]:  # fmt: skip
    """What the autopilot sees and would decide after `at_s` under first come first served."""
    policy = load_policy(policy_name)
    world = build_world(SimulateOptions(scenario=scenario, cluster=cluster, seed=seed))
    jobs = world.jobs()
    services = world.fleet(jobs)
    simulation = Simulation(world.inventory, jobs, lambda _: fifo_skip(), PHYSICS[world.physics], horizon_s=at_s,
                            ready_wakes=services is not None)  # fmt: skip
    if services is not None:
        services.arm(simulation.engine)
    _, running = manage(simulation.cluster, Managed(
        name=policy.name, policy=policy, seed=world.seed, telemetry="windowed", queues=world.spec.queues,
        services=services.table if services is not None else None,
    ))  # fmt: skip
    simulation.engine.run()
    observation = running.controller.observe(at_s)
    step = reconcile(replace(ControllerMemory(), fence=1), observation, policy)
    return observation, step.decision
