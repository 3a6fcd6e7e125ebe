"""What an approval covers, how a recommendation stays, and what a rejection forbids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from autopilot.core.effects.action import Action
from autopilot.core.effects.draft import Eviction
from autopilot.core.model.approvals import seen_of
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.memory.people import Approval
from autopilot.core.model.policy import Mode, Modes, Policy
from autopilot.core.model.records import (
    Code,
    Command,
    CommandKind,
    Observation,
    Proposal,
    RejectionScope,
    Seen,
)
from autopilot.core.model.snapshot import SloClass
from autopilot.explain.proposals import Answer, answer_of, refusing_codes
from tests.kits.core_world import (
    Item,
    decide,
    evicted,
    holds,
    proposals,
    started,
    taken_in,
    waits,
    with_policy,
    world,
)
from tests.kits.people_kit import APPROVE, ASKING, REJECT, notes, obey, said
from tests.kits.ticking_world import tenants

SEEN = Seen("preempt", "q", "w", 0, "plan", False, True, 32.0, 8.0, 100.0, ("q",), ("batch",))


def test_the_latest_word_on_a_recommendation_counts() -> None:
    """An approval withdraws an earlier rejection, and the other way round; a rejection ends after an hour."""
    seen: dict[str, Any] = {"subject": "p", "seen": SEEN}
    agreed = obey(said(REJECT, 0, **seen), said(APPROVE, 1, **seen))
    assert agreed.people.approvals == {"p": Approval(SEEN, False, 100.0, "ann")}
    assert agreed.people.rejections == {}
    refused = obey(said(APPROVE, 0, **seen), said(REJECT, 1, **seen))
    assert refused.people.approvals == {}
    assert refused.people.rejections["workload/p"].until_s == 3700.0
    assert obey(memory=refused, now_s=3700.0).people.rejections == {}


def test_a_rejection_is_revoked_by_its_name() -> None:
    """One that is unknown is refused with a note."""
    memory = obey(said(REJECT, 0, subject="p", seen=SEEN, scope=RejectionScope.QUEUE, for_s=inf))
    assert memory.people.rejections["queue/preempt/q"].until_s == inf
    assert obey(said(CommandKind.REVOKE, 1, subject="queue/preempt/q"), memory=memory).people.rejections == {}
    step = decide(world("1x8", (), 0.0, commands=(said(CommandKind.REVOKE, 1, subject="plan/p"),)))
    assert notes(step) == ["revoke by ann is refused: there is no rejection 'plan/p'"]


class Scenario:
    """One eviction of `v` without a beneficiary: the test sets its benefit, cost, place and contract."""

    def __init__(self) -> None:
        self.benefit_gpu_s, self.cost_gpu_s, self.contract = 1e6, 100.0, False
        self.to: int | None = None

    def __call__(self, ctx: Any, submit: Callable[[Any], bool]) -> None:
        """Propose it."""
        from autopilot.core.effects.draft import Case
        from autopilot.core.effects.evict import EvictDraft

        names = ctx.observation.snapshot.workloads.id.tolist()
        row = names.index("v")
        layout = ctx.whatif.layout_of(row)
        keeps = None if self.to is None else replace(layout, gpu=layout.gpu + 8 * self.to)
        give = Eviction(row, "evict" if keeps is None else "move", keeps, len(layout), 0.0)
        submit(
            EvictDraft(
                case=Case("preempt", "evict", contract="planted" if self.contract else ""),
                row=names.index("w"),
                benefit_gpu_s=self.benefit_gpu_s,
                cost_gpu_s=self.cost_gpu_s,
                evidence=(),
                evictions=(give,),
            )
        )

    def decide(
        self, now_s: float, memory: ControllerMemory | None = None, policy: Policy = ASKING, **more: Any
    ) -> Step:
        """The decision with this wish as the only action."""
        calm = with_policy(policy, hysteresis={"dwell_s": 0.0, "cool_down_s": 0.0})
        return decide(self.seen(now_s, **more), calm, memory, actions=(Action("preempt", "", self),))

    def seen(self, now_s: float, **more: Any) -> Observation:
        """Eight GPUs held, and a gang that waits."""
        return world("4x8", [holds("v", 8, range(8), start_s=-1e6), waits("w", 32)], now_s, **more)

    def approved(self, now_s: float = 1000.0, **changed: Any) -> tuple[ControllerMemory, Proposal]:
        """Memory right after a person approved what was shown."""
        first = self.decide(now_s - 10.0)
        (proposal,) = first.decision.plan.proposals
        word = said(APPROVE, 0, now_s, subject=proposal.recommendation, **{"seen": seen_of(proposal)} | changed)
        return taken_in(first.memory, self.seen(now_s, commands=(word,), tick=1), ASKING), proposal


def refused(step: Step) -> set[Code]:
    """Codes of the guards that held the only proposal."""
    (proposal,) = step.decision.plan.proposals
    return {verdict.code for verdict in proposal.verdicts if not verdict.allowed}


@pytest.fixture
def scenario() -> Scenario:
    """A wish that needs an approval."""
    return Scenario()


def test_an_approval_acts_on_what_was_shown(scenario: Scenario) -> None:
    """Unchanged, it is carried out."""
    assert refused(scenario.decide(990.0)) == {Code.NEEDS_APPROVAL}
    memory, proposal = scenario.approved()
    (effect,) = scenario.decide(1000.0, memory).instructions
    assert effect.proposal_id == proposal.id


@pytest.mark.parametrize(("shown", "most"), [(100.0, 460.0), (3600.0, 4320.0), (0.0, 360.0)])
def test_an_approval_covers_a_little_more_loss_than_was_shown(scenario: Scenario, shown: float, most: float) -> None:
    """The greater of 1.2 times the cost and 0.1 GPU-h more. Beyond it asks again, and goes on when that falls back."""
    scenario.cost_gpu_s = shown
    memory, _ = scenario.approved()
    scenario.cost_gpu_s = most + 0.1
    step = scenario.decide(1000.0, memory)
    assert refused(step) == {Code.APPROVAL_COST_ROSE}
    assert answer_of(step.decision.plan.proposals[0]) == Answer.NEEDS_APPROVAL
    scenario.cost_gpu_s = most
    assert refused(scenario.decide(1010.0, step.memory)) == set()


def test_a_gain_that_fell_ends_no_approval(scenario: Scenario) -> None:
    """What was approved is the loss; what does not gain any more is not proposed."""
    memory, _ = scenario.approved()
    scenario.benefit_gpu_s = 5e5
    assert refused(scenario.decide(1000.0, memory)) == set()


@pytest.mark.parametrize(
    ("column", "code"),
    [
        ({"queue": 1}, Code.APPROVAL_OTHER_WORK),
        ({"slo_class": SloClass.INTERACTIVE}, Code.APPROVAL_OTHER_WORK),
        ({"uid": "v-new"}, None),
        ({"incarnation": 1}, None),
    ],
    ids=str,
)
def test_victims_of_the_queues_and_classes_shown_are_covered(
    scenario: Scenario, column: dict[str, Any], code: Code | None
) -> None:
    """Which of them leaves may change until it is carried out."""
    memory, _ = scenario.approved()
    work = [holds("v", 8, range(8), start_s=-1e6, **column), waits("w", 32)]
    queues = tenants(("a", 0, 8), ("b", 0, 8))
    scenario.seen = lambda now_s, **more: world("4x8", work, now_s, queues=queues, **more)  # type: ignore[method-assign]
    assert refused(scenario.decide(1000.0, memory)) - {Code.PROTECTED_CLASS} == ({code} if code else set())


def test_an_approval_covers_no_more_gpus(scenario: Scenario) -> None:
    """Neither in one plan, nor in all that is carried out under it together."""
    memory, _ = scenario.approved()
    (key,) = memory.people.approvals
    small = replace(memory.people.approvals[key], seen=replace(memory.people.approvals[key].seen, taken_gpus=7.0))
    assert refused(scenario.decide(1000.0, replace(memory, people=replace(memory.people, approvals={key: small})))) == {
        Code.APPROVAL_GREW
    }
    used = replace(memory.people.approvals[key], taken_gpus=1.0)
    assert refused(scenario.decide(1000.0, replace(memory, people=replace(memory.people, approvals={key: used})))) == {
        Code.APPROVAL_GREW
    }
    spent = replace(memory.people.approvals[key], spent_gpu_s=400.0)
    assert refused(scenario.decide(1000.0, replace(memory, people=replace(memory.people, approvals={key: spent})))) == {
        Code.APPROVAL_COST_ROSE
    }


def test_what_is_carried_out_counts_against_its_approval(scenario: Scenario) -> None:
    """Its plan, its GPUs and its loss; the retry of the same plan counts once."""
    memory, proposal = scenario.approved()
    after = scenario.decide(1000.0, memory).memory.people.approvals[proposal.recommendation]
    assert (after.sent, after.taken_gpus, after.spent_gpu_s) == ((proposal.state_digest,), 8.0, 100.0)


def test_an_approval_of_the_very_plan_covers_no_other(scenario: Scenario) -> None:
    """Another place is another plan."""
    scenario.to = 2
    for exactly, found in ((True, {Code.APPROVAL_OTHER_PLAN}), (False, set())):
        scenario.to = 2
        memory, _ = scenario.approved(exactly=exactly)
        assert refused(scenario.decide(1000.0, memory)) == set()
        scenario.to = 1
        assert refused(scenario.decide(1000.0, memory)) == found


def test_an_approval_expires_and_that_is_a_timer(scenario: Scenario) -> None:
    """A quarter of an hour after it was given, whenever it was delivered."""
    memory, _ = scenario.approved()
    rare = with_policy(ASKING, budget={"per_cluster": 0, "concurrent": 0}, review={"batch_s": 3600.0})
    held = scenario.decide(1000.0, memory, rare)
    assert refused(held) == {Code.BUDGET_CLUSTER}
    assert held.wake_at_s == 1900.0
    assert refused(scenario.decide(1899.0, memory)) == set()
    assert refused(scenario.decide(1900.0, memory)) == {Code.APPROVAL_EXPIRED}


def test_an_approval_from_the_future_lasts_no_longer(scenario: Scenario) -> None:
    """It counts from when it was received."""
    first = scenario.decide(990.0)
    (proposal,) = first.decision.plan.proposals
    word = said(APPROVE, 0, 1e9, subject=proposal.recommendation)
    memory = scenario.decide(1000.0, first.memory, replace(ASKING, modes=Modes()), commands=(word,)).memory
    assert memory.people.approvals[proposal.recommendation].given_s == 1000.0


def test_an_approval_of_what_is_shown_is_of_the_last_decision(scenario: Scenario) -> None:
    """It is refused with a note where no decision showed it."""
    memory, proposal = scenario.approved(seen=None)
    assert memory.people.approvals[proposal.recommendation].seen == seen_of(proposal)
    word = said(APPROVE, 0, 5.0, subject=proposal.recommendation)
    blind = scenario.decide(1000.0, commands=(word,))
    assert refused(blind) == {Code.NEEDS_APPROVAL}
    assert any("is not proposed now" in note for note in notes(blind))


def test_a_recommendation_keeps_its_id_and_its_figures(scenario: Scenario) -> None:
    """Figures that move by less than a fifth are shown as before; beyond, the same recommendation changes."""
    step = scenario.decide(990.0)
    (shown,) = step.decision.plan.proposals
    scenario.cost_gpu_s, scenario.benefit_gpu_s = 119.0, 0.9e6
    same = scenario.decide(1000.0, step.memory)
    assert replace(same.decision.plan.proposals[0], verdicts=()) == replace(shown, verdicts=())
    scenario.cost_gpu_s = 126.0
    moved = scenario.decide(1010.0, same.memory)
    assert moved.decision.plan.proposals[0].cost_gpu_s == 126.0
    (opened,) = moved.memory.people.open_proposals.values()
    assert (opened.since_s, opened.changed_s) == (990.0, 1010.0)
    assert list(moved.memory.people.open_proposals) == list(step.memory.people.open_proposals) == [shown.recommendation]


def test_who_is_taken_is_part_of_the_state(scenario: Scenario) -> None:
    """Another object under the victim's name, or a victim of another life, is another proposal."""
    _, shown = scenario.approved()
    for column in ({"uid": "v-new"}, {"incarnation": 1}):
        work = [holds("v", 8, range(8), start_s=-1e6, **column), waits("w", 32)]
        scenario.seen = lambda now_s, work=work, **more: world("4x8", work, now_s, **more)  # type: ignore[method-assign]
        (other,) = scenario.decide(1000.0).decision.plan.proposals
        assert other.state_digest != shown.state_digest


