"""The simulated cluster of a scenario with the engine `kueue` in charge, behind an API server, on one virtual clock."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from apiserver.server import Server
from apiserver.timeline import US, Timeline
from autopilot.app.runs.wiring import generator_of
from autopilot.app.runs.world import World
from autopilot.core.model.errors import InputError
from autopilot.playground.beside import Beside
from autopilot.playground.clock import StageClock
from autopilot.playground.controller_manager import ControllerManager
from autopilot.playground.device_plugins import DevicePlugins
from autopilot.playground.engine import Shown
from autopilot.playground.levers import Levers
from autopilot.playground.mig_manager import MigManagers
from autopilot.playground.projection import Projection
from autopilot.playground.serving import playground_server
from autopilot.playground.submissions import Submissions
from autopilot.playground.surroundings import ApiSurroundings
from simulator.checkers import PHYSICAL
from simulator.checkers.needed import Needed
from simulator.inference.services import ServiceFleet
from simulator.running.engine import Engine
from simulator.running.faults import Faults
from simulator.running.owners import Owners
from simulator.running.simulation import Simulation
from simulator.serving.exporters import Exporters
from simulator.serving.servers import Servers
from simulator.signals.occupants import Occupants
from simulator.signals.programs import DrawnLoads
from simulator.world.cluster import Cluster
from simulator.world.physics import PHYSICS
from simulator.world.work import Jobs

MOST_SPEED = 100_000.0
DAY = timedelta(days=1)


@dataclass(slots=True)
class Stage:
    """The running parts of a playground, all on one virtual clock. `clock.hold()` stops all of it."""

    world: World
    cluster: Cluster
    engine: Engine
    server: Server
    projection: Projection
    submissions: Submissions
    clock: StageClock
    exporters: Exporters
    servers: Servers
    simulation: Simulation

    @property
    def checked(self) -> Beside | None:
        """The engine with our admission check on its queues; None if nothing acts."""
        return self.projection.checked


def open_stage(
    world: World,
    *,
    speed: float = 1.0,
    start: datetime | None = None,
    token: str = "",
    acts: bool = False,
    gate: bool = True,
    without: Collection[str] = (),
) -> Stage:
    """The scenario at virtual time 0. `start`: its date; default: one with its end in the past. `token`: the token
    required of clients; "": none. `acts`: work waits for the autopilot's admission check, that of the scenario also for
    its gate unless `gate` is False. `without`: tenants without Kueue: their Jobs are suspended and left to the
    autopilot.

    Raises `InputError` for a speed out of range, and for a scenario that Kubernetes cannot show.
    """
    jobs = _jobs_of(world, speed, without, acts=acts)
    begin = start if start is not None else _begin(world.span_s)
    timeline = Timeline(begin)
    server = playground_server(timeline, random.Random(world.seed), token)  # noqa: S311 - uids of a simulation
    servers = Servers(world.services)
    services = None
    if world.services.deployments:
        services = ServiceFleet(
            servers.watched, jobs, world.inventory, PHYSICS[world.physics], on_served=servers.on_served
        )
        servers.load = services.load
    engine = Beside(world.spec.queues, without, gate=gate) if acts else Shown(world.spec.queues)
    simulation = Simulation(
        world.inventory,
        jobs,
        lambda _: engine,
        PHYSICS[world.physics],
        checkers=(*PHYSICAL, Needed.name) if acts else (),
        ready_wakes=True,
        loads=DrawnLoads(world.seed, jobs),
    )
    faults = Faults(world.faults, world.seed) if world.faults is not None else None
    checked = engine if isinstance(engine, Beside) else None
    projection = Projection(
        simulation.cluster, server, world.spec.queues, world.services.deployments, engine.preemptor, checked
    )
    managers = MigManagers(simulation.engine, projection)
    engine.after = partial(_show, projection, managers, timeline)
    occupants = Occupants(simulation.cluster, world.seed, projection.pod_labels)
    owners = _owners(simulation, world.seed, occupants)
    if checked is not None:
        checked.around = ApiSurroundings(projection, owners.away)
        checked.later, checked.manager = simulation.engine.at, ControllerManager(simulation.engine.at)
        Levers(simulation.engine, projection, checked, services).listen()
    if services is not None:
        projection.replicas.wanted = services.wanted
        services.arm(simulation.engine)
    if faults is not None:
        faults.arm(simulation.engine, simulation.cluster)
    projection.begin()
    managers.begin()
    DevicePlugins(simulation.engine, projection).begin()
    submissions = Submissions(simulation.engine, projection)
    submissions.listen()
    clock = StageClock(timeline, simulation.engine, speed)
    stage = Stage(
        world,
        simulation.cluster,
        simulation.engine,
        server,
        projection,
        submissions,
        clock,
        Exporters(occupants, generator_of(world.seed, faults)),
        servers,
        simulation,
    )
    clock.run_to(0.0)
    return stage


def _owners(simulation: Simulation, seed: int, occupants: Occupants) -> Owners:
    """The owners of interactive work, whose absences telemetry and neighbours on shared GPUs notice."""
    owners = Owners(simulation.cluster, seed)
    owners.arm(simulation.engine)
    owners.listeners += [occupants.on_owner, simulation.cluster.sharings.on_owner]
    return owners


def _jobs_of(world: World, speed: float, without: Collection[str], *, acts: bool) -> Jobs:
    """The jobs of the scenario. Raises `InputError` for a speed out of range, and for work that pods cannot show."""
    if not 0 < speed <= MOST_SPEED:
        raise InputError(
            f"--speed: {speed:g} is not allowed; give virtual seconds per second, above 0 and up to {MOST_SPEED:g}"
        )
    jobs = world.jobs()
    if any(shape.milli for shape in jobs.shapes) or any(each.gpu_milli for each in world.services.deployments):
        raise InputError(
            f"--scenario: {world.title} has jobs that request a part of a GPU, and pods cannot; "
            "choose another scenario, for example quickstart or demo"
        )
    _check_without(world, jobs, without, acts=acts)
    return jobs


def _check_without(world: World, jobs: Jobs, without: Collection[str], *, acts: bool) -> None:
    """Raises `InputError` for tenants that cannot be without Kueue (those with services), for unknown ones, and without
    `acts`.
    """
    if without and not acts:
        raise InputError("--without-kueue: nothing would start their Jobs; add --mode auto or --mode approve")
    serving = {each.tenant for each in world.services.deployments}
    for tenant in without:
        if tenant in serving:
            raise InputError(f"--without-kueue: tenant {tenant} has services, which need a queue; name another tenant")
        if tenant not in jobs.tenants:
            known = ", ".join(sorted(set(jobs.tenants) - serving))
            raise InputError(f"--without-kueue: {world.title} has no tenant {tenant}; name one of {known}")


def _show(projection: Projection, managers: MigManagers, timeline: Timeline, now_s: float) -> None:
    """Let the server's time catch up with the instant, then show it."""
    timeline.run_until_us(_us(projection.start_s + now_s))
    projection.show(now_s)
    managers.follow(now_s)


def _us(at_s: float) -> int:
    return round(at_s * US)


def _begin(span_s: float) -> datetime:
    """The latest midnight (UTC) early enough for the end of a scenario of this length by now, so no age is negative."""
    latest = datetime.now(UTC) - timedelta(seconds=span_s)
    return latest.replace(hour=0, minute=0, second=0, microsecond=0)
