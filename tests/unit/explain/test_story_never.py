"""What can start in no state of the nodes and queues is said at once, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopilot.core.model.records import Gap
from tests.kits.core_world import Item, holds, waits, world
from tests.kits.story_kit import story, tree


def never(said: str) -> list[str]:
    """What a story says of it."""
    return [line.strip() for line in said.splitlines() if line.strip().startswith("never")]


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (waits("w", 16, gpus_per_member=16), "one member asks for 16 GPUs, and the largest node that suits has 8 GPUs"),
        (waits("w", 32, gpus_per_member=8), "it asks for 32 GPUs, and all nodes that suit it have 16 GPUs for it"),
        (waits("w", 12, gpus_per_member=4, topology=5), "its 3 members want a node each, and 2 nodes suit it"),
        (
            waits("w", 16, gpus_per_member=8, topology=1),
            "it asks for 16 GPUs, and the largest island has 8 GPUs",
        ),
        (waits("w", 8, gpus_per_member=8, gpu_memory_mib=10**6), "no node has the GPU model, GPU memory, labels"),
    ],
)
def test_what_no_state_of_the_nodes_has_room_for_is_said_at_once(item: Item, why: str) -> None:
    """In the second line, also while others hold the GPUs; time does not help."""
    said, _ = story(world("2x8", [holds("x", 8), item], 600.0), "w")
    assert said.splitlines()[1].startswith(f"  never starts here as things are: {why}")
    assert "a smaller request, or more nodes or quota; time alone does not" in said


def test_a_limit_below_the_request_is_said_at_once() -> None:
    """Of the queue or one above it."""
    queues = tree(("dept", 0, 6, 0), ("a", 1, -1, 0))
    said, _ = story(world("2x8", [waits("w", 8, gpus_per_member=8, queue=2)], 600.0, queues=queues), "w")
    assert never(said) == ["never starts here as things are: it asks for 8 GPUs, and the limit of queue dept is 6"]


def test_what_others_hold_is_not_never() -> None:
    """Full nodes, or a queue at its limit, are a matter of time; a node out of use may come back."""
    queues = tree(("a", 0, 8, 0))
    work = [holds("x", 8, queue=1), holds("y", 8, queue=1), waits("w", 8, gpus_per_member=8, queue=1)]
    said, _ = story(world("2x8", work, 600.0, queues=queues), "w")
    assert not never(said)
    elastic = waits("w", 32, gpus_per_member=8, min_gpus=8)
    assert not never(story(world("2x8", [holds("x", 16), elastic], 600.0), "w")[0])


def test_a_gap_about_the_workload_is_told() -> None:
    """For example an annotation that is misspelt."""
    seen = world("1x8", [waits("w", 4, gpus_per_member=4)], 600.0)
    reason = "gpu-autopilot.io/preemptable: 'true' is not a field of the contract; did you mean preemptible?"
    said, _ = story(replace(seen, gaps=(Gap("kubernetes", "w", "contract", reason),)), "w")
    assert f"  gap: contract of w: {reason}" in said.splitlines()
