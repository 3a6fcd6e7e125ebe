"""Reclaim, preemption, moves, growth and recovery, each by what it does tick by tick."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Submit
from autopilot.core.model.records import Code
from autopilot.core.model.snapshot import Gate, Topology
from autopilot.core.planning.context import Context
from autopilot.core.starting.admit_gang import _codes, _Pass, _redraw
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
from tests.kits.ticking_world import ALL_AUTO, EAGER, Ticking, tenants

OWNED = tenants(("a", 0, 8), ("b", 0, 0))
CALM = with_policy(ALL_AUTO, reservation={"depth": 0})


def verdicts(step: object, name: str) -> dict[str, Code]:
    """Codes of all guards on the proposal of a workload."""
    return {verdict.guard: verdict.code for verdict in proposals(step)[name].verdicts}  # type: ignore[arg-type]


# --- reclaim ----------------------------------------------------------------------------------------


def borrowed(wide: int = 8, now_s: float = 100.0, **columns: object):  # type: ignore[no-untyped-def] # noqa: ANN201
    """`v` borrows all since ten seconds ago; `w` of the owner waits."""
    work = [
        holds("v", 8, queue=2, start_s=now_s - 10.0, preemptible=True),
        waits("w", wide, queue=1, submit_s=now_s, **columns),
    ]
    return observe(snapshot("1x8", work, queues=OWNED), now_s)


def test_inside_its_guarantee_an_owner_takes_by_contract() -> None:
    """The victim is young, the budget empty, the wish new: all waived and recorded, and it is told at once."""
    policy = with_policy(CALM, budget={"per_cluster": 0, "concurrent": 0}, preemption={"blast_ratio": 1.0})
    step = decide(borrowed(), policy)
    codes = verdicts(step, "w")
    waived = {guard for guard, code in codes.items() if code == Code.WAIVED_CONTRACT}
    assert waived == {"min_runtime", "stops", "hysteresis", "budget", "blast_radius"}
    assert all(victim.contract for victim in proposals(step)["w"].victims)
    assert [order.operation.takes for order in step.instructions] == ["reclaim"]
    assert step.memory.starts.pipelined_starts[0].contract


def test_above_its_guarantee_the_taking_is_weighed() -> None:
    """Wider than the guarantee, within the fair share: the young victim keeps its guaranteed run time."""
    queues = tenants(("a", 0, 2), ("b", 0, 0))
    work = [holds("v", 8, queue=2, start_s=90.0), waits("w", 4, queue=1, submit_s=50.0, gpus_per_member=4)]
    early = decide(observe(snapshot("1x8", work, queues=queues), 100.0), CALM)
    assert not early.instructions
    assert not any(p.accepted for p in early.decision.plan.proposals)
    late = decide(observe(snapshot("1x8", work, queues=queues), 5000.0), CALM)
    assert verdicts(late, "w")["hysteresis"] == Code.DWELL
    later = decide(observe(snapshot("1x8", work, queues=queues), 5300.0, tick=1), CALM, late.memory)
    assert [order.kind for order in later.instructions] == ["evict"]
    assert not later.memory.starts.pipelined_starts[0].contract


def test_a_gang_in_its_delay_takes_nothing_and_wakes_when_it_ends() -> None:
    """Neither evictions nor moves before its time; the timer is the end of the delay, and then it takes."""
    play = Ticking(
        "1x8",
        [holds("v", 8, queue=2), waits("w", 8, queue=1, submit_s=100.0, preemption_delay_s=60.0)],
        EAGER,
        queues=OWNED,
    )
    for now_s in (100.0, 130.0, 159.0):
        step = play.tick(now_s)
        assert not step.instructions
        assert step.wake_at_s <= 160.0
        assert why_waits(step, play.observe(now_s), "w") == ("delay", now_s - 100.0, 60.0)
    play.tick(160.0)
    assert play.leaving() == ["v"]


def test_moves_keep_a_guarantee_whole() -> None:
    """No gang may be preempted, but two half-empty nodes hold the owner's gang once another gang moves."""
    queues = tenants(("a", 0, 8), ("b", 0, 8))
    work = [
        holds("m", 4, on=range(4), queue=2),
        holds("x", 4, on=range(8, 12), queue=2),
        waits("w", 8, queue=1),
    ]
    play = Ticking("2x8", work, EAGER, queues=queues)
    step = play.tick(100.0)
    (victim,) = proposals(step)["w"].victims
    assert victim.how == "move"
    play.leave_all()
    play.tick(110.0)
    assert play.running() == ["m", "w", "x"]


