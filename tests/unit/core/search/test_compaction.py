"""Scattered GPUs that are owed: others move together, narrower ones further on, and lent work leaves by count."""

from __future__ import annotations

import numpy as np

from autopilot.core.decision.build import build_context
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.planning.context import Context
from autopilot.core.quota.rules.hierarchical import across_queues
from autopilot.core.search.compaction import compact
from autopilot.core.search.moves import moves_only
from autopilot.core.search.scenario import Scenario, scheduling_signatures
from tests.kits.core_world import Item, holds, observe, snapshot, waits, with_policy
from tests.kits.story_kit import EAGER, tree

TREE = tree(("a", 0, -1, 12), ("b", 0, -1, 12))
FOURS = [holds(f"four-{node}", 4, on=range(8 * node, 8 * node + 4), queue=2) for node in range(3)]
ONES = [holds(f"one-{node}", 1, on=[8 * node + 4], queue=1) for node in range(3)]
WIDE = waits("w", 8, gpus_per_member=8, queue=1)


def context(work: list[Item], **preemption: object) -> Context:
    """The working set of a tick on three nodes of eight GPUs, at 5,000 s."""
    snap, policy = snapshot("3x8", work, queues=TREE), with_policy(EAGER, preemption=preemption)
    return build_context(observe(snap, 5000.0), policy, ControllerMemory(), WhatIf(snap), frozenset())


def nodes_after(found: Scenario, ctx: Context) -> dict[str, int]:
    """By name of each gang that moves or starts, its node."""
    node, work = ctx.observation.snapshot.gpus.node, ctx.observation.snapshot.workloads
    moved = {give.row: give.keeps for give in found.evictions if give.keeps is not None}
    moved[int(ctx.pending[0])] = found.fit.layout
    return {str(work.id[row]): int(node[layout.gpu[0]]) for row, layout in moved.items()}


def test_gangs_move_together_where_none_of_them_has_another_place_at_once() -> None:
    """Nine GPUs are free, three on each node. The four of the cleared node takes the place of a one, which goes on to
    the last node. Nothing is left changed.
    """
    ctx = context([*FOURS, *ONES, WIDE])
    before = ctx.whatif.node_free.copy()
    assert moves_only(ctx, 0, scheduling_signatures(ctx)[0]) is None
    found = compact(ctx, 0, across_queues)
    assert found is not None
    after = nodes_after(found, ctx)
    assert all(give.how == "move" for give in found.evictions)
    assert all(give.keeps and give.gpus == len(give.keeps) for give in found.evictions)
    taken = np.concatenate([found.fit.layout.gpu, *(give.keeps.gpu for give in found.evictions if give.keeps)])
    assert len(set(taken.tolist())) == len(taken)
    cleared = after["w"]
    assert after[f"four-{cleared}"] != cleared
    assert after[f"one-{cleared}"] not in {cleared, after[f"four-{cleared}"]}
    assert np.array_equal(ctx.whatif.node_free, before)


def test_too_few_free_gpus_or_too_many_to_move_is_none() -> None:
    """Seven are free, and no queue is above its guarantee; or six GPUs would move and none may."""
    more = [holds(f"more-{at}", 1, on=[8 * at + 5], queue=1) for at in range(2)]
    assert compact(context([*FOURS, *ONES, *more, WIDE]), 0, across_queues) is None
    assert compact(context([*FOURS, *ONES, WIDE], blast_ratio=0.5), 0, across_queues) is None


def test_lent_work_leaves_by_count_and_the_rest_moves_together() -> None:
    """Six GPUs are free, and the other queue holds 15 of its 12: two of it are taken back, wherever they are."""
    lent = [holds(f"lent-{node}", 1, on=[8 * node + 5], queue=2) for node in range(3)]
    ctx = context([*FOURS, *ONES, *lent, WIDE])
    found = compact(ctx, 0, across_queues)
    assert found is not None
    names = ctx.observation.snapshot.workloads.id
    left = [str(names[give.row]) for give in found.evictions if give.how == "evict"]
    assert len(left) == 2
    assert all(name.startswith("lent") for name in left)
    assert sum(give.how == "move" for give in found.evictions) >= 2
