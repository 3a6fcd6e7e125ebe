"""Take GPUs from running work: for a workload, or from a workload for its own sake."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Literal

from autopilot.core.effects.draft import Case, Draft, Eviction
from autopilot.core.effects.named import victims_of
from autopilot.core.model.objects import Victim
from autopilot.core.model.records import Evidence, Proposal
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.model.stops import Save, StopReason
from autopilot.core.model.verb import Change, Operation
from autopilot.core.planning.context import Context
from autopilot.core.planning.shown import shown_nodes, shown_whole

KIND: Final = "evict"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictChange(Change):
    """The victims with their losses."""

    victims: tuple[Victim, ...] = field()
    gone_s: float | None = None  # when the GPUs are taken away, whatever is decided
    kind: Literal["evict"] = field(default=KIND, init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictOperation(Operation):
    """Stop one workload."""

    stops: ClassVar[bool] = True

    reason: StopReason
    grace_s: float = field()  # time to write a checkpoint before the work is stopped
    save: Save = Save.TRY
    kind: Literal["evict"] = field(default=KIND, init=False)

    @property
    def takes(self) -> StopReason:
        """All GPUs of the workload."""
        return self.reason

    def unsaved(self) -> Operation:
        """The same without time to save."""
        return replace(self, save=Save.SKIP)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictDraft(Draft):
    """Take GPUs for the workload of `row`, or from it."""

    deed: ClassVar[type[Change]] = EvictChange
    kind: ClassVar[str] = KIND

    evictions: tuple[Eviction, ...]
    nodes: tuple[str, ...] = ()  # reserved ones that it clears
    gone_s: float | None = None  # when the GPUs are taken away, whatever is decided
    needed_gpus: int | None = None  # that start on what is taken; None: all that the workload requests

    @property
    def taken(self) -> tuple[Eviction, ...]:
        """The evictions of the victims."""
        return self.evictions

    @property
    def gained_gpus(self) -> int | None:
        """GPUs that start there, if known."""
        return self.needed_gpus

    def change(self, ctx: Context) -> Change:
        """The victims."""
        return EvictChange(victims=victims_of(self, ctx), gone_s=self.gone_s)

    def shown(self, change: Change, snapshot: ClusterSnapshot) -> str:
        """The victims, and the nodes cleared by it."""
        return shown_whole(change, contract=self.contract) + shown_nodes(self.nodes)

    def stand(self, ctx: Context, proposal: Proposal, *, accepted: bool) -> tuple[Victim, ...]:
        """The victims hold their GPUs still, but their quota is free."""
        for row in self.victims:
            ctx.quota.book(row, ctx.whatif.layout_of(row), -1)
            ctx.quota.leaving.add(row)
        return ()


def stop_draft(
    ctx: Context,
    row: int,
    case: Case,
    *why: Evidence,
    cost_gpu_s: float,
    gone_s: float | None = None,
) -> EvictDraft:
    """Stop one gang whole. It is worth the use of its GPUs up to the horizon."""
    held = len(ctx.whatif.layout_of(row))
    return EvictDraft(
        case=case,
        row=row,
        benefit_gpu_s=held * ctx.policy.horizon_s,
        cost_gpu_s=cost_gpu_s,
        evidence=(*why, Evidence("gpus", held, "GPUs freed")),
        evictions=(Eviction(row, "evict", None, held, cost_gpu_s),),
        gone_s=gone_s,
    )
