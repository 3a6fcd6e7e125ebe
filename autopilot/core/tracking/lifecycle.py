"""From instruction to end: the legal states of an effect, and how memory follows the world.

    issued      sent, nothing heard yet          -> accepted, reported, held, done, conflict, failed
    accepted    its actuator works on it         -> reported, held, done, conflict, failed
    reported    its actuator says it is done     -> done, with the first view listed since then
    held        to be sent again, after a check  -> issued, withdrawn; and all that an issued one may become
    withdrawn   not sent again; what was sent may still happen, so its GPUs stay booked until its deadline
                                                 -> reported, done, conflict, failed
    done        the snapshot shows it
    conflict    the object or the room for it changed, or the work declined to leave unsaved: plan anew, no blame
    failed      refused for good, or not seen after all attempts

Reconcile first believes the world (this file), then wishes for changes (planner). A crash between effect and
outcome is healed by looking. Nothing is concluded from what a blind tick does not show: there only outcomes and
commands count. An attempt counts when it is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autopilot.core.intake.commands import obey
from autopilot.core.intake.sight import listed_s
from autopilot.core.model.errors import invariant
from autopilot.core.model.identity import rows_by_uid
from autopilot.core.model.memory import ControllerMemory, InFlight
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Instruction, Observation, Outcome, OutcomeKind
from autopilot.core.model.snapshot import ClusterSnapshot, State

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
"""States without a way on."""


def step_to(entry: InFlight, state: str, now_s: float) -> InFlight:
    """`entry` in another state; raises InvariantError for a step that the table does not have."""
    invariant(
        state in TRANSITIONS[entry.state],
        f"effect {entry.instruction.id}: {entry.state} -> {state} is not legal",
    )
    return replace(entry, state=state, since_s=now_s)


def halted(memory: ControllerMemory, observation: Observation) -> str:
    """Why nothing may act now: kill switch, pause; "" when nothing holds everything."""
    if observation.kill_switch or memory.killed:
        return "kill switch"
    return memory.paused_reason


def absorb(
    memory: ControllerMemory, observation: Observation, policy: Policy, *, blind: bool = False
) -> ControllerMemory:
    """Memory after believing outcomes, snapshot, commands and time; what must be sent again is `held` in it.

    A `blind` tick believes outcomes and commands, and nothing else.
    """
    if memory.in_flight or observation.outcomes:
        memory = _follow_effects(memory, observation, policy, blind=blind)
    memory, _ = obey(memory, observation.commands, observation.now_s, policy)
    return memory if blind else _expire(memory, observation.now_s, policy)


@dataclass(slots=True)
class _World:
    """What one tick shows of the objects of effects; built when an effect asks for it."""

    observation: Observation
    _rows: dict[str, int] | None = None
    _usable: set[str] | None = None

    @property
    def rows(self) -> dict[str, int]:
        """Rows of workloads by uid."""
        if self._rows is None:
            self._rows = rows_by_uid(self.observation.snapshot.workloads)
        return self._rows

    def lost_room(self, effect: Instruction) -> bool:
        """True when work may no longer start on a GPU of the effect."""
        if self._usable is None:
            self._usable = _usable_gpus(self.observation.snapshot)
        return not self._usable.issuperset(slot.gpu for slot in effect.slots)


def _follow_effects(
    memory: ControllerMemory, observation: Observation, policy: Policy, *, blind: bool
) -> ControllerMemory:
    now_s, world = observation.now_s, _World(observation)
    outcomes = {outcome.instruction_id: outcome for outcome in observation.outcomes}
    open_effects: dict[str, InFlight] = {}
    failures, declined = list(memory.failures), []
    for key, entry in _in_order(memory.in_flight):
        outcome = outcomes.get(key)
        after = _told(entry, outcome, now_s, policy)
        if not blind:
            after = _shown(entry, after, world, policy)
        if after.state == "conflict" and outcome is not None and outcome.kind == OutcomeKind.DECLINED:
            declined.append(entry.instruction)
        if after.state == "failed":
            failures.append(now_s)
        if after.state not in ENDED:
            open_effects[key] = after
    memory = replace(memory, in_flight=open_effects, failures=tuple(failures))
    return _without_declined(memory, declined, now_s, policy) if declined else memory


def _told(entry: InFlight, outcome: Outcome | None, now_s: float, policy: Policy) -> InFlight:
    """The effect after what its actuator said of it."""
    if outcome is None or entry.state == "reported":
        return entry
    if outcome.kind == OutcomeKind.DONE:
        return step_to(entry, "reported", outcome.at_s)
    if outcome.kind in {OutcomeKind.CONFLICT, OutcomeKind.DECLINED}:
        return step_to(entry, "conflict", now_s)
    if outcome.kind == OutcomeKind.FAILED:
        if not outcome.retryable:
            return step_to(entry, "failed", now_s)
        return entry if entry.state in {"held", "withdrawn"} else _again(entry, now_s, policy)
    return step_to(entry, "accepted", now_s) if entry.state in {"issued", "held"} else entry


def _shown(before: InFlight, entry: InFlight, world: _World, policy: Policy) -> InFlight:
    """The effect after a look at a fresh and complete view; `entry` is what its actuator made of `before`."""
    effect, now_s = entry.instruction, world.observation.now_s
    if entry.state == "reported" and listed_s(world.observation) > entry.since_s:
        return step_to(entry, "done", now_s)
    if _seen(effect, world):
        return entry if entry.state in ENDED - {"failed"} else step_to(before, "done", now_s)
    if entry.state in ENDED or entry.state == "reported":
        return entry
    if takes_room(effect) and (effect.uid not in world.rows or world.lost_room(effect)):
        return step_to(entry, "conflict", now_s)  # nothing is left of it; the gang is planned anew if it is there
    if now_s < effect.deadline_s or entry is not before or entry.state == "held":
        return entry  # not due, or its actuator answered just now
    return step_to(entry, "conflict", now_s) if entry.state == "withdrawn" else _again(entry, now_s, policy)


def _again(entry: InFlight, now_s: float, policy: Policy) -> InFlight:
    """The effect to be sent again, or failed after all its attempts."""
    return step_to(entry, "failed" if entry.attempts >= policy.limits.attempts else "held", now_s)


def sent_again(entry: InFlight, now_s: float, fence: int, policy: Policy) -> InFlight:
    """A held effect that leaves now: one more attempt, another deadline, the present fence."""
    instruction = replace(entry.instruction, deadline_s=now_s + policy.limits.deadline_s, fence=fence)
    return replace(step_to(entry, "issued", now_s), instruction=instruction, attempts=entry.attempts + 1)


def _in_order(in_flight: Mapping[str, InFlight]) -> list[tuple[str, InFlight]]:
    """What makes room before what takes it, then by id: one order, however the memory came here."""
    return sorted(in_flight.items(), key=lambda item: (takes_room(item[1].instruction), item[0]))


def _without_declined(
    memory: ControllerMemory, declined: list[Instruction], now_s: float, policy: Policy
) -> ControllerMemory:
    """Work that cannot save in time keeps its place and is left alone for a while; the takings that counted on it are
    given up.

    What was to land there is planned anew at once, with other victims in its sight.
    """
    alone_s = max(policy.hysteresis.cool_down_s, policy.preemption.grace_s)
    cooled = {**memory.cooled_until_s, **{effect.uid: now_s + alone_s for effect in declined}}
    over = {effect.proposal_id for effect in declined}
    pipelined_starts = tuple(pipelined for pipelined in memory.pipelined_starts if pipelined.proposal_id not in over)
    return replace(memory, cooled_until_s=cooled, pipelined_starts=pipelined_starts)


def takes_room(instruction: Instruction) -> bool:
    """True for effects that put work on GPUs: admissions, and resizes that nobody is made to give way by."""
    return instruction.kind == "admit" or (instruction.kind == "resize" and not instruction.reason)


def _usable_gpus(snapshot: ClusterSnapshot) -> set[str]:
    """GPUs that work may start on: healthy, on nodes that are ready and not cordoned."""
    nodes, gpus = snapshot.nodes, snapshot.gpus
    fit = gpus.healthy & (nodes.ready & ~nodes.cordoned)[gpus.node]
    return set(gpus.uuid[fit].tolist())


def _seen(effect: Instruction, world: _World) -> bool:
    """True when the snapshot shows what the instruction wanted."""
    work = world.observation.snapshot.workloads
    if effect.kind == "scale":
        return _floor_seen(effect, world.observation)
    row = world.rows.get(effect.uid)
    if effect.kind == "admit":
        return row is not None and (
            int(work.incarnation[row]) > effect.incarnation or int(work.state[row]) != State.PENDING
        )
    if row is None or int(work.incarnation[row]) != effect.incarnation:
        return True
    return effect.kind == "evict" and not State.STARTING <= int(work.state[row]) <= State.CHECKPOINTING


def _floor_seen(instruction: Instruction, observation: Observation) -> bool:
    """True when the service is gone, or has the floor for at least as long as was asked."""
    services = observation.snapshot.services
    rows = [row for row, uid in enumerate(services.uid.tolist()) if uid == instruction.uid]
    if not rows:
        return not any(gap.object_id in {"", instruction.workload} for gap in observation.gaps)
    stands = int(services.floor[rows[0]])
    lasts = stands == 0 or float(services.floor_until_s[rows[0]]) >= instruction.until_s
    return stands == instruction.replicas and lasts


def next_deadline_s(memory: ControllerMemory, outcomes: tuple[Outcome, ...], now_s: float) -> float:
    """The earliest deadline after `now_s` of effects that are still open after `outcomes`; inf when there is none."""
    done = {outcome.instruction_id for outcome in outcomes if outcome.kind == OutcomeKind.DONE}
    return min(
        (
            entry.instruction.deadline_s
            for key, entry in memory.in_flight.items()
            if key not in done and entry.instruction.deadline_s > now_s
        ),
        default=float("inf"),
    )


def _expire(memory: ControllerMemory, now_s: float, policy: Policy) -> ControllerMemory:
    """Drop what time has ended; pause after too many failures."""
    pause = policy.pause
    failures = tuple(at for at in memory.failures if at + pause.window_s > now_s)
    reason, since_s = memory.paused_reason, memory.paused_since_s
    if reason and not memory.paused_by and now_s >= since_s + pause.length_s:
        reason, since_s, failures = "", float("nan"), ()
    if not reason and len(failures) >= pause.failures:
        reason, since_s = f"{len(failures)} effects failed within {pause.window_s:g} s", now_s
    return replace(
        memory,
        failures=failures,
        paused_reason=reason,
        paused_since_s=since_s,
        disrupted=tuple(entry for entry in memory.disrupted if entry.at_s + policy.budget.window_s > now_s),
        cooled_until_s={key: until for key, until in memory.cooled_until_s.items() if until > now_s},
        no_pipelined_until_s={key: until for key, until in memory.no_pipelined_until_s.items() if until > now_s},
        rejections={key: each for key, each in memory.rejections.items() if each.until_s > now_s},
    )
