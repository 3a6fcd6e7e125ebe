"""Whose turn it is: strict turns of equal queues, priorities, nested queues, overdue gangs, dropped queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.planning.ordering.queue_order import QueueRotation
from autopilot.core.quota.ledger import ALL, QuotaLedger, build_ledger
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
from tests.kits.ticking_world import EAGER, tenants


@dataclass
class PendingTable:
    """Gangs that wait, in their order, and what starting each would add to the books."""

    ledger: QuotaLedger
    queue: Sequence[int]
    gpus: Sequence[int]
    turns: QueueRotation

    def serve(self, fits: Callable[[int], bool] = lambda _: True) -> list[int]:
        """All positions in the order of their turns; those that fit are booked."""
        order = []
        while (at := self.turns.next()) is not None:
            order.append(at)
            if fits(at):
                self.ledger.add(self.queue[at], float(self.gpus[at]), (ALL,), preemptible=True)
        return order


def line(
    queues: Sequence[tuple[str, int, int]],
    gangs: Sequence[tuple[int, int]],
    *,
    submit_s: Sequence[float] = (),
    classes: Sequence[int] = (),
    overdue: Sequence[int] = (),
    running: Sequence[tuple[int, int]] = (),
    capacity: int = 16,
    weight: Mapping[str, float] | None = None,
    priority: Mapping[str, int] | None = None,
    head_key: Callable[[QuotaLedger, int], tuple[float, ...]] | None = None,
) -> PendingTable:
    """Gangs of (queue, GPUs), in the order inside their queues; `running` the same of work that holds GPUs."""
    tree = tenants(*queues, weight=weight, priority=priority)
    work = [holds(f"r{n}", gpus, queue=queue) for n, (queue, gpus) in enumerate(running)]
    work += [waits(f"w{n}", gpus, queue=queue) for n, (queue, gpus) in enumerate(gangs)]
    ledger = build_ledger(snapshot("2x8", work, queues=tree), np.array([float(capacity)]))
    queue, gpus = [each for each, _ in gangs], [each for _, each in gangs]
    kinds = list(classes) or [0] * len(gangs)
    groups = []
    for kind in sorted(set(kinds)):
        lines: dict[int, list[int]] = {}
        for at, of in enumerate(queue):
            if kinds[at] == kind and at not in overdue:
                lines.setdefault(of, []).append(at)
        groups.append(([at for at in overdue if kinds[at] == kind], lines))
    key = None if head_key is None else lambda at: head_key(ledger, at)
    when = list(submit_s) or [float(at) for at in range(len(gangs))]
    return PendingTable(
        ledger, queue, gpus, QueueRotation(ledger, groups, when, queue, lambda at: (float(gpus[at]), (ALL,)), key)
    )


EQUAL = (("a", 0, 0), ("b", 0, 0))


def test_equal_queues_take_turns_whatever_the_age_of_their_gangs() -> None:
    """Four old gangs of one queue and four young ones of another start alternately: the older queue first."""
    found = line(EQUAL, [(1, 1)] * 4 + [(2, 1)] * 4).serve()
    assert [at // 4 for at in found] == [0, 1, 0, 1, 0, 1, 0, 1]
    assert found == [0, 4, 1, 5, 2, 6, 3, 7]


def test_a_queue_that_cannot_start_anything_blocks_nobody() -> None:
    """All gangs of one queue are refused, each after its turn; the other starts all of its own."""
    world = line(EQUAL, [(1, 1)] * 3 + [(2, 1)] * 3)
    assert sorted(world.serve(lambda at: at >= 3)) == list(range(6))
    assert world.ledger.use[ALL] == [3.0, 0.0, 3.0]


def test_the_next_gang_counts_before_it_starts() -> None:
    """A queue with a wide gang next is served after one whose narrow gang leaves it less saturated."""
    assert line(EQUAL, [(1, 8), (2, 2), (2, 2)], capacity=8).serve() == [1, 2, 0]


def test_a_weight_of_two_is_two_starts_to_one() -> None:
    """With twice the weight a queue starts two gangs for each of the other."""
    world = line(EQUAL, [(1, 1)] * 8 + [(2, 1)] * 8, weight={"a": 2.0}, capacity=8)
    assert [world.queue[at] for at in world.serve()][:6] == [1, 1, 2, 1, 1, 2]


def test_priority_of_a_queue_comes_before_saturation() -> None:
    """A queue of higher priority is served first, however much it has already."""
    world = line(EQUAL, [(1, 1), (1, 1), (2, 1)], running=[(2, 6)], priority={"b": 1})
    assert world.serve() == [2, 0, 1]


def test_nested_queues_share_what_their_parent_is_served() -> None:
    """Two teams of one organisation get together as many turns as the single team of the other."""
    world = line(
        (("x", 0, 0), ("y", 0, 0), ("x1", 1, 0), ("x2", 1, 0), ("y1", 2, 0)), [(3, 1)] * 4 + [(4, 1)] * 4 + [(5, 1)] * 8
    )
    order = [world.queue[at] for at in world.serve()]
    assert order == [3, 5, 4, 5, 3, 5, 4, 5, 3, 5, 4, 5, 3, 5, 4, 5]


def test_work_of_an_inner_queue_takes_turns_with_the_teams_below_it() -> None:
    """Gangs directly in an organisation have their turns too."""
    world = line((("x", 0, 0), ("x1", 1, 0)), [(1, 1), (1, 1), (2, 1), (2, 1)])
    assert sorted(world.serve()) == [0, 1, 2, 3]


def test_a_use_that_is_there_already_counts() -> None:
    """A queue that holds half of its share waits until the other has caught up."""
    world = line(EQUAL, [(1, 1)] * 3 + [(2, 1)] * 4, running=[(1, 3)], capacity=8)
    assert [world.queue[at] for at in world.serve()] == [2, 2, 2, 1, 2, 1, 1]


def test_overdue_gangs_come_first_and_count_for_their_queue() -> None:
    """The overdue gang of a queue is its turn: the next goes to the other queue, not to its own again."""
    world = line(EQUAL, [(1, 4), (1, 1), (1, 1), (2, 1), (2, 1)], overdue=[0], capacity=4)
    assert world.serve() == [0, 3, 4, 1, 2]


def test_overdue_gangs_of_all_queues_of_one_priority_go_by_age() -> None:
    """The oldest first, whatever their queues hold; then the queues take turns as ever."""
    world = line(EQUAL, [(1, 1), (1, 1), (2, 1), (2, 1)], submit_s=[3, 1, 2, 0], overdue=[3, 1, 2], running=[(2, 8)])
    assert world.serve() == [3, 1, 2, 0]


@pytest.mark.parametrize("priority", [{"b": 1}, {"y": 1}])
def test_a_queue_of_higher_priority_comes_before_overdue_gangs_of_a_lower_one(
    priority: dict[str, int],
) -> None:
    """On whichever level it stands; inside one priority what is overdue comes first."""
    tree = (("x", 0, 0), ("y", 0, 0), ("a", 1, 0), ("b", 2, 0))
    world = line(tree, [(3, 1), (3, 1), (4, 1), (4, 1)], overdue=[1, 3], priority=priority)
    first = [3, 2] if "y" in priority else [1, 3]  # a team's own priority counts among its neighbours alone
    assert world.serve()[:2] == first


def test_a_priority_among_neighbours_does_not_hold_up_another_organisation() -> None:
    """`hi` comes before its overdue neighbour; the overdue gang of the other organisation comes before both."""
    tree = (("x", 0, 0), ("y", 0, 0), ("lo", 1, 0), ("hi", 1, 0), ("z", 2, 0))
    world = line(tree, [(3, 1), (4, 1), (5, 1)], overdue=[0, 2], priority={"hi": 1})
    assert world.serve() == [2, 1, 0]


def test_overdue_gangs_come_before_any_key_of_the_rule_set() -> None:
    """Oldest first."""
    world = line(
        EQUAL,
        [(1, 1), (2, 1), (1, 1), (2, 1)],
        submit_s=[5, 4, 1, 0],
        overdue=[1, 0],
        head_key=lambda _, at: (float(-at),),
    )
    assert world.serve()[:2] == [1, 0]


def test_classes_come_one_after_the_other() -> None:
    """No gang of a later class before the last of an earlier one, whatever the queues have."""
    world = line(EQUAL, [(1, 1), (2, 1), (1, 1), (2, 1)], classes=[1, 0, 0, 1])
    assert [at in (1, 2) for at in world.serve()] == [True, True, False, False]


def test_a_queue_below_a_share_of_nothing_comes_last() -> None:
    """Weight zero and no guarantee: it is served after those that have a share."""
    world = line(EQUAL, [(1, 1), (2, 1), (2, 1)], weight={"a": 0.0})
    assert world.serve() == [1, 2, 0]


# --- between two turns ------------------------------------------------------------------------------


def test_rebuild_sees_that_a_queue_lost_what_it_had() -> None:
    """The victim's queue is served next once its use went down, not where it stood before."""
    world = line(EQUAL, [(1, 1)] * 2 + [(2, 1)] * 3, running=[(1, 4)])
    assert [world.turns.next(), world.turns.next()] == [2, 3]
    world.ledger.add(2, 2.0, (ALL,), preemptible=True)
    world.ledger.add(1, -4.0, (ALL,), preemptible=True)
    world.turns.rebuild()
    assert world.serve(lambda _: False) == [0, 1, 4]


