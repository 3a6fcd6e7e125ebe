"""Quota books: use along paths, room under limits and guarantees, fair shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autopilot.core.model.snapshot import BY_MODEL, QueueTable, State
from autopilot.core.quota.ledger import ALL, build_ledger, fair_shares
from tests.kits.core_world import (
    AUTO,
    MODELS,
    Item,
    decide,
    holds,
    observe,
    queue_tree,
    snapshot,
    started,
    waits,
)

TREE = queue_tree(("org", 0, 10), ("team-a", 1, 6), ("team-b", 1, -1), ("other", 0, -1))
WORK = [
    holds("a", 4, queue=2),
    holds("b", 2, queue=3),
    waits("p", 8, queue=2),
    holds("gone", 1, queue=2, state=State.SUCCEEDED),
]


def test_use_counts_up_to_the_root() -> None:
    """What a queue's work holds counts for it and for every queue above; ended work counts nowhere."""
    ledger = build_ledger(snapshot("2x8", WORK, queues=TREE), np.array([16.0]))
    assert ledger.use[ALL] == [6.0, 6.0, 4.0, 2.0, 0.0]


def test_room_is_the_least_along_the_path() -> None:
    """A queue may take what its own limit and every limit above leaves; without any limit, all there is."""
    ledger = build_ledger(snapshot("2x8", WORK, queues=TREE), np.array([16.0]))
    assert [ledger.limit_room(queue) for queue in range(5)] == [np.inf, 4.0, 2.0, 4.0, np.inf]


def test_a_limit_of_the_root_binds_every_queue() -> None:
    """A limit of the whole tree leaves no queue more than what all of them together leave of it."""
    limited = replace(TREE, limit=np.array([7, 10, 6, -1, -1], np.int32))
    ledger = build_ledger(snapshot("2x8", WORK, queues=limited), np.array([16.0]))
    assert [ledger.limit_room(queue) for queue in range(5)] == [1.0] * 5


def test_a_start_takes_room_from_the_path_and_from_siblings() -> None:
    """A gang of one team takes room from its team, its organisation and so from the other team; not elsewhere."""
    ledger = build_ledger(snapshot("2x8", WORK, queues=TREE), np.array([16.0]))
    ledger.add(3, 3.0, (ALL,), preemptible=True)
    assert [ledger.limit_room(queue) for queue in range(5)] == [np.inf, 1.0, 1.0, 1.0, np.inf]
    ledger.add(3, -3.0, (ALL,), preemptible=True)
    assert ledger.use[ALL] == [6.0, 6.0, 4.0, 2.0, 0.0]


def test_work_that_may_not_be_preempted_fills_guarantees_along_the_path() -> None:
    """The room inside guarantees is the least of the path, and preemptible use leaves it alone."""
    guarantee = np.zeros((5, len(MODELS)), np.int32)
    guarantee[1:, 0] = (5, 4, 4, 2)
    tree = replace(TREE, guarantee=guarantee)
    work = [
        holds("a", 3, queue=2, preemptible=False),
        holds("b", 1, queue=3, preemptible=False),
        holds("c", 4, queue=2),
    ]
    ledger = build_ledger(snapshot("2x8", work, queues=tree), np.array([16.0]))
    assert ledger.guarantee_room(2, (ALL,)) == 1.0  # its own leaves 1, its organisation's 1
    assert ledger.guarantee_room(3, (ALL,)) == 1.0  # its own leaves 3, its organisation's 1
    assert ledger.guarantee_room(4, (ALL,)) == 2.0


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
def test_fair_shares_of_one_level(
    guarantee: list[float], weight: list[float], demand: list[float], capacity: float, expected: list[float]
) -> None:
    """Guarantees first as far as they are wanted, the rest by weight among those that want more."""
    unlimited = np.full(3, np.inf)
    shares = fair_shares(
        np.array([-1, 0, 0], np.int32),
        np.array([0, *guarantee], float),
        np.array([1, *weight], float),
        unlimited,
        np.array([sum(demand), *demand], float),
        capacity,
    )
    assert shares[1:].tolist() == pytest.approx(expected)


def test_parting_is_found_where_the_paths_part() -> None:
    """Two teams of one organisation part at the teams, a team and a stranger at the top."""
    ledger = build_ledger(snapshot("2x8", WORK, queues=TREE), np.array([16.0]))
    assert ledger.parting(2, 3) == (2, 3)
    assert ledger.parting(2, 4) == (1, 4)


