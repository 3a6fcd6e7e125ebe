"""By which cases an action is judged: the newest ones, those of a week, and not the worst alone."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.trust import TrustMemory
from autopilot.core.model.policy.promises import Promises
from autopilot.core.model.promises import DayOfCases, PromiseRecord
from autopilot.core.trust.follow_promises import follow_promises, judge_promises, sums_of
from tests.kits.core_world import world
from tests.kits.ticking_world import EAGER
from tests.kits.ticks import follow
from tests.unit.core.trust.test_promises import BOOKED, kept, runs


@pytest.mark.parametrize(("large", "capped"), [(1, False), (2, True)])
def test_a_twentieth_of_the_cases_may_fall_short_by_chance(large: int, capped: bool) -> None:
    """One large failure among 20 cases is luck; with two, the sum is below half without the worse one too."""
    cases = (*((1.0, 1.0),) * (20 - large), *((100.0, 0.0),) * large)
    memory = judge_promises(
        ControllerMemory(trust=TrustMemory(kept_promises={"preempt": PromiseRecord(cases)})), 900.0, EAGER
    )
    assert (memory.trust.kept_promises["preempt"].capped_s < inf) == capped


def test_the_newest_cases_count() -> None:
    """`promises.most_cases` of them, and the sums of those before."""
    policy = replace(EAGER, promises=Promises(most_cases=20))
    memory = ControllerMemory(trust=TrustMemory(promises=(BOOKED,), kept_promises={"preempt": kept(1.0, 1.0)}))
    memory = follow(follow_promises, memory, world("2x8", runs(8, 1000.0), 9000.0), policy)
    record = memory.trust.kept_promises["preempt"]
    assert record.cases == (*((1.0, 1.0),) * 19, (100.0, 8 * 3000.0))
    assert record.before == (DayOfCases(0, 1, 1.0, 1.0),)
    assert (record.count, sums_of(record)) == (21, (120.0, 20.0 + 8 * 3000.0))


def test_displaced_cases_are_forgotten_after_a_week() -> None:
    """Counted from the day on which they were displaced. Until then their sums count."""
    policy = replace(EAGER, promises=Promises(most_cases=20))
    before = (DayOfCases(-8, 5, 50.0, 50.0), DayOfCases(-7, 5, 50.0, 50.0), DayOfCases(-6, 3, 30.0, 30.0))
    record = replace(kept(1.0, 1.0), before=(*before, DayOfCases(0, 2, 2.0, 2.0)))
    memory = ControllerMemory(trust=TrustMemory(promises=(BOOKED,), kept_promises={"preempt": record}))
    memory = follow(follow_promises, memory, world("2x8", runs(8, 1000.0), 9000.0), policy)
    assert memory.trust.kept_promises["preempt"].before == (before[-1], DayOfCases(0, 3, 3.0, 3.0))


def test_a_day_of_alike_jobs_does_not_outweigh_the_week() -> None:
    """A hundred small cases that fell short, after days of large ones that held."""
    poor = PromiseRecord(((100.0, 40.0),) * 100)
    for record, capped in ((poor, True), (replace(poor, before=(DayOfCases(3, 9, 1e6, 9e5),)), False)):
        memory = judge_promises(ControllerMemory(trust=TrustMemory(kept_promises={"preempt": record})), 900.0, EAGER)
        assert (memory.trust.kept_promises["preempt"].capped_s < inf) == capped
