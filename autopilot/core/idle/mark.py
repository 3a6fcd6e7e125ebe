"""Mark idle work as open to suspension. The mark lives in memory; nothing is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from autopilot.core.model.verb import Change

KIND: Final = "mark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark(Change):
    """A mark on a workload, in memory."""

    marks: ClassVar[bool] = True
    unsent: ClassVar[bool] = True

    kind: Literal["mark"] = field(default=KIND, init=False)
