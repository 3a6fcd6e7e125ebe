"""Fragmentation: what demand cannot use, by cause, against what is pending and against the expected mix."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from autopilot.core.model.forecast import ExpectedMix, MixKind, abstaining_mix
from autopilot.core.model.modes import Modes
from autopilot.core.model.snapshot import ClusterSnapshot, Topology
from autopilot.core.placement.fragmentation.measure import (
    GPU_REMAINDER,
    NODE_REMAINDER,
    QUOTA,
    TOPOLOGY,
    PoolFragmentation,
    measure_fragmentation,
)
from autopilot.core.placement.whatif import WhatIf
from autopilot.explain.fragmentation import fragmentation_document, fragmentation_lines
from tests.kits.core_world import holds, queue_tree, snapshot, waits


def mix_of(*kinds: MixKind) -> ExpectedMix:
    """One arrival of each kind."""
    rate = np.ones((len(kinds), 1))
    return ExpectedMix("m", 0.0, kinds, (3600.0,), (0.5,), rate, rate[:, :, None])


def pool(snap: ClusterSnapshot, mix: ExpectedMix | None = None) -> PoolFragmentation:
    """The only pool."""
    (found,) = measure_fragmentation(snap, WhatIf(snap), mix).pools
    return found


HALVES = [holds("a", 4, on=range(4)), holds("b", 4, on=range(8, 12))]
NODE = MixKind((), 8, 8)


def test_it_is_not_zero_on_a_quiet_night() -> None:
    """Nothing waits, but gangs of a node are expected and only halves of nodes are free."""
    found = pool(snapshot("2x8", HALVES), mix_of(NODE))
    assert found.pending.stranded_gpus == 0.0
    assert dict(found.index_by_cause)[NODE_REMAINDER] == found.index_ratio == 1.0
    assert pool(snapshot("2x8", HALVES), mix_of(MixKind((), 4, 4))).index_ratio == 0.0
    assert pool(snapshot("2x8"), mix_of(NODE)).index_ratio == 0.0


def test_without_a_mix_the_index_is_unknown() -> None:
    """Not zero; the reason is that of the forecast."""
    for mix, reason in (
        (None, "no forecast of the demand mix"),
        (abstaining_mix(mix_of(NODE), "less than an hour of data"), "less than an hour of data"),
    ):
        found = pool(snapshot("2x8", HALVES), mix)
        assert math.isnan(found.index_ratio)
        assert found.reason == reason


def test_parts_of_gpus_and_quota_are_causes() -> None:
    """Shares leave halves of GPUs; a limit leaves free GPUs that nothing may use."""
    shares = [holds(f"s{gpu}", 1, on=[gpu], gpu_milli=500) for gpu in range(8)]
    found = pool(snapshot("1x8", [*shares, waits("p", 4, gpus_per_member=4)]))
    assert dict(found.pending.by_cause)[GPU_REMAINDER] == 4.0
    limited = pool(snapshot("1x8", [waits("p", 8, queue=1)], queues=queue_tree(("q", 0, 4))))
    assert dict(limited.pending.by_cause)[QUOTA] == 8.0


def test_a_gang_of_one_island_needs_it_whole() -> None:
    """Two islands of two nodes, each with a free node: a gang of two nodes in one island is lost to the topology."""
    work = [holds("a", 8, on=range(8)), holds("b", 8, on=range(16, 24))]
    snap = snapshot("4x8", work, nodes={"island": [0, 0, 1, 1]})
    found = pool(snap, mix_of(MixKind((), 16, 8, topology=Topology.ISLAND)))
    assert dict(found.index_by_cause)[TOPOLOGY] == 1.0
    assert pool(snap, mix_of(MixKind((), 16, 8))).index_ratio == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_the_causes_sum_to_the_index(seed: int) -> None:
    """Exactly, none is negative, and no more is lost than is free."""
    rng = np.random.default_rng(seed)
    work = [
        holds(f"g{gpu}", 1, on=[gpu], gpu_milli=int(rng.choice([0, 300, 700])))
        for gpu in range(32)
        if rng.random() < 0.6
    ]
    mix = mix_of(NODE, MixKind((), 16, 8), MixKind((), 2, 2), MixKind((), 1, 1, 450), MixKind((), 1))
    found = pool(snapshot("4x8", [*work, waits("p", 8), waits("r", 3, gpus_per_member=3)]), mix)
    assert found.expected is not None
    for loss in (found.expected, found.pending):
        assert all(gpus >= 0.0 for _, gpus in loss.by_cause)
        assert loss.stranded_gpus == sum(gpus for _, gpus in loss.by_cause)
        assert loss.fits_gpus + loss.stranded_gpus <= found.free_gpus + 1e-9
    assert found.index_ratio == pytest.approx(sum(part for _, part in found.index_by_cause), abs=1e-12)


def test_lines_name_the_action_and_its_mode() -> None:
    """For each cause, what would help; the same numbers as JSON."""
    snap = snapshot("2x8", [*HALVES, waits("p", 8)])
    found = measure_fragmentation(snap, WhatIf(snap), mix_of(NODE))
    text = "\n".join(fragmentation_lines(found, Modes()))
    assert "fragmentation index 1.000" in text
    assert "defragment (mode recommend) could free up to that" in text
    document = fragmentation_document(found, Modes())
    assert document["largest_gang_gpus"] == {"A100-80GB": 4}
    one = snapshot("1x1")
    lines = fragmentation_lines(measure_fragmentation(one, WhatIf(one), None), Modes())
    assert lines[-1] == "widest gang that fits now: A100-80GB 1 GPU"
    assert document["pools"][0]["index_ratio"] == 1.0


def test_whole_gpus_take_shares_too() -> None:
    """What nobody uses may be shared."""
    expected = pool(snapshot("1x8"), mix_of(MixKind((), 1, 1, 500))).expected
    assert expected is not None
    assert expected.fits_gpus == pytest.approx(8.0, abs=0.5)


def test_a_pool_is_measured_against_the_work_that_may_use_it() -> None:
    """Work for another GPU model is the business of the other pool."""
    snap = snapshot("2x8", [waits("w", 8, gpu_models=0b10)], nodes={"pool": [0, 1], "gpu_model": [0, 1]})
    snap = replace(snap, names=replace(snap.names, pools=("a", "b")))
    first, second = measure_fragmentation(snap, WhatIf(snap), None).pools
    assert (first.pending.demand_gpus, second.pending.demand_gpus) == (0.0, 8.0)


def test_no_gpu_is_lost_to_two_causes() -> None:
    """Halves of nodes on two islands: nodes are lost to the remainder, islands to the topology, and no GPU twice."""
    work = [holds(f"h{node}", 4, on=range(8 * node, 8 * node + 4)) for node in range(4)]
    island = MixKind((), 16, 8, topology=int(Topology.ISLAND))
    found = pool(snapshot("4x8", work, nodes={"island": [0, 0, 1, 1]}), mix_of(NODE, island))
    assert found.expected is not None
    causes = dict(found.expected.by_cause)
    assert causes[NODE_REMAINDER] > 0.0
    assert causes[TOPOLOGY] > 0.0
    assert found.expected.fits_gpus + found.expected.stranded_gpus <= found.free_gpus + 1e-6
