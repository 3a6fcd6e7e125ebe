"""Go on with other members: an instruction to a growing gang, or to a shrinking victim."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from autopilot.core.model.objects import Slot
from autopilot.core.model.stops import StopReason
from autopilot.core.model.verb import Operation

KIND: Final = "resize"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeOperation(Operation):
    """Continue on exactly `slots`."""

    continues: ClassVar[bool] = True

    slots: tuple[Slot, ...] = field()
    reason: StopReason | None = None  # why it shrinks; None: it grows
    kind: Literal["resize"] = field(default=KIND, init=False)

    @property
    def takes(self) -> StopReason | None:
        """The members given up by a gang."""
        return self.reason

    @property
    def needs_room(self) -> bool:
        """It grows."""
        return self.reason is None

    def told(self, place: str) -> str:
        """The GPUs kept."""
        return f"go on with {place}"
