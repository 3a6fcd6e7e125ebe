"""Keep new work off GPUs until they are idle and can be cut; some of their work moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

import numpy as np

from autopilot.core.effects.draft import Cutting, Draft, Eviction
from autopilot.core.effects.named import victims_of
from autopilot.core.effects.taking import make_room
from autopilot.core.geometry.follow import drained
from autopilot.core.model.memory.geometry import RecutRecord
from autopilot.core.model.objects import PlannedCut, Subject, SubjectKind, Victim
from autopilot.core.model.records import Proposal
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.model.units import format_duration
from autopilot.core.model.verb import Change
from autopilot.core.planning.context import Context
from autopilot.core.planning.shown import shown_cut, shown_whole

KIND: Final = "drain"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainChange(Change):
    """The GPUs, the cuts behind the drain, and the moving gangs."""

    exact: ClassVar[bool] = True

    pool: str
    scope: str  # gpu | node
    gpus: tuple[str, ...] = field()  # UUIDs that take no new work
    cuts: tuple[PlannedCut, ...] = field()
    victims: tuple[Victim, ...] = field()
    until_s: float  # when it is given up
    kind: Literal["drain"] = field(default=KIND, init=False)

    @property
    def waits_for_victims(self) -> bool:
        """It waits for nothing but its moves."""
        return bool(self.victims)

    def beneficiary(self, subject: Subject) -> Subject:
        """The first moving gang."""
        first = self.victims[0]
        return Subject(SubjectKind.WORKLOAD, first.workload, first.uid, first.incarnation)

    def recorded(
        self, recuts: Mapping[str, RecutRecord], uid: str, now_s: float, deadline_s: float
    ) -> Mapping[str, RecutRecord]:
        """With its GPUs."""
        planned = {each.gpu: each for each in self.cuts}
        idle = PlannedCut("", None, None)
        cuts = {uuid: planned.get(uuid, idle) for uuid in self.gpus}
        return drained(
            recuts,
            {
                uuid: RecutRecord(
                    self.pool, cut.before, cut.after, now_s, self.until_s, state="draining", scope=self.scope
                )
                for uuid, cut in cuts.items()
            },
        )

    def whose(self, subject: Subject) -> str:
        """The GPU or node, and the end of its drain."""
        what = "node" if subject.kind == SubjectKind.NODE else "GPU"
        return f"{what} {subject.name} of pool {self.pool}, until at most {format_duration(self.until_s)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainDraft(Draft):
    """Drain the GPUs `rows` of one node; the object is the GPU or, with scope node, the node."""

    deed: ClassVar[type[Change]] = DrainChange
    kind: ClassVar[str] = KIND

    rows: tuple[int, ...]
    uuids: frozenset[str]  # of `rows`
    pool: str
    scope: str  # gpu | node
    cuts: tuple[PlannedCut, ...]
    until_s: float  # when it is given up
    moves: tuple[Eviction, ...] = ()

    @property
    def about(self) -> SubjectKind:
        """Its object."""
        return SubjectKind.NODE if self.scope == "node" else SubjectKind.GPU

    @property
    def taken(self) -> tuple[Eviction, ...]:
        """The moving gangs."""
        return self.moves

    @property
    def gained_gpus(self) -> int:
        """GPUs that can be cut."""
        return len(self.cuts)

    def cutting(self, snapshot: ClusterSnapshot) -> Cutting:
        """Its GPUs, once they are idle."""
        return Cutting(self.pool, self.scope, self.rows, self.cuts, drains=True)

    def change(self, ctx: Context) -> Change:
        """The GPUs in names."""
        return DrainChange(
            pool=self.pool,
            scope=self.scope,
            gpus=tuple(ctx.observation.snapshot.gpus.uuid[list(self.rows)].tolist()),
            cuts=self.cuts,
            victims=victims_of(self, ctx),
            until_s=self.until_s,
        )

    def shown(self, change: Change, snapshot: ClusterSnapshot) -> str:
        """The moving gangs, and every change."""
        cuts = sorted(f"{each.gpu}:{shown_cut(each.before)}>{shown_cut(each.after)}" for each in self.cuts)
        return f"{shown_whole(change, contract=self.contract)}{self.scope}:{cuts}"

    def stand(self, ctx: Context, proposal: Proposal, *, accepted: bool) -> tuple[Victim, ...]:
        """The gangs take their new places, and the GPUs no new work."""
        waits = make_room(self, ctx)
        if accepted:
            ctx.whatif.set_aside(np.array(self.rows, np.int32))
            ctx.plan.drain(self.uuids)
        return waits