def test_a_dropped_queue_has_no_more_turns_in_any_class() -> None:
    """What a strict queue has left, overdue, now and in later classes, is handed back in order; the others go on."""
    gangs = [(1, 1), (1, 1), (2, 1), (1, 1), (2, 1), (1, 1)]
    world = line(EQUAL, gangs, classes=[0, 0, 0, 0, 1, 1], overdue=[0, 3])
    assert world.turns.next() == 0
    assert world.turns.drop(1) == [3, 1, 5]
    assert world.serve() == [2, 4]
    assert world.turns.drop(1) == []


def test_dropping_a_queue_that_was_not_served_last_leaves_the_rest_whole() -> None:
    """An overdue gang is refused while its queue stands among the others: they still have all their turns."""
    world = line((("x", 0, 0), ("x1", 1, 0), ("x2", 1, 0)), [(2, 1), (2, 1), (3, 1), (3, 1)], overdue=[0])
    assert world.turns.next() == 0
    assert world.turns.drop(2) == [1]
    assert world.serve() == [2, 3]


def test_a_key_of_the_rule_set_orders_the_first_gangs() -> None:
    """With a head key the tree does not count; equal keys go to the older gang."""
    world = line(EQUAL, [(1, 1), (1, 1), (2, 1), (2, 1)], head_key=lambda _, at: (float(at % 2),))
    assert world.serve() == [0, 2, 1, 3]


