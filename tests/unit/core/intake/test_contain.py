"""Bad input beside good input: named, made harmless, and the rest goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autopilot.core.intake.assemble import assemble
from autopilot.core.intake.contain import contain
from autopilot.core.model.records import Batch, Gap, Inventory, Observation, Work
from autopilot.core.model.snapshot import ClusterSnapshot, QueueTable
from tests.kits.core_world import (
    Item,
    decide,
    holds,
    observe,
    queue_tree,
    snapshot,
    started,
    waits,
    why_waits,
)
from tests.kits.ticking_world import EAGER

NOW_S = 1000.0


def work_of(snap: ClusterSnapshot) -> Work:
    """The work half."""
    return Work(snap.names.tenants, snap.workloads, snap.placements, snap.services, snap.queues)


def seen(work: list[Item], queues: QueueTable | None = None, **columns: Any) -> tuple[Observation, tuple[Gap, ...]]:
    """What a controller observes of work with these columns written over it, and the gaps."""
    snap = snapshot("2x8", work, queues=queues)
    given = replace(work_of(snap), workloads=replace(snap.workloads, **columns))
    hardware = Inventory(snap.names, snap.nodes, snap.gpus, snap.instances)
    joined, gaps = assemble([Batch("api", NOW_S, inventory=hardware, work=given)], NOW_S)
    return observe(joined, NOW_S), gaps


def test_good_input_is_the_same_object_again() -> None:
    """Nothing is copied where nothing is wrong."""
    work = work_of(snapshot("1x8", [holds("a", 4), waits("b", 2)], queues=queue_tree(("q", 0, 8))))
    assert contain(work, "api", NOW_S) == (work, ())
    assert contain(work, "api", NOW_S)[0] is work


@pytest.mark.parametrize("first_holds", [True, False])
def test_of_two_workloads_of_one_id_neither_is_touched(*, first_holds: bool) -> None:
    """Neither starts, moves or stops for others; what they hold stays taken, and the rest of the work goes on."""
    pair = [holds("x", 4, priority=0, uid="one"), waits("x", 8, priority=9, uid="other")]
    work = [*(pair if first_holds else pair[::-1]), waits("w", 4), waits("wide", 8, priority=9)]
    observation, gaps = seen(work)
    table, placed = observation.snapshot.workloads, observation.snapshot.placements
    assert sorted(table.id.tolist()) == ["w", "wide", "x", "x#2"]
    assert table.excluded[[table.id.tolist().index(name) for name in ("x", "x#2")]].all()
    assert set(table.id[placed.workload].tolist()) == {"x"}, "who holds GPUs keeps the id"
    assert len(placed.gpu) == 4
    assert [(gap.object_id, gap.signal) for gap in gaps] == [("x", "id")]
    step = decide(observation, EAGER)
    assert sorted(started(step)) == ["w", "wide"], "the other eight GPUs and four of those beside x"
    assert {item.subject.name for item in step.instructions} == {"w", "wide"}
    assert why_waits(step, observation, "x#2")[0] == "excluded"


def test_both_of_one_id_may_hold_gpus_and_keep_them() -> None:
    """Their GPUs are handed to no other, and a made-up id is one that nothing bears."""
    observation, _ = seen([holds("x", 8, on=range(8)), holds("x", 8, on=range(8, 16)), waits("x#2", 1)])
    assert sorted(observation.snapshot.workloads.id.tolist()) == ["x", "x#2", "x#3"]
    assert len(observation.snapshot.placements.gpu) == 16
    step = decide(observation, EAGER)
    assert step.instructions == ()


@pytest.mark.parametrize("queue", [-1, 7])
def test_work_without_a_queue_is_left_alone(queue: int) -> None:
    """It is neither started nor stopped, and says why; its neighbour starts."""
    work = [waits("lost", 4), waits("w", 4, queue=1)]
    observation, gaps = seen(work, queue_tree(("q", 0, -1)), queue=np.array([queue, 1], np.int32))
    step = decide(observation, EAGER)
    assert list(started(step)) == ["w"]
    assert why_waits(step, observation, "lost")[0] == "excluded"
    assert [(gap.object_id, gap.signal) for gap in gaps] == [("lost", "queue")]


@pytest.mark.parametrize(
    ("report_s", "believed"), [(50.0, False), (NOW_S + 60.0, False), (900.0, True), (NOW_S + 0.5, True)]
)
def test_a_checkpoint_of_another_incarnation_is_not_believed(report_s: float, *, believed: bool) -> None:
    """Before its present start, or in the future: what it would lose is counted from its start."""
    observation, gaps = seen([holds("g", 8, start_s=100.0)], last_checkpoint_s=np.array([report_s]))
    kept = observation.snapshot.workloads.last_checkpoint_s[0]
    assert bool(kept == report_s) is believed
    assert bool(gaps) is not believed


def test_a_gang_wider_than_its_limit_waits_and_names_it() -> None:
    """Its queue may hold four: it never starts, and the code says limit."""
    observation, gaps = seen([waits("wide", 8, queue=1), waits("w", 4, queue=1)], queue_tree(("q", 0, 4)))
    step = decide(observation, EAGER)
    assert (list(started(step)), gaps) == (["w"], ())
    assert why_waits(step, observation, "wide")[0] == "limit"


def test_a_gpu_type_that_is_not_there_holds_its_gang_alone() -> None:
    """A bit of a model that no node has: no capacity for it, and the others start."""
    observation, _ = seen([waits("odd", 1, gpu_models=1 << 2), waits("w", 4)])
    step = decide(observation, EAGER)
    assert list(started(step)) == ["w"]
    assert why_waits(step, observation, "odd")[0] == "capacity"


@pytest.mark.parametrize("priority", [-(2**31), 2**31 - 1])
def test_the_most_extreme_priorities_are_priorities(priority: int) -> None:
    """Nothing overflows: the order is the order."""
    observation, _ = seen([waits("odd", 8, priority=priority), waits("w", 8)])
    assert sorted(started(decide(observation, EAGER))) == ["odd", "w"]


@pytest.mark.parametrize(
    ("parent", "named", "starts"),
    [
        pytest.param([-1, 2, 1], {"a"}, [], id="cycle: the other one stands below it"),
        pytest.param([-1, 1, 0], {"a"}, ["in-b"], id="its own parent"),
        pytest.param([-1, -1, 0], {"a"}, ["in-b"], id="orphan"),
        pytest.param([-1, 9, 0], {"a"}, ["in-b"], id="no such row"),
    ],
)
def test_a_queue_that_hangs_in_the_air_starts_nothing(parent: list[int], named: set[str], starts: list[str]) -> None:
    """It is named, and nothing of it or below it starts; the work of other queues does."""
    tree = replace(queue_tree(("a", 0, -1), ("b", 0, -1)), parent=np.array(parent, np.int32))
    observation, gaps = seen([waits("in-a", 4, queue=1), waits("in-b", 4, queue=2)], tree)
    step = decide(observation, EAGER)
    assert {gap.object_id for gap in gaps} == named
    assert list(started(step)) == starts
    assert why_waits(step, observation, "in-a")[0] == "limit"


@pytest.mark.parametrize("column", ["guarantee", "limit", "weight"])
def test_negative_figures_count_as_none(column: str) -> None:
    """They are named, and the queue goes on without them."""
    tree = queue_tree(("a", 0, -1), ("b", 0, -1))
    value = np.array(getattr(tree, column))
    value[1] = -5
    observation, gaps = seen([waits("in-a", 4, queue=1), waits("in-b", 4, queue=2)], replace(tree, **{column: value}))
    assert [(gap.object_id, gap.signal) for gap in gaps] == [("a", "quota")]
    assert sorted(started(decide(observation, EAGER))) == ["in-a", "in-b"]


def test_when_the_clock_goes_back_nothing_is_decided() -> None:
    """And the next tick of a later time decides as ever."""
    observation, _ = seen([waits("w", 4)])
    first = decide(replace(observation, now_s=2000.0, snapshot=snapshot("2x8", [])), EAGER)
    back = decide(observation, EAGER, first.memory)
    assert back.instructions == ()
    assert back.decision.halted == "the clock went back 1000 s and is not trusted yet"
    later = decide(replace(observation, now_s=2001.0), EAGER, back.memory)
    assert list(started(later)) == ["w"]
