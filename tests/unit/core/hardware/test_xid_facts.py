"""Error classes: NVIDIA's immediate action of each number, and what a GPU's errors ask for together."""

from __future__ import annotations

import numpy as np
import pytest

from autopilot.core.hardware.xid_facts import (
    CONDEMNED,
    REMAP_FAILED,
    REMAP_PENDING,
    Remedy,
    gpu_remedies,
    out_of_use,
    remedies,
    remedy_of,
)
from autopilot.core.placement.whatif import WhatIf
from tests.kits.core_world import snapshot


@pytest.mark.parametrize(
    ("codes", "remedy"),
    [
        pytest.param((0, -1), Remedy.NONE, id="none, or not known"),
        pytest.param((13, 31, 43, 44, 45, 94, 63, 92, 121, 137), Remedy.NONE, id="the application's, or a note"),
        pytest.param((48, 62, 64, 95, 109, 119, 120, 140, 143, 158), Remedy.RESET_GPU, id="reset"),
        pytest.param((79, 151), Remedy.RESTART_NODE, id="restart of the machine"),
        pytest.param((54, 61, 74, 78, 142, 149, 154, 200, 255, 256, 9999), Remedy.INSPECT, id="a person's look"),
    ],
)
def test_the_class_of_a_number_is_that_of_the_catalogue(codes: tuple[int, ...], remedy: Remedy) -> None:
    """Immediate actions as NVIDIA publishes them; numbers that it does not have are for a person."""
    assert {code: remedy_of(code) for code in codes} == dict.fromkeys(codes, remedy)
    assert remedies(np.array(codes, np.int32)).tolist() == [remedy] * len(codes)


def test_contained_errors_spare_the_gpu_and_uncontained_ones_do_not() -> None:
    """94 is one application's; after 95 nothing may run on until the reset."""
    assert remedy_of(94) < CONDEMNED <= remedy_of(95)


def test_the_gravest_of_a_gpus_errors_counts() -> None:
    """Rows that a reset remaps wait for it; remapping that failed is for good, whatever the number says."""
    snap = snapshot("1x8", xids={0: 13, 1: 95, 2: 79, 3: 13, 4: 95}, remaps={3: REMAP_PENDING, 4: REMAP_FAILED})
    assert gpu_remedies(snap.gpus).tolist()[:6] == [
        Remedy.NONE,
        Remedy.RESET_GPU,
        Remedy.RESTART_NODE,
        Remedy.RESET_LATER,
        Remedy.REPLACE,
        Remedy.NONE,
    ]


def test_new_work_stays_away_from_what_is_broken() -> None:
    """A reset concerns one GPU, a restart its node; a contained error excludes neither."""
    snap = snapshot("3x4", xids={0: 95, 1: 94, 4: 79}, remaps={8: REMAP_PENDING})
    bad_node, bad_gpu = out_of_use(snap.nodes, snap.gpus)
    assert bad_node.tolist() == [False, True, False]
    assert np.flatnonzero(bad_gpu).tolist() == [0, 4, 8]
    assert WhatIf(snap).node_free.tolist() == [3, 0, 3]
