"""Effects in the simulated world: the controller's instructions, carried out on the simulated cluster.

`ClusterActuator` carries out an instruction or returns the reason of a refusal; it judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.effects.evict import EvictOperation
from autopilot.core.geometry.recut import RecutGpu
from autopilot.core.idle.ceiling import Ceiling
from autopilot.core.idle.notify import Notify
from autopilot.core.model.objects import Sharing, SubjectKind
from autopilot.core.model.records import Instruction, Outcome, OutcomeKind
from autopilot.core.model.snapshot import (
    State,
)
from autopilot.core.model.stops import StopReason
from autopilot.core.model.verb import asked
from autopilot.core.neighbours.pausing import Pause
from autopilot.core.nodes.provision import Provision
from autopilot.core.recovery.cordon import Cordon
from autopilot.core.replicas.scale import Scale
from autopilot.core.sharing.set_sharing import SetSharing, sharing_words
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
    Refusal.OTHER_SHARING,
    Refusal.NOT_PAUSED,
)


OUTCOMES = {**dict.fromkeys(CHANGED, OutcomeKind.CONFLICT), Refusal.UNSAVED: OutcomeKind.DECLINED}
"""Outcomes of refusals: the object changed before the effect came, or the work keeps its GPUs. The rest are
failures.
"""


SetBound = Callable[[str, int, float, int, float, str, str], str]
"""Sets a service's floor or ceiling: name, replicas, until when, generation, now, effect, uid -> reason for a refusal
("" on success).
"""
Act = Callable[[Instruction, int, float], Refusal | None]
"""Carries out an instruction on a job (row) now."""
Way = Callable[[Instruction, float], Outcome]
"""Carries out an instruction now."""


def _outcome(instruction: Instruction, refusal: Refusal | None, done: OutcomeKind, now_s: float) -> Outcome:
    """`done`, or the meaning of the cluster's refusal."""
    if refusal is None:
        return Outcome(instruction.id, done, now_s)
    return Outcome(instruction.id, OUTCOMES.get(refusal, OutcomeKind.FAILED), now_s, str(refusal.value))


