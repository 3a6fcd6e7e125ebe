"""What a start takes from work that waits: the quota that its scheduler has reserved for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autopilot.core.model.approvals import group_of
from autopilot.core.model.changes import AdmitChange
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.objects import SchedulerQuota, SideEffect
from autopilot.core.model.operations import AdmitOperation
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Code, Observation
from autopilot.explain.proposals import Answer, answer_of, proposal_words
from autopilot.explain.story.telling import tell
from autopilot.explain.view import explain_proposal, view_of
from tests.kits.core_world import AUTO, Item, decide, proposals, taken_in, waits, world
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


def _approved(observation: Observation, memory: ControllerMemory, policy: Policy = ASKING) -> ControllerMemory:
    """Memory after somebody approves the start that is open."""
    (name,) = memory.open_proposals
    word = said(APPROVE, observation.tick, observation.now_s, subject=name)
    return taken_in(memory, replace(observation, commands=(word,)), policy)


def test_a_start_that_was_shown_to_take_nothing_takes_no_quota() -> None:
    """It asks again and says how much; approved as it is now, it is carried out, once more under the same plan."""
    free = scene(FIRST, waits("big", 16, queue=3, scheduler_quota=LACKING, gate=1))
    memory = _approved(free, decide(free, ASKING).memory)
    assert [each.seen.side_gpus for each in memory.approvals.values()] == [0.0]
    now = scene(FIRST, BIG, now_s=110.0, tick=1)
    step = decide(now, ASKING, memory)
    (proposal,) = step.decision.plan.proposals
    (held,) = [verdict for verdict in proposal.verdicts if not verdict.allowed]
    assert (held.code, held.value, held.threshold) == (Code.APPROVAL_SIDE_EFFECTS, 16.0, 0.0)
    assert (answer_of(proposal), step.instructions) == (Answer.NEEDS_APPROVAL, ())

    agreed = _approved(now, step.memory)
    again = decide(scene(FIRST, BIG, now_s=120.0, tick=2), ASKING, agreed)
    assert [each.subject.name for each in again.instructions] == ["first"]
    assert [each.side_gpus for each in again.memory.approvals.values()] == [16.0]


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
