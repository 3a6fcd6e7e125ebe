"""Order of service: sheltered class, queue, overdue, then the queue's own order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autopilot.core.decision.build import build_context
from autopilot.core.model.forecast import LEVELS
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.plan import PlanMemory
from autopilot.core.model.policy import Order, Policy
from autopilot.core.model.records import Reservation
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.planning.ordering.job_order import aged_index, gittins_per_s, mixed_index
from tests.kits.core_world import AUTO, Item, queue_tree, waits, with_policy, world

PLAIN = with_policy(AUTO, order={"short_s": 0.0})
SUBMISSION = queue_tree(order=0)


def order_of(work: list[Item], now_s: float = 0.0, policy: Policy = PLAIN, **more: object) -> list[str]:
    """Names in the order in which they would be looked at."""
    observation = world("1x8", work, now_s, **more)  # type: ignore[arg-type]
    ctx = build_context(observation, policy, ControllerMemory(), WhatIf(observation.snapshot), frozenset())
    return [str(name) for name in observation.snapshot.workloads.id[ctx.pending]]


def test_the_class_comes_first() -> None:
    """Latency-critical work, then interactive, then batch, whatever its queue, priority and age."""
    work = [
        waits("b", priority=9),
        waits("i", slo_class=1, submit_s=5.0),
        waits("l", slo_class=0, submit_s=9.0),
    ]
    assert order_of(work) == ["l", "i", "b"]


def test_submission_order_is_priority_then_age() -> None:
    """In a queue ordered by submission: the higher priority, then the older, then the lower row."""
    work = [
        waits("c", submit_s=2.0),
        waits("a", submit_s=1.0),
        waits("p", submit_s=3.0, priority=1),
        waits("d", submit_s=2.0),
    ]
    assert order_of(work, queues=SUBMISSION) == ["p", "a", "c", "d"]


def test_index_order_is_shortest_first_per_gpu() -> None:
    """In an index queue what saves the most waiting per GPU comes first; a run time unknown lies between."""
    total_s = {"short": 100.0, "long": 90_000.0, "wide": 100.0}
    work = [waits("long"), waits("unknown"), waits("wide", 8), waits("short")]
    policy = with_policy(PLAIN, order={"width_exponent": 0.5})
    assert order_of(work, 0.0, policy, total_s=total_s) == ["short", "wide", "unknown", "long"]


def test_the_hazard_index_counts_by_its_weight() -> None:
    """A weight of 0 leaves the index as it is, to the bit; 1 replaces it; in between it is their geometric mean."""
    index, hazard = np.array([1e-3, 4e-4, 2e-5]), np.array([1e-5, 1e-4, 8e-5])
    assert mixed_index(index, hazard, Order()) is index
    assert mixed_index(index, hazard, Order(hazard_weight=1.0)) == pytest.approx(hazard)
    assert mixed_index(index, hazard, Order(hazard_weight=0.5)) == pytest.approx(np.sqrt(index * hazard))


def test_an_unknown_hazard_index_leaves_the_other_one() -> None:
    """NaN is unknown; 0, infinity and negative numbers are no rates."""
    index = np.full(4, 3e-4)
    hazard = np.array([np.nan, 0.0, np.inf, -1.0])
    assert mixed_index(index, hazard, Order(hazard_weight=0.7)).tolist() == index.tolist()


def test_a_policy_that_asks_for_it_orders_by_the_hazard_index() -> None:
    """Equal forecasts: the hazard index decides where the policy gives it weight, and nowhere else."""
    work = [waits("old"), waits("young")]
    observation = world("1x8", work, total_s={"old": 7200.0, "young": 7200.0})
    runtimes = observation.forecasts.runtimes
    assert runtimes is not None
    told = replace(runtimes, hazard_index_per_s=np.array([1e-5, 1e-3]))
    observation = replace(observation, forecasts=replace(observation.forecasts, runtimes=told))

    def order(policy: Policy) -> list[str]:
        ctx = build_context(observation, policy, ControllerMemory(), WhatIf(observation.snapshot), frozenset())
        return [str(name) for name in observation.snapshot.workloads.id[ctx.pending]]

    assert order(PLAIN) == ["old", "young"]
    assert order(with_policy(PLAIN, order={"hazard_weight": 0.7})) == ["young", "old"]


def test_overdue_work_comes_first_oldest_first() -> None:
    """Work older than `max_wait_s` passes the index order, the oldest at the head."""
    policy = with_policy(PLAIN, order={"max_wait_s": 1000.0})
    work = [
        waits("new", submit_s=2990.0),
        waits("old", 8, submit_s=1900.0),
        waits("oldest", 8, submit_s=500.0),
    ]
    total_s = {"new": 1.0, "old": 1e5, "oldest": 1e6}
    assert order_of(work, 3000.0, policy, total_s=total_s) == ["oldest", "old", "new"]


def test_short_work_comes_before_promises_and_promises_before_the_rest() -> None:
    """Short work does not wait behind a promise; a promise does not wait behind a better index."""
    policy = with_policy(AUTO, order={"short_s": 300.0}, reservation={"firm_after_s": 0.0})
    total_s = {"better": 1000.0, "promised": 90_000.0, "short": 200.0}
    observation = world("1x8", [waits(name) for name in total_s], total_s=total_s)
    promise = Reservation("promised", 0, 1, 0.0, 500.0, 500.0, (), firm=True, planned_s=500.0, uid="promised")
    memory = ControllerMemory(plan=PlanMemory(reservations=(promise,)))
    ctx = build_context(observation, policy, memory, WhatIf(observation.snapshot), frozenset())
    assert observation.snapshot.workloads.id[ctx.pending].tolist() == ["short", "promised", "better"]


def test_aging_lifts_what_waits() -> None:
    """Waiting raises the index softly; without aging it stays."""
    order = Order(aging_s=100.0, aging_exponent=1.0, width_exponent=0.0)
    index = aged_index(np.array([1.0, 1.0]), np.array([1, 1], np.int32), np.array([0.0, 300.0]), order)
    assert index.tolist() == [1.0, 4.0]
    still = aged_index(np.array([1.0]), np.array([1], np.int32), np.array([300.0]), Order(aging_exponent=0.0))
    assert still.tolist() == [1.0]
    assert aged_index(
        np.array([1.0]), np.array([4], np.int32), np.array([-5.0]), Order(width_exponent=0.5)
    ).tolist() == [0.5]


def test_the_index_of_a_certain_run_time_is_its_inverse() -> None:
    """With one value at every level the Gittins index is nearly 1 / run time; unknown rows get a stand-in."""
    index = gittins_per_s(LEVELS, np.array([[200.0] * 7, [np.nan] * 7]))
    assert index[0] == pytest.approx(1 / 200.0, rel=0.02)
    assert index[1] == pytest.approx(1 / 14_400.0)


def test_a_gamble_can_beat_a_certainty() -> None:
    """Work that may end very soon has a higher index than certain work of the same median."""
    gamble = [1.0, 1.0, 500.0, 1000.0, 2000.0, 3000.0, 9000.0]
    index = gittins_per_s(LEVELS, np.array([gamble, [500.0] * 7]))
    assert index[0] > index[1]
