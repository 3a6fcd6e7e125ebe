"""Hierarchical fair share in the whole decision: which gangs may start, which preempt which, and in which order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Observation
from autopilot.core.model.snapshot import QueueTable
from tests.kits.core_world import (
    Item,
    decide,
    holds,
    observe,
    proposals,
    snapshot,
    started,
    waits,
    why_waits,
    with_policy,
    world,
)
from tests.kits.ticking_world import EAGER, Ticking, tenants

NO_MOVES = with_policy(EAGER, preemption={"move_victims": False})
TWO = tenants(("a", 0, 0), ("b", 0, 0))


def asked(
    work: list[Item],
    queues: QueueTable = TWO,
    shape: str = "1x8",
    policy: Policy = NO_MOVES,
    now_s: float = 100.0,
    **more: Any,
) -> tuple[dict[str, str], Observation, Any]:
    """Victims (name -> how) of what was accepted, the observation and the step."""
    observation = observe(snapshot(shape, work, queues=queues, **more), now_s)
    step = decide(observation, policy)
    taken = {v.workload: v.how for p in step.decision.plan.proposals if p.accepted for v in p.victims}
    return taken, observation, step


def singles(prefix: str, count: int, queue: int, **columns: Any) -> list[Item]:
    """Gangs of one GPU each."""
    return [holds(f"{prefix}{n}", 1, queue=queue, gpus_per_member=1, **columns) for n in range(count)]


# --- across queues ----------------------------------------------------------------------------------


def test_a_queue_takes_up_to_its_fair_share_and_no_further() -> None:
    """Equal weights on eight GPUs: who has nothing gets four of those that the other took, one gang for one."""
    work = singles("b", 8, 2) + [waits(f"a{n}", 1, queue=1, submit_s=float(n), gpus_per_member=1) for n in range(8)]
    taken, observation, step = asked(work)
    assert len(taken) == 4
    assert {p.subject.name for p in step.decision.plan.proposals if p.accepted} == {"a0", "a1", "a2", "a3"}
    assert why_waits(step, observation, "a4")[0] != "ok"


def test_nobody_is_taken_from_within_a_guarantee() -> None:
    """A queue that holds exactly what it is guaranteed is left alone by one above its own guarantee."""
    queues = tenants(("a", 0, 0), ("b", 0, 8))
    taken, observation, step = asked([*singles("b", 8, 2), waits("a0", 1, queue=1, gpus_per_member=1)], queues)
    assert taken == {}
    assert why_waits(step, observation, "a0")[0] == "fairness"


def test_inside_its_guarantee_a_queue_takes_from_whoever_is_above_its_own() -> None:
    """The donor is within its fair share, and gives all the same: it holds more than it is guaranteed."""
    queues = tenants(("a", 0, 2), ("b", 0, 2), ("c", 0, 0), weight={"a": 0.0, "c": 0.0})
    taken, _, _ = asked([*singles("b", 8, 2), waits("a0", 2, queue=1, gpus_per_member=2)], queues)
    assert len(taken) == 2
    assert {name[0] for name in taken} == {"b"}


def test_the_most_over_served_queue_gives_first() -> None:
    """Of two donors the one that is further above its share, though its work is dearer."""
    queues = tenants(("a", 0, 0), ("b", 0, 0), ("c", 0, 0))
    work = [
        holds("b0", 3, queue=2, gpus_per_member=3, start_s=0.0),
        *singles("c", 5, 3, start_s=0.0, last_checkpoint_s=0.0),
    ]
    work += [waits("a0", 1, queue=1, gpus_per_member=1)]
    taken, _, _ = asked(work, queues)
    assert [name[0] for name in taken] == ["c"]


def test_of_two_queues_above_their_shares_the_one_further_above_gives() -> None:
    """Three and five of eight where two and two thirds are fair: the one with five gives, whatever its place."""
    queues = tenants(("a", 0, 0), ("b", 0, 0), ("c", 0, 0))
    for more, less in ((2, 3), (3, 2)):
        work = [*singles("less", 3, less), *singles("more", 5, more)]
        work += [waits(f"a{n}", 1, queue=1, gpus_per_member=1) for n in range(3)]
        taken, _, _ = asked(work, queues)
        assert [name[:4] for name in taken] == ["more", "more"]


def test_in_a_queue_the_lowest_priority_gives_first_and_in_it_the_cheapest() -> None:
    """Priority before price; of equal priority the one that loses least, as of the review at 600 s."""
    work = [
        holds("high", 2, queue=2, priority=2, start_s=600.0, gpus_per_member=2),
        holds("old", 2, queue=2, start_s=0.0, gpus_per_member=2),
        holds("young", 2, queue=2, start_s=500.0, gpus_per_member=2),
        holds("saved", 2, queue=2, start_s=0.0, last_checkpoint_s=590.0, gpus_per_member=2),
        waits("a0", 2, queue=1, gpus_per_member=2),
    ]
    assert list(asked(work, now_s=700.0)[0]) == ["saved"]


def test_paths_are_compared_where_they_part() -> None:
    """Inside one organisation teams are compared with each other; across, their organisations are."""
    queues = tenants(("x", 0, 0), ("y", 0, 0), ("x1", 1, 0), ("x2", 1, 0), ("y1", 2, 0))
    work = [*singles("p", 4, 4), *singles("q", 4, 5), waits("n", 1, queue=3, gpus_per_member=1)]
    taken, _, _ = asked(work, queues)  # x holds its half, all of it by x2: x1 takes from x2, not from y
    assert [name[0] for name in taken] == ["p"]


def test_an_organisation_takes_no_more_than_its_fair_share() -> None:
    """`y` is further above its share than team `x2`, but with one more GPU `x` would exceed its own: `x2` gives."""
    queues = tenants(("x", 0, 0), ("y", 0, 0), ("z", 0, 0), ("x1", 1, 0), ("x2", 1, 0), weight={"x": 2.0})
    work = [
        *singles("p", 4, 5),
        *singles("q", 5, 2),
        waits("n", 1, queue=4, gpus_per_member=1),
        waits("nowhere", 3, queue=3, gpus_per_member=1, gpu_models=2),
    ]
    taken, _, _ = asked(work, queues, shape="3x3")
    assert [name[0] for name in taken] == ["p"]


def test_protected_work_is_no_donor() -> None:
    """If only non-preemptible work holds the room, that is the reason given."""
    taken, observation, step = asked(
        [holds("b0", 8, queue=2, preemptible=False), waits("a0", 1, queue=1, gpus_per_member=1)]
    )
    assert taken == {}
    assert why_waits(step, observation, "a0")[0] == "protected"


def test_work_that_may_not_be_preempted_takes_inside_its_guarantee_only() -> None:
    """Within the guarantee it takes, beyond it waits for its guarantee."""
    queues = tenants(("a", 0, 2), ("b", 0, 0))
    work = [
        *singles("b", 8, 2),
        waits("in", 2, queue=1, preemptible=False, gpus_per_member=2),
        waits("out", 2, queue=1, preemptible=False, gpus_per_member=2, submit_s=5.0),
    ]
    taken, observation, step = asked(work, queues)
    assert len(taken) == 2
    assert why_waits(step, observation, "out")[0] == "guarantee"


def test_an_elastic_gang_gives_members_before_a_whole_gang_goes() -> None:
    """Two of eight members are enough; the gang goes on above its minimum."""
    work = [holds("e", 8, queue=2, min_gpus=2, gpus_per_member=1), waits("a0", 2, queue=1, gpus_per_member=2)]
    taken, _, step = asked(work)
    assert taken == {"e": "shrink"}
    (victim,) = proposals(step)["a0"].victims
    assert (victim.gpus, len(victim.keeps)) == (2, 6)


def test_a_start_that_is_not_known_counts_as_just_now() -> None:
    """An owner preempts by contract the gang that is not known to lose anything; without a contract it is sheltered."""
    work = [
        holds("old", 4, queue=2, start_s=0.0, gpus_per_member=4),
        holds("new", 4, queue=2, start_s=np.nan, gpus_per_member=4),
        waits("a0", 4, queue=1, gpus_per_member=4),
    ]
    assert list(asked(work, tenants(("a", 0, 4), ("b", 0, 0)), now_s=700.0)[0]) == ["new"]
    assert list(asked(work, now_s=700.0)[0]) == ["old"]


# --- hard limits ------------------------------------------------------------------------------------


def test_a_limit_above_two_teams_does_not_keep_one_from_its_guarantee() -> None:
    """The organisation is at its limit with what one team borrows: the other takes its guarantee from it."""
    queues = tenants(("x", 0, 8), ("x1", 1, 4), ("x2", 1, 4), limit={"x": 8})
    work = [*singles("b", 8, 3), waits("a0", 4, queue=2, gpus_per_member=4)]
    taken, _, _ = asked(work, queues, shape="2x8")
    assert len(taken) == 4
    queues = tenants(("x", 0, 8), ("x1", 1, 4), ("x2", 1, 4), limit={"x": 8, "x1": 3})
    taken, observation, step = asked(work, queues, shape="2x8")
    assert taken == {}
    assert why_waits(step, observation, "a0")[0] == "limit"


def test_who_gave_way_for_a_limit_is_not_moved_back_under_it() -> None:
    """There is room on the nodes for both, but the queue is at its limit: the victim stops."""
    queues = tenants(("a", 0, 0), ("b", 0, 0), limit={"a": 8})
    work = [holds("low", 8, queue=1), waits("high", 8, queue=1, priority=1)]
    taken, _, _ = asked(work, queues, shape="2x8", policy=EAGER)
    assert taken == {"low": "evict"}
    free = tenants(("a", 0, 0), ("b", 0, 0), limit={"a": 16})
    _, _, step = asked(work, free, shape="2x8", policy=EAGER)
    assert list(started(step)) == ["high"]


# --- inside one queue -------------------------------------------------------------------------------


def test_an_equal_priority_of_its_own_queue_is_not_displaced() -> None:
    """One of lower priority is there, but it would take one of equal priority too."""
    work = [
        holds("low", 1, queue=1, gpus_per_member=1),
        holds("equal", 7, queue=1, priority=5, gpus_per_member=7),
        waits("w", 8, queue=1, priority=5),
    ]
    assert asked(work)[0] == {}


def test_a_higher_priority_displaces_a_lower_one_of_its_own_queue() -> None:
    """Strictly lower, preemptible, the cheapest of the lowest class; no gang of another queue."""
    work = [
        holds("low", 4, queue=1, gpus_per_member=4),
        holds("same", 2, queue=1, priority=1, gpus_per_member=2),
        holds("other", 2, queue=2, gpus_per_member=2),
        waits("high", 4, queue=1, priority=1, gpus_per_member=4),
    ]
    queues = tenants(("a", 0, 0), ("b", 0, 0), weight={"a": 0.001})
    assert asked(work, queues)[0] == {"low": "evict"}
    equal = [replace(item, columns={**item.columns, "priority": 0}) for item in work]
    assert asked(equal, queues)[0] == {}


# --- GPU models -------------------------------------------------------------------------------------


def two_models(**guarantee: tuple[int, int]) -> QueueTable:
    """Queues with a guarantee of (A100, H100)."""
    tree = tenants(*((name, 0, 0) for name in guarantee))
    table = tree.guarantee.copy()
    table[1:, :2] = list(guarantee.values())
    return replace(tree, guarantee=table)


MODELS = {"gpu_model": [0, 1]}


def test_a_guarantee_of_one_model_is_not_paid_in_another() -> None:
    """B borrows A100s and holds its guaranteed H100s: an owner of A100s reclaims those, and the H100s stay."""
    work = [*singles("x", 8, 2), *singles("h", 8, 2), waits("w", 2, queue=1, gpu_models=1, gpus_per_member=2)]
    taken, _, _ = asked(work, two_models(a=(4, 0), b=(0, 8)), "2x8", nodes=MODELS)
    assert len(taken) == 2
    assert {name[0] for name in taken} == {"x"}
    work[-1] = waits("w", 2, queue=1, gpu_models=2, gpus_per_member=2)
    assert asked(work, two_models(a=(4, 0), b=(0, 8)), "2x8", nodes=MODELS)[0] == {}


def test_work_of_any_model_takes_no_guaranteed_gpus_of_one_model() -> None:
    """A newcomer that can use any model takes what is borrowed, though the guaranteed ones are cheaper."""
    work = [
        *singles("x", 8, 2, start_s=0.0),
        *singles("h", 8, 2, start_s=99.0),
        waits("w", 2, queue=1, gpus_per_member=2),
    ]
    taken, _, _ = asked(work, two_models(a=(2, 0), b=(0, 8)), "2x8", nodes=MODELS)
    assert {name[0] for name in taken} == {"x"}


def test_a_limit_of_one_model_sends_work_that_may_use_others_there() -> None:
    """Two of the A100s are the most for a: its third gang goes to the H100s, and what asks for A100s alone waits."""
    none = [-1] * 3
    tree = replace(tenants(("a", 0, 0), ("b", 0, 0)), limit_by_model=np.array([none, [2, *none[1:]], none], np.int32))
    work = [waits(f"w{n}", 2, queue=1, gpus_per_member=2, submit_s=float(n)) for n in range(3)]
    work.append(waits("x", 2, queue=1, gpus_per_member=2, gpu_models=1, submit_s=9.0))
    observation = world("2x8", work, 100.0, nodes=MODELS, queues=tree)
    step = decide(observation, NO_MOVES)
    nodes = sorted(node for slots in started(step).values() for node in slots)
    assert nodes == ["node-0"] * 2 + ["node-1"] * 4
    assert why_waits(step, observation, "x") == ("limit", 0.0, 2.0)


def test_no_room_but_on_a_model_whose_limit_is_reached_is_said_so() -> None:
    """The H100s are held: A100s idle, and the limit is what keeps it from them."""
    none = [-1] * 3
    tree = replace(tenants(("a", 0, 0), ("b", 0, 0)), limit_by_model=np.array([none, [2, *none[1:]], none], np.int32))
    work = [holds("h", 8, range(8, 16), queue=2), waits("w", 4, queue=1, gpus_per_member=4)]
    observation = world("2x8", work, 100.0, nodes=MODELS, queues=tree)
    step = decide(observation, NO_MOVES)
    assert started(step) == {}
    assert why_waits(step, observation, "w")[0] == "limit"


# --- no flapping ------------------------------------------------------------------------------------


@pytest.mark.parametrize("guaranteed", [0, 4])
def test_what_was_taken_is_not_taken_back(guaranteed: int) -> None:
    """A takes from B; B waits again with all its gangs and takes nothing back, however many ticks go by."""
    queues = tenants(("a", 0, guaranteed), ("b", 0, 0))
    work = [*singles("b", 8, 2), *(waits(f"a{n}", 1, queue=1, gpus_per_member=1) for n in range(4))]
    play = Ticking("1x8", work, with_policy(NO_MOVES, tenancy={"usage_half_life_s": 0.0}), queues=queues)
    for tick in range(12):
        play.tick(100.0 + 50.0 * tick)
        play.check_books()
        play.leave_all()
    evicted = [name for _, kind, name in play.told if kind == "evict"]
    assert len(evicted) == 4
    assert {name[0] for name in evicted} == {"b"}
    assert play.use() == {"root": 0.0, "a": 4.0, "b": 4.0}


def test_the_price_of_a_gang_wider_than_the_share_that_is_missing() -> None:
    """A gang of eight that borrows is given up whole for one of four, and does not come back while that one runs."""
    play = Ticking("1x8", [holds("b0", 8, queue=2), waits("a0", 4, queue=1, gpus_per_member=4)], NO_MOVES, queues=TWO)
    for tick in range(8):
        play.tick(100.0 + 50.0 * tick)
        play.leave_all()
    assert [(kind, name) for _, kind, name in play.told] == [("evict", "b0"), ("admit", "a0")]
