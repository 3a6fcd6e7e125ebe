"""The shipped controller in a hostile world: nothing unsafe is sent, and everything feasible runs once it is quiet.

A few runs of 50 steps; `make soak` has 10,000.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

from autopilot.core.model.records import CommandKind
from tests.hostile.cut_machine import HostileCuts
from tests.hostile.machine import Hostile
from tests.kits.tries import tries

TestHostile = pytest.mark.seeds(500)(Hostile.TestCase)
TestHostile.settings = settings(max_examples=tries(10, soak=20), stateful_step_count=50, deadline=None)

TestHostileCuts = pytest.mark.seeds(200)(HostileCuts.TestCase)
TestHostileCuts.settings = settings(max_examples=tries(4, soak=5), stateful_step_count=50, deadline=None)
"""The same with changes of MIG geometry and idle work; hours pass in it, so that a run takes longer."""


def test_a_pause_outlives_the_process_that_took_it() -> None:
    """The process dies before it has saved what it was told: the next one is told again, as by the real inboxes."""
    world = Hostile()
    world.ports.crash = "save"
    world._command(CommandKind.PAUSE)
    world._tick()
    assert not world.controller.memory.halt.paused_reason
    world._tick()
    assert "anna" in world.controller.memory.halt.paused_reason
