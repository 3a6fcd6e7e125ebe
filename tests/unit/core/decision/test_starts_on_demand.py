"""Decisions about work whose instances are made when it starts, and what is under way of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from autopilot.core.model.memory import Step
from autopilot.core.model.records import Slot
from tests.kits.core_world import (
    AUTO,
    MODELS,
    decide,
    holds,
    proposals,
    queue_tree,
    started,
    waits,
    with_policy,
    world,
)
from tests.kits.hardware_world import PROFILES, on_demand_bits

SMALL = PROFILES.index("1g.10gb")
ALL = on_demand_bits(MODELS[0])


def asks(name: str, count: int = 1, **more: Any) -> Any:
    """Work that waits for the smallest instances."""
    return waits(name, count, mig_profile=SMALL, **more)


def test_a_start_names_its_place_and_counts_its_part_of_the_gpu() -> None:
    """The node and the profile bind; the slices are what was foreseen."""
    step = decide(world("1x1", [asks("a")], on_demand={0: ALL}))
    (instruction,) = step.instructions
    assert instruction.operation.slots == (Slot("node-0", "GPU-0", "GPU-0/1g.10gb@0", 0),)
    facts = {each.name: each.value for each in proposals(step, "admit")["a"].evidence}
    assert facts["gpus"] == 1


def test_what_is_under_way_keeps_its_slices_and_its_gpu() -> None:
    """Nothing shows it yet. The rest of the GPU is for work of the same kind, and none of it for a whole GPU."""
    first = decide(world("1x1", [asks("a")], on_demand={0: ALL}))
    seen = [asks("a"), asks("b", 7), asks("c", 6), waits("w", 1)]
    second = decide(world("1x1", seen, 10.0, tick=1, on_demand={0: ALL}), AUTO, first.memory)
    assert list(started(second)) == ["c"]


def other_slices(left: Sequence[tuple[str, int]], limit: int = -1) -> Step:
    """`a` was started, then `b`, which nobody decided about, got the slices that were foreseen for `a`."""
    queues = queue_tree(("q", 0, limit))
    first = decide(world("1x1", [asks("a", queue=1)], on_demand={0: ALL}, queues=queues))
    seen = [asks("a", queue=1), holds("b", 1, on=[0], mig_profile=SMALL), asks("c", queue=1)]
    bits = on_demand_bits(MODELS[0], only=left)
    later = world("1x1", seen, 10.0, tick=1, cuts={0: [("1g.10gb", 0)]}, on_demand={0: bits}, queues=queues)
    return decide(later, AUTO, first.memory)


def test_a_start_under_way_takes_other_slices_of_its_node() -> None:
    """The scheduler chooses them, so one place fewer is left for others."""
    one, two = [("1g.10gb", 4)], [("1g.10gb", 4), ("1g.10gb", 5)]
    assert not started(other_slices(one))
    assert list(started(other_slices(two))) == ["c"]


def test_a_start_that_takes_other_slices_counts_against_its_quota() -> None:
    """Its queue may have one instance."""
    two = [("1g.10gb", 4), ("1g.10gb", 5)]
    assert not started(other_slices(two, limit=1))


@pytest.mark.parametrize(("run_s", "starts"), [(100.0, True), (1e6, False)], ids=["ends before", "ends after"])
def test_room_that_is_held_for_a_gang_of_whole_gpus_is_not_cut(run_s: float, *, starts: bool) -> None:
    """Work for an instance opens an idle GPU only if it ends before the gang starts, for which it is held."""
    policy = with_policy(
        AUTO, reservation={"depth": 1, "whole_nodes_only": False, "max_spread_ratio": 1e6}, order={"short_s": 0.0}
    )
    work = [holds("run", 1), waits("wide", 2), asks("i")]
    total_s = {"run": 5000.0, "wide": 1000.0, "i": run_s}
    step = decide(world("1x2", work, 10.0, total_s=total_s, on_demand={1: ALL}), policy)
    assert [held.workload for held in step.memory.plan.reservations] == ["wide"]
    assert ("i" in started(step)) == starts
