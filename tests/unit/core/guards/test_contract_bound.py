"""What contracts take for one beneficiary within an hour is bounded by what it needs."""

from __future__ import annotations

import pytest

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.budget import BudgetMemory, Disruption
from autopilot.core.model.records import Code
from autopilot.explain.proposals import Answer, answer_of, proposal_words
from tests.kits.core_world import decide, evicted, holds, proposals, waits, with_policy, world
from tests.kits.ticking_world import EAGER, tenants

NOW_S = 10_000.0
POLICY = with_policy(EAGER, budget={"window_s": 7200.0})
"""Disruptions are remembered for longer than the bound counts them."""
QUEUES = tenants(("a", 0, 16), ("b", 0, 0))
WORK = [holds("v", 8, queue=2), holds("x", 8, queue=2), waits("w", 8, queue=1)]


def taken(gpus: float, at_s: float = NOW_S - 100.0, uid: str = "w", *, contract: bool = True) -> ControllerMemory:
    """Memory in which so many GPUs were taken for a workload, which did not start on them."""
    entry = Disruption(at_s, "z", "t", (), contract, uid="z", proposal_id="p", gpus=gpus, beneficiary=uid)
    return ControllerMemory(budget=BudgetMemory(disrupted=(entry,)))


@pytest.mark.parametrize(
    ("memory", "passes"),
    [
        (taken(8.0), True),
        (taken(9.0), False),
        (taken(9.0, NOW_S - 3599.0), False),
        (taken(9.0, NOW_S - 3601.0), True),
        (taken(9.0, uid="other"), True),
        (taken(9.0, contract=False), True),
    ],
)
def test_contracts_take_twice_what_a_workload_needs_in_an_hour(memory: ControllerMemory, passes: bool) -> None:
    """What would go beyond that is a recommendation with its number, and nothing is stopped."""
    step = decide(world("2x8", WORK, NOW_S, queues=QUEUES), POLICY, memory)
    assert bool(evicted(step)) == passes
    (found,) = proposals(step, "pipeline").values()
    assert (answer_of(found) == Answer.RECOMMENDED) == (not passes)
    verdict = next(each for each in found.verdicts if each.guard == "contract")
    if not passes:
        assert (verdict.code, verdict.value, verdict.threshold) == (Code.CONTRACT_RATE, 17.0, 16.0)
        assert "contracts would have taken 17 GPUs for it within the hour, at most 16 are" in proposal_words(found)
        assert step.wake_at_s <= memory.budget.disrupted[0].at_s + 3600.0


def test_a_victim_that_is_wider_than_the_bound_is_taken_once() -> None:
    """Nothing less makes room, and a guarantee holds for narrow work too."""
    work = [holds("v", 16, queue=2, gpus_per_member=8), waits("w", 4, queue=1, gpus_per_member=4)]
    first = decide(world("2x8", work, NOW_S, queues=QUEUES), EAGER)
    assert evicted(first) == ["v"]
    (entry,) = first.memory.budget.disrupted
    assert (entry.gpus, entry.beneficiary, entry.contract) == (16.0, "w", True)
    again = decide(
        world("2x8", work, NOW_S, queues=QUEUES), EAGER, ControllerMemory(budget=BudgetMemory(disrupted=(entry,)))
    )
    assert evicted(again) == []
