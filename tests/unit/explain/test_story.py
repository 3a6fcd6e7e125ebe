from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.budget import BudgetMemory
from autopilot.core.model.memory.losses import LossesMemory
from autopilot.core.model.policy import RuleSetName
from autopilot.core.model.records import Code
from autopilot.core.model.snapshot import Displace, ServiceTable, State, make
from autopilot.core.placement.shapes import shape_of
from autopilot.explain.story import Watch, tell
from autopilot.explain.story.prospects import endings, room_by_forecast, unforeseen
from autopilot.records.replay.unequal import first_unequal
from tests.kits.core_world import AUTO, HOLDING, Item, decide, holds, waits, why_waits, with_policy, world
from tests.kits.story_kit import EAGER, lines, story, tree

DEPARTMENT = tree(("dept", 0, -1, 8), ("a", 1, 6, 4), ("b", 1, -1, 4), ("c", 0, -1, 8))
"""Two queues of a department, and one beside it."""


def small(name: str, gpus: int, queue: int, **columns: object) -> Item:
    """A gang of one member that waits since the start."""
    return waits(name, gpus, gpus_per_member=gpus, queue=queue, **columns)


# --- the onlooker -----------------------------------------------------------------------------------


def test_the_onlooker_changes_nothing() -> None:
    """The same decision, memory and instructions with it and without."""
    work = [holds("big", 8, queue=2, gpus_per_member=2, min_gpus=2), small("w", 4, 1), small("v", 8, 2)]
    observation = world("1x8", work, 600.0, queues=tree(("a", 0, -1, 4), ("b", 0, -1, 4)), total_s={"big": 900.0})
    said, watched = story(observation, "v")
    assert first_unequal(decide(observation, EAGER), watched, "step") is None
    again, _ = story(observation, "v")
    assert said == again


def test_without_an_onlooker_the_record_speaks_for_itself() -> None:
    """Place and reason, no level of the tree."""
    observation = world("1x8", [holds("x", 8), small("w", 4, 0)], 600.0)
    told = tell("w", observation, decide(observation, AUTO).decision)
    assert "  has waited for 10 min, place 1 of 1 in the order of service" in told
    assert "  held by capacity: 0 GPUs it may use are free, it needs 4" in told


def test_who_is_not_there_is_said_to_be_gone() -> None:
    """Not an error: it may have ended."""
    observation = world("1x8", [], 60.0)
    assert tell("w", observation, decide(observation, AUTO).decision) == ["w: not in the cluster at 60 s"]


# --- quota ------------------------------------------------------------------------------------------


def test_a_hard_limit_is_told_at_its_level_and_with_its_end() -> None:
    """Both levels with use, guarantee, limit and fair share; the lower one binds, until its own gang ends."""
    work = [holds("a1", 4, queue=2), holds("c1", 4, queue=4), small("w", 4, 2, preemptible=False)]
    queues = tree(("dept", 0, -1, 12), ("a", 1, 6, 10), ("b", 1, -1, 2), ("c", 0, -1, 4))
    observation = world("2x8", work, 600.0, queues=queues, total_s={"a1": 3600.0, "c1": 900.0})
    said, step = story(observation, "w")
    assert why_waits(step, observation, "w") == ("limit", 2.0, 4.0)
    assert "held by limit: its queue (or one above it) is at its hard limit: 2 GPUs left, it needs 4" in said
    assert lines(said, "queue a:") == [
        "queue a: uses 4 GPUs, guarantee 10, limit 6, fair share 6  <- leaves it too little"
    ]
    assert lines(said, "queue dept:") == ["queue dept: uses 4 GPUs, guarantee 12, limit none, fair share 6"]
    assert lines(said, "room:") == ["room: there is some now, on 1 node"]
    (quota,) = lines(said, "quota:")
    assert quota.startswith("quota: its queue may start it in 50 min by forecast")
    assert "a1 (4 GPUs, in 50 min) has ended" in quota
    assert "c1" not in quota


def test_work_that_may_not_be_preempted_waits_for_its_guarantee() -> None:
    """What of the guarantee is taken by its like, and when the first of it comes back."""
    work = [
        holds("a1", 3, queue=2, preemptible=False),
        holds("a2", 1, queue=2),
        small("w", 2, 2, preemptible=False),
    ]
    said, _ = story(world("2x8", work, 600.0, queues=DEPARTMENT, total_s={"a1": 3600.0, "a2": 900.0}), "w")
    assert "held by guarantee" in said
    assert (
        "queue a: uses 4 GPUs, guarantee 4, limit 6, fair share 6, 3 of its use may not be preempted  <- leaves" in said
    )
    assert "displacing" not in said
    (quota,) = lines(said, "quota:")
    assert "in 50 min" in quota
    assert "a1 (3 GPUs, in 50 min)" in quota


