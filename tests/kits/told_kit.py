"""What people are told about an effect that did not come about: the API, its Recommendation, and the metrics."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from autopilot.core.model.memory.effects import InFlight
from autopilot.core.model.records import Instruction, Outcome
from autopilot.crds.planning import There, plan
from autopilot.metrics.exposition import Exposition
from autopilot.service.settings import Role
from tests.kits.core_world import AUTO, world
from tests.kits.http_kit import client, desk_over, published

NUMBER = re.compile(r'gpu_autopilot_effect_failures_total\{cause="([^"]*)",operation="([^"]*)"\} (\S+)')


class Told(NamedTuple):
    """`api`: cause and reason of the newest failed effect; `state` and `message` of the Recommendation."""

    api: tuple[str, str]
    state: str
    message: str
    counted: dict[tuple[str, str], float]  # by operation and cause


def told(folder: Path, instruction: Instruction, outcome: Outcome) -> Told:
    """What is shown after the tick that observes this outcome of an instruction sent the tick before."""
    entry = InFlight(instruction, "issued", 0.0, "preempt", "t0", 0.0, contract=False)
    first = published(world("1x8", [], 1000.0), AUTO)
    before = replace(
        first, memory=replace(first.memory, effects=replace(first.memory.effects, in_flight={instruction.id: entry}))
    )
    after = published(world("1x8", [], 1030.0, outcomes=(outcome,)), AUTO)
    desk = desk_over(folder, before, after)
    row = client(desk, Role.VIEWER).get("/api/v1/state").json()["failed_effects"][0]
    there = There("p", "uid", {"id": instruction.proposal_id}, {"state": "UnderWay"}, {}, 0.0)
    (write,) = plan(after, {"p": there}, 10, 0.0, desk.publisher.shown, desk.publisher.failed_of)
    exposition = Exposition(before.memory, "1")
    exposition.tick(after.observation, after.decision, after.memory, AUTO)
    text = exposition.render(1030.0).decode()
    desk.inbox.close()
    return Told(
        (row["cause"], row["reason"]),
        str(write.status["state"]),
        str(write.status["message"]),
        {(operation, cause): float(value) for cause, operation, value in NUMBER.findall(text)},
    )
