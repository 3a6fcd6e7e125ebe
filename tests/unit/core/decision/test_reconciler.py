"""One decision: modes, approvals, halts, timers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from autopilot.core.model.approvals import seen_of
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.budget import BudgetMemory
from autopilot.core.model.memory.effects import EffectsMemory
from autopilot.core.model.memory.starts import StartsMemory
from autopilot.core.model.policy import Mode, Modes, Policy
from autopilot.core.model.records import Command, CommandKind, OutcomeKind
from tests.kits.core_world import (
    AUTO,
    HOLDING,
    Disrupt,
    decide,
    done,
    evicted,
    holds,
    proposals,
    started,
    waits,
    why_waits,
    with_policy,
    world,
)


def in_mode(mode: Mode, policy: Policy = AUTO) -> Policy:
    """`policy` with every action in that mode."""
    return replace(policy, modes=Modes(mode, mode))


def halves(now_s: float = 0.0, tick: int = 0, **more: object):  # type: ignore[no-untyped-def] # noqa: ANN201
    """Three gangs for the room of two."""
    return world("2x8", [waits("a", 8), waits("b", 8), waits("c", 8)], now_s, tick=tick, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.RECOMMEND])
def test_recommendations_fit_to_each_other_and_nothing_acts(mode: Mode) -> None:
    """Proposals of a mode that does not act stand on paper: no GPU twice, no instruction, the third waits for room."""
    observation = halves()
    step = decide(observation, in_mode(mode))
    made = proposals(step, "admit")
    assert sorted(made) == ["a", "b"]
    assert not any(p.accepted for p in made.values())
    gpus = [slot.gpu for p in made.values() for slot in p.slots]
    assert len(gpus) == len(set(gpus)) == 16
    assert not step.instructions
    assert not step.memory.effects.in_flight
    assert why_waits(step, observation, "c")[0] == "capacity"
    again = decide(halves(30.0, 1), in_mode(mode), step.memory)
    assert {p.id for p in again.decision.plan.proposals} == {p.id for p in step.decision.plan.proposals}


def test_an_action_that_is_off_leaves_its_work_waiting() -> None:
    """With its mode off, nothing stands on paper either: every gang waits as `gated`."""
    observation = halves()
    step = decide(observation, in_mode(Mode.OFF))
    assert not step.instructions
    assert {why_waits(step, observation, name)[0] for name in "abc"} == {"gated"}


def test_an_approval_starts_what_it_was_given_for() -> None:
    """In mode approve a proposal waits for its approval, and then acts; the others go on waiting."""
    policy = in_mode(Mode.APPROVE)
    first = decide(halves(), policy)
    assert not first.instructions
    wanted = proposals(first)["b"]
    word = Command(CommandKind.APPROVE, "ann", 5.0, wanted.recommendation, seen=seen_of(wanted))
    second = decide(halves(10.0, 1, commands=(word,)), policy, first.memory)
    assert list(started(second)) == ["b"]
    assert second.instructions[0].proposal_id == wanted.id


def test_an_approval_is_bound_to_its_object() -> None:
    """Without what was seen, of another object under the name, or of one that is gone, it moves nothing."""
    policy = in_mode(Mode.APPROVE)
    wanted = proposals(decide(halves(), policy))["a"]
    word = Command(CommandKind.APPROVE, "ann", 5.0, wanted.recommendation)
    assert not decide(halves(10.0, 1, commands=(word,)), policy).instructions
    good = replace(word, seen=seen_of(wanted))
    assert list(started(decide(halves(10.0, 1, commands=(good,)), policy))) == ["a"]
    for gang in (waits("a", 4, uid="a-new"), waits("a", 4, incarnation=1), waits("x", 4)):
        other = world("1x8", [gang], 10.0, commands=(good,), tick=1)
        assert not decide(other, policy).instructions


def test_a_rejection_holds_a_proposal_and_ends() -> None:
    """A rejected proposal is held with the code `rejected`, its work waits, and the timer of its end is set."""
    first = proposals(decide(halves()))["a"]
    no = Command(CommandKind.REJECT, "bob", 0.0, first.recommendation, seen=seen_of(first))
    step = decide(halves(1.0, 1, commands=(no,)), AUTO)
    verdicts = {v.code for v in proposals(step)["a"].verdicts if not v.allowed}
    assert verdicts == {"rejected"}
    assert "a" not in started(step)
    alone = world("1x8", [waits("a", 8)], 3500.0, tick=2)
    held = decide(alone, AUTO, replace(step.memory, effects=replace(step.memory.effects, in_flight={})))
    assert not held.instructions
    assert held.wake_at_s == 3600.0
    assert list(started(decide(replace(alone, now_s=3600.0, tick=3), AUTO, held.memory))) == ["a"]


def test_the_kill_switch_fails_closed() -> None:
    """While the switch is on or cannot be read, nothing acts and the decision gives the reason; when it is off, work
    continues.
    """
    step = decide(halves(kill_switch=True))
    assert step.decision.halted == "kill switch"
    assert not step.instructions
    assert not step.memory.effects.in_flight
    assert len(decide(halves(5.0, 1), AUTO, step.memory).instructions) == 2


def test_a_kill_command_stops_retries_too() -> None:
    """A command to kill holds effects that were to be tried again, until a person resumes."""
    first = decide(halves())
    failed = done(first.instructions, 1.0, OutcomeKind.FAILED, retryable=True)
    kill = (Command(CommandKind.KILL, "ann", 1.0, sequence=0),)
    dead = decide(halves(2.0, 1, outcomes=failed, commands=kill), AUTO, first.memory)
    assert not dead.instructions
    assert decide(halves(1e5, 2), AUTO, dead.memory).decision.halted == "kill switch"
    resume = (Command(CommandKind.RESUME, "ann", 2e5, sequence=1),)
    alive = decide(halves(2e5, 3, commands=resume), AUTO, dead.memory)
    assert alive.decision.halted == ""


def test_failed_effects_pause_the_autopilot_until_the_pause_is_over() -> None:
    """K failures halt every action with the reason; at the end of the pause, which is a timer, work goes on."""
    policy = with_policy(AUTO, pause={"failures": 3, "length_s": 600.0})
    thirds = [waits(name, 4) for name in "abc"]
    first = decide(world("2x8", thirds), policy)
    failed = done(first.instructions, 1.0, OutcomeKind.FAILED, "no such node")
    paused = decide(world("2x8", thirds, 1.0, tick=1, outcomes=failed), policy, first.memory)
    assert paused.decision.halted.startswith("3 effects on 3 objects failed")
    assert not paused.instructions
    alone = decide(world("1x8", [holds("x", 8)], 2.0, tick=2), policy, paused.memory)
    assert alone.wake_at_s == 601.0
    assert len(decide(halves(601.0, 3), policy, alone.memory).instructions) == 2


def test_a_clock_that_went_back_decides_nothing_and_forgets_nothing() -> None:
    """A tick in the past acts on nothing, but hears commands; the next tick in time goes on."""
    first = decide(world("1x8", [holds("a", 8), waits("b", 8)], 1000.0, total_s={"a": 5000.0}), HOLDING)
    kill = (Command(CommandKind.KILL, "ann", 900.0),)
    back = decide(world("1x8", [waits("b", 8)], 900.0, tick=1, commands=kill), HOLDING, first.memory)
    assert back.decision.halted == "the clock went back 100 s and is not trusted yet"
    assert not back.instructions
    assert back.memory.halt.killed
    assert back.memory.now_s == 1000.0
    assert back.memory.plan.reservations == first.memory.plan.reservations


def test_a_disruption_enters_the_ledger_and_cools_its_victim() -> None:
    """A weighed eviction is on the books of the budget and starts a cool-down; a contractual one only the first."""
    policy = with_policy(AUTO, hysteresis={"dwell_s": 0.0})
    observation = world("1x8", [holds("v", 8), waits("w", 8)], 9000.0)
    weighed = decide(observation, policy, actions=Disrupt("w", ("v",)).table)
    assert evicted(weighed) == ["v"]
    (entry,) = weighed.memory.budget.disrupted
    assert (entry.workload, entry.tenant, entry.nodes, entry.contract) == ("v", "t0", ("node-0",), False)
    assert weighed.memory.budget.cooled_until_s == {"v": 10_800.0}
    contract = decide(observation, policy, actions=Disrupt("w", ("v",), contract=True).table)
    assert contract.memory.budget.disrupted[0].contract
    assert not contract.memory.budget.cooled_until_s


def test_the_end_of_a_guaranteed_run_time_is_a_timer() -> None:
    """A wish that only the victim's guaranteed run time holds is looked at again the instant that ends."""
    policy = with_policy(AUTO, hysteresis={"dwell_s": 0.0}, review={"batch_s": 3600.0})
    observation = world("1x8", [holds("v", 8, start_s=8500.3), waits("w", 8)], 9000.0)
    held = decide(observation, policy, actions=Disrupt("w", ("v",)).table)
    assert held.wake_at_s == 8500.3 + 900.0
    at = replace(observation, now_s=held.wake_at_s, tick=1)
    assert evicted(decide(at, policy, held.memory, actions=Disrupt("w", ("v",)).table)) == ["v"]


