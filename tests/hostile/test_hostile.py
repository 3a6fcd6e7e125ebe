"""The shipped controller in a hostile world: nothing unsafe is sent, and everything feasible runs once it is quiet."""

from __future__ import annotations

from hypothesis import settings

from tests.hostile.machine import Hostile

TestHostile = Hostile.TestCase
TestHostile.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
