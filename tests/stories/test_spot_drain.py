"""The cloud takes a spot node back, and its work leaves before that.

The notice comes two minutes ahead. The autopilot evicts the work of the node, which saves in its grace, and starts it
on a node that stays. When the node goes, nothing runs there.
"""

from __future__ import annotations

from collections.abc import Callable

from autopilot.core.model.snapshot import State
from tests.kits.acting_story import Story

SPOT = "    - {name: spot, nodes: 1, gpus_per_node: 8, gpu_model: H100-80GB, spot: true}"


def test_work_leaves_a_spot_node_in_time(begin: Callable[..., Story]) -> None:
    """It saves, and goes on elsewhere; nothing is lost."""
    story = begin(nodes=1, pools=SPOT, faults="faults: {spot_at: 30m, spot_notice: 2m, spot_away: 30m}")
    story.create("first", lasts="20m")
    story.wait(30.0)
    story.create("second", lasts="3h", checkpoint_on_request="true", checkpoint_write_s="20")
    story.wait(1700.0)
    spot = next(each for each in story.run.stage.projection.nodes.names if each.startswith("spot"))
    if story.hosts("second") != [spot]:
        assert story.hosts("second") == ["main-000"]
        return
    story.wait(300.0)
    assert story.hosts("second") == ["main-000"]
    assert story.state("second") in {State.STARTING, State.RUNNING}
    assert story.lost_gpu_s("second") == 0.0
