"""On the playground, a node is cut anew for work that waits for larger instances.

All GPUs of a node are cut into seven small instances each, and nothing uses them. A Job asks for half a GPU, and no
node offers that. The autopilot cordons the node, writes the geometry into its ConfigMap, and sets the label of the MIG
manager. The simulated GPUs change, the node offers nothing meanwhile, and then the Job starts on what is new.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actuators.kubernetes.mig_node import CONFIG, STATE
from autopilot.core.model.policy import Policy
from autopilot.core.model.snapshot import State
from tests.kits.acting_story import PRODUCT, Story
from tests.kits.core_world import with_policy
from tests.kits.playground_acting import policy_of

Obj = dict[str, Any]
WHOLE, SMALL, HALF = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
SEVEN = "{gpus_per_node: 8, geometry: {1g.10gb: 7}}"
CUT = f"    - {{name: cut, nodes: 1, gpus_per_node: 8, gpu_model: H100-80GB, mig: [{SEVEN}]}}"
NODE = "cut-000"


def policy() -> Policy:
    """The policy for NVIDIA's MIG manager; a GPU may be cut again after a minute."""
    return with_policy(policy_of(), regeometry={"dwell_s": 60.0})


def node(story: Story) -> Obj:
    """The node that can be cut."""
    found = story.client.get("nodes", "", NODE)
    assert found is not None
    return found


def labels(story: Story) -> dict[str, str]:
    """Its labels."""
    found: dict[str, str] = node(story)["metadata"]["labels"]
    return found


def offers(story: Story) -> dict[str, str]:
    """What of its GPUs can be allocated."""
    amounts = node(story)["status"]["allocatable"]
    return {key: each for key, each in amounts.items() if key.startswith("nvidia.com/") and each != "0"}


def until(story: Story, done: Callable[[], object], within_s: float = 900.0, step_s: float = 10.0) -> None:
    """Time passes until something is so."""
    end_s = story.run.now_s + within_s
    while not done():
        assert story.run.now_s < end_s, (labels(story), story.actions, story.run.bad)
        story.wait(step_s)


def begun(begin: Callable[..., Story], **more: str) -> Story:
    """A node of whole GPUs that are in use, and a node of small instances."""
    story = begin(nodes=1, pools=CUT, policy=policy(), **more)
    story.create("busy", namespace=PRODUCT, gpus=8, lasts="6h")
    story.wait(120.0)
    return story


def test_a_node_is_cut_for_a_job_that_waits(begin: Callable[..., Story]) -> None:
    """Cordon, label, pending, success, uncordon; then the Job runs on what the node offers now."""
    story = begun(begin)
    assert offers(story) == {SMALL: "56"}
    story.create("half", gpus=1, resource=HALF)
    until(story, lambda: labels(story).get(STATE) == "pending")
    assert node(story)["spec"]["unschedulable"]
    assert offers(story) == {}
    assert story.measured(NODE) == set()
    until(story, lambda: story.state("half") in {State.STARTING, State.RUNNING})
    assert labels(story)[STATE] == "success"
    assert labels(story)[CONFIG].startswith("gpu-autopilot-")
    assert offers(story) == {SMALL: "52", HALF: "1"}
    assert "unschedulable" not in node(story)["spec"]
    assert story.hosts("half") == [NODE]
    assert story.run.bad == []


FAILS = "faults: {recut_failure_ratio: 1.0, recut_repair: 60m}"


def test_a_node_whose_change_fails_is_left_alone_until_its_repair(begin: Callable[..., Story]) -> None:
    """The label goes back, the node is open, its GPUs are in quarantine, and nothing is cut meanwhile. After the repair
    the manager makes what the label says: the geometry of before.
    """
    story = begun(begin, faults=FAILS)
    story.create("half", gpus=1, resource=HALF)
    until(story, lambda: labels(story).get(STATE) == "failed")
    story.wait(60.0)
    assert labels(story)[CONFIG] == "all-1g.10gb"
    assert labels(story)[STATE] == "failed"
    assert "unschedulable" not in node(story)["spec"]
    assert [each.reason for each in story.run.bad] == [
        "the MIG manager reports that it failed; its node is asked to return to all-1g.10gb"
    ]
    assert {each.state for each in story.run.controller.memory.geometry.recuts.values()} == {"quarantined"}
    before = story.actions["regeometry"]
    story.wait(300.0)
    assert story.actions["regeometry"] == before
    until(story, lambda: labels(story)[STATE] != "failed", within_s=7200.0, step_s=120.0)
    until(story, lambda: labels(story)[STATE] == "success")
    assert offers(story) == {SMALL: "56"}


def test_a_node_leaves_mig_mode_for_a_gang(begin: Callable[..., Story]) -> None:
    """The GPUs that the gang lacks become whole in one change, and it starts on them."""
    story = begun(begin)
    story.create("gang", gpus=2)
    story.wait(10.0)
    until(story, lambda: story.state("gang") in {State.STARTING, State.RUNNING})
    assert offers(story) == {WHOLE: "2", SMALL: "42"}
    assert story.hosts("gang") == [NODE]
    assert story.run.bad == []
