"""Made-up cases, and the worlds and plans that the tests of the runner build from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autopilot.core.model.records import Plan, Proposal, Slot, Victim, no_refusals
from tests.conformance.cases import SCHEMA, parse_case
from tests.conformance.outcome import Outcome, read_plan
from tests.conformance.world import World, build_world
from tests.kits.proposals import propose


def task(name: str, state: str = "pending", gpus: float = 1, **more: Any) -> dict[str, Any]:
    """One member; a holding one sits on n1."""
    seat = {} if state in {"pending", "failed", "succeeded"} else {"node": "n1"}
    return {"name": name, "gpus": gpus, "state": state, **seat, **more}


def gang(name: str, *tasks: dict[str, Any], least: int = 1, order: int = 0, **more: Any) -> dict[str, Any]:
    """One gang of queue q."""
    return {"name": name, "queue": "q", "min_member": least, "submit_order": order, "tasks": [*tasks], **more}


def case(*gangs: dict[str, Any], expect: dict[str, Any] | None = None, gpus: int = 4, **more: Any) -> dict[str, Any]:
    """One node n1, one queue q that is guaranteed all of it."""
    return {
        "id": "made-up",
        "kind": "schedule",
        "policy": "hierarchical-fair-share",
        "action": "allocate",
        "nodes": [{"name": "n1", "gpus": gpus}],
        "queues": [{"name": "q", "guaranteed": gpus}],
        "gangs": [*gangs],
        "expect": expect or {},
        **more,
    }


def world_of(raw: dict[str, Any]) -> World:
    """The world of a case given as JSON."""
    return build_world(parse_case(raw))


def written(folder: Path, *cases: dict[str, Any], schema: str = SCHEMA) -> str:
    """A file of cases."""
    path = folder / "cases.json"
    path.write_text(json.dumps({"schema": schema, "cases": [*cases]}), encoding="utf-8")
    return str(path)


def proposal(kind: str, workload: str, gpus: list[int], victims: tuple[Victim, ...] = ()) -> Proposal:
    """An accepted proposal for whole GPUs of n1."""
    slots = tuple(Slot("n1", f"GPU-n1-{gpu}") for gpu in gpus)
    return propose(kind, "any", workload, slots=slots, victims=victims, accepted=True)


def read(world: World, *proposals: Proposal) -> Outcome:
    """A plan of these proposals, read."""
    return read_plan(world, Plan(proposals, no_refusals(), (), ()))


ELASTIC = case(
    gang("e", task("e.0", "running", rank=1), task("e.1", "running", rank=2), task("e.2")),
    gang("new", task("n.0"), task("n.1"), least=2),
)


def shrunk(workload: str, keeps: list[int]) -> Victim:
    """A victim that goes on with fewer GPUs of n1."""
    return Victim(workload, 0, 1, 0.0, False, "shrink", tuple(Slot("n1", f"GPU-n1-{gpu}") for gpu in keeps))
