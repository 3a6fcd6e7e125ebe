"""Promise a start to a gang that does not fit yet. A reservation lives in memory; nothing is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from autopilot.core.effects.draft import WaitingDraft
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.model.verb import Change
from autopilot.core.planning.context import Context
from autopilot.core.planning.shown import shown_nodes, shown_whole

KIND: Final = "reserve"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveChange(Change):
    """The promised start."""

    only_holds: ClassVar[bool] = True
    uncapped: ClassVar[bool] = True
    unsent: ClassVar[bool] = True

    start_s: float = field()
    kind: Literal["reserve"] = field(default=KIND, init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveDraft(WaitingDraft):
    """Hold room on `nodes` for a gang."""

    deed: ClassVar[type[Change]] = ReserveChange
    kind: ClassVar[str] = KIND

    start_s: float  # the promised start
    nodes: tuple[str, ...]  # on which room is held

    def change(self, ctx: Context) -> Change:
        """The promise."""
        return ReserveChange(start_s=self.start_s)

    def shown(self, change: Change, snapshot: ClusterSnapshot) -> str:
        """The nodes."""
        return shown_whole(change, contract=self.contract) + shown_nodes(self.nodes)