def test_a_hopeless_gang_is_asked_about_once_for_all_of_its_like() -> None:
    """A hundred equal gangs above their share: all have the same reason, and none is proposed."""
    queues = tenants(("a", 0, 0), ("b", 0, 8))
    work = [holds("v", 8, queue=2), *(waits(f"w{n}", 1, queue=1, gpus_per_member=1) for n in range(100))]
    observation = observe(snapshot("1x8", work, queues=queues), 100.0)
    step = decide(observation, EAGER)
    assert not step.decision.plan.proposals
    assert {why_waits(step, observation, f"w{n}")[0] for n in range(100)} == {"fairness"}


# --- preemption inside a queue ----------------------------------------------------------------------


def test_a_wish_of_one_action_does_not_hide_the_gang_from_the_next() -> None:
    """The taking across queues is held by a guard; the one inside the queue is tried all the same."""
    queues = tenants(("a", 0, 0), ("b", 0, 0), weight={"b": 0.5})
    work = [
        holds("young", 4, queue=2, start_s=4990.0, gpus_per_member=4),
        holds("low", 4, queue=1, gpus_per_member=4, start_s=0.0),
        waits("high", 4, queue=1, priority=1, gpus_per_member=4, submit_s=0.0),
    ]
    policy = with_policy(EAGER, protection={"min_runtime_s": 900.0}, preemption={"move_victims": False})
    step = decide(observe(snapshot("1x8", work, queues=queues), 5000.0), policy)
    assert [order.subject.name for order in step.instructions] == ["low"]


# --- moves ------------------------------------------------------------------------------------------


def test_nobody_moves_for_work_that_may_not_be_preempted() -> None:
    """Two halves are free and one move would do; the protected gang waits."""

    def asked(preemptible: bool) -> list[str]:
        work = [
            holds("m", 4, on=range(4)),
            holds("x", 4, on=range(8, 12)),
            waits("w", 8, preemptible=preemptible),
        ]
        return [order.subject.name for order in decide(observe(snapshot("2x8", work), 100.0), EAGER).instructions]

    assert asked(preemptible=True) == ["m"]
    assert asked(preemptible=False) == []


def test_a_gang_that_finds_no_other_place_is_not_moved() -> None:
    """The cheap one is too wide for any hole; the dearer one that fits goes."""
    work = [
        holds("wide", 5, on=range(5), start_s=99.0, gpus_per_member=5),
        holds("x", 4, on=range(8, 12), start_s=0.0, gpus_per_member=4),
        waits("w", 7, gpus_per_member=7),
    ]
    step = decide(observe(snapshot("2x8", work), 100.0), EAGER)
    assert [order.subject.name for order in step.instructions] == []
    work = [
        holds("wide", 5, on=range(5), start_s=99.0, gpus_per_member=5),
        holds("x", 3, on=range(8, 11), start_s=0.0, gpus_per_member=3),
        waits("w", 8),
    ]
    step = decide(observe(snapshot("2x8", work), 100.0), EAGER)
    assert [order.subject.name for order in step.instructions] == ["x"]


# --- growth -----------------------------------------------------------------------------------------


def grown(work: list[Item], shape: str = "2x8", **more: object) -> dict[str, int]:
    """GPUs of the gangs that were resized to be wider."""
    step = decide(observe(snapshot(shape, work, **more), 100.0), EAGER)  # type: ignore[arg-type]
    return {order.subject.name: len(order.operation.slots) for order in step.instructions if order.kind == "resize"}


def narrow(name: str = "e", on: tuple[int, ...] = (0, 1), **columns: object) -> Item:
    """An elastic gang below its width."""
    return holds(name, 8, on=on, **{"min_gpus": 2, "gpus_per_member": 1, **columns})


def test_an_elastic_gang_grows_into_what_is_idle() -> None:
    """To its full width, keeping what it has; two of them share what there is, the narrower part first."""
    assert grown([narrow()]) == {"e": 8}
    both = grown([narrow("e", (0, 1)), narrow("f", (8, 9, 10))], "2x8", unhealthy=[*range(4, 8), *range(13, 16)])
    assert both == {"e": 6} or sum(both.values()) == 9


