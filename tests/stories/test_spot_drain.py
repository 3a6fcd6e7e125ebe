"""The cloud takes a spot node back, and its work leaves before that.

The notice comes two minutes ahead. The autopilot evicts the work of the node, which saves in its grace, and starts it
on a node that stays. When the node goes, nothing runs there.
"""

from __future__ import annotations

from autopilot.core.model.snapshot import State
from tests.kits.acting_story import Begin
from tests.kits.core_world import with_policy
from tests.kits.playground_acting import policy_of

SPOT = "    - {name: spot, nodes: 1, gpus_per_node: 8, gpu_model: H100-80GB, spot: true}"


def test_work_leaves_a_spot_node_in_time(begin: Begin) -> None:
    """It saves, and goes on elsewhere; nothing is lost. Where pods are stopped late, it has to leave earlier."""
    late_s, policy = begin.standing.late_s, policy_of()
    margin_s = policy.recovery.notice_margin_s + late_s
    story = begin(
        nodes=1,
        pools=SPOT,
        faults=f"faults: {{spot_at: 30m, spot_notice: {120.0 + late_s:g}s, spot_away: 30m}}",
        policy=with_policy(policy, recovery={"notice_margin_s": margin_s}),
    )
    for name in ("one", "two"):
        story.create(name, lasts="3h", checkpoint_on_request="true", checkpoint_write_s="20")
    story.wait(1200.0)
    (spot,) = [each for each in story.run.stage.projection.nodes.names if each.startswith("spot")]
    there, other = ("one", "two") if story.hosts("one") == [spot] else ("two", "one")
    assert (story.hosts(there), story.hosts(other)) == ([spot], ["main-000"])
    story.delete(other)
    story.wait(840.0)
    assert story.hosts(there) == ["main-000"]
    assert story.state(there) in {State.STARTING, State.RUNNING}
    assert story.lost_gpu_s(there) == 0.0
    assert story.actions["recover"] == 1, story.actions
