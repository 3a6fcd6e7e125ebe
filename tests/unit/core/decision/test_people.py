"""Commands of people: which of them count, in which order, and what an approval holds for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from autopilot.core.model.memory import Approval, ControllerMemory, Failure, InFlight, OpenProposal, Step
from autopilot.core.model.operations import AdmitOperation
from autopilot.core.model.policy import Mode, Modes, Policy
from autopilot.core.model.records import (
    Code,
    Command,
    CommandKind,
    Observation,
    Outcome,
    OutcomeKind,
    Proposal,
)
from autopilot.core.planning.action import Action
from autopilot.core.planning.draft import Eviction
from autopilot.explain.notes import note_words
from autopilot.explain.proposals import Answer, answer_of
from tests.kits.core_world import (
    AUTO,
    decide,
    holds,
    observe,
    proposals,
    snapshot,
    started,
    taken_in,
    waits,
    with_policy,
    world,
)
from tests.kits.instructions import instruct

KILL, RESUME, PAUSE = CommandKind.KILL, CommandKind.RESUME, CommandKind.PAUSE
APPROVE, REJECT = CommandKind.APPROVE, CommandKind.REJECT
ASKING = replace(AUTO, modes=Modes(*[Mode.APPROVE] * 10))


def said(kind: CommandKind, sequence: int = -1, at_s: float = 100.0, who: str = "ann", **more: Any) -> Command:
    """A command of a person."""
    return Command(kind, who, at_s, sequence=sequence, **more)


def obey(*commands: Command, memory: ControllerMemory | None = None, now_s: float = 100.0) -> ControllerMemory:
    """Memory after commands."""
    return taken_in(memory or ControllerMemory(), world("1x8", (), now_s, commands=commands), AUTO)


def notes(step: Step) -> list[str]:
    """What the decision says of refused commands."""
    return [note_words(note) for note in step.decision.notes]


# --- kill, resume, pause -----------------------------------------------------------------------------


def test_kill_stays_until_a_later_resume() -> None:
    """No length of time ends it; a RESUME with a higher number does."""
    killed = obey(said(KILL, 3))
    assert killed.killed
    assert obey(memory=killed, now_s=1e9).killed
    assert not obey(said(RESUME, 4), memory=killed).killed


@pytest.mark.parametrize(
    ("resume", "ends"),
    [(4, True), (3, False), (2, False), (-1, False)],
    ids=["later", "same number", "earlier", "no number"],
)
def test_only_a_resume_received_after_the_kill_ends_it(resume: int, *, ends: bool) -> None:
    """In whichever order the two are delivered, in one batch or in two."""
    kill, word = said(KILL, 3), said(RESUME, resume)
    for batch in permutations((kill, word)):
        assert obey(*batch).killed is not ends
    assert obey(word, memory=obey(kill)).killed is not ends


def test_a_kill_without_a_number_wins_over_everything_in_its_batch() -> None:
    """Only a RESUME with a number above all that were seen then ends it."""
    killed = obey(said(KILL), said(RESUME, 7))
    assert killed.killed
    assert obey(said(RESUME, 7), memory=killed).killed
    assert not obey(said(RESUME, 8), memory=killed).killed


def test_a_kill_below_the_last_number_counts_and_a_repeat_does_not() -> None:
    """A counter that began anew hides no KILL; the one that was obeyed and ended is not obeyed twice."""
    resumed = obey(said(KILL, 3), said(RESUME, 4))
    assert not resumed.killed
    assert not obey(said(KILL, 3), memory=resumed).killed
    late = obey(said(KILL, 0, at_s=90.0), memory=resumed)
    assert late.killed
    assert not obey(said(RESUME, 5), memory=late).killed


def test_a_repeated_command_changes_nothing() -> None:
    """A batch that is delivered again leaves the memory as it was."""
    batch = (said(PAUSE, 1), said(RESUME, 2), said(REJECT, 3, subject="p"))
    once = obey(*batch)
    assert obey(*batch, memory=once) == once
    assert once.last_sequence == 3
    assert not once.paused_reason


def test_a_repeated_resume_does_not_end_a_later_pause() -> None:
    """The last command of all, delivered once more, is a repeat too."""
    resumed = obey(said(RESUME, 1))
    paused = replace(resumed, paused_reason="5 effects failed", paused_since_s=100.0)
    assert obey(said(RESUME, 1), memory=paused).paused_reason == "5 effects failed"


def test_a_resume_forgets_the_failures_of_its_own_tick() -> None:
    """Four effects failed before and one fails now: the person knows, and nothing pauses."""
    effect = instruct("a", AdmitOperation(slots=()), "0/p", deadline_s=50.0, fence=0)
    entry = InFlight(effect, "issued", 0.0, "admit_gang", "t", 0.0, contract=False, attempts=3)
    memory = ControllerMemory(
        in_flight={"0/p": entry}, failed=tuple(Failure(60.0 + 10 * k, f"u{k}", f"t{k}") for k in range(4))
    )
    outcomes = (Outcome("0/p", OutcomeKind.FAILED, 100.0, "refused"),)

    def at_once(*commands: Command) -> ControllerMemory:
        seen = world("1x8", [waits("a")], 100.0, commands=commands, outcomes=outcomes)
        return taken_in(memory, seen, AUTO)

    assert at_once().paused_reason == "5 effects on 5 objects failed within 900 s"
    assert (at_once(said(RESUME, 1)).paused_reason, at_once(said(RESUME, 1)).failed) == ("", ())


def test_numbers_give_the_order() -> None:
    """PAUSE 1, RESUME 2: it goes on, however they are delivered. RESUME 1, PAUSE 2: it pauses."""
    for batch in permutations((said(PAUSE, 1), said(RESUME, 2))):
        assert not obey(*batch).paused_reason
    for batch in permutations((said(RESUME, 1), said(PAUSE, 2))):
        assert obey(*batch).paused_reason == "paused by ann"


def test_a_persons_pause_ends_only_when_a_person_ends_it() -> None:
    """Its own pause lapses, and is a timer; that of a person does not, and sets none."""
    paused = obey(said(PAUSE, 0))
    assert obey(memory=paused, now_s=1e9).paused_reason == "paused by ann"
    assert not obey(said(RESUME, 1), memory=paused).paused_reason
    step = decide(world("1x8", [waits("a", 16)], 100.0, commands=(said(PAUSE, 0),)), AUTO)
    assert step.decision.halted == "paused by ann"
    later = decide(world("1x8", [waits("a", 8)], 1e6, tick=1), AUTO, step.memory)
    (proposal,) = later.decision.plan.proposals
    assert {v.code for v in proposal.verdicts if not v.allowed} == {Code.PAUSED_BY_PERSON}
    own = ControllerMemory(paused_reason="5 effects failed", paused_since_s=100.0)
    assert obey(memory=own, now_s=1899.0).paused_reason
    assert not obey(memory=own, now_s=1900.0).paused_reason


def test_a_refused_resume_is_said() -> None:
    """The person sees why nothing goes on."""
    killed = obey(said(KILL, 3))
    step = decide(world("1x8", (), 200.0, commands=(said(RESUME, 2), said(RESUME)), tick=1), AUTO, killed)
    assert notes(step) == ["resume by ann is refused: it may have been received before the kill; send it again"]


# --- approvals and rejections ------------------------------------------------------------------------


def test_the_latest_word_on_a_proposal_counts() -> None:
    """An approval withdraws an earlier rejection, and the other way round; a rejection ends after an hour."""
    seen: dict[str, Any] = {"subject": "p", "state_digest": "digest"}
    shown: dict[str, Any] = {**seen, "benefit_gpu_s": 9.0, "cost_gpu_s": 3.0}
    agreed = obey(said(REJECT, 0, **seen), said(APPROVE, 1, **shown))
    assert agreed.approvals == {"p": Approval("digest", 100.0, 9.0, 3.0, "ann")}
    assert agreed.rejections == {}
    refused = obey(said(APPROVE, 0, **shown), said(REJECT, 1, **seen))
    assert refused.approvals == {}
    assert refused.rejections["p"].until_s == 3700.0
    assert obey(memory=refused, now_s=3700.0).rejections == {}


class Scenario:
    """One eviction of `v` without a beneficiary: the test sets its benefit, cost, place and contract."""

    def __init__(self) -> None:
        self.benefit_gpu_s, self.cost_gpu_s, self.contract = 1e6, 100.0, False
        self.to: int | None = None

    def __call__(self, ctx: Any, submit: Callable[[Any], bool]) -> None:
        """Propose it."""
        from autopilot.core.planning.draft import Case, EvictDraft

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
        shown = {"benefit_gpu_s": proposal.benefit_gpu_s, "cost_gpu_s": proposal.cost_gpu_s, **changed}
        word = said(APPROVE, 0, now_s, subject=proposal.id, state_digest=proposal.state_digest, **shown)
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


@pytest.mark.parametrize(
    ("cost", "benefit", "code"),
    [(120.0, 8e5, None), (120.1, 1e6, Code.APPROVAL_COST_ROSE), (100.0, 7.9e5, Code.APPROVAL_GAIN_FELL)],
)
def test_an_approval_ends_when_its_price_moves(
    scenario: Scenario, cost: float, benefit: float, code: Code | None
) -> None:
    """At 1.2 times the cost and .8 of the gain it holds, beyond it does not, and stays ended when they come back."""
    memory, _ = scenario.approved()
    scenario.cost_gpu_s, scenario.benefit_gpu_s = cost, benefit
    step = scenario.decide(1000.0, memory)
    assert refused(step) == ({code} if code else set())
    scenario.cost_gpu_s, scenario.benefit_gpu_s = 100.0, 1e6
    if code:
        assert refused(scenario.decide(1010.0, step.memory)) == {code}
        assert answer_of(step.decision.plan.proposals[0]) == Answer.NEEDS_APPROVAL


def test_an_approval_at_no_cost_holds_at_no_cost(scenario: Scenario) -> None:
    """1.2 times nothing is nothing."""
    scenario.cost_gpu_s = 0.0
    memory, _ = scenario.approved()
    scenario.cost_gpu_s = 1.6e6
    scenario.benefit_gpu_s = 1e9
    assert refused(scenario.decide(1000.0, memory)) == {Code.APPROVAL_COST_ROSE}


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
    word = said(APPROVE, 0, 1e9, subject=proposal.id, state_digest=proposal.state_digest)
    memory = scenario.decide(1000.0, first.memory, replace(ASKING, modes=Modes()), commands=(word,)).memory
    assert memory.approvals[proposal.id].given_s == 1000.0


def test_an_approval_without_figures_is_bound_to_those_of_the_last_decision(scenario: Scenario) -> None:
    """It is refused with a note where no decision showed any figures."""
    memory, proposal = scenario.approved(benefit_gpu_s=float("nan"), cost_gpu_s=float("nan"))
    assert memory.approvals[proposal.id] == Approval(proposal.state_digest, 1000.0, 1e6, 100.0, "ann")
    word = said(APPROVE, 0, 5.0, subject=proposal.id, state_digest=proposal.state_digest)
    blind = scenario.decide(
        1000.0, ControllerMemory(open_proposals={proposal.id: OpenProposal("other", 1.0, 1.0)}), commands=(word,)
    )
    assert refused(blind) == {Code.NEEDS_APPROVAL}
    assert any("it states no benefit and cost" in note for note in notes(blind))


def test_where_a_victim_goes_is_part_of_the_state(scenario: Scenario) -> None:
    """A move to another node is another proposal: the approval of one is not that of the other."""
    scenario.to = 2
    memory, shown = scenario.approved()
    scenario.to = 1
    (other,) = scenario.decide(1000.0, memory).decision.plan.proposals
    assert (other.id, other.state_digest) != (shown.id, shown.state_digest)
    assert not other.accepted


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


def test_a_rejection_holds_for_what_was_shown(scenario: Scenario) -> None:
    """The same proposal in another state is a new one."""
    policy = replace(ASKING, modes=Modes(*[Mode.AUTO] * 10))
    (proposal,) = scenario.decide(990.0, policy=policy).decision.plan.proposals
    no = said(REJECT, 0, 1000.0, subject=proposal.id, state_digest=proposal.state_digest)
    assert refused(scenario.decide(1000.0, None, policy, commands=(no,))) == {Code.REJECTED}
    other = replace(no, state_digest="of another state")
    assert refused(scenario.decide(1000.0, None, policy, commands=(other,))) == set()


def test_a_stale_view_ends_no_approval() -> None:
    """What is not proposed because nothing is known may be proposed again: the approval waits, and expires as
    promised.
    """
    first = decide(world("1x8", [waits("a", 8)], 0.0), ASKING)
    (wanted,) = proposals(first).values()
    word = said(APPROVE, 0, 5.0, subject=wanted.id, state_digest=wanted.state_digest)
    blind = world("1x8", (), 10.0, tick=1, commands=(word,))
    blind = replace(blind, snapshot=replace(blind.snapshot, work_age_s=float("inf")))
    kept = decide(blind, ASKING, first.memory).memory
    assert list(started(decide(world("1x8", [waits("a", 8)], 20.0, tick=2), ASKING, kept))) == ["a"]
    gone = decide(world("1x8", (), 10.0, tick=1, commands=(word,)), ASKING, first.memory).memory
    assert not gone.approvals


def approval_of(step: Step, name: str) -> tuple[Command, Proposal]:
    """An approval of the start that a decision shows for `name`."""
    (shown,) = [each for each in step.decision.plan.proposals if each.subject.name == name]
    return said(APPROVE, 0, 5.0, subject=shown.id, state_digest=shown.state_digest), shown


def test_a_start_is_approved_for_what_it_takes_and_not_for_where() -> None:
    """Others start first and take the node that was shown: the approved gang starts on another one like it."""
    waiting = [waits("a", 8, submit_s=-20.0), waits("b", 8, submit_s=-10.0)]
    first = decide(world("3x8", waiting[1:], 0.0), ASKING)
    word, shown = approval_of(first, "b")
    then = decide(world("3x8", waiting, 10.0, tick=1, commands=(word,)), ASKING, first.memory)
    (now,) = [each for each in then.decision.plan.proposals if each.subject.name == "b"]
    assert {slot.node for slot in now.slots} != {slot.node for slot in shown.slots}
    assert list(started(then)) == ["b"]


@pytest.mark.parametrize("seen", [{"pool": [1, 1, 1]}, {"gpu_model": [1, 1, 1]}, {"spot": [True, True, True]}], ids=str)
def test_what_the_nodes_are_is_part_of_a_start(seen: dict[str, Any]) -> None:
    """An approval for nodes of one pool or model, or for nodes that stay, is none for others."""
    work = [waits("b", 8)]
    word, _ = approval_of(decide(world("3x8", work, 0.0), ASKING), "b")
    same, other = (snapshot("3x8", work, nodes=each) for each in ({}, seen))
    names = replace(same.names, pools=("pool", "other"))
    for snap, starts in ((same, ["b"]), (other, [])):
        then = observe(replace(snap, names=names), 10.0, tick=1, commands=(word,))
        first = decide(world("3x8", work, 0.0), ASKING)
        assert list(started(decide(then, ASKING, first.memory))) == starts


def test_how_a_start_is_spread_is_part_of_it() -> None:
    """A gang shown on one node is not approved for two."""
    gang = waits("b", 8, gpus_per_member=4)
    first = decide(world("2x8", [gang], 0.0), ASKING)
    word, _ = approval_of(first, "b")
    halves = [holds("h0", 4, range(4)), holds("h1", 4, range(8, 12)), gang]
    then = decide(world("2x8", halves, 10.0, tick=1, commands=(word,)), ASKING, first.memory)
    assert [each.subject.name for each in then.decision.plan.proposals] == ["b"]
    assert not started(then)
