"""Drafts in order on one what-if -> plan.

Every action runs once, in the order of the table. Each draft becomes a proposal, and every guard answers on it. An
accepted proposal is applied to the what-if, so that later proposals see it. A proposal that only its mode holds stays
on the what-if too, so that recommendations fit together.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from autopilot.core.actions import ACTIONS
from autopilot.core.decision.approved_first import approved_first
from autopilot.core.decision.bound import as_shown, state_digest
from autopilot.core.decision.promising import promise_of
from autopilot.core.guards import GUARDS
from autopilot.core.guards.base import Check
from autopilot.core.model.changes import (
    AdmitChange,
    CeilingChange,
    Change,
    CordonChange,
    DrainChange,
    EvictChange,
    GrowChange,
    MarkChange,
    MoveChange,
    NotifyChange,
    OfferChange,
    PipelineChange,
    ProvisionChange,
    RecutChange,
    ReserveChange,
    ScaleChange,
)
from autopilot.core.model.codes import ASKING, BUDGETS, CLUSTER_BUDGETS, ON_PAPER, PASSING, UNCOVERED
from autopilot.core.model.errors import InvariantError
from autopilot.core.model.memory import ControllerMemory, Disruption
from autopilot.core.model.objects import Subject, SubjectKind, Taken
from autopilot.core.model.policy import Mode, Policy
from autopilot.core.model.promises import Promise
from autopilot.core.model.records import Code, Observation, Plan, Proposal, Reservation, Slot, Verdict, Victim
from autopilot.core.model.snapshot import SLO_CLASS_NAMES
from autopilot.core.model.work import evicted_uids, named
from autopilot.core.placement.shapes import Miss
from autopilot.core.placement.vacate import vacate
from autopilot.core.placement.whatif import Layout, WhatIf
from autopilot.core.planning.action import Action
from autopilot.core.planning.build import build_context
from autopilot.core.planning.context import Context
from autopilot.core.planning.cuttable import node_rows
from autopilot.core.planning.disruption import disruptions, dwell_s, proposal_key
from autopilot.core.planning.draft import (
    AdmitDraft,
    Case,
    CeilingDraft,
    CordonDraft,
    Draft,
    DrainDraft,
    EvictDraft,
    Eviction,
    GrowDraft,
    MarkDraft,
    MoveDraft,
    NotifyDraft,
    OfferDraft,
    PipelineDraft,
    ProvisionDraft,
    RecutDraft,
    ReserveDraft,
    ScaleDraft,
    Submit,
    WaitingDraft,
    WorkloadDraft,
)
from autopilot.core.planning.side_effects import passed, side_effects
from autopilot.core.reservations.advance import hold_advance
from autopilot.core.reservations.replicas_hold import hold_replicas


@dataclass(slots=True)
class Planner:
    """The planning of one tick, and what the reconciler needs to carry it out."""

    ctx: Context
    guards: tuple[tuple[str, Check], ...] = GUARDS
    proposals: list[Proposal] = field(default_factory=list)
    disruptions: dict[str, tuple[Disruption, ...]] = field(default_factory=dict)
    claimed: set[int] = field(default_factory=set)  # rows that leave already: never victims twice
    waits: dict[str, tuple[Victim, ...]] = field(default_factory=dict)  # who else must be gone before a start
    # how long disruptive wishes must last, by their key
    dwells_s: dict[str, float] = field(default_factory=dict)
    bound_hit: bool = False
    rows: dict[str, int] = field(default_factory=dict)  # of what was accepted, by uid
    cases: dict[str, Case] = field(default_factory=dict)  # of what was accepted, by proposal id
    promises: list[Promise] = field(default_factory=list)  # of what was accepted and weighed

    def submit(self, draft: Draft) -> bool:
        """Judge one draft. True when it stays on the what-if."""
        ctx = self.ctx
        if not self.claimed.isdisjoint(draft.victims):
            return False
        at = ctx.position_of(draft.row) if isinstance(draft, WaitingDraft) else None
        if len(self.proposals) >= ctx.policy.limits.proposals_per_tick:
            self.bound_hit = True
            if at is not None:
                ctx.plan.refuse(at, Miss(Code.BOUND, len(self.proposals), ctx.policy.limits.proposals_per_tick))
            return False
        proposal = _proposal(draft, ctx)
        verdicts = tuple(check(proposal, draft, ctx) for _, check in self.guards)
        refused = [verdict for verdict in verdicts if not verdict.allowed]
        accepted = not refused
        proposal = as_shown(proposal, ctx)
        self.proposals.append(_with_verdicts(proposal, verdicts, accepted))
        codes = {verdict.code for verdict in refused}
        stands = accepted or (codes <= ON_PAPER and not _passes(proposal, codes))
        if draft.victims and not accepted:
            self.dwells_s[proposal_key(proposal)] = dwell_s(ctx, draft)
        if accepted:
            if draft.workload_row is not None:
                self.rows[proposal.subject.uid] = draft.workload_row
            self.cases[proposal.id] = draft.case
            promise = promise_of(draft, proposal, ctx)
            self.promises += [promise] if promise is not None else []
            self.rows.update((victim.uid, row) for victim, row in zip(proposal.victims, draft.victims, strict=True))
        if accepted and draft.victims:
            self.disruptions[proposal.id] = disruptions(draft, ctx, proposal.id)
            ctx.plan.accept(self.disruptions[proposal.id])
        if stands and draft.victims:
            self.claimed.update(draft.victims)
            if not accepted:
                ctx.plan.recommend({give.row: (ctx.whatif.layout_of(give.row), give.keeps) for give in draft.taken})
            if draft.placed is None and not isinstance(
                draft, MoveDraft | DrainDraft
            ):  # they hold their GPUs still, but their quota is free
                for row in draft.victims:
                    ctx.quota.book(row, ctx.whatif.layout_of(row), -1)
                    ctx.quota.leaving.add(row)
        if stands:
            if isinstance(draft, AdmitDraft | PipelineDraft) and not codes.isdisjoint(ASKING):
                ctx.plan.ask(draft.row)
            match draft:
                case AdmitDraft():
                    _start(draft, ctx, proposal)
                case PipelineDraft():
                    self.waits[proposal.id] = _make_room(draft, ctx, (draft.fit.layout,))
                    _start(draft, ctx, proposal)
                case RecutDraft() if accepted:  # what is only recommended leaves the GPU to others
                    ctx.whatif.set_aside(np.array([draft.gpu], np.int32))
                    ctx.plan.recut(draft.pool)
                    if draft.scope == "node":  # its engine stops the others too
                        ctx.whatif.set_aside(node_rows(ctx, draft.gpu))
                case DrainDraft():
                    self.waits[proposal.id] = _make_room(draft, ctx)
                    if accepted:
                        ctx.whatif.set_aside(np.array(draft.rows, np.int32))
                        ctx.plan.drain(draft.uuids)
                case MoveDraft():
                    self.waits[proposal.id] = _make_room(draft, ctx)
                case GrowDraft():
                    ctx.whatif.move(draft.row, ctx.whatif.layout_of(draft.row).joined(draft.fit.layout))
                    ctx.quota.book(draft.row, draft.fit.layout)
        elif at is not None:
            _refuse(draft, ctx, at, refused, wanted=codes <= PASSING and not _passes(proposal, codes))
        return stands


def _passes(proposal: Proposal, codes: set[Code]) -> bool:
    """Whether a start would take the room of others that come first, and its approval does not cover it."""
    turns = any(each.what == Taken.TURN for each in proposal.change.side_effects)
    return turns and not codes.isdisjoint(UNCOVERED)


def _refuse(draft: Draft, ctx: Context, at: int, refused: list[Verdict], *, wanted: bool) -> None:
    """Note why the gang at `at` waits. `wanted`: its place is kept from gangs that grow."""
    codes = {verdict.code for verdict in refused}
    if draft.victims and not codes.isdisjoint(BUDGETS):
        ctx.plan.exceed(draft.victims, of_cluster=not codes.isdisjoint(CLUSTER_BUDGETS))
    ctx.plan.refuse(at, Miss(Code.GATED, float(len(refused)), 0.0))
    if draft.placed is not None and wanted:
        ctx.plan.want([draft.placed.layout])
        ctx.plan.want(_moves(draft.taken).values())


def _start(draft: AdmitDraft | PipelineDraft, ctx: Context, proposal: Proposal) -> None:
    """The gang of a draft takes its place on the what-if and in the quota ledger, and reserved quota of others."""
    ctx.plan.take_quota(each.uid for each in proposal.change.side_effects if each.what == Taken.QUOTA)
    run_s = float(ctx.run_low_s[ctx.position_of(draft.row)])
    ctx.plan.drop_hold(draft.row)  # it needs its reservation no more
    ctx.whatif.place(draft.row, draft.fit.layout)
    ctx.occupy(draft.row, draft.fit.layout, ctx.now_s + run_s)


def _make_room(
    draft: PipelineDraft | MoveDraft | DrainDraft, ctx: Context, starts: tuple[Layout, ...] = ()
) -> tuple[Victim, ...]:
    """Victims leave the what-if and the quota ledger, or take their new place. Returns others that leave for it.

    `starts`: the place of the gang that starts there.
    """
    whatif, quota = ctx.whatif, ctx.quota
    for give in draft.taken:
        quota.book(give.row, whatif.layout_of(give.row), -1)
        quota.leaving.add(give.row)
        if give.keeps is not None:
            quota.book(give.row, give.keeps)
    moves = _moves(draft.taken)
    for row, target in moves.items():
        ctx.foresee(target, float(ctx.end_s[row]), row)
    gone = vacate(whatif, [*draft.victims, *ctx.plan.leaving], [*starts, *moves.values()], moves)
    others = sorted(gone.difference(draft.victims))
    waits = tuple(_victim(_leaver(row, ctx.plan.leaving[row]), True, ctx) for row in others)
    for give in draft.taken:
        if give.how != "move":
            ctx.plan.leave(give.row, give.keeps)
    return waits


def _moves(evictions: tuple[Eviction, ...]) -> dict[int, Layout]:
    """Where victims that move go, by row."""
    return {give.row: give.keeps for give in evictions if give.how == "move" and give.keeps is not None}


def _leaver(row: int, keeps: Layout | None) -> Eviction:
    """A gang that is already leaving for another one."""
    return Eviction(row) if keeps is None else Eviction(row, "shrink", keeps)


def plan(
    observation: Observation,
    policy: Policy,
    memory: ControllerMemory,
    whatif: WhatIf,
    busy: frozenset[int],
    actions: tuple[Action, ...] = ACTIONS,
    guards: tuple[tuple[str, Check], ...] = GUARDS,
) -> tuple[Plan, Planner]:
    """The plan of one tick, and its planner."""
    return plan_on(build_context(observation, policy, memory, whatif, busy), actions, guards)


def plan_on(ctx: Context, actions: tuple[Action, ...], guards: tuple[tuple[str, Check], ...]) -> tuple[Plan, Planner]:
    """The same on a context that is built already."""
    policy = ctx.policy
    hold_advance(ctx)
    hold_replicas(ctx)
    planner = Planner(ctx, guards, claimed=_leaving(ctx.observation, ctx.memory))
    active = [each for each in actions if each.explains_waiting or each.mode(policy) != Mode.OFF]
    submit: Submit = planner.submit
    displacing = [each for each in active if each.displaces]
    for action in active:
        if action in displacing[:1]:
            submit = approved_first(ctx, submit, displacing)
        action.propose(ctx, submit)
    accepted_reservations = _reservations(ctx, planner)
    return Plan(
        tuple(planner.proposals), ctx.plan.refusals(ctx.pending), accepted_reservations, tuple(ctx.plan.released)
    ), planner


def _leaving(observation: Observation, memory: ControllerMemory) -> set[int]:
    """Rows with an eviction under way."""
    names = evicted_uids(memory)
    if not names:
        return set()
    rows: list[int] = np.flatnonzero(named(observation.snapshot.workloads.uid, names)).tolist()
    return set(rows)


def _reservations(ctx: Context, planner: Planner) -> tuple[Reservation, ...]:
    """Reservations that memory keeps: room held now, unless a guard refused it, and promises without room now."""
    refused = {
        proposal.subject.uid
        for proposal in planner.proposals
        if isinstance(proposal.change, ReserveChange) and not proposal.accepted
    }
    started = set(ctx.pending[ctx.plan.taken].tolist())
    held = tuple(
        held.record
        for held in ctx.plan.held
        if held.row >= 0 and held.record.uid not in refused and held.row not in started
    )
    return held + kept_promises(ctx)


def kept_promises(ctx: Context) -> tuple[Reservation, ...]:
    """Promises whose gang still waits and holds no room in this tick. A promise that slipped too far is released."""
    holding = {held.row for held in ctx.plan.held}
    started = set(ctx.pending[ctx.plan.taken].tolist())
    kept = []
    for row, record in ctx.standing.items():
        if not record.firm or row in holding or row in started or record.workload in ctx.plan.released:
            continue
        if ctx.now_s >= record.planned_s + ctx.policy.reservation.timeout_s:
            ctx.plan.release(record.workload)
        else:
            kept.append(replace(record, start_s=float("inf"), nodes=()))
    return tuple(kept)


def _proposal(draft: Draft, ctx: Context) -> Proposal:
    """The draft in names, with an id that is bound to the state that it was made for."""
    snapshot = ctx.observation.snapshot
    change = _change(draft, ctx)
    match draft:
        case RecutDraft():
            uuid = str(snapshot.gpus.uuid[draft.gpu])
            subject, queue, tenant = Subject(SubjectKind.GPU, uuid, uuid, 0), -1, -1
        case DrainDraft():
            gpu, node = str(snapshot.gpus.uuid[draft.gpu]), str(snapshot.nodes.id[draft.node])
            by_node = draft.scope == "node"
            subject = Subject(SubjectKind.NODE, node, node, 0) if by_node else Subject(SubjectKind.GPU, gpu, gpu, 0)
            queue, tenant = -1, -1
        case CordonDraft() | OfferDraft():
            name = str(snapshot.nodes.id[draft.node])
            subject, queue, tenant = Subject(SubjectKind.NODE, name, name, 0), -1, -1
        case ScaleDraft() | CeilingDraft():
            services, row = snapshot.services, draft.service
            name, uid, revision = str(services.id[row]), str(services.uid[row]), int(services.generation[row])
            subject = Subject(SubjectKind.SERVICE, name, uid, revision)
            tenants = snapshot.workloads.tenant[snapshot.workloads.service == row]
            queue, tenant = int(services.queue[row]), int(tenants[0]) if len(tenants) else -1
        case WorkloadDraft():
            work, row = snapshot.workloads, draft.row
            name, uid, revision = str(work.id[row]), str(work.uid[row]), int(work.incarnation[row])
            subject = Subject(SubjectKind.WORKLOAD, name, uid, revision)
            queue, tenant = int(work.queue[row]), int(work.tenant[row])
        case _:
            raise InvariantError(f"the planner cannot name the object of a {type(draft).__name__}")
    state = state_digest(draft, subject, change, snapshot)
    return Proposal(
        id=f"{draft.kind}-{subject.name}-{state[:8]}",
        action=draft.action,
        subject=subject,
        queue=str(snapshot.queues.id[queue]) if queue >= 0 else "",
        tenant=snapshot.names.tenants[tenant] if tenant >= 0 else "",
        change=change,
        benefit_gpu_s=draft.benefit_gpu_s,
        cost_gpu_s=draft.cost_gpu_s + sum(each.wait_gpu_s for each in change.side_effects),
        evidence=draft.evidence,
        state_digest=state,
        reason=draft.case.reason,
    )


def _change(draft: Draft, ctx: Context) -> Change:
    """What the draft would change, in names."""
    victims = tuple(_victim(give, draft.contract, ctx) for give in draft.taken)
    match draft:
        case AdmitDraft(row=row, fit=fit):
            effects = side_effects(ctx, row, fit.layout) + passed(ctx, draft, row)
            return AdmitChange(slots=slots_of(ctx, fit.layout), score_terms=fit.terms, side_effects=effects)
        case PipelineDraft(row=row, fit=fit):
            effects = side_effects(ctx, row, fit.layout, draft.taken) + passed(ctx, draft, row)
            slots = slots_of(ctx, fit.layout)
            return PipelineChange(slots=slots, victims=victims, score_terms=fit.terms, side_effects=effects)
        case GrowDraft(row=row, fit=fit):  # it keeps what it has
            whole = ctx.whatif.layout_of(row).joined(fit.layout)
            return GrowChange(slots=slots_of(ctx, whole), score_terms=fit.terms)
        case ReserveDraft(start_s=start_s):
            return ReserveChange(start_s=start_s)
        case EvictDraft(gone_s=gone_s):
            return EvictChange(victims=victims, gone_s=gone_s)
        case MoveDraft():
            return MoveChange(victims=victims)
        case ScaleDraft(replicas=replicas, until_s=until_s):
            return ScaleChange(replicas=replicas, until_s=until_s)
        case CeilingDraft(replicas=replicas, until_s=until_s, had=had, gpus=gpus, owner=owner):
            return CeilingChange(replicas=replicas, until_s=until_s, had=had, gpus=gpus, owner=owner)
        case RecutDraft(pool=pool, before=before, after=after, scope=scope, gpu=gpu):
            snapshot = ctx.observation.snapshot
            node, index = str(snapshot.nodes.id[snapshot.gpus.node[gpu]]), int(snapshot.gpus.index[gpu])
            return RecutChange(pool=pool, before=before, after=after, scope=scope, node=node, index=index)
        case DrainDraft(pool=pool, scope=scope, rows=rows, cuts=cuts, until_s=until_s):
            uuids = tuple(ctx.observation.snapshot.gpus.uuid[list(rows)].tolist())
            return DrainChange(pool=pool, scope=scope, gpus=uuids, cuts=cuts, victims=victims, until_s=until_s)
        case CordonDraft(on=on):
            return CordonChange(on=on)
        case OfferDraft(on=on):
            return OfferChange(on=on)
        case ProvisionDraft(pool=pool, nodes=nodes):
            return ProvisionChange(pool=pool, nodes=nodes)
        case NotifyDraft(gpus=gpus, idle_s=idle_s, grace_s=grace_s):
            return NotifyChange(gpus=gpus, idle_s=idle_s, grace_s=grace_s)
        case MarkDraft():
            return MarkChange()
    raise InvariantError(f"the planner has no proposal for a {type(draft).__name__}")


def _with_verdicts(proposal: Proposal, verdicts: tuple[Verdict, ...], accepted: bool) -> Proposal:
    """The proposal with its verdicts (a plain copy: dataclasses.replace is slow here)."""
    return Proposal(
        proposal.id,
        proposal.action,
        proposal.subject,
        proposal.queue,
        proposal.tenant,
        proposal.change,
        proposal.benefit_gpu_s,
        proposal.cost_gpu_s,
        proposal.evidence,
        proposal.state_digest,
        verdicts,
        accepted,
        proposal.reason,
    )


def slots_of(ctx: Context, layout: Layout) -> tuple[Slot, ...]:
    """A layout in names."""
    snapshot = ctx.observation.snapshot
    nodes = snapshot.nodes.id[snapshot.gpus.node[layout.gpu]].tolist()
    uuids = snapshot.gpus.uuid[layout.gpu].tolist()
    instances = [ctx.whatif.instance_id(row) for row in layout.instance.tolist()]
    return tuple(map(Slot, nodes, uuids, instances, layout.milli.tolist()))


def _victim(give: Eviction, contract: bool, ctx: Context) -> Victim:
    work = ctx.observation.snapshot.workloads
    keeps = slots_of(ctx, give.keeps) if give.keeps is not None else ()
    part = give.gpus / max(len(ctx.whatif.layout_of(give.row)), 1) if give.how == "shrink" else 1.0
    losses = ctx.losses
    expected, worst, overhead = (
        float(column[give.row]) * part for column in (losses.expected_gpu_s, losses.worst_gpu_s, losses.overhead_gpu_s)
    )
    return Victim(
        str(work.id[give.row]),
        int(work.incarnation[give.row]),
        give.gpus,
        expected,
        contract,
        give.how,
        keeps,
        worst,
        overhead,
        str(work.uid[give.row]),
        str(ctx.observation.snapshot.queues.id[work.queue[give.row]]) if work.queue[give.row] >= 0 else "",
        SLO_CLASS_NAMES[int(work.slo_class[give.row])],
    )