def test_contract_or_not_is_part_of_the_state(scenario: Scenario) -> None:
    """A preemption by contract and a weighed one need separate approvals."""
    _, shown = scenario.approved()
    scenario.contract = True
    (other,) = scenario.decide(1000.0).decision.plan.proposals
    assert other.state_digest != shown.state_digest


@pytest.mark.parametrize(
    ("scope", "same", "other_plan", "other_object"),
    [("plan", True, False, False), ("workload", True, True, False), ("queue", True, True, True)],
)
def test_a_rejection_has_a_scope(
    scenario: Scenario, scope: str, *, same: bool, other_plan: bool, other_object: bool
) -> None:
    """This plan, this action for this object, or this action for its queue."""
    policy = replace(ASKING, modes=Modes(*[Mode.AUTO] * len(Modes.__dataclass_fields__)))
    (proposal,) = scenario.decide(990.0, policy=policy).decision.plan.proposals
    no = said(REJECT, 0, 1000.0, subject=proposal.recommendation, seen=seen_of(proposal), scope=RejectionScope(scope))

    def rejected() -> bool:
        return refused(scenario.decide(1000.0, None, policy, commands=(no,))) == {Code.REJECTED}

    assert rejected() == same
    scenario.to = 2
    assert rejected() == other_plan
    work = [holds("v", 8, range(8), start_s=-1e6), waits("w", 32, uid="w-new")]
    scenario.seen = lambda now_s, **more: world("4x8", work, now_s, **more)  # type: ignore[method-assign]
    assert rejected() == other_object


