"""Where the policy says so, only work that writes checkpoints starts on spot nodes."""

from __future__ import annotations

from typing import Any

import pytest

from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.model.memory import Step
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Code
from tests.kits.core_world import AUTO, decide, holds, waits, with_policy, world
from tests.kits.ticking_world import EAGER

SAVES = {"checkpoint_interval_s": 600.0}
ON_REQUEST = {"checkpoint_on_request": True}
NEVER: dict[str, Any] = {"checkpoint_on_request": False}
STRICT = with_policy(AUTO, placement={"spot_saves": True})


def look(work: Any, policy: Policy = STRICT) -> Step:
    """A node of the cluster, and a spot node; both have eight GPUs."""
    return decide(world("2x8", work, 100.0, nodes={"spot": [False, True]}), policy)


def nodes_of(step: Step) -> dict[str, set[str]]:
    """The nodes of each gang that starts."""
    starts = [each for each in step.instructions if isinstance(each.operation, AdmitOperation)]
    return {each.subject.name: {slot.node for slot in each.operation.slots} for each in starts}


@pytest.mark.parametrize("declared", [SAVES, ON_REQUEST])
def test_only_work_that_saves_uses_spot_nodes(declared: dict[str, Any]) -> None:
    """Gangs that are equal otherwise are told apart; without the policy both may start there."""
    work = [holds("h", 8), waits("plain", 8, **NEVER), waits("saves", 8, submit_s=50.0, **NEVER | declared)]
    assert nodes_of(look(work)) == {"saves": {"node-1"}}
    assert nodes_of(look(work, AUTO)) == {"plain": {"node-1"}}


def test_what_may_not_start_there_waits_for_capacity() -> None:
    """It is told that there is none of its kind, also for a gang of several members and for shares."""
    for columns in ({"gpus": 8}, {"gpus": 4, "gpus_per_member": 2}, {"gpus": 1, "gpu_milli": 500}):
        step = look([holds("h", 8), waits("plain", columns.pop("gpus"), **NEVER | columns)])
        refused = step.decision.plan.refusals
        assert not step.instructions
        assert [refused.codes[code] for code in refused.code.tolist()] == [Code.CAPACITY]


def test_a_gang_that_moves_keeps_off_them_too() -> None:
    """Moves and preemptions ask the same question."""
    work = [holds("v", 8, priority=0, **NEVER), waits("w", 8, priority=9, **NEVER)]
    step = look(work, with_policy(EAGER, placement={"spot_saves": True}, preemption={"without_checkpoint": True}))
    assert [each.kind for each in step.instructions] == ["evict"]
    assert not [
        slot
        for part in step.memory.starts.pipelined_starts
        for each in part.parts
        for slot in each.slots
        if slot.node != "node-0"
    ]
