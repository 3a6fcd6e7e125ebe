"""A playground without HTTP: a scenario behind an API server, moved by the test."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from apiserver.client import Client
from apiserver.users import User
from autopilot.app.options import SimulateOptions
from autopilot.app.runs.world import build_world
from autopilot.playground.agreement import disagreements
from autopilot.playground.stage import Stage, open_stage

START = datetime(2026, 11, 19, tzinfo=UTC)
PERSON = User("ada", ("system:masters", "system:authenticated"))


def stage_of(scenario: str = "quickstart", **more: Any) -> Stage:
    """A scenario at virtual time 0."""
    return open_stage(build_world(SimulateOptions(scenario=scenario)), start=START, **more)


def person(stage: Stage) -> Client:
    """A person with kubectl."""
    return stage.server.client(PERSON, "kubectl")


def found_until(stage: Stage, to_s: float) -> list[str]:
    """The first disagreement at any instant up to then."""
    while (at_s := stage.engine.next_s()) <= to_s:
        stage.clock.run_to(at_s)
        found = disagreements(stage.cluster, stage.projection, at_s)
        if found:
            return [f"{at_s}: {each}" for each in found]
    stage.clock.run_to(to_s)
    return []


def job(
    name: str, namespace: str = "vision", gpus: int = 2, pods: int = 1, resource: str = "nvidia.com/gpu", **more: Any
) -> dict[str, Any]:
    """A Job as a person writes it; `gpus` (or instances) of each pod, 0: none requested."""
    container: dict[str, Any] = {"name": "c", "image": "busybox", "command": ["sleep", "300"]}
    if gpus:
        container["resources"] = {"limits": {resource: str(gpus)}}
    spec = {
        "parallelism": pods,
        "completions": pods,
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
    }
    metadata = {"name": name, "namespace": namespace, **more}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
