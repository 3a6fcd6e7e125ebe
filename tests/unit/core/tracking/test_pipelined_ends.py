"""Landings that come to nothing: when they are given up, and when they are looked at again."""

from __future__ import annotations

from dataclasses import replace

from autopilot.core.model.snapshot import Gate, State
from tests.kits.core_world import decide, with_policy
from tests.unit.core.tracking.test_pipelined import reclaim


def test_a_gang_that_is_switched_off_gives_up_before_its_victim_is_gone() -> None:
    """What was kept for it is free for others at once."""
    play = reclaim()
    play.tick(100.0)
    play.gangs["w"].columns["gate"] = Gate.REJECTED
    play.tick(110.0)
    assert play.leaving() == ["v"]
    assert play.memory.pipelined_starts == ()


def test_a_victim_that_runs_again_on_its_gpus_makes_no_way() -> None:
    """It left and was started there by somebody else: the landing that counted on its GPUs is given up at once."""
    play = reclaim()
    play.tick(100.0)
    on = play.on("v")
    play.leave("v")
    play.gangs["v"].state, play.gangs["v"].on = State.RUNNING, on
    play.tick(110.0)
    assert [pipelined.since_s for pipelined in play.memory.pipelined_starts] == [110.0]


def test_a_landing_is_looked_at_again_at_its_deadline() -> None:
    """Its deadline is a timer, whatever else is waited for."""
    play = reclaim()
    play.tick(100.0)
    (pipelined,) = play.memory.pipelined_starts
    accepted = {
        key: replace(entry, state="accepted", instruction=replace(entry.instruction, deadline_s=1e6))
        for key, entry in play.memory.in_flight.items()
    }
    policy = with_policy(play.policy, review={"batch_s": 3600.0})
    step = decide(play.observe(110.0), policy, replace(play.memory, in_flight=accepted))
    assert step.wake_at_s == pipelined.deadline_s == 700.0
