"""Start a gang once its victims, and others that leave already, are gone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from autopilot.core.effects.draft import Eviction, Gain, Outlook, WaitingDraft
from autopilot.core.effects.named import slots_of, victims_of
from autopilot.core.effects.scrubbing import to_scrub
from autopilot.core.effects.side_effects import passed, side_effects
from autopilot.core.effects.taking import make_room, start_on
from autopilot.core.model.objects import Scrub, SideEffect, Slot, Victim
from autopilot.core.model.records import Evidence, Proposal
from autopilot.core.model.verb import START, Change
from autopilot.core.placement.shapes import Fit
from autopilot.core.planning.context import Context

KIND: Final = "pipeline"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineChange(Change):
    """The start of a gang, with the work that leaves for it."""

    brings_itself: ClassVar[bool] = True
    unsent: ClassVar[bool] = True

    slots: tuple[Slot, ...] = field()
    victims: tuple[Victim, ...] = field()
    score_terms: tuple[Evidence, ...] = ()
    side_effects: tuple[SideEffect, ...] = ()
    scrub: Scrub | None = None
    kind: Literal["pipeline"] = field(default=KIND, init=False)

    @property
    def wish(self) -> str:
        """With or without victims, the gang starts."""
        return START

    @property
    def waits_for_victims(self) -> bool:
        """The gang starts after they have left."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDraft(WaitingDraft):
    """Start a gang on `fit` once victims have left."""

    deed: ClassVar[type[Change]] = PipelineChange
    kind: ClassVar[str] = KIND

    fit: Fit
    evictions: tuple[Eviction, ...]
    needed_gpus: int | None = None  # of all gangs that start on what is taken; None: this one alone

    @property
    def placed(self) -> Fit:
        """Place of the start."""
        return self.fit

    @property
    def taken(self) -> tuple[Eviction, ...]:
        """The evictions of its victims."""
        return self.evictions

    @property
    def gained_gpus(self) -> int | None:
        """GPUs of all gangs that start there, if several do."""
        return self.needed_gpus

    def change(self, ctx: Context) -> Change:
        """The start, its victims, and the losses of waiting work to it."""
        layout, victims = self.fit.layout, victims_of(self, ctx)
        effects = side_effects(ctx, self.row, layout, self.taken) + passed(ctx, self.action, self.row, layout)
        return PipelineChange(
            slots=slots_of(ctx, layout),
            victims=victims,
            score_terms=self.fit.terms,
            side_effects=effects,
            scrub=to_scrub(ctx, self.row, layout),
        )

    def stand(self, ctx: Context, proposal: Proposal, *, accepted: bool) -> tuple[Victim, ...]:
        """The victims leave, and the gang takes its place."""
        waits = make_room(self, ctx, (self.fit.layout,))
        start_on(ctx, self.row, self.fit.layout, proposal)
        return waits

    def gains(self, outlook: Outlook) -> tuple[list[Gain], str] | None:
        """The use of the gang before its start without this draft."""
        return outlook.of_start(self.row, self.fit.layout) if self.victims else None
