"""Moves that make room, where the budget of the cluster allows few or none."""

from __future__ import annotations

import numpy as np
import pytest

from autopilot.core.planning.plan_state import ENOUGH, PlanState
from tests.kits.core_world import decide, holds, waits, with_policy, world
from tests.kits.ticking_world import EAGER

GANGS = 6
"""Twelve nodes of two GPUs hold a gang of one each: six gangs of two fit if six others move."""


@pytest.mark.parametrize(("budget", "asked"), [(GANGS, GANGS), (1, 1 + ENOUGH), (0, ENOUGH)])
def test_an_exhausted_budget_is_not_asked_by_everyone(budget: int, asked: int) -> None:
    """What the budget allows moves. Then a few proposals show what waits for it, and the rest makes none."""
    work = [holds(f"small-{number}", 1, on=[2 * number]) for number in range(2 * GANGS)]
    work += [waits(f"wide-{number}", 2) for number in range(GANGS)]
    policy = with_policy(EAGER, budget={"per_cluster": budget})
    step = decide(world(f"{2 * GANGS}x2", work, 1000.0), policy)
    made = [one for one in step.decision.plan.proposals if one.change.victims]
    assert (sum(one.accepted for one in made), len(made)) == (budget, asked)


def test_a_refusal_of_many_victims_says_nothing_of_fewer() -> None:
    """Budgets of the cluster count victims: two that were refused may be one too many."""
    none = np.zeros(0)
    plan = PlanState(none, none.astype(bool), none.astype(np.int8), none, none, none.astype(np.int32))
    for _ in range(ENOUGH):
        assert not plan.exhausted(2)
        plan.exceed([1, 2], of_cluster=False)
        assert not plan.exhausted(2)
        plan.exceed([1, 2], of_cluster=True)
    assert (plan.exhausted(1), plan.exhausted(2), plan.exhausted(3)) == (False, True, True)
