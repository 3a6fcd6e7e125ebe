"""Time sharing: which gangs pause for which inside a queue that is ordered by index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.budget import BudgetMemory
from autopilot.core.model.modes import Mode
from autopilot.core.model.records import Proposal
from autopilot.core.model.snapshot import QueueOrder
from tests.kits.core_world import Item, decide, holds, proposals, taken_in, waits, why_waits, with_policy, world
from tests.kits.people_kit import APPROVE, said
from tests.kits.ticking_world import EAGER, tenants

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
SHARING = with_policy(
    EAGER,
    preemption={"time_sharing": True, "index_ratio": 3.0, "without_checkpoint": True},
    order={"short_s": 0.0, "width_exponent": 1.0, "aging_exponent": 0.5, "max_wait_s": 60 * DAY_S},
)


def taken(
    work: list[Item],
    total_s: Mapping[str, float | Sequence[float]],
    now_s: float = 1000.0,
    policy: Any = SHARING,
    shape: str = "1x8",
    memory: ControllerMemory | None = None,
) -> dict[str, dict[str, str]]:
    """The victims and what happens to them, by newcomer."""
    found: dict[str, Proposal] = proposals(decide(world(shape, work, now_s, total_s=total_s), policy, memory))
    return {name: {victim.workload: victim.how for victim in one.victims} for name, one in found.items() if one.victims}


def test_short_work_pauses_long_work() -> None:
    """One hour against ten days: more than three times the index."""
    work = [holds("long", 8), waits("short", 8)]
    assert taken(work, {"long": 10 * DAY_S, "short": HOUR_S}) == {"short": {"long": "evict"}}


def test_what_a_person_approved_asks_before_what_nobody_approved() -> None:
    """A better one came while somebody read: it would pause the same work, and waits for its own approval."""
    policy = with_policy(SHARING, modes={"preempt": Mode.APPROVE})
    work, total_s = [holds("long", 8), waits("read", 8)], {"long": 10 * DAY_S, "read": HOUR_S, "better": 600.0}
    seen = world("1x8", work, 1000.0, total_s=total_s)
    memory = decide(seen, policy).memory
    (name,) = memory.people.open_proposals
    seen = replace(seen, commands=(said(APPROVE, seen.tick, seen.now_s, subject=name),))
    memory = taken_in(memory, seen, policy)
    found = proposals(decide(world("1x8", [*work, waits("better", 8)], 1010.0, total_s=total_s), policy, memory))
    assert [(name, each.accepted) for name, each in found.items() if each.victims] == [("read", True)]


@pytest.mark.parametrize(("reclaims", "starts"), [(Mode.APPROVE, "read"), (Mode.AUTO, "owed")])
def test_what_a_person_approved_waits_for_no_recommendation_of_another_action(reclaims: Mode, starts: str) -> None:
    """Another queue would take back the same GPUs: it comes first only where it needs no approval for that."""
    policy = with_policy(SHARING, modes={"preempt": Mode.APPROVE, "reclaim_borrowed": reclaims})
    queues = tenants(("a", 0, 8), ("b", 0, 0), order=int(QueueOrder.INDEX))
    work, total_s = [holds("long", 8, queue=2), waits("read", 8, queue=2)], {"long": 10 * DAY_S, "read": HOUR_S}
    seen = world("1x8", work, 1000.0, total_s=total_s, queues=queues)
    memory = decide(seen, policy).memory
    (name,) = memory.people.open_proposals
    memory = taken_in(memory, replace(seen, commands=(said(APPROVE, seen.tick, 1000.0, subject=name),)), policy)
    now = world("1x8", [*work, waits("owed", 8, queue=1)], 1010.0, total_s=total_s, queues=queues)
    found = decide(now, policy, memory).decision.plan.proposals
    assert [each.subject.name for each in found if each.victims and each.accepted] == [starts]


def test_of_approved_starts_the_one_with_the_victim_takes_it() -> None:
    """Two read at once: one was shown to pause the wide work, the other to start on what that leaves. By now the other
    is the better one.
    """
    policy = with_policy(SHARING, modes={"preempt": Mode.APPROVE})
    work = [holds("long", 8), waits("first", 4), waits("second", 4)]
    total_s = {"long": 10 * DAY_S, "first": HOUR_S, "second": HOUR_S + 1.0}
    seen = world("1x8", work, 1000.0, total_s=total_s)
    memory = decide(seen, policy).memory
    words = [
        said(APPROVE, number, seen.now_s, subject=name) for number, name in enumerate(memory.people.open_proposals)
    ]
    memory = taken_in(memory, replace(seen, commands=tuple(words)), policy)
    found = proposals(decide(world("1x8", work, 1010.0, total_s=total_s | {"second": 1800.0}), policy, memory))
    assert {name: ([*each.victims] != [], each.accepted) for name, each in found.items()} == {
        "first": (True, True),
        "second": (False, True),
    }


def test_who_was_paused_a_moment_ago_makes_nobody_pause() -> None:
    """However near its end seems now; once it has cooled down it asks."""
    work = [holds("long", 8), waits("short", 8, served_s=60.0)]
    total_s = {"long": 10 * DAY_S, "short": HOUR_S}
    for until_s, found in ((1001.0, {}), (1000.0, {"short": {"long": "evict"}})):
        assert (
            taken(work, total_s, memory=ControllerMemory(budget=BudgetMemory(cooled_until_s={"short": until_s})))
            == found
        )


def test_progress_that_was_lost_brings_no_end_nearer() -> None:
    """Most such work ends within the hour, the rest in days. Who outlived the hour is of the rest, with a minute to do
    again.
    """
    usual_s = [3500.0, 3550.0, 3570.0, 3590.0, 5 * DAY_S, 6 * DAY_S, 7 * DAY_S]
    for outlived_s, found in ((3600.0, {}), (0.0, {"paused": {"running": "evict"}})):
        work = [
            holds("running", 8, served_s=3600.0),
            waits("paused", 8, served_s=3540.0, outlived_s=outlived_s),
        ]
        assert taken(work, {"running": usual_s, "paused": usual_s}) == found


def test_nobody_pauses_for_a_little_advantage() -> None:
    """Twice the index is not three times: an exchange must be worth its calm."""
    work = [holds("long", 8), waits("short", 8)]
    assert taken(work, {"long": 2 * HOUR_S + 1000.0, "short": HOUR_S}) == {}
    eager = with_policy(SHARING, preemption={"index_ratio": 1.5})
    assert taken(work, {"long": 2 * HOUR_S + 1000.0, "short": HOUR_S}, policy=eager) == {"short": {"long": "evict"}}


def test_exactly_the_missing_gpus_are_taken_from_the_worst() -> None:
    """Four of eight are needed and two idle: the two worst of one GPU each pause."""
    work = [holds("a"), holds("b"), holds("c"), holds("d", 3), waits("new", 4)]
    total_s = {"a": 8 * DAY_S, "b": 9 * DAY_S, "c": 7 * DAY_S, "d": 0.6 * DAY_S, "new": HOUR_S}
    assert taken(work, total_s) == {"new": {"a": "evict", "b": "evict"}}


def test_work_inside_its_guaranteed_run_time_stays() -> None:
    """Who started a minute ago is not asked."""
    work = [holds("long", 8, start_s=940.0), waits("short", 8)]
    calm = with_policy(SHARING, protection={"min_runtime_s": 900.0})
    assert taken(work, {"long": 10 * DAY_S, "short": HOUR_S}, policy=calm) == {}


def test_idle_gpus_are_filled_by_a_wider_gang() -> None:
    """Two GPUs idle and four are wanted: by fill a worse narrower one makes room although the ratio is not reached."""
    work = [holds("good", 4), holds("worse", 2), waits("wide", 4)]
    total_s = {"good": 1000.0 + HOUR_S, "worse": 1000.0 + 8 * HOUR_S, "wide": 8 * HOUR_S}
    # per GPU: good 1 / 4 h, worse 1 / 16 h, wide 1 / 32 h
    assert taken(work, total_s) == {}, "the wide gang is worse than both"
    total_s["wide"] = 2 * HOUR_S  # 1 / 8 h: better than worse, by less than three times
    assert taken(work, total_s) == {"wide": {"worse": "evict"}}


def test_without_idle_gpus_nothing_is_filled() -> None:
    """The same two, and nothing idle: the ratio holds."""
    work = [holds("good", 4), holds("worse", 4), waits("wide", 4)]
    total_s = {"good": 1000.0 + HOUR_S, "worse": 1000.0 + 4 * HOUR_S, "wide": 2 * HOUR_S}
    assert taken(work, total_s) == {}


def test_waiting_lifts_work_that_never_ran() -> None:
    """After 24 days the index of a fresh gang is five times as high; one that ran before gains nothing by its age."""
    now_s = 24 * DAY_S
    running = holds("r", 8, start_s=now_s - HOUR_S)
    total_s = {"r": 3 * DAY_S, "w": 3 * DAY_S}
    assert taken([running, waits("w", 8)], total_s, now_s) == {"w": {"r": "evict"}}
    total_s["w"] += HOUR_S
    assert taken([running, waits("w", 8, served_s=HOUR_S)], total_s, now_s) == {}


def test_two_gangs_as_good_as_each_other_do_not_take_turns() -> None:
    """Of two equal gangs, the running one continues, however long the other was paused."""
    now_s = 24 * DAY_S
    total_s = {"a": 9 * DAY_S, "b": 9 * DAY_S}
    one = holds("a", 8, start_s=now_s - DAY_S, served_s=DAY_S)
    assert taken([one, waits("b", 8, served_s=DAY_S)], total_s, now_s) == {}


def test_only_queues_by_index_share_time() -> None:
    """In a queue in order of submission no gang pauses for shorter work; nor does non-preemptible work."""
    firm = [holds("long", 8, preemptible=False), waits("short", 8)]
    assert taken(firm, {"long": 10 * DAY_S, "short": HOUR_S}) == {}


def test_a_wide_gang_pauses_only_for_as_much_as_fills_its_place() -> None:
    """One job of one GPU would leave seven idle, and its eight times higher index is spent on them; eight together are
    not.
    """
    wide = holds("wide", 8)
    total_s = {"wide": 1000.0 + 2 * HOUR_S, **{f"n{number}": HOUR_S for number in range(8)}}
    assert taken([wide, waits("n0")], total_s) == {}
    eight = [waits(f"n{number}") for number in range(8)]
    assert taken([wide, *eight], total_s) == {"n0": {"wide": "evict"}}


def test_who_makes_another_pause_starts_in_its_place() -> None:
    """Not on a GPU that is held for somebody else's start, where it would start without that pause."""
    policy = with_policy(SHARING, reservation={"depth": 0, "share_hold_s": 600.0}, protection={"min_runtime_s": 900.0})
    two = tenants(("a", 0, 0), ("b", 0, 0), order=int(QueueOrder.INDEX))
    work = [holds(f"b{at}", 1, on=[at], queue=2, start_s=1000.0) for at in (*range(7), *range(8, 15))]
    work += [holds("old", 1, on=[15], queue=2, start_s=0.0)]
    work += [waits("w", 2, queue=1, submit_s=940.0), waits("n", 1, queue=2, submit_s=950.0)]
    total_s = {f"b{at}": DAY_S for at in range(1, 15)} | {
        "b0": 300.0,
        "w": 900.0,
        "n": HOUR_S,
        "old": 90 * DAY_S,
    }
    step = decide(world("2x8", work, 1000.0, total_s=total_s, queues=two), policy)
    assert why_waits(step, world("2x8", work, 1000.0, total_s=total_s, queues=two), "w")[0] == "capacity"
    found = proposals(step)["n"]
    assert [victim.workload for victim in found.victims] == ["old"]
    assert [slot.node for slot in found.slots] == ["node-1"]


