"""From instruction to end: every legal step, none that is not, and what a crash in between leads to."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from autopilot.core.capabilities.memory import absorb
from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.effects.lifecycle import ENDED, TRANSITIONS, next_deadline_s, step_to
from autopilot.core.model.errors import InvariantError
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.budget import BudgetMemory, Disruption
from autopilot.core.model.memory.effects import EffectsMemory, InFlight
from autopilot.core.model.memory.halt import Failure, HaltMemory
from autopilot.core.model.records import Cause, Command, Instruction, Observation, Outcome, OutcomeKind
from autopilot.core.model.snapshot import State
from autopilot.records.memory import memory_text, read_memory_text
from tests.kits.core_world import AUTO, decide, done, holds, started, taken_in, waits, world
from tests.kits.instructions import STOP, instruct
from tests.kits.ticks import follow

EFFECT = instruct("a", AdmitOperation(slots=()), "0/admit-a", deadline_s=120.0, proposal_id="admit-a")
EVICT = instruct("a", STOP, "0/evict-a", deadline_s=120.0, proposal_id="evict-a")


def entry(effect: Instruction = EFFECT, state: str = "issued", attempts: int = 1) -> InFlight:
    """An effect under way since time 0."""
    return InFlight(effect, state, 0.0, "admit_gang", "t0", 0.0, contract=False, attempts=attempts)


def after(
    item: InFlight,
    now_s: float = 10.0,
    outcome: Outcome | None = None,
    observation: Observation | None = None,
    *,
    blind: bool = False,
) -> ControllerMemory:
    """Memory one tick later; by default nothing is visible yet."""
    seen = observation or world("1x8", [waits("a") if item.instruction.kind == "admit" else holds("a")], now_s)
    seen = replace(seen, now_s=now_s, outcomes=() if outcome is None else (outcome,))
    return follow(
        absorb, ControllerMemory(effects=EffectsMemory(in_flight={item.instruction.id: item})), seen, AUTO, blind=blind
    )


def held(memory: ControllerMemory) -> list[str]:
    """Effects that are to be sent again."""
    return [key for key, item in memory.effects.in_flight.items() if item.state == "held"]


def said(kind: OutcomeKind, *, retryable: bool = False, effect: Instruction = EFFECT) -> Outcome:
    """An outcome of the effect."""
    return Outcome(effect.id, kind, 5.0, "", retryable)


@pytest.mark.parametrize(("before", "then"), list(product(TRANSITIONS, TRANSITIONS)))
def test_only_the_steps_of_the_table_are_legal(before: str, then: str) -> None:
    """A step that the table has not stops the tick; nothing leaves an end."""
    if then in TRANSITIONS[before]:
        assert step_to(entry(state=before), then, 7.0).state == then
        assert before not in ENDED
    else:
        with pytest.raises(InvariantError, match="not legal"):
            step_to(entry(state=before), then, 7.0)


def visible(kind: str) -> Observation:
    """The world after the effect."""
    return world("1x8", [holds("a")] if kind == "admit" else [waits("a", incarnation=1)])


OLD = world("1x8", [waits("a")], work_age_s=20.0)
"""What the cluster was before the effect was reported done."""

REACHED = [
    ("issued", "accepted", said(OutcomeKind.ACCEPTED), None, 10.0, 1),
    ("issued", "reported", said(OutcomeKind.DONE), OLD, 10.0, 1),
    ("issued", "done", said(OutcomeKind.DONE), None, 10.0, 1),
    ("issued", "done", None, visible("admit"), 10.0, 1),
    ("issued", "conflict", said(OutcomeKind.CONFLICT), None, 10.0, 1),
    ("issued", "failed", said(OutcomeKind.FAILED), None, 10.0, 1),
    ("issued", "held", said(OutcomeKind.FAILED, retryable=True), None, 10.0, 1),
    ("issued", "held", None, None, 120.0, 1),
    ("issued", "failed", said(OutcomeKind.FAILED, retryable=True), None, 10.0, 3),
    ("issued", "failed", None, None, 120.0, 3),
    ("accepted", "reported", said(OutcomeKind.DONE), OLD, 10.0, 1),
    ("accepted", "done", None, visible("admit"), 10.0, 1),
    ("accepted", "conflict", said(OutcomeKind.CONFLICT), None, 10.0, 1),
    ("accepted", "failed", said(OutcomeKind.FAILED), None, 10.0, 1),
    ("accepted", "held", None, None, 120.0, 1),
    ("held", "accepted", said(OutcomeKind.ACCEPTED), None, 10.0, 1),
    ("held", "reported", said(OutcomeKind.DONE), OLD, 10.0, 1),
    ("held", "done", None, visible("admit"), 10.0, 1),
    ("held", "conflict", said(OutcomeKind.CONFLICT), None, 10.0, 1),
    ("held", "failed", said(OutcomeKind.FAILED), None, 10.0, 1),
    ("reported", "done", None, None, 10.0, 1),
    ("withdrawn", "reported", said(OutcomeKind.DONE), OLD, 10.0, 1),
    ("withdrawn", "done", None, visible("admit"), 10.0, 1),
    ("withdrawn", "conflict", None, None, 120.0, 1),
    ("withdrawn", "failed", said(OutcomeKind.FAILED), None, 10.0, 1),
]
BY_SENDING = {("held", "issued"), ("held", "withdrawn")}
"""Steps that are taken when an effect is about to leave (tests/unit/core/decision/test_sending.py)."""


@pytest.mark.parametrize(("before", "then", "outcome", "observation", "now_s", "attempts"), REACHED)
def test_every_legal_step_is_taken_for_its_reason(
    before: str,
    then: str,
    outcome: Outcome | None,
    observation: Observation | None,
    now_s: float,
    attempts: int,
) -> None:
    """Outcome, snapshot and deadline each move an effect; no attempt is counted before it is sent."""
    memory = after(entry(state=before, attempts=attempts), now_s, outcome, observation)
    assert len(memory.halt.failed) == (then == "failed")
    if then in ENDED:
        assert not memory.effects.in_flight
        return
    (kept,) = memory.effects.in_flight.values()
    assert (kept.state, kept.attempts, kept.instruction) == (then, attempts, EFFECT)


def test_every_transition_of_the_table_is_covered() -> None:
    """The reasons above, and those of sending, reach every step that the table allows."""
    reached = {(before, then) for before, then, *_ in REACHED} | BY_SENDING
    assert reached == {(before, then) for before, following in TRANSITIONS.items() for then in following}


def test_an_effect_that_is_not_due_stays_as_it_is() -> None:
    """Before its deadline an effect without news is left alone, and not sent again."""
    memory = after(entry(), 119.0)
    assert list(memory.effects.in_flight.values()) == [entry()]


@pytest.mark.parametrize("state", [State.PENDING, State.SUCCEEDED, State.FAILED])
def test_an_eviction_is_done_when_its_gang_holds_nothing(state: State) -> None:
    """An eviction is seen when the gang no longer holds GPUs, has started again since, or is gone."""
    for work in ([waits("a", state=state)], [holds("a", incarnation=1, start_s=50.0)], []):
        assert not after(entry(EVICT), observation=world("1x8", work)).effects.in_flight
    assert after(entry(EVICT)).effects.in_flight


@pytest.mark.parametrize("state", [State.STARTING, State.RUNNING, State.CHECKPOINTING])
def test_a_counter_that_moved_ends_no_eviction(state: State) -> None:
    """Kueue counts it before the pods stop: it stays open while they hold their GPUs, and ends at its deadline.

    It is not sent again, and its failure is not believed.
    """
    counted = world("1x8", [holds("a", incarnation=1, state=state, start_s=-1e6)], 10.0)
    for kind in (OutcomeKind.FAILED, OutcomeKind.ACCEPTED, OutcomeKind.DONE):
        told = after(entry(EVICT), outcome=said(kind, retryable=True, effect=EVICT), observation=counted)
        (kept,) = told.effects.in_flight.values()
        assert kept.state == "reported"
        assert not after(kept, 120.0, observation=counted).effects.in_flight


def test_an_eviction_that_is_late_has_not_failed_while_its_pods_stop() -> None:
    """Its actuator gives up at the deadline; the view shows that the work leaves, and what is stuck is told again."""
    leaves = world("1x8", [holds("a", state=State.CHECKPOINTING)], 120.0)
    told = after(entry(EVICT), 120.0, said(OutcomeKind.FAILED, retryable=True, effect=EVICT), leaves)
    assert not told.effects.in_flight
    assert not told.halt.failed
    stuck = world("1x8", [holds("a", state=State.CHECKPOINTING, stuck=True)], 120.0)
    assert held(after(entry(EVICT), 120.0, said(OutcomeKind.FAILED, retryable=True, effect=EVICT), stuck))


def test_the_next_deadline_leaves_out_what_is_done() -> None:
    """The shell wakes for the earliest deadline of effects that are still open."""
    memory = ControllerMemory(
        effects=EffectsMemory(in_flight={EFFECT.id: entry(), EVICT.id: entry(replace(EVICT, deadline_s=90.0))})
    )
    assert next_deadline_s(memory, (), 0.0) == 90.0
    assert next_deadline_s(memory, (), 90.0) == 120.0
    assert next_deadline_s(memory, (said(OutcomeKind.DONE, effect=EVICT),), 0.0) == 120.0
    assert next_deadline_s(ControllerMemory(), (), 0.0) == float("inf")


# --- nothing is blamed for what is not its fault --------------------------------------------------


def halted_by(how: str, now_s: float, memory: ControllerMemory) -> tuple[ControllerMemory, Observation]:
    """Memory and observation of a tick at which nothing may act."""
    observation = world("1x8", [waits("a", 8)], now_s, kill_switch=how == "switch")
    if how == "kill":
        memory = replace(memory, halt=replace(memory.halt, killed=True))
    if how == "pause":
        memory = replace(memory, halt=replace(memory.halt, paused_reason="paused by bob", paused_since_s=now_s))
    return memory, observation


@pytest.mark.parametrize("how", ["switch", "kill", "pause"])
def test_no_attempt_counts_while_everything_is_halted(how: str) -> None:
    """Ten deadlines pass under a halt: nothing is sent, nothing fails; afterwards it is tried again."""
    first = decide(world("1x8", [waits("a", 8)]))
    (effect,) = first.instructions
    memory = first.memory
    for number in range(1, 11):
        memory, observation = halted_by(how, 120.0 * number, memory)
        step = decide(replace(observation, tick=number), AUTO, memory)
        assert not step.instructions
        memory = step.memory
    assert not memory.halt.failed
    (kept,) = memory.effects.in_flight.values()
    assert (kept.attempts, kept.instruction.deadline_s) == (1, 1320.0)
    freed = replace(memory, halt=replace(memory.halt, killed=False, paused_reason="", paused_by=""))
    step = decide(world("1x8", [waits("a", 8)], 1320.0, tick=11), AUTO, freed)
    assert [each.id for each in step.instructions] == [effect.id]
    assert step.memory.effects.in_flight[effect.id].attempts == 2


def test_an_attempt_that_is_not_sent_does_not_count() -> None:
    """The clock went back: nothing is sent, and the retry that was due is due when the clock is trusted again."""
    first = decide(world("1x8", [waits("a", 8)], 50.0))
    (effect,) = first.instructions
    failed = done(first.instructions, 50.0, OutcomeKind.FAILED, retryable=True)
    back = decide(world("1x8", [waits("a", 8)], 40.0, tick=1, outcomes=failed), AUTO, first.memory)
    assert not back.instructions
    assert back.memory.effects.in_flight[effect.id].attempts == 1
    on = decide(world("1x8", [waits("a", 8)], 60.0, tick=2), AUTO, back.memory)
    assert [each.id for each in on.instructions] == [effect.id]
    assert on.memory.effects.in_flight[effect.id].attempts == 2


@pytest.mark.parametrize("nodes", [{"ready": [False, True]}, {"cordoned": [True, False]}])
def test_a_start_onto_a_lost_node_ends_at_once_and_is_planned_anew(nodes: dict[str, list[bool]]) -> None:
    """No retry, no blame: the same tick starts the gang on the node that is left."""
    first = decide(world("2x8", [holds("b", 8, on=range(8, 16)), waits("a", 8)]))
    assert started(first) == {"a": ["node-0"] * 8}
    lost = world("2x8", [waits("a", 8)], 5.0, tick=1, nodes=nodes)
    step = decide(lost, AUTO, first.memory)
    assert started(step) == {"a": ["node-1"] * 8}
    assert not step.memory.halt.failed
    assert len(step.memory.effects.in_flight) == 1


def test_a_broken_gpu_ends_a_start_too_and_a_start_that_is_seen_stands() -> None:
    """What counts are the GPUs that it was to start on; a gang that runs is not started again."""
    first = decide(world("1x8", [waits("a", 4, gpus_per_member=4)]))
    (effect,) = first.instructions
    broken = int(effect.operation.slots[0].gpu.removeprefix("GPU-"))
    step = decide(world("1x8", [waits("a", 4, gpus_per_member=4)], 5.0, tick=1, unhealthy=[broken]), AUTO, first.memory)
    (again,) = step.instructions
    assert effect.operation.slots[0] not in again.operation.slots
    seen = world("1x8", [holds("a", 4, gpus_per_member=4)], 5.0, tick=1, unhealthy=[broken])
    step = decide(seen, AUTO, first.memory)
    assert not step.instructions
    assert not step.memory.effects.in_flight


# --- commands and time ----------------------------------------------------------------------------


def obey(*commands: Command, memory: ControllerMemory | None = None, now_s: float = 100.0) -> ControllerMemory:
    """Memory after commands."""
    return taken_in(memory or ControllerMemory(), world("1x8", (), now_s, commands=commands), AUTO)


def failures(*at_s: float, objects: int = 100, tenants: int = 100) -> tuple[Failure, ...]:
    """Failed effects at these times, of so many objects and tenants."""
    return tuple(Failure(each, f"u{k % objects}", f"t{k % tenants}") for k, each in enumerate(at_s))


def test_what_time_has_ended_is_dropped() -> None:
    """Ledger entries, failures and cool-downs leave memory when their window is over."""
    old = ControllerMemory(
        budget=BudgetMemory(disrupted=(Disruption(0.0, "w", "t", (), contract=False),), cooled_until_s={"w": 50.0}),
        halt=HaltMemory(failed=failures(0.0)),
    )
    kept = obey(memory=old, now_s=49.0)
    assert (kept.budget.disrupted, kept.halt.failed, dict(kept.budget.cooled_until_s)) == (
        old.budget.disrupted,
        failures(0.0),
        {"w": 50.0},
    )
    late = obey(memory=old, now_s=3600.0)
    assert (late.budget.disrupted, late.halt.failed, dict(late.budget.cooled_until_s)) == ((), (), {})


@pytest.mark.parametrize(
    ("cause", "alone"),
    [
        (Cause.WEBHOOK, True),
        (Cause.CONFIG, True),
        (Cause.PLACE, True),
        (Cause.LEVER, True),
        (Cause.HARM, True),
        (Cause.RIGHT, False),
        (Cause.SERVER, False),
        (Cause.INVALID, False),
        (Cause.NONE, False),
    ],
)
def test_a_refusal_for_the_sake_of_its_object_pauses_nothing_else(cause: Cause, alone: bool) -> None:
    """The object waits for the length of the window; other causes count towards the pause of everything."""
    failed = Outcome(EFFECT.id, OutcomeKind.FAILED, 10.0, "no", cause=cause)
    memory = after(entry(state="issued"), 10.0, failed)
    assert memory.effects.refused_until_s == ({EFFECT.subject.uid: 910.0} if alone else {})
    assert len(memory.halt.failed) == (not alone)
    assert obey(memory=memory, now_s=909.0).effects.refused_until_s == memory.effects.refused_until_s
    assert obey(memory=memory, now_s=910.0).effects.refused_until_s == {}


def test_too_many_failures_pause_everything_for_a_while() -> None:
    """K failures inside the window pause with a reason; the pause ends by itself, and its failures are forgotten."""
    failed = ControllerMemory(halt=HaltMemory(failed=failures(10.0, 20.0, 30.0, 40.0)))
    assert not obey(memory=failed).halt.paused_reason
    paused = obey(memory=replace(failed, halt=replace(failed.halt, failed=failures(10.0, 20.0, 30.0, 40.0, 50.0))))
    assert paused.halt.paused_reason == "5 effects on 5 objects failed within 900 s"
    assert paused.halt.paused_since_s == 100.0
    over = obey(memory=paused, now_s=1900.0)
    assert (over.halt.paused_reason, over.halt.failed) == ("", ())
    spread = ControllerMemory(halt=HaltMemory(failed=failures(0.0, 20.0, 30.0, 40.0, 50.0)))
    assert not obey(memory=spread, now_s=900.0).halt.paused_reason


@pytest.mark.parametrize(
    ("objects", "tenants", "shared", "pauses"),
    [(1, 1, True, False), (2, 2, True, False), (3, 1, True, False), (3, 2, True, True), (3, 1, False, True)],
)
def test_failures_of_few_objects_or_of_one_tenant_pause_nothing(
    objects: int, tenants: int, shared: bool, pauses: bool
) -> None:
    """Whatever one tenant does, the others are served. Where there is one tenant alone, three objects are enough."""
    memory = ControllerMemory(halt=HaltMemory(failed=failures(*range(10, 40), objects=objects, tenants=tenants)))
    work = [waits("a", 8, tenant=0), waits("b", 8, tenant=int(shared))]
    assert bool(taken_in(memory, world("1x8", work, 100.0), AUTO).halt.paused_reason) == pauses


def test_failures_of_gpus_and_nodes_are_of_no_tenant() -> None:
    """Three broken nodes say something of the cluster."""
    memory = ControllerMemory(halt=HaltMemory(failed=tuple(Failure(10.0 + k, f"n{k % 3}", "") for k in range(5))))
    work = [waits("a", 8, tenant=0), waits("b", 8, tenant=1)]
    assert taken_in(memory, world("1x8", work, 100.0), AUTO).halt.paused_reason


def test_an_object_that_fails_again_waits_and_counts_once_for_its_action() -> None:
    """Two failures of one object inside the window: no new effect on it before the window is over."""
    failed = Outcome(EFFECT.id, OutcomeKind.FAILED, 10.0, "no", cause=Cause.INVALID)
    first = after(entry(state="issued"), 10.0, failed)
    assert (len(first.halt.failed), first.effects.refused_until_s) == (1, {})
    again = replace(first, effects=replace(first.effects, in_flight={EFFECT.id: entry(state="issued")}))
    twice = follow(absorb, again, replace(world("1x8", [waits("a", 8)], 20.0), outcomes=(failed,)), AUTO)
    assert (len(twice.halt.failed), twice.effects.refused_until_s) == (2, {EFFECT.subject.uid: 920.0})
    assert {name: each.minutes for name, each in twice.trust.storms.items()} == {
        name: each.minutes for name, each in first.trust.storms.items()
    }


# --- crashes --------------------------------------------------------------------------------------


def saved(memory: ControllerMemory) -> ControllerMemory:
    """What a new process reads."""
    return read_memory_text(memory_text(memory), "memory.json")


def test_a_crash_before_the_effect_leads_to_one_start_under_the_same_id() -> None:
    """After a crash between the record and the effect, nothing is decided anew; at the deadline the same id is sent."""
    first = decide(world("1x8", [waits("a", 8), waits("b", 8)]))
    assert list(started(first)) == ["a"]
    memory = saved(first.memory)
    soon = decide(world("1x8", [waits("a", 8), waits("b", 8)], 5.0, tick=1), AUTO, memory)
    assert not soon.instructions
    late = decide(world("1x8", [waits("a", 8), waits("b", 8)], 120.0, tick=2), AUTO, saved(soon.memory))
    assert [i.id for i in late.instructions] == [i.id for i in first.instructions]


def test_a_crash_after_the_effect_leads_to_no_second_start() -> None:
    """After a crash between the effect and its outcome, the snapshot shows it done, and the GPUs are not given
    again.
    """
    first = decide(world("1x8", [waits("a", 8), waits("b", 8)]))
    after_crash = decide(world("1x8", [holds("a", 8), waits("b", 8)], 5.0, tick=1), AUTO, saved(first.memory))
    assert not after_crash.instructions
    assert not after_crash.memory.effects.in_flight


def test_an_outcome_of_an_effect_that_nobody_knows_is_ignored() -> None:
    """A late outcome of an earlier life changes nothing."""
    late = (Outcome("77/old", OutcomeKind.FAILED, 1.0),)
    step = decide(world("1x8", [waits("a", 8)], outcomes=late))
    assert list(started(step)) == ["a"]
    assert step.memory.halt.failed == ()


def test_an_effect_whose_gang_is_gone_ends_with_the_first_view_that_shows_it() -> None:
    """An admission whose workload was deleted has no object: it is not sent again, and nothing is blamed for it."""
    memory = decide(world("1x8", [waits("a", 8)])).memory
    gone = decide(world("1x8", [waits("b", 8)], 1.0, tick=1), AUTO, memory)
    assert list(started(gone)) == ["b"]
    assert "a" not in {item.instruction.subject.name for item in gone.memory.effects.in_flight.values()}
    assert not gone.memory.halt.failed
