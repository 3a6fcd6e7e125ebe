"""The life cycle of an effect: its legal states, and how memory follows the cluster.

    issued      sent, no answer yet              -> accepted, reported, held, done, conflict, failed
    accepted    its actuator works on it         -> reported, held, done, conflict, failed
    reported    its actuator reports it done     -> done, with the first list made after that
    held        to be retried after a check      -> issued, withdrawn, and every state that may follow `issued`
    withdrawn   not retried; the earlier attempt may still take effect, so its GPUs stay booked until its deadline.
                What takes GPUs books none: it ends at once
                                                 -> reported, done, conflict, failed
    done        the snapshot shows it
    conflict    the object or its room changed, or the work declined to leave unsaved: it is planned again
    failed      refused permanently, or not observed after all attempts

Reconcile first updates memory from the observation (this module), then plans changes (planner). After a crash between
effect and outcome, the next observation settles the effect. A blind tick concludes nothing from absence: only outcomes
and commands count there. An attempt counts when it is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autopilot.core.intake.sight import WORK, listed_s
from autopilot.core.model.errors import invariant
from autopilot.core.model.identity import rows_by_uid
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.budget import CONTRACT_WINDOW_S
from autopilot.core.model.memory.effects import Failure, InFlight
from autopilot.core.model.objects import SubjectKind
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import UNNAMED, Cause, Instruction, Observation, Outcome, OutcomeKind, Subject
from autopilot.core.model.snapshot import ClusterSnapshot, State
from autopilot.core.model.units import counted
from autopilot.core.model.work import leaves_still
from autopilot.core.tracking.storms import count_failed, judge_storms, resume_all

_OPEN = frozenset({"reported", "held", "done", "conflict", "failed"})
TRANSITIONS: dict[str, frozenset[str]] = {
    "issued": _OPEN | {"accepted"},
    "accepted": _OPEN,
    "held": _OPEN - {"held"} | {"issued", "accepted", "withdrawn"},
    "reported": frozenset({"done"}),
    "withdrawn": frozenset({"reported", "done", "conflict", "failed"}),
    "done": frozenset(),
    "conflict": frozenset(),
    "failed": frozenset(),
}
ENDED = frozenset(state for state, following in TRANSITIONS.items() if not following)
"""Final states."""


LEAST_OBJECTS = 3
"""Everything is paused when effects of this many objects failed: fewer may be faults of the objects."""

OF_ITS_OBJECT = frozenset({Cause.WEBHOOK, Cause.PLACE, Cause.HARM, Cause.CONFIG, Cause.LEVER})
"""Causes of the object of an effect, or of what the cluster is set up for: other effects may well come about."""


def step_to(entry: InFlight, state: str, now_s: float) -> InFlight:
    """`entry` in another state. Raises `InvariantError` for a transition that the table does not allow."""
    invariant(
        state in TRANSITIONS[entry.state],
        f"effect {entry.instruction.id}: {entry.state} -> {state} is not legal",
    )
    return replace(entry, state=state, since_s=now_s)


def halted(memory: ControllerMemory, observation: Observation) -> str:
    """Why nothing may act now: kill switch or pause; "" otherwise."""
    if observation.kill_switch or memory.halt.killed:
        return "kill switch"
    return memory.halt.paused_reason


def absorb(
    memory: ControllerMemory, observation: Observation, policy: Policy, *, blind: bool = False, resumed: bool = False
) -> ControllerMemory:
    """Memory after the commands of a tick, updated from outcomes, snapshot and time. Effects to be retried are `held`
    in it.

    A `blind` tick uses only outcomes. A person who `resumed` knows of the failures up to now.
    """
    if memory.effects.in_flight or observation.outcomes:
        memory = _follow_effects(memory, observation, policy, blind=blind)
    if resumed:
        memory = resume_all(replace(memory, effects=replace(memory.effects, failed=(), refused_until_s={})))
    return memory if blind else _expire(memory, observation, policy)


@dataclass(slots=True)
class _World:
    """The objects of effects as one tick shows them; computed on first use."""

    observation: Observation
    _rows: dict[str, int] | None = None
    _usable: set[str] | None = None

    @property
    def snapshot(self) -> ClusterSnapshot:
        """The newest view."""
        return self.observation.snapshot

    def deleted(self, service: Subject) -> bool:
        """Whether a service without a row was deleted: no gap of the source of its list may be about it."""
        return _is_gone(service, self.observation)

    @property
    def rows(self) -> dict[str, int]:
        """Rows of workloads by uid."""
        if self._rows is None:
            self._rows = rows_by_uid(self.observation.snapshot.workloads)
        return self._rows

    def lost_room(self, effect: Instruction) -> bool:
        """True if work may no longer start on a GPU of the effect."""
        if self._usable is None:
            self._usable = _usable_gpus(self.observation.snapshot)
        return not self._usable.issuperset(slot.gpu for slot in effect.operation.slots)


def followed(
    memory: ControllerMemory, observation: Observation, policy: Policy, *, blind: bool = False
) -> list[InFlight]:
    """The effects of `memory`, ended ones included, after the outcomes of a tick and, unless `blind`, its view."""
    now_s, world = observation.now_s, _World(observation)
    outcomes = {outcome.instruction_id: outcome for outcome in observation.outcomes}
    found = []
    for key, entry in _in_order(memory.effects.in_flight):
        after = _answered(entry, outcomes.get(key), now_s, policy)
        found.append(after if blind else _shown(entry, after, world, policy))
    return found


def _follow_effects(
    memory: ControllerMemory, observation: Observation, policy: Policy, *, blind: bool
) -> ControllerMemory:
    now_s = observation.now_s
    outcomes = {outcome.instruction_id: outcome for outcome in observation.outcomes}
    open_effects: dict[str, InFlight] = {}
    declined, failed, again = [], [], {each.uid for each in memory.effects.failed}
    failures = list(memory.effects.failed)
    refused = dict(memory.effects.refused_until_s)
    for after in followed(memory, observation, policy, blind=blind):
        key = after.instruction.id
        outcome = outcomes.get(key)
        if after.state == "conflict" and outcome is not None and outcome.kind == OutcomeKind.DECLINED:
            declined.append(after.instruction)
        if after.state == "failed":
            failed.append(after)
            uid = after.instruction.subject.uid
            counts = outcome is None or outcome.cause not in OF_ITS_OBJECT
            failures += [failure_of(after, now_s)] if counts else []
            if not counts or uid in again:  # also what fails for its own sake, without saying so
                refused[uid] = now_s + policy.pause.window_s
        if after.state not in ENDED:
            open_effects[key] = after
    memory = replace(
        memory, effects=replace(memory.effects, in_flight=open_effects, failed=tuple(failures), refused_until_s=refused)
    )
    memory = count_failed(memory, (each for each in failed if each.instruction.subject.uid not in again), now_s)
    return _without_declined(memory, declined, now_s, policy) if declined else memory


def _answered(entry: InFlight, outcome: Outcome | None, now_s: float, policy: Policy) -> InFlight:
    """The effect after the answer of its actuator."""
    if outcome is None or entry.state == "reported":
        return entry
    if outcome.kind == OutcomeKind.DONE:
        return step_to(entry, "reported", outcome.at_s)
    if outcome.kind in {OutcomeKind.CONFLICT, OutcomeKind.DECLINED}:
        return step_to(entry, "conflict", now_s)
    if outcome.kind == OutcomeKind.FAILED:
        if not outcome.retryable:
            return step_to(entry, "failed", now_s)
        if entry.instruction.operation.planned_anew:
            return step_to(entry, "conflict", now_s)  # it is planned anew, on what there is then
        return entry if entry.state in {"held", "withdrawn"} else _again(entry, now_s, policy)
    return step_to(entry, "accepted", now_s) if entry.state in {"issued", "held"} else entry


def _shown(before: InFlight, entry: InFlight, world: _World, policy: Policy) -> InFlight:
    """The effect after a fresh and complete view; `entry` is `before` after the answer of its actuator."""
    effect, now_s = entry.instruction, world.observation.now_s
    if effect.operation.stops:
        return _evicted(before, entry, world, policy)
    if entry.state == "reported" and listed_s(world.observation) > entry.since_s:
        return step_to(entry, "done", now_s)
    if effect.operation.seen(effect.subject, world):
        return entry if entry.state in ENDED - {"failed"} else step_to(before, "done", now_s)
    if entry.state in ENDED or entry.state == "reported":
        return entry
    if takes_room(effect) and (effect.subject.uid not in world.rows or world.lost_room(effect)):
        return step_to(entry, "conflict", now_s)  # the gang is planned again if it still exists
    if now_s < effect.deadline_s or entry is not before or entry.state == "held":
        return entry  # not due yet, or its actuator has just answered
    return step_to(entry, "conflict", now_s) if entry.state == "withdrawn" else _again(entry, now_s, policy)


def _evicted(before: InFlight, entry: InFlight, world: _World, policy: Policy) -> InFlight:
    """An eviction ends when its GPUs are seen free, whatever its actuator or a counter says.

    One that has begun is not repeated. At its deadline it is left to the view, which shows what leaves.
    """
    effect, now_s, work = entry.instruction, world.observation.now_s, world.observation.snapshot.workloads
    row, revision = world.rows.get(effect.subject.uid), effect.subject.revision
    late, sent_s = now_s >= effect.deadline_s, effect.deadline_s - policy.limits.deadline_s - effect.operation.grace_s
    if row is None or not leaves_still(world.observation.snapshot, row, revision, sent_s):
        return entry if entry.state in ENDED - {"failed"} else step_to(before, "done", now_s)
    if entry.state == "conflict":
        return entry
    leaves = bool(work.state[row] == State.CHECKPOINTING and not work.stuck[row])
    begun = int(work.incarnation[row]) != revision or (leaves and entry.state in {"failed", "held"})
    if entry.state == "reported" or begun:
        open_entry = entry if entry.state == "reported" else step_to(before, "reported", now_s)
        return step_to(open_entry, "done", now_s) if late else open_entry
    if entry.state in ENDED or not late or entry is not before or entry.state == "held":
        return entry
    return step_to(entry, "done", now_s) if leaves else _again(entry, now_s, policy)


def _again(entry: InFlight, now_s: float, policy: Policy) -> InFlight:
    """The effect, held for a retry, or failed after its last attempt."""
    return step_to(entry, "failed" if entry.attempts >= policy.limits.attempts else "held", now_s)


def sent_again(entry: InFlight, now_s: float, fence: int, policy: Policy) -> InFlight:
    """A held effect that is sent now: one more attempt, a new deadline, the present fence."""
    instruction = replace(entry.instruction, deadline_s=now_s + policy.limits.deadline_s, fence=fence)
    return replace(step_to(entry, "issued", now_s), instruction=instruction, attempts=entry.attempts + 1)


def _in_order(in_flight: Mapping[str, InFlight]) -> list[tuple[str, InFlight]]:
    """Effects in a fixed order: those that free GPUs before those that use them, then by id."""
    return sorted(in_flight.items(), key=lambda item: (takes_room(item[1].instruction), item[0]))


def _without_declined(
    memory: ControllerMemory, declined: list[Instruction], now_s: float, policy: Policy
) -> ControllerMemory:
    """Memory after work declined to leave unsaved: it cools down, and pipelined starts that need it are given up.

    The newcomers of these starts are planned again immediately, with other victims.
    """
    alone_s = max(policy.hysteresis.cool_down_s, policy.preemption.grace_s)
    cooled = {**memory.budget.cooled_until_s, **{effect.subject.uid: now_s + alone_s for effect in declined}}
    over = {effect.proposal_id for effect in declined}
    pipelined_starts = tuple(
        pipelined for pipelined in memory.starts.pipelined_starts if pipelined.proposal_id not in over
    )
    return replace(
        memory,
        budget=replace(memory.budget, cooled_until_s=cooled),
        starts=replace(memory.starts, pipelined_starts=pipelined_starts),
    )


def takes_room(instruction: Instruction) -> bool:
    """True for effects that put work on GPUs: admissions, and resizes that grow a gang."""
    return instruction.operation.needs_room


def _usable_gpus(snapshot: ClusterSnapshot) -> set[str]:
    """GPUs on which work may start: healthy, on nodes that are ready and not cordoned."""
    nodes, gpus = snapshot.nodes, snapshot.gpus
    fit = gpus.healthy & (nodes.ready & ~nodes.cordoned)[gpus.node]
    return set(gpus.uuid[fit].tolist())


def _is_gone(service: Subject, observation: Observation) -> bool:
    """Whether a service that has no row was deleted: no gap of the source of its list may be about it."""
    lists = {view.source for view in observation.views if view.kind == WORK}
    about = [gap for gap in observation.gaps if gap.source in lists]
    return not any(
        gap.object_id == service.name or (not gap.object_id and gap.signal in {"", UNNAMED}) for gap in about
    )


def next_deadline_s(memory: ControllerMemory, outcomes: tuple[Outcome, ...], now_s: float) -> float:
    """The earliest deadline after `now_s` of effects that are open after `outcomes`; inf without one."""
    done = {outcome.instruction_id for outcome in outcomes if outcome.kind == OutcomeKind.DONE}
    return min(
        (
            entry.instruction.deadline_s
            for key, entry in memory.effects.in_flight.items()
            if key not in done and entry.instruction.deadline_s > now_s
        ),
        default=float("inf"),
    )


def failure_of(entry: InFlight, now_s: float) -> Failure:
    """The failure of an effect, counted by its object."""
    subject = entry.instruction.subject
    of_cluster = subject.kind in {SubjectKind.NODE, SubjectKind.GPU}
    return Failure(now_s, subject.uid, "" if of_cluster else entry.tenant)


def _widespread(failed: tuple[Failure, ...], snapshot: ClusterSnapshot) -> bool:
    """Whether failures say something of the cluster: they are of several objects, and not all of one tenant.

    An object of the cluster is of no tenant. Where only one tenant has work, its failures alone count.
    """
    if len({each.uid for each in failed}) < LEAST_OBJECTS:
        return False
    tenants = {each.tenant for each in failed}
    return "" in tenants or len(tenants) > 1 or len(set(snapshot.workloads.tenant.tolist())) < 2


def _expire(memory: ControllerMemory, observation: Observation, policy: Policy) -> ControllerMemory:
    """Drop expired entries; pause after too many failures."""
    now_s = observation.now_s
    pause, kept_s = policy.pause, max(policy.budget.window_s, policy.room.reversal_s, CONTRACT_WINDOW_S)
    failed = tuple(each for each in memory.effects.failed if each.at_s + pause.window_s > now_s)
    reason, since_s = memory.halt.paused_reason, memory.halt.paused_since_s
    if reason and not memory.halt.paused_by and now_s >= since_s + pause.length_s:
        reason, since_s, failed = "", float("nan"), ()
    if not reason and len(failed) >= pause.failures and _widespread(failed, observation.snapshot):
        objects = counted(len({each.uid for each in failed}), "object")
        reason = f"{counted(len(failed), 'effect')} on {objects} failed within {pause.window_s:g} s"
        since_s = now_s
    memory = judge_storms(memory, now_s, policy)
    disrupted = tuple(entry for entry in memory.budget.disrupted if entry.at_s + kept_s > now_s)
    cooled = {key: until for key, until in memory.budget.cooled_until_s.items() if until > now_s}
    no_pipelined = {key: until for key, until in memory.starts.no_pipelined_until_s.items() if until > now_s}
    refused = {key: until for key, until in memory.effects.refused_until_s.items() if until > now_s}
    rejections = {key: each for key, each in memory.people.rejections.items() if each.until_s > now_s}
    if (
        reason == memory.halt.paused_reason
        and len(failed) == len(memory.effects.failed)
        and len(disrupted) == len(memory.budget.disrupted)
        and len(cooled) == len(memory.budget.cooled_until_s)
        and len(no_pipelined) == len(memory.starts.no_pipelined_until_s)
        and len(refused) == len(memory.effects.refused_until_s)
        and len(rejections) == len(memory.people.rejections)
    ):
        return memory  # as at most ticks: nothing has expired
    return replace(
        memory,
        effects=replace(memory.effects, failed=failed, refused_until_s=refused),
        halt=replace(memory.halt, paused_reason=reason, paused_since_s=since_s),
        budget=replace(memory.budget, disrupted=disrupted, cooled_until_s=cooled),
        starts=replace(memory.starts, no_pipelined_until_s=no_pipelined),
        people=replace(memory.people, rejections=rejections),
    )