def scattered(behind: str) -> list[Item]:
    """`long` holds half of each of ten nodes; `short` takes two halves, as those behind it do or do not."""
    members = {"halves": 4, "nodes": 8}[behind]
    held = [gpu for node in range(10) for gpu in range(8 * node, 8 * node + 4)]
    rest = [gpu for gpu in range(80) if gpu not in held]
    return [
        holds("long", 40, on=held, gpus_per_member=4),
        holds("firm", 40, on=rest, gpus_per_member=4, preemptible=False),
        waits("short", 8, gpus_per_member=4),
        *(waits(f"next-{number}", 8, gpus_per_member=members) for number in range(3)),
    ]


def test_a_wide_gang_pauses_for_several_only_where_they_fit_in_its_place() -> None:
    """Forty GPUs for thirty-two is fair. Forty for eight is not, where those behind need whole nodes that stay in
    use.
    """
    total_s = {
        "long": 10 * DAY_S,
        "firm": 20 * DAY_S,
        "short": 600.0,
        **{f"next-{k}": 900.0 for k in range(3)},
    }
    bound = with_policy(SHARING, preemption={"blast_ratio": 4.0, "move_victims": False})
    assert taken(scattered("halves"), total_s, policy=bound, shape="10x8") == {"short": {"long": "evict"}}
    found = proposals(decide(world("10x8", scattered("nodes"), 1000.0, total_s=total_s), bound))
    assert [proposal for proposal in found.values() if proposal.victims and proposal.accepted] == []
