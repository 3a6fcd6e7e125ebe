"""Hints decide between equal nodes, and between nothing else: images that are on a node, a NUMA policy that suits."""

from __future__ import annotations

from typing import Any

from autopilot.core.effects.admit import AdmitChange
from autopilot.core.model.memory import Step
from autopilot.core.model.records import Evidence
from tests.kits.core_world import decide, holds, proposals, started, waits, world

NODE = [f"node-{row}" for row in range(4)]


def tried(*work: Any, hints: tuple[int, ...], shape: str = "4x8", **nodes: Any) -> Step:
    """A decision about nodes with these hints."""
    return decide(world(shape, work, 100.0, nodes={"hints": hints, **nodes}))


def terms(step: Step) -> tuple[Evidence, ...]:
    """What the score of the place of gang `a` is made of."""
    change = proposals(step)["a"].change
    assert isinstance(change, AdmitChange)
    return change.score_terms


def test_of_equal_nodes_the_one_with_most_hints_is_taken() -> None:
    """Only the hints that the gang prefers count, and the proposal says how many there were."""
    step = tried(waits("a", 8, prefers=0b011), hints=(0b100, 0b101, 0b011, 0b000))
    assert started(step) == {"a": [NODE[2]] * 8}
    (found,) = [each for each in terms(step) if each.name == "hints"]
    assert found.value == 2.0


def test_work_without_preferences_is_placed_as_before() -> None:
    """And so is work whose preferences no node meets; nothing is said about hints."""
    for prefers in (0, 0b1000):
        step = tried(waits("a", 8, prefers=prefers), hints=(0b100, 0b101, 0b011, 0b000))
        assert started(step) == {"a": [NODE[0]] * 8}
        assert "hints" not in {each.name for each in terms(step)}


def test_a_fuller_node_is_better_than_a_hint() -> None:
    """A hint never leaves a hole where there would be none."""
    step = tried(holds("b", 4, [0, 1, 2, 3]), waits("a", 2, prefers=1, gpus_per_member=2), hints=(0, 1, 1, 1))
    assert started(step) == {"a": [NODE[0]] * 2}


def test_hints_do_not_spread_a_gang_over_more_leaves() -> None:
    """Three nodes: one leaf of two, and one of two where one node has the images; by hints alone two leaves each."""
    gang = waits("a", 24, prefers=1)
    step = tried(gang, hints=(0, 0, 1, 1, 0, 1), shape="6x8", leaf=(0, 0, 1, 1, 2, 2))
    hinted = {*started(step)["a"]}
    assert {"node-2", "node-3", "node-5"} == hinted  # two leaves, as without hints
    apart = tried(gang, hints=(1, 0, 1, 0, 1, 0), shape="6x8", leaf=(0, 0, 1, 1, 2, 2))
    assert {*started(apart)["a"]} == {"node-0", "node-1", "node-2"}  # by hints: three leaves
