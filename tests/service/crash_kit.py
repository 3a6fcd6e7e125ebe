"""Controllers that die at chosen places of a tick, beside a simulated cluster that lives on.

Cluster and controllers are forked from a process with one thread, so that a start costs no import. A controller kills
itself with SIGKILL: nothing is flushed, closed or released by us.
"""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.world import build_world
from autopilot.controller import Controller
from autopilot.records.journal import SqliteJournal
from autopilot.records.memory import FileMemoryStore
from autopilot.service.listeners import Listener
from autopilot.service.settings import Settings
from autopilot.service.state_folder import places, write_note
from autopilot.service.wiring import wire
from autopilot.simulated.cluster import SimulatedCluster
from autopilot.simulated.process import serve_world
from autopilot.simulated.site import simulated_site
from simulator.serving.client import ServedActuator, ServedClient
from simulator.serving.http import cluster_app
from simulator.world.facts import Evicting, Started, Stopped
from simulator.world.work import Jobs

BOUNDARIES = ("observed", "intended", "saved", "sent-one", "sent-all", "concluded")


@dataclass
class Facts:
    """What happened in the cluster, by its own account."""

    started: list[tuple[int, int, str]] = field(default_factory=list)  # job, incarnation, effect
    evicted: list[tuple[int, int, str]] = field(default_factory=list)
    ended: list[tuple[int, float]] = field(default_factory=list)  # job, time

    def on_started(self, fact: Started) -> None:
        self.started.append((fact.job, fact.incarnation, fact.effect))

    def on_evicting(self, fact: Evicting) -> None:
        self.evicted.append((fact.job, fact.incarnation, fact.effect))

    def on_stopped(self, fact: Stopped) -> None:
        if fact.why.name == "END":
            self.ended.append((fact.job, fact.at_s))


def forked(body: Callable[[], None]) -> int:
    """Run `body` in a child process; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        body()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - the child of a test ends here
        traceback.print_exc()
        os._exit(1)


def serve(folder: Path, scenario: str, speed: float) -> None:
    """The cluster: serves until SIGTERM, then writes what happened in it."""
    world = build_world(SimulateOptions(scenario=scenario))
    served, metrics = serve_world(world, speed)
    facts, cluster = Facts(), served._engine.cluster
    cluster.observe(facts)
    ends: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ends.append(1))
    listener = Listener(cluster_app(served, metrics), "127.0.0.1:0", "listen")
    listener.start()
    write_note(folder / "cluster.json", {"url": listener.url})
    while not ends:
        served.pace()
        time.sleep(0.01)
    jobs: Jobs = cluster.jobs
    write_note(
        folder / "facts.json",
        {
            "started": facts.started,
            "evicted": facts.evicted,
            "ended": [(jobs.id[job], at_s) for job, at_s in facts.ended],
            "done": sorted(served._actuator._done),
            "jobs": sum(service < 0 for service in jobs.service),
        },
    )


def control(folder: Path, url: str, boundary: str, hit: int, ticks: int) -> None:
    """A controller that dies when it reaches `boundary` for the `hit`-th time, or ends after `ticks`."""
    cluster = SimulatedCluster(url, ServedClient(url).clock(), folder / "none")
    settings = Settings.model_validate(
        {
            "policy": "autopilot",
            "simulation": {"attach": url, "telemetry": "off"},
            "forecasting": {"durations": "last-two", "fit": False, "registry": False},
        }
    )
    reached: Counter[str] = Counter()

    def at(place: str) -> None:
        reached[place] += 1
        if place == boundary and reached[place] == hit:
            os.kill(os.getpid(), signal.SIGKILL)

    _mark(at)
    service = wire(settings, places(folder / "state", cluster.clock.run), simulated_site(cluster))
    with (folder / "fences").open("a") as file:
        file.write(f"{service.leadership.fence()}\n")
    for _ in range(ticks):
        service.controller.tick(service.loop._now_s())
        time.sleep(0.01)
    service.close()


def _mark(at: Callable[[str], None]) -> None:
    """Call `at` at each boundary of every tick of this process."""
    intend, save, conclude = SqliteJournal.intend, FileMemoryStore.save, SqliteJournal.conclude
    apply, observe = ServedActuator.apply, Controller.observe
    sent: list[str] = []

    def observed(self: Any, *given: Any) -> Any:
        answer = observe(self, *given)
        at("observed")
        return answer

    def intended(self: Any, *given: Any) -> None:
        intend(self, *given)
        sent.clear()
        at("intended")

    def saved(self: Any, *given: Any) -> None:
        save(self, *given)
        at("saved")

    def applied(self: Any, *given: Any) -> Any:
        outcome = apply(self, *given)
        sent.append(outcome.instruction_id)
        at("sent-one")
        return outcome

    def concluded(self: Any, *given: Any) -> None:
        if sent:
            at("sent-all")
        conclude(self, *given)
        at("concluded")

    for owner, name, wrapped in (
        (Controller, "observe", observed),
        (SqliteJournal, "intend", intended),
        (FileMemoryStore, "save", saved),
        (ServedActuator, "apply", applied),
        (SqliteJournal, "conclude", concluded),
    ):
        setattr(owner, name, wrapped)


def ended_by(pid: int) -> int:
    """The signal that ended a child; 0 for a clean end."""
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the child failed; its traceback is above"
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def facts_of(folder: Path) -> dict[str, Any]:
    """What the cluster wrote at its end."""
    content: dict[str, Any] = json.loads((folder / "facts.json").read_text("utf-8"))
    return content
