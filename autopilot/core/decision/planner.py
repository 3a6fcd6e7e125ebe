"""Drafts in order on one what-if -> plan.

Theory of operation. Room for advance reservations and expected replicas is held first. Then every action runs once, in
the order of the table. Before the first displacing action, all displacing actions plan for approved gangs alone
(approved_first.py). An action submits drafts, best first, and each answer tells it if the draft stands.

`submit` turns a draft into a proposal, and every guard answers on it, before the draft is applied. A draft with a
victim already leaving, or beyond the bound on proposals, is dropped. Without a refusal the proposal is accepted.
Accepted or not, it is recorded with its verdicts.

An accepted proposal is applied to the what-if for later proposals to see. A proposal held by its mode alone stays there
too, so recommendations fit together; a start that would pass others without an approval for it does not. The gang of
any other proposal waits, with its refusals as the reason. Only accepted proposals enter the ledger of disruptions, and
only they are carried out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.capabilities.guards import GUARDS
from autopilot.core.decision.approved_first import approved_first
from autopilot.core.decision.bound import as_shown, state_digest
from autopilot.core.decision.build import build_context
from autopilot.core.effects.action import Action
from autopilot.core.effects.disruption import disruptions, dwell_s, proposal_key
from autopilot.core.effects.draft import Case, Draft, Submit, moves_of
from autopilot.core.effects.named import object_of
from autopilot.core.guards.base import Check
from autopilot.core.model.codes import ASKING, BUDGETS, CLUSTER_BUDGETS, ON_PAPER, PASSING, UNCOVERED
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.budget import Disruption
from autopilot.core.model.objects import Taken
from autopilot.core.model.policy import Mode, Policy
from autopilot.core.model.promises import Promise
from autopilot.core.model.records import Code, Observation, Plan, Proposal, Reservation, Verdict, Victim
from autopilot.core.model.work import evicted_uids, named
from autopilot.core.placement.shapes import Miss
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.planning.context import Context
from autopilot.core.planning.queue_turns import approved_starts
from autopilot.core.replicas.hold import hold_replicas
from autopilot.core.reserving.advance import hold_advance
from autopilot.core.trust.promising import promise_of


@dataclass(slots=True)
class Planner:
    """The planning of one tick, with everything needed by the reconciler to carry it out."""

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
        """Judge one draft. True if it stays on the what-if."""
        ctx = self.ctx
        if not self.claimed.isdisjoint(draft.victims):
            return False
        waiting = draft.waiting_row
        at = ctx.position_of(waiting) if waiting is not None else None
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
        if stands:
            if waiting is not None and draft.placed is not None and _asks(draft.action, waiting, codes, ctx):
                ctx.plan.ask(waiting)
            self.waits[proposal.id] = draft.stand(ctx, proposal, accepted=accepted)
        elif at is not None:
            _refuse(draft, ctx, at, refused, wanted=codes <= PASSING and not _passes(proposal, codes))
        return stands


def _passes(proposal: Proposal, codes: set[Code]) -> bool:
    """True if a start would take the room of others that come first, without cover by its approval."""
    turns = any(each.what == Taken.TURN for each in proposal.change.side_effects)
    return turns and not codes.isdisjoint(UNCOVERED)


def _asks(action: str, row: int, codes: set[Code], ctx: Context) -> bool:
    """True if a start waits for its own approval, or for the approval of the start that makes its room."""
    if Code.ON_PAPER not in codes:
        return not codes.isdisjoint(ASKING)
    return getattr(ctx.policy.modes, action) == Mode.APPROVE and not approved_starts(ctx, np.array([row]))[0]


def _refuse(draft: Draft, ctx: Context, at: int, refused: list[Verdict], *, wanted: bool) -> None:
    """Note the reason for the wait of the gang at `at`. `wanted`: its place is kept from gangs that grow."""
    codes = {verdict.code for verdict in refused}
    if draft.victims and not codes.isdisjoint(BUDGETS):
        ctx.plan.exceed(draft.victims, of_cluster=not codes.isdisjoint(CLUSTER_BUDGETS))
    ctx.plan.refuse(at, Miss(Code.GATED, float(len(refused)), 0.0))
    if draft.placed is not None and wanted:
        ctx.plan.want([draft.placed.layout])
        ctx.plan.want(moves_of(draft.taken).values())


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
    """The same on a context already built."""
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
    """Reservations for memory: room held now, unless a guard refused it, and promises without room now."""
    refused = {
        proposal.subject.uid for proposal in planner.proposals if proposal.change.only_holds and not proposal.accepted
    }
    started = set(ctx.pending[ctx.plan.taken].tolist())
    held = tuple(
        held.record
        for held in ctx.plan.held
        if held.row >= 0 and held.record.uid not in refused and held.row not in started
    )
    return held + kept_promises(ctx)


def kept_promises(ctx: Context) -> tuple[Reservation, ...]:
    """Promises of gangs still waiting without room in this tick. A promise that slipped too far is released."""
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
    """The draft in names, with an id bound to the state behind it."""
    snapshot = ctx.observation.snapshot
    change = draft.change(ctx)
    subject, queue, tenant = object_of(draft.about, draft.row, snapshot)
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
