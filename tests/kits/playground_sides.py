"""Owners, services and faults of a scenario in a simulation that is compared with a playground."""

from __future__ import annotations

from collections.abc import Sequence

from autopilot.app.runs.world import World
from simulator.inference.services import ServiceFleet
from simulator.running.faults import Faults
from simulator.running.owners import Owners
from simulator.running.simulation import Simulation
from simulator.signals.occupants import Occupants


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
