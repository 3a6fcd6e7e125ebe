"""When a view is believed: whole, fresh, not older than one before, and not suddenly short of most of its objects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autopilot.core.intake.commands import obey
from autopilot.core.intake.sight import Sight, look
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.intake import IntakeMemory, ViewRecord
from autopilot.core.model.records import Command, CommandKind, NoteCode, View
from tests.kits.core_world import AUTO, decide, world

INVENTORY = View("api", "inventory", True, 0.0, 10, 10, 0)


def seen(memory: ControllerMemory, now_s: float, *, confirm: str = "", **more: Any) -> Sight:
    """One look at a list of workloads beside a sound inventory."""
    work = replace(View("api", "work", True, now_s, 100, 100, 0), **more)
    commands = (Command(CommandKind.CONFIRM, "ann", now_s, confirm, sequence=int(now_s) + 1),) if confirm else ()
    views = (replace(INVENTORY, listed_s=now_s), work)
    known = obey(memory, commands, now_s, AUTO).memory
    return look(known, world("1x8", (), now_s).snapshot, views, now_s, AUTO)


def after(sight: Sight) -> ControllerMemory:
    """What is remembered of it."""
    return ControllerMemory(intake=IntakeMemory(views=sight.views))


START = after(seen(ControllerMemory(), 0.0))
SHRUNK: dict[str, Any] = {"count": 30, "lost": 70}


def test_a_whole_fresh_list_is_believed_and_remembered_by_its_number() -> None:
    """Of the objects themselves nothing is kept in memory."""
    sight = seen(ControllerMemory(), 5.0)
    assert sight.blind == ""
    assert sight.views == {"inventory/api": ViewRecord(10, 5.0), "work/api": ViewRecord(100, 5.0)}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"complete": False, "reason": "page 2 is missing"},
            "its list of workloads is not complete (page 2 is missing)",
        ),
        ({"listed_s": -60.5}, "is 70 s old (limit 60 s)"),
        ({"listed_s": -1.0}, "is 1 s older than an earlier one"),
        ({"listed_s": 1000.0}, "is 990 s ahead of the controller's clock"),
    ],
)
def test_any_other_list_says_nothing_about_what_is_absent(change: dict[str, Any], why: str) -> None:
    """The tick is blind and says by which source; what was known of the source stays."""
    sight = seen(START, 10.0, **change)
    assert why in sight.blind
    assert sight.blind.startswith("api: ")
    assert sight.views["work/api"] == START.intake.views["work/api"]
    assert min(sight.wake_s) > 10.0


def test_three_lists_that_agree_end_a_suspicion() -> None:
    """Complete, and at least 30 s apart; the source counts with the third."""
    memory = START
    for now_s, counted in ((100.0, 1), (110.0, 1), (130.0, 2), (150.0, 2)):
        sight = seen(memory, now_s, **SHRUNK)
        assert f"(now {counted})" in sight.blind
        assert "70 of its workloads are gone" in sight.blind
        memory = after(sight)
    assert min(sight.wake_s) == 160.0
    sight = seen(memory, 160.0, **SHRUNK)
    assert sight.blind == ""
    assert sight.views["work/api"] == ViewRecord(30, 160.0)


def test_lists_that_do_not_agree_begin_anew() -> None:
    """A source that shrinks further, or flickers, is not believed for having been suspected long enough."""
    memory = after(seen(START, 100.0, **SHRUNK))
    memory = after(seen(memory, 130.0, **SHRUNK))
    sight = seen(memory, 160.0, count=10, lost=90)
    assert "(now 1)" in sight.blind
    memory = after(sight)
    for now_s, counted in ((190.0, 1), (220.0, 2)):
        sight = seen(memory, now_s, count=95, lost=5)
        assert (
            f"shrank and has recovered; waiting for 3 complete lists that agree, 30 s apart (now {counted})"
            in sight.blind
        )
        memory = after(sight)
    assert seen(memory, 250.0, count=95, lost=5).blind == ""


def test_an_incomplete_list_does_not_count_among_the_three() -> None:
    """Nor does the same list shown again."""
    memory = after(seen(START, 100.0, **SHRUNK))
    memory = after(seen(memory, 130.0, complete=False, **SHRUNK))
    memory = after(seen(memory, 150.0, listed_s=100.0, **SHRUNK))
    assert memory.intake.views["work/api"].lists == 1


def test_a_person_may_confirm_the_loss() -> None:
    """Of the source that is suspected, for a loss that is the one that was seen."""
    memory = after(seen(START, 100.0, **SHRUNK))
    assert seen(memory, 101.0, confirm="other", **SHRUNK).blind
    assert seen(memory, 101.0, confirm="api", count=5, lost=95).blind, "a person saw another loss"
    sight = seen(memory, 101.0, confirm="api", **SHRUNK)
    assert sight.blind == ""
    assert sight.views["work/api"] == ViewRecord(30, 101.0)
    assert seen(START, 100.0, confirm="api", **SHRUNK).blind, "nothing was suspected when it was confirmed"


@pytest.mark.parametrize(
    "change",
    [
        {"count": 50, "lost": 50},  # half of them is not more than half
        {"count": 2, "expected": 19, "lost": 17},  # a small source
        {"count": 30, "expected": 30, "lost": 0},  # 70 were reported deleted, or shown ended
        {"count": 180, "lost": 0},
    ],
)
def test_other_losses_are_believed_at_once(change: dict[str, Any]) -> None:
    """Small sources, halves, and what was announced."""
    assert seen(START, 100.0, **change).blind == ""


def test_after_a_restart_the_number_in_memory_counts() -> None:
    """The objects of the last list are not at hand: what is missing is counted."""
    assert "(now 1)" in seen(START, 100.0, count=30, expected=-1, lost=-1).blind
    assert seen(START, 100.0, count=60, expected=-1, lost=-1).blind == ""
    assert seen(ControllerMemory(), 100.0, count=30, expected=-1, lost=-1).blind == "", "a first list"


def test_as_many_other_objects_are_a_loss_too() -> None:
    """The list of another cluster is as long as ours."""
    assert seen(START, 100.0, count=100, lost=100).blind


def test_a_confirmation_counts_for_what_was_suspected_before() -> None:
    """Given in the tick that first shows the loss it is refused, and has no effect on the next one."""
    views = (replace(INVENTORY, listed_s=100.0), View("api", "work", True, 100.0, 5, 100, 95))
    command = Command(CommandKind.CONFIRM, "ann", 100.0, "api", sequence=1)
    step = decide(world("1x8", (), 100.0, commands=(command,), views=views), AUTO, START)
    assert [note.code for note in step.decision.notes] == [NoteCode.CONFIRM_REFUSED]
    record = step.memory.intake.views["work/api"]
    assert (record.lists, record.confirmed) == (1, False)