def test_fair_share_is_told_with_both_sides_and_when_a_guarantee_comes_due() -> None:
    """Its own side has its part; those beside it have no more than theirs; its queue is owed when its own gang ends."""
    work = [holds("a1", 4, queue=2), holds("b1", 4, queue=3), holds("c1", 8, queue=4), small("w", 2, 2)]
    said, _ = story(world("2x8", work, 600.0, queues=DEPARTMENT, total_s={"a1": 3600.0, "b1": 1200.0}), "w")
    assert "held by fairness" in said
    assert "queue c beside it: uses 8 GPUs, guarantee 8, fair share 8, within its fair share" in said
    assert (
        "taking back from other queues: not beyond its fair share: with it queue a would use 6 GPUs, its fair "
        "share is 4" in said
    )
    (room,), (owed,) = lines(said, "room: it fits"), lines(said, "guarantee:")
    assert room.startswith(
        "room: it fits in 10 min by forecast (quantile 0.5 of run times), when b1 (4 GPUs, in 10 min) has ended"
    )
    assert "its queue has a shortfall in 50 min" in owed


def test_nobody_is_said_to_give_way_for_what_is_only_foreseen() -> None:
    """A replica beyond the present need waits for what comes free, inside a guarantee too."""
    work = [holds("v", 8, queue=3), waits("w", 2, queue=2, service=0)]
    observation = world("1x8", work, 600.0, queues=tree(("top", 0, -1, 8), ("a", 1, -1, 4), ("b", 1, -1, 4)))
    told = {}
    for needed in (0, 1):
        services: ServiceTable = make(
            ServiceTable, id=["chat"], uid=["chat"], queue=[2], replicas=[1], needed_replicas=[needed]
        )
        snapshot = replace(observation.snapshot, services=services)
        told[needed], _ = story(replace(observation, snapshot=snapshot), "w")
    assert "no work is preempted for it: it is a replica that is only predicted to be needed" in told[0]
    assert lines(told[0], "guarantee:") == []
    assert "no work is preempted for it" not in told[1]


def test_a_guarantee_that_is_too_small_is_never_owed() -> None:
    """The queue that is guaranteed too little is named with its number."""
    work = [holds("b1", 8, queue=3), holds("c1", 8, queue=4), small("w", 8, 2)]
    said, _ = story(
        world(
            "2x8",
            work,
            600.0,
            queues=tree(("dept", 0, -1, 8), ("a", 1, -1, 4), ("b", 1, -1, 4), ("c", 0, -1, 8)),
        ),
        "w",
    )
    assert lines(said, "guarantee:") == ["guarantee: never, for queue a is guaranteed 4 GPUs and this gang needs 8"]


@pytest.mark.parametrize("borrows", ["2", "without limit"])
@pytest.mark.parametrize("rules", [RuleSetName.COHORT_CLASSIC, RuleSetName.COHORT_FAIR])
def test_cohort_quota_is_told_with_what_may_be_borrowed_and_displaced(rules: RuleSetName, borrows: str) -> None:
    """Two queues of a cohort use all its quota: who waits sees both, its settings, and when quota comes back."""
    queues = tree(
        ("co", 0, -1, 0),
        ("a", 1, -1, 4),
        ("b", 1, -1, 4),
        borrow_limit=[-1, -1, 2 if borrows == "2" else -1, -1],
        reclaim=[0, 0, int(Displace.NEVER), 0],
    )
    work = [holds("a1", 4, queue=2), holds("b1", 4, queue=3), small("w", 2, 2)]
    observation = world("2x8", work, 600.0, queues=queues, total_s={"a1": 3600.0, "b1": 1200.0})
    said, step = story(observation, "w", replace(EAGER, rules=rules))
    assert why_waits(step, observation, "w")[0] == "quota"
    assert "its queue and those that share with it have quota for 0 more GPUs, it needs 2" in said
    (own,) = lines(said, "queue a: uses 4 GPUs, guarantee 4, limit none, quota with what is lent from below 4,")
    assert own.endswith(f" may borrow {borrows}, borrows 0")
    (top,) = lines(said, "queue co:")
    assert top.endswith("quota with what is lent from below 8  <- leaves it too little")
    assert (
        "queue a may displace, inside the queue: never; in queues that borrow: never; while it borrows itself: never"
        in said
    )
    assert lines(said, "quota: its queue may start it in 10 min by forecast")
    assert "no queue lends to it" not in said