@pytest.mark.parametrize(
    "columns",
    [{"excluded": True}, {"stuck": True}, {"stale_since_s": 90.0}, {"gate": Gate.OPEN, "min_gpus": 8}],
)
def test_who_does_not_grow(columns: dict[str, Any]) -> None:
    """Work that opted out, hangs, has lost members, or is not elastic stays as it is."""
    assert grown([narrow(**columns)]) == {}


def test_growth_stays_inside_the_domain_of_the_gang() -> None:
    """An island of one node has two idle GPUs: it takes those, and none of the other node."""
    work = [narrow(on=(0, 1), topology=Topology.ISLAND), holds("x", 4, on=range(2, 6))]
    assert grown(work) == {"e": 4}
    spread = [narrow(on=(0,), topology=Topology.SPREAD, min_gpus=1)]
    assert grown(spread, "3x8") == {"e": 3}


def test_growth_respects_limits_and_guarantees() -> None:
    """A limit of six ends it at six; work that may not be preempted grows inside its guarantee only."""
    tree = tenants(("a", 0, 3), ("b", 0, 0), limit={"a": 6})
    assert grown([narrow(queue=1)], queues=tree) == {"e": 6}
    assert grown([narrow(queue=1, preemptible=False)], queues=tree) == {"e": 3}


def test_who_waits_comes_before_who_grows() -> None:
    """A pending gang takes the idle GPUs; what it leaves over is grown into."""
    step = decide(observe(snapshot("1x8", [narrow(), waits("w", 4, gpus_per_member=4)]), 100.0), EAGER)
    assert list(started(step)) == ["w"]
    assert {
        order.subject.name: len(order.operation.slots) for order in step.instructions if order.kind == "resize"
    } == {"e": 4}


# --- recovery ---------------------------------------------------------------------------------------


def test_a_broken_gang_is_stopped_after_its_grace_to_the_second() -> None:
    """Not a moment before; the timer is its end; its own grace counts before the policy's; then it starts as a
    whole.
    """
    play = Ticking("1x8", [holds("g", 8, stale_since_s=90.0)], EAGER)
    step = play.tick(149.0)
    assert (play.told, step.wake_at_s) == ([], 150.0)
    play.tick(150.0)
    assert play.told == [(150.0, "evict", "g")]
    play.leave_all()
    play.tick(160.0)
    assert play.running() == ["g"]
    own = Ticking("1x8", [holds("g", 8, stale_since_s=90.0, stale_grace_s=5.0)], EAGER)
    own.tick(95.0)
    assert own.leaving() == ["g"]
    never = Ticking("1x8", [holds("g", 8, stale_since_s=90.0, stale_grace_s=np.inf)], EAGER)
    never.tick(9e6)
    assert never.leaving() == []


def test_recovery_leaves_alone_who_opted_out_and_who_is_told_already() -> None:
    """An excluded gang is never resized; a victim that is leaving gets no second instruction."""
    play = Ticking("1x8", [holds("o", 2, stale_since_s=0.0, excluded=True), holds("g", 2, stale_since_s=0.0)], EAGER)
    play.tick(100.0)
    play.tick(130.0)
    assert play.told == [(100.0, "evict", "g")]


def test_the_longest_broken_comes_first_and_a_rejected_gang_goes_too() -> None:
    """A running gang that a check switched off is stopped first and stays off; then in the order of how long they are
    broken.
    """
    work = [
        holds("late", 2, stale_since_s=20.0),
        holds("early", 2, stale_since_s=10.0),
        holds("off", 2, gate=Gate.REJECTED),
    ]
    play = Ticking("1x8", work, EAGER)
    play.tick(100.0)
    assert [name for _, _, name in play.told] == ["off", "early", "late"]
    play.leave_all()
    play.tick(110.0)
    assert play.running() == ["early", "late"]


def test_a_gang_whose_miss_was_forgotten_is_refused_for_capacity() -> None:
    """A quota that changes forgets what failed; a reservation made later still has to name a reason."""

    def probe(ctx: Context, _submit: Submit) -> None:
        run = _Pass(_codes(ctx), [False] * len(ctx.pending))
        run.refused[run.codes[0]] = [0]
        _redraw(ctx, run)

    step = decide(world("1x8", [waits("w", 16)]), actions=(Action("probe", "", probe, explains_waiting=True),))
    refusals = step.decision.plan.refusals
    assert [refusals.codes[code] for code in refusals.code.tolist()] == [Code.CAPACITY]
