"""The form of an action: one object, defined in the file of the action, listed in the table `ACTIONS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autopilot.core.effects.draft import Case, NoteCase, Propose
from autopilot.core.model.modes import Mode
from autopilot.core.model.policy import Policy
from autopilot.core.planning.context import Context


@dataclass(frozen=True, slots=True)
class Action:
    """An action: its purpose, its proposing function, and every case of its proposals and notes."""

    name: str
    about: str  # one clause, for the report
    propose: Propose
    cases: tuple[Case, ...] = ()
    notes: tuple[NoteCase, ...] = ()
    explains_waiting: bool = False  # it runs also when its mode is off: it says why each gang waits
    displaces: bool = False  # it starts gangs that wait on GPUs of running work: for approved gangs first
    # times at which it wants to be asked again, whatever its mode; None where it appends to `Context.wake_s`, or none
    timers: Callable[[Context], list[float]] | None = None

    def mode(self, policy: Policy) -> Mode:
        """Its mode; an action without one is on."""
        mode: Mode = getattr(policy.modes, self.name, Mode.AUTO)
        return mode


Cases = Mapping[tuple[str, str, str], Case]
"""Cases by action, kind and reason, as records name them."""


def cases_of(actions: Sequence[Action]) -> Cases:
    """Every case of a table of actions."""
    return {case.key: case for action in actions for case in action.cases}