def test_the_end_of_a_guaranteed_run_time_is_a_timer_of_actions_that_seldom_take() -> None:
    """The wish is woken for even where no shipped action that takes at any time is on."""
    modes = replace(AUTO.modes, defragment=Mode.OFF, reclaim_borrowed=Mode.OFF, preempt=Mode.OFF)
    policy = with_policy(replace(AUTO, modes=modes), hysteresis={"dwell_s": 0.0}, review={"batch_s": 3600.0})
    observation = world("1x8", [holds("v", 8, start_s=8500.3), waits("w", 8)], 9000.0)
    assert decide(observation, policy, actions=Disrupt("w", ("v",)).table).wake_at_s == 8500.3 + 900.0


@pytest.mark.parametrize(
    "memory",
    [
        ControllerMemory(budget=BudgetMemory(cooled_until_s={"v": 9040.0})),
        ControllerMemory(starts=StartsMemory(no_pipelined_until_s={"w": 9040.0})),
        ControllerMemory(effects=EffectsMemory(refused_until_s={"w": 9040.0})),
    ],
    ids=["victim", "start that was given up", "start that was refused"],
)
def test_the_end_of_a_cool_down_is_a_timer(memory: ControllerMemory) -> None:
    """A wish that only a cool-down holds is looked at again the instant that ends."""
    policy = with_policy(AUTO, hysteresis={"dwell_s": 0.0}, review={"batch_s": 3600.0})
    observation = world("1x8", [holds("v", 8), waits("w", 8)], 9000.0)
    held = decide(observation, policy, memory, actions=Disrupt("w", ("v",)).table)
    assert not evicted(held)
    assert held.wake_at_s == 9040.0
    at = replace(observation, now_s=9040.0, tick=1)
    assert evicted(decide(at, policy, held.memory, actions=Disrupt("w", ("v",)).table)) == ["v"]


