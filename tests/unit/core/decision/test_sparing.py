"""Victims whose eviction failed: a start stops no more of them than it needs by now, under any leader."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from autopilot.core.decision import underway
from autopilot.core.model.identity import shape_digest
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.records import OutcomeKind, Reservation, Slot
from autopilot.core.model.snapshot import State
from tests.kits.core_world import done, holds, waits, with_policy
from tests.kits.ticking_world import EAGER, Gang, Ticking, tenants


def orders(step: Step) -> list[tuple[str, str]]:
    """Kind and workload of each instruction."""
    return [(each.kind, each.subject.name) for each in step.instructions]


def notes(step: Step) -> list[object]:
    """Why effects do not leave."""
    return [fact.value for note in step.decision.notes for fact in note.facts if fact.name == "why"]


def refused(play: Ticking, step: Step) -> None:
    """No instruction of the tick came about; each may be tried again."""
    for each in step.instructions:
        play.gangs[each.subject.name].state = State.RUNNING
    play.outcomes = done(step.instructions, 100.0, OutcomeKind.FAILED, retryable=True)


HALVES = (("x", range(8, 12)), ("y", range(12, 16)))
"""The second node."""


def two_of_three(**more: Any) -> Ticking:
    """Of 12 GPUs, u and v are to leave 8 to w, and x keeps 4; neither u nor v could be told."""
    work = [holds("u", 4), holds("v", 4), holds("x", 4, priority=5), waits("w", 8, priority=5, gpus_per_member=8)]
    play = Ticking("1x12", work, **more)
    step = play.tick(100.0)
    assert orders(step) == [("evict", "u"), ("evict", "v")]
    refused(play, step)
    return play


def test_of_two_failed_evictions_one_is_sent_again_when_one_is_enough() -> None:
    """4 GPUs came free: the start is given up, and the gang planned anew with one victim."""
    play = two_of_three()
    play.finish("x")
    step = play.tick(101.0)
    assert (orders(step), notes(step)) == ([("evict", "u")], ["not_needed", "not_needed"])
    play.leave("u")
    assert orders(play.tick(130.0)) == [("admit", "w")]
    assert play.running() == ["v", "w"]


def test_of_two_failed_evictions_both_are_sent_again_when_both_are_needed() -> None:
    """Nothing came free."""
    assert orders(two_of_three().tick(101.0)) == [("evict", "u"), ("evict", "v")]


def test_a_delayed_eviction_ends_when_its_start_has_room_without_it() -> None:
    """A guard holds it back; the start does not wait for that."""
    play = two_of_three()
    play.policy = with_policy(EAGER, protection={"min_runtime_s": 1e6})
    step = play.tick(101.0)
    assert (orders(step), notes(step)) == ([], ["min_runtime", "min_runtime"])
    play.finish("x", "u")
    assert orders(play.tick(102.0)) == [("admit", "w")]
    assert [entry.instruction.kind for entry in play.memory.effects.in_flight.values()] == ["admit"]


def test_an_eviction_is_sent_again_where_what_came_free_is_reserved() -> None:
    """The node is promised to another gang."""
    work = [holds("v", 8, on=range(8)), holds("x", 8, on=range(8, 16), priority=5), waits("w", 8, priority=5)]
    play = Ticking("2x8", work)
    refused(play, play.tick(100.0))
    play.submit(waits("o", 16, priority=5))
    promise = Reservation("o", 0, 16, 90.0, 200.0, 200.0, ("node-1",), uid="o")
    play.memory = replace(play.memory, plan=replace(play.memory.plan, reservations=(promise,)))
    play.finish("x")
    assert orders(play.tick(101.0)) == [("evict", "v")]


def test_an_eviction_is_not_sent_again_for_a_gang_that_asks_for_less() -> None:
    """The start is of another request; the gang as it is now needs one victim."""
    play = two_of_three()
    play.gangs["w"].columns |= {"gpus": 4, "min_gpus": 4, "gpus_per_member": 4}
    step = play.tick(101.0)
    assert (orders(step), notes(step)) == ([("evict", "u")], ["changed", "changed"])


def test_an_eviction_is_not_sent_again_for_a_gang_that_quotas_keep_out_by_now() -> None:
    """Its victims would leave for nothing."""
    tree = tenants(("a", 0, 0), ("b", 0, 0))
    play = Ticking("1x8", [holds("v", 8, queue=1), waits("w", 8, priority=5, queue=1)], queues=tree)
    refused(play, play.tick(100.0))
    play.queues = tenants(("a", 0, 0), ("b", 0, 0), limit={"a": 4})
    step = play.tick(101.0)
    assert (orders(step), notes(step), play.memory.starts.pipelined_starts) == ([], ["limit"], ())


def test_what_was_to_leave_and_does_not_counts_against_the_limit_of_its_queue() -> None:
    """The gang that it was to make room for is gone, and another one of the queue may not start beside it."""
    work = [holds("v", 8, on=range(8), queue=1), holds("x", 8, on=range(8, 16), priority=9, queue=2)]
    tree = tenants(("a", 0, 0), ("b", 0, 0), limit={"a": 8})
    play = Ticking("2x8", [*work, waits("w", 8, priority=5, queue=1)], queues=tree)
    refused(play, play.tick(100.0))
    play.cancel("w")
    play.finish("x")
    play.submit(waits("o", 8, queue=1))
    step = play.tick(101.0)
    assert (orders(step), notes(step)) == ([], ["changed"])


def test_a_start_that_waits_for_a_victim_of_another_one_is_planned_anew_with_it() -> None:
    """Some of what v holds was to be for o; v stays, so o waits for it no longer."""
    v, x, y = (holds("v", 8, on=range(8)), *(holds(each, 4, on=on, priority=5) for each, on in HALVES))
    play = Ticking("2x8", [v, x, y, waits("w", 4, priority=5)])
    first = play.tick(100.0)
    play.submit(waits("o", 4))
    play.tick(101.0)
    assert [each.workload for each in play.memory.starts.pipelined_starts] == ["w", "o"]
    refused(play, first)
    play.finish("x")
    assert (orders(play.tick(102.0)), play.memory.starts.pipelined_starts) == ([("admit", "w")], ())
    play.finish("y")
    assert orders(play.tick(103.0)) == [("admit", "o")]


# --- starts that move their victims ------------------------------------------------------------------


def moving() -> Ticking:
    """The only victim is to move from the node that w will have to the last one, and was not told; y is between."""
    work = [holds("v", 4, on=range(4)), holds("y", 8, on=range(8, 16), priority=5), waits("w", 8, priority=5)]
    play = Ticking("3x8", [*work, holds("z", 4, on=range(16, 20), priority=5)])
    play.tick(100.0, lost=True)
    assert [[part.workload for part in each.parts] for each in play.memory.starts.pipelined_starts] == [["w", "v"]]
    return play


def test_work_is_not_moved_for_a_start_that_has_room_without_that() -> None:
    """Another node came free."""
    play = moving()
    play.finish("y")
    assert orders(play.tick(340.0)) == [("admit", "w")]
    assert play.on("v") == (0, 1, 2, 3)


def test_work_is_told_again_to_move_while_the_start_needs_its_place() -> None:
    """Nothing came free."""
    assert orders(moving().tick(340.0)) == [("evict", "v")]


def chained(*, began: bool) -> Ticking:
    """The gang v moves from the only node that suits w to the place of b. b is to move on, and was not told.

    `began`: v is gone already.
    """
    v, z = holds("v", 8, on=range(8)), holds("z", 4, on=range(16, 20), priority=5)
    play = Ticking("3x8", [v, z, waits("w", 8, priority=5, gpu_models=0b10)], nodes={"gpu_model": [1, 0, 0]})
    play.tick(100.0)
    (start,), (entry,) = play.memory.starts.pipelined_starts, play.memory.effects.in_flight.values()
    assert [part.slots[0].gpu for part in start.parts] == ["GPU-0", "GPU-8"]
    play.gangs["b"] = Gang({"gpus": 4}, State.RUNNING, (8, 9, 10, 11))
    slots = tuple(Slot("node-2", f"GPU-{gpu}", "", 1000) for gpu in range(20, 24))
    shape = shape_digest(play.snapshot(), list(play.gangs).index("b"))
    b = replace(start.victims[0], workload="b", uid="b", keeps=slots, gpus=4)
    part = replace(start.parts[1], workload="b", uid="b", slots=slots, shape=shape)
    told = replace(entry.instruction, id="b", subject=replace(entry.instruction.subject, name="b", uid="b"))
    in_flight = {} if began else {entry.instruction.id: replace(entry, state="held")}
    play.outcomes = ()
    play.gangs["v"].state = State.CHECKPOINTING if began else State.RUNNING
    play.leave(*["v"] * began)
    play.memory = replace(
        play.memory,
        starts=replace(
            play.memory.starts,
            pipelined_starts=(replace(start, victims=(*start.victims, b), parts=(*start.parts, part)),),
        ),
        effects=replace(
            play.memory.effects, in_flight={**in_flight, "b": replace(entry, state="held", instruction=told)}
        ),
    )
    return play


@pytest.mark.parametrize("began", [False, True])
def test_work_is_told_again_to_move_while_other_work_moves_to_its_place(began: bool) -> None:
    """The gang has room without it, but the other one has no place to go on."""
    step = chained(began=began).tick(101.0)
    assert (("evict", "b") in orders(step), notes(step)) == (True, [])


def test_work_is_not_moved_once_no_other_work_moves_to_its_place() -> None:
    """The owner of the other one took that away."""
    play = chained(began=True)
    play.cancel("v")
    assert (orders(play.tick(101.0)), play.on("b")) == ([("admit", "w")], (8, 9, 10, 11))


# --- a new leader ------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaves", [[], ["u"], ["u", "v"]])
def test_a_controller_without_memory_stops_no_more_than_is_needed(leaves: list[str]) -> None:
    """It takes over while some of the victims leave, and counts these."""
    play = two_of_three()
    for name in leaves:
        play.gangs[name].state = State.CHECKPOINTING
    play.memory, play.outcomes = ControllerMemory(), ()
    told = [name for _, name in orders(play.tick(110.0))]
    assert len(told) == 2 - len(leaves)
    assert not set(told) & {*leaves, "x"}


# --- many worlds --------------------------------------------------------------------------------------


def spared(play: Ticking, step: Step) -> list[str]:
    """Victims of this tick that their start does not need, by counts of the GPUs of one node.

    Each start is judged by what was decided before it; what is sent again was.
    """
    starts = {each.proposal_id: len(each.parts[0].slots) for each in play.memory.starts.pipelined_starts}
    told = [each for each in step.instructions if each.kind == "evict" and each.proposal_id in starts]
    new = [each for each in told if each.id.startswith(f"{step.memory.tick}/")]
    later = {name: [each.subject.name for each in new if each.proposal_id == name] for name in starts}
    under_way = [each.instruction for each in play.memory.effects.in_flight.values()]
    leaves = {*play.leaving(), *(each.subject.name for each in under_way if each.kind == "evict")}
    found = []
    for name in dict.fromkeys(each.proposal_id for each in told):
        later.pop(name)
        gone = leaves - {victim for victims in later.values() for victim in victims}
        holds = sum(len(gang.on) for each, gang in play.gangs.items() if each not in gone)
        spare = play.per_node - holds - sum(gpus for start, gpus in starts.items() if not later.get(start))
        victims = [each.subject.name for each in told if each.proposal_id == name]
        found += [victim for victim in victims if spare >= len(play.on(victim))]
    return found


def wild(seed: int) -> list[str]:
    """Victims that could be spared, in a world in which orders fail or get lost, work ends and leaders forget."""
    draw = random.Random(seed)
    play = Ticking("1x30", [holds(f"v{number}", draw.choice((2, 3, 4, 6))) for number in range(5)])
    found, now_s = [], 0.0
    for tick in range(30):
        if draw.random() < 0.3:
            play.submit(waits(f"w{tick}", draw.choice((4, 6, 9)), priority=draw.choice((1, 5))))
        before = {name: replace(gang) for name, gang in play.gangs.items()}
        step = play.tick(now_s)
        found += spared(play, step)
        outcomes = {each.instruction_id: each for each in play.outcomes}
        for each in step.instructions:
            if each.kind == "evict" and draw.random() < 0.6:
                play.gangs[each.subject.name] = before[each.subject.name]
                outcomes |= {each.id: done([each], now_s, OutcomeKind.FAILED, retryable=True)[0]}
        play.outcomes = tuple(outcomes.values())
        for name in play.leaving():
            play.leave(*[name] * (draw.random() < 0.4))
        for name in play.running():
            play.finish(*[name] * (draw.random() < 0.06))
        if draw.random() < 0.05:
            play.memory, play.outcomes = ControllerMemory(tick=play.memory.tick), ()
        now_s += draw.choice((1.0, 30.0, 400.0))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_no_victim_can_be_left_out(seed: int) -> None:
    """Counted is everything that leaves, for whichever start."""
    assert wild(seed) == []


def test_a_start_that_keeps_all_its_victims_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted defect: what failed is sent again, whatever came free."""
    monkeypatch.setattr(underway, "can_spare", lambda *_: False)
    assert wild(0)
