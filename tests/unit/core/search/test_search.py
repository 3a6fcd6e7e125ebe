"""The victims that let a gang fit: hand-made cases with one right answer each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from autopilot.core.placement.whatif import Layout
from autopilot.core.quota.rules.base import RankedTarget, Target
from autopilot.core.search.victim_order import in_order, one_wide, taken, without_needless
from tests.kits.core_world import Item, holds
from tests.kits.victims_world import VictimsWorld, bid, victims_world


def full_nodes(*lost: float, width: int = 8) -> tuple[list[Item], list[tuple[str, float]]]:
    """One gang of `width` on each node, named n0, n1, ..., and what each would lose."""
    names = [f"n{number}" for number in range(len(lost))]
    work = [holds(name, width, on=range(8 * node, 8 * node + width)) for node, name in enumerate(names)]
    return work, list(zip(names, lost, strict=True))


def test_nobody_is_taken_for_a_gang_that_fits() -> None:
    """Room is there: an empty answer, not None."""
    assert victims_world("1x8", [holds("a", 4)], need=4).chosen([bid("a", 1.0)]) == {}


def test_there_is_no_answer_when_all_together_make_no_room() -> None:
    """`b` is not offered: its node cannot be cleared."""
    world = victims_world("1x8", [holds("a", 4), holds("b", 4)], need=8)
    assert world.chosen([bid("a", 1.0)]) is None
    assert world.chosen([]) is None


def test_on_one_node_the_least_lost_work_goes_not_the_fewest_gangs() -> None:
    """Two cheap gangs of two beside one dear gang of four; what is not needed stays."""
    work = [holds("wide", 4), holds("s1", 2), holds("s2", 2)]
    world = victims_world("1x8", work, need=4)
    assert world.chosen([bid("wide", 1000.0), bid("s1", 300.0), bid("s2", 400.0)]) == {"s1": 2, "s2": 2}
    assert world.chosen([bid("wide", 600.0), bid("s1", 300.0), bid("s2", 400.0)]) == {"wide": 4}


def test_a_gpu_counts_at_least_one_gpu_second() -> None:
    """Of two that lose nothing the narrower goes."""
    world = victims_world("2x8", [holds("wide", 8), holds("narrow", 5), holds("rest", 3)], need=5)
    assert world.chosen([bid("wide", 0.0), bid("narrow", 0.0)]) == {"narrow": 5}


def test_the_cheapest_nodes_are_cleared_for_a_gang_of_several() -> None:
    """Three of five nodes, by what they lose."""
    work, lost = full_nodes(500.0, 100.0, 400.0, 200.0, 300.0)
    world = victims_world("5x8", work, need=24, member=8)
    assert world.chosen([bid(*each) for each in lost]) == {"n1": 8, "n3": 8, "n4": 8}


def test_free_gpus_are_used_first() -> None:
    """A dear gang on a node that is half free is cheaper than two that fill a node."""
    work = [holds("half", 4, on=range(4)), holds("a", 4, on=range(8, 12)), holds("b", 4, on=range(12, 16))]
    world = victims_world("2x8", work, need=8)
    assert world.chosen([bid("half", 500.0), bid("a", 300.0), bid("b", 300.0)]) == {"half": 4}


def test_a_gang_over_two_nodes_serves_both() -> None:
    """Alone it is dearer than either of its rivals; for two nodes it is cheaper than both together."""
    work = [
        holds("both", 8, on=[0, 1, 2, 3, 8, 9, 10, 11], gpus_per_member=4),
        holds("a", 4, on=range(4, 8)),
        holds("b", 4, on=range(12, 16)),
        holds("c", 8, on=range(16, 24)),
        holds("d", 8, on=range(24, 32)),
    ]
    lost = [bid("both", 500.0), bid("a", 10.0), bid("b", 10.0), bid("c", 400.0), bid("d", 400.0)]
    assert victims_world("4x8", work, need=8, member=8).chosen(lost) == {"c": 8}
    assert victims_world("4x8", work, need=16, member=8).chosen(lost) == {"both": 8, "a": 4, "b": 4}


def test_an_elastic_gang_gives_members_before_gangs_go() -> None:
    """Two of its members are enough; for more than it can spare all of it goes."""
    work = [holds("elastic", 6, on=range(6), gpus_per_member=1, min_gpus=4), holds("other", 2, on=[6, 7])]
    lost = [bid("elastic", 600.0), bid("other", 250.0)]
    assert victims_world("1x8", work, need=2).chosen(lost) == {"elastic": 2}
    assert victims_world("1x8", work, need=4).chosen(lost) == {"elastic": 2, "other": 2}
    assert victims_world("1x8", work, need=6).chosen(lost) == {"elastic": 6}


def test_members_leave_where_leaving_order_says_not_where_it_would_suit() -> None:
    """The first member to go is on the node with more room: the other node cannot be had without the whole gang."""
    work = [
        holds("elastic", 8, on=[0, 1, 2, 3, 8, 9, 10, 11], gpus_per_member=4, min_gpus=4),
        holds("a", 4, on=range(4, 8)),
        holds("b", 3, on=range(12, 15)),
    ]
    world = victims_world("2x8", work, need=8)
    assert world.chosen([bid("elastic", 800.0), bid("a", 10.0), bid("b", 200.0)]) == {"elastic": 4, "b": 3}


def test_a_lower_rank_goes_first_whatever_it_loses() -> None:
    """Rank 1 is spared as long as rank 0 suffices, and then gives as little as it can."""
    work, lost = full_nodes(9000.0, 8000.0, 10.0, 20.0)
    bids = [bid(name, gpu_s, rank) for (name, gpu_s), rank in zip(lost, (0, 0, 1, 1), strict=True)]
    assert victims_world("4x8", work, need=8).chosen(bids) == {"n1": 8}
    assert victims_world("4x8", work, need=16, member=8).chosen(bids) == {"n0": 8, "n1": 8}
    assert victims_world("4x8", work, need=24, member=8).chosen(bids) == {"n0": 8, "n1": 8, "n2": 8}


def test_within_the_needed_ranks_the_highest_loses_least() -> None:
    """Node 0 takes less in all, node 1 less of rank 1."""
    work = [
        holds("low0", 4, on=range(4)),
        holds("high0", 4, on=range(4, 8)),
        holds("low1", 4, on=range(8, 12)),
        holds("high1", 4, on=range(12, 16)),
    ]
    world = victims_world("2x8", work, need=8)
    assert world.chosen([bid("low0", 10.0), bid("low1", 9000.0), bid("high0", 100.0, 1), bid("high1", 90.0, 1)]) == {
        "low1": 4,
        "high1": 4,
    }


def test_what_quotas_forbid_is_left_for_the_next_best() -> None:
    """The cheapest two may not go together; nor may n1 be taken at all."""
    work, lost = full_nodes(100.0, 50.0, 200.0, 300.0)
    world = victims_world("4x8", work, need=16, member=8)
    bids = [bid(*each) for each in lost]
    assert world.chosen(bids, lambda taken: not {"n0", "n1"} <= taken.keys()) == {"n1": 8, "n2": 8}
    assert world.chosen(bids, lambda taken: "n1" not in taken) == {"n0": 8, "n2": 8}
    assert world.chosen(bids, lambda taken: len(taken) < 2) is None


def test_a_higher_rank_is_asked_when_quotas_close_the_lower() -> None:
    """Rank 0 has room enough, and quotas allow only one gang of it."""
    work, lost = full_nodes(100.0, 200.0, 400.0, 300.0)
    bids = [bid(name, gpu_s, rank) for (name, gpu_s), rank in zip(lost, (0, 0, 1, 1), strict=True)]
    world = victims_world("4x8", work, need=16, member=8)
    assert world.chosen(bids, lambda taken: len(taken.keys() & {"n0", "n1"}) < 2) == {"n0": 8, "n3": 8}


def test_a_higher_rank_is_searched_too_where_very_many_are_offered() -> None:
    """The one of seventy that is cheapest beside what quotas allow stands last in the order."""
    work, lost = full_nodes(100.0, 200.0, *[400.0] * 67, 300.0)
    bids = [bid(name, gpu_s, int(place > 1)) for place, (name, gpu_s) in enumerate(lost)]
    world = victims_world("70x8", work, need=16, member=8)
    assert world.chosen(bids, lambda taken: len(taken.keys() & {"n0", "n1"}) < 2) == {"n0": 8, "n69": 8}


def test_more_is_taken_than_the_room_needs_where_a_limit_asks_for_it() -> None:
    """One GPU is missing on the node, but five have to be given up in all: the cheapest five that free that one."""
    work = [
        holds("here", 1, on=[0]),
        holds("four", 4, on=range(8, 12)),
        holds("dear", 4, on=range(12, 16)),
        holds("three", 3, on=range(16, 19)),
        holds("two", 2, on=[19, 20]),
        holds("kept", 3, on=range(21, 24)),
    ]
    world = victims_world("3x8", work, need=8)
    bids = [
        bid("here", 500.0),
        bid("four", 400.0),
        bid("dear", 900.0),
        bid("three", 350.0),
        bid("two", 100.0),
    ]
    assert world.chosen(bids, lambda taken: sum(taken.values()) >= 5) == {"here": 1, "four": 4}
    assert world.chosen(bids, lambda taken: sum(taken.values()) >= 6) == {"here": 1, "three": 3, "two": 2}


def test_some_may_go_only_beside_others() -> None:
    """The cheap strangers are open once the newcomer's own side gave three GPUs: the cheapest way there is found."""
    work, lost = full_nodes(100.0, 150.0, 900.0)
    own = [
        holds("own1", 2, on=[24, 25]),
        holds("own2", 3, on=[26, 27, 28]),
        holds("own3", 3, on=[29, 30, 31]),
    ]
    world = victims_world("4x8", [*work, *own], need=16, member=8)
    bids = [*(bid(*each) for each in lost), bid("own1", 5.0), bid("own2", 40.0), bid("own3", 30.0)]

    def allowed(taken: dict[str, float]) -> bool:
        strangers = taken.keys() & {"n0", "n1", "n2"}
        return not strangers or sum(gpus for name, gpus in taken.items() if name.startswith("own")) >= 3

    # the own node is cheaper than any stranger; with two strangers one own gang has to go beside them
    assert world.chosen(bids, allowed) == {"own1": 2, "own2": 3, "own3": 3, "n0": 8}
    dear_own = [*bids[:3], bid("own1", 500.0), bid("own2", 40.0), bid("own3", 30.0)]
    assert world.chosen(dear_own, allowed) == {"own3": 3, "n0": 8, "n1": 8}
    cheap_third = [bid("n0", 150.0), bid("n1", 100.0), bid("n2", 300.0), *dear_own[3:]]
    assert world.chosen(cheap_third, lambda taken: allowed(taken) and not {"n0", "n1"} <= taken.keys()) == {
        "own3": 3,
        "n1": 8,
        "n2": 8,
    }


