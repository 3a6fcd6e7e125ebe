"""The shipped controller in a hostile world: nothing unsafe is sent, and everything feasible runs once it is quiet."""

from __future__ import annotations

from hypothesis import settings

from tests.hostile.cut_machine import HostileCuts
from tests.hostile.machine import Hostile

TestHostile = Hostile.TestCase
TestHostile.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)

TestHostileCuts = HostileCuts.TestCase
TestHostileCuts.settings = settings(max_examples=25, stateful_step_count=50, deadline=None)
"""The same with changes of MIG geometry and idle work; hours pass in it, so that a run takes longer."""
