"""Quota that is kept for an overdue gang: which gangs it holds back, and the bound on waiting that follows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Code
from autopilot.core.model.snapshot import Gate, QueueTable
from autopilot.explain.story import Watch, tell
from tests.kits.core_world import (
    Item,
    decide,
    holds,
    observe,
    snapshot,
    started,
    waits,
    why_waits,
    with_policy,
    world,
)
from tests.kits.ticking_world import EAGER, Ticking, tenants

WAIT_S = 3600.0
RUN_S = 1800.0
REVIEW_S = 300.0
POLICY = with_policy(EAGER, order={"max_wait_s": WAIT_S})
LIMITED = tenants(("org", 0, 0), ("a", 1, 0), ("b", 1, 0), ("free", 0, 0), limit={"org": 8})
NOW_S = 9000.0


def wide(name: str = "wide", **columns: Any) -> Item:
    """Eight GPUs: all that the limit allows; it is overdue."""
    return waits(name, 8, **{"queue": 2, "submit_s": 0.0, "limit_s": RUN_S, **columns})


def narrow(name: str, queue: int = 2, **columns: Any) -> Item:
    """Two GPUs for longer than what runs."""
    columns = {"gpus_per_member": 2, "submit_s": 8000.0, "limit_s": 4 * RUN_S, **columns}
    return waits(name, 2, queue=queue, **columns)


def runs(name: str = "r", gpus: int = 4, queue: int = 2, **columns: Any) -> Item:
    """Work that keeps a part of the limit, with an hour and a half to go."""
    columns = {"gpus_per_member": gpus, "start_s": NOW_S, "limit_s": 3 * RUN_S, **columns}
    return holds(name, gpus, queue=queue, **columns)


def served(
    *work: Item, policy: Policy = POLICY, shape: str = "4x8", queues: QueueTable = LIMITED, **more: Any
) -> tuple[list[str], list[str]]:
    """Who is started at this tick, and who waits for kept quota."""
    observation = observe(snapshot(shape, list(work), queues=queues, **more), NOW_S)
    step = decide(observation, policy)
    refusals = step.decision.plan.refusals
    ids = observation.snapshot.workloads.id[refusals.workload].tolist()
    kept = [name for name, code in zip(ids, refusals.code.tolist(), strict=True) if refusals.codes[code] == Code.KEPT]
    return sorted(started(step)), sorted(kept)


def test_behind_an_overdue_gang_nobody_starts_under_its_limit() -> None:
    """Neither in its queue nor in its neighbour's; outside of the limited organisation all goes on."""
    found = served(runs(), wide(), narrow("same"), narrow("beside", 3), narrow("outside", 4))
    assert found == (["outside"], ["beside", "same"])


@pytest.mark.parametrize(("mine", "starts"), [(0, ["beside"]), (8, [])], ids=["above its guarantee", "inside it"])
def test_quota_gives_way_to_what_is_owed_to_another_queue(mine: int, starts: list[str]) -> None:
    """The overdue gang is above the guarantee of its queue. Its neighbour has one of two GPUs and starts one gang."""
    work = [runs(queue=4), wide(), narrow("same"), narrow("beside", 3), narrow("behind", 3)]
    queues = tenants(("org", 0, 8), ("a", 1, mine), ("b", 1, 2), ("c", 1, 0), limit={"org": 8})
    assert served(*work, queues=queues)[0] == starts
    step = decide(observe(snapshot("4x8", work, queues=queues), NOW_S), POLICY)
    effects = [each for proposal in step.decision.plan.proposals for each in proposal.change.side_effects]
    assert [(each.workload, each.gpus) for each in effects] == [("wide", 2.0)] * len(starts)


def test_the_reason_has_its_numbers() -> None:
    """Four GPUs are left under the limit, and two would do."""
    observation = observe(snapshot("4x8", [runs(), wide(), narrow("same")], queues=LIMITED), NOW_S)
    step = decide(observation, POLICY)
    assert why_waits(step, observation, "same") == ("kept", 4.0, 2.0)
    assert why_waits(step, observation, "wide") == ("limit", 4.0, 8.0)


def test_the_story_says_for_whom_and_until_when() -> None:
    """Work that runs under the limit ends in an hour and a half."""
    observation = observe(snapshot("4x8", [runs(), wide(), narrow("same")], queues=LIMITED), NOW_S)
    watch = Watch()
    step = decide(observation, POLICY, actions=watch.actions)
    told = "\n".join(tell("same", observation, step.decision, watch))
    assert "kept for wide, which is overdue, under the limit of org: enough has ended in 1 h 30 min" in told