class ClusterActuator:
    """Carries out admissions, evictions, resizes and floors on the simulated cluster, once per instruction id."""

    name = "simulated-cluster"

    def __init__(
        self,
        cluster: Cluster,
        fault: Callable[[Instruction, float], Outcome | None] | None = None,
        scale: SetBound | None = None,
        ceil: SetBound | None = None,
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
        self._ways: dict[str, Way] = {
            "admit": self._to_job(self._admit),
            "evict": self._to_job(self._evict),
            "resize": self._to_job(self._resize),
            "notify": self._to_job(self._notify),
            "pause": self._to_job(self._pause),
            "resume": self._to_job(self._resume),
            "scale": self._floor,
            "ceiling": self._ceiling,
            "recut": self._recut,
            "cordon": self._cordon,
            "provision": self._ask_for_nodes,
            "offer": self._offer,
            "set_sharing": self._set_sharing,
        }
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
        return self._remember(self._ways[instruction.kind](instruction, now_s))

    def _remember(self, outcome: Outcome) -> Outcome:
        self._done[outcome.instruction_id] = outcome
        return outcome

    def _floor(self, instruction: Instruction, now_s: float) -> Outcome:
        """Set the floor of a service, or give it back."""
        floor = asked(instruction.operation, Scale)
        return self._bound(self._scale, instruction, floor.replicas, floor.until_s, now_s)

    def _ceiling(self, instruction: Instruction, now_s: float) -> Outcome:
        """Set the ceiling of a service, or end it."""
        ceiling = asked(instruction.operation, Ceiling)
        return self._bound(self._ceil, instruction, ceiling.replicas, ceiling.until_s, now_s)

    def _bound(
        self, to: SetBound | None, instruction: Instruction, replicas: int, until_s: float, now_s: float
    ) -> Outcome:
        """Set a bound of a service; additional replicas are pending at once."""
        if to is None:
            return Outcome(instruction.id, OutcomeKind.FAILED, now_s, "there are no services")
        subject = instruction.subject
        reason = to(subject.name, replicas, until_s, subject.revision, now_s, instruction.id, subject.uid)
        self.changed |= not reason
        return Outcome(instruction.id, OutcomeKind.CONFLICT if reason else OutcomeKind.DONE, now_s, reason)

    def _cordon(self, instruction: Instruction, now_s: float) -> Outcome:
        """Close a node to new work, or open it."""
        cordon, node = asked(instruction.operation, Cordon), self._node.get(instruction.subject.uid)
        if node is None:
            return Outcome(instruction.id, OutcomeKind.CONFLICT, now_s, "the node is gone")
        self._cluster.publish(Cordoned(now_s, node, cordon.on, instruction.id))
        self._cluster.cordon(node, now_s, cordoned=cordon.on)
        self.changed |= not cordon.on
        return Outcome(instruction.id, OutcomeKind.DONE, now_s)

    def _offer(self, instruction: Instruction, now_s: float) -> Outcome:
        """Nobody removes the node."""
        return Outcome(instruction.id, OutcomeKind.DONE, now_s)

    def _set_sharing(self, instruction: Instruction, now_s: float) -> Outcome:
        """Begin to turn a node to another way of sharing; nothing starts there until its device plugin is back."""
        turn, node = asked(instruction.operation, SetSharing), self._node.get(instruction.subject.uid)
        cluster = self._cluster
        if node is None:
            return _outcome(instruction, Refusal.OTHER_OBJECT, OutcomeKind.ACCEPTED, now_s)
        there = cluster.sharings.kind[node], cluster.sharings.replicas()[node]
        if there != (turn.was_sharing, turn.was_replicas):
            reason = f"the node is {sharing_words(*there)} now"
            return Outcome(instruction.id, OutcomeKind.CONFLICT, now_s, reason)
        refusal = cluster.set_sharing(node, Sharing(turn.sharing), turn.replicas, now_s, effect=instruction.id)
        return _outcome(instruction, refusal, OutcomeKind.ACCEPTED, now_s)

    def _ask_for_nodes(self, instruction: Instruction, now_s: float) -> Outcome:
        """The nodes come later; the request is over once its gang has started."""
        request = asked(instruction.operation, Provision)
        reason = self._cluster.growing.ask(request.pool, request.nodes, now_s)
        kind = OutcomeKind.CONFLICT if reason else OutcomeKind.ACCEPTED
        return Outcome(instruction.id, kind, now_s, reason)

    def _recut(self, instruction: Instruction, now_s: float) -> Outcome:
        """Begin a change of geometry; its node reports the progress and the result."""
        change, gpu = asked(instruction.operation, RecutGpu), self._gpu.get(instruction.subject.uid)
        refusal: Refusal | None = Refusal.OTHER_OBJECT
        if gpu is not None:
            refusal = self._cluster.recuts.begin(
                gpu, change.before, change.after, now_s, effect=instruction.id, scope=change.scope
            )
        self.changed |= refusal is None
        return _outcome(instruction, refusal, OutcomeKind.ACCEPTED, now_s)

    def _to_job(self, act: Act) -> Way:
        """The same on a job still the object of the instruction."""

        def way(instruction: Instruction, now_s: float) -> Outcome:
            subject = instruction.subject
            job = self._row_of(subject.name)
            if job is None:
                return _outcome(instruction, Refusal.NOT_PENDING, OutcomeKind.DONE, now_s)
            if subject.uid != uid_of("job", job):
                return _outcome(instruction, Refusal.OTHER_OBJECT, OutcomeKind.DONE, now_s)
            refusal = act(instruction, job, now_s)
            saves = instruction.operation.stops and self._cluster.state[job] == State.CHECKPOINTING
            # work that saves a checkpoint before it leaves still holds its GPUs: its eviction is under way
            return _outcome(instruction, refusal, OutcomeKind.ACCEPTED if saves else OutcomeKind.DONE, now_s)

        return way

    def _evict(self, instruction: Instruction, job: int, now_s: float) -> Refusal | None:
        cluster, eviction = self._cluster, asked(instruction.operation, EvictOperation)
        reason = eviction.reason
        refusal = cluster.evict(
            job,
            now_s,
            moving=reason.continues_elsewhere,
            recover=reason.for_itself,
            contract=cluster.backfilled[job] or reason.by_contract,
            suspend=reason == StopReason.SUSPEND,
            ahead=reason == StopReason.MOVE_AHEAD,
            away=reason == StopReason.AWAY,
            drain=reason == StopReason.DRAIN,
            apart=reason == StopReason.ISOLATE,
            park=reason == StopReason.IDLE,
            save=eviction.save,
            effect=instruction.id,
            incarnation=instruction.subject.revision,
        )
        self.changed |= refusal is None
        return refusal

    def _notify(self, instruction: Instruction, job: int, now_s: float) -> Refusal | None:
        grace_s, incarnation = asked(instruction.operation, Notify).grace_s, instruction.subject.revision
        return self._cluster.notify(job, now_s, grace_s, effect=instruction.id, incarnation=incarnation)

    def _pause(self, instruction: Instruction, job: int, now_s: float) -> Refusal | None:
        pause, incarnation = asked(instruction.operation, Pause), instruction.subject.revision
        return self._cluster.pauses.begin(job, pause.seconds, now_s, effect=instruction.id, incarnation=incarnation)

    def _resume(self, instruction: Instruction, job: int, now_s: float) -> Refusal | None:
        return self._cluster.pauses.end(job, now_s, effect=instruction.id, incarnation=instruction.subject.revision)

    def _admit(self, instruction: Instruction, job: int, now_s: float) -> Refusal | None:
        start = asked(instruction.operation, AdmitOperation)
        return self._cluster.start(
            job,
            [self._gpu[slot.gpu] for slot in start.slots],
            now_s,
            instances=[self._instance_row(slot.instance) for slot in start.slots if slot.instance],
            backfill=start.backfill,
            effect=instruction.id,
            incarnation=instruction.subject.revision,
        )

    def _resize(self, instruction: Instruction, job: int, now_s: float) -> Refusal | None:
        gpus, incarnation = [self._gpu[slot.gpu] for slot in instruction.operation.slots], instruction.subject.revision
        refusal = self._cluster.resize(job, gpus, now_s, effect=instruction.id, incarnation=incarnation)
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
