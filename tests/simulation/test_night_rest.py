"""The shipped scenario `night-rest`: services without requests at night, and training that waits."""

from __future__ import annotations

import pytest

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.world import build_world
from autopilot.controller import Controller
from autopilot.core.idle.ceiling import Ceiling
from simulator.running.simulation import Simulation
from tests.kits.policies import simulated
from tests.simulation.kit import Setup, run

MORNING_S = 6 * 3600.0


def ends_in_the_morning(simulation: Simulation, _controller: Controller) -> None:
    """Half an hour after the first requests, though training goes on."""
    simulation.engine.horizon_s = MORNING_S + 1800.0


@pytest.mark.soak
def test_services_rest_at_night_and_serve_in_the_morning() -> None:
    """One goes to zero, one to the replica that its owner keeps; requests give both their replicas back."""
    world = build_world(SimulateOptions(scenario="night-rest"))
    ran = run(world, Setup(policy=simulated(), change=ends_in_the_morning))
    assert ran.violated == set()
    told = [
        (moment.observation.now_s, each.subject.name, each.change.replicas)
        for moment in ran.tape.moments
        for each in moment.decision.plan.proposals
        if isinstance(each.change, Ceiling) and each.accepted and each.reason != "renewed"
    ]
    night = [(name, replicas) for at_s, name, replicas in told if at_s < MORNING_S]
    assert sorted(night) == [("hoard-chat", 0), ("hoard-search", 1)]
    back = {name: at_s for at_s, name, replicas in told if replicas < 0}
    assert back.keys() == {"hoard-chat", "hoard-search"}
    assert all(MORNING_S <= at_s < MORNING_S + 300.0 for at_s in back.values())
