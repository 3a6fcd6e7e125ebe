"""Where the capacity went: the parts by hand, and the bound against an allocation second by second."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopilot.core.model.objects import Share, Trust
from simulator.outcome.real_use import Occupancy, real_use
from simulator.outcome.shareable import Piece, Rule, Sharable, packed, sharable_work, shared_bound
from simulator.outcome.spans import sums_of
from simulator.world.sharing import Unknown
from simulator.world.work import Jobs
from tests.kits.cluster_kit import gang

NO_DEMAND = sums_of([], 100.0)


def test_the_parts_add_up_to_the_capacity_by_hand() -> None:
    """Four GPUs for 100 s: a job that starts up for 10 s, an owner who is away from 50 s on, and 1 GPU wanted."""
    stays = [
        Occupancy("a", 0.0, 10.0, 60.0, 2.0, 0.8),
        Occupancy("b", 20.0, 20.0, 200.0, 1.0, 0.5, [(50.0, inf)]),
    ]
    waiting = sums_of([(0.0, 1.0), (30.0, -1.0)], 100.0)
    found = real_use(stays, waiting, [], {"b": 1.0}, 4.0, 100.0)
    assert found.capacity_gpu_s == 400
    assert found.active_gpu_s == pytest.approx(50 * 2 * 0.8 + 30 * 0.5)
    assert found.low_activity_gpu_s == pytest.approx(50 * 2 * 0.2 + 30 * 0.5)
    assert found.start_up_gpu_s == 10 * 2
    assert (found.away_guaranteed_gpu_s, found.away_borrowed_gpu_s) == (50, 0)
    assert found.free_wanted_gpu_s == 30
    assert found.free_gpu_s == 400 - 60 * 2 - 80 - 30


@pytest.mark.parametrize(("guarantee", "borrowed"), [(0.0, 30.0), (1.0, 10.0), (2.0, 0.0)])
def test_what_a_queue_borrows_counts_as_idle_first(guarantee: float, borrowed: float) -> None:
    """A queue holds two GPUs for 10 s and one for 10 s more, and the owner of the longer work is away for 30 s."""
    stays = [
        Occupancy("q", 0.0, 0.0, 30.0, 1.0, 1.0, [(0.0, 30.0)]),
        Occupancy("q", 10.0, 10.0, 20.0, 1.0, 1.0),
    ]
    found = real_use(stays, NO_DEMAND, [], {"q": guarantee}, 4.0, 100.0)
    assert (found.away_borrowed_gpu_s, found.away_guaranteed_gpu_s) == (borrowed, 30 - borrowed)
    assert found.active_gpu_s == 10


def test_time_after_the_last_arrival_does_not_count() -> None:
    """Neither held nor free time, and no work of the bound."""
    stays = [Occupancy("q", 90.0, 120.0, 500.0, 1.0, 1.0)]
    found = real_use(stays, NO_DEMAND, [Piece(90.0, 500.0, 1.0, 1.0), Piece(100.0, 200.0, 1.0, 1.0)], {}, 1.0, 100.0)
    assert (found.start_up_gpu_s, found.active_gpu_s, found.free_gpu_s) == (10, 0, 90)
    assert (found.bound_active_gpu_s, found.bound_free_gpu_s) == (10, 90)


def test_the_bound_runs_the_most_active_work_first() -> None:
    """Two jobs of 60 s on one GPU within 100 s: all of the active one, 40 s of the other."""
    offers = [Piece(0.0, 60.0, 1.0, 0.25), Piece(0.0, 60.0, 1.0, 0.75)]
    found = real_use([], NO_DEMAND, offers, {}, 1.0, 100.0)
    assert found.bound_active_gpu_s == pytest.approx(60 * 0.75 + 40 * 0.25)
    assert found.bound_low_activity_gpu_s == pytest.approx(60 * 0.25 + 40 * 0.75)


DEV = Sharable(Rule.SHARES, memory=0.2, most=4)
HALF = Sharable(Rule.SHARES, memory=0.6, most=2)


@pytest.mark.parametrize(
    ("sharable", "level", "count", "most"),
    [
        (DEV, 0.1, 4, 0.4),  # four by their number
        (DEV, 0.1, 9, 0.4),
        (DEV, 0.5, 3, 1.0),  # two by their activity
        (HALF, 0.4, 4, 0.67),  # their memory leaves no whole second one
        (Sharable(Rule.TRUST), 0.4, 4, 0.4),
    ],
)
def test_the_bound_with_shared_gpus_packs_by_memory_activity_and_number(
    sharable: Sharable, level: float, count: int, most: float
) -> None:
    """One GPU for 100 s, and work that is there all the time."""
    pieces = [Piece(0.0, 100.0, 1.0, level, sharable)] * count
    assert shared_bound(pieces, 1.0, 100.0) == pytest.approx(100 * most, rel=0.05)
    assert shared_bound(pieces, 1.0, 100.0) >= real_use([], NO_DEMAND, pieces, {}, 1.0, 100.0).bound_active_gpu_s - 1e-6


def test_the_mix_of_all_work_is_packed_in_proportion() -> None:
    """Ten development jobs and five GPUs of training on five GPUs: alone a third runs, packed two in three."""
    pieces = [Piece(0.0, 500.0, 1.0, 0.1, DEV)] * 10 + [Piece(0.0, 500.0, 5.0, 0.8)]
    assert packed(pieces, 5.0, 100.0, shares=False) == pytest.approx(500 * (10 * 0.1 + 5 * 0.8) / 15)
    assert packed(pieces, 5.0, 100.0) == pytest.approx(500 * (10 * 0.1 + 5 * 0.8) / 7.5)


def test_the_first_reason_against_sharing_is_named() -> None:
    """Class before trust before width before memory; the parts of the under-driven time add up."""
    jobs = Jobs()
    rows = [(1, Trust.UNTRUSTED, Share.NEVER), (1, Trust.UNTRUSTED, Share.DEV), (8, Trust.TRUSTED, Share.PAIR)]
    rows += [(1, Trust.TRUSTED, Share.PAIR), (1, Trust.TRUSTED, Share.DEV)]
    for at, (gpus, trust, share) in enumerate(rows):
        jobs.add(f"j{at}", "t", gang(gpus), 0.0, 100.0, trust=trust, share=share)
    found = [each.rule for each in sharable_work(jobs, Footprints(), "H100-80GB")]
    assert found == [Rule.CLASS, Rule.TRUST, Rule.WIDTH, Rule.MEMORY, Rule.SHARES]
    stays = [Occupancy("t", 0.0, 0.0, 10.0, 1.0, 0.25, rule=rule) for rule in found]
    used = real_use(stays, NO_DEMAND, [], {}, 8.0, 100.0)
    parts = (used.low_class_gpu_s, used.low_trust_gpu_s, used.low_width_gpu_s, used.low_memory_gpu_s)
    assert parts == (7.5, 7.5, 7.5, 7.5)
    assert used.low_activity_gpu_s == pytest.approx(sum(parts) + used.low_shares_gpu_s)


class Footprints(Unknown):
    """Job 3 leaves no room for the other."""

    def footprint_mib(self, job: int, _gpu_model: str) -> float:
        """By job."""
        return 80_000.0 if job == 3 else 20_000.0

    def memory_mib(self, _gpu_model: str) -> float:
        """Of one GPU."""
        return 100_000.0


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(1, 8), st.sampled_from([0.0, 0.2, 0.5, 1.0])),
        min_size=1,
        max_size=20,
    )
)
def test_the_bound_is_that_of_a_sweep_by_priority(rows: list[tuple[int, int, int, float]]) -> None:
    """Second by second, levels in descending order use what the higher ones leave, with a backlog for each level."""
    until_s, gpus = 50, 10.0
    backlog: dict[float, float] = {}
    active = served = 0.0
    for second in range(until_s):
        left = gpus
        for level in (1.0, 0.5, 0.2):
            asked = sum(w for at, length, w, its in rows if its == level and at <= second < at + length)
            used = min(left, asked + backlog.get(level, 0.0))
            backlog[level] = backlog.get(level, 0.0) + asked - used
            left -= used
            active, served = active + level * used, served + used
    offers = [Piece(float(at), float(at + length), float(w), level) for at, length, w, level in rows]
    found = real_use([], NO_DEMAND, offers, {}, gpus, float(until_s))
    assert found.bound_active_gpu_s == pytest.approx(active)
    assert found.bound_active_gpu_s + found.bound_low_activity_gpu_s == pytest.approx(served)