@pytest.mark.parametrize("rules", [RuleSetName.COHORT_CLASSIC, RuleSetName.COHORT_FAIR])
def test_a_queue_under_the_root_is_said_to_share_with_nobody(rules: RuleSetName) -> None:
    """GPUs are idle, and quota of another queue; who waits is told why it may not borrow."""
    queues = tree(("a", 0, -1, 4), ("b", 0, -1, 12))
    work = [holds("a1", 4, queue=1), small("w", 2, 1)]
    said, _ = story(world("2x8", work, 600.0, queues=queues), "w", replace(EAGER, rules=rules))
    assert "quota for 0 more GPUs, it needs 2" in said
    assert "queue a has no parent but the root: no queue lends to it" in said


# --- room -------------------------------------------------------------------------------------------


def test_topology_is_told_by_the_roomiest_domain() -> None:
    """Enough GPUs in all, never in one island; free when the shorter of the two gangs in the way ends."""
    work = [
        holds("a", 4, on=range(4)),
        holds("b", 4, on=range(8, 12)),
        waits("w", 8, gpus_per_member=4, topology=1),
    ]
    said, _ = story(
        world("2x8", work, 60.0, total_s={"a": 3600.0, "b": 1860.0}),
        "w",
        with_policy(AUTO, preemption={"move_victims": False}),
    )
    assert "held by topology" in said
    assert "all members must share one island: of 2, the roomiest has 4 GPUs that it may use, all together 8" in said
    (room,) = lines(said, "room:")
    assert "in 30 min" in room
    assert "b (4 GPUs, in 30 min) has ended" in room


def test_whose_reservation_is_in_the_way_and_from_when() -> None:
    """The reserved gang with its nodes and planned start; and that it runs for two hours then."""
    work = [holds("a", 8), waits("big", 16), small("w", 4, 0, submit_s=1.0)]
    observation = world("2x8", work, 60.0, total_s={"a": 3600.0, "big": 7200.0, "w": 9000.0})
    said, _ = story(observation, "w", HOLDING)
    assert "held by reserved" in said
    assert "reserved (promised) for big: 16 GPUs on node-0, node-1, planned to start in 59 min" in said
    assert "if started now, done in 2 h 30 min (p90 of its run time)" in said
    assert "room: not before what is reserved for big (starts in 59 min and runs for 2 h by forecast)" in said
    assert "before it wait big (16 GPUs)" in said
    own, _ = story(observation, "big", HOLDING)
    assert "holds a reservation of 16 GPUs on node-0, node-1: planned to start in 59 min (promised for 1 h after" in own
    assert "a (8 GPUs, in 59 min) has ended" in own


def test_what_nothing_foretells_is_not_guessed() -> None:
    """No forecast, no limit: how many gangs on how many GPUs have no known end."""
    observation = world("1x8", [holds("x", 6), holds("y", 2), small("w", 4, 0)], 600.0)
    said, _ = story(observation, "w", AUTO)
    assert "room: no forecast says when it fits: nothing foretells when 2 gangs on 8 GPUs end" in said


@pytest.mark.parametrize("width", [{"gpu_milli": 500}, {"mig_profile": 0}])
def test_shares_and_instances_have_prospects_too(width: dict[str, int]) -> None:
    """The same search serves every shape: what it would take over ends in ten minutes."""
    cut = "mig_profile" in width
    work = [
        holds("x", 1, on=(0,), **({"mig_profile": 0} if cut else {"gpu_milli": 1000})),
        waits("w", 1, **width),
    ]
    observation = world("1x1", work, 0.0, total_s={"x": 600.0}, cuts={0: [("1g.10gb", 0)]} if cut else None)
    said, _ = story(observation, "w", AUTO)
    (room,) = lines(said, "room:")
    assert "it fits in 10 min by forecast" in room
    assert "when x (1 GPU, in 10 min) has ended" in room


def test_the_first_moment_that_suffices_is_found_among_many() -> None:
    """Of eight gangs the third to end makes room; those whose GPUs it takes over are named, none that ends later."""
    ends = [700.0, 300.0, 900.0, 500.0, 1100.0, 800.0, 600.0]
    work = [holds(f"g{n}", 1, on=(n,)) for n in range(7)] + [holds("blind", 1, on=(7,)), small("w", 3, 0)]
    observation = world("1x8", work, 0.0, total_s={f"g{n}": end for n, end in enumerate(ends)})
    watch = Watch()
    decide(observation, AUTO, actions=watch.actions)
    ctx = watch.ctx
    assert ctx is not None
    mark = ctx.whatif.checkpoint()
    prospect = room_by_forecast(ctx, 0, shape_of(observation.snapshot, 8))
    assert ctx.whatif.checkpoint() == mark
    assert [each.row for each in endings(ctx)] == [1, 3, 6, 0, 5, 2, 4, 7]
    assert [each.row for each in unforeseen(ctx)] == [7]
    assert prospect.at_s == 600.0
    assert [each.row for each in prospect.endings] == [1, 3, 6]


