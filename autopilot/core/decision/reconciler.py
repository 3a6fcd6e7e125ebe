"""reconcile(memory, observation, policy) -> Step: the one function that decides.

It is pure: live operation, replay and simulation are shells around it. First each capability follows the observation in
the memory (the table in core/capabilities/memory.py), then the planner plans, then each capability keeps its part of
the decision and names the time for the next one (`wake_at_s`). With a doubtful clock, or an incomplete view, it starts
nothing.
"""

from __future__ import annotations

from dataclasses import replace

from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.capabilities.guards import GUARDS
from autopilot.core.capabilities.memory import CAPABILITIES, absorb, commit
from autopilot.core.decision.instructing import carry_out
from autopilot.core.decision.intake_facts import IntakeFacts
from autopilot.core.decision.planner import Planner, plan_on
from autopilot.core.decision.underway import follow
from autopilot.core.decision.waking import wake_at
from autopilot.core.effects.action import Action
from autopilot.core.effects.halt import halted
from autopilot.core.facts.table import Kept
from autopilot.core.guards.base import Check
from autopilot.core.intake.clock import Reading
from autopilot.core.intake.commands import obey
from autopilot.core.intake.sight import Sight
from autopilot.core.intake.usage.facts import SnapshotFacts
from autopilot.core.model.capability import Tick
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import (
    About,
    Decision,
    Evidence,
    Instruction,
    Note,
    NoteCode,
    Observation,
    OutcomeKind,
    Plan,
    Save,
    no_refusals,
)
from autopilot.core.model.verb import START
from autopilot.core.planning.ordering.predicted_ends import review_start
from autopilot.core.quota.protection import let_start


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

    `kept`: facts known already, from the shell's look at the same observation or from an earlier tick.
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
    policy = intake.in_force
    facts = SnapshotFacts(observation=observation, policy=policy, kept=kept)
    tick = Tick(before, observation, policy, review_start(observation.now_s, policy), resumed=obeyed.resumed)
    memory = absorb(memory, tick)
    held_by = halted(memory, observation)
    moving = follow(memory, facts, actions, guards, halted=bool(held_by))
    chosen, planner = plan_on(moving.ctx, actions, guards)
    starts = {each.subject.uid for each in chosen.proposals if each.accepted and each.change.wish == START}
    protected = planner.ctx.quota.protected
    planner.ctx.plan.remember(let_start(observation.snapshot.workloads, protected, starts, observation.now_s))
    planned, instructions = carry_out(chosen, planner, moving.memory)
    memory = commit(moving.memory, planned)
    instructions = () if held_by else (*moving.again, *instructions, *moving.starts)
    wake_at_s = wake_at(memory, planned, planner, actions)
    memory = replace(memory, tick=observation.tick, now_s=observation.now_s, wake_at_s=wake_at_s)
    notes = (*notes, *tick.notes, *moving.notes, *_notes(before, observation, planner, instructions))
    for each in CAPABILITIES:
        notes += each.notes(before, memory, policy) if each.notes is not None else ()
    return Step(
        memory,
        Decision(observation.tick, observation.now_s, chosen, held_by, notes, tick.losses, tick.realised),
        instructions,
        wake_at_s,
    )


def _clock_note(clock: Reading) -> tuple[Note, ...]:
    """A note on a clock set anew."""
    if not clock.moved_s:
        return ()
    return (Note(NoteCode.CLOCK_MOVED, About.CONTROLLER, "", round(clock.moved_s, 3), "s"),)


def _notes(
    before: ControllerMemory, observation: Observation, planner: Planner, instructions: tuple[Instruction, ...]
) -> tuple[Note, ...]:
    """Notes beside the plan: preemptions ended by an unsaved victim, and losses without a turn at the store."""
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
    then = replace(observation, now_s=memory.now_s)
    memory = absorb(obeyed.memory, Tick(memory, then, policy, blind=True, resumed=obeyed.resumed))
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
    memory = absorb(memory, Tick(memory, observation, policy, blind=True, resumed=resumed))
    wake_at_s = min(wake_s for wake_s in sight.wake_s if wake_s > observation.now_s)
    memory = replace(memory, tick=observation.tick, now_s=observation.now_s, wake_at_s=wake_at_s)
    why = "; ".join(reason for reason in (halted(memory, observation), sight.blind) if reason)
    plan = Plan((), no_refusals(), memory.plan.reservations, ())
    return Step(memory, Decision(observation.tick, observation.now_s, plan, why, notes), (), wake_at_s)
