"""Quota books: use along paths, room under limits and guarantees, fair shares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autopilot.core.snapshot import State
from autopilot.core.tenancy import ALL, build_books, fair_shares
from tests.core_world import MODELS, holds, queue_tree, snapshot, waits

TREE = queue_tree(("org", 0, 10), ("team-a", 1, 6), ("team-b", 1, -1), ("other", 0, -1))
WORK = [holds("a", 4, queue=2), holds("b", 2, queue=3), waits("p", 8, queue=2),
        holds("gone", 1, queue=2, state=State.SUCCEEDED)]  # fmt: skip


def test_use_counts_up_to_the_root() -> None:
    """What a queue's work holds counts for it and for every queue above; ended work counts nowhere."""
    books = build_books(snapshot("2x8", WORK, queues=TREE), np.array([16.0]))
    assert books.use[ALL] == [6.0, 6.0, 4.0, 2.0, 0.0]


def test_room_is_the_least_along_the_path() -> None:
    """A queue may take what its own limit and every limit above leaves; without any limit, all there is."""
    books = build_books(snapshot("2x8", WORK, queues=TREE), np.array([16.0]))
    assert [books.limit_room(queue) for queue in range(5)] == [np.inf, 4.0, 2.0, 4.0, np.inf]


def test_a_start_takes_room_from_the_path_and_from_siblings() -> None:
    """A gang of one team takes room from its team, its organisation and so from the other team; not elsewhere."""
    books = build_books(snapshot("2x8", WORK, queues=TREE), np.array([16.0]))
    books.add(3, 3.0, (ALL,), preemptible=True)
    assert [books.limit_room(queue) for queue in range(5)] == [np.inf, 1.0, 1.0, 1.0, np.inf]
    books.add(3, -3.0, (ALL,), preemptible=True)
    assert books.use[ALL] == [6.0, 6.0, 4.0, 2.0, 0.0]


def test_work_that_may_not_be_preempted_fills_guarantees_along_the_path() -> None:
    """The room inside guarantees is the least of the path, and preemptible use leaves it alone."""
    guarantee = np.zeros((5, len(MODELS)), np.int32)
    guarantee[1:, 0] = (5, 4, 4, 2)
    tree = replace(TREE, guarantee=guarantee)
    work = [holds("a", 3, queue=2, preemptible=False), holds("b", 1, queue=3, preemptible=False),
            holds("c", 4, queue=2)]  # fmt: skip
    books = build_books(snapshot("2x8", work, queues=tree), np.array([16.0]))
    assert books.guarantee_room(2, (ALL,)) == 1.0  # its own leaves 1, its organisation's 1
    assert books.guarantee_room(3, (ALL,)) == 1.0  # its own leaves 3, its organisation's 1
    assert books.guarantee_room(4, (ALL,)) == 2.0


@pytest.mark.parametrize(
    ("guarantee", "weight", "demand", "capacity", "expected"),
    [
        ([2, 2], [1, 2], [8, 6], 10, [4, 6]),  # 6 left over, split 1 to 2
        ([1, 1], [1, 1], [2, 2], 2, [1, 1]),
        ([2, 2], [1, 1], [2, 2], 2, [2, 2]),  # guarantees above the capacity stand
        ([0, 0], [1, 1], [1, 9], 6, [1, 5]),  # what one does not want goes to the other
        ([3, 0], [1, 0], [1, 4], 6, [1, 0]),  # no weight, no share of the rest
    ],
)
def test_fair_shares_of_one_level(guarantee: list[float], weight: list[float], demand: list[float], capacity: float,
                                  expected: list[float]) -> None:  # fmt: skip
    """Guarantees first as far as they are wanted, the rest by weight among those that want more."""
    unlimited = np.full(3, np.inf)
    shares = fair_shares(np.array([-1, 0, 0], np.int32), np.array([0, *guarantee], float), np.array([1, *weight], float),
                         unlimited, np.array([sum(demand), *demand], float), capacity)  # fmt: skip
    assert shares[1:].tolist() == pytest.approx(expected)


def test_parting_is_found_where_the_paths_part() -> None:
    """Two teams of one organisation part at the teams, a team and a stranger at the top."""
    books = build_books(snapshot("2x8", WORK, queues=TREE), np.array([16.0]))
    assert books.parting(2, 3) == (2, 3)
    assert books.parting(2, 4) == (1, 4)


def test_models_are_counted_apart_where_there_are_several() -> None:
    """A guarantee of one GPU model is not paid in another."""
    guarantee = np.zeros((3, len(MODELS)), np.int32)
    guarantee[1] = (0, 8, 0)
    tree = replace(queue_tree(("a", 0, -1), ("b", 0, -1)), guarantee=guarantee)
    work = [holds("x", 8, queue=2, gpu_models=2, on=range(8, 16)), waits("y", 8, queue=1, gpu_models=2)]
    snap = snapshot("2x8", work, queues=tree, nodes={"gpu_model": [0, 1]})
    books = build_books(snap, np.array([16.0, 8.0, 8.0, 0.0]))
    assert books.use[2] == [8.0, 0.0, 8.0]
    assert books.within_fair(1, 8.0, (ALL, 2))
    assert books.saturation(2, 0.0, (ALL, 2)) > 1.0
