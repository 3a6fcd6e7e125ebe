"""Widen a running gang."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from autopilot.core.effects.draft import Draft
from autopilot.core.effects.named import slots_of
from autopilot.core.model.objects import Slot, Victim
from autopilot.core.model.records import Evidence, Proposal
from autopilot.core.model.verb import Change, Operation
from autopilot.core.placement.shapes import Fit
from autopilot.core.planning.context import Context
from autopilot.core.sharing_time.resize_members import ResizeOperation

KIND: Final = "grow"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowChange(Change):
    """A gang with all its GPUs afterwards."""

    slots: tuple[Slot, ...] = field()
    score_terms: tuple[Evidence, ...] = ()
    kind: Literal["grow"] = field(default=KIND, init=False)

    def operation(self, *, fills_gap: bool) -> Operation:
        """It continues on more."""
        return ResizeOperation(slots=self.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowDraft(Draft):
    """Widen a running gang by `fit`."""

    deed: ClassVar[type[Change]] = GrowChange
    kind: ClassVar[str] = KIND
    widens: ClassVar[bool] = True

    fit: Fit

    @property
    def placed(self) -> Fit:
        """The additional members."""
        return self.fit

    def change(self, ctx: Context) -> Change:
        """It keeps its GPUs and gains more."""
        whole = ctx.whatif.layout_of(self.row).joined(self.fit.layout)
        return GrowChange(slots=slots_of(ctx, whole), score_terms=self.fit.terms)

    def stand(self, ctx: Context, proposal: Proposal, *, accepted: bool) -> tuple[Victim, ...]:
        """The gang has the additional members too."""
        ctx.whatif.move(self.row, ctx.whatif.layout_of(self.row).joined(self.fit.layout))
        ctx.quota.book(self.row, self.fit.layout)
        return ()
