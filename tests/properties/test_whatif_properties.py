"""Undoing on paper leaves no trace, whatever was tried."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.model.errors import InvariantError
from autopilot.core.model.policy_bounds import PlacementWeights
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.placement.fit import Spot, find_spot, shape_of
from autopilot.core.placement.whatif import Layout, WhatIf
from tests.kits.core_world import arrays
from tests.properties.strategies import snapshots

COLUMNS = (
    "gpu_used",
    "gpu_usable",
    "node_ok",
    "node_free",
    "node_cpu",
    "node_memory",
    "instance_gpu",
    "instance_profile",
    "instance_start",
    "instance_used",
    "instance_alive",
)
MEMORY = np.array([81_920.0, 81_920.0, 40_960.0])


def columns(books: WhatIf) -> dict[str, bytes]:
    """Every column as bytes, and who holds what."""
    held = {
        f"layout {row}": books.layout_of(row).gpu.tobytes()
        + books.layout_of(row).instance.tobytes()
        + books.layout_of(row).milli.tobytes()
        for row in range(len(books.snapshot.workloads.id))
    }
    return {name: getattr(books, name).tobytes() for name in COLUMNS} | held


def try_change(books: WhatIf, kind: str, row: int, profiles: list[int]) -> None:
    """One change, or none where it would be illegal."""
    snap = books.snapshot
    row %= len(snap.workloads.id)
    if kind == "repartition":
        gpu = len(snap.gpus.uuid) - 1
        books.repartition(gpu, np.array(profiles, np.int32), np.arange(len(profiles), dtype=np.int32))
        return
    holding = len(books.layout_of(row).gpu) > 0
    if kind == "evict" and holding:
        books.evict(row)
    elif kind == "place" and not holding:
        found = find_spot(books, shape_of(snap, row), books.node_free, PlacementWeights(), MEMORY)
        if isinstance(found, Spot):
            books.place(row, found.layout)
    elif kind == "move" and holding:
        free = np.flatnonzero(books.gpu_usable & (books.gpu_used == 0))
        width = len(books.layout_of(row).gpu)
        if len(free) >= width and not len(np.flatnonzero(books.layout_of(row).instance >= 0)):
            target = Layout(free[:width].astype(np.int32), books.layout_of(row).instance, books.layout_of(row).milli)
            books.move(row, target)
    elif kind == "refused":
        try:
            books.place(row, Layout(np.zeros(2, np.int32), np.full(2, -1, np.int32), np.full(2, 1000, np.int32)))
        except InvariantError:
            return


change = st.tuples(
    st.sampled_from(["place", "evict", "move", "repartition", "refused"]),
    st.integers(0, 12),
    st.lists(st.integers(0, 3), max_size=3),
)


@given(snapshots(), st.lists(st.lists(change, max_size=6), min_size=1, max_size=4))
def test_rolling_back_restores_every_column_bit_for_bit(snap: ClusterSnapshot, rounds: list) -> None:  # type: ignore[type-arg]
    """Nested marks are undone newest first, each to the very bytes that stood when it was set."""
    before = arrays(snap)
    books = WhatIf(snap)
    marks = []
    for changes in rounds:
        marks.append((books.checkpoint(), columns(books)))
        for kind, row, profiles in changes:
            try_change(books, kind, row, profiles)
    for mark, stood in reversed(marks):
        books.rollback(mark)
        assert columns(books) == stood
        assert len(books.diff()) == mark
    assert columns(books) == columns(WhatIf(snap))
    assert arrays(snap) == before


@given(snapshots(), st.lists(change, max_size=10))
@settings(max_examples=30)
def test_what_is_free_is_what_is_not_used(snap: ClusterSnapshot, changes: list) -> None:  # type: ignore[type-arg]
    """After any changes the free GPUs per node equal a fresh count, and nothing exceeds its whole."""
    books = WhatIf(snap)
    for kind, row, profiles in changes:
        try_change(books, kind, row, profiles)
    free = books.gpu_usable & (books.gpu_used == 0)
    counted = np.bincount(snap.gpus.node[free], minlength=len(snap.nodes.id))
    assert books.node_free.tolist() == counted.tolist()
    assert books.gpu_used.min(initial=0) >= 0
    assert books.gpu_used.max(initial=0) <= 1000
    assert books.instance_used.max(initial=0) <= 1000
