"""From instruction to end: the legal states of an effect, and how memory follows the world.

    issued ──> accepted ──> done
       │           │
       ├───────────┴──────> conflict   the object or the room for it changed before the effect, or the work declined
       │           │                   to leave unsaved: plan anew, no blame
       ├───────────┬──────> failed     refused for good, or not seen after all attempts
       └───────────┴──────> issued     retried under the same id (idempotent)

Reconcile first believes the world (this file), then wishes for changes (planner). An effect is done
when its actuator says that it is visible, or when the snapshot shows it: a crash between effect and
outcome is healed by looking. An attempt counts when it is sent: while everything is halted none is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autopilot.core.commands import obey
from autopilot.core.errors import invariant
from autopilot.core.memory import ControllerMemory, InFlight
from autopilot.core.policy import Policy
from autopilot.core.records import (
    Instruction,
    Observation,
    Outcome,
    OutcomeKind,
)
from autopilot.core.snapshot import ClusterSnapshot, State

TRANSITIONS: dict[str, frozenset[str]] = {
    "issued": frozenset({"issued", "accepted", "done", "conflict", "failed"}),
    "accepted": frozenset({"issued", "done", "conflict", "failed"}),
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


def absorb(memory: ControllerMemory, observation: Observation, policy: Policy, *,
           may_send: bool = True) -> tuple[ControllerMemory, tuple[Instruction, ...]]:  # fmt: skip
    """Memory after believing outcomes, snapshot, commands and time; and what must be tried again.

    While everything is halted, or without `may_send`, nothing is tried again and no attempt is counted: what is due
    then is due again after the time that an effect has.
    """
    if memory.in_flight or observation.outcomes:
        memory, again = _follow_effects(memory, observation, policy)
    else:
        again = ()
    memory, _ = obey(memory, observation.commands, observation.now_s, policy)
    memory = _expire(memory, observation.now_s, policy)
    if again and (not may_send or halted(memory, observation)):
        memory, again = _not_sent(memory, again), ()
    return memory, again


def _not_sent(memory: ControllerMemory, again: tuple[Instruction, ...]) -> ControllerMemory:
    """Memory without the attempts that nobody made."""
    in_flight = dict(memory.in_flight)
    for instruction in again:
        entry = in_flight[instruction.id]
        in_flight[instruction.id] = replace(entry, attempts=entry.attempts - 1)
    return replace(memory, in_flight=in_flight)


def _follow_effects(memory: ControllerMemory, observation: Observation,
                    policy: Policy) -> tuple[ControllerMemory, tuple[Instruction, ...]]:  # fmt: skip
    now_s = observation.now_s
    outcomes = {outcome.instruction_id: outcome for outcome in observation.outcomes}
    rows: dict[str, int] = {}
    open_effects: dict[str, InFlight] = {}
    usable: set[str] | None = None
    failures = list(memory.failures)
    again, declined = [], []
    for key, entry in _in_order(memory.in_flight):
        outcome = outcomes.get(key)
        if outcome is not None and outcome.kind == OutcomeKind.DONE:
            continue  # done, and visible from now on
        rows = rows or {str(name): row for row, name in enumerate(observation.snapshot.workloads.id.tolist())}
        seen = _seen(entry, rows, observation)
        if not seen and _takes_room(entry.instruction):
            usable = _usable_gpus(observation.snapshot) if usable is None else usable
            if not usable.issuperset(slot.gpu for slot in entry.instruction.slots):
                continue  # conflict: the room is lost, the gang is planned anew
        after = _judge(entry, outcome, seen, now_s, policy)
        if outcome is not None and outcome.kind == OutcomeKind.DECLINED and after.state == "conflict":
            declined.append(entry.instruction)
        if after.state == "failed":
            failures.append(now_s)
        elif after.state == "issued" and after.attempts > entry.attempts:
            again.append(after.instruction)
        if after.state not in ENDED:
            open_effects[key] = after
    memory = replace(memory, in_flight=open_effects, failures=tuple(failures))
    return _without_declined(memory, declined, now_s, policy) if declined else memory, tuple(again)


def _in_order(in_flight: Mapping[str, InFlight]) -> list[tuple[str, InFlight]]:
    """What makes room before what takes it, then by id: one order, however the memory came here."""
    return sorted(in_flight.items(), key=lambda item: (_takes_room(item[1].instruction), item[0]))


def _without_declined(memory: ControllerMemory, declined: list[Instruction], now_s: float, policy: Policy) -> ControllerMemory:  # fmt: skip
    """Who cannot save in time keeps its place and is left alone for a while; the takings that counted on it are given up.

    Whoever was to land there is planned anew at once, with others in its sight.
    """
    alone_s = max(policy.hysteresis.cool_down_s, policy.preemption.grace_s)
    cooled = {**memory.cooled_until_s, **{effect.workload: now_s + alone_s for effect in declined}}
    over = {effect.proposal_id for effect in declined}
    landings = tuple(landing for landing in memory.landings if landing.proposal_id not in over)
    return replace(memory, cooled_until_s=cooled, landings=landings)


def _takes_room(instruction: Instruction) -> bool:
    """True for effects that put work on GPUs: admissions, and resizes that nobody is made to give way by."""
    return instruction.kind == "admit" or (instruction.kind == "resize" and not instruction.reason)


def _usable_gpus(snapshot: ClusterSnapshot) -> set[str]:
    """GPUs that work may start on: healthy, on nodes that are ready and not cordoned."""
    nodes, gpus = snapshot.nodes, snapshot.gpus
    fit = gpus.healthy & (nodes.ready & ~nodes.cordoned)[gpus.node]
    return set(gpus.uuid[fit].tolist())


def _seen(entry: InFlight, rows: dict[str, int], observation: Observation) -> bool:
    """True when the snapshot shows what the instruction wanted."""
    row = rows.get(entry.instruction.workload)
    work = observation.snapshot.workloads
    if entry.instruction.kind == "scale":
        return _floor_seen(entry.instruction, observation)
    if entry.instruction.kind == "admit":
        return row is not None and (
            int(work.incarnation[row]) > entry.instruction.incarnation
            or int(work.state[row]) != State.PENDING
        )
    if entry.instruction.kind == "resize":
        return row is None or int(work.incarnation[row]) != entry.instruction.incarnation
    return (row is None or int(work.incarnation[row]) != entry.instruction.incarnation
            or not State.STARTING <= int(work.state[row]) <= State.CHECKPOINTING)  # fmt: skip


def _floor_seen(instruction: Instruction, observation: Observation) -> bool:
    """True when the service is gone, or has the floor for at least as long as was asked."""
    services = observation.snapshot.services
    rows = [row for row, name in enumerate(services.id.tolist()) if name == instruction.workload]
    if not rows:
        return not any(gap.object_id in {"", instruction.workload} for gap in observation.gaps)
    stands = int(services.floor[rows[0]])
    lasts = stands == 0 or float(services.floor_until_s[rows[0]]) >= instruction.until_s
    return stands == instruction.replicas and lasts


def _judge(entry: InFlight, outcome: Outcome | None, seen: bool, now_s: float, policy: Policy) -> InFlight:
    """The next state of one effect that was not reported done."""
    if seen:
        return step_to(entry, "done", now_s)
    if outcome is not None and outcome.kind in {OutcomeKind.CONFLICT, OutcomeKind.DECLINED}:
        return step_to(entry, "conflict", now_s)
    if outcome is not None and outcome.kind == OutcomeKind.FAILED:
        return _retry(entry, now_s, policy) if outcome.retryable else step_to(entry, "failed", now_s)
    if outcome is not None and entry.state == "issued":
        return step_to(entry, "accepted", now_s)
    return _retry(entry, now_s, policy) if now_s >= entry.instruction.deadline_s else entry


def _retry(entry: InFlight, now_s: float, policy: Policy) -> InFlight:
    if entry.attempts >= policy.limits.attempts:
        return step_to(entry, "failed", now_s)
    instruction = replace(entry.instruction, deadline_s=now_s + policy.limits.deadline_s)
    return replace(step_to(entry, "issued", now_s), instruction=instruction, attempts=entry.attempts + 1)


def next_deadline_s(memory: ControllerMemory, outcomes: tuple[Outcome, ...]) -> float:
    """The earliest deadline of effects that are still open after `outcomes`; inf when there is none."""
    done = {outcome.instruction_id for outcome in outcomes if outcome.kind == OutcomeKind.DONE}
    return min((entry.instruction.deadline_s for key, entry in memory.in_flight.items() if key not in done),
               default=float("inf"))  # fmt: skip


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
        ledger=tuple(entry for entry in memory.ledger if entry.at_s + policy.budget.window_s > now_s),
        cooled_until_s={key: until for key, until in memory.cooled_until_s.items() if until > now_s},
        no_landing_until_s={key: until for key, until in memory.no_landing_until_s.items() if until > now_s},
        rejections={key: each for key, each in memory.rejections.items() if each.until_s > now_s},
    )
