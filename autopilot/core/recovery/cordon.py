"""Keep every scheduler off a node, or end that. Work on it is left alone, and so is the cordon of others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from autopilot.core.model.objects import Subject, SubjectKind
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.model.verb import Deed, World

KIND: Final = "cordon"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon(Deed):
    """Close a node to every scheduler, or open it again."""

    about: ClassVar[SubjectKind] = SubjectKind.NODE
    planned_anew: ClassVar[bool] = True

    on: bool
    reason: str  # for people
    kind: Literal["cordon"] = field(default=KIND, init=False)

    @property
    def wish(self) -> str:
        """To close a node and to open it are two wishes."""
        return "cordon" if self.on else "uncordon"

    @property
    def closes(self) -> bool:
        """A closed node stays closed until the controller opens it."""
        return self.on

    def shown(self, row: int, snapshot: ClusterSnapshot) -> str:
        """The direction: close or open."""
        return f"|{self.wish}"

    def seen(self, subject: Subject, world: World) -> bool:
        """The node is closed or open as it asks, or gone."""
        nodes = world.snapshot.nodes
        return bool((nodes.cordoned[nodes.id == subject.uid] == self.on).all())
