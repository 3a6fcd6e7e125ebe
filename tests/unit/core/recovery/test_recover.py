"""Recovery: what is stopped, when, once, and where it does not come back to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autopilot.core.effects.evict import EvictOperation
from autopilot.core.model.codes import ConditionKind
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.plan import Condition, Noted, PlanMemory
from autopilot.core.model.records import About, Evidence, Note, Observation, Save
from autopilot.core.model.snapshot import State
from tests.kits.core_world import (
    decide,
    evicted,
    holds,
    observe,
    snapshot,
    started,
    waits,
    why_waits,
    with_policy,
)
from tests.kits.instructions import asked
from tests.kits.ticking_world import EAGER, Ticking

SAVES = {"checkpoint_interval_s": 1800.0, "checkpoint_write_s": 20.0}


# --- hardware that reports an error -----------------------------------------------------------------


def test_a_gang_on_a_condemned_gpu_is_stopped_once_and_starts_elsewhere() -> None:
    """XID 95 on one of its GPUs: it leaves whole, comes back whole, and not to that GPU."""
    play = Ticking("2x8", [holds("g", 8, range(8))], EAGER, xids={3: 95})
    play.tick(10.0)
    play.tick(20.0)
    assert play.told == [(10.0, "evict", "g")]
    play.leave_all()
    play.tick(30.0)
    assert play.on("g") == tuple(range(8, 16))
    play.tick(40.0)
    assert [kind for _, kind, _ in play.told] == ["evict", "admit"]


@pytest.mark.parametrize("xid", [13, 31, 63, 92, 94, 0, -1])
def test_an_error_of_the_application_is_the_applications(xid: int) -> None:
    """Nothing is stopped, and the GPU takes new work."""
    step = decide(observe(snapshot("1x2", [holds("g", 1, [0]), waits("w", 1)], xids={0: xid, 1: xid})), EAGER)
    assert (evicted(step), list(started(step))) == ([], ["w"])


@pytest.mark.parametrize("xid", [74, 154, 300])
def test_what_a_person_must_look_at_takes_no_new_work_and_stops_none(xid: int) -> None:
    """The number alone does not say: nothing new comes, nothing goes."""
    step = decide(observe(snapshot("1x2", [holds("g", 1, [0]), waits("w", 1)], xids={0: xid, 1: xid})), EAGER)
    assert (evicted(step), started(step)) == ([], {})


def test_a_node_that_must_be_restarted_takes_nothing_new() -> None:
    """XID 79: the gang of that GPU is stopped, its neighbour on the node continues, and nothing starts there."""
    work = [
        holds("lost", 1, [0], gpus_per_member=1),
        holds("beside", 1, [1], gpus_per_member=1),
        waits("w", 1, gpus_per_member=1),
    ]
    observation = observe(snapshot("1x4", work, xids={0: 79}))
    step = decide(observation, EAGER)
    assert (evicted(step), started(step)) == (["lost"], {})


def test_opted_out_work_is_left_on_its_condemned_gpu() -> None:
    """The autopilot never acts on it."""
    step = decide(observe(snapshot("1x2", [holds("g", 1, [0], excluded=True)], xids={0: 95})), EAGER)
    assert evicted(step) == []


# --- spot notices -----------------------------------------------------------------------------------


def called_back(work: list[Any], now_s: float, gone_s: float = 1000.0, nodes: int = 2, **more: Any) -> Observation:
    """Node 0 is called back."""
    reclaim = {"reclaim_at_s": [gone_s] + [np.nan] * (nodes - 1)}
    return observe(snapshot(f"{nodes}x8", work, nodes=reclaim, **more), now_s)


def test_work_goes_on_until_it_must_save() -> None:
    """Two minutes' notice, twenty seconds to write, a margin of sixty: told at 920 s and not before."""
    work = [holds("g", 8, range(8), **SAVES)]
    early = decide(called_back(work, 880.0), EAGER)
    assert (evicted(early), early.wake_at_s) == ([], 920.0)
    due = decide(called_back(work, 920.0), EAGER)
    (effect,) = due.instructions
    assert (
        effect.subject.name,
        effect.operation.takes,
        asked(effect, EvictOperation).grace_s,
        asked(effect, EvictOperation).save,
    ) == ("g", "recover", 80.0, Save.TRY)


def test_writes_are_staggered_over_the_bandwidth_that_there_is() -> None:
    """One writer: the most work per byte now, the other when the first is done; each once."""
    policy = with_policy(EAGER, preemption={"checkpoint_writers": 1})
    work = [
        holds("little", 4, range(4), start_s=900.0, checkpoint_interval_s=1800.0, checkpoint_write_s=30.0),
        holds("much", 4, range(4, 8), start_s=0.0, checkpoint_interval_s=1800.0, checkpoint_write_s=30.0),
    ]
    step = decide(called_back(work, 920.0), policy)
    assert evicted(step) == ["much"]
    assert step.wake_at_s <= 950.0