def test_models_are_counted_apart_where_there_are_several() -> None:
    """A guarantee of one GPU model is not paid in another."""
    guarantee = np.zeros((3, len(MODELS)), np.int32)
    guarantee[1] = (0, 8, 0)
    tree = replace(queue_tree(("a", 0, -1), ("b", 0, -1)), guarantee=guarantee)
    work = [holds("x", 8, queue=2, gpu_models=2, on=range(8, 16)), waits("y", 8, queue=1, gpu_models=2)]
    snap = snapshot("2x8", work, queues=tree, nodes={"gpu_model": [0, 1]})
    ledger = build_ledger(snap, np.array([16.0, 8.0, 8.0, 0.0]))
    assert ledger.use[2] == [8.0, 0.0, 8.0]
    assert ledger.within_fair(1, 8.0, (ALL, 2))
    assert ledger.saturation(2, 0.0, (ALL, 2)) > 1.0


TWO_MODELS = {"gpu_model": [0, 1]}


def by_model(**columns: Sequence[Sequence[float]]) -> QueueTable:
    """Two queues beside each other, with columns by GPU model for the root and both."""
    tree = queue_tree(("a", 0, -1), ("b", 0, -1))
    return replace(tree, **{name: np.array(rows, BY_MODEL[name]) for name, rows in columns.items()})


def test_a_limit_of_one_model_binds_what_asks_for_it() -> None:
    """Four of the A100s are the most for a; of H100s, and of GPUs in all, it may have any number."""
    none = [-1] * len(MODELS)
    tree = by_model(limit_by_model=[none, [4, *none[1:]], none])
    work = [
        holds("x", 3, queue=1),
        waits("w", 8, queue=1, gpu_models=1),
        waits("v", 8, queue=2, gpu_models=1),
    ]
    ledger = build_ledger(snapshot("2x8", work, nodes=TWO_MODELS, queues=tree), np.array([16.0, 8.0, 8.0, 0.0]))
    assert (ledger.limit_room(1), ledger.limit_room(1, (ALL, 1)), ledger.limit_room(1, (ALL, 2))) == (
        np.inf,
        1.0,
        np.inf,
    )
    assert ledger.over_limit(1, 2.0, (ALL, 1))
    assert not ledger.over_limit(1, 1.0, (ALL, 1))
    assert ledger.fair[1][1:] == [4.0, 4.0]  # half each, and no more is of use to a


def test_where_there_is_one_model_its_limit_is_that_of_all_gpus() -> None:
    """A cluster of one model has one kind: all GPUs."""
    none = [-1] * len(MODELS)
    tree = by_model(limit_by_model=[none, [4, *none[1:]], none])
    ledger = build_ledger(snapshot("2x8", [holds("x", 3, queue=1)], queues=tree), np.array([16.0]))
    assert (ledger.limit_room(1), ledger.limits_models) == (1.0, False)


def test_a_weight_of_one_model_splits_that_model_alone() -> None:
    """Three to one for the A100s, one to one for the rest; past use corrects both by the same ratio."""
    unstated = [np.nan] * len(MODELS)
    tree = by_model(weight_by_model=[unstated, [3.0, *unstated[1:]], unstated])
    work = [waits(f"{queue}{model}", 8, queue=queue, gpu_models=1 << model) for queue in (1, 2) for model in (0, 1)]
    snap = snapshot("2x8", work, nodes=TWO_MODELS, queues=tree)
    capacity = np.array([16.0, 8.0, 8.0, 0.0])
    assert [each[1:] for each in build_ledger(snap, capacity).fair][:3] == [[8.0, 8.0], [6.0, 2.0], [4.0, 4.0]]
    corrected = build_ledger(snap, capacity, np.array([1.0, 0.5, 0.5]))
    assert corrected.fair[1][1:] == [6.0, 2.0]
    lowered = build_ledger(snap, capacity, np.array([1.0, 1.0, 3.0]))
    assert lowered.fair[1][1:] == [4.0, 4.0]


# --- hosts ------------------------------------------------------------------------------------------

HOSTS = {"cpu_milli": [100_000, 100_000], "memory_mib": [1000, 1000]}
SIDE_BY_SIDE = queue_tree(("cpu", 0, -1), ("gpu", 0, -1))


def hosted(**columns: Any) -> list[Item]:
    """A queue whose work takes 40 CPUs for each GPU, and one whose work takes 1; both hold 2 GPUs and want more."""
    return [
        holds("c", 2, queue=1, gpus_per_member=1, cpu_milli=40_000, **columns),
        holds("g", 2, queue=2, gpus_per_member=1, cpu_milli=1000, **columns),
        waits("c2", 2, queue=1, gpus_per_member=1, cpu_milli=40_000, submit_s=0.0, **columns),
        waits("g2", 2, queue=2, gpus_per_member=1, cpu_milli=1000, submit_s=1.0, **columns),
    ]


