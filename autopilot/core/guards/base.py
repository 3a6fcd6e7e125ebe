"""The interface of guards: a guard answers on every proposal, and only reads."""

from __future__ import annotations

from collections.abc import Callable

from autopilot.core.model.records import Code, Proposal, Verdict
from autopilot.core.planning.context import Context
from autopilot.core.planning.draft import Draft

Check = Callable[[Proposal, Draft, Context], Verdict]
"""A guard: the proposal as people see it, its rows, and the tick's context."""


def allow(guard: str, value: float, unit: str, threshold: float) -> Verdict:
    """A verdict in favour, with the number behind it."""
    return Verdict(guard, True, Code.OK, value, unit, threshold)


def deny(guard: str, code: Code, value: float, unit: str, threshold: float) -> Verdict:
    """A verdict against."""
    return Verdict(guard, False, code, value, unit, threshold)


def waive(guard: str, value: float, unit: str, threshold: float) -> Verdict:
    """The rule does not bind an eviction by contract; the number is recorded nevertheless."""
    return Verdict(guard, True, Code.WAIVED_CONTRACT, value, unit, threshold)
