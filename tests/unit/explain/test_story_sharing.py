"""What the story tells of guarantees: how they are kept, since when a queue is owed, and gangs that are wider."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autopilot.core.model.codes import ConditionKind
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.plan import Condition, Noted, PlanMemory
from autopilot.core.model.memory.use import UseMemory
from autopilot.core.model.policy import GuaranteeRule
from autopilot.core.model.snapshot import QueueOrder
from tests.kits.core_world import holds, waits, with_policy, world
from tests.kits.story_kit import EAGER, story, tree

TREE = tree(("a", 0, -1, 4), ("b", 0, -1, 4))
BY_INDEX = replace(TREE, order=np.full(3, QueueOrder.INDEX, np.int8))
TOTAL_S = {"big": 36_000.0, "w": 3_600_000.0}
WEEK = {"usage_half_life_s": 604_800.0}


def told(rule: GuaranteeRule, condition: ConditionKind, since_s: float) -> str:
    """The story of a gang that waits inside its guarantee at 11,400 s, with one condition in memory."""
    sharing = {"time_sharing": True, "guarantee": rule}
    policy = with_policy(EAGER, preemption={"time_sharing": True}, tenancy=sharing, elastic=WEEK)
    memory = ControllerMemory(plan=PlanMemory(conditions=(Noted(Condition(condition, "a"), since_s),)))
    work = [holds("big", 8, queue=2), waits("w", 4, gpus_per_member=4, queue=1)]
    said, _ = story(world("1x8", work, 11_400.0, queues=BY_INDEX, total_s=TOTAL_S), "w", policy, memory)
    return said


def test_the_story_tells_how_a_guarantee_is_kept_and_when_it_is_taken_back() -> None:
    """Owed since three hours: 21 are left. Where the guarantee is not kept there is nothing to wait for."""
    said = told(GuaranteeRule.ELASTIC, ConditionKind.OWED, 600.0)
    assert "the index of work inside it counts 4 times, and this gang is inside" in said
    assert (
        "queue a has had a guarantee shortfall for 3 h: if work still waits inside its guarantee in 21 h, it takes back"
        in said
    )
    assert "nothing is taken back for it" in told(GuaranteeRule.NONE, ConditionKind.OWED, 600.0)


def test_a_guarantee_narrower_than_the_gang_is_told() -> None:
    """What that means, and what to change."""
    work = [holds("big", 8, queue=2), waits("w", 8, gpus_per_member=8, queue=1)]
    said, _ = story(world("1x8", work, 600.0, queues=TREE), "w")
    assert "it asks for 8 GPUs, more than the guarantee of 4 of queue a: it never counts as inside it" in said
    assert "raise the guarantee or lower its min_gpus" in said


def test_the_story_names_an_overused_queue_and_when_that_ends() -> None:
    """Three quarters of the past use for half of the fair shares; now the other queue holds all GPUs. With
    c = 8 GPUs x 7 d / ln 2, the excess of 1,000,000 GPU-s over the half is gone when 1,000,000 k = c / 2 (1 - k):
    k = 0.777, after 7 d x log2(1 / k) = 2.54 d.
    """
    sharing = {"time_sharing": True, "guarantee": GuaranteeRule.ELASTIC, "usage_half_life_s": 604_800.0}
    policy = with_policy(EAGER, preemption={"time_sharing": True}, tenancy=sharing, elastic=WEEK)
    memory = ControllerMemory(
        plan=PlanMemory(conditions=(Noted(Condition(ConditionKind.OVERUSED, "a"), 600.0),)),
        use=UseMemory(usage_gpu_s={"a": 3e6, "b": 1e6}, held_gpus={"b": 8.0}, usage_at_s=11_400.0),
    )
    work = [holds("big", 8, queue=2), waits("w", 8, gpus_per_member=8, queue=1)]
    said, _ = story(world("1x8", work, 11_400.0, queues=BY_INDEX, total_s=TOTAL_S), "w", policy, memory)
    assert "queue a has overused its share for 3 h: it has 75 % of the past use of the queues that share time" in said
    assert "and 50 % of their fair shares" in said
    assert "pauses for them (0 gangs now); at the present use that ends in 2 d 13 h" in said
    quiet = replace(memory, use=replace(memory.use, usage_gpu_s={"a": 1e6, "b": 1e6}))
    said, _ = story(world("1x8", work, 11_400.0, queues=BY_INDEX, total_s=TOTAL_S), "w", policy, quiet)
    assert "overused" not in said


def test_the_story_tells_how_much_of_its_part_an_overused_queue_used() -> None:
    """3,000,000 GPU-s of a part of 3,200,000. Of a part of 5,000,000 it is less than three quarters: not overused."""
    sharing = {"time_sharing": True, "guarantee": GuaranteeRule.ELASTIC, "usage_half_life_s": 604_800.0}
    policy = with_policy(EAGER, preemption={"time_sharing": True}, tenancy=sharing, elastic=WEEK)
    memory = ControllerMemory(
        use=UseMemory(
            usage_gpu_s={"a": 3e6, "b": 1e6}, held_gpus={"b": 8.0}, part_gpu_s={"a": 3.2e6}, usage_at_s=11_400.0
        )
    )
    work = [holds("big", 8, queue=2), waits("w", 8, gpus_per_member=8, queue=1)]
    now = world("1x8", work, 11_400.0, queues=BY_INDEX, total_s=TOTAL_S)
    said, _ = story(now, "w", policy, memory)
    assert "and 50 % of their fair shares; it used 93.8 % of its part of the cluster, so gangs that wait for" in said
    said, _ = story(now, "w", policy, replace(memory, use=replace(memory.use, part_gpu_s={"a": 5e6})))
    assert "overused" not in said


def test_the_story_tells_who_waits_for_the_part_of_its_queue() -> None:
    """Half of the cluster is the part of each queue. Without past use of the other one nothing is said."""
    sharing = {"time_sharing": True, "guarantee": GuaranteeRule.NONE, "usage_half_life_s": 604_800.0}
    policy = with_policy(EAGER, preemption={"time_sharing": True}, tenancy=sharing, elastic=WEEK)
    work = [holds("big", 8, queue=2), waits("w", 4, gpus_per_member=4, queue=1)]
    now = world("1x8", work, 11_400.0, queues=BY_INDEX, total_s=TOTAL_S)
    memory = ControllerMemory(use=UseMemory(usage_gpu_s={"b": 3e6}, held_gpus={"b": 8.0}, usage_at_s=11_400.0))
    said, _ = story(now, "w", policy, memory)
    assert "it waits for the part of queue a: it comes before other work that shares time" in said
    assert "what overused queues (b) run above their fair shares may pause for it" in said
    said, _ = story(now, "w", policy, ControllerMemory())
    assert "it waits for the part" not in said
