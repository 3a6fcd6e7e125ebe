"""Start a gang now, on free GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Literal

from autopilot.core.effects.draft import WaitingDraft
from autopilot.core.effects.named import slots_of
from autopilot.core.effects.scrubbing import to_scrub
from autopilot.core.effects.side_effects import passed, side_effects
from autopilot.core.effects.taking import start_on
from autopilot.core.model.identity import shape_digest
from autopilot.core.model.objects import Scrub, SideEffect, Slot, Subject, Taken, Victim
from autopilot.core.model.records import Evidence, Proposal
from autopilot.core.model.snapshot import ClusterSnapshot, State
from autopilot.core.model.verb import START, Change, Operation, World
from autopilot.core.placement.shapes import Fit
from autopilot.core.planning.context import Context
from autopilot.core.planning.shown import shown_amount, shown_sides

KIND: Final = "admit"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmitChange(Change):
    """The start of a gang."""

    starts_now: ClassVar[bool] = True

    slots: tuple[Slot, ...] = field()
    score_terms: tuple[Evidence, ...] = ()
    side_effects: tuple[SideEffect, ...] = ()
    scrub: Scrub | None = None
    kind: Literal["admit"] = field(default=KIND, init=False)

    @property
    def wish(self) -> str:
        """With or without victims, the gang starts."""
        return START

    def operation(self, *, fills_gap: bool) -> Operation:
        """The start."""
        quota = quota_from(self.side_effects)
        return AdmitOperation(slots=self.slots, backfill=fills_gap, quota_from=quota, scrub=self.scrub)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmitOperation(Operation):
    """Start a workload."""

    starts_now: ClassVar[bool] = True

    slots: tuple[Slot, ...] = field()
    backfill: bool = False  # it leaves when a reservation is due
    moved: bool = False  # it was stopped to start here
    quota_from: Mapping[str, str] = field(default_factory=dict)  # waiting work whose quota it may take: names by uid
    scrub: Scrub | None = None
    kind: Literal["admit"] = field(default=KIND, init=False)

    @property
    def needs_room(self) -> bool:
        """It starts."""
        return True

    def at_last(self, effects: Iterable[SideEffect], scrub: Scrub | None) -> Operation:
        """The same with the quota taken by the start, and what to scrub before it."""
        return replace(self, quota_from=quota_from(effects), scrub=scrub)

    def seen(self, subject: Subject, world: World) -> bool:
        """The workload has started, or started again since."""
        row, work = world.rows.get(subject.uid), world.snapshot.workloads
        return row is not None and (
            int(work.incarnation[row]) > subject.revision or int(work.state[row]) != State.PENDING
        )

    def told(self, place: str) -> str:
        """Words for the place of the start."""
        return f"start on {place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmitDraft(WaitingDraft):
    """Start a gang on `fit`."""

    deed: ClassVar[type[Change]] = AdmitChange
    kind: ClassVar[str] = KIND

    fit: Fit

    @property
    def placed(self) -> Fit:
        """Place of the start."""
        return self.fit

    def change(self, ctx: Context) -> Change:
        """The start, and the losses of waiting work to it."""
        layout = self.fit.layout
        effects = side_effects(ctx, self.row, layout) + passed(ctx, self.action, self.row, layout)
        scrub = to_scrub(ctx, self.row, layout)
        return AdmitChange(slots=slots_of(ctx, layout), score_terms=self.fit.terms, side_effects=effects, scrub=scrub)

    def shown(self, change: Change, snapshot: ClusterSnapshot) -> str:
        """The request and the GPUs of each node; a person does not choose the nodes."""
        amount = shown_amount(self.fit.layout, snapshot)
        return f"{shown_sides(change, contract=self.contract)}{shape_digest(snapshot, self.row)}|{amount}"

    def stand(self, ctx: Context, proposal: Proposal, *, accepted: bool) -> tuple[Victim, ...]:
        """The gang takes its place."""
        start_on(ctx, self.row, self.fit.layout, proposal)
        return ()


def quota_from(effects: Iterable[SideEffect]) -> dict[str, str]:
    """The waiting work whose quota a start takes: names by uid."""
    return {each.uid: each.workload for each in effects if each.what == Taken.QUOTA}
