"""Short work uses the GPUs that a waiting gang cannot use.

Eight GPUs are free, four on each of two nodes, and a gang needs a whole node. Under the rules of Kueue's cohorts it
waits without holding room. Work that fits into the gaps starts there, with the placement that the autopilot chose,
and has ended when a node is free for the gang.
"""

from __future__ import annotations

from collections.abc import Callable

from autopilot.core.model.snapshot import State
from tests.kits.acting_story import Story


def test_short_work_starts_in_the_gaps_before_a_gang(begin: Callable[..., Story]) -> None:
    """The gang starts as soon as the work in its way has ended, as if the short one had never been there."""
    story = begin(nodes=2)
    for name, lasts in (("a1", "30m"), ("a2", "5m"), ("b1", "40m"), ("b2", "5m")):
        story.create(name, gpus=4, lasts=lasts, preemptible="false")
        story.wait(30.0)
    story.wait(400.0)
    story.create("gang", gpus=8, lasts="30m")
    story.wait(60.0)
    assert story.state("gang") == State.PENDING
    story.create("short", gpus=4, lasts="5m")
    story.wait(60.0)
    assert story.state("short") in {State.STARTING, State.RUNNING}
    assert story.state("gang") == State.PENDING
    story.wait(1800.0)
    assert story.state("short") == State.SUCCEEDED
    assert story.state("gang") in {State.STARTING, State.RUNNING}
    free_s = story.cluster.end_s[story.row("a1")]
    assert story.cluster.start_s[story.row("gang")] - free_s < 60.0
