"""The story of work that holds GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kits.core_world import AUTO, decide, holds, world
from tests.kits.story_kit import lines, story, tree


def test_running_work_says_where_until_when_and_what_stopping_it_would_lose() -> None:
    """With its queue's numbers, as it could be taken from."""
    work = [holds("r", 8, queue=2, last_checkpoint_s=540.0)]
    queues = tree(("a", 0, -1, 4), ("b", 0, -1, 4))
    said, _ = story(world("2x8", work, 600.0, queues=queues, total_s={"r": 3600.0}), "r")
    assert "holds node-0 x 8 (8 of 8) for 10 min" in said
    assert "ends in 50 min by forecast (quantile 0.5 of its run time)" in said
    assert "may be displaced; stopping it now would lose 0.133 GPU-h" in said
    assert "queue b: uses 8 GPUs, guarantee 4, limit none, fair share 8" in said


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"limit_s": 3600.0}, "ends in 50 min at the latest, by its time limit; no forecast of its run time"),
        ({}, "its end is unknown: no forecast, no time limit"),
    ],
)
def test_a_time_limit_is_not_told_as_a_forecast(limit: dict[str, Any], words: str) -> None:
    """Without a forecast the limit ends it; without a limit the end is not known."""
    said, _ = story(world("1x8", [holds("r", 8, **limit)], 600.0), "r")
    assert words in said


def test_what_shelters_running_work_is_told() -> None:
    """Its promised run time and its word."""
    said, _ = story(world("1x8", [holds("r", 8, preemptible=False)], 60.0), "r", AUTO)
    assert "sheltered: it may not be preempted, its promised run time ends in 14 min" in said


def test_how_far_the_protection_of_running_work_goes_is_told() -> None:
    """Above the guarantee of its queue until the owner returns; declared late, as long as its place is not needed."""
    borrows = [holds("r", 8, queue=2, excluded=True), holds("s", 4, queue=1, preemptible=False)]
    queues = tree(("a", 0, -1, 8), ("b", 0, -1, 4))
    said, _ = story(world("2x8", borrows, 6000.0, queues=queues), "r", AUTO)
    assert lines(said, "sheltered: it opted out; that holds until the owner of these GPUs returns")
    inside, _ = story(world("2x8", borrows, 6000.0, queues=queues), "s", AUTO)
    assert lines(inside, "sheltered: it may not be preempted; stopping it now")
    before = decide(world("2x8", [holds("s", 4, queue=1)], 5990.0, queues=queues), AUTO)
    late, _ = story(world("2x8", borrows[1:], 6000.0, queues=queues, tick=1), "s", AUTO, memory=before.memory)
    assert "sheltered: it may not be preempted; it was declared protected while it ran: until its next start it" in late
    above = world("2x8", [holds("g", 8, queue=2, preemptible=False)], 6000.0, queues=queues, tick=1)
    before = decide(world("2x8", [holds("g", 8, queue=2)], 5990.0, queues=queues), AUTO)
    both, _ = story(above, "g", AUTO, memory=before.memory)
    assert "above the guarantee of its queue, and it was declared while it ran" in both
    assert "note: what g declares protects it until the owner of its GPUs returns" in both
    seen = decide(world("2x8", [], 5990.0, queues=queues), AUTO).memory
    assert "above the guarantee of its queue since its start" in story(above, "g", AUTO, memory=seen)[0]
