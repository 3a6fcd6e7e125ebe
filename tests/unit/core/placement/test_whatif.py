"""The books: what can be placed, what is refused, and that undoing leaves no trace."""

from __future__ import annotations

import numpy as np
import pytest

from autopilot.core.model.errors import InvariantError
from autopilot.core.model.snapshot import GPU_MILLI
from autopilot.core.placement.whatif import Layout, WhatIf
from tests.kits.core_world import holds, snapshot, waits

CUT = {7: [("1g.10gb", 0), ("1g.10gb", 1), ("2g.20gb", 2)]}


def whole(*rows: int) -> Layout:
    """Whole GPUs."""
    return Layout(np.array(rows, np.int32), np.full(len(rows), -1, np.int32), np.full(len(rows), GPU_MILLI, np.int32))


def share(row: int, milli: int) -> Layout:
    """A share of one GPU."""
    return Layout(np.array([row], np.int32), np.array([-1], np.int32), np.array([milli], np.int32))


def slices(gpu: int, *rows: int) -> Layout:
    """MIG instances."""
    count = len(rows)
    return Layout(np.full(count, gpu, np.int32), np.array(rows, np.int32), np.zeros(count, np.int32))


def test_the_books_open_with_what_is_held() -> None:
    """Whole GPUs, shares and instances that work holds are in use; the rest of a fit node is free."""
    snap = snapshot(
        "2x4",
        [
            holds("a", 2),
            holds("s", 1, on=[2], gpu_milli=300),
            holds("i", 1, on=[2], mig_profile=1),
            waits("p", 2),
        ],
        cuts=CUT,
    )
    books = WhatIf(snap)
    assert books.gpu_used.tolist() == [1000, 1000, 300, 0, 0, 0, 0, 0]
    assert books.node_free.tolist() == [1, 3]
    assert books.instance_used.tolist() == [0, 0, GPU_MILLI]
    assert books.layout_of(0).gpu.tolist() == [0, 1]
    assert not len(books.layout_of(3).gpu)


@pytest.mark.parametrize(
    ("column", "values"),
    [("ready", [False, True]), ("cordoned", [True, False])],
    ids=["not ready", "cordoned"],
)
def test_a_node_that_is_not_fit_has_nothing_free(column: str, values: list[bool]) -> None:
    """Nothing of a node that is not ready, or cordoned, is free; an unhealthy GPU is not free either."""
    books = WhatIf(snapshot("2x4", nodes={column: values}, unhealthy=[5]))
    assert books.node_free.tolist() == [0, 3]


def test_a_gpu_is_never_handed_out_twice() -> None:
    """A GPU, a share beyond the whole, or an instance that is in use is refused, and the books stay as they were."""
    snap = snapshot("1x8", [holds("a", 1), waits("p"), waits("q"), holds("i", 1, on=[0], mig_profile=0)], cuts=CUT)
    books = WhatIf(snap)
    before = [books.gpu_used.copy(), books.node_free.copy(), books.instance_used.copy()]
    for layout in (whole(0), whole(1, 1), share(0, 1), slices(7, 0), slices(7, 1, 1)):
        with pytest.raises(InvariantError, match="handed out"):
            books.place(1, layout)
    for now, then in zip((books.gpu_used, books.node_free, books.instance_used), before, strict=True):
        assert now.tobytes() == then.tobytes()
    books.place(1, share(2, 600))
    with pytest.raises(InvariantError, match="beyond its whole"):
        books.place(2, share(2, 500))


def test_a_gang_that_holds_is_not_placed_again_and_one_that_holds_nothing_not_evicted() -> None:
    """`place` is for gangs that hold nothing, `evict` for those that hold something."""
    books = WhatIf(snapshot("1x4", [holds("a", 1), waits("p")]))
    with pytest.raises(InvariantError, match="already holds"):
        books.place(0, whole(2))
    with pytest.raises(InvariantError, match="nothing to evict"):
        books.evict(1)


