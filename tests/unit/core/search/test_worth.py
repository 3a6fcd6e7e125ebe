"""What a start in the place of others is worth, what it costs, and how long the wish for it must last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autopilot.core.model.memory import Step
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Code, Proposal
from tests.kits.core_world import Item, decide, evicted, holds, proposals, waits, with_policy, world
from tests.kits.ticking_world import EAGER

NOW_S = 9000.0
PLAIN = with_policy(
    EAGER,
    preemption={"priority_weight": 1.0, "move_victims": False, "waiting_weight": 0.0},
    review={"batch_s": 300.0},
)
HORIZON_S = PLAIN.horizon_s


def pipelined(work: list[Item], policy: Policy = PLAIN, shape: str = "1x8", **total_s: float) -> Proposal:
    """The wish to start `w` in the place of others."""
    return proposals(decide(world(shape, work, NOW_S, total_s=total_s or None), policy), "pipeline")["w"]


def high(gpus: int = 8, **columns: Any) -> Item:
    """The newcomer."""
    return waits("w", gpus, **{"priority": 5, "gpus_per_member": gpus, **columns})


def test_it_is_worth_the_waiting_that_it_spares() -> None:
    """`v` would end in 1000 s anyway: eight GPUs wait 1000 s less, however long `w` itself runs."""
    for run_s in (60.0, 1e6):
        found = pipelined([holds("v", 8, start_s=0.0), high()], v=NOW_S + 1000.0, w=run_s)
        assert found.benefit_gpu_s == pytest.approx(8 * 1000.0)
        assert found.cost_gpu_s == 8 * NOW_S


def test_where_nobody_knows_when_it_could_start_it_is_worth_the_horizon() -> None:
    """No forecast, no limit."""
    assert pipelined([holds("v", 8, start_s=0.0), high()]).benefit_gpu_s == 8 * HORIZON_S


def test_a_start_that_is_due_anyway_is_worth_one_review() -> None:
    """What should have ended by now will: until it is seen, the next review is the best guess."""
    found = pipelined([holds("v", 8, start_s=0.0, limit_s=NOW_S - 400.0), high()])
    assert found.benefit_gpu_s == 8 * 300.0


def test_idle_gpus_that_come_to_use_count_beside() -> None:
    """Six of its eight GPUs idle: they are used for as long as it would wait, or as it runs."""
    work = [holds("v", 2, start_s=0.0, gpus_per_member=2), high()]
    assert pipelined(work, v=NOW_S + 1000.0, w=1e6).benefit_gpu_s == pytest.approx((8 + 6) * 1000.0)
    assert pipelined(work, v=NOW_S + 1000.0, w=400.0).benefit_gpu_s == pytest.approx(8 * 1000.0 + 6 * 400.0)


def test_a_gpu_counts_by_its_price() -> None:
    """Worth and loss of a model at three times the cost; the victim order depends on lost work alone."""
    dear = replace(PLAIN, price_weight={"A100-80GB": 3.0})
    work = [holds("v", 8, start_s=0.0), high()]
    found = pipelined(work, dear, v=NOW_S + 1000.0, w=60.0)
    assert found.benefit_gpu_s == pytest.approx(24 * 1000.0)
    assert found.cost_gpu_s == 24 * NOW_S
    assert [victim.lost_gpu_s for victim in found.victims] == [8 * NOW_S]


def test_a_cheap_gpu_is_not_worth_a_dear_one() -> None:
    """The victim's GPUs weigh what they cost, though the newcomer could do with any."""
    work = [holds("v", 8, start_s=NOW_S - 4000.0), high()]
    observation = world("1x8", work, NOW_S, total_s={"v": 10_000.0, "w": 60.0}, nodes={"gpu_model": [1]})
    found = proposals(decide(observation, replace(PLAIN, price_weight={"H100-80GB": 0.5})), "pipeline")["w"]
    assert found.benefit_gpu_s == pytest.approx(4 * 6000.0)
    assert found.cost_gpu_s == 4 * 4000.0


def test_shares_and_instances_count_their_part() -> None:
    """Half a GPU that waits is worth half as much."""
    work = [holds("v", 1, on=[0], start_s=0.0, gpu_milli=600), waits("w", 1, gpu_milli=500, priority=5)]
    found = pipelined(work, shape="1x1")
    assert found.benefit_gpu_s == pytest.approx(0.5 * HORIZON_S)
    assert found.cost_gpu_s == pytest.approx(0.6 * NOW_S)


# --- waiting again ----------------------------------------------------------------------------------

WAITING = with_policy(PLAIN, preemption={"waiting_weight": 0.5})


@pytest.mark.parametrize(("run_s", "wait_s"), [(600.0, 600.0), (1e6, HORIZON_S)])
def test_who_is_stopped_waits_until_the_newcomer_ends(run_s: float, wait_s: float) -> None:
    """At the policy's weight, within the horizon, beside what stopping it costs."""
    work = [holds("v", 8, start_s=0.0, restart_s=50.0), high()]
    found = pipelined(work, WAITING, v=NOW_S + 1000.0, w=run_s)
    assert found.cost_gpu_s == pytest.approx(8 * (NOW_S + 50.0 + wait_s * 0.5))
    told = {each.name: each.value for each in found.evidence}
    assert (told["stopping_at_review"], told["waiting_again"]) == (8 * (NOW_S + 50.0), 8 * wait_s * 0.5)


def test_who_is_moved_or_shrinks_does_not_wait_again() -> None:
    """A move costs the stop alone: it starts again at once, elsewhere."""
    work = [holds("v", 4, on=range(4), start_s=0.0, gpus_per_member=4), waits("w", 8, gpus_per_member=8)]
    moving = with_policy(WAITING, preemption={"move_victims": True})
    found = pipelined([*work, holds("x", 2, on=range(8, 10), gpus_per_member=2)], moving, "2x8", w=600.0, v=1e5, x=1e5)
    assert {victim.how for victim in found.victims} == {"move"}
    assert {each.name: each.value for each in found.evidence}["waiting_again"] == 0.0


# --- dwell ------------------------------------------------------------------------------------------

DWELLS = with_policy(EAGER, hysteresis={"dwell_s": 300.0}, review={"batch_s": 3600.0})


def moves_tried(slo_class: int, now_s: float, before: Step | None = None) -> Step:
    """One tick with a newcomer of a class."""
    work = [holds("v", 8, start_s=0.0), high(slo_class=slo_class)]
    return decide(world("1x8", work, now_s, tick=0 if before is None else 1), DWELLS, before.memory if before else None)


@pytest.mark.parametrize(("slo_class", "needs_s"), [(0, 1.0), (1, 300.0), (2, 300.0)])
def test_latency_critical_demand_is_confirmed_by_one_more_tick(slo_class: int, needs_s: float) -> None:
    """The first tick wishes; the next one, a second later, acts. Other work waits out its dwell. The timers say so."""
    first = moves_tried(slo_class, NOW_S)
    (refused,) = [each for each in proposals(first, "pipeline")["w"].verdicts if not each.allowed]
    assert (refused.code, refused.threshold) == (Code.DWELL, needs_s)
    assert first.wake_at_s == NOW_S + needs_s
    assert evicted(moves_tried(slo_class, NOW_S + needs_s - 0.5, first)) == []
    assert evicted(moves_tried(slo_class, NOW_S + needs_s, first)) == ["v"]
