"""The API server is away for ten minutes: what runs goes on, nothing is decided blindly, and work starts afterwards.

The view of the controller ages. A view that is not fresh freezes decisions, so no instruction leaves. When the server
answers again, the lists are read anew, and what waited is admitted.
"""

from __future__ import annotations

from collections.abc import Callable

from apiserver.http.faults import QUIET, FaultPlan
from autopilot.core.model.snapshot import State
from tests.kits.acting_story import Story

DOWN = FaultPlan(error=1.0)


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
