"""A tenant that does not use Kueue, beside one that does: the autopilot starts the work of both, on the same nodes.

The Jobs of the one wait for their quota, for our gate and our check. Those of the other are in no queue: they are
suspended, with our label, and the autopilot resumes each with its place.
"""

from __future__ import annotations

from collections.abc import Callable

from autopilot.core.model.snapshot import State
from tests.kits.acting_story import JOBS, PRODUCT, RESEARCH, Story

RUNS = {State.STARTING, State.RUNNING}


def test_both_kinds_of_work_share_the_nodes(begin: Callable[..., Story]) -> None:
    """The gang in no queue waits for two free nodes, and starts whole when the work of Kueue has ended."""
    story = begin(without=(RESEARCH,))
    for name in ("one", "two"):
        story.create(name, namespace=PRODUCT, lasts="10m")
    story.wait(60.0)
    story.leave("gang", pods=2)
    story.wait(120.0)
    assert {story.state(name, PRODUCT) for name in ("one", "two")} <= RUNS
    assert story.state("gang") == State.PENDING
    assert story.pods("gang") == []
    story.wait(900.0)
    assert story.state("gang") in RUNS
    assert len(story.hosts("gang")) == 2
    assert story.client.list("workloads.kueue.x-k8s.io", RESEARCH) == []
    assert "AdmitBegun" in story.told("gang")


def test_work_whose_node_is_lost_is_stopped_and_starts_elsewhere(begin: Callable[..., Story]) -> None:
    """Its own Job controller would wait for the lost node."""
    story = begin(without=(RESEARCH,))
    story.leave("work")
    story.wait(120.0)
    (before,) = story.hosts("work")
    story.lose(before)
    story.wait(600.0)
    assert story.state("work") in RUNS
    (after,) = story.hosts("work")
    assert after != before


def test_a_job_without_the_label_is_left_alone(begin: Callable[..., Story]) -> None:
    """Its owner suspended it."""
    story = begin(without=(RESEARCH,))
    story.leave("ours")
    story.leave("theirs")
    story.client.patch(JOBS, RESEARCH, "theirs", {"metadata": {"labels": {"gpu-autopilot.io/manage": None}}})
    story.wait(120.0)
    assert story.state("ours") in RUNS
    assert story.state("theirs") == State.PENDING
