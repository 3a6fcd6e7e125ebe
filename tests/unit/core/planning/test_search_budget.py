"""How far one action searches in one tick, and who is looked at."""

from __future__ import annotations

import numpy as np

from autopilot.core.decision.build import build_context
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.placement.fit import find_fit
from autopilot.core.placement.shapes import Fit, shape_of
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.planning.context import Context
from autopilot.core.planning.search_budget import within_steps
from autopilot.core.quota.rules.base import Target
from autopilot.core.quota.rules.hierarchical import OFFERED, across_queues
from autopilot.core.search.scenario import Scenario, find_scenario, search_for
from tests.kits.core_world import AUTO, Item, holds, observe, snapshot, waits, with_policy
from tests.kits.ticking_world import EAGER, tenants

SHORT = with_policy(AUTO, limits={"search_steps": 1000})


def context(snap: ClusterSnapshot, now_s: float = 100.0, policy: object = EAGER) -> Context:
    """The working set of a tick."""
    return build_context(observe(snap, now_s), policy, ControllerMemory(), WhatIf(snap), frozenset())  # type: ignore[arg-type]


def looked_at(now_s: float, gangs: int, steps: int) -> list[int]:
    """The gangs that one action reaches when every search takes a given number of steps."""
    ctx, found = context(snapshot("1x8"), now_s, SHORT), []
    for at in within_steps(ctx, range(gangs)):
        found.append(at)
        ctx.plan.spend(steps)
    return found


def test_everybody_is_looked_at_in_order_while_the_steps_last() -> None:
    """Cheap looks: all of them."""
    assert looked_at(0.0, 10, 0) == list(range(10))


def test_half_of_the_steps_go_to_those_whose_turn_is_first_and_the_rest_goes_round() -> None:
    """One place in the line in one review period, another in the next; in time everybody."""
    period_s = SHORT.review.batch_s
    first, same, later = (looked_at(at_s, 100, 100) for at_s in (0.0, 0.9 * period_s, period_s))
    assert first == same != later
    assert first[:5] == later[:5] == [0, 1, 2, 3, 4]
    assert len(first) == len(later) == 9
    seen = {at for number in range(60) for at in looked_at(number * period_s, 100, 100)}
    assert seen == set(range(100))


def test_a_host_that_is_promised_beyond_what_it_has_takes_nothing_from_its_neighbours() -> None:
    """Its free CPU is below zero: that hosts no member, not less than none."""
    over = holds("over", 4, on=range(8, 12), gpus_per_member=1, cpu_milli=1_500, queue=2)
    gang = waits("w", 8, gpus_per_member=2, cpu_milli=4_000, queue=1)
    evictions = holds("gives", 6, on=range(6), gpus_per_member=1, queue=2)
    snap = snapshot(
        "3x8",
        [over, evictions, gang],
        queues=tenants(("a", 0, 0), ("b", 0, 0)),
        nodes={"cpu_milli": [8_000, 5_000, 8_000]},
    )
    ctx = context(snap)
    search = search_for(ctx, 0, shape_of(snap, 2))
    assert not search(())
    assert search([Target(1, 6.0, whole=True)])


def test_a_host_that_is_full_is_seen_in_columns_as_on_paper() -> None:
    """Free CPU and memory of nodes after takings, whole or in part: the same answer as placing the gang."""
    rng = np.random.default_rng(7)
    answers = []
    for _ in range(60):
        work: list[Item] = []
        for node in range(3):
            at = 8 * node
            while at < 8 * node + 7:
                width = int(rng.choice([1, 2, 4]))
                width = min(width, 8 * node + 8 - at)
                work.append(
                    holds(
                        f"g{at}",
                        width,
                        on=range(at, at + width),
                        gpus_per_member=1,
                        min_gpus=1,
                        queue=2,
                        cpu_milli=int(rng.choice([0, 500, 1500])),
                        memory_mib=int(rng.choice([0, 700])),
                    )
                )
                at += width
        wide = int(rng.choice([2, 3, 4, 6, 8]))
        work.append(
            waits(
                "w",
                wide,
                gpus_per_member=int(rng.choice([1, 2, 4])),
                cpu_milli=int(rng.choice([0, 2000, 4000])),
                memory_mib=int(rng.choice([0, 2500])),
                queue=1,
            )
        )
        snap = snapshot(
            "3x8",
            work,
            queues=tenants(("a", 0, 0), ("b", 0, 0)),
            nodes={"cpu_milli": [8000, 6000, -1], "memory_mib": [6000, -1, 5000]},
        )
        ctx = context(snap)
        shape = shape_of(snap, len(work) - 1)
        search = search_for(ctx, 0, shape)
        for _ in range(4):
            rows = rng.choice(len(work) - 1, size=int(rng.integers(0, 5)), replace=False).tolist()
            targets = [
                Target(row, 1.0, whole=False)
                if rng.random() < 0.3 and snap.workloads.gpus[row] > 1
                else Target(row, float(snap.workloads.gpus[row]), whole=True)
                for row in rows
            ]
            whatif = WhatIf(snap)
            for target in targets:
                layout = whatif.evict(target.row)
                if not target.whole:
                    gone = set(search.entries(target))
                    stays = np.array([entry not in gone for entry in range(len(layout))])
                    whatif.place(
                        target.row, type(layout)(layout.gpu[stays], layout.instance[stays], layout.milli[stays])
                    )
            found = find_fit(whatif, shape, whatif.node_free, ctx.policy.placement, ctx.gpu_memory_mib)
            assert search(targets) == isinstance(found, Fit), (targets, shape)
            answers.append(isinstance(found, Fit))
    assert 0.2 < np.mean(answers) < 0.8  # both answers were asked for


def test_the_one_who_can_help_is_found_behind_very_many_who_cannot() -> None:
    """Only the last node has the requested label, and its gangs have the highest price: they are last in the victim
    order.
    """
    nodes = OFFERED[0] // 8 + 8
    work = [
        holds(f"g{at}", 1, on=[at], queue=2, start_s=-1000.0 + (0 if at < 8 * nodes - 8 else -5000.0))
        for at in range(8 * nodes)
    ]
    work.append(waits("w", 8, queue=1, selector=1))
    snap = snapshot(
        f"{nodes}x8", work, queues=tenants(("a", 0, 8), ("b", 0, 0)), nodes={"labels": [0] * (nodes - 1) + [1]}
    )
    ctx = context(snap)
    found = find_scenario(ctx, 0, across_queues, contract=True)
    assert isinstance(found, Scenario)
    assert {give.row for give in found.evictions} == set(range(8 * nodes - 8, 8 * nodes))
