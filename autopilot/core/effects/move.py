"""Move running gangs so that their GPUs become usable together: each stops, and continues in another place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from autopilot.core.effects.draft import Draft, Eviction, Gain, Outlook
from autopilot.core.effects.named import victims_of
from autopilot.core.effects.taking import make_room
from autopilot.core.model.objects import Victim
from autopilot.core.model.promises import Unknown
from autopilot.core.model.records import Proposal
from autopilot.core.model.verb import Change
from autopilot.core.planning.context import Context

KIND: Final = "move"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveChange(Change):
    """The moving gangs with their new places."""

    victims: tuple[Victim, ...] = field()
    kind: Literal["move"] = field(default=KIND, init=False)

    @property
    def waits_for_victims(self) -> bool:
        """Each continues after it has stopped."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveDraft(Draft):
    """Move running gangs, `row` first, to make `cleared_gpus` usable together."""

    deed: ClassVar[type[Change]] = MoveChange
    kind: ClassVar[str] = KIND

    moves: tuple[Eviction, ...]
    cleared_gpus: int

    @property
    def taken(self) -> tuple[Eviction, ...]:
        """The moving gangs."""
        return self.moves

    @property
    def gained_gpus(self) -> int:
        """GPUs that become usable together."""
        return self.cleared_gpus

    def change(self, ctx: Context) -> Change:
        """The gangs and their new places."""
        return MoveChange(victims=victims_of(self, ctx))

    def stand(self, ctx: Context, proposal: Proposal, *, accepted: bool) -> tuple[Victim, ...]:
        """The gangs take their new places."""
        return make_room(self, ctx)

    def gains(self, outlook: Outlook) -> tuple[list[Gain], str]:
        """No named work gains."""
        return [], Unknown.NOBODY