def test_who_ends_elsewhere_is_not_named() -> None:
    """A gang that ends earlier, on a node where it does not help."""
    work = [
        holds("long", 7, on=range(7)),
        holds("early", 1, on=(7,)),
        holds("other", 8, on=range(8, 16)),
        small("w", 8, 0),
    ]
    observation = world("2x8", work, 0.0, total_s={"long": 9000.0, "early": 300.0, "other": 900.0})
    said, _ = story(observation, "w", AUTO)
    (room,) = lines(said, "room:")
    assert "it fits in 15 min by forecast (quantile 0.5 of run times), when other (8 GPUs, in 15 min) has ended" in room


# --- gates, delays, guards --------------------------------------------------------------------------


def test_a_strict_queue_names_who_is_before_it_and_when_that_fits() -> None:
    """There is room for the narrow gang; the wide one before it holds it up until `a` ends."""
    work = [holds("a", 4, queue=1), waits("x", 8, queue=1, submit_s=-5.0), small("w", 2, 1)]
    observation = world("1x8", work, 600.0, queues=tree(("q", 0, -1, 0), strict=[False, True]), total_s={"a": 3600.0})
    said, _ = story(observation, "w")
    assert "before it in queue q: x (8 GPUs)" in said
    assert "room: there is some now" in said
    assert "order: x before it starts; that fits in 50 min by forecast" in said


def test_a_delay_ends_by_the_clock() -> None:
    """Ten of fifteen minutes have passed."""
    work = [holds("a", 8, priority=1), small("w", 2, 0, priority=3, preemption_delay_s=900.0)]
    said, _ = story(world("1x8", work, 600.0), "w")
    assert "held by delay: it has waited 10 min of the 15 min before it may preempt" in said
    assert "delay: it may displace others in 5 min" in said


def test_a_check_and_an_opt_out_are_nothing_that_time_ends() -> None:
    """No clock is told for them."""
    work = [small("out", 2, 0, gate=1), small("off", 2, 0, gate=2), small("own", 2, 0, excluded=True)]
    work += [small("kept", 2, 0, gate=4), small("late", 2, 0, gate=5)]
    observation = world("1x8", work, 600.0)
    for name, words in (
        ("out", "a check, a gate or a stopped queue still holds it"),
        ("off", "a check or a limit of Kueue switched it off"),
        ("late", "its pods were not ready in time, and keeps it out of its queue until status.requeueState.requeueAt"),
        ("own", "it opted out"),
        ("kept", "it is suspended or deactivated, or lacks pods, and waits until its owner lets it continue"),
    ):
        said, _ = story(observation, name)
        assert words in said
        assert "overdue" not in said
        assert "has no turn in the order of service" in said


def test_what_guards_hold_is_told_with_when_they_let_go() -> None:
    """A wish that must last, with the time that is left."""
    work = [holds("a", 8, priority=1), small("w", 8, 0, priority=3)]
    said, _ = story(world("1x8", work, 600.0), "w", with_policy(EAGER, hysteresis={"dwell_s": 300.0}))
    assert lines(said, "proposed now: start on 8 GPUs of 1 node")
    assert "held by gated" in said
    assert any(line.endswith("in 5 min") for line in lines(said, "guard hysteresis:"))


def test_those_who_are_too_young_to_be_displaced_are_counted_with_when_that_ends() -> None:
    """Of three that may be displaced two are sheltered yet: one by its promised run time, one by its cool-down."""
    work = [
        holds("young", 2, priority=1, start_s=540.0),
        holds("cool", 2, priority=1),
        holds("old", 3, priority=1),
        holds("hard", 1, priority=1, start_s=599.0, preemptible=False),
        small("w", 8, 0, priority=3),
    ]
    policy = with_policy(EAGER, protection={"min_runtime_s": 590.0})
    memory = ControllerMemory(budget=BudgetMemory(cooled_until_s={"cool": 780.0}))
    said, _ = story(world("1x8", work, 600.0), "w", policy, memory)
    assert lines(said, "shelter:") == [
        "shelter: 2 gangs on 4 GPUs may not be displaced yet, too young or disrupted before; "
        "first to lose that shelter is cool (2 GPUs), in 3 min"
    ]


