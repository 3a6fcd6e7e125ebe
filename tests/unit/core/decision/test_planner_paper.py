"""Takings that only a recommendation makes, or that a guard holds for a time, and what others may do beside them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Submit
from autopilot.core.model.memory import Step
from autopilot.core.model.policy import Mode, Modes, Policy
from autopilot.core.model.records import Code
from autopilot.core.model.snapshot import QueueTable
from autopilot.core.planning.context import Context
from simulator.running.cluster_collector import ClusterCollector
from simulator.world.cluster import Cluster
from simulator.world.work import Jobs
from tests.kits.cluster_kit import gang, inventory
from tests.kits.core_world import (
    Disrupt,
    Item,
    decide,
    evicted,
    holds,
    proposals,
    queue_tree,
    started,
    waits,
    with_policy,
    world,
)
from tests.kits.ticking_world import EAGER, tenants

NOW_S = 9000.0
ONE = tenants(("a", 0, 0), limit={"a": 8})


def only(mode: Mode, *actions: str, base: Policy = EAGER) -> Policy:
    """A policy in which these actions have another mode."""
    return replace(base, modes=replace(base.modes, **dict.fromkeys(actions, mode)))


def full_queue() -> list[Item]:
    """A queue at its limit of eight: a newcomer of high priority would displace `v`; `e` could grow by two."""
    return [
        holds("v", 6, on=range(6), queue=1, gpus_per_member=6),
        holds("e", 4, on=[6, 7], queue=1, gpus_per_member=1, min_gpus=2),
        waits("w", 4, queue=1, priority=5, gpus_per_member=4),
    ]


@pytest.mark.parametrize("mode", [Mode.RECOMMEND, Mode.OBSERVE, Mode.APPROVE])
def test_a_recommended_taking_frees_no_quota_for_what_acts(mode: Mode) -> None:
    """On paper `v` returns six and `w` takes four: two are left under the limit. In fact nothing leaves and nothing
    grows.
    """
    observation = world("3x8", full_queue(), NOW_S, queues=ONE)
    step = decide(observation, only(mode, "preempt"))
    assert set(proposals(step, "pipeline")) == {"w"}
    assert not step.instructions
    (verdict,) = [each for each in proposals(step, "grow")["e"].verdicts if not each.allowed]
    assert (verdict.guard, verdict.code) == ("mode", Code.ON_PAPER)


def test_a_taking_that_acts_frees_its_quota() -> None:
    """The same with `preempt` in auto: both happen."""
    step = decide(world("3x8", full_queue(), NOW_S, queues=ONE), EAGER)
    assert [(effect.kind, effect.subject.name) for effect in step.instructions] == [
        ("evict", "v"),
        ("resize", "e"),
    ]


def test_recommendations_still_fit_to_each_other() -> None:
    """Where everything recommends, the growth is one too, in the room that the recommended taking leaves."""
    policy = only(Mode.RECOMMEND, *Modes.__dataclass_fields__)
    step = decide(world("3x8", full_queue(), NOW_S, queues=ONE), policy)
    assert set(proposals(step)) == {"w", "e"}
    assert all(
        {each.code for each in made.verdicts if not each.allowed} == {Code.MODE_RECOMMEND}
        for made in proposals(step).values()
    )


def test_gpus_that_a_recommendation_frees_are_not_booked_by_what_acts() -> None:
    """On paper `big` leaves for four of its eight GPUs; a start on the other four would wait indefinitely."""
    queues = tenants(("a", 0, 8), ("b", 0, 0))
    work = [
        holds("big", 8, queue=2),
        waits("w", 4, queue=1, gpus_per_member=4),
        waits("high", 4, queue=2, priority=5, gpus_per_member=4, submit_s=1.0),
    ]
    observation = world("1x8", work, NOW_S, queues=queues)
    step = decide(observation, only(Mode.RECOMMEND, "reclaim_borrowed"))
    assert not step.memory.starts.pipelined_starts
    step = decide(observation, EAGER)
    assert {pipelined.workload for pipelined in step.memory.starts.pipelined_starts} >= {"w"}


def test_an_eviction_without_a_place_frees_its_quota_at_once() -> None:
    """`v` leaves a full queue, its GPUs are not free yet: another gang of the queue starts on the idle node."""
    queues = queue_tree(("q", 0, 8))
    work = [holds("v", 8, queue=1), waits("w", 8, queue=1)]
    actions = (*Disrupt("w", ("v",)).table, *(each for each in ACTIONS if each.name == "admit_gang"))
    step = decide(world("2x8", work, NOW_S, queues=queues), EAGER, actions=actions)
    assert evicted(step) == ["v"]
    assert started(step) == {"w": ["node-1"] * 8}


# --- moved victims ----------------------------------------------------------------------------------


def planned(work: list[Item], shape: str, queues: QueueTable, **total_s: float) -> tuple[Step, Context]:
    """One tick and the context as it was left."""
    seen: list[Context] = []

    def look(ctx: Context, _submit: Submit) -> None:
        seen.append(ctx)

    observation = world(shape, work, NOW_S, queues=queues, total_s=total_s)
    step = decide(observation, EAGER, actions=(*ACTIONS, Action("admit_gang", "", look)))
    return step, seen[0]


def test_the_target_of_a_move_is_used_until_the_mover_ends() -> None:
    """`m` goes to the last four GPUs: they come free when it is predicted to end, not now."""
    work = [
        holds("m", 4, on=range(4), queue=2, start_s=NOW_S),
        holds("x", 4, on=range(8, 12), queue=2, start_s=NOW_S),
        waits("w", 8, queue=1, submit_s=1.0),
    ]
    step, ctx = planned(work, "2x8", tenants(("a", 0, 8), ("b", 0, 0)), m=5000.0, x=7000.0, w=1000.0)
    (pipelined,) = step.memory.starts.pipelined_starts
    assert [victim.how for victim in pipelined.victims] == ["move"]
    assert ctx.plan.gpu_free_at_s[12:].tolist() == pytest.approx([NOW_S + 5000.0] * 4)
    assert ctx.plan.gpu_free_at_s[:8].tolist() == pytest.approx([NOW_S + 1000.0] * 8)


# --- growth -----------------------------------------------------------------------------------------

DWELLS = with_policy(EAGER, hysteresis={"dwell_s": 600.0})


def beside(start_s: float = 0.0) -> list[Item]:
    """Four GPUs of the second node idle: `w` wants them and four that `v` holds; `e` could grow into them."""
    return [
        holds("e", 16, on=range(8), gpus_per_member=1, min_gpus=8, priority=9),
        holds("v", 4, on=range(8, 12), gpus_per_member=4, start_s=start_s),
        waits("w", 8, priority=5),
    ]


def test_nobody_grows_into_what_a_held_taking_counts_on() -> None:
    """While the taking has to dwell its idle GPUs stay idle, and then it is made."""
    step = decide(world("2x8", beside(), NOW_S), DWELLS)
    assert not step.instructions
    (verdict,) = [each for each in proposals(step, "pipeline")["w"].verdicts if not each.allowed]
    assert verdict.code == Code.DWELL
    later = decide(world("2x8", beside(), NOW_S + 600.0, tick=1), DWELLS, step.memory)
    assert evicted(later) == ["v"]


def test_a_taking_that_does_not_pay_keeps_nothing_idle() -> None:
    """Nothing but a change makes it possible: `e` grows meanwhile."""
    poor = with_policy(DWELLS, preemption={"priority_weight": 1e-9})
    step = decide(world("2x8", beside(-1e6), NOW_S), poor)
    assert [(effect.kind, effect.subject.name) for effect in step.instructions] == [("resize", "e")]


@pytest.mark.parametrize(("since_s", "taken"), [(0.0, ["v"]), (NOW_S - 10.0, []), (np.nan, [])])
def test_a_gang_that_grew_is_as_old_as_it_was(since_s: float, taken: list[str]) -> None:
    """Its guaranteed run time counts from its start, not from its latest change of width."""
    policy = with_policy(EAGER, protection={"min_runtime_s": 900.0})
    work = [holds("v", 8, start_s=NOW_S - 10.0, runs_since_s=since_s), waits("w", 8, priority=5)]
    step = decide(world("1x8", work, NOW_S), policy)
    assert evicted(step) == taken
    assert taken or step.wake_at_s <= NOW_S + 890.0


def test_the_simulated_cluster_says_since_when_a_resized_gang_runs() -> None:
    """A new incarnation, of the same age; after a stop it is young again."""
    jobs = Jobs()
    jobs.add("e", "t", gang(8, 4, min_gpus=4), 0.0, 90_000.0)
    cluster = Cluster(inventory(2, 4), jobs)
    cluster.submit(0, 0.0)
    cluster.start(0, range(4), 100.0)
    cluster.resize(0, range(8), 700.0)
    collector = ClusterCollector(cluster, replace(tenants(), guarantee=np.zeros((1, 1), np.int32)), {})
    batch = collector.collect(800.0)
    assert batch.work is not None
    table = batch.work.workloads
    assert (table.start_s[0], table.runs_since_s[0]) == (700.0, 100.0)
    cluster.evict(0, 900.0)
    batch = collector.collect(900.0)
    assert batch.work is not None
    assert np.isnan(batch.work.workloads.runs_since_s[0])