def test_a_shared_gpu_is_free_only_when_all_who_hold_it_leave() -> None:
    """Two halves of one GPU go together; a GPU whose other half is not offered is of no use."""
    work = [
        holds("h1", 1, on=[0], gpu_milli=500),
        holds("h2", 1, on=[0], gpu_milli=500),
        holds("h3", 1, on=[1], gpu_milli=500),
        holds("kept", 1, on=[1], gpu_milli=500),
        holds("rest", 6, on=range(2, 8)),
    ]
    world = victims_world("1x8", work, need=1)
    assert world.chosen([bid("h3", 1.0), bid("h1", 50.0), bid("h2", 60.0)]) == {"h1": 0.5, "h2": 0.5}
    assert world.chosen([bid("h3", 1.0), bid("h1", 50.0)]) is None
    assert world.chosen([bid("h1", 50.0), bid("h2", 60.0), bid("rest", 100.0)]) == {"rest": 6}


def test_gangs_on_a_shared_gpu_are_weighed_together() -> None:
    """Each half is cheaper than the gang beside them, both are dearer; a half that cannot be freed does not mislead."""
    work = [
        holds("h1", 1, on=[0], gpu_milli=500),
        holds("h2", 1, on=[0], gpu_milli=500),
        holds("stuck", 1, on=[1], gpu_milli=500),
        holds("kept", 1, on=[1], gpu_milli=500),
        holds("one", 1, on=[2]),
        holds("dear", 1, on=[3]),
        holds("rest", 4),
    ]
    world = victims_world("1x8", work, need=1)
    bids = [bid("dear", 900.0), bid("stuck", 1.0), bid("h1", 60.0), bid("h2", 70.0)]
    assert world.chosen([*bids, bid("one", 100.0)]) == {"one": 1}
    assert world.chosen([*bids, bid("one", 200.0)]) == {"h1": 0.5, "h2": 0.5}


