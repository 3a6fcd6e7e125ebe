"""Rules of the hostile API world that take several moves: pressure on running work, and writes that come late.

Each is a function of the world. Rare alone, what they bring about is where guards and the fence are the last defence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actuators.kubernetes.changes import GATED_BY
from autopilot.contract.annotations import CONTROLLER
from autopilot.core.effects.evict import EvictOperation
from tests.hostile.api_watch import EXCLUDE, PREEMPTIBLE, SLO
from tests.kits.killing import Boundaries
from tests.kits.kueue_kit import JOBS

if TYPE_CHECKING:
    from tests.hostile.api_machine import ApiHostile

RUN_S = "kubelet.playground/run-seconds"
LEAVES_S = 40.0
"""Pods of deleted Jobs have ended."""
MOST = 9
"""Jobs of a cluster that is full."""
SETTLES_S = 70.0
"""The guaranteed run time of the policy of this world is over."""


@dataclass
class Interrupted(Boundaries):
    """Boundaries of a process that may also be stopped between its checks and a write, and go on later."""

    pause_at: int = 0  # 0: it is not stopped
    meanwhile: Callable[[], None] = lambda: None

    def cross(self, what: str) -> None:
        """The process stops before a write; the write leaves after what happens meanwhile."""
        super().cross(what)
        if self.pause_at and self.passed >= self.pause_at and what.startswith("before"):
            self.pause_at = 0
            self.meanwhile()


def interrupt(world: ApiHostile) -> None:
    """The leader is stopped before one of its next writes. Another one leads when the write leaves."""
    boundaries = world.process.boundaries
    boundaries.pause_at = boundaries.passed + world.rng.randint(1, 6)


def press(world: ApiHostile) -> None:
    """Narrow work fills the cluster, and wide work that may take its place arrives: of its queue, or of its lender."""
    _fill(world, world.rng.choice("aab"))
    _arrive(world)


def hold_up_stops(world: ApiHostile) -> None:
    """The webhooks of Kueue do not answer while work is to be stopped, and its owners shelter it meanwhile."""
    _fill(world, world.rng.choice("ab"))
    world.webhooks_down = True
    _arrive(world)
    world.tick()
    for job in world.jobs():
        if job["metadata"]["uid"] in leaving(world):
            shelter(world, job["metadata"]["name"])
    for _ in range(3):
        world.pass_time(world.calm.limits.deadline_s / 2)
        world.tick()
    world.webhooks_down = False
    world.tick()


def lose_the_store(world: ApiHostile) -> None:
    """The memory of the leader cannot be written while there is something to do, or nobody knows whether it was."""
    _fill(world, world.rng.choice("ab"))
    world.store_fate = world.rng.choice(("request lost", "answer lost"))
    _arrive(world)
    for seconds in (2.0, 15.0, world.calm.limits.deadline_s, 15.0):
        world.tick()
        world.pass_time(seconds)
    world.store_fate = ""
    world.tick()


def leaving(world: ApiHostile) -> set[str]:
    """Uids of the work that is to be stopped."""
    effects = (entry.instruction for entry in world.process.controller.memory.effects.in_flight.values())
    return {each.subject.uid for each in effects if isinstance(each.operation, EvictOperation)}


def shelter(world: ApiHostile, name: str) -> None:
    """An owner says that a Job is not to be stopped."""
    key, value = world.rng.choice(((EXCLUDE, "true"), (PREEMPTIBLE, "false"), (SLO, "latency-critical")))
    job = next(each for each in world.jobs() if each["metadata"]["name"] == name)
    notes = dict(job["metadata"].get("annotations", {}))
    wanted = {key: value, **({PREEMPTIBLE: None} if key == SLO else {})}
    if world.ask.response("PATCH", f"{JOBS}/{name}", {"metadata": {"annotations": wanted}}).status < 300:
        world.mark(job["metadata"]["uid"], {**notes, **{name: each or "" for name, each in wanted.items()}})


def _fill(world: ApiHostile, queue: str) -> None:
    """A new day: the controller may act, narrow work of low priority takes all there is and may be stopped."""
    world.all_auto()
    world.resume()
    world.clear()
    for job in world.jobs():
        world.ask.response("DELETE", f"{JOBS}/{job['metadata']['name']}", propagationPolicy="Background")
    world.pass_time(LEAVES_S)
    while len(world.jobs()) < MOST:
        gpus = world.rng.choice((2, 2, 4))
        world.create(f"n{world.made}", queue, gpus, 1, {PREEMPTIBLE: "true"}, priority="low", run_s=7200)
    for seconds in (2.0, 2.0, SETTLES_S):
        world.pass_time(seconds)
        world.tick()


def _arrive(world: ApiHostile) -> None:
    """Wide work of high priority."""
    for _ in range(2):
        world.create(f"w{world.made}", "a", 8, 1, {PREEMPTIBLE: "true"}, priority="high", run_s=1200)
    world.pass_time(2.0)


def job_of(
    name: str, queue: str, gpus: int, pods: int, notes: dict[str, str], *, priority: str, lasts_s: int
) -> dict[str, Any]:
    """A Job behind our gate, as a template or policy of the cluster sets it."""
    resources = {"cpu": "1", "nvidia.com/gpu": str(gpus)}
    container = {"name": "main", "image": "app:1", "resources": {"requests": resources, "limits": resources}}
    lasts = {RUN_S: str(lasts_s)}
    template = {"metadata": {"annotations": lasts}, "spec": {"restartPolicy": "Never", "containers": [container]}}
    labels = {"kueue.x-k8s.io/queue-name": queue, "kueue.x-k8s.io/priority-class": priority}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels, "annotations": {**notes, GATED_BY: CONTROLLER}},
        "spec": {"parallelism": pods, "completions": pods, "backoffLimit": 100, "template": template},
    }


RULES = (press, hold_up_stops, lose_the_store, interrupt, interrupt)