def test_a_start_in_one_queue_raises_the_key_of_another() -> None:
    """Keys that look at what a cohort uses are asked anew: a start of one member puts the others behind too."""
    gangs = [(3, 1), (3, 1), (4, 1), (5, 1), (5, 1)]  # c1, c1, c2 of cohort c; d of its own

    def key(ledger: QuotaLedger, at: int) -> tuple[float, ...]:
        return (ledger.use[ALL][1] if gangs[at][0] != 5 else ledger.use[ALL][2],)

    world = line((("c", 0, 0), ("e", 0, 0), ("c1", 1, 0), ("c2", 1, 0), ("d", 2, 0)), gangs, head_key=key)
    assert world.serve() == [0, 3, 1, 4, 2]


def test_a_strict_queue_waits_behind_its_overdue_gang() -> None:
    """In the whole decision: the overdue gang of a strict queue finds no room, and none behind it passes; others do."""
    tree = queue_tree(("a", 0, -1), ("b", 0, -1), order=0)
    tree.strict[1] = True
    work: list[Item] = [
        holds("r", 5),
        waits("old", 8, queue=1, submit_s=-9e6),
        waits("a2", 1, queue=1, submit_s=1.0),
        waits("b1", 1, queue=2, submit_s=2.0),
    ]
    observation = observe(snapshot("1x8", work, queues=tree), 60.0)
    step = decide(observation, EAGER)
    assert list(started(step)) == ["b1"]
    assert why_waits(step, observation, "a2")[0] == "order"
    assert why_waits(step, observation, "old")[0] == "capacity"


