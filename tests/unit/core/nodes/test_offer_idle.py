"""Nodes that nothing needs are offered back after a while, and the offer ends when something needs them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from autopilot.core.model.forecast import ExpectedMix
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Outcome, OutcomeKind
from autopilot.core.nodes.offer import Offer
from tests.kits.core_world import decide, holds, waits, with_policy, world
from tests.kits.ticking_world import EAGER

HOUR_S = 3600.0


def quiet(now_s: float, **more: Any) -> ExpectedMix:
    """A mix that expects nothing."""
    empty = np.empty((0, 1))
    given: dict[str, Any] = {"kinds": (), "expected": empty, "counts": np.empty((0, 1, 1)), **more}
    return ExpectedMix(model="m", made_s=now_s, horizons_s=(HOUR_S,), levels=(0.9,), **given)


def shrinks(**more: Any) -> Policy:
    """The pool of the world may shrink."""
    return with_policy(EAGER, capacity={"pools": {"pool": 3}, "spare_nodes": 0, **more})


def look(
    now_s: float, work: Any = (), memory: ControllerMemory | None = None, policy: Policy | None = None, **more: Any
) -> Step:
    """Three nodes of eight GPUs."""
    mix = more.pop("mix", quiet(now_s))
    seen = world("3x8", work, now_s, tick=round(now_s), **more)
    return decide(replace(seen, forecasts=replace(seen.forecasts, mix=mix)), policy or shrinks(), memory)


def offers(step: Step) -> list[tuple[str, bool]]:
    """Node and direction of each instruction."""
    found = [(each.subject.uid, each.operation) for each in step.instructions]
    return sorted((node, each.on) for node, each in found if isinstance(each, Offer))


def done(step: Step) -> tuple[Outcome, ...]:
    """Everything that was sent is done."""
    return tuple(Outcome(each.id, OutcomeKind.DONE, step.decision.now_s) for each in step.instructions)


def test_a_node_is_offered_once_and_the_offer_ends_when_it_is_needed() -> None:
    """After an hour without need; a gang that waits for its kind ends it, and the hour begins anew."""
    first = look(0.0, [holds("h", 8)])
    assert not offers(first)
    assert first.wake_at_s <= HOUR_S
    second = look(HOUR_S, [holds("h", 8)], first.memory)
    assert offers(second) == [("node-1", True), ("node-2", True)]
    third = look(HOUR_S + 5, [holds("h", 8)], second.memory, outcomes=done(second))
    assert not offers(third)
    used = [holds("h", 8), holds("k", 4, [8, 9, 10, 11])]
    fourth = look(HOUR_S + 10, used, third.memory)
    assert offers(fourth) == [("node-1", False)]
    fifth = look(HOUR_S + 15, [holds("h", 8)], fourth.memory, outcomes=done(fourth))
    assert not offers(fifth)
    assert set(fifth.memory.nodes.offered_s) == {"node-2"}
    assert not offers(look(HOUR_S + 1000, [holds("h", 8)], fifth.memory))


def test_an_offer_that_did_not_come_about_is_made_again() -> None:
    """Memory has what the actuator reported."""
    first = look(HOUR_S, [holds("h", 16)], look(0.0, [holds("h", 16)]).memory)
    (effect,) = first.instructions
    lost = (Outcome(effect.id, OutcomeKind.CONFLICT, HOUR_S, "changed"),)
    assert offers(look(HOUR_S + 5, [holds("h", 16)], first.memory, outcomes=lost)) == [("node-2", True)]


def test_work_that_waits_keeps_the_nodes_that_suit_it() -> None:
    """Also where it waits for something else than room."""
    idle = look(0.0).memory
    gang = [waits("g", 48)]
    assert not offers(look(HOUR_S, gang, idle))
    assert len(offers(look(HOUR_S, [waits("g", 48, gpu_models=2)], idle))) == 3


def test_spare_nodes_and_what_the_mix_expects_stay() -> None:
    """Nothing is offered where the mix is unknown."""
    idle = look(0.0).memory
    assert offers(look(HOUR_S, memory=idle, policy=shrinks(spare_nodes=2))) == [("node-2", True)]
    assert not offers(look(HOUR_S, memory=idle, mix=None))
    assert not offers(look(HOUR_S, memory=idle, mix=quiet(HOUR_S, reason="too little data")))


def test_no_offer_stands_where_the_action_does_not_act() -> None:
    """A node that was offered before is offered anew once the action acts again."""
    first = look(HOUR_S, memory=look(0.0).memory)
    second = look(HOUR_S + 5, memory=first.memory, outcomes=done(first))
    assert len(second.memory.nodes.offered_s) == 3
    off = with_policy(shrinks(), modes={"offer_idle": "recommend"})
    third = look(HOUR_S + 10, memory=second.memory, policy=off)
    assert not third.memory.nodes.offered_s
    assert not offers(third)
    assert len(offers(look(HOUR_S + 15, memory=third.memory))) == 3


def test_without_pools_nothing_is_offered() -> None:
    """So it is as shipped."""
    idle = look(0.0, policy=EAGER)
    assert not idle.memory.nodes.idle_nodes_s
    assert not offers(look(HOUR_S, memory=idle.memory, policy=EAGER))
