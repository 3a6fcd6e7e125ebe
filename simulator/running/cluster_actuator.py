"""Effects in the simulated world: the controller's instructions, carried out on the simulated cluster.

`ClusterActuator` does what an instruction asks or returns why not; it judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from autopilot.core.model.objects import SubjectKind
from autopilot.core.model.operations import (
    AdmitOperation,
    CeilingOperation,
    CordonOperation,
    EvictOperation,
    NotifyOperation,
    OfferOperation,
    ProvisionOperation,
    RecutOperation,
    ScaleOperation,
    StopReason,
)
from autopilot.core.model.records import Instruction, Outcome, OutcomeKind
from autopilot.core.model.snapshot import (
    State,
)
from simulator.world.cluster import Cluster
from simulator.world.facts import Cordoned
from simulator.world.hardware import Refusal
from simulator.world.work import uid_of

CHANGED = (
    Refusal.OTHER_OBJECT,
    Refusal.OTHER_INCARNATION,
    Refusal.NOT_PENDING,
    Refusal.NOT_HOLDING,
    Refusal.LEAVING,
    Refusal.STALE,
    Refusal.OTHER_GEOMETRY,
    Refusal.NOT_IDLE,
)


OUTCOMES = {**dict.fromkeys(CHANGED, OutcomeKind.CONFLICT), Refusal.UNSAVED: OutcomeKind.DECLINED}
"""Outcomes of refusals: the object changed before the effect came, or the work keeps its GPUs. The rest are
failures.
"""


Scale = Callable[[str, int, float, int, float, str, str], str]
"""Sets a service's floor or ceiling: name, replicas, until when, generation, now, effect, uid -> reason for a refusal
("" on success).
"""


class ClusterActuator:
    """Carries out admissions, evictions, resizes and floors on the simulated cluster, once per instruction id."""

    name = "simulated-cluster"

    def __init__(
        self,
        cluster: Cluster,
        fault: Callable[[Instruction, float], Outcome | None] | None = None,
        scale: Scale | None = None,
        ceil: Scale | None = None,
    ) -> None:
        """`fault` may replace the cluster's answer (injected conflicts and failures); `scale` and `ceil`
        None: no services.
        """
        self._cluster, self._fault, self._scale = cluster, fault, scale
        self._ceil = ceil
        self._done: dict[str, Outcome] = {}
        self._job = {name: row for row, name in enumerate(cluster.jobs.id)}
        self._gpu = {name: row for row, name in enumerate(cluster.inventory.gpus.uuid.tolist())}
        self._node = {name: row for row, name in enumerate(cluster.inventory.nodes.id.tolist())}
        self.changed = False  # an eviction or a resize changed what is free at once

    def apply(self, instruction: Instruction, now_s: float) -> Outcome:
        """Admit, evict or resize; a repeated id returns the first outcome."""
        known = self._done.get(instruction.id)
        if known is not None:
            return known
        subject = instruction.subject
        job = self._row_of(subject.name) if subject.kind == SubjectKind.WORKLOAD else None
        gpu = self._gpu.get(subject.uid) if subject.kind == SubjectKind.GPU else None
        node = self._node.get(subject.uid) if subject.kind == SubjectKind.NODE else None
        if node is not None:
            self._cluster.decided(instruction.id, instruction.kind, node, now_s)
        if gpu is not None:
            self._cluster.decided(instruction.id, instruction.kind, gpu, now_s)
        if job is not None:
            self._cluster.decided(instruction.id, instruction.kind, job, now_s)
        injected = self._fault(instruction, now_s) if self._fault else None
        if injected is not None:
            return injected
        if isinstance(instruction.operation, ScaleOperation):
            return self._remember(self._set_bound(self._scale, instruction, instruction.operation, now_s))
        if isinstance(instruction.operation, CeilingOperation):
            return self._remember(self._set_bound(self._ceil, instruction, instruction.operation, now_s))
        if isinstance(instruction.operation, RecutOperation):
            return self._remember(self._recut(instruction, instruction.operation, gpu, now_s))
        if isinstance(instruction.operation, CordonOperation):
            return self._remember(self._cordon(instruction, instruction.operation, node, now_s))
        if isinstance(instruction.operation, OfferOperation):  # nobody removes the node
            return self._remember(Outcome(instruction.id, OutcomeKind.DONE, now_s))
        if isinstance(instruction.operation, ProvisionOperation):
            return self._remember(self._ask_for_nodes(instruction, instruction.operation, now_s))
        if job is None:
            refusal: Refusal | None = Refusal.NOT_PENDING
        elif subject.uid != uid_of("job", job):
            refusal = Refusal.OTHER_OBJECT
        else:
            refusal = self._act(instruction, job, now_s)
        if refusal is None:
            outcome = Outcome(instruction.id, self._progress(instruction), now_s)
        else:
            kind = OUTCOMES.get(refusal, OutcomeKind.FAILED)
            outcome = Outcome(instruction.id, kind, now_s, str(refusal.value))
        return self._remember(outcome)

    def _remember(self, outcome: Outcome) -> Outcome:
        self._done[outcome.instruction_id] = outcome
        return outcome

    def _set_bound(
        self, to: Scale | None, instruction: Instruction, bound: ScaleOperation | CeilingOperation, now_s: float
    ) -> Outcome:
        """Set the floor or the ceiling of a service; additional replicas are pending at once."""
        if to is None:
            return Outcome(instruction.id, OutcomeKind.FAILED, now_s, "there are no services")
        reason = to(
            instruction.subject.name,
            bound.replicas,
            bound.until_s,
            instruction.subject.revision,
            now_s,
            instruction.id,
            instruction.subject.uid,
        )
        self.changed |= not reason
        return Outcome(instruction.id, OutcomeKind.CONFLICT if reason else OutcomeKind.DONE, now_s, reason)

    def _cordon(self, instruction: Instruction, cordon: CordonOperation, node: int | None, now_s: float) -> Outcome:
        """Close a node to new work, or open it."""
        if node is None:
            return Outcome(instruction.id, OutcomeKind.CONFLICT, now_s, "the node is gone")
        self._cluster.publish(Cordoned(now_s, node, cordon.on, instruction.id))
        self._cluster.cordon(node, now_s, cordoned=cordon.on)
        self.changed |= not cordon.on
        return Outcome(instruction.id, OutcomeKind.DONE, now_s)

    def _ask_for_nodes(self, instruction: Instruction, asked: ProvisionOperation, now_s: float) -> Outcome:
        """The nodes come later; the request is over when its gang has started."""
        reason = self._cluster.growing.ask(asked.pool, asked.nodes, now_s)
        kind = OutcomeKind.CONFLICT if reason else OutcomeKind.ACCEPTED
        return Outcome(instruction.id, kind, now_s, reason)

    def _recut(self, instruction: Instruction, change: RecutOperation, gpu: int | None, now_s: float) -> Outcome:
        """Begin a change of geometry; its node reports the progress and the result."""
        refusal: Refusal | None = Refusal.OTHER_OBJECT
        if gpu is not None:
            refusal = self._cluster.recuts.begin(
                gpu, change.before, change.after, now_s, effect=instruction.id, scope=change.scope
            )
        self.changed |= refusal is None
        if refusal is None:
            return Outcome(instruction.id, OutcomeKind.ACCEPTED, now_s)
        return Outcome(instruction.id, OUTCOMES.get(refusal, OutcomeKind.FAILED), now_s, str(refusal.value))

    def _progress(self, instruction: Instruction) -> OutcomeKind:
        """Work that saves a checkpoint before it leaves still holds its GPUs: its eviction is under way."""
        job = self._row_of(instruction.subject.name)
        leaving = job is not None and self._cluster.state[job] == State.CHECKPOINTING
        evicts = isinstance(instruction.operation, EvictOperation)
        return OutcomeKind.ACCEPTED if leaving and evicts else OutcomeKind.DONE

    def _act(self, instruction: Instruction, job: int, now_s: float) -> Refusal | None:
        cluster, operation, incarnation = self._cluster, instruction.operation, instruction.subject.revision
        if isinstance(operation, EvictOperation):
            reason = operation.reason
            refusal = cluster.evict(
                job,
                now_s,
                moving=reason.continues_elsewhere,
                recover=reason.for_itself,
                contract=cluster.backfilled[job] or reason.by_contract,
                suspend=reason == StopReason.SUSPEND,
                ahead=reason == StopReason.MOVE_AHEAD,
                drain=reason == StopReason.DRAIN,
                park=reason == StopReason.IDLE,
                save=operation.save,
                effect=instruction.id,
                incarnation=incarnation,
            )
            self.changed |= refusal is None
            return refusal
        if isinstance(operation, NotifyOperation):
            return cluster.notify(job, now_s, operation.grace_s, effect=instruction.id, incarnation=incarnation)
        gpus = [self._gpu[slot.gpu] for slot in operation.slots]
        if isinstance(operation, AdmitOperation):
            instances = [self._instance_row(slot.instance) for slot in operation.slots if slot.instance]
            return cluster.start(
                job,
                gpus,
                now_s,
                instances=instances,
                backfill=operation.backfill,
                effect=instruction.id,
                incarnation=incarnation,
            )
        refusal = cluster.resize(job, gpus, now_s, effect=instruction.id, incarnation=incarnation)
        self.changed |= refusal is None
        return refusal

    def _instance_row(self, name: str) -> int:
        """Row of the instance "<UUID>/<GPU instance id>"; the newest with that name."""
        uuid, gi_id = name.rsplit("/", 1)
        rows = self._cluster.hardware.cut.get(self._gpu[uuid], ())
        return next((row for row in rows if self._cluster.hardware.instances[row].gi_id == int(gi_id)), -1)

    def _row_of(self, name: str) -> int | None:
        if name not in self._job:
            for row in range(len(self._job), len(self._cluster.jobs.id)):
                self._job[self._cluster.jobs.id[row]] = row
        return self._job.get(name)