def test_work_that_is_told_to_leave_is_told_once() -> None:
    """While an eviction is under way no other wish may name its victim."""
    policy = with_policy(AUTO, hysteresis={"dwell_s": 0.0, "cool_down_s": 0.0})
    observation = world("1x8", [holds("v", 8), waits("w", 8)], 9000.0)
    first = decide(observation, policy, actions=Disrupt("w", ("v",)).table)
    again = Disrupt("w", ("v",))
    later = decide(replace(observation, now_s=9010.0, tick=1), policy, first.memory, actions=again.table)
    assert again.answers == [False]
    assert not later.decision.plan.proposals


def test_the_grace_of_a_broken_gang_is_a_timer() -> None:
    """A gang that lost a member is looked at again when its grace is over, though nothing waits."""
    broken = holds("g", 8, stale_since_s=100.0, stale_grace_s=60.0)
    assert decide(world("1x8", [broken], 110.0), AUTO).wake_at_s == 160.0


def test_nothing_waits_so_nothing_wakes() -> None:
    """With nothing pending there is no timer; while the order ages, the next review is one."""
    aging = with_policy(AUTO, order={"aging_exponent": 0.5})
    assert decide(world("1x8", [holds("a", 8)], 100.0), aging).wake_at_s == float("inf")
    assert decide(world("1x8", [holds("a", 1), waits("b", 8)], 100.0), aging).wake_at_s == 300.0


