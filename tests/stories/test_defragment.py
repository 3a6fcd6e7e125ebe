"""A move makes room for a gang that would fit if the free GPUs were on one node.

Half of each of two nodes is free. A pod that needs a whole node waits although eight GPUs are free. The autopilot
moves one of the narrow jobs: its check says Retry, its quota comes back, and the check says Ready with the other
node.
"""

from __future__ import annotations

from collections.abc import Callable

from autopilot.core.model.snapshot import State
from tests.kits.acting_story import Story


def test_narrow_work_moves_together_for_a_wide_gang(begin: Callable[..., Story]) -> None:
    """The narrow jobs share a node afterwards, and have lost nothing."""
    story = begin(nodes=2)
    for name, lasts in (("a1", "4h"), ("a2", "12m"), ("b1", "4h"), ("b2", "12m")):
        story.create(
            name, gpus=4, lasts=lasts, preemptible="true", checkpoint_on_request="true", checkpoint_write_s="20"
        )
        story.wait(30.0)
    story.wait(1200.0)
    assert story.hosts("a1") != story.hosts("b1")
    story.create("wide", gpus=8, lasts="30m", preemptible="true")
    story.wait(240.0)
    assert story.actions["defragment"] == 1, story.actions
    assert story.state("wide") in {State.STARTING, State.RUNNING}
    assert story.hosts("a1") == story.hosts("b1") != story.hosts("wide")
    moved = [name for name in ("a1", "b1") if story.cluster.evictions[story.row(name)]]
    assert len(moved) == 1
    assert story.lost_gpu_s(moved[0]) == 0.0
    accounts = story.run.stage.simulation.accounts
    assert (accounts.migrations, accounts.preemptions) == (1, 0)