def test_a_gang_with_two_shares_of_one_gpu_gives_both_back() -> None:
    """Two shares of one GPU in one gang both count, and both come free."""
    books = WhatIf(snapshot("1x4", [holds("two", 2, on=[1, 1], gpu_milli=300)]))
    assert books.gpu_used.tolist() == [0, 600, 0, 0]
    books.evict(0)
    assert books.gpu_used.tolist() == [0, 0, 0, 0]
    assert books.node_free.tolist() == [4]


def test_a_move_is_an_eviction_and_a_placement() -> None:
    """`move` returns where the gang was, and both changes are in the diff, oldest first."""
    books = WhatIf(snapshot("2x4", [holds("a", 2)]))
    old = books.move(0, whole(4, 5))
    assert old.gpu.tolist() == [0, 1]
    assert books.node_free.tolist() == [4, 2]
    assert [change.kind for change in books.diff()] == ["evict", "place"]
    assert books.layout_of(0).gpu.tolist() == [4, 5]


def test_the_diff_starts_at_its_mark() -> None:
    """A diff since a mark holds the changes after it alone; a rollback shortens it."""
    books = WhatIf(snapshot("1x4", [holds("a", 1), waits("p")]))
    books.evict(0)
    mark = books.checkpoint()
    books.place(1, whole(0))
    assert [change.workload for change in books.diff(mark)] == [1]
    books.rollback(mark)
    assert books.diff(mark) == ()
    assert len(books.diff()) == 1


def test_a_stamp_names_a_state_and_comes_back_with_it() -> None:
    """Every change has a new stamp, the same change once more too; a rollback brings back that of before."""
    books = WhatIf(snapshot("1x4", [holds("a", 1), waits("p")]))
    begun = books.stamp
    mark = books.checkpoint()
    seen = {begun}
    for _ in range(3):
        books.place(1, whole(1))
        assert books.stamp not in seen
        seen.add(books.stamp)
        books.rollback(mark)
        assert books.stamp == begun


def test_a_recut_replaces_idle_instances_and_keeps_those_in_use() -> None:
    """Idle instances are gone after a re-cut and cannot be used; the one in use stays."""
    snap = snapshot("1x8", [holds("i", 1, on=[0], mig_profile=0), waits("p", 1, mig_profile=0)], cuts=CUT)
    books = WhatIf(snap)
    mark = books.checkpoint()
    books.repartition(7, np.array([2], np.int32), np.array([4], np.int32))
    assert books.instance_alive.tolist() == [True, False, False, True]
    with pytest.raises(InvariantError, match="re-cut"):
        books.place(1, slices(7, 1))
    books.place(1, slices(7, 3))
    books.rollback(mark)
    assert len(books.instance_alive) == 3
    books.place(1, slices(7, 1))


def test_a_gpu_that_is_not_in_mig_mode_is_not_cut() -> None:
    """Only GPUs in MIG mode have instances."""
    with pytest.raises(InvariantError, match="MIG mode"):
        WhatIf(snapshot("1x8", cuts=CUT)).repartition(0, np.array([0], np.int32), np.array([0], np.int32))


def test_host_capacity_follows_members() -> None:
    """CPU and memory are taken per member in proportion to its GPUs; nodes that state none are without limit."""
    snap = snapshot(
        "2x4",
        [
            holds("a", 4, cpu_milli=8000, memory_mib=100, gpus_per_member=4),
            waits("p", 2, cpu_milli=5000, gpus_per_member=2),
        ],
        nodes={"cpu_milli": [64_000, -1], "memory_mib": [1000, 1000]},
    )
    books = WhatIf(snap)
    assert books.node_cpu.tolist() == [56_000, np.iinfo(np.int64).max]
    assert books.node_memory.tolist() == [900, 1000]
    books.evict(0)
    books.place(1, whole(0, 1))
    assert int(books.node_cpu[0]) == 59_000
    books.rollback(0)
    assert int(books.node_cpu[0]) == 56_000


def test_an_instance_that_is_gone_cannot_be_used() -> None:
    """A row of the instance table without a profile is a destroyed instance: it is never handed out."""
    snap = snapshot("1x8", [waits("p", 1, mig_profile=0)], cuts=CUT)
    snap.instances.profile[0] = -3
    books = WhatIf(snap)
    with pytest.raises(InvariantError, match="re-cut"):
        books.place(0, slices(7, 0))
