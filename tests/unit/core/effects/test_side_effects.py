"""What a start takes from work that waits: the quota that its scheduler has reserved for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autopilot.app.decisions.past import Past
from autopilot.core.effects.admit import AdmitChange, AdmitOperation
from autopilot.core.model.approvals import group_of, seen_of
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.objects import SchedulerQuota, SideEffect, Taken
from autopilot.core.model.policy import Mode, Policy
from autopilot.core.model.records import Code, Observation
from autopilot.core.model.snapshot import SloClass
from autopilot.explain.proposals import Answer, answer_of, proposal_words
from autopilot.explain.story.telling import tell
from autopilot.explain.view import explain_proposal, view_of
from autopilot.records.journal import DecisionRecord
from autopilot.service.acting import waiting_texts
from tests.kits.core_world import AUTO, Item, decide, holds, proposals, taken_in, waits, with_policy, world
from tests.kits.instructions import asked
from tests.kits.people_kit import APPROVE, ASKING, said
from tests.kits.ticking_world import tenants

LACKING, TAKEABLE, STAYS = SchedulerQuota.LACKING, SchedulerQuota.TAKEABLE, SchedulerQuota.STAYS
FIRST = waits("first", 8, queue=2, scheduler_quota=LACKING)
BIG = waits("big", 16, queue=3, scheduler_quota=TAKEABLE)


def scene(*work: Item, quota: tuple[int, int] = (8, 8), now_s: float = 100.0, **more: Any) -> Observation:
    """Two queues of a cohort with these quotas on 16 free GPUs."""
    queues = tenants(("all", 0, 0), ("a", 1, quota[0]), ("b", 1, quota[1]))
    return world("2x8", work, now_s, queues=queues, **more)


def taken(step: Step) -> dict[str, float]:
    """What the start of `first` takes: GPUs by workload."""
    return {each.workload: each.gpus for each in proposals(step)["first"].change.side_effects}


def test_a_start_names_the_quota_that_it_takes_and_counts_it_as_cost() -> None:
    """The instruction may take that quota and no other; the cost is its GPUs until the start is over at the latest."""
    step = decide(scene(FIRST, BIG))
    (proposal,) = step.decision.plan.proposals
    assert proposal.change.side_effects == (SideEffect("big", "big", "b", 16.0, 16.0 * 120.0),)
    assert proposal.cost_gpu_s == 16.0 * 120.0
    (start,) = step.instructions
    assert isinstance(start.operation, AdmitOperation)
    assert start.operation.quota_from == {"big": "big"}
    assert isinstance(proposal.change, AdmitChange)
    assert group_of(proposal) != group_of(replace(proposal, change=replace(proposal.change, side_effects=())))


@pytest.mark.parametrize(
    ("first", "others", "quota", "names"),
    [
        (FIRST, [BIG], (8, 16), []),  # there is quota for both
        (FIRST, [replace(BIG, columns={**BIG.columns, "scheduler_quota": LACKING})], (8, 8), []),
        (FIRST, [replace(BIG, columns={**BIG.columns, "scheduler_quota": STAYS})], (8, 8), []),
        (FIRST, [replace(BIG, columns={**BIG.columns, "excluded": True})], (8, 8), []),
        (FIRST, [replace(BIG, columns={**BIG.columns, "mig_profile": 0})], (8, 8), []),
        (replace(FIRST, columns={**FIRST.columns, "scheduler_quota": TAKEABLE}), [BIG], (8, 8), []),
        (replace(FIRST, columns={**FIRST.columns, "scheduler_quota": SchedulerQuota.NOT_ASKED}), [BIG], (8, 8), []),
    ],
)
def test_a_start_takes_nothing_that_it_does_not_need_or_cannot_have(
    first: Item, others: list[Item], quota: tuple[int, int], names: list[str]
) -> None:
    """Its quota fits or is reserved, or what waits has none, keeps it, opted out, or asks for other devices."""
    assert list(taken(decide(scene(first, *others, quota=quota)))) == names


def test_the_least_important_work_gives_up_as_little_as_suffices() -> None:
    """The youngest of equal priority; work that is not needed in the end keeps its quota."""
    held: dict[str, Any] = {"queue": 3, "scheduler_quota": TAKEABLE, "gate": 1}
    small, old = waits("small", 2, priority=-1, **held), waits("old", 8, submit_s=1.0, **held)
    young = waits("young", 8, submit_s=2.0, **held)
    assert taken(decide(scene(FIRST, old, young, quota=(8, 8)))) == {"young": 8.0}
    assert taken(decide(scene(FIRST, small, old, young, quota=(8, 10)))) == {"young": 8.0}
    assert taken(decide(scene(FIRST, small, young, quota=(0, 16)))) == {"small": 2.0}


def test_one_reservation_is_not_taken_twice() -> None:
    """What the first start takes is not there for the next one of the same plan."""
    second = waits("second", 8, queue=2, scheduler_quota=LACKING, submit_s=1.0)
    step = decide(scene(FIRST, second, BIG, quota=(8, 8)))
    assert [len(each.change.side_effects) for each in step.decision.plan.proposals] == [1, 0]


def test_both_sides_are_told() -> None:
    """In the words of the proposal, its explanation, and the story of the work that loses its quota."""
    seen = scene(FIRST, BIG)
    step = decide(seen)
    (proposal,) = step.decision.plan.proposals
    said = "until it has started it takes the reserved quota of waiting work: big (16 GPUs, queue b)"
    assert said in proposal_words(proposal)
    loses = "  big loses its reserved quota (16 GPUs), at most 0.533 GPU-h of waiting"
    assert loses in explain_proposal(view_of(proposal, step.decision))
    assert f"  a start of first takes its reserved quota (16 GPUs): {proposal.id} (admit_gang)" in tell(
        "big", seen, step.decision
    )
    past = Past("big")
    past.take_in(DecisionRecord(0, 0, 0, 9.0, True, AUTO, b"", b"", None, 0, step.decision, step.instructions, ()))
    words = [each.words for each in past.events]
    assert words == [f"the start of first takes its reserved quota (16 GPUs): {proposal.id} (admit_gang)"]


def _approved(observation: Observation, memory: ControllerMemory, policy: Policy = ASKING) -> ControllerMemory:
    """Memory after somebody approves the start that is open."""
    (name,) = memory.people.open_proposals
    word = said(APPROVE, observation.tick, observation.now_s, subject=name)
    return taken_in(memory, replace(observation, commands=(word,)), policy)


def test_a_start_that_was_shown_to_take_nothing_takes_no_quota() -> None:
    """It asks again and says how much; approved as it is now, it is carried out, once more under the same plan."""
    free = scene(FIRST, waits("big", 16, queue=3, scheduler_quota=LACKING, gate=1))
    memory = _approved(free, decide(free, ASKING).memory)
    assert [each.seen.side_gpus for each in memory.people.approvals.values()] == [0.0]
    now = scene(FIRST, BIG, now_s=110.0, tick=1)
    step = decide(now, ASKING, memory)
    (proposal,) = step.decision.plan.proposals
    (held,) = [verdict for verdict in proposal.verdicts if not verdict.allowed]
    assert (held.code, held.value, held.threshold) == (Code.APPROVAL_SIDE_EFFECTS, 16.0, 0.0)
    assert (answer_of(proposal), step.instructions) == (Answer.NEEDS_APPROVAL, ())

    agreed = _approved(now, step.memory)
    again = decide(scene(FIRST, BIG, now_s=120.0, tick=2), ASKING, agreed)
    assert [each.subject.name for each in again.instructions] == ["first"]
    assert [each.side_gpus for each in again.memory.people.approvals.values()] == [16.0]


@pytest.mark.parametrize(("queue", "code"), [(3, set()), (2, {Code.APPROVAL_SIDE_EFFECTS})])
def test_the_quota_of_another_queue_than_was_shown_is_not_covered(queue: int, code: set[Code]) -> None:
    """Other work of the queue that was shown is."""
    before = scene(FIRST, BIG)
    memory = _approved(before, decide(before, ASKING).memory)
    other = waits("other", 16, queue=queue, scheduler_quota=TAKEABLE, gate=1)
    (proposal,) = decide(scene(FIRST, other, now_s=110.0, tick=1), ASKING, memory).decision.plan.proposals
    assert {verdict.code for verdict in proposal.verdicts if not verdict.allowed} == code


def test_under_auto_nothing_is_asked() -> None:
    """The mode of the action decides."""
    assert len(decide(scene(FIRST, BIG), AUTO).instructions) == 1


# --- room that is held above a guarantee ----------------------------------------------------------------

HELD = with_policy(AUTO, reservation={"depth": 1}, modes={"preempt": Mode.OFF, "reclaim_borrowed": Mode.OFF})
OWNERS = tenants(("own", 0, 12), ("other", 0, 4), priority={"own": 1})
RUNS: dict[str, float] = {"a": 1000.0, "big": 500.0, "owed": 5000.0}


def reserved(policy: Policy = HELD, **runs: float) -> tuple[Observation, Step]:
    """`big` of `own` waits for 16 GPUs, above the guarantee of its queue; `owed` of `other` is inside its own."""
    work = [holds("a", 8, queue=1), waits("big", 16, priority=1, queue=1), waits("owed", 4, queue=2)]
    seen = world("2x8", work, total_s=RUNS | runs, queues=OWNERS)
    return seen, decide(seen, policy)


@pytest.mark.parametrize(("run_s", "waits_s"), [(5000.0, 4000.0), (1e9, 86400.0 - 1000.0)], ids=["run time", "horizon"])
def test_a_start_names_the_reservation_that_it_takes_room_from(run_s: float, waits_s: float) -> None:
    """Its cost is those GPUs from the planned start of the reserved gang on, and both sides say it."""
    seen, step = reserved(owed=run_s)
    proposal = proposals(step)["owed"]
    (effect,) = proposal.change.side_effects
    assert (effect.workload, effect.queue, effect.gpus, effect.what) == ("big", "own", 4.0, Taken.ROOM)
    assert effect.wait_gpu_s == pytest.approx(4 * waits_s, rel=0.1)
    assert proposal.cost_gpu_s == effect.wait_gpu_s
    words = "the guarantee of its queue takes precedence over room that is reserved for: big (4 GPUs, queue own)"
    assert words in proposal_words(proposal)
    assert f"  a start of owed takes its reserved room (4 GPUs): {proposal.id} (admit_gang)" in tell(
        "big", seen, step.decision
    )
    assert waiting_texts(step.decision) == {"big": "a start of owed takes its reserved room (4 GPUs)"}
    (start,) = step.instructions
    assert asked(start, AdmitOperation).quota_from == {}


def test_room_that_is_free_in_time_is_taken_from_none() -> None:
    """`owed` ends before the reserved gang would start."""
    _, step = reserved(owed=300.0)
    assert proposals(step)["owed"].change.side_effects == ()


# --- the turn of others ---------------------------------------------------------------------------------

A, B = waits("a", 8, queue=2, submit_s=-20.0), waits("b", 8, queue=3, submit_s=-10.0)
"""`a` comes first."""


def asks(shape: str, work: list[Item], tick: int = 0, memory: ControllerMemory | None = None) -> Step:
    """A decision about starts that need approval, 10 s after the one before."""
    seen = world(shape, work, 10.0 * tick, tick=tick, queues=tenants(("all", 0, 0), ("a", 1, 8), ("b", 1, 8)))
    return decide(seen, ASKING, memory)


def turns(step: Step, name: str = "b") -> list[str]:
    """The starts that it passes."""
    return [each.workload for each in proposals(step)[name].change.side_effects if each.what == Taken.TURN]


def approved(step: Step, name: str = "b") -> ControllerMemory:
    """Memory after somebody approves a start as it is shown."""
    shown = proposals(step)[name]
    word = said(APPROVE, step.decision.tick, step.decision.now_s, subject=shown.recommendation, seen=seen_of(shown))
    return taken_in(step.memory, world("2x8", [A, B], step.decision.now_s, commands=(word,)), ASKING)


def test_a_recommendation_names_the_starts_that_it_passes_once_approved() -> None:
    """Passing costs nothing and changes no plan, and equal starts stay one card. `explain` of the other names it."""
    step = asks("2x8", [A, B])
    proposal = proposals(step)["b"]
    assert (turns(step, "a"), turns(step), proposal.cost_gpu_s) == ([], ["a"], 0.0)
    assert isinstance(proposal.change, AdmitChange)
    alone = replace(proposal, change=replace(proposal.change, side_effects=()))
    assert group_of(alone) == group_of(proposal)
    assert "once approved it comes before starts that wait for approval (queue a)" in proposal_words(proposal)
    told = tell("a", world("2x8", [A, B], queues=tenants(("all", 0, 0), ("a", 1, 8), ("b", 1, 8))), step.decision)
    assert "  a start that is approved comes before it: b" in told
    asked_for = [
        f"its start waits for a person: `autopilot approve {proposals(step)[each].recommendation}`" for each in "ab"
    ]
    passes = "; once approved it comes before starts that wait for approval"
    assert waiting_texts(step.decision) == {"a": asked_for[0], "b": asked_for[1] + passes}
    assert asks("2x8", [A, B], 1, step.memory).memory.people.open_proposals == step.memory.people.open_proposals
    other = waits("c", 8, queue=2, submit_s=-20.0, slo_class=SloClass.INTERACTIVE)
    assert turns(asks("2x8", [other, B])) == []


def test_an_approved_start_takes_the_turn_of_those_that_it_was_shown_to_pass() -> None:
    """Where there is room for both it passes none."""
    memory = approved(asks("2x8", [A, B]))
    free, short = (asks(shape, [A, B], 1, memory) for shape in ("2x8", "1x8"))
    assert (turns(free), turns(short)) == ([], ["a"])
    assert [each.subject.name for step in (free, short) for each in step.instructions] == ["b", "b"]


def test_an_approved_start_passes_none_of_a_queue_that_was_not_shown() -> None:
    """`a` keeps its room until a person has seen that it loses it."""
    memory = approved(asks("2x8", [B]))
    both = asks("2x8", [A, B], 1, asks("2x8", [A, B]).memory)
    step = asks(
        "1x8", [A, B], 2, replace(both.memory, people=replace(both.memory.people, approvals=memory.people.approvals))
    )
    assert step.instructions == ()
    (held,) = [each for each in proposals(step)["b"].verdicts if not each.allowed]
    assert (held.code, held.value, turns(step)) == (Code.APPROVAL_SIDE_EFFECTS, 8.0, ["a"])
    assert answer_of(proposals(step)["a"]) == Answer.NEEDS_APPROVAL
    again = asks("1x8", [A, B], 3, approved(step))
    assert [each.subject.name for each in again.instructions] == ["b"]
