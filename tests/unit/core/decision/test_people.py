"""Commands of people: which of them count, in which order, and what an approval holds for."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.effects import EffectsMemory, InFlight
from autopilot.core.model.memory.halt import Failure, HaltMemory
from autopilot.core.model.records import (
    Code,
    Command,
    Outcome,
    OutcomeKind,
)
from tests.kits.core_world import (
    AUTO,
    decide,
    taken_in,
    waits,
    world,
)
from tests.kits.instructions import instruct
from tests.kits.people_kit import KILL, PAUSE, REJECT, RESUME, notes, obey, said

# --- kill, resume, pause -----------------------------------------------------------------------------


def test_kill_stays_until_a_later_resume() -> None:
    """No length of time ends it; a RESUME with a higher number does."""
    killed = obey(said(KILL, 3))
    assert killed.halt.killed
    assert obey(memory=killed, now_s=1e9).halt.killed
    assert not obey(said(RESUME, 4), memory=killed).halt.killed


@pytest.mark.parametrize(
    ("resume", "ends"),
    [(4, True), (3, False), (2, False), (-1, False)],
    ids=["later", "same number", "earlier", "no number"],
)
def test_only_a_resume_received_after_the_kill_ends_it(resume: int, *, ends: bool) -> None:
    """In whichever order the two are delivered, in one batch or in two."""
    kill, word = said(KILL, 3), said(RESUME, resume)
    for batch in permutations((kill, word)):
        assert obey(*batch).halt.killed is not ends
    assert obey(word, memory=obey(kill)).halt.killed is not ends


def test_a_kill_without_a_number_wins_over_everything_in_its_batch() -> None:
    """Only a RESUME with a number above all that were seen then ends it."""
    killed = obey(said(KILL), said(RESUME, 7))
    assert killed.halt.killed
    assert obey(said(RESUME, 7), memory=killed).halt.killed
    assert not obey(said(RESUME, 8), memory=killed).halt.killed


def test_a_kill_below_the_last_number_counts_and_a_repeat_does_not() -> None:
    """A counter that began anew hides no KILL; the one that was obeyed and ended is not obeyed twice."""
    resumed = obey(said(KILL, 3), said(RESUME, 4))
    assert not resumed.halt.killed
    assert not obey(said(KILL, 3), memory=resumed).halt.killed
    late = obey(said(KILL, 0, at_s=90.0), memory=resumed)
    assert late.halt.killed
    assert not obey(said(RESUME, 5), memory=late).halt.killed


def test_a_repeated_command_changes_nothing() -> None:
    """A batch that is delivered again leaves the memory as it was."""
    batch = (said(PAUSE, 1), said(RESUME, 2), said(REJECT, 3, subject="p"))
    once = obey(*batch)
    assert obey(*batch, memory=once) == once
    assert once.people.last_sequence == 3
    assert not once.halt.paused_reason


def test_a_repeated_resume_does_not_end_a_later_pause() -> None:
    """The last command of all, delivered once more, is a repeat too."""
    resumed = obey(said(RESUME, 1))
    paused = replace(resumed, halt=replace(resumed.halt, paused_reason="5 effects failed", paused_since_s=100.0))
    assert obey(said(RESUME, 1), memory=paused).halt.paused_reason == "5 effects failed"


def test_a_resume_forgets_the_failures_of_its_own_tick() -> None:
    """Four effects failed before and one fails now: the person knows, and nothing pauses."""
    effect = instruct("a", AdmitOperation(slots=()), "0/p", deadline_s=50.0, fence=0)
    entry = InFlight(effect, "issued", 0.0, "admit_gang", "t", 0.0, contract=False, attempts=3)
    memory = ControllerMemory(
        effects=EffectsMemory(in_flight={"0/p": entry}),
        halt=HaltMemory(failed=tuple(Failure(60.0 + 10 * k, f"u{k}", f"t{k}") for k in range(4))),
    )
    outcomes = (Outcome("0/p", OutcomeKind.FAILED, 100.0, "refused"),)

    def at_once(*commands: Command) -> ControllerMemory:
        seen = world("1x8", [waits("a")], 100.0, commands=commands, outcomes=outcomes)
        return taken_in(memory, seen, AUTO)

    assert at_once().halt.paused_reason == "5 effects on 5 objects failed within 900 s"
    assert (at_once(said(RESUME, 1)).halt.paused_reason, at_once(said(RESUME, 1)).halt.failed) == ("", ())


def test_numbers_give_the_order() -> None:
    """PAUSE 1, RESUME 2: it goes on, however they are delivered. RESUME 1, PAUSE 2: it pauses."""
    for batch in permutations((said(PAUSE, 1), said(RESUME, 2))):
        assert not obey(*batch).halt.paused_reason
    for batch in permutations((said(RESUME, 1), said(PAUSE, 2))):
        assert obey(*batch).halt.paused_reason == "paused by ann"


def test_a_persons_pause_ends_only_when_a_person_ends_it() -> None:
    """Its own pause lapses, and is a timer; that of a person does not, and sets none."""
    paused = obey(said(PAUSE, 0))
    assert obey(memory=paused, now_s=1e9).halt.paused_reason == "paused by ann"
    assert not obey(said(RESUME, 1), memory=paused).halt.paused_reason
    step = decide(world("1x8", [waits("a", 16)], 100.0, commands=(said(PAUSE, 0),)), AUTO)
    assert step.decision.halted == "paused by ann"
    later = decide(world("1x8", [waits("a", 8)], 1e6, tick=1), AUTO, step.memory)
    (proposal,) = later.decision.plan.proposals
    assert {v.code for v in proposal.verdicts if not v.allowed} == {Code.PAUSED_BY_PERSON}
    own = ControllerMemory(halt=HaltMemory(paused_reason="5 effects failed", paused_since_s=100.0))
    assert obey(memory=own, now_s=1899.0).halt.paused_reason
    assert not obey(memory=own, now_s=1900.0).halt.paused_reason


def test_a_refused_resume_is_said() -> None:
    """The person sees why nothing goes on."""
    killed = obey(said(KILL, 3))
    step = decide(world("1x8", (), 200.0, commands=(said(RESUME, 2), said(RESUME)), tick=1), AUTO, killed)
    assert notes(step) == ["resume by ann is refused: it may have been received before the kill; send it again"]
