"""The process of a simulated cluster: builds the world of a scenario, serves it, and paces it until it is stopped."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from secrets import token_hex

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.telemetry_feed import TelemetryFeed
from autopilot.app.runs.wiring import fate_of, generator_of, queue_table
from autopilot.app.runs.world import World, build_world
from autopilot.core.model.errors import InputError
from autopilot.service.listeners import Listener
from autopilot.service.state_folder import write_note
from simulator.inference.services import ServiceFleet
from simulator.running.cluster_actuator import ClusterActuator
from simulator.running.cluster_collector import ClusterCollector
from simulator.running.faults import Faults
from simulator.running.patchy import PatchyCollector
from simulator.running.simulation import Simulation
from simulator.serving.exporters import Exporters
from simulator.serving.http import Exposition, cluster_app
from simulator.serving.served import ServedCluster, Unattended
from simulator.serving.servers import Servers
from simulator.signals.occupants import Occupants
from simulator.signals.paces import Paces
from simulator.signals.programs import DrawnLoads
from simulator.specs.advance_spec import advance_table
from simulator.world.physics import PHYSICS

PACE_S = 0.02
"""Wall time between two steps of the pace."""


def serve_world(
    world: World, speed: float, run: str = "", wall_s: Callable[[], float] = time.monotonic
) -> tuple[ServedCluster, dict[str, Exposition]]:
    """The world of a scenario behind the protocol, at virtual time 0, and its metrics targets."""
    if not 0 < speed <= 100_000:
        raise InputError(
            f"--speed: {speed:g} is not allowed; give virtual seconds per second, above 0 and up to 100000"
        )
    faults = Faults(world.faults, world.seed) if world.faults is not None else None
    jobs = world.jobs()
    servers = Servers(world.services)
    services = None
    if world.services.deployments:
        services = ServiceFleet(
            servers.watched, jobs, world.inventory, PHYSICS[world.physics], on_served=servers.on_served
        )
        servers.load = services.load
    unattended = Unattended()
    simulation = Simulation(
        world.inventory,
        jobs,
        lambda _: unattended,
        PHYSICS[world.physics],
        checkers=(),
        ready_wakes=True,
        loads=DrawnLoads(world.seed, jobs, world.slow_gpus),
    )
    cluster, engine = simulation.cluster, simulation.engine
    if services is not None:
        services.arm(engine)
    if faults is not None:
        faults.arm(engine, cluster)
    queues, queue_of_tenant = queue_table(world.spec.queues, cluster)
    reserved = advance_table(world.spec.advance, queues.id.tolist(), cluster.inventory.names.gpu_models)
    table = services.table if services is not None else None
    replicas = services.latencies if services is not None else None
    paces = Paces(cluster, world.seed)
    whole = ClusterCollector(cluster, queues, queue_of_tenant, table, reserved, paces, replicas)
    generator = generator_of(world.seed, faults)
    scale = services.set_floor if services is not None else None
    served = ServedCluster(
        engine,
        unattended,
        whole,
        ClusterActuator(cluster, fate_of(faults), scale),
        run=run or token_hex(6),
        scenario=world.title,
        speed=speed,
        wall_s=wall_s,
        lists=PatchyCollector(whole, faults.view) if faults is not None else None,
        telemetry=(TelemetryFeed(Occupants(cluster, world.seed), generator, full=False),),
        start_s=world.start_s,
    )
    return served, {
        "exporters": Exporters(Occupants(cluster, world.seed), generator),
        "servers": servers,
    }


def serve_cluster(
    scenario: str,
    speed: float,
    listen: str,
    seed: int | None = None,
    ready: Path | None = None,
    say: Callable[[str], None] | None = None,
) -> None:
    """Serve a scenario until SIGTERM or SIGINT. `ready` and `say` receive the address once it answers."""
    served, metrics = serve_world(build_world(SimulateOptions(scenario=scenario, seed=seed)), speed)
    listener = Listener(cluster_app(served, metrics), listen, "--listen")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    listener.start()
    if ready is not None:
        asked = {"asked_scenario": scenario, "asked_seed": seed}
        write_note(ready, {"url": listener.url, "pid": os.getpid(), **asked, **asdict(served.clock())})
    if say is not None:
        say(f"simulated cluster {scenario} at {listener.url}, speed {speed:g}; Ctrl-C ends it")
    while not stop.is_set():
        if served.pace():
            stop.wait(PACE_S)
    served.close()
    listener.close()


def end_with(pipe: int) -> None:
    """End this process at once when the other end of `pipe` is closed: the process that started it is gone."""

    def wait() -> None:
        while os.read(pipe, 4096):  # not by a buffered reader, whose lock the end of the interpreter needs
            pass
        os._exit(0)

    threading.Thread(target=wait, name="tied", daemon=True).start()


def main() -> None:
    """The command line of the process; `autopilot cluster` has the same options."""
    parser = argparse.ArgumentParser(prog="autopilot cluster")
    parser.add_argument("scenario")
    parser.add_argument("--speed", type=float, default=60.0)
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--ready", type=Path)
    parser.add_argument("--tied", action="store_true", help="end when the standard input does")
    given = parser.parse_args()
    if given.tied:
        end_with(sys.stdin.fileno())
    try:
        serve_cluster(given.scenario, given.speed, given.listen, given.seed, given.ready)
    except InputError as error:
        sys.stderr.write(f"autopilot: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
