"""Who shares GPUs with whom, as told and as listed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autopilot.core.model.objects import Share, Sharing, Trust
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.sharing.facts import SharedRates
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


def test_the_story_tells_the_rate_and_whether_it_is_measured() -> None:
    """Unknown is said, and never 0."""
    snap, nan = shared(), float("nan")
    found = []
    for predicted, measured in ((0.91, 0.83), (nan, 0.83), (0.91, nan), (nan, nan)):
        rates = SharedRates(np.full(4, predicted), np.full(4, measured))
        found.append(sharing_lines(snap, 1, rates)[2])
    assert found == [
        "it runs at 0.83 of its rate alone (measured by its steps, 0.91 predicted)",
        "it runs at 0.83 of its rate alone (measured by its steps)",
        "it runs at 0.91 of its rate alone (estimated from what each does alone)",
        "its rate relative to alone is unknown: it reports no steps, or what all of them do alone is not known",
    ]


def test_work_that_shares_nothing_has_no_such_line() -> None:
    """Also work that waits."""
    snap = snapshot("1x4", [holds("a", 1), waits("b", 1)])
    assert [sharing_lines(snap, row) for row in (0, 1)] == [[], []]


def test_the_story_says_why_work_never_shares() -> None:
    """The first reason, where nodes can be shared; trusted work that may share has none."""
    willing = {"trust": Trust.TRUSTED, "share": Share.PAIR}
    work = [
        waits("plain", 1),
        waits("untrusted", 1, share=Share.PAIR),
        waits("several", 2, gpus_per_member=1, **willing),
        waits("wide", 8, gpus_per_member=8, **willing),
        waits("may", 2, gpus_per_member=2, **willing),
    ]
    snap = snapshot("1x8", work)
    assert sharing_lines(snap, 0) == []
    able = replace(snap, nodes=replace(snap.nodes, sharing_offers=np.ones(1, np.int64)))
    assert [sharing_lines(able, row)[-1] for row in range(5)] == [
        "it never shares GPUs: its share is never",
        "it never shares GPUs: it is untrusted",
        "it never shares GPUs: its GPUs are in several pods",
        "it never shares GPUs: it requests more than 4 GPUs",
        "on shared GPUs: trust trusted, share pair",
    ]
