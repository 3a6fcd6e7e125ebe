"""A gang is moved away from the member that holds it up where that pays; else the member is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopilot.core.effects.move import MoveChange
from autopilot.core.model.memory import Step
from autopilot.core.model.modes import Mode
from autopilot.core.stragglers import replace as action
from autopilot.explain.held_up import straggler_lines
from autopilot.metrics.samples import Samples
from autopilot.metrics.sharing_samples import put_slow
from tests.kits.core_world import holds, with_policy, world
from tests.kits.held_up_world import GANG, SUSPECT, held_up, slow
from tests.kits.ticking_world import EAGER


def moved_to(step: Step) -> list[str]:
    """The nodes to which the gang moves."""
    found = [each for each in step.decision.plan.proposals if each.action == action.NAME]
    assert all(isinstance(each.change, MoveChange) and each.accepted for each in found)
    return [slot.node for each in found for victim in each.victims for slot in victim.keeps[:1]]


def why(step: Step) -> str:
    """The reason in the note; "" without one."""
    facts = (fact for note in step.decision.notes if note.code == "straggler" for fact in note.facts)
    return next((str(fact.value) for fact in facts if fact.name == "why"), "")


def test_a_gang_moves_off_the_node_and_past_those_of_suspects() -> None:
    """Its checkpoint is asked for, and it continues where no member and no GPU is known to be slow."""
    assert moved_to(held_up(slow())) == ["node-1"]
    step = held_up(slow(), suspects=(SUSPECT,))
    assert moved_to(step) == ["node-2"]
    assert [note.subject for note in step.decision.notes if note.code == "slow_gpu"] == ["GPU-9"]
    assert moved_to(held_up(slow(), slow(node="node-1", gpu="GPU-9", cost_gpu_s_per_h=10.0))) == ["node-2"]
    assert [each.kind for each in held_up(slow()).instructions] == ["evict"]


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (lambda: held_up(slow(confidence=0.7, evidence=("step-time",))), action.UNSURE),
        (lambda: held_up(slow(cost_gpu_s_per_h=100.0)), action.CHEAP),
        (lambda: held_up(slow(), total_s=20_060.0), action.CHEAP),  # it ends soon
        (lambda: held_up(slow(since_s=20_000.0)), action.CHEAP),  # it has just begun
        (lambda: held_up(slow(), shape="1x8"), action.NO_PLACE),
        (lambda: held_up(slow(), work=(GANG, holds("other", 16))), action.NO_PLACE),
        (lambda: held_up(slow(), work=(replace(GANG, columns={**GANG.columns, "preemptible": False}),)), action.BUSY),
    ],
)
def test_else_the_member_is_named_with_the_reason(step: object, reason: str) -> None:
    """One kind of evidence, a price above the worth, no room, protected work."""
    found = step()  # type: ignore[operator]
    assert (moved_to(found), why(found)) == ([], reason)


def test_a_gang_that_is_gone_or_pending_has_no_word() -> None:
    """The verdict is of another time."""
    step = held_up(slow(gang_uid="gone"))
    assert (moved_to(step), why(step)) == ([], "")


def test_it_is_off_with_its_mode() -> None:
    """Nothing is proposed and nothing noted."""
    step = held_up(slow(), policy=with_policy(EAGER, modes={"replace": Mode.OFF}))
    assert (moved_to(step), why(step)) == ([], "")


def test_the_story_of_a_gang_names_the_member() -> None:
    """With its evidence and cost, and whether its GPU was slow before."""
    suspect = replace(SUSPECT, gpu="GPU-3", node="node-0")
    assert straggler_lines("train", (slow(), slow(gang_uid="other")), (suspect,)) == [
        "held up by rank 3 on node-0, GPU GPU-3: it computes 1.30 times as long as its peers (step-time, clocks, "
        "confidence 0.93), which costs 2.00 GPU-h an hour; this GPU was slow in 3 gangs"
    ]
    assert straggler_lines("train", (slow(gpu="", rank=-1),), ())[0].startswith("held up by node-0: it computes 1.30")


def test_metrics_count_slow_members_and_suspects_by_pool() -> None:
    """Without any there is no series; a node that is gone counts nowhere."""
    out, seen = Samples(), world("2x8", [GANG])
    put_slow(out, seen)
    assert "pool_slow_members" not in out.values
    found = (slow(), slow(node="gone"))
    put_slow(out, replace(seen, forecasts=replace(seen.forecasts, stragglers=found, slow_gpus=(SUSPECT,))))
    assert sorted(out.values["pool_slow_members"].values()) == [1.0, 1.0]
