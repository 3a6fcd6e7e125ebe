"""Instances that claims could have made: their silicon is given out once, whole or in parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autopilot.core.effects.pipelined import Lookup
from autopilot.core.hardware.mig_profiles import gpu_model
from autopilot.core.model.errors import InvariantError
from autopilot.core.model.policy.bounds import PlacementWeights
from autopilot.core.model.records import Code, Slot
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.placement.fit import find_fit
from autopilot.core.placement.shapes import Fit, Miss, shape_of
from autopilot.core.placement.whatif import Layout, WhatIf
from tests.kits.core_world import MODELS, holds, snapshot, waits
from tests.kits.hardware_world import PROFILES, on_demand_bits

SMALL, WIDE = PROFILES.index("1g.10gb"), PROFILES.index("3g.40gb")
ALL = on_demand_bits(MODELS[0])
MEMORY = np.full(3, 81_920.0)


def found(ledger: WhatIf, row: int, room: list[int] | None = None) -> Fit | Miss:
    """A place for a gang, with so many whole GPUs that may be opened on each node."""
    may_open = ledger.node_free if room is None else np.array(room, np.int32)
    return find_fit(ledger, shape_of(ledger.snapshot, row), may_open, PlacementWeights(), MEMORY)


def names(ledger: WhatIf, fit: Fit | Miss) -> list[str]:
    """The instances of a place."""
    assert isinstance(fit, Fit), fit
    return [ledger.instance_id(row) for row in fit.layout.instance.tolist()]


def placed(ledger: WhatIf, row: int) -> list[str]:
    """Put a gang where it fits, and name its instances."""
    fit = found(ledger, row)
    got = names(ledger, fit)
    assert isinstance(fit, Fit)
    ledger.place(row, fit.layout)
    return got


def asks(name: str, count: int = 1, profile: int = SMALL, **more: Any) -> Any:
    """Work that waits for instances."""
    return waits(name, count, mig_profile=profile, **more)


def test_an_idle_gpu_gives_as_many_instances_as_it_has_room_for() -> None:
    """Seven of the smallest. Then it is no whole GPU any more, and nothing is left."""
    ledger = WhatIf(snapshot("1x2", [asks("a", 7), asks("b"), asks("c", 9)], on_demand={0: ALL}))
    assert isinstance(found(ledger, 2), Miss)
    assert placed(ledger, 0) == [f"GPU-0/1g.10gb@{start}" for start in range(7)]
    assert ledger.node_free.tolist() == [1]
    assert found(ledger, 1) == Miss(Code.MIG_GEOMETRY, 0.0, 1.0)


def test_instances_that_would_overlap_exclude_each_other() -> None:
    """Other profiles get what is left of a GPU."""
    ledger = WhatIf(snapshot("1x1", [asks("a"), asks("b", profile=WIDE), asks("c", profile=WIDE)], on_demand={0: ALL}))
    assert placed(ledger, 0) == ["GPU-0/1g.10gb@0"]
    assert placed(ledger, 1) == ["GPU-0/3g.40gb@4"]
    assert isinstance(found(ledger, 2), Miss)
    ledger.evict(0)
    assert names(ledger, found(ledger, 2)) == ["GPU-0/3g.40gb@0"]


def test_whole_gpus_and_instances_compete() -> None:
    """A GPU that is given out whole gives no instance; one that gives an instance is not given out whole."""
    ledger = WhatIf(snapshot("1x1", [asks("a"), waits("g", 1)], on_demand={0: ALL}))
    mark = ledger.checkpoint()
    placed(ledger, 0)
    assert isinstance(found(ledger, 1), Miss)
    with pytest.raises(InvariantError, match="allocated"):
        ledger.place(1, Layout.whole(np.zeros(1, np.int32)))
    ledger.rollback(mark)
    instance = found(ledger, 0)
    ledger.place(1, Layout.whole(np.zeros(1, np.int32)))
    assert isinstance(found(ledger, 0), Miss)
    assert isinstance(instance, Fit)
    assert not ledger.fits(instance.layout)
    with pytest.raises(InvariantError, match="allocated"):
        ledger.place(0, instance.layout)
    assert ledger.slices_taken.tolist() == [0]


def test_the_same_slices_are_not_allocated_twice() -> None:
    """Neither to two gangs nor to one."""
    ledger = WhatIf(snapshot("1x1", [asks("a"), asks("b"), asks("c", 2)], on_demand={0: ALL}))
    fit = found(ledger, 0)
    assert isinstance(fit, Fit)
    twice = fit.layout.joined(fit.layout)
    assert not ledger.fits(twice)
    with pytest.raises(InvariantError, match="allocated twice"):
        ledger.place(2, twice)
    ledger.place(0, fit.layout)
    assert not ledger.fits(fit.layout)
    with pytest.raises(InvariantError, match="allocated twice"):
        ledger.place(1, fit.layout)


def test_a_gpu_that_is_cut_already_comes_first_and_idle_ones_only_as_far_as_there_is_room() -> None:
    """Room that is held for others is not opened. The rest of a cut GPU is no room for whole GPUs anyway."""
    work = [holds("i", 1, on=[0], mig_profile=SMALL), asks("a"), asks("b", 7)]
    rest = on_demand_bits(MODELS[0], [("1g.10gb", 0)])
    ledger = WhatIf(snapshot("1x3", work, cuts={1: [("1g.10gb", 0)]}, on_demand={0: ALL, 1: rest, 2: ALL}))
    assert names(ledger, found(ledger, 1)) == ["GPU-1/1g.10gb@1"]
    assert isinstance(found(ledger, 2, [0]), Miss)
    assert {name[:5] for name in names(ledger, found(ledger, 2, [1]))} == {"GPU-1", "GPU-0"}
    assert isinstance(found(ledger, 1, [0]), Fit)


def test_an_instance_that_ends_with_its_claim_is_never_free() -> None:
    """Not when the what-if evicts its holder, and not while no pod of its claim is seen."""
    cuts = {0: [("1g.10gb", 0), ("1g.10gb", 1)]}
    work = [holds("i", 1, on=[0], mig_profile=SMALL), asks("a")]
    assert names(WhatIf(snapshot("1x1", work, cuts=cuts)), found(WhatIf(snapshot("1x1", work, cuts=cuts)), 1)) == [
        "GPU-0/8"
    ]
    ledger = WhatIf(snapshot("1x1", work, cuts=cuts, on_demand={0: 0}))
    assert isinstance(found(ledger, 1), Miss)
    ledger.evict(0)
    assert isinstance(found(ledger, 1), Miss)


@pytest.mark.parametrize(
    "unfit",
    [{"unhealthy": [0]}, {"recuts": {0: 1}}, {"nodes": {"cordoned": [True]}}, {"nodes": {"ready": [False]}}],
    ids=["GPU unhealthy", "geometry changes", "node cordoned", "node not ready"],
)
def test_nothing_is_made_where_nothing_may_start(unfit: dict[str, Any]) -> None:
    """As for instances that exist."""
    assert isinstance(found(WhatIf(snapshot("1x1", [asks("a")], on_demand={0: ALL}, **unfit)), 0), Miss)


def test_nothing_is_made_on_a_gpu_that_is_set_aside() -> None:
    """Its geometry changes, or is not known."""
    ledger = WhatIf(snapshot("1x1", [asks("a")], on_demand={0: ALL}))
    ledger.set_aside(np.zeros(1, np.int32))
    assert isinstance(found(ledger, 0), Miss)


def test_the_instances_of_one_member_lie_on_one_node() -> None:
    """Two nodes with one place each do not take a member of two."""
    one = on_demand_bits(MODELS[0], only=[("1g.10gb", 3)])
    two = on_demand_bits(MODELS[0], only=[("1g.10gb", 3), ("1g.10gb", 4)])
    pair = [asks("a", 2)]
    apart = snapshot("2x1", pair, on_demand={0: one, 1: one})
    apart.workloads.gpus_per_member[:] = 2
    assert isinstance(found(WhatIf(apart), 0), Miss)
    together = snapshot("2x1", pair, on_demand={0: one, 1: two})
    together.workloads.gpus_per_member[:] = 2
    ledger = WhatIf(together)
    assert names(ledger, found(ledger, 0)) == ["GPU-1/1g.10gb@3", "GPU-1/1g.10gb@4"]


def test_a_place_has_its_name_as_long_as_it_is_open() -> None:
    """Slots of a decision are found again in the next snapshot, or not at all."""
    seen = snapshot("1x2", [asks("a")], on_demand={1: ALL})
    ledger = WhatIf(seen)
    (name,) = names(ledger, found(ledger, 0))
    slot = (Slot("node-0", "GPU-1", name, 0),)
    layout = Lookup(seen).layout(slot)
    assert layout is not None
    assert ledger.fits(layout)
    closed: ClusterSnapshot = snapshot(
        "1x2", [asks("a")], on_demand={1: on_demand_bits(MODELS[0], [("1g.10gb", 0)])}, cuts={1: [("1g.10gb", 0)]}
    )
    assert Lookup(closed).layout(slot) is None


def test_media_engines_are_given_out_once() -> None:
    """Two instances with them do not overlap in memory, and exclude each other."""
    model = gpu_model("H100-80GB")
    media = [each for each in model.profiles if each.media_extension]
    assert media
    seen = snapshot("1x1", [asks("a", 2)], on_demand={0: on_demand_bits(model.name)}, nodes={"gpu_model": [1]})
    named: ClusterSnapshot = _with_profile(seen, media[0].name)
    assert isinstance(found(WhatIf(named), 0), Miss)
    named.workloads.gpus[:] = 1
    assert isinstance(found(WhatIf(named), 0), Fit)


def _with_profile(seen: ClusterSnapshot, profile: str) -> ClusterSnapshot:
    """The snapshot with another name for the smallest profile."""
    profiles = (profile, *seen.names.profiles[1:])
    return replace(seen, names=replace(seen.names, profiles=profiles))
