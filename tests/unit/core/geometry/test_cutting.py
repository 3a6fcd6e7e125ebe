"""The choice of new cuts: what pays, in which order, and what is never touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.geometry.cutting import Cut, PoolState, Prices, Wishes, chances_of, choose_cuts, worth_table
from autopilot.core.geometry.layouts import bits_of, layouts_of, placements_of
from autopilot.core.hardware import mig

A100 = mig.gpu_model("A100-80GB")
SHELF = layouts_of(A100.name, A100.core_profiles)
ONE, TWO, THREE, FOUR, SEVEN = range(5)
SHARES = np.array([1, 2, 3, 4, 7]) * 600.0
PRICES = Prices(instance_s=60.0)

Gpu = tuple[Sequence[tuple[str, int]], Sequence[tuple[str, int]]]


def pool(*gpus: Gpu, **columns: object) -> PoolState:
    """GPUs as (used, free) placements."""
    count = len(gpus)
    given_columns = {
        "whole": np.zeros(count, np.bool_),
        "may_change": np.ones(count, np.bool_),
        "barred": np.full(count, -1, np.int64),
        "movable": np.zeros(count, np.int64),
        "coming": np.zeros(5, np.int64),
    } | columns
    used = np.array([bits_of(A100, each[0]) for each in gpus], np.int64)
    free = np.array([bits_of(A100, each[1]) for each in gpus], np.int64)
    return PoolState(used, free, **given_columns)  # type: ignore[arg-type]


def wants(counts: dict[int, int], chances: Sequence[Sequence[float]] = (), **more: object) -> Wishes:
    """This many instances wait, by profile."""
    pending = np.array([counts.get(profile, 0) for profile in range(5)], np.int64)
    table = np.array(chances, float) if len(chances) else np.zeros((5, 0))
    return Wishes(pending, table, SHARES, **more)  # type: ignore[arg-type]


def after(cut: Cut) -> Counter[str]:
    """The free instances of a change, by profile."""
    return Counter(place.profile for place in placements_of(A100, cut.after))


SEVEN_FREE: Gpu = ((), [("7g.80gb", 0)])
EMPTY: Gpu = ((), ())


def test_a_free_instance_is_cut_for_what_waits() -> None:
    """A free 7g becomes two 3g."""
    found = choose_cuts(SHELF, pool(SEVEN_FREE), wants({THREE: 2}), PRICES, most=8)
    assert [after(cut) for cut in found.changes] == [Counter({"3g.40gb": 2})]
    assert found.complete


def test_nothing_changes_when_free_instances_suffice() -> None:
    """Free instances of the profile serve what waits."""
    found = choose_cuts(SHELF, pool(SEVEN_FREE, SEVEN_FREE), wants({SEVEN: 2}), PRICES, most=8)
    assert found.changes == ()


def test_few_gpus_change() -> None:
    """Four 1g and a 3g fit on one of the GPUs."""
    found = choose_cuts(SHELF, pool(*[SEVEN_FREE] * 4), wants({ONE: 4, THREE: 1}), PRICES, most=8)
    assert len(found.changes) == 1


def test_an_instance_in_use_is_never_destroyed() -> None:
    """A 1g in use at slice 0 leaves room for a 3g at 4 only."""
    state = pool(([("1g.10gb", 0)], [("2g.20gb", 4)]))
    found = choose_cuts(SHELF, state, wants({THREE: 2}), PRICES, most=8)
    assert [("3g.40gb", 4) in placements_of(A100, cut.after) for cut in found.changes] == [True]
    assert after(found.changes[0])["3g.40gb"] == 1


def test_the_gpu_with_most_in_use_changes_first() -> None:
    """An empty GPU stays whole for something large."""
    state = pool(EMPTY, ([("4g.40gb", 0)], ()))
    found = choose_cuts(SHELF, state, wants({TWO: 1}), PRICES, most=8)
    assert [cut.gpu for cut in found.changes] == [1]


def test_a_change_that_costs_more_than_it_gains_is_not_made() -> None:
    """The gain exceeds the price by the margin, or nothing changes."""
    state = pool(SEVEN_FREE)
    assert not choose_cuts(SHELF, state, wants({ONE: 1}), Prices(instance_s=600.0), most=8).changes
    assert not choose_cuts(SHELF, state, wants({ONE: 1}), Prices(instance_s=500.0, margin_ratio=0.5), most=8).changes
    assert choose_cuts(SHELF, state, wants({ONE: 1}), Prices(instance_s=500.0), most=8).changes


def test_the_chance_of_a_request_is_weighed() -> None:
    """A 7g that is likely to be asked for is not cut for a 2g that is not."""
    likely = [[0.0], [0.2], [0.0], [0.0], [0.9]]
    assert not choose_cuts(SHELF, pool(SEVEN_FREE), wants({}, likely), PRICES, most=8).changes
    unlikely = [[0.0], [0.9], [0.0], [0.0], [0.1]]
    assert after(choose_cuts(SHELF, pool(SEVEN_FREE), wants({}, unlikely), PRICES, most=8).changes[0])["2g.20gb"]


def test_what_is_coming_counts_as_free() -> None:
    """A change under way is not made twice."""
    coming = np.array([0, 0, 2, 0, 0])
    assert not choose_cuts(SHELF, pool(SEVEN_FREE, coming=coming), wants({THREE: 2}), PRICES, most=8).changes


def test_a_gpu_does_not_return_to_the_geometry_that_it_left() -> None:
    """Two shapes are not swapped back and forth."""
    state = pool(SEVEN_FREE, barred=np.array([bits_of(A100, [("3g.40gb", 0), ("3g.40gb", 4)])]))
    assert not choose_cuts(SHELF, state, wants({THREE: 2}), PRICES, most=8).changes


def test_a_gpu_that_may_not_change_stays() -> None:
    """Another GPU changes instead."""
    state = pool(SEVEN_FREE, SEVEN_FREE, may_change=np.array([False, True]))
    assert [cut.gpu for cut in choose_cuts(SHELF, state, wants({THREE: 4}), PRICES, most=8).changes] == [1]


def test_work_moves_to_make_room_where_moves_are_priced() -> None:
    """A 1g sits where the 3g goes; another GPU has a free 1g."""
    blocked: Gpu = ([("4g.40gb", 0), ("1g.10gb", 4)], ())
    other: Gpu = ([("4g.40gb", 0)], [("1g.10gb", 4)])
    state = pool(
        blocked, other, movable=np.array([bits_of(A100, [("1g.10gb", 4)]), 0]), may_change=np.array([True, False])
    )
    assert not choose_cuts(SHELF, state, wants({THREE: 1}), PRICES, most=8).changes
    found = choose_cuts(SHELF, state, wants({THREE: 1}), Prices(60.0, move_s=90.0), most=8)
    assert [placements_of(A100, cut.moved) for cut in found.changes] == [(("1g.10gb", 4),)]
    alone = pool(blocked, movable=state.movable[:1])
    assert not choose_cuts(SHELF, alone, wants({THREE: 1}), Prices(60.0, move_s=90.0), most=8).changes


def test_mig_mode_is_switched_when_that_pays() -> None:
    """Both ways, only where the scope is supported."""
    state = pool(EMPTY, whole=np.array([True]))
    assert not choose_cuts(SHELF, state, wants({THREE: 2}), PRICES, most=8).changes, "the scope is not supported"
    switch = Prices(60.0, switch_s=120.0)
    assert [cut.switches for cut in choose_cuts(SHELF, state, wants({THREE: 2}), switch, most=8).changes] == [1]
    needed = wants({THREE: 2}, whole_gpu_s=np.array([9000.0]))
    assert not choose_cuts(SHELF, state, needed, switch, most=8).changes, "the whole GPU is worth more"
    idle = pool(SEVEN_FREE)
    assert [cut.switches for cut in choose_cuts(SHELF, idle, needed_whole(), switch, most=8).changes] == [-1]


def needed_whole() -> Wishes:
    """A whole GPU is wanted."""
    return wants({}, whole_gpu_s=np.array([9000.0]))


def test_the_search_says_that_it_ended_early() -> None:
    """A bound on changes or on steps is reported."""
    state = pool(*[SEVEN_FREE] * 8)
    assert not choose_cuts(SHELF, state, wants({THREE: 9}), PRICES, most=2).complete
    short = choose_cuts(SHELF, state, wants({THREE: 9}), PRICES, most=8, steps=SHELF.bits.size + 1)
    assert len(short.changes) == 1
    assert not short.complete


def test_chances_between_quantiles() -> None:
    """Linear between two quantiles, nothing beyond the highest, nothing from NaN."""
    chances = chances_of((0.5, 0.9), np.array([[2.0, 4.0], [np.nan, np.nan], [0.0, 1.0]]))
    assert chances.tolist() == [
        [0.75, 0.5, pytest.approx(0.3), pytest.approx(0.1)],
        [0.0] * 4,
        [pytest.approx(0.1), 0, 0, 0],
    ]


def test_worth_is_concave() -> None:
    """What waits counts in full, what is expected by its chance."""
    table = worth_table(wants({ONE: 2}, [[0.5, 0.1], *[[0.0, 0.0]] * 4]))
    assert table[ONE].tolist() == [0.0, 600.0, 1200.0, 1500.0, 1560.0]


placements = st.sampled_from([tuple(sorted(each)) for each in mig.all_sets(A100)])


@given(
    st.lists(st.tuples(placements, st.integers(0, 127)), min_size=1, max_size=5),
    st.lists(st.integers(0, 4), min_size=5, max_size=5),
)
@settings(max_examples=150, deadline=None)
def test_every_change_is_legal_and_spares_what_is_in_use(
    gpus: list[tuple[tuple[mig.Placement, ...], int]], pending: list[int]
) -> None:
    """Whatever the pool looks like."""
    state = pool(
        *[
            ([p for i, p in enumerate(each) if mask >> i & 1], [p for i, p in enumerate(each) if not mask >> i & 1])
            for each, mask in gpus
        ]
    )
    found = choose_cuts(SHELF, state, wants(dict(enumerate(pending))), PRICES, most=8)
    assert len({cut.gpu for cut in found.changes}) == len(found.changes)
    for cut in found.changes:
        assert mig.is_legal(A100, placements_of(A100, int(state.used[cut.gpu]) | cut.after))
        assert not int(state.used[cut.gpu]) & cut.after
        assert cut.gain_gpu_s > cut.price_gpu_s > 0
