"""Where a gang can go: all or nothing, its members whole, inside its domain, on hardware that suits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from autopilot.core.model.policy.bounds import PlacementWeights
from autopilot.core.model.snapshot import ClusterSnapshot, Topology
from autopilot.core.placement.fit import find_fit
from autopilot.core.placement.kinds import KINDS
from autopilot.core.placement.shapes import Fit, Miss, shape_classes, shape_of, suitable_nodes
from autopilot.core.placement.whatif import WhatIf
from tests.kits.core_world import Item, holds, snapshot, waits

MEMORY = np.array([81_920.0, 81_920.0, 40_960.0])


def place(snap: ClusterSnapshot, gpus: int | None = None, **weights: Any) -> Fit | Miss:
    """The spot of the last workload, at its width or at `gpus`."""
    ledger = WhatIf(snap)
    row = len(snap.workloads.id) - 1
    return find_fit(ledger, shape_of(snap, row, gpus), ledger.node_free, PlacementWeights(**weights), MEMORY)


def per_node(found: Fit | Miss) -> dict[int, int]:
    """GPUs of a spot by node row."""
    assert isinstance(found, Fit), found
    assert len(set(found.layout.gpu.tolist())) == len(found.layout)
    return dict(Counter((found.layout.gpu // 8).tolist()))


def miss(found: Fit | Miss) -> tuple[str, float, float]:
    """A miss as plain values."""
    assert isinstance(found, Miss), found
    return str(found.code), found.value, found.threshold


def busy(*free: int) -> list[Item]:
    """Work that leaves `free` GPUs on each 8-GPU node."""
    rows: list[Item] = []
    for node, left in enumerate(free):
        if left < 8:
            rows.append(holds(f"busy{node}", 8 - left, on=range(8 * node, 8 * node + 8 - left)))
    return rows


def test_a_small_gang_goes_where_it_fills_a_node() -> None:
    """One member goes to the fullest node that has room; equal nodes: the first."""
    assert per_node(place(snapshot("3x8", [*busy(8, 3, 8), waits("p", 2)]))) == {1: 2}
    assert per_node(place(snapshot("3x8", [*busy(8, 1, 8), waits("p", 2)]))) == {0: 2}


@pytest.mark.parametrize(
    ("free", "gpus", "per_member", "answer"),
    [
        ((8, 8), 16, 8, {0: 8, 1: 8}),
        ((8, 7), 16, 8, ("capacity", 15.0, 16.0)),
        ((8, 7, 1), 16, 8, ("fragmented", 16.0, 16.0)),
        ((4, 4), 8, 8, ("fragmented", 8.0, 8.0)),
        ((8, 4, 2), 12, 8, {0: 8, 1: 4}),
        ((8, 5, 4), 12, 8, {0: 8, 2: 4}),
        ((8, 3, 3), 12, 8, ("fragmented", 14.0, 12.0)),
        ((4, 4, 4), 12, 4, {0: 4, 1: 4, 2: 4}),
        ((8, 8), 6, 4, {0: 6}),
        ((7, 3), 10, 4, ("fragmented", 10.0, 10.0)),
    ],
)
def test_members_stay_whole(free: tuple[int, ...], gpus: int, per_member: int, answer: object) -> None:
    """A gang of several members, the last one narrower, is placed with each member on one node, or not at all."""
    found = place(snapshot(f"{len(free)}x8", [*busy(*free), waits("p", gpus, gpus_per_member=per_member)]))
    assert (miss(found) if isinstance(found, Miss) else per_node(found)) == answer


def test_the_answer_agrees_with_trying_everything() -> None:
    """On random small clusters, a gang is placed exactly when some assignment of its members exists."""
    rng = np.random.default_rng(7)
    for _ in range(300):
        free = rng.integers(0, 9, rng.integers(1, 5)).tolist()
        per = int(rng.integers(1, 9))
        gpus = int(rng.integers(1, 25))
        islands = rng.integers(0, 2, len(free)).tolist()
        topology = int(rng.choice([Topology.NONE, Topology.ISLAND]))
        snap = snapshot(
            f"{len(free)}x8",
            [*busy(*free), waits("p", gpus, gpus_per_member=per, topology=topology)],
            nodes={"island": islands},
        )
        domains = [list(range(len(free)))]
        if topology:
            domains = [[n for n in range(len(free)) if islands[n] == island] for island in set(islands)]
        members, tail = divmod(gpus, per)
        exists = any(
            any(
                sum((f - (tail if n == host else 0)) // per for n, f in ((n, free[n]) for n in domain)) >= members
                for host in (domain if tail else [-1])
                if not tail or free[host] >= tail
            )
            for domain in domains
        )
        if members + (tail > 0) == 1:
            exists = max(free) >= gpus
        assert isinstance(place(snap), Fit) == exists, (free, gpus, per, islands, topology)


@pytest.mark.parametrize(
    ("topology", "column"),
    [
        (Topology.ISLAND, "island"),
        (Topology.LEAF, "leaf"),
        (Topology.BLOCK, "block"),
        (Topology.ZONE, "zone"),
    ],
)
def test_a_required_domain_holds_the_whole_gang(topology: Topology, column: str) -> None:
    """All members share the domain that the gang requires; where none holds it, the code is `topology`."""
    nodes = {column: [0, 0, 1, 1]}
    wide = {"gpus_per_member": 8, "topology": topology}
    found = place(snapshot("4x8", [*busy(8, 4, 8, 8), waits("p", 16, **wide)], nodes=nodes))
    assert per_node(found) == {2: 8, 3: 8}
    found = place(snapshot("4x8", [*busy(8, 4, 4, 8), waits("p", 16, **wide)], nodes=nodes))
    assert miss(found)[0] == "topology"


def test_the_tail_of_a_gang_needs_room_in_the_same_domain() -> None:
    """An island with enough GPUs in all, but none for the tail, is passed over for one that holds it."""
    nodes = {"island": [0, 0, 0, 1, 1]}
    work = [*busy(8, 2, 2, 8, 6), waits("p", 12, gpus_per_member=8, topology=Topology.ISLAND)]
    assert per_node(place(snapshot("5x8", work, nodes=nodes))) == {3: 8, 4: 4}


def test_the_tightest_domain_is_chosen_and_the_roomiest_to_spread() -> None:
    """A large island stays whole for a gang that needs it; where policy spreads, the emptiest is taken."""
    nodes = {"island": [0, 0, 0, 1, 1]}
    gang = waits("p", 16, gpus_per_member=8, topology=Topology.ISLAND)
    assert per_node(place(snapshot("5x8", [gang], nodes=nodes))) == {3: 8, 4: 8}
    assert per_node(place(snapshot("5x8", [gang], nodes=nodes), fill=-1.0)) == {0: 8, 1: 8}


def test_members_that_are_to_be_spread_take_one_node_each() -> None:
    """Four members on four nodes, though one would hold them all."""
    gang = waits("p", 4, gpus_per_member=1, topology=Topology.SPREAD)
    assert per_node(place(snapshot("4x8", [gang]))) == {0: 1, 1: 1, 2: 1, 3: 1}
    assert isinstance(place(snapshot("3x8", [gang])), Miss)


def test_a_host_that_just_suffices_suits() -> None:
    """A member that asks for all CPUs and all memory of a node is placed there."""
    nodes = {"cpu_milli": [64_000], "memory_mib": [512_000]}
    gang = waits("p", 8, cpu_milli=64_000, memory_mib=512_000)
    assert per_node(place(snapshot("1x8", [gang], nodes=nodes))) == {0: 8}


def test_one_island_is_preferred_without_being_required() -> None:
    """A gang that asks for no domain still goes into one island that holds it, when policy weighs that."""
    nodes = {"island": [0, 1, 1], "leaf": [0, 0, 0]}
    work = [*busy(8, 8, 8), waits("p", 16, gpus_per_member=8)]
    assert per_node(place(snapshot("3x8", work, nodes=nodes))) == {1: 8, 2: 8}
    assert per_node(place(snapshot("3x8", work, nodes=nodes), island=0.0, leaf=0.0)) == {0: 8, 1: 8}


@pytest.mark.parametrize(
    "asks",
    [{"gpu_models": 1 << 1}, {"gpu_memory_mib": 60_000}, {"cpu_milli": 90_000}, {"memory_mib": 900_000}],
    ids=["model", "GPU memory", "CPU", "memory"],
)
def test_unsuitable_nodes_are_left_out(asks: dict[str, Any]) -> None:
    """GPU model, GPU memory and host capacity are constraints, not preferences."""
    nodes = {"gpu_model": [2, 1], "cpu_milli": [64_000, -1], "memory_mib": [512_000, -1]}
    assert per_node(place(snapshot("2x8", [waits("p", 8, **asks)], nodes=nodes))) == {1: 8}
    blocked = [holds("x", 1, on=[8]), waits("p", 8, **asks)]
    assert miss(place(snapshot("2x8", blocked, nodes=nodes))) == ("capacity", 7.0, 8.0)


@pytest.mark.parametrize(
    "override", [{"ready": [False, True]}, {"cordoned": [True, False]}], ids=["not ready", "cordoned"]
)
def test_unfit_nodes_are_left_out(override: dict[str, list[bool]]) -> None:
    """Nothing is placed on a node that is not ready or that is cordoned."""
    snap = snapshot("2x8", [waits("p", 1)], nodes=override)
    assert per_node(place(snap)) == {1: 1}


def test_a_broken_gpu_is_left_out() -> None:
    """An unhealthy GPU is never part of a layout."""
    found = place(snapshot("1x8", [waits("p", 7)], unhealthy=[2]))
    assert isinstance(found, Fit)
    assert found.layout.gpu.tolist() == [0, 1, 3, 4, 5, 6, 7]
    assert miss(place(snapshot("1x8", [waits("p", 8)], unhealthy=[2]))) == ("capacity", 7.0, 8.0)


def test_a_host_that_is_promised_beyond_what_it_has_counts_as_full() -> None:
    """It hosts no member, and takes none away from the nodes beside it."""
    nodes = {"cpu_milli": [8_000, 5_000, 8_000]}
    over = holds("over", 4, on=range(8, 12), gpus_per_member=1, cpu_milli=1_500)
    asks = {"gpus_per_member": 2, "cpu_milli": 4_000}
    assert per_node(place(snapshot("3x8", [over, waits("p", 8, **asks)], nodes=nodes))) == {0: 4, 2: 4}


def test_host_capacity_bounds_the_members_of_a_node() -> None:
    """Two members of a gang share a node only as far as its CPUs go; so does the tail."""
    nodes = {"cpu_milli": [10_000, 10_000]}
    asks = {"gpus_per_member": 2, "cpu_milli": 4_000}
    assert per_node(place(snapshot("2x8", [waits("p", 8, **asks)], nodes=nodes))) == {0: 4, 1: 4}
    assert isinstance(place(snapshot("2x8", [waits("p", 10, **asks)], nodes=nodes)), Miss)
    assert isinstance(place(snapshot("2x8", [waits("p", 9, **asks)], nodes=nodes)), Miss)
    assert per_node(place(snapshot("2x8", [waits("p", 7, **asks)], nodes=nodes))) == {0: 4, 1: 3}


def test_shares_pack_and_never_exceed_a_gpu() -> None:
    """A share goes to the fullest GPU that has it; a whole GPU is opened only when none has."""
    snap = snapshot(
        "1x8",
        [holds("a", 1, on=[3], gpu_milli=500), holds("b", 1, on=[5], gpu_milli=800), waits("p", 1, gpu_milli=400)],
    )
    found = place(snap)
    assert isinstance(found, Fit)
    assert found.layout.gpu.tolist() == [3]
    assert found.layout.milli.tolist() == [400]
    full = [holds(f"f{n}", 1, on=[n], gpu_milli=700) for n in range(8)]
    assert miss(place(snapshot("1x8", [*full, waits("p", 1, gpu_milli=400)])))[0] == "fragmented"
    whole = [holds("w", 8), waits("p", 1, gpu_milli=400)]
    assert miss(place(snapshot("1x8", whole))) == ("capacity", 0.0, 0.4)


def test_instances_are_allocated_by_profile() -> None:
    """MIG work takes free instances of its profile, on the GPU most of whose cuts are in use; never whole GPUs."""
    cuts = {0: [("1g.10gb", 0), ("1g.10gb", 1)], 1: [("1g.10gb", 0), ("1g.10gb", 1), ("2g.20gb", 2)]}
    snap = snapshot("1x8", [holds("a", 1, on=[2], mig_profile=0), waits("p", 1, mig_profile=0)], cuts=cuts)
    found = place(snap)
    assert isinstance(found, Fit)
    assert found.layout.gpu.tolist() == [1]
    assert found.layout.instance.tolist() == [3]
    assert found.layout.milli.tolist() == [0]
    snap = snapshot("1x8", [holds("a", 1, on=[2], mig_profile=0), waits("p", 4, mig_profile=0)], cuts=cuts)
    assert miss(place(snap)) == ("mig_geometry", 3.0, 4.0)
    assert miss(place(snapshot("1x8", [waits("p", 8)], cuts=cuts))) == ("capacity", 6.0, 8.0)


def test_work_without_gpus_is_not_placed() -> None:
    """A gang of no GPUs is no work of ours; it is a miss, not an error."""
    assert isinstance(place(snapshot("1x8", [waits("p", 0)])), Miss)


def test_every_term_of_the_score_is_shown() -> None:
    """A placement over several nodes shows fill, island and leaf terms, which add up to its score."""
    found = place(snapshot("2x8", [waits("p", 16, gpus_per_member=8)]))
    assert isinstance(found, Fit)
    assert [term.name for term in found.terms] == ["fill", "island", "leaf"]
    assert sum(float(term.value) for term in found.terms) == pytest.approx(found.score, abs=1e-3)


def test_equal_shapes_share_a_class() -> None:
    """Gangs that ask for the same have one class; any other width, shape or constraint has another."""
    work = [waits("a", 4), waits("b", 4), waits("c", 5), waits("d", 4, topology=1), waits("e", 4, min_gpus=2)]
    codes = shape_classes(snapshot("1x8", work), np.arange(5, dtype=np.int32)).tolist()
    assert codes[0] == codes[1]
    assert len(set(codes)) == 4


def test_the_memory_of_an_unknown_model_suits_nobody_who_asks() -> None:
    """A node whose GPU memory is not known (0) does not suit work that asks for some."""
    snap = snapshot("1x8", [waits("p", 1, gpu_memory_mib=1)])
    assert not suitable_nodes(WhatIf(snap), shape_of(snap, 0), np.zeros(3)).any()


@pytest.mark.parametrize(
    ("asked", "kind"), [({}, "whole"), ({"gpu_milli": 500}, "shares"), ({"mig_profile": 0}, "instances")]
)
def test_each_request_is_served_by_one_kind_of_capacity(asked: dict[str, int], kind: str) -> None:
    """No request is served by two kinds, and none by no kind."""
    shape = shape_of(snapshot("1x8", [waits("w", 1, **asked)]), 0)
    assert [each.name for each in KINDS if each.serves(shape)] == [kind]
