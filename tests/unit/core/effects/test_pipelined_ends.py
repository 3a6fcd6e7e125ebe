"""Landings that come to nothing: when they are given up, and when they are looked at again."""

from __future__ import annotations

from dataclasses import replace

from autopilot.core.model.snapshot import Gate, State
from tests.kits.core_world import decide, holds, waits, with_policy
from tests.kits.ticking_world import Ticking, tenants
from tests.unit.core.effects.test_pipelined import reclaim


def test_a_gang_that_is_switched_off_gives_up_before_its_victim_is_gone() -> None:
    """What was kept for it is free for others at once."""
    play = reclaim()
    play.tick(100.0)
    play.gangs["w"].columns["gate"] = Gate.REJECTED
    play.tick(110.0)
    assert play.leaving() == ["v"]
    assert play.memory.starts.pipelined_starts == ()


def test_a_victim_that_runs_again_on_its_gpus_makes_no_way() -> None:
    """It left and was started there by somebody else: the landing that counted on its GPUs is given up at once."""
    play = reclaim()
    play.tick(100.0)
    on = play.on("v")
    play.leave("v")
    play.gangs["v"].state, play.gangs["v"].on = State.RUNNING, on
    play.gangs["v"].columns["start_s"] = 105.0
    play.tick(110.0)
    assert [pipelined.since_s for pipelined in play.memory.starts.pipelined_starts] == [110.0]


def test_a_landing_is_looked_at_again_at_its_deadline() -> None:
    """Its deadline is a timer, whatever else is waited for."""
    play = reclaim()
    play.tick(100.0)
    (pipelined,) = play.memory.starts.pipelined_starts
    accepted = {
        key: replace(entry, state="accepted", instruction=replace(entry.instruction, deadline_s=1e6))
        for key, entry in play.memory.effects.in_flight.items()
    }
    policy = with_policy(play.policy, review={"batch_s": 3600.0})
    step = decide(
        play.observe(110.0), policy, replace(play.memory, effects=replace(play.memory.effects, in_flight=accepted))
    )
    assert step.wake_at_s == pipelined.deadline_s == 700.0


def test_a_later_gang_uses_what_a_start_leaves_of_its_victim() -> None:
    """It comes while the victim leaves: the rest of the victim is enough for it, and nobody else is stopped."""
    play = Ticking(
        "2x8",
        [holds("v", 8, queue=2, start_s=5.0), holds("x", 8, queue=2), waits("w", 4, queue=1, gpus_per_member=4)],
        queues=tenants(("a", 0, 16), ("b", 0, 0)),
    )
    play.tick(100.0)
    play.submit(waits("late", 4, queue=1, gpus_per_member=4, submit_s=101.0))
    for now_s in (110.0, 699.0):
        play.tick(now_s)
        play.check_books()
    assert play.told == [(100.0, "evict", "v")]
    play.leave("v")
    play.tick(699.5)
    assert play.running() == ["late", "w", "x"]


def test_a_counter_that_moved_frees_no_gpu() -> None:
    """The victim is counted as evicted while it holds its GPUs, for seconds or for longer than the start waits."""
    play = reclaim()
    play.tick(100.0)
    play.gangs["v"].incarnation += 1
    for now_s, since_s in ((101.0, 100.0), (699.0, 100.0), (700.0, 700.0), (1299.0, 700.0), (1300.0, 1300.0)):
        play.tick(now_s)
        (pipelined,) = play.memory.starts.pipelined_starts
        assert (pipelined.workload, [each.workload for each in pipelined.victims]) == ("w", ["v"])
        assert pipelined.since_s == since_s
        play.check_books()
    assert play.told == [(100.0, "evict", "v")]
    play.gangs["v"].incarnation -= 1  # `leave` counts it
    play.leave("v")
    play.tick(1310.0)
    assert play.running() == ["w", "x"]


def test_work_that_did_not_start_again_is_the_victim_still() -> None:
    """Its counter moved and it seems to run, on GPUs that it has held since before: the start waits for them."""
    play = reclaim()
    play.tick(100.0)
    play.gangs["v"].incarnation, play.gangs["v"].state = 1, State.RUNNING
    for now_s in (101.0, 699.0):
        play.tick(now_s)
        assert [pipelined.since_s for pipelined in play.memory.starts.pipelined_starts] == [100.0]
    assert play.told == [(100.0, "evict", "v")]
