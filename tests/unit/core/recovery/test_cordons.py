"""A node whose error asks for its restart is cordoned once, and opened when the error is gone."""

from __future__ import annotations

from typing import Any

import pytest

from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.objects import SubjectKind
from autopilot.core.model.policy import Mode
from autopilot.core.model.records import Outcome, OutcomeKind
from autopilot.core.recovery.cordon import Cordon
from tests.kits.core_world import decide, with_policy, world
from tests.kits.ticking_world import EAGER

GONE_BUS, CONTAINED = 79, 94


def look(now_s: float, xid: int, memory: ControllerMemory | None = None, *, closed: bool = False, **more: Any) -> Step:
    """Two nodes; GPU 3 of the first reports this error."""
    nodes = {"cordoned": [closed, False]}
    seen = world("2x8", [], now_s, tick=round(now_s), xids={3: xid} if xid else {}, nodes=nodes, **more)
    return decide(seen, more.pop("policy", EAGER), memory)


def cordons(step: Step) -> list[tuple[str, bool]]:
    """Node and direction of each instruction."""
    found = [(each.subject, each.operation) for each in step.instructions]
    assert all(subject.kind == SubjectKind.NODE for subject, _ in found)
    return [(subject.uid, each.on) for subject, each in found if isinstance(each, Cordon)]


def test_a_condemned_node_is_cordoned_once_and_opened_when_it_is_sound() -> None:
    """Once for the error, until its end."""
    first = look(0.0, GONE_BUS)
    assert cordons(first) == [("node-0", True)]
    (effect,) = first.instructions
    assert isinstance(effect.operation, Cordon)
    assert effect.operation.reason == "XID 79 on GPU-3"
    assert not cordons(look(5.0, GONE_BUS, first.memory))
    closed = look(10.0, GONE_BUS, first.memory, closed=True)
    assert not cordons(closed)
    assert not closed.memory.effects.in_flight
    sound = look(20.0, 0, closed.memory, closed=True)
    assert cordons(sound) == [("node-0", False)]
    after = look(30.0, 0, sound.memory)
    assert not cordons(after)
    assert not after.memory.recovery.cordons


def test_an_error_that_asks_for_less_cordons_nothing() -> None:
    """The GPU takes no new work, and the node stays open to others."""
    assert not cordons(look(0.0, CONTAINED))


def test_the_cordon_of_a_person_is_left_alone() -> None:
    """It is neither repeated nor removed."""
    first = look(0.0, GONE_BUS, closed=True)
    assert not cordons(first)
    assert not cordons(look(10.0, 0, first.memory, closed=True))


def test_a_person_who_opens_the_node_wins() -> None:
    """It is not cordoned again for the same error."""
    first = look(0.0, GONE_BUS)
    closed = look(10.0, GONE_BUS, first.memory, closed=True)
    opened = look(2000.0, GONE_BUS, closed.memory)
    assert not cordons(opened)
    assert not cordons(look(4000.0, GONE_BUS, opened.memory))


def test_a_cordon_that_failed_is_tried_again_later() -> None:
    """Not at each tick."""
    first = look(0.0, GONE_BUS)
    (effect,) = first.instructions
    failed = (Outcome(effect.id, OutcomeKind.FAILED, 1.0, "no right"),)
    second = look(1.0, GONE_BUS, first.memory, outcomes=failed)
    assert not cordons(second)
    assert second.wake_at_s <= 600.0
    later = look(599.0, GONE_BUS, second.memory)
    assert not cordons(later)
    assert cordons(look(600.0, GONE_BUS, later.memory)) == [("node-0", True)]


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.RECOMMEND])
def test_without_the_action_no_node_is_cordoned(mode: Mode) -> None:
    """A recommendation stays one."""
    step = decide(world("1x8", [], xids={3: GONE_BUS}), with_policy(EAGER, modes={"recover": mode}))
    assert not step.instructions
    assert not step.memory.recovery.cordons
    assert len(step.decision.plan.proposals) == (mode == Mode.RECOMMEND)