def test_the_dominant_resource_decides_whose_turn_it_is() -> None:
    """Equal in GPUs, the queue that uses most of the CPUs comes after the one that uses hardly any."""
    ledger = build_ledger(snapshot("2x8", hosted(), nodes=HOSTS, queues=SIDE_BY_SIDE), np.array([16.0]))
    assert ledger.host_use[0] == [82_000.0, 80_000.0, 2000.0]
    assert ledger.saturation(1, 2.0, (ALL,)) == ledger.saturation(2, 2.0, (ALL,)) == 1.0
    cpu, gpu = (
        ledger.saturation(1, 2.0, (ALL,), (80_000.0, 0.0)),
        ledger.saturation(2, 2.0, (ALL,), (2000.0, 0.0)),
    )
    assert (cpu, gpu) == (1.0, 1.0)  # each wants no more than is there: both shares are met
    more = [*hosted(), waits("c3", 4, queue=1, gpus_per_member=1, cpu_milli=40_000)]
    tight = build_ledger(snapshot("2x8", more, nodes=HOSTS, queues=SIDE_BY_SIDE), np.array([16.0]))
    assert tight.saturation(1, 2.0, (ALL,), (80_000.0, 0.0)) == pytest.approx(160_000 / 196_000)
    assert tight.saturation(2, 2.0, (ALL,), (2000.0, 0.0)) == 1.0


@pytest.mark.parametrize(("nodes", "heavy_first"), [(HOSTS, False), ({}, True)], ids=["CPUs stated", "not stated"])
def test_turns_follow_the_dominant_resource(nodes: dict[str, list[int]], *, heavy_first: bool) -> None:
    """The older gang of the CPU-heavy queue goes second where CPUs are counted; where they are not stated, first."""
    work = [
        holds("c", 2, queue=1, gpus_per_member=1, cpu_milli=40_000),
        holds("g", 2, queue=2, gpus_per_member=1, cpu_milli=1000),
        *(waits(f"c{n}", 1, queue=1, gpus_per_member=1, cpu_milli=40_000, submit_s=0.0) for n in range(9)),
        *(waits(f"g{n}", 1, queue=2, gpus_per_member=1, cpu_milli=1000, submit_s=1.0) for n in range(9)),
    ]
    step = decide(observe(snapshot("2x8", work, nodes=nodes, queues=SIDE_BY_SIDE), 10.0), AUTO)
    first = next(iter(started(step)))
    assert first.startswith("c") is heavy_first


def test_what_the_next_gang_does_not_draw_on_is_no_dominant_resource() -> None:
    """A queue that used up the CPUs with other work may go on with work that asks for none."""
    ledger = build_ledger(snapshot("2x8", hosted(), nodes=HOSTS, queues=SIDE_BY_SIDE), np.array([16.0]))
    ledger.add_host(1, (200_000.0, 0.0))
    assert ledger.saturation(1, 2.0, (ALL,), (0.0, 0.0)) == 1.0
    assert ledger.saturation(1, 2.0, (ALL,), (1.0, 0.0)) > 1.5


def test_hosts_are_not_counted_where_a_node_does_not_state_them_or_nobody_asks() -> None:
    """Then GPUs are the only resource, as before."""
    partly = {"cpu_milli": [100_000, -1], "memory_mib": [-1, -1]}
    capacity = np.array([16.0])
    assert build_ledger(snapshot("2x8", hosted(), nodes=partly, queues=SIDE_BY_SIDE), capacity).host_use == []
    idle = [holds("c", 2, queue=1), waits("w", 2, queue=2)]
    assert build_ledger(snapshot("2x8", idle, nodes=HOSTS, queues=SIDE_BY_SIDE), capacity).host_use == []


def test_host_use_is_booked_and_restored_with_the_rest() -> None:
    """A start takes its CPUs along the path; what was saved comes back to the last bit."""
    ledger = build_ledger(snapshot("2x8", hosted(), nodes=HOSTS, queues=SIDE_BY_SIDE), np.array([16.0]))
    before = ledger.saved()
    ledger.add_host(2, (5000.0, 10.0))
    assert (ledger.host_use[0][2], ledger.host_use[0][0], ledger.host_use[1][2]) == (7000.0, 87_000.0, 10.0)
    ledger.restore(before)
    assert ledger.host_use[0] == [82_000.0, 80_000.0, 2000.0]
