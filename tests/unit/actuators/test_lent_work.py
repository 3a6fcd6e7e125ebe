"""Owners whose declaration does not count above the guarantee of their queue are told by an Event."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.api import Answer, Refusal
from actuators.kubernetes.events import Events
from actuators.kubernetes.upkeep import MOST_EVENTS, LentWork
from autopilot.core.model.records import About, Decision, Evidence, Note, NoteCode, Plan, no_refusals
from autopilot.service.acting import connect
from autopilot.service.ticks import Ticks
from autopilot.settings import StaticPolicySource
from tests.kits.acting_kit import Acting
from tests.kits.core_world import AUTO

NOTE = Note(NoteCode.PROTECTION_LENT, About.WORKLOAD, "default/guest")


def process(acting: Acting, uid: str, incarnation: int = 0) -> LentWork:
    """The upkeep of a new process that has just decided; what is noted of this workload."""
    facts = (Evidence("uid", uid), Evidence("incarnation", incarnation))
    other = Note(NoteCode.STORM_ENDED, About.ACTION, "preempt")
    decision = Decision(0, 0.0, Plan((), no_refusals(), (), ()), "", (other, replace(NOTE, facts=facts)))
    lent = LentWork()
    actuator = KubernetesActuator(acting.api("evict"), acting, upkeep=(lent,))
    nothing: Any = None
    ticks = Ticks(*[nothing] * 6)
    ticks.tell = connect(actuator, StaticPolicySource(AUTO), None, "")
    ticks.on_decision(nothing, decision)
    return lent


def look(acting: Acting, lent: LentWork, name: str = "guest") -> list[str]:
    """The notes of the Events after one look."""
    lent.run(acting.tools("evict"), 1, acting.now_s)
    return [note for reason, note in acting.events(name) if reason == "ProtectionLent"]


def test_an_owner_is_told_once_for_each_incarnation(acting: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by processes that know nothing of each other; what a busy server refuses is written at the next look."""
    acting.pod("guest", 8, group="guest")
    acting.run(2)
    for _ in range(2):
        lent = process(acting, "group/default/guest")
        before = look(acting, LentWork())
        with monkeypatch.context() as busy:
            busy.setattr(Events, "say", lambda *_, **__: Answer(refusal=Refusal.BUSY))
            assert look(acting, lent) == before
        assert len(look(acting, lent)) == 1
        acting.run(5)
    assert look(acting, lent)[0].endswith("from its next start on it is protected inside that guarantee")
    assert len(look(acting, process(acting, "group/default/guest", 1))) == 2
    acting.finish()


def test_work_that_is_gone_needs_no_event(acting: Acting) -> None:
    """Many owners are told over several looks, and those whose work is gone do not keep the others waiting."""
    lent = process(acting, "group/default/gone")
    for number in range(2 * MOST_EVENTS):
        lent.tell(f"group/default/gone-{number}", 0, "gone")
    acting.pod("other", 8, group="other")
    acting.run(2)
    lent.tell("group/default/other", 0, "told")
    assert [look(acting, lent, "other") for _ in range(3)] == [[], [], ["told"]]
    acting.finish()
