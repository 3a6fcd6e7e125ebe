"""A node is lost, and its gang goes on elsewhere as a whole.

The gang fails with the node. Kueue gives its quota back, the check is Pending again, and the autopilot admits it on
nodes that work. It waits as a whole where there are too few of them.
"""

from __future__ import annotations

from collections.abc import Callable

from autopilot.core.model.snapshot import State
from tests.kits.acting_story import Story


def test_a_gang_moves_away_from_a_lost_node(begin: Callable[..., Story]) -> None:
    """From the nodes of the gang one goes; the gang runs on the two others soon after."""
    story = begin()
    story.create("gang", pods=2, lasts="2h", checkpoint_interval_s="600")
    story.wait(1800.0)
    (lost, kept) = story.hosts("gang")
    story.lose(lost)
    story.wait(120.0)
    ready = {
        each["type"]: each["status"] for each in (story.client.get("nodes", "", lost) or {})["status"]["conditions"]
    }
    assert ready["Ready"] == "Unknown"
    assert story.state("gang") in {State.STARTING, State.RUNNING}
    assert kept in story.hosts("gang")
    assert lost not in story.hosts("gang")
    assert story.lost_gpu_s("gang") <= 16 * 600.0
    assert story.workload("gang")["status"]["schedulingStats"]["evictions"][0]["count"] == 1
