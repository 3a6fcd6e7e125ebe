"""The quota side of a tick: gangs as rule sets see them, and booking what they take and give."""

from __future__ import annotations

import numpy as np
import pytest

from autopilot.core.model.snapshot import ClusterSnapshot, Gate, State
from autopilot.core.placement.whatif import Layout, WhatIf
from autopilot.core.planning.quota_state import Quota, build_quota
from autopilot.core.quota.ledger import ALL
from tests.kits.core_world import AUTO, Item, holds, snapshot, waits
from tests.kits.ticking_world import tenants

TREE = tenants(("x", 0, 4), ("x1", 1, 2), ("b", 0, 0))


def quota_of(work: list[Item], shape: str = "2x8", **more: object) -> tuple[Quota, ClusterSnapshot]:
    """Books of a small world."""
    snap = snapshot(shape, work, queues=TREE, **more)  # type: ignore[arg-type]
    whatif = WhatIf(snap)
    return build_quota(snap, AUTO, whatif, np.zeros(len(snap.workloads.id))), snap


def layout(*gpus: int, milli: int = 1000) -> Layout:
    """Whole GPUs, or shares."""
    return Layout(np.array(gpus, np.int32), np.full(len(gpus), -1, np.int32), np.full(len(gpus), milli, np.int32))


def test_what_is_booked_counts_on_every_level_and_comes_off_again() -> None:
    """A start of a team counts for its organisation and for all; giving it up restores the books."""
    quota, _ = quota_of([waits("w", 4, queue=2), waits("p", 1, queue=2, preemptible=False)])
    before = quota.ledger.saved()
    quota.book(0, layout(0, 1, 2, 3))
    quota.book(1, layout(4))
    assert (quota.ledger.use[ALL], quota.ledger.sheltered[ALL]) == ([5.0, 5.0, 5.0, 0.0], [1.0, 1.0, 1.0, 0.0])
    quota.book(0, layout(0, 1, 2, 3), -1)
    quota.book(1, layout(4), -1)
    assert (quota.ledger.use, quota.ledger.sheltered, quota.ledger.host_use) == before


def test_a_gang_on_two_models_counts_in_both() -> None:
    """Each of its GPUs is booked as the model that it is."""
    quota, _ = quota_of([waits("w", 4, queue=3)], nodes={"gpu_model": [0, 1]})
    quota.book(0, layout(6, 7, 8))
    assert [kind[3] for kind in quota.ledger.use[:3]] == [3.0, 2.0, 1.0]


def test_shares_and_instances_are_their_parts() -> None:
    """Two shares of 300 thousandths are .6, an instance 1."""
    quota, _ = quota_of(
        [waits("s", 2, queue=3, gpu_milli=300), waits("m", 1, queue=3, mig_profile=0)],
        "1x4",
        cuts={3: [("1g.10gb", 0)]},
    )
    quota.book(0, layout(0, 0, milli=300))
    quota.book(1, Layout(np.array([3], np.int32), np.array([0], np.int32), np.array([0], np.int32)))
    assert quota.ledger.use[ALL][3] == pytest.approx(1.6)
    claim = quota.claim(0, 2)
    assert (claim.gpus, claim.member_gpus) == (0.6, 0.3)


def test_what_is_being_given_up_is_not_given_up_twice() -> None:
    """Entries that leave already do not count, and taking the gang off books only what counted."""
    quota, _ = quota_of([holds("v", 8, queue=3, state=State.CHECKPOINTING)])
    assert quota.ledger.use[ALL][3] == 0.0
    quota.book(0, layout(*range(8)), -1)
    assert quota.ledger.use[ALL][3] == 0.0


def test_an_empty_layout_changes_nothing() -> None:
    """Who keeps nothing is booked as nothing."""
    quota, _ = quota_of([waits("w", 4, queue=3)], nodes={"gpu_model": [0, 1]})
    quota.book(0, layout())
    assert quota.ledger.use[ALL] == [0.0] * 4


def test_who_may_be_asked_to_give_way() -> None:
    """Running and starting gangs; not those that leave, are stuck, opted out, wait, or are in the plan already."""
    work = [
        holds("r", 2, queue=2),
        holds("s", 1, queue=2, state=State.STARTING),
        holds("c", 1, queue=2, state=State.CHECKPOINTING),
        holds("k", 1, queue=2, stuck=True),
        holds("o", 1, queue=2, excluded=True),
        waits("w", 1, queue=2),
        holds("g", 1, queue=3),
    ]
    quota, snap = quota_of(work)
    quota.leaving.add(6)
    assert [str(snap.workloads.id[claim.row]) for claim in quota.running()] == ["r", "s"]


def test_a_running_gang_offers_what_it_holds() -> None:
    """Its width is what it holds now, its minimum and member as stated: elastic as long as it is above its minimum."""
    quota, _ = quota_of(
        [
            holds("e", 8, on=[0, 1, 2, 3], queue=2, min_gpus=2, gpus_per_member=2),
            holds("n", 2, on=[8, 9], queue=2, gpus_per_member=2),
        ]
    )
    elastic, narrow = quota.running()
    assert (elastic.gpus, elastic.least_gpus, elastic.member_gpus, elastic.elastic) == (4.0, 2.0, 2.0, True)
    assert not narrow.elastic


def test_work_that_is_switched_off_is_no_demand() -> None:
    """A gang that a check rejected raises no fair share."""
    open_quota, _ = quota_of([waits("w", 16, queue=3), waits("a", 16, queue=1)])
    shut_quota, _ = quota_of([waits("w", 16, queue=3, gate=Gate.REJECTED), waits("a", 16, queue=1)])
    assert open_quota.ledger.fair[ALL][3] == 6.0
    assert (shut_quota.ledger.fair[ALL][3], shut_quota.ledger.fair[ALL][1]) == (0.0, 16.0)