def test_members_stay_inside_one_domain() -> None:
    """The two cheapest nodes are of different leaves, and the first offers are of the dear one."""
    work, lost = full_nodes(900.0, 500.0, 20.0, 100.0, 10.0)
    bids = [bid(*each) for each in lost]
    assert victims_world("5x8", work, need=16, member=8).chosen(bids) == {"n2": 8, "n4": 8}
    world = victims_world("5x8", work, need=16, member=8, domain=[0, 0, 1, 1, 0])
    assert world.chosen(bids) == {"n2": 8, "n3": 8}
    assert world.chosen(bids[:2]) == {"n0": 8, "n1": 8}
    assert world.chosen(bids[1:3]) is None


def test_the_cheapest_of_many_domains_is_found() -> None:
    """100 pairs of nodes; only inside a pair may the gang start."""
    lost = np.random.default_rng(7).permutation(200) * 10.0 + 100.0
    work, named = full_nodes(*lost.tolist())
    world = victims_world("200x8", work, need=16, member=8, domain=[node // 2 for node in range(200)])
    pair = min(range(100), key=lambda each: lost[2 * each] + lost[2 * each + 1])
    assert world.chosen([bid(*each) for each in named]) == {f"n{2 * pair}": 8, f"n{2 * pair + 1}": 8}


def test_a_gang_that_is_to_be_spread_has_one_member_on_a_node() -> None:
    """The cheap node would take both members."""
    work = [holds(name, 4, on=range(4 * part, 4 * part + 4)) for part, name in enumerate("abcdef")]
    bids = [
        bid("e", 900.0),
        bid("a", 10.0),
        bid("b", 20.0),
        bid("c", 300.0),
        bid("d", 200.0),
        bid("f", 800.0),
    ]
    assert victims_world("3x8", work, need=8, member=4).chosen(bids) == {"a": 4, "b": 4}
    assert victims_world("3x8", work, need=8, member=4, spread=True).chosen(bids) == {"a": 4, "d": 4}


def test_nodes_that_do_not_suit_are_not_cleared() -> None:
    """The cheapest node has the wrong GPUs; the first offer is the dearest."""
    work, lost = full_nodes(10.0, 900.0, 20.0)
    bids = [bid(*each) for each in sorted(lost, key=lambda each: -each[1])]
    assert victims_world("3x8", work, need=8, suits=[False, True, True]).chosen(bids) == {"n2": 8}


def test_a_narrower_last_member_may_sit_beside_another() -> None:
    """One member of four and a tail of two: one node with six, or the tail on a node of its own."""
    work = [
        holds("six", 6, on=range(6)),
        holds("x", 2, on=[6, 7]),
        holds("four", 4, on=range(8, 12)),
        holds("y", 4, on=range(12, 16)),
        holds("two", 2, on=[16, 17]),
        holds("z", 6, on=range(18, 24)),
    ]
    world = victims_world("3x8", work, need=6, member=4)
    assert world.chosen([bid("six", 300.0), bid("four", 200.0), bid("two", 50.0)]) == {"four": 4, "two": 2}
    assert world.chosen([bid("six", 200.0), bid("four", 200.0), bid("two", 50.0)]) == {"six": 6}


def test_a_tail_on_free_gpus_does_not_count_twice() -> None:
    """Two GPUs are free beside `a`: taking `a` for the member leaves none of them for the tail."""
    work = [holds("a", 6, on=range(2, 8)), holds("b", 2, on=[8, 9]), holds("c", 6, on=range(10, 16))]
    world = victims_world("2x8", work, need=10, member=8)
    assert world.chosen([bid("a", 10.0)]) is None
    assert world.chosen([bid("a", 10.0), bid("b", 50.0)]) == {"a": 6, "b": 2}
    assert world.chosen([bid("c", 90.0), bid("a", 10.0), bid("b", 50.0)]) == {"a": 6, "b": 2}


def test_a_tail_stays_on_free_gpus_of_a_node_that_could_be_cleared() -> None:
    """Two GPUs are free beside `a`, who need not go: the member takes the node of `b`, not the two of `c`."""
    work = [holds("a", 6, on=range(2, 8)), holds("b", 8, on=range(8, 16)), holds("c", 16, on=range(16, 32))]
    world = victims_world("4x8", work, need=10, member=8)
    assert world.chosen([bid("c", 60.0), bid("a", 80.0), bid("b", 50.0)]) == {"b": 8}


def test_of_equals_the_first_in_the_order_of_mercy_goes() -> None:
    """Both lose the same on nodes that are alike."""
    work, _ = full_nodes(1.0, 1.0, 1.0)
    world = victims_world("3x8", work, need=8)
    assert world.chosen([bid("n2", 100.0), bid("n0", 100.0), bid("n1", 100.0)]) == {"n2": 8}
    assert world.chosen([bid("n1", 100.0), bid("n2", 100.0), bid("n0", 100.0)]) == {"n1": 8}


def test_gangs_count_as_they_stand_on_paper() -> None:
    """`a` was moved to node 1 on the what-if, and only half of it was put back."""
    world = victims_world("2x8", [holds("a", 8, gpus_per_member=4), holds("b", 4, on=range(8, 12))], need=8)
    whatif = world.search.whatif
    whatif.move(0, Layout(np.arange(12, 16, dtype=np.int32), np.full(4, -1, np.int32), np.full(4, 1000, np.int32)))
    world.search.room = np.array([4, 0], np.int32)  # half of node 0 is kept for somebody else
    assert world.chosen([bid("a", 10.0), bid("b", 20.0)]) == {"a": 4, "b": 4}


def test_among_hundreds_of_nodes_the_cheapest_are_found() -> None:
    """300 nodes of distinct prices, cleared by one gang each."""
    lost = np.random.default_rng(5).permutation(300) * 10.0 + 100.0
    work, named = full_nodes(*lost.tolist())
    world = victims_world("300x8", work, need=40, member=8)
    cheapest = sorted(named, key=lambda each: each[1])[:5]
    assert world.chosen([bid(*each) for each in named]) == {name: 8 for name, _ in cheapest}


def test_gangs_of_ranks_that_are_not_needed_do_not_blur_the_search() -> None:
    """Sixty nodes are cleared exactly, though 140 more could be that hold work of a higher rank."""
    rng = np.random.default_rng(38)
    nodes: list[int] = rng.permutation(200).tolist()
    low, high = nodes[:60], nodes[60:]
    work, bids = [], []
    while len(low) > 1:
        mine = [low.pop(0) for _ in range(min(int(rng.integers(1, 4)), len(low)))]
        gpus = [gpu for node in mine for gpu in range(8 * node, 8 * node + 8)]
        work.append(holds(f"low{mine[0]}", len(gpus), on=gpus))
        bids.append(bid(f"low{mine[0]}", float(rng.integers(1, 10_000)), int(rng.integers(0, 2))))
    work += [holds(f"high{node}", 8, on=range(8 * node, 8 * node + 8)) for node in high]
    alone = victims_world("200x8", work, need=48, member=8).chosen(bids)
    assert alone
    bids += [bid(f"high{node}", 5.0, 5) for node in high]
    assert victims_world("200x8", work, need=48, member=8).chosen(bids) == alone


def slow(world: VictimsWorld, refused: set[str]) -> VictimsWorld:
    """Ask something else than GPUs too: no room as long as those of `refused` are there."""
    by_gpus = world.search.fits_on

    def fits(targets: Sequence[Target]) -> bool:
        search = world.search
        return refused <= world.named(targets).keys() and by_gpus(search.takings.free_after(search.room, targets))

    world.search.fits_slowly = fits
    return world


def test_what_gpus_do_not_tell_is_asked_before_anybody_is_taken() -> None:
    """By GPUs `n0` would do; it makes no room in fact. Then offers are taken in order, and needless ones put back."""
    work, lost = full_nodes(100.0, 200.0, 300.0)
    bids = [bid(*each) for each in lost]
    assert slow(victims_world("3x8", work, need=8), {"n0"}).chosen(bids) == {"n0": 8}
    assert slow(victims_world("3x8", work, need=8), {"n1"}).chosen(bids) == {"n1": 8}
    world = slow(victims_world("3x8", work, need=8), {"n2"})
    world.search.by_gpus = False
    assert world.chosen(bids) == {"n2": 8}
    assert slow(victims_world("3x8", work, need=8), {"absent"}).chosen(bids) is None


def singles(count: int) -> list[RankedTarget]:
    """Offers of one GPU each, all alike."""
    return [RankedTarget(Target(row, 1.0, whole=True), 0, 1.0, 0) for row in range(count)]


def test_the_shortest_beginning_of_an_order_is_found_in_few_questions() -> None:
    """Doubling and halving: 700 of 1,000 in about twenty questions."""
    asked: list[int] = []

    def enough(targets: Sequence[Target]) -> bool:
        asked.append(len(targets))
        return len(targets) >= 700

    assert in_order(singles(1000), enough) == list(range(700))
    assert len(asked) <= 22


def test_an_order_of_which_only_a_part_is_allowed_is_tried_from_its_beginning() -> None:
    """Three suffice and four are too many; of long orders only some beginnings are tried."""
    ranked_targets = singles(200)
    assert in_order(ranked_targets, lambda targets: len(targets) == 3) == [0, 1, 2]
    assert in_order(ranked_targets, lambda targets: len(targets) == 128) == list(range(128))
    assert in_order(ranked_targets, lambda targets: len(targets) == 100) is None
    assert in_order(ranked_targets, lambda targets: False) is None


def test_a_donor_with_little_to_spare_may_give_a_wide_gang_last() -> None:
    """Five GPUs are to spare: no beginning of the order gives twenty, one of four and then one of sixteen do; the
    cheaper one.
    """
    widths, prices = [4, 4, 16, 4, 16], [9.0, 2.0, 30.0, 1.0, 20.0]
    ranked_targets = [
        RankedTarget(Target(row, float(gpus), whole=True), 0, price, 1)
        for row, (gpus, price) in enumerate(zip(widths, prices, strict=True))
    ]

    def allowed(targets: Sequence[Target]) -> bool:
        given = sorted(target.gpus for target in targets)
        return all(sum(given[:at]) < 5.0 for at in range(len(given)))

    def enough(targets: Sequence[Target]) -> bool:
        return allowed(targets) and sum(target.gpus for target in targets) >= 20.0

    assert in_order(ranked_targets, enough) is None
    assert one_wide(ranked_targets, allowed, enough) == [0, 4]
    assert one_wide(ranked_targets, allowed, lambda targets: enough(targets) and len(targets) > 3) is None


@pytest.mark.parametrize("needed", [set(), {0}, {3, 17, 39}, set(range(40))])
def test_whoever_is_not_needed_is_put_back(needed: set[int]) -> None:
    """Any subset, in far fewer questions than gangs when few are needed."""
    asked: list[int] = []

    def enough(targets: Sequence[Target]) -> bool:
        asked.append(len(targets))
        return needed <= {target.row for target in targets}

    assert set(without_needless(singles(40), range(40), enough)) == needed
    assert len(asked) <= 12 * max(len(needed), 1)


def test_members_of_one_gang_become_one_taking() -> None:
    """Members add up; the whole gang contains them."""
    world = victims_world("1x8", [holds("a", 8, gpus_per_member=2, min_gpus=2)], need=4)
    ranked_targets = world.ranked_targets([bid("a", 80.0)])
    assert [ranked_target.target.gpus for ranked_target in ranked_targets] == [2, 2, 2, 8]
    assert taken(ranked_targets, [0, 1]) == (Target(0, 4.0, whole=False),)
    assert taken(ranked_targets, [0, 3]) == taken(ranked_targets, [3, 0]) == (Target(0, 8.0, whole=True),)
