"""Due effects of earlier decisions: effects to be sent again, and starts after their victims have left.

Theory of operation. Time has passed since the decision, so each due effect is judged again like a new proposal. Its
draft is rebuilt from the present snapshot, and every guard (and, for a start, the rule set) answers on it. Three kinds
have their own questions:

- A start: the gang is the same, its gate is open, its GPUs are still its own on the what-if, and quotas allow it. The
  ledger counts the start already, so it is taken off for the question.
- Evictions and shrinks: all those of one proposal are judged together, with all of its victims that still run. The
  start that they serve must still stand, and idle work must still be idle.
- Any other effect (a floor of a service, a notice to an owner): its object has the same revision, a floor has a
  forecast, and idle work is still idle.

Guards see a context without anything under way (`Sender.bare`): its GPUs are held as the snapshot shows them. The draft
names the first proposal (`resent`), so that its own entries in the ledgers do not count against it.

A refusal in `ENDS` ends the effect: it does not pass by itself, so the wish is planned anew. Any other refusal delays
the effect, at most until its deadline.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autopilot.core.effects import move, pipeline
from autopilot.core.effects.action import Cases
from autopilot.core.effects.admit import AdmitChange, AdmitDraft
from autopilot.core.effects.disruption import takes_gpus
from autopilot.core.effects.draft import Case, Draft, Eviction, VerbDraft
from autopilot.core.effects.evict import EvictChange, EvictDraft
from autopilot.core.effects.named import object_of
from autopilot.core.effects.pipelined import Lookup, shows
from autopilot.core.effects.scrubbing import to_scrub
from autopilot.core.effects.side_effects import side_effects
from autopilot.core.geometry import drain
from autopilot.core.guards.base import Check
from autopilot.core.idle.ladder import rungs
from autopilot.core.model.identity import rows_by_uid, shape_digest
from autopilot.core.model.memory.effects import InFlight
from autopilot.core.model.memory.starts import Part, PipelinedStart
from autopilot.core.model.objects import Scrub, SideEffect, SubjectKind
from autopilot.core.model.records import (
    About,
    Change,
    Code,
    Evidence,
    Instruction,
    Note,
    NoteCode,
    Proposal,
    Slot,
    Victim,
)
from autopilot.core.model.snapshot import GPU_MILLI, Gate, State
from autopilot.core.model.stops import StopReason
from autopilot.core.placement.search_cache import SearchCache
from autopilot.core.placement.shapes import Fit
from autopilot.core.placement.whatif import Layout, WhatIf
from autopilot.core.planning.context import Context
from autopilot.core.sharing_time.grow import GrowChange, GrowDraft

ENDS = frozenset(
    {
        Code.CHANGED,
        Code.NOT_NEEDED,
        Code.CHECK,
        Code.CAPACITY,
        Code.OPTED_OUT,
        Code.PROTECTED_CLASS,
        Code.NOT_PREEMPTIBLE,
        Code.WITHOUT_CHECKPOINT,
        Code.STOPPED_OFTEN,
        Code.PARTIAL_GANG,
        Code.PARTIAL_EVICTION,
        Code.NODE_UNFIT,
        Code.LIMIT,
        Code.GUARANTEE,
        Code.FAIRNESS,
        Code.QUOTA,
        Code.KEPT,
    }
)
"""Refusals that do not pass by themselves: what was decided is planned anew."""


@dataclass(frozen=True, slots=True)
class _Origin:
    """The proposal behind an effect."""

    proposal_id: str
    action: str
    tenant: str
    benefit_gpu_s: float
    cost_gpu_s: float
    digest: str


@dataclass(frozen=True, slots=True)
class Sender:
    """The judge of the effects to be sent in one tick."""

    ctx: Context
    cases: Cases
    guards: tuple[tuple[str, Check], ...]
    names: Lookup
    bare: Context = field(init=False)  # on the books without anything under way: what is held is what is seen

    def __post_init__(self) -> None:
        bare = replace(self.ctx, whatif=self._books(), memo=replace(self.ctx.memo, searches=SearchCache()))
        object.__setattr__(self, "bare", bare)

    def _books(self) -> WhatIf:
        return self.ctx.books.opened(spot_saves=self.ctx.policy.placement.spot_saves)

    # --- questions --------------------------------------------------------------------------------

    def held(self, entries: Iterable[InFlight]) -> dict[str, Code | None]:
        """The code against each due effect, by its id; None if it may be sent.

        Evictions of one proposal go together.
        """
        answers: dict[str, Code | None] = {}
        takings: dict[str, list[InFlight]] = {}
        for entry in entries:
            effect = entry.instruction
            if takes_gpus(effect):
                takings.setdefault(effect.proposal_id, []).append(entry)
            elif effect.operation.planned_anew:
                answers[effect.id] = Code.CHANGED  # it is planned anew
            elif (change := effect.operation.as_change) is not None:
                answers[effect.id] = self._whole(entry, change)
            else:
                answers[effect.id] = self._start(
                    _origin_of(entry),
                    effect.subject.uid,
                    effect.subject.revision,
                    entry.shape,
                    effect.operation.slots,
                    GrowDraft if effect.operation.continues else AdmitDraft,
                )
        for entries_of in takings.values():
            answers |= self._takings(entries_of)
        return answers

    def start_of(self, pipelined: PipelinedStart, part: Part) -> Code | None:
        """The code against a part of a pipelined start now; None if it may start."""
        origin = _Origin(
            pipelined.proposal_id,
            pipelined.action,
            pipelined.tenant,
            pipelined.benefit_gpu_s,
            pipelined.cost_gpu_s,
            pipelined.digest,
        )
        takes = self.side_effects(part)
        return self._start(origin, part.uid, part.incarnation, part.shape, part.slots, AdmitDraft, takes)

    def side_effects(self, part: Part) -> tuple[SideEffect, ...]:
        """Losses of waiting work to a part of a pipelined start. The ledger counts the part already."""
        row, layout = self.names.workload.get(part.uid), self.names.layout(part.slots)
        if row is None or layout is None:
            return ()
        ledger = self.ctx.quota.ledger
        saved = ledger.saved()
        self.ctx.quota.book(row, layout, -1)
        found = side_effects(self.ctx, row, layout)
        ledger.restore(saved)
        return found

    def scrub(self, part: Part) -> Scrub | None:
        """What of the place of a part must be scrubbed."""
        row, layout = self.names.workload.get(part.uid), self.names.layout(part.slots)
        return None if row is None or layout is None else to_scrub(self.ctx, row, layout)

    # --- starts -----------------------------------------------------------------------------------

    def _start(
        self,
        origin: _Origin,
        uid: str,
        incarnation: int,
        shape: str,
        slots: tuple[Slot, ...],
        variant: type[AdmitDraft | GrowDraft],
        takes: tuple[SideEffect, ...] = (),
    ) -> Code | None:
        """The draft of an admission, or of a gang that grows to `slots`."""
        ctx, snapshot = self.ctx, self.ctx.observation.snapshot
        row, layout = self.names.workload.get(uid), self.names.layout(slots)
        if row is None or layout is None:
            return Code.CHANGED
        work = snapshot.workloads
        if int(work.incarnation[row]) != incarnation or shape_digest(snapshot, row) != shape:
            return Code.CHANGED
        if variant is AdmitDraft and work.state[row] != State.PENDING:
            return Code.CHANGED
        if work.gate[row] != Gate.OPEN:
            return Code.CHECK
        if not shows(ctx.whatif, row, layout):
            return Code.CAPACITY
        has = self.bare.whatif.layout_of(row)
        more = layout.minus(has)
        nodes = np.unique(snapshot.gpus.node[more.gpu]).astype(np.int32)
        draft = variant(
            case=Case(origin.action, variant.kind),
            row=row,
            fit=Fit(more, nodes, 0.0, ()),
            benefit_gpu_s=origin.benefit_gpu_s,
            cost_gpu_s=origin.cost_gpu_s,
            evidence=(),
            resent=origin.proposal_id,
        )
        change = (
            GrowChange(slots=slots)
            if variant is GrowDraft
            else AdmitChange(slots=slots, side_effects=takes, scrub=to_scrub(ctx, row, layout))
        )
        refusal = self._ask(self._proposal(origin, draft, change), draft)
        return refusal or self._quota(row, layout, has, len(more.gpu))

    def _quota(self, row: int, layout: Layout, has: Layout, gpus: int) -> Code | None:
        """The refusal of the start at this width by quotas; None without one.

        The ledger counts it already, so it is taken off for the question.
        """
        quota = self.ctx.quota
        saved = quota.ledger.saved()
        quota.book(row, layout, -1)
        if len(has.gpu):
            quota.book(row, has)
        refusal = quota.may_start(row, gpus)
        quota.ledger.restore(saved)
        return None if refusal is None else refusal.code

    # --- takings ----------------------------------------------------------------------------------

    def _takings(self, due: Sequence[InFlight]) -> dict[str, Code | None]:
        """Evictions and shrinks of one proposal, judged together with all of its still running victims."""
        ctx, first = self.ctx, due[0]
        proposal_id = first.instruction.proposal_id
        entries = [
            entry
            for entry in ctx.memory.effects.in_flight.values()
            if entry.instruction.proposal_id == proposal_id and takes_gpus(entry.instruction)
        ]
        pipelined = next((each for each in ctx.memory.starts.pipelined_starts if each.proposal_id == proposal_id), None)
        code: Code | None = None
        if (
            first.kind in {pipeline.KIND, move.KIND, drain.KIND}
            and pipelined is None
            and not all(map(self._leaves, due))
        ):
            code = Code.CHANGED  # what it was to make room for was given up
        if any(self._awake(entry) for entry in due):
            code = Code.CHANGED
        if code is None and pipelined is not None:
            code = self._beneficiary(pipelined)
        evictions, victims = [], []
        for entry in entries:
            found = self._give(entry)
            if found is None:
                code = Code.CHANGED if entry in due else code  # another one has begun to leave
                continue
            evictions.append(found[0])
            victims.append(found[1])
        if code is None:
            origin = _origin_of(first)
            cost_gpu_s = max(origin.cost_gpu_s, sum(victim.lost_gpu_s for victim in victims))
            row = (
                self.names.workload.get(pipelined.uid, evictions[0].row) if pipelined is not None else evictions[0].row
            )
            draft = EvictDraft(
                case=self._case_of(first),
                row=row,
                benefit_gpu_s=origin.benefit_gpu_s,
                cost_gpu_s=cost_gpu_s,
                evidence=(),
                evictions=tuple(evictions),
                needed_gpus=_needed(pipelined, evictions),
                resent=proposal_id,
            )
            code = self._ask(self._proposal(origin, draft, EvictChange(victims=tuple(victims))), draft)
        return dict.fromkeys((entry.instruction.id for entry in due), code)

    def _beneficiary(self, pipelined: PipelinedStart) -> Code | None:
        """The reason against a start after its victims have left; None if it would come about."""
        snapshot = self.ctx.observation.snapshot
        for part in pipelined.parts:
            row, layout = self.names.workload.get(part.uid), self.names.layout(part.slots)
            if row is None or layout is None or shape_digest(snapshot, row) != part.shape:
                return Code.CHANGED
            if part.uid == pipelined.uid and snapshot.workloads.state[row] == State.PENDING:
                return self._quota(row, layout, layout.without(range(len(layout))), len(layout))
        return None

    def _case_of(self, entry: InFlight) -> Case:
        """The case of its proposal, or a case with the same consequences."""
        case = self.cases.get((entry.action, entry.kind, entry.reason))
        return case or Case(entry.action, entry.kind, entry.reason, contract="by contract" if entry.contract else "")

    def _leaves(self, entry: InFlight) -> bool:
        """True for a victim already leaving."""
        row = self.names.workload.get(entry.instruction.subject.uid)
        return row is not None and bool(self.ctx.observation.snapshot.workloads.state[row] == State.CHECKPOINTING)

    def _give(self, entry: InFlight) -> tuple[Eviction, Victim] | None:
        """The eviction of a victim; None if the object was replaced or cannot keep its part."""
        effect, work = entry.instruction, self.ctx.observation.snapshot.workloads
        subject, slots = effect.subject, effect.operation.slots
        row = self.names.workload.get(subject.uid)
        if row is None or int(work.incarnation[row]) != subject.revision:
            return None
        held = len(self.bare.whatif.layout_of(row))
        lost_gpu_s = float(self.ctx.lost_gpu_s[row])
        if effect.operation.stops:
            give = Eviction(row, "evict", None, held, lost_gpu_s)
        else:
            keeps = self.names.layout(slots)
            if keeps is None:
                return None
            give = Eviction(row, "shrink", keeps, held - len(keeps), lost_gpu_s)
        victim = Victim(
            subject.name,
            subject.revision,
            give.gpus,
            lost_gpu_s,
            entry.contract,
            give.how,
            slots,
            uid=subject.uid,
        )
        return give, victim

    # --- whole deeds ------------------------------------------------------------------------------

    def _whole(self, entry: InFlight, change: Change) -> Code | None:
        """A floor of a service, or a notice to the owner of idle work."""
        ctx, subject, ahead = self.ctx, entry.instruction.subject, None
        table = ctx.observation.snapshot.services if change.about == SubjectKind.SERVICE else None
        rows = self.names.workload if table is None else rows_by_uid(table)
        row = rows.get(subject.uid)
        if row is None or object_of(change.about, row, ctx.observation.snapshot)[0].revision != subject.revision:
            return Code.CHANGED
        if table is None and not self._idle(subject.uid):
            return Code.CHANGED
        if change.replicas:  # a floor that is given back relies on no forecast
            ahead = next((each for each in ctx.foreseen if each.row == row), None)
            if ahead is None:
                return Code.FORECAST_UNKNOWN
        draft = VerbDraft(
            case=self._case_of(entry),
            verb=change,
            row=row,
            benefit_gpu_s=entry.benefit_gpu_s,
            cost_gpu_s=entry.cost_gpu_s,
            evidence=(),
            ahead=ahead,
            resent=entry.instruction.proposal_id,
        )
        return self._ask(self._proposal(_origin_of(entry), draft, change), draft)

    # --- idle work --------------------------------------------------------------------------------

    def _awake(self, entry: InFlight) -> bool:
        """True if work to be suspended for doing nothing is no longer known to do nothing."""
        return entry.instruction.operation.takes == StopReason.IDLE and not self._idle(entry.instruction.subject.uid)

    def _idle(self, uid: str) -> bool:
        """True if work is still idle, as of the newest look and now."""
        ctx = self.ctx
        return any(rung.uid == uid for rung in rungs(ctx.memory, ctx.observation.snapshot, ctx.policy))

    # --- guards -----------------------------------------------------------------------------------

    def _proposal(self, origin: _Origin, draft: Draft, change: Change) -> Proposal:
        snapshot = self.ctx.observation.snapshot
        subject, queue, _ = object_of(draft.about, draft.row, snapshot)
        return Proposal(
            origin.proposal_id,
            origin.action,
            subject,
            str(snapshot.queues.id[queue]) if draft.workload_row is not None else "",
            origin.tenant,
            change,
            benefit_gpu_s=draft.benefit_gpu_s,
            cost_gpu_s=draft.cost_gpu_s,
            state_digest=origin.digest,
        )

    def _ask(self, proposal: Proposal, draft: Draft) -> Code | None:
        """The refusal of a guard; an ending one before a delaying one. None if all guards allow the effect."""
        verdicts = [check(proposal, draft, self.bare) for _, check in self.guards]
        codes = [verdict.code for verdict in verdicts if not verdict.allowed]
        return next((code for code in codes if code in ENDS), codes[0] if codes else None)


def _origin_of(entry: InFlight) -> _Origin:
    return _Origin(
        entry.instruction.proposal_id, entry.action, entry.tenant, entry.benefit_gpu_s, entry.cost_gpu_s, entry.digest
    )


def _needed(pipelined: PipelinedStart | None, evictions: Sequence[Eviction]) -> int:
    """GPUs that start on the taken ones, rounded up; without a start, the GPUs taken."""
    moved = {victim.uid for victim in pipelined.victims} if pipelined else set()
    slots = [slot for part in pipelined.parts if part.uid not in moved for slot in part.slots] if pipelined else []
    if not slots:
        return max(sum(give.gpus for give in evictions), 1)
    return max(-(-sum(slot.milli if not slot.instance else GPU_MILLI for slot in slots) // GPU_MILLI), 1)


def not_sent(effect: Instruction, code: Code, *, ends: bool) -> Note:
    """A note on an effect that a check delays or ends."""
    return Note(
        NoteCode.EFFECT_WITHDRAWN if ends else NoteCode.EFFECT_WAITS,
        About(effect.subject.kind),
        effect.subject.name,
        facts=(Evidence("effect", effect.kind), Evidence("proposal", effect.proposal_id), Evidence("why", code.value)),
    )