def test_a_young_gang_keeps_nothing() -> None:
    """Until it is overdue it is passed, as ever."""
    assert served(runs(), wide(submit_s=NOW_S - WAIT_S), narrow("same")) == (["same"], [])


def test_who_surely_ends_before_passes() -> None:
    """The room is there when `r` ends: work of that length uses the time; longer work, or of unknown length, does
    not.
    """
    short, long, unknown = (
        narrow("short", limit_s=3 * RUN_S),
        narrow("long", limit_s=3 * RUN_S + 1.0),
        narrow("unknown", limit_s=np.nan),
    )
    assert served(runs(), wide(), short, long, unknown) == (["short"], ["long", "unknown"])


@pytest.mark.parametrize(
    "never",
    [
        [runs(limit_s=np.nan), wide()],  # nobody knows when it ends
        [runs(service=0, limit_s=np.nan), wide()],
        [runs(), wide("wide", gate=Gate.WAITING)],
        [runs(), waits("wide", 16, queue=2, limit_s=RUN_S)],  # wider than the limit
        [runs(), wide(gpu_models=2)],  # of a model that nobody has
    ],
    ids=["unknown", "service", "check", "too-wide", "no-such-gpu"],
)
def test_quota_is_not_kept_for_what_may_never_start(never: list[Item]) -> None:
    """Room held on a guess is room wasted."""
    assert "same" in served(*never, narrow("same"))[0]


def test_nobody_grows_into_kept_quota() -> None:
    """An elastic gang that runs under the limit stays as it is; without the overdue gang it grows."""
    elastic = holds("e", 4, on=[0, 1], queue=2, gpus_per_member=1, min_gpus=2, start_s=0.0, limit_s=1e5)
    grown = world("4x8", [elastic, wide(submit_s=NOW_S)], NOW_S, queues=LIMITED)
    kept = world("4x8", [elastic, wide()], NOW_S, queues=LIMITED)
    assert [effect.kind for effect in decide(grown, POLICY).instructions] == ["resize"]
    assert not decide(kept, POLICY).instructions


def test_nobody_displaces_into_kept_quota() -> None:
    """A newcomer of higher priority would take its neighbour's place and keep the limit full: it waits too."""
    work = [runs("r", 8, start_s=0.0, limit_s=1e5), wide(), narrow("high", priority=5)]
    assert not decide(world("4x8", work, NOW_S, queues=LIMITED), POLICY).instructions
    work[1] = wide(submit_s=NOW_S)
    step = decide(world("4x8", work, NOW_S, queues=LIMITED), POLICY)
    assert [effect.subject.name for effect in step.instructions] == ["r"]


def test_a_guarantee_is_kept_from_work_that_may_not_be_preempted_alone() -> None:
    """A gang that must stay inside its guarantee: others of its kind wait behind it, preemptible work goes on."""
    queues = tenants(("a", 0, 8), ("b", 0, 0))
    work = [
        runs("r", 4, 1, preemptible=False),
        wide(queue=1, preemptible=False),
        narrow("firm", 1, preemptible=False),
        narrow("soft", 1),
    ]
    observation = observe(snapshot("4x8", work, queues=queues), NOW_S)
    step = decide(observation, POLICY)
    assert list(started(step)) == ["soft"]
    assert why_waits(step, observation, "firm")[0] == "kept"


def test_a_stream_of_narrow_gangs_delays_an_overdue_one_by_what_runs_and_no_more() -> None:
    """The bound of docs/decisions/0005: overdue, then the longest run, and ticks; without it they pass the gang
    indefinitely.
    """
    play = Ticking(
        "4x8",
        [holds(f"n{n}", 2, queue=2, start_s=0.0, gpus_per_member=2, limit_s=RUN_S) for n in range(4)]
        + [wide(submit_s=1.0)],
        POLICY,
        queues=LIMITED,
    )
    ends_s = {f"n{n}": RUN_S * (n + 1) / 4 for n in range(4)}
    now_s, count, tick_s = 2.0, 4, 30.0
    while "wide" not in play.running() and now_s < 20 * RUN_S:
        play.submit(narrow(f"n{count}", submit_s=now_s, limit_s=RUN_S))
        count += 1
        for name in [name for name in play.running() if name in ends_s and ends_s[name] <= now_s]:
            play.finish(name)
        before = set(play.running())
        play.tick(now_s)
        play.check_books()
        ends_s |= dict.fromkeys(set(play.running()) - before, now_s + RUN_S)
        now_s += tick_s
    assert WAIT_S < now_s <= WAIT_S + REVIEW_S + RUN_S + 3 * tick_s
    assert "wide" in play.running()
