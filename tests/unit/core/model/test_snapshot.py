"""Tables of a snapshot: equal lengths, rows inside their tables, unknown never zero."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autopilot.core.intake.consistency import check_snapshot
from autopilot.core.model.errors import InvariantError
from autopilot.core.model.snapshot import QueueTable, State, WorkloadTable, empty, empty_signals, take
from autopilot.core.model.work import holding_mask
from tests.kits.core_world import holds, snapshot, waits


def test_columns_of_different_length_are_refused() -> None:
    """A table whose columns differ in length stops the tick."""
    snap = snapshot("1x4", [waits("a")])
    broken = replace(snap, gpus=replace(snap.gpus, healthy=np.ones(3, bool)))
    with pytest.raises(InvariantError, match="columns of gpus differ"):
        check_snapshot(broken)


@pytest.mark.parametrize("row", [-1, 4])
def test_a_row_number_outside_its_table_is_refused(row: int) -> None:
    """A placement that points at no GPU stops the tick."""
    snap = snapshot("1x4", [holds("a", 1)])
    broken = replace(snap, placements=replace(snap.placements, gpu=np.array([row], np.int32)))
    with pytest.raises(InvariantError, match=r"placements\.gpu points outside"):
        check_snapshot(broken)


def test_empty_tables_have_typed_columns() -> None:
    """An empty table has all columns with their types, so that nothing must ask whether it is there."""
    table: WorkloadTable = empty(WorkloadTable)
    assert len(table.id) == 0
    assert table.submit_s.dtype == np.float64
    assert table.id.dtype == object
    queues: QueueTable = empty(QueueTable)
    assert queues.guarantee.shape == (0, 0)
    assert empty_signals().collected_s == float("-inf")


def test_taking_rows_keeps_their_order() -> None:
    """`take` gives the rows that were asked for, as they were asked for."""
    work = snapshot("1x4", [waits("a"), waits("b"), waits("c")]).workloads
    assert take(work, np.array([2, 0])).id.tolist() == ["c", "a"]


def test_who_holds() -> None:
    """Work that starts, runs or writes its last checkpoint holds GPUs; pending and ended work does not."""
    work = [waits(state.name, 1, state=state) for state in State]
    snap = snapshot("1x8", [replace(item, on=()) for item in work])
    assert holding_mask(snap.workloads).tolist() == [False, True, True, True, False, False]