def test_work_that_was_stopped_often_is_told_apart_to_both_sides() -> None:
    """Who waits reads that time brings nothing there; who runs, that only contracts stop it."""
    work = [holds("often", 8, priority=1), small("w", 8, 0, priority=3)]
    memory = ControllerMemory(losses=LossesMemory(weighed_stops={"often": EAGER.protection.most_stops}))
    observation = world("1x8", work, 60_000.0)
    said, _ = story(observation, "w", EAGER, memory)
    assert lines(said, "shelter:") == [
        "shelter: 1 gang on 8 GPUs may not be displaced again: stopped as often as policy allows"
    ]
    said, _ = story(observation, "often", EAGER, memory)
    assert lines(said, "sheltered: it was stopped 8 times; only contracts may stop it again")


def test_overdue_is_told_before_and_after() -> None:
    """Waiting an hour is the longest here; what is past it is told as a span. It is seen at the review after."""
    policy = with_policy(AUTO, order={"max_wait_s": 3600.0})
    work = [holds("a", 8), small("w", 2, 0)]
    early, _ = story(world("1x8", work, 600.0), "w", policy)
    late, _ = story(world("1x8", work, 7500.0), "w", policy)
    assert lines(early, "overdue in 55 min")  # the first review after the hour
    assert lines(late, "overdue for 1 h")
    between, _ = story(world("1x8", work, 600.0), "w", with_policy(AUTO, order={"max_wait_s": 3500.0}))
    assert lines(between, "overdue in 50 min")


# --- effects on the way -------------------------------------------------------------------------------


def test_a_start_that_waits_for_its_victim_is_told_from_both_sides() -> None:
    """The gang: where and when it starts; the victim: its beneficiary, and that it was evicted."""
    work = [holds("a", 8, priority=5), small("w", 8, 0, priority=9)]
    first, step = story(world("1x8", work, 600.0), "a")
    assert lines(first, "makes room now for w: evicted from 8 GPUs, expected loss 1.33 GPU-h: pipeline-w-")
    leaving = [holds("a", 8, priority=5, state=State.CHECKPOINTING), small("w", 8, 0, priority=9)]
    observation = world("1x8", leaving, 640.0, tick=1)
    winner, _ = story(observation, "w", memory=step.memory)
    loser, _ = story(observation, "a", memory=step.memory)
    assert (
        "starts on node-0 x 8 when others have made room (a: evicted from 8 GPUs, expected loss 1.33 GPU-h), given up "
        "in 9 min: pipeline-w-" in winner
    )
    assert "eviction sent 40 s ago (issued, attempt 1), checked again in " in loser
    assert lines(loser, "makes room for w: evicted from 8 GPUs, expected loss 1.33 GPU-h: pipeline-w-")


def test_a_kill_switch_is_told_first() -> None:
    """Nothing is carried out, whatever was proposed."""
    said, _ = story(world("1x8", [small("w", 8, 0)], 60.0, kill_switch=True), "w", AUTO)
    assert said.splitlines()[1] == "  everything is held: kill switch"


def test_the_reason_told_is_the_one_recorded() -> None:
    """Over a crowd of many kinds: every gang that waits is held by the code that its refusal has."""
    rng = np.random.default_rng(7)
    work: list[Item] = [holds(f"r{n}", 4, queue=int(rng.integers(2, 5)), gpus_per_member=4) for n in range(3)]
    work += [
        waits(
            f"w{n}",
            int(rng.choice([1, 2, 4, 8, 12])),
            queue=int(rng.integers(2, 5)),
            gpus_per_member=2,
            priority=int(rng.integers(0, 3)),
            preemptible=bool(rng.integers(0, 2)),
            submit_s=float(-rng.integers(0, 900)),
        )
        for n in range(14)
    ]
    work += [small("own", 2, 2, excluded=True), small("out", 2, 3, gate=1)]
    observation = world("2x8", work, 600.0, queues=DEPARTMENT, total_s={f"r{n}": 1000.0 * n + 700.0 for n in range(3)})
    told = set()
    for item in work[3:]:
        said, step = story(observation, item.id)
        refusals = step.decision.plan.refusals
        if item.id in observation.snapshot.workloads.id[refusals.workload]:
            code, _, _ = why_waits(step, observation, item.id)
            assert lines(said, f"held by {code}: ")
            assert "what would free it:" in said
            told.add(Code(code))
        else:
            assert lines(said, "proposed now: ")
    assert told == {Code.FAIRNESS, Code.GUARANTEE, Code.EXCLUDED, Code.CHECK}
