"""GPUs held for a gang whose queue is below its fair share: when, for which gang, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopilot.core.decision.reconciler import reconcile
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.use import UseMemory
from autopilot.core.model.policy import GuaranteeRule, Mode, Policy
from autopilot.core.model.records import Observation
from autopilot.core.model.snapshot import QueueOrder, QueueTable
from tests.kits.core_world import (
    AUTO,
    decide,
    holds,
    observe,
    snapshot,
    started,
    waits,
    why_waits,
    with_policy,
)
from tests.kits.ticking_world import tenants

HOLD_S = 600.0
POLICY = with_policy(
    AUTO,
    modes={"reclaim_borrowed": Mode.AUTO},
    reservation={"depth": 0, "share_hold_s": HOLD_S},
    protection={"min_runtime_s": 900.0},
)
TWO = tenants(("a", 0, 0), ("b", 0, 0))
NOW_S = 1000.0


def observed(
    left_s: float = 300.0,
    narrow_s: float = 5000.0,
    age_s: float = 100.0,
    queues: QueueTable = TWO,
    now_s: float = NOW_S,
) -> Observation:
    """Gangs of `b` hold seven GPUs of eight, and the first has `left_s` to go; `w` of `a` needs two, `n` of `b` one."""
    work = [holds(f"b{at}", 1, on=[at], queue=2, start_s=now_s - (0.0 if at else age_s)) for at in range(7)]
    work += [waits("w", 2, queue=1, submit_s=NOW_S - 60.0), waits("n", 1, queue=2, submit_s=NOW_S - 50.0)]
    total_s = {f"b{at}": 5000.0 if at else age_s + left_s for at in range(7)} | {"w": 900.0, "n": narrow_s}
    return observe(snapshot("1x8", work, queues=queues), now_s, total_s=total_s)


def test_a_gpu_that_is_free_is_held_for_who_is_below_its_share() -> None:
    """Its turn came first and there is no room: who comes behind does not take the GPU that it waits for."""
    step = decide(observed(), POLICY)
    assert started(step) == {}
    assert why_waits(step, observed(), "n")[0] == "reserved"
    assert list(started(decide(observed(), with_policy(POLICY, reservation={"share_hold_s": 0.0})))) == ["n"]


@pytest.mark.parametrize(("guaranteed", "starts"), [(1, ["n"]), (0, [])], ids=["inside its guarantee", "borrowing"])
def test_it_gives_way_to_what_is_owed(guaranteed: int, starts: list[str]) -> None:
    """`w` is above the guarantee of its queue, `n` belongs to a third queue. Nothing may be taken back."""
    work = [holds(f"b{at}", 1, on=[at], queue=2, start_s=900.0) for at in range(7)]
    work += [waits("w", 2, queue=1, submit_s=NOW_S - 60.0), waits("n", 1, queue=3, submit_s=NOW_S - 50.0)]
    total_s = {f"b{at}": 5000.0 if at else 400.0 for at in range(7)} | {"w": 900.0, "n": 5000.0}
    queues = tenants(("a", 0, 1), ("b", 0, 1), ("c", 0, guaranteed), priority={"a": 1})
    takes_nothing = with_policy(POLICY, modes={"reclaim_borrowed": Mode.OFF})
    step = decide(observe(snapshot("1x8", work, queues=queues), NOW_S, total_s=total_s), takes_nothing)
    assert list(started(step)) == starts


def test_who_ends_before_that_may_use_it() -> None:
    """Held room is not idle for those who are gone in time."""
    assert list(started(decide(observed(narrow_s=100.0), POLICY))) == ["n"]


@pytest.mark.parametrize(
    ("left_s", "age_s", "held"), [(450.0, 100.0, True), (5000.0, 100.0, False), (5000.0, 400.0, True)]
)
def test_only_where_the_start_is_near(left_s: float, age_s: float, held: bool) -> None:
    """By prediction, or because the others will be old enough to be taken back."""
    assert (started(decide(observed(left_s, age_s=age_s), POLICY)) == {}) == held


def test_age_counts_only_where_work_is_taken_back() -> None:
    """Without takings, old work stays until it ends."""
    takes_nothing = with_policy(POLICY, modes={"reclaim_borrowed": Mode.OFF})
    assert list(started(decide(observed(5000.0, age_s=400.0), takes_nothing))) == ["n"]


def test_nothing_is_held_where_nobody_is_above_its_share() -> None:
    """One queue: who is behind in it is not held up by its first."""
    assert list(started(decide(observed(queues=tenants(("a", 0, 0), ("b", 1, 0))), POLICY))) == ["n"]


def test_it_ends_when_what_was_foreseen_does_not_come() -> None:
    """The predicted start stays near but never comes: the GPU goes to other work in time, and the controller wakes for
    it.
    """
    memory, wakes_s = ControllerMemory(), []
    for now_s in (NOW_S, NOW_S + HOLD_S, NOW_S + 2 * HOLD_S + 1.0):
        observation = replace(observed(now_s=now_s), tick=memory.tick + 1)
        step = reconcile(memory, observation, POLICY)
        wakes_s.append(step.memory.wake_at_s)
        if now_s < NOW_S + 2 * HOLD_S:
            assert started(step) == {}
            memory = step.memory
    assert list(started(step)) == ["n"]
    assert wakes_s[1] <= NOW_S + 2 * HOLD_S


# --- where queues share time ---------------------------------------------------------------------------

SHARED = with_policy(
    POLICY,
    modes={"preempt": Mode.AUTO},
    preemption={"time_sharing": True},
    tenancy={"time_sharing": True, "guarantee": GuaranteeRule.NONE, "usage_half_life_s": 1e6},
)
BY_INDEX = tenants(("a", 0, 0), ("b", 0, 0), order=int(QueueOrder.INDEX))
OVERUSED = ControllerMemory(use=UseMemory(usage_gpu_s={"b": 1e7}, held_gpus={"b": 7.0}, usage_at_s=900.0))


def narrow(observation: Observation, policy: Policy = SHARED, memory: ControllerMemory | None = OVERUSED) -> bool:
    """True where the gang of one GPU of `b` starts on the free GPU."""
    return list(started(decide(observation, policy, memory))) == ["n"]


def test_the_share_alone_holds_nothing_between_queues_that_share_time() -> None:
    """The index decides, until one of the queues has overused its part: then room is held for the other's part."""
    assert narrow(observed(queues=BY_INDEX), memory=None)
    assert not narrow(observed(queues=BY_INDEX))
    assert narrow(observed(queues=BY_INDEX), with_policy(SHARED, reservation={"share_hold_s": 0.0}))


def test_room_is_held_until_work_of_an_overused_queue_may_pause() -> None:
    """The longest gang is above the fair share. It ends in hours, but is old enough in 500 s; in 800 s is not near.
    Nothing is held where `preempt` may not act, or where the gang of that age is within the fair share.
    """
    assert narrow(observed(4000.0, age_s=400.0, queues=BY_INDEX))
    assert not narrow(observed(50_000.0, age_s=400.0, queues=BY_INDEX))
    assert narrow(observed(50_000.0, age_s=100.0, queues=BY_INDEX))
    assert not narrow(
        observed(50_000.0, age_s=400.0, queues=BY_INDEX), with_policy(SHARED, modes={"reclaim_borrowed": Mode.OFF})
    )
    assert narrow(observed(50_000.0, age_s=400.0, queues=BY_INDEX), with_policy(SHARED, modes={"preempt": Mode.OFF}))
