"""MIG geometry: idle instances are cut for requests that wait, and ahead of those that are expected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autopilot.core.geometry.recut import RecutGpu
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import Mode
from autopilot.core.model.records import Code, Observation
from autopilot.core.model.snapshot import Recut
from autopilot.records.replay.unequal import first_unequal
from tests.kits.core_world import Item, decide, holds, waits, with_policy, world
from tests.kits.demand_world import expecting
from tests.kits.geometry_world import stating
from tests.kits.ticking_world import EAGER

SMALL = tuple(("1g.10gb", start) for start in range(7))
HALVES = (("3g.40gb", 0), ("3g.40gb", 4))


def cut_world(*work: Item, now_s: float = 0.0, cuts: object = None, **more: object) -> Observation:
    """One node; GPU 0 is cut into seven small instances unless `cuts` says otherwise."""
    return world("1x8", work, now_s, cuts=cuts or {0: SMALL}, **more)  # type: ignore[arg-type]


def recuts(step: Step) -> dict[str, RecutGpu]:
    """The changes that a decision starts, by GPU."""
    return {each.subject.uid: each.operation for each in step.instructions if isinstance(each.operation, RecutGpu)}


def code_of(step: Step, observation: Observation, name: str) -> Code:
    """Why a workload waits."""
    refusals, row = step.decision.plan.refusals, observation.snapshot.workloads.id.tolist().index(name)
    return Code(refusals.codes[int(refusals.code[refusals.workload.tolist().index(row)])])


def test_idle_instances_become_those_that_a_request_waits_for() -> None:
    """The instruction has the present geometry as its precondition, and the request is told that it is served."""
    seen = cut_world(waits("w", 1, mig_profile=2))
    step = decide(seen, EAGER)
    (change,) = recuts(step).values()
    assert change.before == SMALL
    assert change.after is not None
    assert [profile for profile, _ in change.after].count("3g.40gb") == 1
    assert code_of(step, seen, "w") == Code.RECUT
    assert step.memory.geometry.recuts["GPU-0"].state == "changing"


def test_nothing_is_preempted_for_a_request_that_a_change_serves() -> None:
    """Work of lower priority on an instance of the profile stays."""
    cuts = {0: SMALL, 1: HALVES}
    work = [
        holds("a", 1, [7], mig_profile=2, priority=1),
        holds("b", 1, [8], mig_profile=2, priority=1),
        waits("w", 1, mig_profile=2, priority=9),
    ]
    assert [each.kind for each in decide(cut_world(*work, cuts=cuts), EAGER).instructions] == ["recut"]
    off = with_policy(EAGER, modes={"regeometry": Mode.OFF})
    assert [each.kind for each in decide(cut_world(*work, cuts=cuts), off).instructions] == ["evict"]


def test_instances_in_use_stay() -> None:
    """A change goes around them; where they leave no room, there is none."""
    held = [holds(f"h{row}", 1, [row], mig_profile=0) for row in (0, 1, 2)]
    (change,) = recuts(decide(cut_world(*held, waits("w", 1, mig_profile=2)), EAGER)).values()
    assert change.after is not None
    assert set(change.after) >= set(SMALL[:3]) | {("3g.40gb", 4)}
    spread = [holds(f"h{row}", 1, [row], mig_profile=0) for row in (1, 5)]
    assert not recuts(decide(cut_world(*spread, waits("w", 1, mig_profile=2)), EAGER))


def test_a_gpu_that_changes_takes_no_new_work() -> None:
    """Its capacity is neither free nor lost: what runs there goes on, and nothing starts on what is left."""
    seen = cut_world(holds("h", 1, [0], mig_profile=0), waits("w", 1, mig_profile=0), recuts={0: Recut.CHANGING})
    step = decide(seen, EAGER)
    assert not step.instructions
    assert code_of(step, seen, "w") == Code.MIG_GEOMETRY


def test_the_next_tick_uses_the_new_instances() -> None:
    """When its node shows the new geometry, the change is settled and the request starts."""
    work = waits("w", 1, mig_profile=2)
    first = decide(cut_world(work), EAGER)
    (change,) = recuts(first).values()
    assert change.after is not None
    mid = decide(cut_world(work, now_s=30.0, tick=1, recuts={0: Recut.CHANGING}), EAGER, first.memory)
    assert not mid.instructions
    done = decide(cut_world(work, now_s=60.0, tick=2, cuts={0: change.after}), EAGER, mid.memory)
    assert [each.kind for each in done.instructions] == ["admit"]
    assert done.memory.geometry.recuts["GPU-0"].state == "settled"
    assert not [key for key in done.memory.effects.in_flight if "recut" in key]


def test_off_is_as_if_it_did_not_exist() -> None:
    """The decision is the same without the action."""
    from autopilot.core.capabilities.actions import ACTIONS

    seen = expecting(cut_world(waits("w", 1, mig_profile=2)), "3g.40gb")
    off = with_policy(EAGER, modes={"regeometry": Mode.OFF})
    without = tuple(action for action in ACTIONS if action.name != "regeometry")
    assert first_unequal(decide(seen, off), decide(seen, off, actions=without), "step") is None


def test_expected_requests_are_cut_for_ahead() -> None:
    """Only on a forecast with enough data behind it, and not where it abstains or is not a number."""
    empty = cut_world()
    assert recuts(decide(expecting(empty, "3g.40gb"), EAGER))
    assert not recuts(decide(expecting(empty, "3g.40gb", watched_h=1.0), EAGER))
    assert not recuts(decide(expecting(empty, "3g.40gb", per_h=0.0), EAGER))
    assert not recuts(decide(expecting(empty, "3g.40gb", counts=np.full((1, 1, 3), np.nan)), EAGER))
    assert not recuts(decide(expecting(empty, "9g.90gb"), EAGER))
    assert not recuts(decide(expecting(empty, "3g.40gb"), with_policy(EAGER, regeometry={"ahead": False})))


@pytest.mark.parametrize(
    "cuts",
    [(("3g.40gb", 0), ("3g.40gb", 2)), (("1g.10gb", -1),), (("7g.80gb", 3),)],
    ids=["overlap", "without a place", "where it cannot start"],
)
def test_a_gpu_with_an_illegal_geometry_is_left_alone(cuts: tuple[tuple[str, int], ...]) -> None:
    """It is not changed, and a note names its pool; a sound GPU beside it is."""
    work = waits("w", 1, mig_profile=2)
    step = decide(cut_world(work, cuts={0: cuts, 1: SMALL}), EAGER)
    assert set(recuts(step)) <= {"GPU-1"}
    assert "recut_gpu_left_out" in [note.code for note in step.decision.notes]


def test_a_pool_without_a_scope_is_not_changed() -> None:
    """Nor one whose nodes state scopes that do not meet."""
    now = cut_world(waits("w", 1, mig_profile=2))
    assert recuts(decide(now, EAGER))
    assert not recuts(decide(stating(now), EAGER))


def test_several_instances_are_all_made_or_none() -> None:
    """A gang that would get only a part of its instances is left out."""
    assert not recuts(decide(cut_world(waits("w", 3, mig_profile=2)), EAGER))
    (change,) = recuts(decide(cut_world(waits("w", 2, mig_profile=2)), EAGER)).values()
    assert change.after == HALVES


def test_a_second_change_waits_for_the_dwell_time() -> None:
    """And the decision wakes when it ends."""
    first = decide(cut_world(waits("w", 1, mig_profile=2)), EAGER)
    (change,) = recuts(first).values()
    assert change.after is not None
    settled = decide(cut_world(now_s=60.0, tick=1, cuts={0: change.after}), EAGER, first.memory)
    asked = waits("x", 1, mig_profile=3)
    dwell_s = EAGER.regeometry.dwell_s
    early = decide(cut_world(asked, now_s=100.0, tick=2, cuts={0: change.after}), EAGER, settled.memory)
    assert not recuts(early)
    assert early.wake_at_s <= 60.0 + dwell_s
    late = decide(cut_world(asked, now_s=60.0 + dwell_s, tick=3, cuts={0: change.after}), EAGER, early.memory)
    assert recuts(late)


def test_memory_without_changes_is_as_before() -> None:
    """A cluster without MIG keeps nothing."""
    step = decide(world("1x8", [waits("w", 8)]), EAGER, ControllerMemory())
    assert not step.memory.geometry.recuts


def test_a_recommendation_stays_on_paper() -> None:
    """With the mode `recommend` nothing is instructed, and memory has no change."""
    policy = replace(EAGER, modes=replace(EAGER.modes, regeometry=Mode.RECOMMEND))
    step = decide(cut_world(waits("w", 1, mig_profile=2)), policy)
    assert not step.instructions
    assert not step.memory.geometry.recuts
    assert [each.kind for each in step.decision.plan.proposals] == ["recut"]
