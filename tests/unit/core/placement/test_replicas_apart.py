"""Replicas of a service are kept apart where the policy weighs that: on other nodes, and in other zones."""

from __future__ import annotations

from typing import Any

import pytest

from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.model.policy import Policy
from tests.kits.core_world import AUTO, decide, holds, waits, with_policy, world
from tests.kits.story_kit import with_columns

APART = with_policy(AUTO, placement={"replicas": 10.0})


def starts(policy: Policy, *work: Any, zones: tuple[int, ...] = (0, 0, 0)) -> dict[str, int]:
    """The node of each gang that starts, on three nodes of eight GPUs."""
    seen = with_columns(world("3x8", work, 100.0, nodes={"zone": zones}), service=0)
    step = decide(seen, policy, actions=ACTIONS[:1])
    found = [each for each in step.instructions if isinstance(each.operation, AdmitOperation)]
    return {each.subject.name: int(each.operation.slots[0].node.removeprefix("node-")) for each in found}


def test_a_replica_starts_beside_others_only_without_the_weight() -> None:
    """The fullest node is the best one otherwise."""
    work = (holds("r0", 4, [0, 1, 2, 3]), waits("r1", 2))
    assert starts(AUTO, *work) == {"r1": 0}
    assert starts(APART, *work) == {"r1": 1}


@pytest.mark.parametrize(("zones", "node"), [((0, 0, 1), 2), ((0, 1, 1), 1)])
def test_another_zone_is_better_than_another_node(zones: tuple[int, ...], node: int) -> None:
    """The node with the fewest replicas in its zone."""
    assert starts(APART, holds("r0", 4, [0, 1, 2, 3]), waits("r1", 2), zones=zones) == {"r1": node}


def test_replicas_that_start_together_are_kept_apart() -> None:
    """Each sees those before it in the plan."""
    assert sorted(starts(APART, waits("r0", 2), waits("r1", 2), waits("r2", 2)).values()) == [0, 1, 2]
