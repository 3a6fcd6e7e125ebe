"""The books: what can be placed, what is refused, and that undoing leaves no trace."""

from __future__ import annotations

import numpy as np
import pytest

from autopilot.core.model.errors import InvariantError
from autopilot.core.model.policy import Policy
from autopilot.core.model.snapshot import GPU_MILLI
from autopilot.core.placement.fit import find_fit
from autopilot.core.placement.shapes import Fit, Miss, shape_of
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
    ledger = WhatIf(snap)
    assert ledger.gpu_used.tolist() == [1000, 1000, 300, 0, 0, 0, 0, 0]
    assert ledger.node_free.tolist() == [1, 3]
    assert ledger.instance_used.tolist() == [0, 0, GPU_MILLI]
    assert ledger.layout_of(0).gpu.tolist() == [0, 1]
    assert not len(ledger.layout_of(3))


@pytest.mark.parametrize(
    ("column", "values"),
    [("ready", [False, True]), ("cordoned", [True, False])],
    ids=["not ready", "cordoned"],
)
def test_a_node_that_is_not_fit_has_nothing_free(column: str, values: list[bool]) -> None:
    """Nothing of a node that is not ready, or cordoned, is free; an unhealthy GPU is not free either."""
    ledger = WhatIf(snapshot("2x4", nodes={column: values}, unhealthy=[5]))
    assert ledger.node_free.tolist() == [0, 3]


def test_a_gpu_is_never_allocated_twice() -> None:
    """A GPU, a share beyond the whole, or an instance that is in use is refused, and the books stay as they were."""
    snap = snapshot("1x8", [holds("a", 1), waits("p"), waits("q"), holds("i", 1, on=[0], mig_profile=0)], cuts=CUT)
    ledger = WhatIf(snap)
    before = [ledger.gpu_used.copy(), ledger.node_free.copy(), ledger.instance_used.copy()]
    for layout in (whole(0), whole(1, 1), share(0, 1), slices(7, 0), slices(7, 1, 1)):
        with pytest.raises(InvariantError, match="allocated"):
            ledger.place(1, layout)
    for now, then in zip((ledger.gpu_used, ledger.node_free, ledger.instance_used), before, strict=True):
        assert now.tobytes() == then.tobytes()
    ledger.place(1, share(2, 600))
    with pytest.raises(InvariantError, match="beyond its whole"):
        ledger.place(2, share(2, 500))


def test_more_work_than_a_gpu_or_an_instance_has_is_put_back_and_not_added_to() -> None:
    """A source shows two whole holders of GPU 0 and two of an instance. Undoing restores that; nobody is let in."""
    work = [holds("a", 1, [0]), holds("b", 1, [0]), *(holds(name, 1, [0], mig_profile=0) for name in "cd")]
    ledger = WhatIf(snapshot("1x8", [*work, waits("p", 1)], cuts=CUT))
    before = (ledger.gpu_used.tolist(), ledger.instance_used.tolist(), ledger.gpu_cuts_used.tolist())
    mark = ledger.checkpoint()
    for row in range(4):
        ledger.evict(row)
        assert ledger.fits(whole(0)) == (row > 0)
        assert ledger.fits(slices(7, 0)) == (row > 2)
    assert ledger.gpu_cuts_used[7] == 0
    ledger.place(4, whole(0))
    with pytest.raises(InvariantError):
        ledger.place(1, whole(0))
    ledger.rollback(mark)
    assert (ledger.gpu_used.tolist(), ledger.instance_used.tolist(), ledger.gpu_cuts_used.tolist()) == before


def test_a_gang_that_holds_is_not_placed_again_and_one_that_holds_nothing_not_evicted() -> None:
    """`place` is for gangs that hold nothing, `evict` for those that hold something."""
    ledger = WhatIf(snapshot("1x4", [holds("a", 1), waits("p")]))
    with pytest.raises(InvariantError, match="already holds"):
        ledger.place(0, whole(2))
    with pytest.raises(InvariantError, match="nothing to evict"):
        ledger.evict(1)


