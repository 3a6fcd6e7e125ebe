"""The life cycle of an effect: its legal states, and their changes by the observation.

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

Theory of operation. Reconcile first updates memory from the observation (this module), then plans changes (planner).
Three witnesses move an effect: the outcome from its actuator, the snapshot, and its deadline. The snapshot counts most:
an effect that it shows is done, even if its actuator reports a failure. Each operation names its sign in the snapshot
(`seen`); the sign of an eviction is that its GPUs are seen free. A late effect is held, and sent again while it has
attempts left. An attempt counts when it is sent.

After a crash between effect and outcome, the next observation settles the effect. A blind tick concludes nothing from
absence: only outcomes and commands count there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from autopilot.core.effects.halt import failure_of
from autopilot.core.intake.sight import WORK, listed_s
from autopilot.core.model.capability import Planned, Tick
from autopilot.core.model.errors import invariant
from autopilot.core.model.identity import rows_by_uid
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.effects import EffectsMemory, InFlight
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import UNNAMED, Cause, Instruction, Observation, Outcome, OutcomeKind, Subject
from autopilot.core.model.snapshot import ClusterSnapshot, State
from autopilot.core.model.work import leaves_still

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


OF_ITS_OBJECT = frozenset({Cause.WEBHOOK, Cause.PLACE, Cause.HARM, Cause.CONFIG, Cause.LEVER})
"""Causes of the object of an effect, or of what the cluster is set up for: other effects may well come about."""


def step_to(entry: InFlight, state: str, now_s: float) -> InFlight:
    """`entry` in another state. Raises `InvariantError` for a transition missing in the table."""
    invariant(
        state in TRANSITIONS[entry.state],
        f"effect {entry.instruction.id}: {entry.state} -> {state} is not legal",
    )
    return replace(entry, state=state, since_s=now_s)


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
        """True if a service without a row was deleted: no gap of the source of its list may be about it."""
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


def follow_effects(memory: ControllerMemory, tick: Tick) -> ControllerMemory:
    """Memory with the effects after outcomes, view and time. Effects to be retried are `held` in it.

    A blind tick uses only outcomes. Failed and declined effects are noted for the capabilities after this one.
    """
    before, now_s = memory.effects, tick.now_s
    in_flight, refused = before.in_flight, dict(before.refused_until_s)
    if in_flight or tick.observation.outcomes:
        in_flight = {}
        outcomes = {outcome.instruction_id: outcome for outcome in tick.observation.outcomes}
        again = {each.uid for each in memory.halt.failed}
        for after in followed(memory, tick.observation, tick.policy, blind=tick.blind):
            outcome, uid = outcomes.get(after.instruction.id), after.instruction.subject.uid
            if after.state == "conflict" and outcome is not None and outcome.kind == OutcomeKind.DECLINED:
                tick.declined.append(after.instruction)
            if after.state == "failed":
                tick.failed += [after] if uid not in again else []
                counts = outcome is None or outcome.cause not in OF_ITS_OBJECT
                tick.failures += [failure_of(after, now_s)] if counts else []
                if not counts or uid in again:  # also what fails for its own sake, without saying so
                    refused[uid] = now_s + tick.policy.pause.window_s
            if after.state not in ENDED:
                in_flight[after.instruction.id] = after
    if tick.resumed:
        refused = {}
    if not tick.blind:
        refused = {uid: until_s for uid, until_s in refused.items() if until_s > now_s}
    if in_flight is before.in_flight and refused == before.refused_until_s:
        return memory
    return replace(memory, effects=EffectsMemory(in_flight, refused))


def enter_effects(memory: ControllerMemory, planned: Planned) -> ControllerMemory:
    """Memory with the effects issued now."""
    if not planned.effects:
        return memory
    issued = {entry.instruction.id: entry for entry in planned.effects}
    return replace(memory, effects=replace(memory.effects, in_flight={**memory.effects.in_flight, **issued}))


def effect_timers_s(memory: ControllerMemory, planned: Planned) -> Iterable[float]:
    """Times for asking a refused object again, and for looking at an effect reported done."""
    yield from memory.effects.refused_until_s.values()
    if any(entry.state == "reported" for entry in memory.effects.in_flight.values()):
        yield planned.now_s + planned.policy.views.look_again_s


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
    """An eviction ends once its GPUs are seen free, whatever its actuator or a counter says.

    A begun eviction is not repeated. At its deadline it is left to the view, which shows leaving work.
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
    """A held effect sent now: one more attempt, a new deadline, the present fence."""
    instruction = replace(entry.instruction, deadline_s=now_s + policy.limits.deadline_s, fence=fence)
    return replace(step_to(entry, "issued", now_s), instruction=instruction, attempts=entry.attempts + 1)


def _in_order(in_flight: Mapping[str, InFlight]) -> list[tuple[str, InFlight]]:
    """Effects in a fixed order: those that free GPUs before those that use them, then by id."""
    return sorted(in_flight.items(), key=lambda item: (takes_room(item[1].instruction), item[0]))


def takes_room(instruction: Instruction) -> bool:
    """True for effects that put work on GPUs: admissions, and resizes that grow a gang."""
    return instruction.operation.needs_room


def _usable_gpus(snapshot: ClusterSnapshot) -> set[str]:
    """GPUs open to starts: healthy, on nodes that are ready and not cordoned."""
    nodes, gpus = snapshot.nodes, snapshot.gpus
    fit = gpus.healthy & (nodes.ready & ~nodes.cordoned)[gpus.node]
    return set(gpus.uuid[fit].tolist())


def _is_gone(service: Subject, observation: Observation) -> bool:
    """True if a service without a row was deleted: no gap of the source of its list may be about it."""
    lists = {view.source for view in observation.views if view.kind == WORK}
    about = [gap for gap in observation.gaps if gap.source in lists]
    return not any(
        gap.object_id == service.name or (not gap.object_id and gap.signal in {"", UNNAMED}) for gap in about
    )


def next_deadline_s(memory: ControllerMemory, outcomes: tuple[Outcome, ...], now_s: float) -> float:
    """The earliest deadline after `now_s` of effects still open after `outcomes`; inf without one."""
    done = {outcome.instruction_id for outcome in outcomes if outcome.kind == OutcomeKind.DONE}
    return min(
        (
            entry.instruction.deadline_s
            for key, entry in memory.effects.in_flight.items()
            if key not in done and entry.instruction.deadline_s > now_s
        ),
        default=float("inf"),
    )
