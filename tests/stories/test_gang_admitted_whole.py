"""A gang is admitted whole, at the place that was chosen for it.

Kueue reserves the quota of a Job and asks our AdmissionCheck. The check stays Pending until the whole gang has room.
It then says Ready with a node selector for each pod set, Kueue resumes the Job, and the scheduler finds no other
nodes than those. A gang on several nodes selects a label of its own, which these nodes carry while the gang needs it.
"""

from __future__ import annotations

from collections.abc import Callable

from autopilot.contract.annotations import NUMA_POLICY, PLACEMENT
from autopilot.core.model.snapshot import State
from tests.kits.acting_story import Story


def test_a_gang_waits_until_all_of_it_has_room(begin: Callable[..., Story]) -> None:
    """Two pods of eight GPUs find one free node, wait with their quota, and start together."""
    story = begin()
    story.create("first", lasts="10m")
    story.create("second", namespace="product", lasts="30m")
    story.wait(60.0)
    assert len({*story.hosts("first"), *story.hosts("second", "product")}) == 2
    story.create("gang", pods=2)
    story.wait(120.0)
    assert story.state("gang") == State.PENDING
    assert story.pods("gang") == []
    assert story.check("gang")["state"] == "Pending"
    story.wait(720.0)
    assert story.state("gang") in {State.STARTING, State.RUNNING}
    assert len(story.hosts("gang")) == 2
    assert not {*story.hosts("gang")} & {*story.hosts("second", "product")}
    selector = story.check("gang")["podSetUpdates"][0]["nodeSelector"]
    (label,) = [key for key in selector if key.startswith(PLACEMENT)]
    marked = [each["metadata"]["name"] for each in story.client.list("nodes") if label in each["metadata"]["labels"]]
    assert sorted(marked) == story.hosts("gang")
    assert story.says("gang")["Admitted"] == "True/Admitted"
    assert "AdmitBegun" in story.told("gang")
    assert "AdmitDone" in story.told("gang") or story.took_over
    assert "AdmitGaveUp" not in story.told("gang")


def test_of_equal_nodes_the_one_whose_numa_policy_suits_is_taken(begin: Callable[..., Story]) -> None:
    """A person has labelled the last node, whose kubelet aligns GPUs and CPUs. Pods of half a node start there."""
    story = begin()
    node = max(each["metadata"]["name"] for each in story.client.list("nodes"))
    story.client.patch("nodes", "", node, {"metadata": {"labels": {NUMA_POLICY: "restricted"}}})
    story.create("half", gpus=4)
    story.create("whole", gpus=8)
    story.wait(60.0)
    assert story.hosts("half") == [node]
    assert len(story.hosts("whole")) == 1
    assert story.hosts("whole") != [node]
