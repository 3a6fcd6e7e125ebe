"""The API server is away for ten minutes: what runs goes on, nothing is decided blindly, and work starts afterwards.

The view of the controller ages. A view that is not fresh freezes decisions, so no instruction leaves. When the server
answers again, the lists are read anew, and what waited is admitted.

Worse is a server whose watches go on while each other answer is lost: the view stays fresh, starts are decided, and
none of them can be followed. They do not count as failed, and all of it starts when the server answers again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apiserver.http.faults import QUIET, FaultPlan
from autopilot.core.model.snapshot import State
from tests.kits.acting_story import Story
from tests.kits.deciding_kit import Deciding
from tests.kits.kueue_kit import JOBS
from tests.kits.playground_acting import policy_of

DOWN, LOSES_ANSWERS = FaultPlan(error=1.0), FaultPlan(dropped=1.0)
BEFORE, MEANWHILE = ("before-0", "before-1"), tuple(f"meanwhile-{number}" for number in range(5))


def open_cluster(folder: Path, kind: Callable[..., Deciding] = Deciding) -> Deciding:
    """Three nodes of eight GPUs, and the autopilot in charge of their queue."""
    return kind(folder, policy_of())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Deciding]:
    """That cluster."""
    found = open_cluster(tmp_path)
    yield found
    found.close()


def test_an_outage_harms_nothing(begin: Callable[..., Story]) -> None:
    """A Job that is created in the outage starts when it is over."""
    story = begin()
    story.create("before", lasts="3h")
    story.wait(60.0)
    story.run.faults.plan = DOWN
    story.create("meanwhile", lasts="30m")
    story.pass_by(600.0)
    story.run.tick()
    assert story.state("before") == State.RUNNING
    assert story.state("meanwhile") == State.PENDING
    story.run.faults.plan = QUIET
    story.wait(180.0)
    assert story.state("meanwhile") in {State.STARTING, State.RUNNING}
    assert story.cluster.evictions[story.row("before")] == 0


def test_starts_that_cannot_be_followed_do_not_fail(cluster: Deciding) -> None:
    """Two are under way when answers begin to be lost, and five are decided afterwards."""
    for name in BEFORE:
        cluster.ask("POST", JOBS, cluster.kueue.job_of(name, "a", 2))
    cluster.until(lambda: cluster.actions["admit_gang"] >= len(BEFORE))
    cluster.wire_faults.plan = LOSES_ANSWERS
    for name in MEANWHILE:
        cluster.ask("POST", JOBS, cluster.kueue.job_of(name, "a", 2))
    for _ in range(10):
        cluster.wait(60.0)
        assert cluster.failures == 0
        assert cluster.attempts <= 1
    assert cluster.actions["admit_gang"] == len(BEFORE) + len(MEANWHILE)
    assert not any(cluster.hosts(name) for name in MEANWHILE)

    cluster.wire_faults.plan = QUIET
    cluster.wait(90.0)
    assert [len(cluster.hosts(name)) for name in (*BEFORE, *MEANWHILE)] == [1] * 7
    assert cluster.failures == 0
