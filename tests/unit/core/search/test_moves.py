"""Moves that make room, where the budget of the cluster allows few or none."""

from __future__ import annotations

import numpy as np
import pytest

from autopilot.core.decision.build import build_context
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.planning.plan_state import ENOUGH, PlanState
from autopilot.core.search.moves import moves_only
from autopilot.core.search.scenario import scheduling_signatures
from tests.kits.core_world import decide, holds, observe, snapshot, waits, with_policy, world
from tests.kits.ticking_world import EAGER

ANY, FIRST = 0, 1
"""Bit sets of GPU models."""

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


@pytest.mark.parametrize(
    ("models", "beside", "moves"),
    [
        (ANY, 0, True),
        (FIRST, 0, False),  # it needs the model that the wide gang needs
        (ANY, 2, False),  # the other model has no room
    ],
)
def test_moves_are_sought_where_enough_could_leave_the_nodes_that_suit(models: int, beside: int, moves: bool) -> None:
    """One of two GPUs of the first model is held. Where its holder cannot go to the other model, no search is made."""
    work = [holds("small", 1, on=[0], gpu_models=models), waits("wide", 2, gpu_models=FIRST)]
    work += [holds("full", 2, on=[2, 3])] if beside else []
    snap = snapshot("2x2", work, nodes={"gpu_model": [0, 1]})
    ctx = build_context(observe(snap, 100.0), EAGER, ControllerMemory(), WhatIf(snap), frozenset())
    found = moves_only(ctx, 0, scheduling_signatures(ctx)[0])
    assert (found is not None, ctx.plan.steps > 0) == (moves, moves)
