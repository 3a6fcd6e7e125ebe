"""Changes of MIG geometry: followed until their node shows the result, else the GPU is quarantined."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autopilot.core.intake.signals import measure
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import Mode
from autopilot.core.model.records import Command, CommandKind, Observation, Outcome, OutcomeKind
from autopilot.core.model.snapshot import Recut
from autopilot.core.placement.whatif import WhatIf
from tests.kits.core_world import Item, decide, holds, observe, snapshot, waits, with_policy, world
from tests.kits.story_kit import story
from tests.kits.ticking_world import EAGER

SMALL = (*(("1g.10gb", start) for start in range(7)),)
ASKED = waits("w", 1, mig_profile=2)
DEADLINE_S = EAGER.regeometry.deadline_s


def seen(now_s: float, tick: int, recut: int = Recut.SETTLED, cut: object = SMALL, **more: object) -> Observation:
    """One GPU with these instances, in this state; `w` waits for a large one."""
    work = more.pop("work", (ASKED,))
    return world("1x8", work, now_s, tick=tick, cuts={0: cut}, recuts={0: recut}, **more)  # type: ignore[arg-type]


def begun() -> tuple[Step, tuple[tuple[str, int], ...]]:
    """A change that was sent at 0 s, and the geometry that it makes."""
    step = decide(seen(0.0, 0), EAGER)
    after = step.memory.geometry.recuts["GPU-0"].after
    assert after is not None
    return step, after


def state_of(step: Step) -> str:
    """Of the change of the GPU."""
    return step.memory.geometry.recuts["GPU-0"].state


def notes_of(step: Step) -> list[str]:
    """Codes of the notes on GPUs."""
    return [note.code for note in step.decision.notes if note.subject == "GPU-0"]


def answered(step: Step, kind: OutcomeKind, *, retryable: bool = False) -> tuple[Outcome, ...]:
    """The answer to the only instruction."""
    (instruction,) = step.instructions
    return (Outcome(instruction.id, kind, 1.0, "", retryable),)


HALF = (("1g.10gb", 0), ("1g.10gb", 1))


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (lambda _: seen(60.0, 2, Recut.FAILED, HALF), "it failed half-way"),
        (lambda _: seen(60.0, 2), "it had no effect"),
        (lambda _: seen(60.0, 2, cut=HALF), "the node shows another geometry"),
        (lambda _: seen(DEADLINE_S, 2, Recut.CHANGING), "it did not end by its deadline"),
    ],
    ids=["half-way", "success without effect", "another geometry", "late"],
)
def test_a_change_that_goes_wrong_quarantines_its_gpu(last: object, reason: str) -> None:
    """A note says why, nothing starts there, and the GPU is not cut again."""
    first, _ = begun()
    mid = decide(seen(30.0, 1, Recut.CHANGING), EAGER, first.memory)
    step = decide(last(first), EAGER, mid.memory)  # type: ignore[operator]
    assert state_of(step) == "quarantined"
    assert step.memory.geometry.recuts["GPU-0"].reason == reason
    assert notes_of(step) == ["gpu_quarantined"]
    assert len(step.memory.halt.failed) == 1
    small = decide(seen(step.memory.now_s + 10.0, 3, work=(waits("s", 1, mig_profile=0),)), EAGER, step.memory)
    assert not small.instructions


def test_a_reported_success_without_effect_is_found() -> None:
    """The actuator says that it is done, and the next list shows the geometry of before."""
    first, _ = begun()
    step = decide(seen(30.0, 1, outcomes=answered(first, OutcomeKind.DONE)), EAGER, first.memory)
    step = decide(seen(60.0, 2), EAGER, step.memory)
    assert step.memory.geometry.recuts["GPU-0"].reason == "it had no effect"


def test_a_change_that_was_refused_before_it_began_is_planned_anew() -> None:
    """Its precondition failed, because the geometry changed by itself: nothing is quarantined."""
    first, _ = begun()
    step = decide(seen(10.0, 1, cut=HALF, outcomes=answered(first, OutcomeKind.CONFLICT)), EAGER, first.memory)
    assert state_of(step) == "settled"
    assert not notes_of(step)
    later = decide(seen(10.0 + EAGER.regeometry.dwell_s, 2, cut=HALF), EAGER, step.memory)
    assert [each.kind for each in later.instructions] == ["recut"]


def quarantined() -> Step:
    """At 60 s."""
    first, _ = begun()
    return decide(seen(60.0, 1, Recut.FAILED), EAGER, first.memory)


def test_three_equal_lists_end_a_quarantine() -> None:
    """They must be legal, agree with each other, be newer each time, and report no change under way."""
    step = quarantined()
    for tick, (state, cut) in enumerate(
        [
            (Recut.SETTLED, SMALL),
            (Recut.FAILED, SMALL),
            (Recut.SETTLED, SMALL),
            (Recut.SETTLED, HALF),
            (Recut.SETTLED, HALF),
        ],
        2,
    ):
        step = decide(seen(60.0 * tick, tick, state, cut), EAGER, step.memory)
        assert state_of(step) == "quarantined"
    same_list = replace(seen(361.0, 7, cut=HALF), snapshot=replace(seen(360.0, 7, cut=HALF).snapshot, work_age_s=1.0))
    step = decide(same_list, EAGER, step.memory)
    assert state_of(step) == "quarantined"
    assert step.wake_at_s < 400.0
    step = decide(seen(420.0, 8, cut=HALF), EAGER, step.memory)
    assert state_of(step) == "settled"
    assert notes_of(step) == ["gpu_used_again"]


def test_an_illegal_geometry_does_not_end_a_quarantine() -> None:
    """Two instances on the same slices cannot exist, however often they are listed."""
    step = quarantined()
    for tick in range(2, 8):
        step = decide(seen(60.0 * tick, tick, cut=(("3g.40gb", 0), ("3g.40gb", 2))), EAGER, step.memory)
    assert state_of(step) == "quarantined"


def test_a_person_ends_a_quarantine() -> None:
    """With the command `release`; a GPU that is not quarantined is not released."""
    command = Command(CommandKind.RELEASE, "ann", 70.0, "GPU-0", sequence=1)
    step = decide(seen(70.0, 2, commands=(command,), work=()), EAGER, quarantined().memory)
    assert state_of(step) == "settled"
    again = decide(seen(80.0, 3, commands=(replace(command, sequence=2),), work=()), EAGER, step.memory)
    assert notes_of(again) == ["release_refused"]


def test_a_change_that_others_started_is_followed() -> None:
    """Nothing is cut there until it ends; late, it is reported, and it is no failure of ours."""
    step = decide(seen(0.0, 0, Recut.CHANGING), EAGER)
    assert state_of(step) == "other"
    assert step.wake_at_s <= DEADLINE_S
    done = decide(seen(60.0, 1, cut=HALF), EAGER, step.memory)
    assert state_of(done) == "settled"
    late = decide(seen(DEADLINE_S, 1, Recut.CHANGING), EAGER, step.memory)
    assert notes_of(late) == ["gpu_quarantined"]
    assert not late.memory.halt.failed


def test_with_the_action_off_changes_of_others_are_not_kept() -> None:
    """Nothing starts on the GPU, which its node alone reports."""
    off = with_policy(EAGER, modes={"regeometry": Mode.OFF})
    step = decide(seen(0.0, 0, Recut.CHANGING, work=(waits("s", 1, mig_profile=0),)), off)
    assert not step.memory.geometry.recuts
    assert not step.instructions


def test_recover_leaves_work_on_a_changing_gpu_alone() -> None:
    """Its error may be due to the change; after that, the work is stopped and the node cordoned."""
    work = [holds("h", 1, [0], mig_profile=0)]
    changing = decide(seen(0.0, 0, Recut.CHANGING, work=work, xids={0: 79}), EAGER)
    assert not changing.instructions
    over = decide(seen(60.0, 1, work=work, xids={0: 79}), EAGER, changing.memory)
    assert sorted(each.kind for each in over.instructions) == ["cordon", "evict"]
    late = decide(seen(DEADLINE_S, 1, Recut.CHANGING, work=work, xids={0: 79}), EAGER, changing.memory)
    assert sorted(each.kind for each in late.instructions) == ["cordon", "evict"]


def test_capacity_that_changes_is_neither_free_nor_lost() -> None:
    """It is counted apart, less what work holds of it."""
    work: list[Item] = [holds("h", 1, [0], mig_profile=0), waits("s", 1, mig_profile=0)]
    snap = snapshot("1x1", work, cuts={0: SMALL}, recuts={0: Recut.CHANGING})
    signals = measure(snap, WhatIf(snap))
    assert (signals.capacity_gpus, signals.stranded_gpus) == (1.0, 0.0)
    assert signals.recut_gpus == pytest.approx(6 / 7, abs=0.01)
    assert signals.free_gpus == pytest.approx(0.0)
    assert np.isclose(signals.free_gpus + signals.allocated_gpus + signals.recut_gpus, signals.capacity_gpus)


def test_the_story_names_the_gpu() -> None:
    """Of work that waits for an instance, and of work on the GPU."""
    held = holds("h", 1, [0], mig_profile=0)
    memory = quarantined().memory
    for name in ("w", "h"):
        told, _ = story(seen(90.0, 2, work=(ASKED, held)), name, EAGER, memory)
        assert "GPU-0 has been quarantined for 30 s: it failed half-way; 1 of 3 lists in a row" in told
    first, _ = begun()
    told, _ = story(seen(30.0, 1, Recut.CHANGING), "w", EAGER, first.memory)
    assert "the MIG geometry of GPU-0 has been changing for 30 s" in told


def test_nothing_is_kept_without_mig() -> None:
    """Memory of a cluster without MIG has no records."""
    assert not decide(observe(snapshot("1x8", [waits("a", 8)])), EAGER, ControllerMemory()).memory.geometry.recuts
