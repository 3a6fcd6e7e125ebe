"""Offer an idle node back, or take that back. Nothing else happens to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from autopilot.core.model.objects import Subject, SubjectKind
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.model.verb import Deed, World

KIND: Final = "offer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer(Deed):
    """Mark an idle node as removable, or end that."""

    about: ClassVar[SubjectKind] = SubjectKind.NODE
    planned_anew: ClassVar[bool] = True

    on: bool
    reason: str  # for people
    kind: Literal["offer"] = field(default=KIND, init=False)

    @property
    def wish(self) -> str:
        """To offer a node and to take it back are two wishes."""
        return "offer" if self.on else "keep"

    @property
    def offers(self) -> bool:
        """An offer stands until it is taken back."""
        return self.on

    def shown(self, row: int, snapshot: ClusterSnapshot) -> str:
        """The node goes or stays; approvals of earlier versions have these words."""
        return "|cordon" if self.on else "|uncordon"

    def seen(self, subject: Subject, world: World) -> bool:
        """No view shows it; its actuator reports it."""
        return False
