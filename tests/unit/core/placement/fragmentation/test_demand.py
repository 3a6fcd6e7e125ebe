"""Demand in the order of packing, and what the limits of queues leave of it."""

from __future__ import annotations

from autopilot.core.model.snapshot import Topology
from autopilot.core.placement.fragmentation.demand import limit_room
from autopilot.core.placement.fragmentation.measure import QUOTA, stranded_pending
from autopilot.core.placement.whatif import WhatIf
from tests.kits.core_world import Item, holds, queue_tree, snapshot, waits


def fits_gpus(shape: str, *work: Item) -> float:
    """GPUs of the pending work that fit as they are."""
    snap = snapshot(shape, work)
    return stranded_pending(snap, WhatIf(snap)).fits_gpus


def test_the_largest_gangs_are_packed_first() -> None:
    """A node of 8 GPUs takes the gang of 8, and none of the small ones that wait beside it."""
    small = [waits(f"small{number}", 1) for number in range(4)]
    assert fits_gpus("1x8", waits("large", 8), *small) == 8.0


def test_members_that_are_spread_need_a_node_each() -> None:
    """Two members do not fit on one node, however many of its GPUs are free."""
    spread = waits("spread", 2, gpus_per_member=1, topology=Topology.SPREAD)
    assert fits_gpus("1x8", spread) == 0.0
    assert fits_gpus("2x8", spread) == 2.0


def test_what_a_queue_uses_counts_against_its_limit() -> None:
    """Four GPUs are free and suit the gang; its queue holds all that its limit allows."""
    queues = queue_tree(("a", 0, 4))
    snap = snapshot("1x8", [holds("holds", 4, queue=1), waits("waits", 4, queue=1)], queues=queues)
    lost = stranded_pending(snap, WhatIf(snap))
    assert lost.fits_gpus == 0.0
    assert dict(lost.by_cause)[QUOTA] == 4.0


def test_a_queue_has_no_more_room_than_the_queues_below_it() -> None:
    """The root has no limit, and its two queues have two GPUs each."""
    queues = queue_tree(("a", 0, 2), ("b", 0, 2))
    assert limit_room(snapshot("1x8", queues=queues)) == 4.0
    assert limit_room(snapshot("1x8", [holds("holds", 1, queue=1)], queues=queues)) == 3.0
    assert limit_room(snapshot("1x8")) == float("inf")
