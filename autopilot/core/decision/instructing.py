"""What an accepted proposal becomes: its instructions, and the start that waits for its victims."""

from __future__ import annotations

from collections.abc import Iterable

from autopilot.core.decision.planner import Planner
from autopilot.core.model.changes import (
    AdmitChange,
    CeilingChange,
    CordonChange,
    DrainChange,
    EvictChange,
    GrowChange,
    MoveChange,
    NotifyChange,
    OfferChange,
    PipelineChange,
    ProvisionChange,
    RecutChange,
    ScaleChange,
)
from autopilot.core.model.identity import shape_digest
from autopilot.core.model.memory import Part, PipelinedStart
from autopilot.core.model.objects import SideEffect, Taken
from autopilot.core.model.operations import (
    AdmitOperation,
    CeilingOperation,
    CordonOperation,
    EvictOperation,
    NotifyOperation,
    OfferOperation,
    Operation,
    ProvisionOperation,
    RecutOperation,
    ResizeOperation,
    ScaleOperation,
    StopReason,
)
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Code, Instruction, Observation, Proposal, Save, Subject, SubjectKind
from autopilot.core.planning.draft import Case


def quota_from(effects: Iterable[SideEffect]) -> dict[str, str]:
    """The waiting work whose quota a start takes: names by uid."""
    return {each.uid: each.workload for each in effects if each.what == Taken.QUOTA}


def shape_of_start(proposal: Proposal, observation: Observation, planner: Planner) -> str:
    """Digest of the present request of a gang that starts; "" where none starts."""
    if not isinstance(proposal.change, AdmitChange | GrowChange):
        return ""
    return shape_digest(observation.snapshot, planner.rows[proposal.subject.uid])


def waits_for_victims(proposal: Proposal) -> bool:
    """True where something starts once the victims have left: the gang itself, or victims that move."""
    if isinstance(proposal.change, DrainChange):
        return bool(proposal.victims)
    return isinstance(proposal.change, PipelineChange | MoveChange)


def landing_of(proposal: Proposal, planner: Planner, observation: Observation, policy: Policy) -> PipelinedStart:
    """What memory keeps of a start that waits for its victims."""
    now_s, waits, subject = observation.now_s, planner.waits.get(proposal.id, ()), proposal.subject

    def shape(uid: str) -> str:
        return shape_digest(observation.snapshot, planner.rows[uid])

    parts, name, uid = [], subject.name, subject.uid
    if isinstance(proposal.change, DrainChange):  # it waits for nothing but its moves
        name, uid = proposal.victims[0].workload, proposal.victims[0].uid
    if isinstance(proposal.change, PipelineChange):
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
        name,
        (*proposal.victims, *waits),
        tuple(parts),
        now_s,
        now_s + policy.preemption.pipelined_timeout_s,
        all(victim.contract for victim in proposal.victims),
        uid,
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
    if isinstance(change, EvictChange) and change.gone_s is not None:  # it stands on what is taken away
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
    operation: Operation | None = None
    match change:
        case ScaleChange(replicas=replicas, until_s=until_s):
            operation = ScaleOperation(replicas=replicas, until_s=until_s)
        case CeilingChange(replicas=replicas, until_s=until_s):
            operation = CeilingOperation(replicas=replicas, until_s=until_s)
        case AdmitChange(slots=slots):
            operation = AdmitOperation(slots=slots, backfill=case.fills_gap, quota_from=quota_from(change.side_effects))
        case GrowChange(slots=slots):
            operation = ResizeOperation(slots=slots)
        case RecutChange(before=before, after=after, scope=scope, node=node, index=index):
            operation = RecutOperation(before=before, after=after, scope=scope, node=node, index=index)
            deadline_s = observation.now_s + policy.regeometry.deadline_s
        case CordonChange(on=on):
            facts = {each.name: each.value for each in proposal.evidence}
            operation = CordonOperation(on=on, reason=f"{facts.get('error', 'repaired')} on {facts.get('gpu', 'it')}")
        case OfferChange(on=on):
            facts = {each.name: each.value for each in proposal.evidence}
            operation = OfferOperation(on=on, reason=str(facts.get("why", "")))
        case ProvisionChange(pool=pool, nodes=nodes):
            asked = policy.capacity.provisioning_class
            operation = ProvisionOperation(pool=pool, nodes=nodes, provisioning_class=asked)
            deadline_s = observation.now_s + policy.capacity.deadline_s
        case NotifyChange(gpus=gpus, idle_s=idle_s, grace_s=noticed_s):
            operation = NotifyOperation(gpus=gpus, idle_s=idle_s, grace_s=noticed_s)
    if operation is not None:
        effects.append(Instruction(prefix, proposal.subject, operation, deadline_s, fence, proposal.id))
    return effects