def test_what_cannot_be_saved_is_said_at_once_and_runs_on() -> None:
    """Ten minutes to write and two minutes left: it is no use to stop it; the notice says what it loses."""
    work = [
        holds("slow", 4, range(4), start_s=0.0, checkpoint_interval_s=1800.0, checkpoint_write_s=600.0),
        holds("never", 4, range(4, 8), start_s=0.0, checkpoint_interval_s=np.inf),
    ]
    step = decide(called_back(work, 880.0), EAGER)
    assert evicted(step) == []
    never, slow = step.decision.notes
    facts = Evidence("gone_in", 120.0, "s"), Evidence("writes_in", 600.0, "s")
    assert slow == Note("too_slow_to_save", About.WORKLOAD, "slow", 4 * 880.0, "GPU-s", facts)
    assert (never.code, never.subject, never.value) == ("makes_no_checkpoint", "never", 4 * 880.0)


def test_an_elastic_gang_goes_on_with_its_members_elsewhere() -> None:
    """Half of it stands on the node: it shrinks when the time comes, and loses nothing."""
    work = [holds("e", 16, range(16), min_gpus=8, gpus_per_member=8, **SAVES)]
    early = decide(called_back(work, 880.0), EAGER)
    assert (early.instructions, early.wake_at_s) == ((), 940.0)
    (effect,) = decide(called_back(work, 940.0), EAGER).instructions
    assert (effect.kind, effect.subject.name, effect.operation.takes) == ("resize", "e", "recover")
    assert {slot.node for slot in effect.operation.slots} == {"node-1"}


def test_nothing_starts_on_a_node_that_is_called_back() -> None:
    """Even if it is not cordoned."""
    observation = called_back([waits("w", 16)], 900.0)
    assert why_waits(decide(observation, EAGER), observation, "w")[0] == "capacity"
    assert started(decide(called_back([waits("v", 8)], 900.0), EAGER)) == {"v": ["node-1"] * 8}


def test_replicas_serve_to_the_last_second() -> None:
    """A service's replica is not evicted early: it saves nothing."""
    work = [holds("r", 1, [0], service=0, slo_class=0, preemptible=False)]
    assert evicted(decide(called_back(work, 990.0), EAGER)) == []


# --- what waits for itself --------------------------------------------------------------------------


def job() -> list[Any]:
    """A launcher that holds one GPU, a worker that holds eight, and one that wants eight more."""
    worker: dict[str, Any] = {"job_group": "job", "gpus_per_member": 8}
    return [
        holds("head", 1, [0], gpus_per_member=1, coordinates="job"),
        holds("w0", 8, range(8, 16), **worker),
        waits("w1", 8, **worker),
    ]


def test_a_coordinator_that_waits_for_its_own_workers_makes_room_for_them() -> None:
    """It holds a GPU that they need; after its time it is stopped, they start, and then it does."""
    play = Ticking(
        "1x8",
        [holds("head", 1, [0], gpus_per_member=1, coordinates="job"), waits("w", 8, job_group="job")],
        EAGER,
    )
    assert play.tick(100.0).wake_at_s == 1000.0
    play.tick(1000.0)
    assert play.told == [(1000.0, "evict", "head")]
    play.leave_all()
    play.tick(1010.0)
    assert play.running() == ["w"]


def test_the_coordinator_starts_after_its_workers() -> None:
    """After it held a GPU without its workers, it does not take the GPU again while they wait."""
    waited = Noted(Condition(ConditionKind.WAITED, "head"), 1000.0)
    work = [waits("head", 1, gpus_per_member=1, coordinates="job"), waits("w", 16, job_group="job")]
    observation = observe(snapshot("1x8", work), 1010.0)
    step = decide(observation, EAGER, ControllerMemory(plan=PlanMemory(conditions=(waited,))))
    assert started(step) == {}
    assert why_waits(step, observation, "head")[0] == "workers"
    assert step.memory.plan.conditions == (waited,)
    free = observe(snapshot("1x8", [waits("head", 1, gpus_per_member=1, coordinates="job")]), 1020.0)
    assert list(started(decide(free, EAGER, step.memory))) == ["head"]


def test_a_coordinator_with_a_worker_at_work_is_let_be() -> None:
    """The job makes progress."""
    step = decide(observe(snapshot("2x8", job()), 5000.0), EAGER)
    assert step.memory.plan.conditions == ()


# --- stuck ------------------------------------------------------------------------------------------


def test_work_that_does_not_go_is_taken_off_by_force() -> None:
    """Told to leave and past its grace: after its time it is told again, as recovery; a moment before it is not."""
    stuck = snapshot("1x8", [holds("g", 8, state=State.CHECKPOINTING, stuck=True)])
    first = decide(observe(stuck, 100.0), EAGER)
    assert (evicted(first), first.wake_at_s) == ([], 1000.0)
    (effect,) = decide(observe(stuck, 1000.0), EAGER, first.memory).instructions
    assert (effect.subject.name, effect.operation.takes) == ("g", "recover")
