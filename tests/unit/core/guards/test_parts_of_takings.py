"""Guards of takings that do not stop a gang: shrinks and moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autopilot.core.model.policy import Mode
from autopilot.core.model.records import Code
from tests.kits.core_world import decide, holds, waits
from tests.kits.ticking_world import EAGER
from tests.unit.core.capabilities.test_new_guards import Planted, answer, layout, scene


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({"preemptible": False}, Code.NOT_PREEMPTIBLE),
        ({"slo_class": 0}, Code.PROTECTED_CLASS),
        ({"excluded": True}, Code.OPTED_OUT),
    ],
)
def test_protected_work_does_not_shrink_either(columns: dict[str, Any], code: Code) -> None:
    """A member that leaves is taken from it, contract or not."""
    work = [holds("v", 8, gpus_per_member=1, min_gpus=2, **columns), waits("w", 4, gpus_per_member=4)]
    for contract in (False, True):
        planted = Planted("w", {"v": ("shrink", layout(0, 1, 2, 3))}, layout(4, 5, 6, 7), contract=contract)
        assert answer(planted, scene(*work), "protected").code == code


@pytest.mark.parametrize(("mode", "code"), [(Mode.RECOMMEND, Code.ON_PAPER), (Mode.AUTO, Code.OK)])
def test_nothing_moves_onto_gpus_that_only_a_recommendation_frees(mode: Mode, code: Code) -> None:
    """`v` leaves on paper. A gang that moves to what it leaves moves when `v` really leaves."""
    four: dict[str, Any] = {"gpus_per_member": 4}
    work = (holds("v", 8), holds("u", 4, **four), waits("w", 4, **four), waits("x", 4, **four))
    observation = scene(*work, shape="1x12")
    policy = replace(EAGER, modes=replace(EAGER.modes, reclaim_borrowed=mode))
    taking = Planted("w", {"v": ("evict", None)}, layout(0, 1, 2, 3), action="reclaim_borrowed")
    moving = Planted("x", {"u": ("move", layout(4, 5, 6, 7))}, layout(8, 9, 10, 11), action="preempt")
    step = decide(observation, policy, actions=(*taking.table, *moving.table))
    verdicts = {each.guard: each for each in step.decision.plan.proposals[1].verdicts}
    assert verdicts["mode"].code == code