def test_a_stale_view_ends_no_approval() -> None:
    """What is not proposed because nothing is known may be proposed again: the approval waits, and expires as
    promised.
    """
    first = decide(world("1x8", [waits("a", 8)], 0.0), ASKING)
    (wanted,) = proposals(first).values()
    word = said(APPROVE, 0, 5.0, subject=wanted.recommendation, seen=seen_of(wanted))
    blind = world("1x8", (), 10.0, tick=1, commands=(word,))
    blind = replace(blind, snapshot=replace(blind.snapshot, work_age_s=float("inf")))
    kept = decide(blind, ASKING, first.memory).memory
    assert list(started(decide(world("1x8", [waits("a", 8)], 20.0, tick=2), ASKING, kept))) == ["a"]
    gone = decide(world("1x8", (), 10.0, tick=1, commands=(word,)), ASKING, first.memory).memory
    assert not gone.people.approvals


def approval_of(step: Step, name: str) -> tuple[Command, Proposal]:
    """An approval of the start that a decision shows for `name`."""
    (shown,) = [each for each in step.decision.plan.proposals if each.subject.name == name]
    return said(APPROVE, 0, 5.0, subject=shown.recommendation, seen=seen_of(shown)), shown


def test_a_start_is_approved_for_what_it_takes_and_not_for_where() -> None:
    """Others took the node that was shown: the approved gang starts on another one."""
    first = decide(world("3x8", [waits("b", 8)], 0.0), ASKING)
    word, shown = approval_of(first, "b")
    taken = [holds("a", 8, range(8)), waits("b", 8)]
    then = decide(world("3x8", taken, 10.0, tick=1, commands=(word,)), ASKING, first.memory)
    (now,) = [each for each in then.decision.plan.proposals if each.subject.name == "b"]
    assert {slot.node for slot in now.slots} != {slot.node for slot in shown.slots}
    assert list(started(then)) == ["b"]


