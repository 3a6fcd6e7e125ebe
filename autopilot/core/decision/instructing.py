"""What an accepted proposal becomes: its instructions, and the start that waits for its victims."""

from __future__ import annotations

from autopilot.core.decision.planner import Planner
from autopilot.core.model.identity import shape_digest
from autopilot.core.model.memory.starts import Part, PipelinedStart
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Code, Instruction, Observation, Proposal, Save, Subject, SubjectKind
from autopilot.core.model.stops import StopReason
from autopilot.core.planning.draft import Case
from autopilot.core.verbs.evict import EvictOperation
from autopilot.core.verbs.resize import ResizeOperation


def landing_of(proposal: Proposal, planner: Planner, observation: Observation, policy: Policy) -> PipelinedStart:
    """What memory keeps of a start that waits for its victims."""
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

    The deadline of an eviction includes its grace. A start that waits for victims is instructed when they have left. A
    victim without a contract keeps its place when it cannot save in time, unless the policy says otherwise.
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
