"""Room held for a gang that does not fit: planned right, kept, and given up when the promise cannot be kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autopilot.core.model.forecast import LEVELS
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import BackfillKind
from autopilot.core.model.records import Observation, Reservation
from tests.kits.core_world import (
    HOLDING,
    Item,
    decide,
    evicted,
    holds,
    started,
    waits,
    why_waits,
    with_policy,
    world,
)
from tests.kits.ticking_world import tenants


def promise(step_memory: ControllerMemory, name: str = "big") -> Reservation:
    """The reservation of a gang."""
    return next(record for record in step_memory.plan.reservations if record.workload == name)


def earliest_by_trying(ends: list[list[float]], gpus: int, per_member: int) -> float:
    """Brute force: the first end time at which the free GPUs per node hold the members; -inf for now."""
    for time_s in sorted({-np.inf, *(end for node in ends for end in node)}):
        free = [sum(end <= time_s for end in node) for node in ends]
        members, tail = divmod(gpus, per_member)
        fits = members + (tail > 0) == 1 and max(free) >= gpus
        for host in range(len(free)) if tail else [-1]:
            rest = [count - (tail if node == host else 0) for node, count in enumerate(free)]
            fits |= (
                min(rest) >= 0 and sum(count // per_member for count in rest) >= members and members + (tail > 0) > 1
            )
        if fits:
            return float(time_s)
    return np.inf


def test_the_planned_start_agrees_with_trying_every_end() -> None:
    """On random small clusters the planned start is the first predicted end at which the gang fits."""
    rng = np.random.default_rng(3)
    planned = 0
    for _ in range(150):
        count = int(rng.integers(1, 4))
        work: list[Item] = []
        total_s: dict[str, float] = {"big": 100.0}
        ends: list[list[float]] = []
        for node in range(count):
            row: list[float] = [-np.inf] * 4
            at = 0
            while at < 4:
                width = int(rng.integers(1, 5 - at))
                if rng.random() < 0.8:
                    name, end_s = f"r{node}-{at}", float(rng.integers(1, 9) * 1000)
                    work.append(holds(name, width, on=range(4 * node + at, 4 * node + at + width)))
                    total_s[name] = end_s
                    row[at : at + width] = [end_s] * width
                at += width
            ends.append(row)
        gpus, per = int(rng.integers(1, 4 * count + 1)), int(rng.integers(1, 5))
        expected = earliest_by_trying(ends, gpus, per)
        step = decide(world(f"{count}x4", [*work, waits("big", gpus, gpus_per_member=per)], total_s=total_s), HOLDING)
        if expected == -np.inf:
            assert "big" in started(step)
        elif expected == np.inf:
            assert not step.memory.plan.reservations
        else:
            planned += 1
            assert promise(step.memory).start_s == pytest.approx(expected), (ends, gpus, per)
    assert planned > 50


def test_the_named_nodes_are_those_that_come_free() -> None:
    """The nodes held are those on which the gang would start."""
    work = [holds("a", 8), holds("b", 8), holds("c", 8), waits("big", 16)]
    step = decide(world("3x8", work, total_s={"a": 9000.0, "b": 1000.0, "c": 2000.0, "big": 50.0}), HOLDING)
    record = promise(step.memory)
    assert (record.nodes, record.start_s, record.promised_s, record.gpus) == (
        ("node-1", "node-2"),
        2000.0,
        2000.0,
        16,
    )


def test_a_promise_allows_for_work_that_runs_on() -> None:
    """Planned is the likely start; promised is the one by which the work before it has ended with 0.95, or its limit
    is over.
    """
    vague = [1000.0 * 2.0**at for at in range(len(LEVELS))]
    total_s = {"a": vague, "big": 50.0}
    record = promise(decide(world("1x8", [holds("a", 8), waits("big", 8)], total_s=total_s), HOLDING).memory)
    levels = dict(zip(LEVELS, vague, strict=True))
    assert record.firm
    assert record.start_s == pytest.approx(levels[0.5])
    assert levels[0.9] < record.promised_s <= levels[0.99]
    bounded = world("1x8", [holds("a", 8, limit_s=levels[0.9]), waits("big", 8)], total_s=total_s)
    assert promise(decide(bounded, HOLDING).memory).promised_s == pytest.approx(levels[0.9])
    calm = with_policy(HOLDING, reservation={"promise_level": 0.5})
    assert promise(decide(bounded, calm).memory).promised_s == pytest.approx(levels[0.5])
    tentative = with_policy(HOLDING, reservation={"firm_after_s": 5000.0})
    step = decide(world("1x8", [holds("a", 8), waits("big", 8)], total_s=total_s), tentative)
    assert promise(step.memory).promised_s == pytest.approx(levels[0.5])


def test_work_that_started_at_this_tick_counts_in_a_promise() -> None:
    """What has only just been let in may run on too."""
    vague = [1000.0 * 2.0**at for at in range(len(LEVELS))]
    work = [holds("a", 4, on=range(4)), waits("b", 4, priority=1), waits("big", 8)]
    observation = world("1x8", work, total_s={"a": 500.0, "b": vague, "big": 50.0})
    step = decide(observation, HOLDING)
    assert "b" in started(step)
    assert promise(step.memory).promised_s > 2.0 * promise(step.memory).start_s


def test_work_that_would_outlive_the_start_is_kept_out() -> None:
    """A gang that fits now, but would still run at the planned start, waits with the code `reserved`."""
    work = [holds("a", 8), waits("big", 16, priority=1), waits("long", 8)]
    total_s = {"a": 1000.0, "big": 500.0, "long": 5000.0}
    observation = world("2x8", work, total_s=total_s, queues=None)
    step = decide(observation, HOLDING)
    assert "long" not in started(step)
    assert why_waits(step, observation, "long")[0] == "reserved"


@pytest.mark.parametrize("firm_after_s", [1e9, 0.0], ids=["tentative", "promised"])
def test_a_reservation_gives_way_to_what_is_owed_to_another_queue(firm_after_s: float) -> None:
    """The reserved gang is above the guarantee of its queue: work inside that of another one starts, not its own."""
    work = [holds("a", 8, queue=1), waits("big", 16, priority=1, queue=1)]
    work += [waits("owed", 4, queue=2), waits("more", 4, queue=2), waits("mine", 4, queue=1)]
    total_s = {"a": 1000.0, "big": 500.0, "owed": 5000.0, "more": 5000.0, "mine": 5000.0}
    rules = with_policy(HOLDING, reservation={"firm_after_s": firm_after_s})
    for guaranteed, starts in ((4, ["owed"]), (0, [])):
        queues = tenants(("own", 0, 12), ("other", 0, guaranteed), priority={"own": 1})
        assert list(started(decide(world("2x8", work, total_s=total_s, queues=queues), rules))) == starts


def test_spare_gpus_of_a_reserved_node_stay_open() -> None:
    """On a reserved node, as many GPUs as the gang will not need are open to work of any length."""
    work = [holds("a", 6, on=range(6)), waits("big", 7, priority=1), waits("one", 1), waits("two", 1)]
    total_s = {"a": 1000.0, "big": 500.0, "one": 99_999.0, "two": 99_999.0}
    step = decide(world("1x8", work, total_s=total_s), HOLDING)
    assert sorted(started(step)) == ["one"]


def test_a_gang_that_can_never_start_holds_no_room() -> None:
    """Nothing is held for a gang wider than the cluster, or when no end is foreseen."""
    assert not decide(world("1x8", [waits("big", 16)], total_s={}), HOLDING).memory.plan.reservations
    assert not decide(world("1x8", [holds("a", 8), waits("big", 8)], total_s={}), HOLDING).memory.plan.reservations


def test_a_declared_limit_stands_in_for_a_forecast() -> None:
    """Work without a forecast ends, for planning, when its own limit is over."""
    step = decide(world("1x8", [holds("a", 8, limit_s=1200.0), waits("big", 8)], total_s={"big": 5.0}), HOLDING)
    assert promise(step.memory).start_s == 1200.0


def test_only_so_many_gangs_hold_room() -> None:
    """`depth` gangs hold reservations under EASY, `conservative_depth` under conservative backfill."""
    work = [holds("a", 8), *(waits(f"big{n}", 8) for n in range(4))]
    total_s = {"a": 1000.0, **{f"big{n}": 100.0 for n in range(4)}}
    easy = decide(world("1x8", work, total_s=total_s), HOLDING)
    assert [record.workload for record in easy.memory.plan.reservations] == ["big0"]
    rules = with_policy(HOLDING, backfill={"kind": BackfillKind.CONSERVATIVE}, reservation={"conservative_depth": 3})
    conservative = decide(world("1x8", work, total_s=total_s), rules)
    assert [record.start_s for record in conservative.memory.plan.reservations] == [1000.0, 1100.0, 1200.0]
    none = decide(world("1x8", work, total_s=total_s), with_policy(HOLDING, reservation={"depth": 0}))
    assert not none.memory.plan.reservations


def test_shares_and_instances_hold_no_room() -> None:
    """Only gangs of whole GPUs get a reservation."""
    work = [holds("a", 7, on=range(7)), waits("s", 1, gpu_milli=500), waits("i", 1, mig_profile=0)]
    step = decide(
        world("1x8", [*work, holds("b", 1, on=[0], mig_profile=1)], total_s={"a": 100.0}, cuts={7: [("2g.20gb", 0)]}),
        HOLDING,
    )
    assert not step.memory.plan.reservations


def test_the_reserved_gang_lands_when_its_room_is_there() -> None:
    """Once the holders are gone, the gang starts and its reservation is over."""
    work = [holds("a", 8), waits("big", 16), waits("long", 8)]
    total_s = {"a": 1000.0, "big": 500.0, "long": 9000.0}
    first = decide(world("2x8", work, total_s=total_s), HOLDING)
    second = decide(world("2x8", work[1:], 1000.0, total_s=total_s, tick=1), HOLDING, first.memory)
    assert list(started(second)) == ["big"]
    assert "big" not in {record.workload for record in second.memory.plan.reservations}
    assert second.decision.plan.released == ()


def test_a_promise_that_slips_too_far_is_released_and_its_gang_cools_down() -> None:
    """When the start slips by `timeout_s` the room is given up; no new promise before the cool-down is over."""
    policy = with_policy(HOLDING, reservation={"timeout_s": 600.0, "cool_down_s": 900.0})
    work = [holds("a", 8), waits("big", 8)]
    slow = {"a": 50_000.0, "big": 500.0}
    first = decide(world("1x8", work, total_s={"a": 1000.0, "big": 500.0}), policy)
    assert promise(first.memory).promised_s == 1000.0
    kept = decide(world("1x8", work, 300.0, total_s={"a": 1500.0, "big": 500.0}, tick=1), policy, first.memory)
    assert promise(kept.memory).promised_s == 1000.0
    assert promise(kept.memory).start_s == pytest.approx(1500.0)
    gone = decide(world("1x8", work, 600.0, total_s=slow, tick=2), policy, kept.memory)
    assert gone.decision.plan.released == ("big",)
    assert not gone.memory.plan.reservations
    assert gone.memory.budget.cooled_until_s == {"big": 1500.0}
    still = decide(world("1x8", work, 1499.0, total_s=slow, tick=3), policy, gone.memory)
    assert not still.memory.plan.reservations
    assert gone.wake_at_s <= 1500.0
    again = decide(world("1x8", work, 1500.0, total_s=slow, tick=4), policy, still.memory)
    assert promise(again.memory).since_s == 1500.0


def test_a_promise_without_any_plan_is_released_in_the_end() -> None:
    """The end of the work before it is no longer known: the promise holds until its timer ends, and no longer."""
    policy = with_policy(HOLDING, reservation={"timeout_s": 600.0})
    work = [holds("a", 8), waits("big", 8)]
    first = decide(world("1x8", work, total_s={"a": 1000.0, "big": 500.0}), policy)
    kept = decide(world("1x8", work, 1599.0, total_s={}, tick=1), policy, first.memory)
    assert promise(kept.memory).start_s == np.inf
    over = decide(world("1x8", work, 1600.0, total_s={}, tick=2), policy, kept.memory)
    assert (over.decision.plan.released, over.memory.plan.reservations) == (("big",), ())


def test_a_reservation_is_released_exactly_when_its_timer_rings() -> None:
    """At promised start + timeout the wake-up itself releases; an instant before, the room is kept."""
    policy = with_policy(HOLDING, reservation={"timeout_s": 600.0})
    work = [holds("a", 8), waits("big", 8)]
    first = decide(world("1x8", work, total_s={"a": 1000.0, "big": 500.0}), policy)
    late = {"a": 1550.0, "big": 500.0}
    before = decide(world("1x8", work, 1599.0, total_s=late, tick=1), policy, first.memory)
    assert before.memory.plan.reservations
    assert before.wake_at_s <= 1600.0
    at = decide(world("1x8", work, 1600.0, total_s=late, tick=2), policy, before.memory)
    assert at.decision.plan.released == ("big",)


def test_a_gang_that_left_holds_no_room() -> None:
    """A reservation ends with its gang: cancelled, started elsewhere, or restarted as another incarnation."""
    work = [holds("a", 8), waits("big", 8)]
    total_s = {"a": 1000.0, "big": 500.0}
    first = decide(world("1x8", work, total_s=total_s), HOLDING)
    cancelled = decide(world("1x8", work[:1], 5.0, total_s=total_s, tick=1), HOLDING, first.memory)
    assert not cancelled.memory.plan.reservations
    other = [work[0], waits("big", 8, incarnation=1)]
    renewed = decide(world("1x8", other, 5.0, total_s=total_s, tick=1), HOLDING, first.memory)
    assert [(r.incarnation, r.since_s) for r in renewed.memory.plan.reservations] == [(1, 5.0)]


def test_a_gang_that_asks_for_cpus_plans_on_nodes_that_are_full_now() -> None:
    """CPU and memory in use now come free with the work that uses them: the plan counts what the node has."""
    asks: dict[str, Any] = {"cpu_milli": 60_000}
    nodes = {"cpu_milli": [64_000]}
    work = [holds("a", 8, **asks), waits("big", 8, **asks)]
    step = decide(world("1x8", work, total_s={"a": 700.0, "big": 10.0}, nodes=nodes), HOLDING)
    assert promise(step.memory).start_s == 700.0


def test_latency_critical_work_passes_over_reservations() -> None:
    """Room held for batch work is open to latency-critical work."""
    work = [holds("a", 8), waits("big", 16), waits("lc", 8, slo_class=0, preemptible=False), waits("b", 8)]
    total_s = {"a": 1000.0, "big": 500.0, "b": 9000.0}
    first = decide(world("2x8", work[:2], total_s=total_s), HOLDING)
    assert first.memory.plan.reservations
    step = decide(world("2x8", work, 10.0, total_s=total_s, tick=1), HOLDING, first.memory)
    assert list(started(step)) == ["lc"]


def test_effects_under_way_count_in_the_plan() -> None:
    """GPUs of an admission that is not visible yet come free when that gang is foreseen to end, not now."""
    work = [waits("a", 8, priority=1), waits("big", 8)]
    total_s = {"a": 1000.0, "big": 500.0}
    first = decide(world("1x8", work, total_s=total_s), HOLDING)
    assert list(started(first)) == ["a"]
    second = decide(
        world("1x8", work, 10.0, total_s=total_s, tick=1),
        HOLDING,
        replace(first.memory, plan=replace(first.memory.plan, reservations=())),
    )
    assert not second.instructions
    assert promise(second.memory).start_s == pytest.approx(1010.0)


# --- backfill of unknown length ---------------------------------------------------------------------


def filled(**policy: Any) -> tuple[Step, Observation]:
    """Eight GPUs come free at 1000 s; backfilled work with an unknown end holds the other eight."""
    work = [holds("a", 8), holds("f", 8, backfilled=True), waits("big", 16)]
    observation = world("2x8", work, 100.0, total_s={"a": 1000.0, "big": 50.0})
    return decide(observation, with_policy(HOLDING, **policy)), observation


def test_backfill_of_unknown_length_is_planned_to_be_evicted_for_a_promise() -> None:
    """The start is planned for the end of the other half; no work is evicted before that helps."""
    step, _ = filled()
    assert promise(step.memory).start_s == pytest.approx(1000.0)
    assert promise(step.memory).firm
    assert not step.instructions


def test_before_it_is_promised_its_room_the_eviction_is_planned_for_that_time() -> None:
    """A tentative plan does not count on GPUs that it may not have before it is a promise."""
    step, _ = filled(reservation={"firm_after_s": 5000.0})
    assert promise(step.memory).start_s == 5000.0
    assert not promise(step.memory).firm


def test_where_nobody_evicts_it_no_start_is_planned() -> None:
    """With `evict_when_due` off its end is unknown for good."""
    assert not filled(backfill={"evict_when_due": False})[0].memory.plan.reservations


def test_alone_in_the_way_it_is_evicted_when_the_promise_is_made() -> None:
    """Everything else is free: the promise is for now, and its contract is called at once."""
    work = [holds("f", 8, backfilled=True), waits("big", 16)]
    step = decide(world("2x8", work, 100.0, total_s={"big": 50.0}), HOLDING)
    assert evicted(step) == ["f"]
    assert promise(step.memory).promised_s == 100.0