def test_a_start_stays_where_it_was_shown() -> None:
    """A node that comes free later, and fits better, does not move a recommendation."""
    first = decide(world("2x8", [waits("b", 4), holds("h", 8, range(8))], 0.0), ASKING)
    (shown,) = first.decision.plan.proposals
    then = world("2x8", [waits("b", 4), holds("h", 4, range(4))], 10.0, tick=1)
    (fresh,) = decide(then, ASKING).decision.plan.proposals
    (kept,) = decide(then, ASKING, first.memory).decision.plan.proposals
    assert fresh.slots != shown.slots
    assert kept.slots == shown.slots


def test_what_is_approved_goes_before_what_waits_for_it() -> None:
    """A recommendation that nobody approved holds no room against it."""
    waiting = [waits("a", 8, submit_s=-20.0), waits("b", 8, submit_s=-10.0)]
    shown = decide(world("2x8", waiting, 0.0), ASKING)
    word, _ = approval_of(shown, "b")
    then = decide(world("1x8", waiting, 10.0, tick=1, commands=(word,)), ASKING, shown.memory)
    assert list(started(then)) == ["b"]


def test_an_approval_waits_for_room() -> None:
    """A start that is not possible for a while is carried out when it is, until the approval expires."""
    gang = waits("b", 8)
    first = decide(world("1x8", [gang], 0.0), ASKING)
    word, _ = approval_of(first, "b")
    full = decide(world("1x8", [gang, holds("h", 8)], 10.0, tick=1, commands=(word,)), ASKING, first.memory)
    assert not started(full)
    for now_s, found in ((800.0, ["b"]), (905.0, [])):
        assert list(started(decide(world("1x8", [gang], now_s, tick=2), ASKING, full.memory))) == found


