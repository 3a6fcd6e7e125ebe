"""Undoing on paper leaves no trace, whatever was tried."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.model.errors import InvariantError
from autopilot.core.model.policy_bounds import PlacementWeights
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.placement.fit import find_fit
from autopilot.core.placement.shapes import Fit, shape_of
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
    "gpu_ok",
    "gpu_usable",
    "instance_used",
    "instance_alive",
)
MEMORY = np.array([81_920.0, 81_920.0, 40_960.0])


def columns(ledger: WhatIf) -> dict[str, bytes]:
    """Every column as bytes, and who holds what."""
    held = {
        f"layout {row}": ledger.layout_of(row).gpu.tobytes()
        + ledger.layout_of(row).instance.tobytes()
        + ledger.layout_of(row).milli.tobytes()
        for row in range(len(ledger.snapshot.workloads.id))
    }
    return {name: getattr(ledger, name).tobytes() for name in COLUMNS} | held


def try_change(ledger: WhatIf, kind: str, row: int, gpus: list[int]) -> None:
    """One change, or none where it would be illegal."""
    snap = ledger.snapshot
    holders = [each for each in range(len(snap.workloads.id)) if len(ledger.layout_of(each))]
    row = holders[row % len(holders)] if kind == "evict" and holders else row % len(snap.workloads.id)
    if kind == "aside":
        ledger.set_aside(np.unique(np.array(gpus, np.int32) % len(snap.gpus.uuid)))
        return
    holding = len(ledger.layout_of(row)) > 0
    if kind == "evict" and holding:
        ledger.evict(row)
    elif kind == "place" and not holding:
        found = find_fit(ledger, shape_of(snap, row), ledger.node_free, PlacementWeights(), MEMORY)
        if isinstance(found, Fit):
            ledger.place(row, found.layout)
    elif kind == "move" and holding:
        free = np.flatnonzero(ledger.gpu_usable & (ledger.gpu_used == 0))
        width = len(ledger.layout_of(row))
        if len(free) >= width and not len(np.flatnonzero(ledger.layout_of(row).instance >= 0)):
            target = Layout(free[:width].astype(np.int32), ledger.layout_of(row).instance, ledger.layout_of(row).milli)
            ledger.move(row, target)
    elif kind == "refused":
        try:
            ledger.place(row, Layout(np.zeros(2, np.int32), np.full(2, -1, np.int32), np.full(2, 1000, np.int32)))
        except InvariantError:
            return


change = st.tuples(
    st.sampled_from(["place", "evict", "move", "aside", "refused"]),
    st.integers(0, 12),
    st.lists(st.integers(-1, 3), max_size=3),  # the last GPU is the one with instances
)


@given(snapshots(), st.lists(st.lists(change, max_size=6), min_size=1, max_size=4))
def test_rolling_back_restores_every_column_bit_for_bit(snap: ClusterSnapshot, rounds: list) -> None:  # type: ignore[type-arg]
    """Nested marks are undone newest first, each to the very bytes that stood when it was set."""
    before = arrays(snap)
    ledger = WhatIf(snap)
    marks = []
    for changes in rounds:
        marks.append((ledger.checkpoint(), columns(ledger)))
        for kind, row, profiles in changes:
            try_change(ledger, kind, row, profiles)
    for mark, stood in reversed(marks):
        ledger.rollback(mark)
        assert columns(ledger) == stood
        assert len(ledger.diff()) == mark
    assert columns(ledger) == columns(WhatIf(snap))
    assert arrays(snap) == before


def assert_usable_instances(ledger: WhatIf) -> None:
    """What is kept of the free instances is what the columns say."""
    node = ledger.snapshot.gpus.node[ledger.instance_gpu]
    free = (
        ledger.instance_alive & (ledger.instance_used == 0) & ledger.gpu_ok[ledger.instance_gpu] & ledger.node_ok[node]
    )
    for profile in range(len(ledger.snapshot.names.profiles)):
        kept = ledger.usable_instances(profile)
        assert kept.tolist() == np.flatnonzero(free & (ledger.instance_profile == profile)).tolist()


@given(snapshots(), st.lists(change, max_size=10))
@settings(max_examples=30)
def test_what_is_free_is_what_is_not_used(snap: ClusterSnapshot, changes: list) -> None:  # type: ignore[type-arg]
    """After any changes, undone or not, free GPUs and instances equal a fresh count; nothing exceeds its whole."""
    ledger = WhatIf(snap)
    for kind, row, profiles in changes:
        mark = ledger.checkpoint()
        try_change(ledger, kind, row, profiles)
        assert_usable_instances(ledger)
        if row % 2:
            ledger.rollback(mark)
            assert_usable_instances(ledger)
    free = ledger.gpu_usable & (ledger.gpu_used == 0)
    counted = np.bincount(snap.gpus.node[free], minlength=len(snap.nodes.id))
    assert ledger.node_free.tolist() == counted.tolist()
    assert ledger.gpu_used.min(initial=0) >= 0
    assert ledger.gpu_used.max(initial=0) <= 1000
    assert ledger.instance_used.max(initial=0) <= 1000