# --- whatever the queues ----------------------------------------------------------------------------


@st.composite
def lines(draw: st.DrawFn) -> PendingTable:
    """Up to three organisations, six queues, twelve gangs, some overdue, in up to three classes."""
    organisations = draw(st.integers(1, 3))
    teams = draw(st.lists(st.integers(0, organisations), min_size=1, max_size=4))
    queues = [(f"o{n}", 0, draw(st.integers(0, 4))) for n in range(organisations)]
    queues += [(f"t{n}", parent, draw(st.integers(0, 4))) for n, parent in enumerate(teams)]
    gangs = draw(st.lists(st.tuples(st.integers(1, len(queues)), st.integers(1, 4)), max_size=12))
    overdue = [at for at in range(len(gangs)) if draw(st.integers(0, 5)) == 0]
    weight = {name: draw(st.sampled_from([0.0, 1.0, 3.0])) for name, _, _ in queues}
    priority = {name: draw(st.integers(0, 1)) for name, _, _ in queues}
    flat = draw(st.booleans())
    return line(
        queues,
        gangs,
        classes=[draw(st.integers(0, 2)) for _ in gangs],
        overdue=overdue,
        weight=weight,
        priority=priority,
        head_key=(lambda ledger, _: (ledger.use[ALL][0],)) if flat else None,
    )


@settings(max_examples=200)
@given(
    world=lines(),
    fits=st.integers(0, 2**12 - 1),
    drops=st.integers(0, 2**12 - 1),
    rebuilds=st.integers(0, 2**12 - 1),
)
def test_every_position_has_exactly_one_turn(world: PendingTable, fits: int, drops: int, rebuilds: int) -> None:
    """Whatever starts, whichever queues are dropped or ordered anew: each gang has one turn or is handed back."""
    seen: list[int] = []
    while (at := world.turns.next()) is not None:
        seen.append(at)
        if fits >> at & 1:
            world.ledger.add(world.queue[at], float(world.gpus[at]), (ALL,), preemptible=True)
        if drops >> at & 1:
            dropped = world.turns.drop(world.queue[at])
            assert all(world.queue[other] == world.queue[at] for other in dropped)
            seen += dropped
        if rebuilds >> at & 1:
            world.turns.rebuild()
    assert sorted(seen) == list(range(len(world.queue)))
    assert world.turns.next() is None


@settings(max_examples=100)
@given(world=lines())
def test_inside_a_queue_and_class_the_order_is_kept(world: PendingTable) -> None:
    """The turns of one queue in one class, overdue ones apart, come in the order that was given."""
    groups = list(world.turns._groups)
    order = world.serve()
    for _, waiting in groups:
        for positions in waiting.values():
            assert [at for at in order if at in positions] == list(positions)


@pytest.mark.parametrize("queues", [2, 3, 5])
def test_equal_queues_never_part_by_more_than_one_gang(queues: int) -> None:
    """Any number of equal queues with equal gangs: at no moment has one started two more than another."""
    world = line([(f"q{n}", 0, 0) for n in range(queues)], [(1 + at // 4, 1) for at in range(4 * queues)], capacity=64)
    counts = dict.fromkeys(range(1, queues + 1), 0)
    while (at := world.turns.next()) is not None:
        counts[world.queue[at]] += 1
        world.ledger.add(world.queue[at], 1.0, (ALL,), preemptible=True)
        assert max(counts.values()) - min(counts.values()) <= 1