@pytest.mark.parametrize("submit_s", [0.0, 17.0])
def test_a_gang_becomes_overdue_at_a_review_that_is_woken_for(submit_s: float) -> None:
    """Following the wake-ups alone, an overdue gang is served first at the same review as with a tick every second."""
    policy = with_policy(
        AUTO,
        order={"aging_exponent": 0.0, "max_wait_s": 600.0, "short_s": 0.0},
        review={"batch_s": 60.0},
        reservation={"depth": 1, "whole_nodes_only": False, "max_spread_ratio": 1e6},
    )
    total_s = {"a": 5000.0, "old": 4000.0, "young": 10.0}
    work = [holds("a", 8), waits("old", 8, submit_s=submit_s), waits("young", 8, submit_s=submit_s + 500.0)]

    def head(now_s: float, memory: ControllerMemory) -> tuple[str, ControllerMemory, float]:
        step = decide(world("1x8", work, now_s, total_s=total_s), policy, replace(memory, tick=-1))
        return step.memory.plan.reservations[0].workload, step.memory, step.wake_at_s

    def change(next_s: Callable[[float, float], float]) -> float:
        now_s, memory = 30.0, ControllerMemory()
        while now_s < 900.0:
            first, memory, wake_s = head(now_s, memory)
            if first == "old":
                return now_s // 60.0 * 60.0
            now_s = next_s(now_s, wake_s)
        return float("inf")

    assert change(lambda _now_s, wake_s: wake_s) == change(lambda now_s, _wake_s: now_s + 10.0) < 900.0


def test_gpus_under_way_count_where_the_view_numbers_them_otherwise() -> None:
    """Pods do not say which GPU they get: the view gives those of a start under way to other work of the node."""
    first = decide(world("1x8", [waits("a", 4)]))
    (sent,) = first.instructions
    taken = [int(slot.gpu.removeprefix("GPU-")) for slot in sent.operation.slots]
    shown = [waits("a", 4), holds("b", 4, on=taken), waits("c", 4)]
    assert "c" not in started(decide(world("1x8", shown, 10.0, tick=1), AUTO, first.memory))
    without = [waits("a", 4), holds("b", 2, on=taken[:2]), waits("c", 2)]
    assert "c" in started(decide(world("1x8", without, 10.0, tick=1), AUTO, first.memory))


def test_instructions_name_what_they_are_for() -> None:
    """An instruction has an id of its tick, the incarnation it was meant for, a deadline and the leader's fence."""
    step = decide(world("1x8", [waits("a", 8, incarnation=3)], 50.0, tick=7), AUTO, ControllerMemory(fence=42))
    (instruction,) = step.instructions
    assert instruction.id.startswith("7/admit-a-")
    assert (instruction.subject.revision, instruction.deadline_s, instruction.fence) == (3, 170.0, 42)
    assert list(step.memory.effects.in_flight) == [instruction.id]
