"""Who shares GPUs with whom, as told and as listed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autopilot.core.model.objects import Share, Sharing, Trust
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.explain.neighbours import neighbours, sharing_lines
from tests.kits.core_world import holds, snapshot, waits


def shared(sharing: Sharing = Sharing.TIME_SLICING) -> ClusterSnapshot:
    """Two GPUs in four shares each: `two` has a share of both, `one` of the first, `alone` of a third GPU."""
    work = [
        holds("two", 2, [0, 1], trust=Trust.TRUSTED, share=Share.DEV, gpus_per_member=2),
        holds("one", 1, [0], tenant=1, trust=Trust.ACROSS),
        holds("alone", 1, [2]),
        waits("waits", 1),
    ]
    snap = snapshot("1x4", work)
    held, nodes = snap.placements, snap.nodes
    return replace(
        snap,
        placements=replace(held, milli=np.full(len(held.milli), 250, np.int32)),
        nodes=replace(nodes, sharing=np.array([sharing], np.int8), replicas=np.array([4], np.int32)),
    )


def test_neighbours_are_on_the_same_gpu() -> None:
    """With the number of GPUs that they have in common."""
    assert neighbours(shared()) == {0: {1: 1}, 1: {0: 1}}


def test_the_story_names_the_neighbours_and_whose_the_counters_are() -> None:
    """A sharer's activity is never shown as its own."""
    snap = shared()
    assert sharing_lines(snap, 0) == [
        "on shared GPUs: trust trusted, share dev",
        "holds 0.5 GPU in 2 shares by time-slicing with one (tenant t1, on 1 GPU)",
        "its activity is estimated: the counters of a shared GPU are the device's, not its own",
    ]
    assert sharing_lines(snap, 2) == ["holds 0.25 GPU in 1 share by time-slicing and is alone on it now"]
    assert "by a mechanism that its node does not state" in sharing_lines(shared(Sharing.WHOLE), 1)[1]


def test_work_that_shares_nothing_has_no_such_line() -> None:
    """Also work that waits."""
    snap = snapshot("1x4", [holds("a", 1), waits("b", 1)])
    assert [sharing_lines(snap, row) for row in (0, 1)] == [[], []]
