"""reconcile(memory, observation, policy) -> Step: the one function that decides.

It is pure: live operation, replay and simulation are shells around it. It first updates memory from the observation
(lifecycle.absorb), then plans (planner.plan), then records what was started and when to decide again (`wake_at_s`).
With a clock that is not believed, or a view that is not complete, it starts nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autopilot.core.actions import ACTIONS
from autopilot.core.checkpoints.losses import remember_stops, settle_stops
from autopilot.core.checkpoints.writers import in_turn
from autopilot.core.decision.instructing import effects_of, landing_of
from autopilot.core.decision.intake_facts import IntakeFacts
from autopilot.core.decision.planner import Planner, plan_on
from autopilot.core.decision.underway import follow
from autopilot.core.facts.table import Kept
from autopilot.core.guards import GUARDS
from autopilot.core.guards.base import Check
from autopilot.core.idle.evidence import remember_idle, with_ceilings, with_marks
from autopilot.core.intake.clock import Reading
from autopilot.core.intake.commands import command_timers_s, obey, remember_open_proposals
from autopilot.core.intake.sight import Sight
from autopilot.core.model.identity import shape_digest
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.memory.budget import CONTRACT_WINDOW_S
from autopilot.core.model.memory.effects import InFlight
from autopilot.core.model.memory.plan import Noted
from autopilot.core.model.policy import Effect, Policy
from autopilot.core.model.records import (
    About,
    Code,
    Decision,
    Evidence,
    Instruction,
    Note,
    NoteCode,
    Observation,
    OutcomeKind,
    Plan,
    Proposal,
    Save,
    no_refusals,
)
from autopilot.core.model.verb import START
from autopilot.core.model.work import named, progress_s, running_since
from autopilot.core.ordering.predicted_ends import review_start
from autopilot.core.planning.action import Action
from autopilot.core.planning.context import Context
from autopilot.core.planning.disruption import enter_in_ledger, proposal_key
from autopilot.core.planning.lending import parts_gpus
from autopilot.core.quota.past_use import remember_parts, remember_use
from autopilot.core.quota.protection import let_start
from autopilot.core.quota.spending import remember_spending
from autopilot.core.tracking.capacity_requests import follow_requests, with_requests
from autopilot.core.tracking.cordons import follow_cordons, with_cordons
from autopilot.core.tracking.gpu_errors import follow_errors
from autopilot.core.tracking.idle_nodes import remember_idle_nodes
from autopilot.core.tracking.lifecycle import absorb, halted
from autopilot.core.tracking.promises import cap_notes, follow_promises, judge_promises, remember_promises
from autopilot.core.tracking.recuts import beside, follow_recuts, let_go, recut_timers_s
from autopilot.core.tracking.replicas import floor_timers_s, remember_services
from autopilot.core.tracking.storms import count_acts, judge_storms, storm_notes, storm_timers_s
from autopilot.core.usage.facts import SnapshotFacts


def reconcile(
    memory: ControllerMemory,
    observation: Observation,
    policy: Policy,
    *,
    actions: tuple[Action, ...] = ACTIONS,
    guards: tuple[tuple[str, Check], ...] = GUARDS,
    kept: Kept | None = None,
) -> Step:
    """The decision of one tick. `actions` and `guards` are the shipped tables; tests pass others.

    `kept`: facts that are known already, from the shell's look at the same observation or from an earlier tick.
    """
    kept = Kept() if kept is None else kept
    intake = IntakeFacts(memory, observation, policy, kept)
    clock, before = intake.clock, intake.settled
    if clock.doubt:
        return _stand_still(before, observation, policy, clock.doubt)
    obeyed, sight = intake.obeyed, intake.sight
    notes = (*_clock_note(clock), *obeyed.notes)
    memory = replace(obeyed.memory, intake=replace(obeyed.memory.intake, views=sight.views))
    if sight.blind:
        return _blind(memory, observation, policy, sight, notes, resumed=obeyed.resumed)
    facts = SnapshotFacts(observation=observation, policy=policy, kept=kept)
    memory = absorb(memory, observation, policy, resumed=obeyed.resumed)
    memory, recut_notes = follow_recuts(before, memory, observation, policy)
    memory = follow_errors(memory, observation.snapshot, trusted=True)
    memory = follow_requests(follow_cordons(memory, observation), observation, policy)
    stops = memory.losses.stops
    memory, losses = settle_stops(memory, observation)
    memory, realised = follow_promises(memory, stops, losses, observation, policy)
    memory = judge_promises(memory, observation.now_s, policy)
    review_s = review_start(observation.now_s, policy)
    memory = remember_use(memory, observation.snapshot, observation.now_s, review_s, policy)
    memory = remember_idle(remember_services(memory, observation, policy), observation, policy)
    if policy.modes.on(Effect.SUSPEND):
        memory = remember_spending(memory, observation.snapshot, observation.now_s)
    held_by = halted(memory, observation)
    moving = follow(memory, facts, actions, guards, halted=bool(held_by))
    chosen, planner = plan_on(moving.ctx, actions, guards)
    starts = {each.subject.uid for each in chosen.proposals if each.accepted and each.change.wish == START}
    protected = planner.ctx.quota.protected
    planner.ctx.plan.remember(let_start(observation.snapshot.workloads, protected, starts, observation.now_s))
    memory, instructions = _commit(moving.memory, observation, policy, chosen, planner)
    memory = remember_parts(memory, parts_gpus(planner.ctx), observation.now_s, policy)
    memory = remember_idle_nodes(memory, planner.ctx.plan.unneeded, observation, policy)
    memory = judge_storms(count_acts(memory, chosen, observation), observation.now_s, policy)
    instructions = () if held_by else (*moving.again, *instructions, *moving.starts)
    wake_at_s = _wake_at(memory, observation, policy, chosen, planner, actions)
    memory = replace(memory, tick=observation.tick, now_s=observation.now_s, wake_at_s=wake_at_s)
    notes = (*notes, *recut_notes, *moving.notes, *_notes(before, observation, planner, instructions))
    notes += (*storm_notes(before.trust.storms, memory, policy), *cap_notes(before.trust.kept_promises, memory))
    return Step(
        memory,
        Decision(observation.tick, observation.now_s, chosen, held_by, notes, losses, realised),
        instructions,
        wake_at_s,
    )


def _clock_note(clock: Reading) -> tuple[Note, ...]:
    """A note on a clock that was set."""
    if not clock.moved_s:
        return ()
    return (Note(NoteCode.CLOCK_MOVED, About.CONTROLLER, "", round(clock.moved_s, 3), "s"),)


def _notes(
    before: ControllerMemory, observation: Observation, planner: Planner, instructions: tuple[Instruction, ...]
) -> tuple[Note, ...]:
    """Notes beside the plan: preemptions that ended because a victim could not save, and losses without a turn at the
    store.
    """
    declined = {outcome.instruction_id for outcome in observation.outcomes if outcome.kind == OutcomeKind.DECLINED}
    effects = [entry.instruction for key, entry in before.effects.in_flight.items() if key in declined]
    start_of = {pipelined.proposal_id: pipelined.workload for pipelined in before.starts.pipelined_starts}
    notes = [
        Note(
            NoteCode.VICTIM_CANNOT_SAVE,
            About.WORKLOAD,
            effect.subject.name,
            facts=(Evidence("start_of", start_of.get(effect.proposal_id, "the waiting gang")),),
        )
        for effect in effects
    ]
    work, lost = observation.snapshot.workloads, planner.ctx.losses.worst_gpu_s
    for effect in instructions:
        if effect.operation.save == Save.SKIP:
            lost_gpu_s = float(lost[work.id == effect.subject.name].sum())
            notes.append(Note(NoteCode.NO_TURN_TO_SAVE, About.WORKLOAD, effect.subject.name, lost_gpu_s, "GPU-s"))
    return (*notes, *planner.ctx.plan.notes)


def _stand_still(memory: ControllerMemory, observation: Observation, policy: Policy, why: str) -> Step:
    """The clock is not believed: nothing is decided, but commands and outcomes are kept."""
    obeyed = obey(memory, observation.commands, memory.now_s, policy)
    memory = absorb(obeyed.memory, replace(observation, now_s=memory.now_s), policy, blind=True, resumed=obeyed.resumed)
    memory = follow_errors(memory, observation.snapshot, trusted=False)
    decision = Decision(observation.tick, observation.now_s, Plan((), no_refusals(), (), ()), why, obeyed.notes)
    return Step(replace(memory, tick=observation.tick), decision, (), observation.now_s + 1.0)


def _blind(
    memory: ControllerMemory,
    observation: Observation,
    policy: Policy,
    sight: Sight,
    notes: tuple[Note, ...],
    *,
    resumed: bool,
) -> Step:
    """The view is not fresh, complete or plausible: outcomes, commands and errors count, and nothing is started."""
    memory = absorb(memory, observation, policy, blind=True, resumed=resumed)
    memory = follow_errors(memory, observation.snapshot, trusted=False)
    wake_at_s = min(wake_s for wake_s in sight.wake_s if wake_s > observation.now_s)
    memory = replace(memory, tick=observation.tick, now_s=observation.now_s, wake_at_s=wake_at_s)
    why = "; ".join(reason for reason in (halted(memory, observation), sight.blind) if reason)
    plan = Plan((), no_refusals(), memory.plan.reservations, ())
    return Step(memory, Decision(observation.tick, observation.now_s, plan, why, notes), (), wake_at_s)


def _commit(
    memory: ControllerMemory, observation: Observation, policy: Policy, chosen: Plan, planner: Planner
) -> tuple[ControllerMemory, tuple[Instruction, ...]]:
    """Memory after this plan, and its instructions in order (evictions before admissions of one tick)."""
    now_s = observation.now_s
    in_flight, disrupted, pipelined_starts = (
        dict(memory.effects.in_flight),
        list(memory.budget.disrupted),
        list(memory.starts.pipelined_starts),
    )
    cooled, moves_tried, recuts = dict(memory.budget.cooled_until_s), {}, dict(memory.geometry.recuts)
    evictions: list[Instruction] = []
    admissions: list[Instruction] = []
    for proposal in chosen.proposals:
        if proposal.victims and not proposal.accepted:
            key = proposal_key(proposal)
            moves_tried[key] = memory.plan.proposed_since_s.get(key, now_s)
        if not proposal.accepted:
            continue
        late_s = now_s + proposal.change.deadline_s(policy)
        recuts = dict(proposal.change.recorded(recuts, proposal.subject.uid, now_s, late_s))
        if proposal.change.waits_for_victims:
            pipelined_starts.append(landing_of(proposal, planner, observation, policy))
        for effect in effects_of(proposal, planner.cases[proposal.id], observation, policy, memory.fence):
            in_flight[effect.id] = _issued(effect, proposal, planner, observation)
            (admissions if effect.operation.needs_room else evictions).append(effect)
        enter_in_ledger(planner.disruptions.get(proposal.id, ()), disrupted, cooled, now_s, policy)
    recuts = beside(let_go(recuts, planner.ctx.plan.gone, now_s), observation.snapshot, now_s)
    for record in planner.ctx.standing.values():
        if record.workload in chosen.released:
            cooled[record.uid] = now_s + policy.reservation.cool_down_s
    memory = remember_open_proposals(memory, chosen.proposals, observation, policy)
    in_turns = in_turn(
        evictions,
        memory.effects.in_flight.values(),
        observation.snapshot,
        planner.ctx.losses.worst_gpu_s,
        now_s,
        policy,
    )
    for effect in in_turns:
        in_flight[effect.id] = replace(in_flight[effect.id], instruction=effect)
    memory = with_marks(remember_stops(memory, in_turns, chosen.proposals, observation), chosen.proposals, now_s)
    memory = with_cordons(remember_promises(memory, planner.promises), chosen.proposals, now_s)
    memory = with_ceilings(with_requests(memory, chosen.proposals, now_s), chosen.proposals)
    memory = replace(
        memory,
        effects=replace(memory.effects, in_flight=in_flight),
        budget=replace(memory.budget, disrupted=tuple(disrupted), cooled_until_s=cooled),
        plan=replace(
            memory.plan,
            proposed_since_s=moves_tried,
            conditions=tuple(Noted(*entry) for entry in planner.ctx.plan.conditions.items()),
            advance=planner.ctx.plan.advance,
            reservations=chosen.reservations,
        ),
        starts=replace(memory.starts, pipelined_starts=tuple(pipelined_starts)),
        geometry=replace(memory.geometry, recuts=recuts),
    )
    return memory, (*in_turns, *admissions)


def _issued(effect: Instruction, proposal: Proposal, planner: Planner, observation: Observation) -> InFlight:
    """The effect of a proposal, about to be sent."""
    entries = planner.disruptions.get(proposal.id, ())
    starts = effect.operation.needs_room
    return InFlight(
        effect,
        "issued",
        observation.now_s,
        proposal.action,
        proposal.tenant,
        proposal.cost_gpu_s,
        bool(entries) and all(entry.contract for entry in entries),
        benefit_gpu_s=proposal.benefit_gpu_s,
        digest=proposal.state_digest,
        shape=shape_digest(observation.snapshot, planner.rows[effect.subject.uid]) if starts else "",
        kind=proposal.kind,
        reason=proposal.reason,
    )


def _wake_at(
    memory: ControllerMemory,
    observation: Observation,
    policy: Policy,
    chosen: Plan,
    planner: Planner,
    actions: tuple[Action, ...],
) -> float:
    """The earliest time at which this decision could change without a new event; inf if it could not.

    Timers are the end of a pause, an approval or a rejection; dwell, cool-down and guaranteed run time that delay a
    proposal; budget entries that leave the window; a reservation that outlives its promise; and the next review while
    work waits. The shell adds the deadlines of open effects (lifecycle.next_deadline_s).
    """
    now_s = observation.now_s
    if planner.bound_hit:
        return now_s + 1.0
    timers: list[float] = []
    timers += [memory.plan.proposed_since_s[key] + dwell for key, dwell in planner.dwells_s.items()]
    timers += [*memory.budget.cooled_until_s.values(), *memory.starts.no_pipelined_until_s.values()]
    timers += memory.effects.refused_until_s.values()
    timers += command_timers_s(memory, policy)
    timers += [pipelined.deadline_s for pipelined in memory.starts.pipelined_starts]
    timers += floor_timers_s(memory, observation, policy)
    timers += recut_timers_s(memory, policy, now_s)
    timers += storm_timers_s(memory, policy)
    timers += planner.ctx.plan.wake_s
    timers += _guaranteed_until_s(planner.ctx, chosen)
    timers += [timer for action in actions for timer in action.timers(planner.ctx)]
    if any(entry.state == "reported" for entry in memory.effects.in_flight.values()):
        timers.append(now_s + policy.views.look_again_s)
    if memory.plan.proposed_since_s:
        timers += [entry.at_s + policy.budget.window_s for entry in memory.budget.disrupted]
    timers += [
        entry.at_s + CONTRACT_WINDOW_S for entry in memory.budget.disrupted if entry.contract and entry.beneficiary
    ]
    timers += [record.planned_s + policy.reservation.timeout_s for record in chosen.reservations]
    timers.append(_next_review_s(chosen, planner, policy))
    return min((timer for timer in timers if timer > now_s), default=float("inf"))


def _guaranteed_until_s(ctx: Context, chosen: Plan) -> list[float]:
    """When the guaranteed run time of victims ends, where it alone protects them."""
    sheltered = {
        victim.workload
        for proposal in chosen.proposals
        if not proposal.accepted and any(verdict.code == Code.MIN_RUNTIME for verdict in proposal.verdicts)
        for victim in proposal.victims
    }
    if not sheltered:
        return []
    work = ctx.observation.snapshot.workloads
    rows, starts_s = named(work.id, sheltered), running_since(work)
    lengths_s = (ctx.stops.guaranteed_s, ctx.policy.protection.min_runtime_s)  # earlier stops do not count for all
    return [until_s for length_s in lengths_s for until_s in (starts_s + length_s)[rows].tolist()]


def _next_review_s(chosen: Plan, planner: Planner, policy: Policy) -> float:
    """The next review at which time alone could change this decision; inf for never.

    It is the next review while the order ages, a guard holds a proposal, or room is held on forecasts that change with
    time. Otherwise it is the first review after a gang becomes overdue, its reservation becomes firm, or a running gang
    outlives its forecast.
    """
    ctx = planner.ctx
    if not len(ctx.pending):
        return float("inf")
    period_s = policy.review.batch_s
    next_s = review_start(ctx.now_s, policy) + period_s
    gated = any(not proposal.change.only_holds and not proposal.accepted for proposal in chosen.proposals)
    if gated or _past_moves(ctx) or policy.order.aging_exponent > 0 or (ctx.plan.held and _forecasts_move(ctx)):
        return next_s
    submit_s = ctx.observation.snapshot.workloads.submit_s[ctx.pending]
    crossings = [submit_s + policy.order.max_wait_s, submit_s + policy.reservation.firm_after_s]
    if ctx.plan.held:
        ends_s = ctx.end_s[np.isfinite(ctx.end_s)]
        crossings += [ends_s, ends_s - period_s]  # an end set by a declared limit moves one period before it
    later = np.concatenate(crossings)
    later = later[later >= ctx.review_now_s]  # `overdue` begins only after its instant: one more review
    if not len(later):
        return float("inf")
    return max(float(np.ceil(later.min() / period_s) * period_s), next_s)


def _past_moves(ctx: Context) -> bool:
    """True when the past use of queues changes their shares with time."""
    rules, memory = ctx.policy.tenancy, ctx.memory
    return bool(rules.usage_half_life_s and rules.usage_weight and (memory.use.usage_gpu_s or memory.use.held_gpus))


def _forecasts_move(ctx: Context) -> bool:
    """True when a running gang's predicted end changes with time: its forecast has a spread, or was outlived."""
    forecast, work = ctx.observation.forecasts.runtimes, ctx.observation.snapshot.workloads
    rows = np.flatnonzero(np.isfinite(ctx.end_s))
    if forecast is None or not len(rows):
        return False
    low, high = forecast.total_s[rows, 0], forecast.total_s[rows, -1]
    outlived_s = progress_s(work, rows.astype(np.int32), ctx.review_now_s)[1]
    return bool(((high > low) | (outlived_s >= high)).any())
