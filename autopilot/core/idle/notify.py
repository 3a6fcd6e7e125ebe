"""Notify the owner of running work that it does nothing. It is done when the owner has the notice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from autopilot.core.model.units import format_duration
from autopilot.core.model.verb import Deed

KIND: Final = "notify"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify(Deed):
    """A notice to the owner of a workload."""

    leaves_alone: ClassVar[bool] = True
    notifies: ClassVar[bool] = True

    gpus: float  # that it holds
    idle_s: float  # for how long it has done nothing
    grace_s: float = field()  # before the next step
    kind: Literal["notify"] = field(default=KIND, init=False)

    def told(self, place: str) -> str:
        """The words for its owner."""
        idle, grace = format_duration(self.idle_s), format_duration(self.grace_s)
        return f"notify its owner: nothing done for {idle}, grace {grace}"