def test_the_approval_of_a_preemption_covers_the_start_without_it() -> None:
    """Its victims ended by themselves."""
    work = [holds("v", 8, priority=0, start_s=-1e6), waits("w", 8, priority=10)]
    calm = with_policy(ASKING, hysteresis={"dwell_s": 0.0})
    first = decide(world("1x8", work, 0.0), calm)
    word, shown = approval_of(first, "w")
    assert shown.kind == "pipeline"
    free = world("1x8", work[1:], 10.0, tick=1, commands=(word,))
    assert list(started(decide(free, calm, first.memory))) == ["w"]
    exact = world("1x8", work[1:], 10.0, tick=1, commands=(replace(word, exactly=True),))
    assert not started(decide(exact, calm, first.memory))


@pytest.mark.parametrize(("starts", "code"), [(Mode.AUTO, Code.ON_PAPER), (Mode.APPROVE, Code.NEEDS_APPROVAL)])
def test_a_start_in_room_of_another_recommendation_is_no_question_of_its_own(starts: Mode, code: Code) -> None:
    """`a` takes the place of a borrower, and `b` fits beside it: `b` needs an approval only where every start does."""
    policy = replace(ASKING, modes=replace(ASKING.modes, admit_gang=starts))
    borrowers = [holds(name, 8, queue=2, start_s=-1e6) for name in "vx"]
    work = [*borrowers, waits("a", 6, queue=1), waits("b", 2, queue=1)]

    def tick(number: int, items: Sequence[Item], step: Step | None = None, *words: Command) -> Step:
        seen = world("2x8", items, 10.0 * number, queues=tenants(("a", 0, 8), ("b", 0, 0)), tick=number, commands=words)
        return decide(seen, policy, None if step is None else step.memory)

    first = tick(0, work)
    assert {each.subject.name: set(refusing_codes(each)) for each in first.decision.plan.proposals} == {
        "a": {Code.NEEDS_APPROVAL},
        "b": {code},
    }
    agreed = tick(1, work, first, approval_of(first, "a")[0])
    assert evicted(agreed) == ["v"]
    gone = [waits("v", 8, queue=2, incarnation=1), *work[1:]]
    after = tick(3, gone, tick(2, work, agreed))
    assert sorted(started(after)) == ["a", "b"][: 2 if starts == Mode.AUTO else 1]