def test_a_gang_with_two_shares_of_one_gpu_gives_both_back() -> None:
    """Two shares of one GPU in one gang both count, and both come free."""
    ledger = WhatIf(snapshot("1x4", [holds("two", 2, on=[1, 1], gpu_milli=300)]))
    assert ledger.gpu_used.tolist() == [0, 600, 0, 0]
    ledger.evict(0)
    assert ledger.gpu_used.tolist() == [0, 0, 0, 0]
    assert ledger.node_free.tolist() == [4]


def test_a_move_is_an_eviction_and_a_placement() -> None:
    """`move` returns where the gang was, and both changes are in the diff, oldest first."""
    ledger = WhatIf(snapshot("2x4", [holds("a", 2)]))
    old = ledger.move(0, whole(4, 5))
    assert old.gpu.tolist() == [0, 1]
    assert ledger.node_free.tolist() == [4, 2]
    assert [change.kind for change in ledger.diff()] == ["evict", "place"]
    assert ledger.layout_of(0).gpu.tolist() == [4, 5]


def test_the_diff_starts_at_its_mark() -> None:
    """A diff since a mark holds the changes after it alone; a rollback shortens it."""
    ledger = WhatIf(snapshot("1x4", [holds("a", 1), waits("p")]))
    ledger.evict(0)
    mark = ledger.checkpoint()
    ledger.place(1, whole(0))
    assert [change.workload for change in ledger.diff(mark)] == [1]
    ledger.rollback(mark)
    assert ledger.diff(mark) == ()
    assert len(ledger.diff()) == 1


def test_a_stamp_names_a_state_and_comes_back_with_it() -> None:
    """Every change has a new stamp, the same change once more too; a rollback brings back that of before."""
    ledger = WhatIf(snapshot("1x4", [holds("a", 1), waits("p")]))
    begun = ledger.stamp
    mark = ledger.checkpoint()
    seen = {begun}
    for _ in range(3):
        ledger.place(1, whole(1))
        assert ledger.stamp not in seen
        seen.add(ledger.stamp)
        ledger.rollback(mark)
        assert ledger.stamp == begun


def test_a_gpu_that_is_set_aside_takes_no_new_work() -> None:
    """Neither on its free instances nor as a whole; what runs there stays."""
    snap = snapshot("1x8", [holds("i", 1, on=[0], mig_profile=0), waits("p", 1, mig_profile=0)], cuts=CUT)
    ledger = WhatIf(snap)
    mark = ledger.checkpoint()
    assert isinstance(find_fit(ledger, shape_of(snap, 1), ledger.node_free, Policy().placement, np.full(1, 8e4)), Fit)
    ledger.set_aside(np.array([6, 7], np.int32))
    assert isinstance(find_fit(ledger, shape_of(snap, 1), ledger.node_free, Policy().placement, np.full(1, 8e4)), Miss)
    assert (ledger.node_free.tolist(), len(ledger.layout_of(0))) == ([6], 1)
    ledger.rollback(mark)
    assert (ledger.node_free.tolist(), bool(ledger.gpu_ok.all())) == ([7], True)
    assert isinstance(find_fit(ledger, shape_of(snap, 1), ledger.node_free, Policy().placement, np.full(1, 8e4)), Fit)


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
    ledger = WhatIf(snap)
    assert ledger.node_cpu.tolist() == [56_000, np.iinfo(np.int64).max]
    assert ledger.node_memory.tolist() == [900, 1000]
    ledger.evict(0)
    ledger.place(1, whole(0, 1))
    assert int(ledger.node_cpu[0]) == 59_000
    ledger.rollback(0)
    assert int(ledger.node_cpu[0]) == 56_000


def test_an_instance_that_is_gone_cannot_be_used() -> None:
    """A row of the instance table without a profile is a destroyed instance: it is never allocated."""
    snap = snapshot("1x8", [waits("p", 1, mig_profile=0)], cuts=CUT)
    snap.instances.profile[0] = -3
    ledger = WhatIf(snap)
    with pytest.raises(InvariantError, match="destroyed"):
        ledger.place(0, slices(7, 0))
