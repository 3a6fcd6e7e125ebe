"""The accepted proposals of a plan turned into instructions in order, and into starts that wait for their victims."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from autopilot.core.decision.planner import Planner
from autopilot.core.effects.disruption import proposal_key
from autopilot.core.effects.draft import Case
from autopilot.core.effects.evict import EvictOperation
from autopilot.core.model.capability import Planned
from autopilot.core.model.identity import shape_digest
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.effects import InFlight
from autopilot.core.model.memory.plan import Noted
from autopilot.core.model.memory.starts import Part, PipelinedStart
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Code, Instruction, Observation, Plan, Proposal, Save, Subject, SubjectKind
from autopilot.core.model.stops import StopReason
from autopilot.core.planning.lending import parts_gpus
from autopilot.core.planning.writers import in_turn
from autopilot.core.sharing_time.resize_members import ResizeOperation


def carry_out(plan: Plan, planner: Planner, memory: ControllerMemory) -> tuple[Planned, tuple[Instruction, ...]]:
    """The remains of a plan for the capabilities, and its instructions (evictions before admissions of one tick)."""
    ctx, observation, policy = planner.ctx, planner.ctx.observation, planner.ctx.policy
    accepted = [proposal for proposal in plan.proposals if proposal.accepted]
    issued: dict[str, InFlight] = {}
    for proposal in accepted:
        for effect in effects_of(proposal, planner.cases[proposal.id], observation, policy, memory.fence):
            issued[effect.id] = _issued(effect, proposal, planner, observation)
    effects = [entry.instruction for entry in issued.values()]
    stops = in_turn(
        [effect for effect in effects if not effect.operation.needs_room],
        memory.effects.in_flight.values(),
        observation.snapshot,
        ctx.losses.worst_gpu_s,
        observation.now_s,
        policy,
    )
    for effect in stops:
        issued[effect.id] = replace(issued[effect.id], instruction=effect)
    planned = Planned(
        observation,
        policy,
        plan,
        effects=tuple(issued.values()),
        stops=stops,
        starts=tuple(
            landing_of(each, planner, observation, policy) for each in accepted if each.change.waits_for_victims
        ),
        disruptions=tuple(entry for each in accepted for entry in planner.disruptions.get(each.id, ())),
        promises=tuple(planner.promises),
        released=tuple(each.uid for each in ctx.standing.values() if each.workload in plan.released),
        conditions=tuple(Noted(*entry) for entry in ctx.plan.conditions.items()),
        advance=ctx.plan.advance,
        drained=frozenset(ctx.plan.gone),
        unneeded=ctx.plan.unneeded,
        part_gpus=parts_gpus(ctx),
        wishes_s={
            key: planner.dwells_s.get(key, inf)
            for key in (proposal_key(each) for each in plan.proposals if each.victims and not each.accepted)
        },
    )
    return planned, (*stops, *(effect for effect in effects if effect.operation.needs_room))


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


def landing_of(proposal: Proposal, planner: Planner, observation: Observation, policy: Policy) -> PipelinedStart:
    """The entry in memory for a start that waits for its victims."""
    now_s, waits, subject = observation.now_s, planner.waits.get(proposal.id, ()), proposal.subject

    def shape(uid: str) -> str:
        return shape_digest(observation.snapshot, planner.rows[uid])

    parts, waiter = [], proposal.change.beneficiary(subject)
    if proposal.change.brings_itself:
        parts.append(Part(subject.name, subject.revision, proposal.slots, subject.uid, shape(subject.uid)))
    parts += [
        Part(victim.workload, victim.incarnation + 1, victim.keeps, victim.uid, shape(victim.uid))
        for victim in proposal.victims
        if victim.how == "move"
    ]
    return PipelinedStart(
        proposal.id,
        proposal.action,
        proposal.tenant,
        waiter.name,
        (*proposal.victims, *waits),
        tuple(parts),
        now_s,
        now_s + policy.preemption.pipelined_timeout_s,
        all(victim.contract for victim in proposal.victims),
        waiter.uid,
        proposal.benefit_gpu_s,
        proposal.cost_gpu_s,
        proposal.state_digest,
    )


def effects_of(
    proposal: Proposal, case: Case, observation: Observation, policy: Policy, fence: int
) -> list[Instruction]:
    """The instructions of one accepted proposal. A reservation has none: it lives in memory.

    The deadline of an eviction includes its grace. A start that waits for victims is instructed after they have left. A
    victim without a contract keeps its place if it cannot save in time, unless the policy says otherwise.
    """
    rules, change = policy.preemption, proposal.change
    grace_s = rules.grace_s
    if change.gone_s is not None:  # it stands on what is taken away
        left_s = change.gone_s - observation.now_s
        grace_s = left_s if 0 <= left_s < grace_s else grace_s
    deadline_s = observation.now_s + policy.limits.deadline_s
    prefix = f"{observation.tick}/{proposal.id}"
    effects = []
    for victim in proposal.victims:
        shrinks = victim.how == "shrink"
        reason = case.takes
        if victim.how == "move":
            moving = case.takes if case.takes.continues_elsewhere else StopReason.MOVE
            reason = StopReason.RECLAIM_MOVE if victim.contract else moving
        may_lose = victim.contract or Code.WITHOUT_CHECKPOINT in case.exempt or rules.without_checkpoint
        effects.append(
            Instruction(
                f"{prefix}/{'resize' if shrinks else 'evict'}-{victim.workload}",
                Subject(SubjectKind.WORKLOAD, victim.workload, victim.uid, victim.incarnation),
                ResizeOperation(slots=victim.keeps, reason=reason)
                if shrinks
                else EvictOperation(reason=reason, grace_s=grace_s, save=Save.TRY if may_lose else Save.MUST),
                deadline_s + grace_s,
                fence,
                proposal.id,
            )
        )
    operation = change.operation(fills_gap=case.fills_gap)
    if operation is not None:
        deadline_s = observation.now_s + change.deadline_s(policy)
        effects.append(Instruction(prefix, proposal.subject, operation, deadline_s, fence, proposal.id))
    return effects
