"""Undoing on paper leaves no trace, whatever was tried."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.hardware import mig
from autopilot.core.hardware.mig_profiles import find_profile, gpu_model
from autopilot.core.model.errors import InvariantError
from autopilot.core.model.policy.bounds import PlacementWeights
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.placement.fit import find_fit
from autopilot.core.placement.on_demand import profile_of
from autopilot.core.placement.shapes import Fit, shape_of
from autopilot.core.placement.whatif import Layout, WhatIf
from tests.kits.core_world import MODELS, arrays, holds, snapshot, waits
from tests.kits.hardware_world import PROFILES, on_demand_bits
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
    "slices_taken",
    "gpu_cuts_used",
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


# --- instances that claims could have made ---------------------------------------------------------

MODEL = gpu_model(MODELS[0])
EXISTING = [
    (name, start)
    for name, start in ((each.name, start) for each in MODEL.profiles for start in each.starts)
    if name in PROFILES and name != "7g.80gb"
]


@st.composite
def on_demand_clusters(draw: st.DrawFn) -> ClusterSnapshot:
    """Two nodes of two GPUs, some with instances on demand, beside instances that exist; work of all kinds waits."""
    cuts: dict[int, list[tuple[str, int]]] = {}
    bits: dict[int, int] = {}
    for gpu in range(4):
        if draw(st.booleans()):
            existing = [draw(st.sampled_from(EXISTING)) for _ in range(draw(st.integers(0, 2)))]
            if existing and mig.is_legal(MODEL, existing):
                cuts[gpu] = existing
            bits[gpu] = on_demand_bits(MODEL.name, cuts.get(gpu, ()))
    rows = [gpu for gpu in sorted(cuts) for _ in cuts[gpu]]
    work = [holds(f"i{row}", 1, on=[row], mig_profile=_profile_at(cuts, row)) for row in range(len(rows))]
    for number in range(draw(st.integers(1, 8))):
        profile = draw(st.integers(-1, len(PROFILES) - 1))
        more = {"mig_profile": profile} if profile >= 0 else {}
        work.append(waits(f"w{number}", draw(st.integers(1, 4)), gpus_per_member=1, **more))
    return snapshot("2x2", work, cuts=cuts, on_demand=bits)


def _profile_at(cuts: dict[int, list[tuple[str, int]]], row: int) -> int:
    return PROFILES.index([cut for gpu in sorted(cuts) for cut in cuts[gpu]][row][0])


def assert_silicon(ledger: WhatIf) -> None:
    """Of each GPU, what is given out and what exists are apart; a GPU that is given out whole has no instance."""
    snap, places = ledger.snapshot, ledger.places
    slices: dict[int, list[int]] = {gpu: [] for gpu in range(len(snap.gpus.uuid))}
    whole = dict.fromkeys(slices, 0)
    for gpu, profile, start in zip(
        snap.instances.gpu.tolist(), snap.instances.profile.tolist(), snap.instances.start.tolist(), strict=True
    ):
        facts = find_profile(MODEL, PROFILES[profile])
        assert facts is not None
        slices[gpu] += range(start, start + facts.memory_slices)
    for row in range(len(snap.workloads.id)):
        layout = ledger.layout_of(row)
        for gpu, instance in layout.places():
            if instance >= places.first:
                name = ledger.instance_id(instance)
                assert name.startswith(f"{snap.gpus.uuid[gpu]}/")
                facts, start = find_profile(MODEL, profile_of(name)), int(name.rpartition("@")[2])
                assert facts is not None
                slices[gpu] += range(start, start + facts.memory_slices)
            elif instance < 0:
                whole[gpu] += 1
    for gpu, taken in slices.items():
        assert len(set(taken)) == len(taken)
        assert whole[gpu] <= (0 if taken else 1)


@given(on_demand_clusters(), st.lists(st.tuples(st.integers(0, 12), st.sampled_from("peru")), max_size=14))
@settings(max_examples=150)
def test_silicon_is_given_out_once(snap: ClusterSnapshot, changes: list) -> None:  # type: ignore[type-arg]
    """Whatever is placed, evicted and undone, whole GPUs and instances never share a memory slice."""
    ledger, fresh = WhatIf(snap), columns(WhatIf(snap))
    marks = [(ledger.checkpoint(), columns(ledger))]
    for number, kind in changes:
        row = number % len(snap.workloads.id)
        if kind == "u" and len(marks) > 1:
            mark, stood = marks.pop()
            ledger.rollback(mark)
            assert columns(ledger) == stood
            continue
        marks.append((ledger.checkpoint(), columns(ledger)))
        if kind == "e" and len(ledger.layout_of(row)):
            ledger.evict(row)
        elif kind == "p" and not len(ledger.layout_of(row)):
            found = find_fit(ledger, shape_of(snap, row), ledger.node_free, PlacementWeights(), MEMORY)
            if isinstance(found, Fit):
                assert ledger.fits(found.layout)
                ledger.place(row, found.layout)
        elif kind == "r" and not len(ledger.layout_of(row)) and len(ledger.places):
            place = np.array([ledger.places.first + number * 7 % len(ledger.places)], np.int32)
            layout = Layout(ledger.gpus_of(place), place, np.zeros(1, np.int32))
            if ledger.fits(layout):
                ledger.place(row, layout)
            else:
                with pytest.raises(InvariantError, match="allocated"):
                    ledger.place(row, layout)
        assert_silicon(ledger)
    ledger.rollback(0)
    assert columns(ledger) == fresh
