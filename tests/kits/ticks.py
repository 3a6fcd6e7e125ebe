"""What the functions of capabilities are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autopilot.core.model.capability import Planned, Tick
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Observation, Plan, Proposal, no_refusals


def follow(
    absorb: Callable[[ControllerMemory, Tick], ControllerMemory],
    memory: ControllerMemory,
    observation: Observation,
    policy: Policy,
    **more: Any,
) -> ControllerMemory:
    """Memory after one capability, or the table of them, followed an observation."""
    return absorb(memory, Tick(memory, observation, policy, **more))


def planned(observation: Observation, policy: Policy, *proposals: Proposal, **more: Any) -> Planned:
    """A plan of these proposals, with nothing else in it."""
    empty: dict[str, Any] = dict.fromkeys(
        ("effects", "stops", "starts", "disruptions", "promises", "released", "conditions", "unneeded"), ()
    )
    empty |= {"advance": {}, "drained": frozenset(), "part_gpus": {}, "wishes_s": {}}
    return Planned(observation, policy, Plan(proposals, no_refusals(), (), ()), **(empty | more))
