"""What was decided earlier and leaves now passes the checks of today: retries, and starts that waited for others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import Mode, Policy
from autopilot.core.model.records import Observation, OutcomeKind
from autopilot.core.model.snapshot import Gate, QueueTable, State
from tests.kits.core_world import AUTO, Item, decide, done, holds, queue_tree, waits, with_policy, world
from tests.kits.ticking_world import EAGER, Ticking, tenants


def failed(work: list[Item], policy: Policy = AUTO, **more: Any) -> tuple[Step, Callable[..., Observation]]:
    """A start that failed at 1 s and may be tried again, and the world at a later time."""
    first = decide(world("2x8", work, **more), policy)
    assert len(first.instructions) == 1
    outcomes = done(first.instructions, 1.0, OutcomeKind.FAILED, retryable=True)

    def later(now_s: float, items: list[Item], **changes: Any) -> Observation:
        return world("2x8", items, now_s, tick=int(now_s), outcomes=outcomes if now_s < 2.0 else (), **(more | changes))

    return first, later


def states(step: Step) -> dict[str, str]:
    """Effects under way by workload."""
    return {entry.instruction.subject.name: entry.state for entry in step.memory.effects.in_flight.values()}


def notes(step: Step) -> list[object]:
    """What the decision says of effects that do not leave."""
    return [fact.value for note in step.decision.notes for fact in note.facts if fact.name == "why"]


def test_a_retry_leaves_with_the_present_fence() -> None:
    """The one who leads now sends it, under the same id."""
    first, later = failed([waits("a", 8)])
    memory = replace(first.memory, fence=7)
    step = decide(later(1.0, [waits("a", 8)]), AUTO, memory)
    assert [(each.id, each.fence, each.deadline_s) for each in step.instructions] == [
        (first.instructions[0].id, 7, 121.0)
    ]
    assert [entry.attempts for entry in step.memory.effects.in_flight.values()] == [2]


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.OBSERVE, Mode.RECOMMEND, Mode.APPROVE])
def test_a_retry_waits_while_its_action_may_not_act(mode: Mode) -> None:
    """Until its deadline; it leaves when the mode is back before that, and is withdrawn at the deadline."""
    first, later = failed([waits("a", 8)])
    held = with_policy(AUTO, modes={"admit_gang": mode})
    step = decide(later(1.0, [waits("a", 8)]), held, first.memory)
    assert (step.instructions, states(step)) == ((), {"a": "held"})
    assert notes(step)[0] in {f"mode_{mode.value}", "needs_approval"}
    back = decide(later(50.0, [waits("a", 8)]), AUTO, step.memory)
    assert [each.id for each in back.instructions] == [first.instructions[0].id]
    late = decide(later(120.0, [waits("a", 8)]), held, step.memory)
    assert (late.instructions, states(late)) == ((), {})
    assert not late.memory.halt.failed


def test_a_retry_on_a_view_two_hours_old_does_not_leave() -> None:
    """It is judged again at the first tick that sees."""
    first, later = failed([waits("a", 8)])
    step = decide(later(1.0, [waits("a", 8)], work_age_s=7200.0), AUTO, first.memory)
    assert (step.instructions, states(step)) == ((), {"a": "held"})
    assert "7200 s ago" in step.decision.halted
    step = decide(later(400.0, [waits("a", 8)], inventory_age_s=7200.0), AUTO, step.memory)
    assert (step.instructions, states(step)) == ((), {"a": "held"})


CHANGES: dict[str, tuple[Item, str]] = {
    "opted out": (waits("a", 8, excluded=True), "opted_out"),
    "resized to 16": (waits("a", 16), "changed"),
    "resized to 4": (waits("a", 4), "changed"),
    "another member size": (waits("a", 8, gpus_per_member=4), "changed"),
    "shares": (waits("a", 8, gpu_milli=500), "changed"),
    "another model": (waits("a", 8, gpu_models=2), "changed"),
    "held by a check": (waits("a", 8, gate=Gate.WAITING), "check"),
}


def test_a_retry_for_a_gang_of_another_queue_is_withdrawn() -> None:
    """Whose quota it uses is part of what was decided."""
    first, later = failed([waits("a", 8, queue=1)], queues=queue_tree(("one", 0, -1), ("two", 0, -1)))
    step = decide(later(1.0, [waits("a", 8, queue=2)]), AUTO, first.memory)
    assert (step.instructions, states(step), notes(step)[0]) == ((), {"a": "withdrawn"}, "changed")


@pytest.mark.parametrize("name", CHANGES)
def test_a_retry_for_a_gang_that_changed_is_withdrawn(name: str) -> None:
    """Nothing is sent; what was sent may still happen, so its GPUs stay booked until the deadline."""
    first, later = failed([waits("a", 8)])
    item, code = CHANGES[name]
    step = decide(later(1.0, [item, waits("b", 16)]), AUTO, first.memory)
    assert (step.instructions, states(step)) == ((), {"a": "withdrawn"})
    assert notes(step)[0] == code
    over = decide(later(120.0, [item]), AUTO, step.memory)
    assert "withdrawn" not in states(over).values()
    assert [len(each.operation.slots) for each in over.instructions] in ([], [int(item.columns["gpus"])])


def test_a_new_object_under_an_old_name_is_planned_anew() -> None:
    """It has the name and the restart count of the old one; its uid says that it is another, and the old start is
    over.
    """
    first, later = failed([waits("a", 8)])
    step = decide(later(1.0, [waits("a", 8, uid="another")]), AUTO, first.memory)
    assert [(each.subject.uid, each.id == first.instructions[0].id) for each in step.instructions] == [
        ("another", False)
    ]


def test_a_retry_over_a_limit_that_was_lowered_is_withdrawn() -> None:
    """The books count the gang already; it is judged without itself."""
    tree = queue_tree(("team", 0, 8))
    first, later = failed([waits("a", 8, queue=1)], queues=tree)
    same = decide(later(1.0, [waits("a", 8, queue=1)]), AUTO, first.memory)
    assert len(same.instructions) == 1
    step = decide(later(1.0, [waits("a", 8, queue=1)], queues=queue_tree(("team", 0, 7))), AUTO, first.memory)
    assert (step.instructions, states(step), notes(step)[0]) == ((), {"a": "withdrawn"}, "limit")


def test_a_retry_onto_gpus_that_others_took_is_withdrawn() -> None:
    """They are not free any more: the gang goes elsewhere at once when the effect is over."""
    first, later = failed([waits("a", 8)])
    rows = [int(slot.gpu.removeprefix("GPU-")) for slot in first.instructions[0].operation.slots]
    step = decide(later(1.0, [waits("a", 8), holds("b", 8, on=rows)]), AUTO, first.memory)
    assert (step.instructions, states(step), notes(step)[0]) == ((), {"a": "withdrawn"}, "capacity")


# --- takings and what waits for them ----------------------------------------------------------------


def taking(policy: Policy = EAGER) -> Ticking:
    """One gang of higher priority takes a node from one that runs."""
    return Ticking("1x8", [holds("v", 8), waits("w", 8, priority=5)], policy)


def lost_order() -> Ticking:
    """The eviction was recorded and never got there."""
    play = taking()
    step = play.tick(100.0, lost=True)
    assert [(each.kind, each.subject.name) for each in step.instructions] == [("evict", "v")]
    return play


def test_an_eviction_is_sent_again_and_counts_from_then_on() -> None:
    """Its entry in the ledger moves: budgets hold in any window."""
    play = lost_order()
    deadline_s = next(iter(play.memory.effects.in_flight.values())).instruction.deadline_s
    step = play.tick(deadline_s)
    assert [(each.kind, each.subject.name) for each in step.instructions] == [("evict", "v")]
    assert [(entry.at_s, entry.uid) for entry in play.memory.budget.disrupted] == [(deadline_s, "v")]
    assert play.leaving() == ["v"]


def test_an_eviction_does_not_stand_in_the_way_of_itself() -> None:
    """A budget of one is used up by it, and it cools down because of it: it is sent again all the same."""
    play = lost_order()
    play.policy = with_policy(
        EAGER,
        budget={"per_cluster": 1, "per_tenant": 1, "per_node": 1, "concurrent": 1},
        hysteresis={"cool_down_s": 5000.0},
    )
    step = play.tick(next(iter(play.memory.effects.in_flight.values())).instruction.deadline_s)
    assert [each.subject.name for each in step.instructions] == ["v"]


@pytest.mark.parametrize(("per_tenant", "leaves"), [(2, True), (1, False)])
def test_an_earlier_eviction_under_the_same_proposal_still_counts(per_tenant: int, *, leaves: bool) -> None:
    """An identical proposal was carried out before: its disruption stays in the ledger and uses up the budget."""
    play = lost_order()
    (entry,) = play.memory.effects.in_flight.values()
    (made,) = play.memory.budget.disrupted
    play.memory = replace(play.memory, budget=replace(play.memory.budget, disrupted=(replace(made, at_s=50.0), made)))
    play.policy = with_policy(EAGER, budget={"per_tenant": per_tenant})
    step = play.tick(entry.instruction.deadline_s)
    assert [each.subject.name for each in step.instructions] == (["v"] if leaves else [])
    last_s = entry.instruction.deadline_s if leaves else made.at_s
    assert [each.at_s for each in play.memory.budget.disrupted] == [50.0, last_s]


@pytest.mark.parametrize(("start_s", "leaves"), [(0.0, True), (4900.0, False)])
def test_an_eviction_is_judged_with_the_other_victims_of_its_proposal(start_s: float, *, leaves: bool) -> None:
    """One of two evictions failed, and victims keep their first quarter of an hour now. The other one is too young."""
    work = [holds("u", 4, start_s=start_s), holds("v", 4), waits("w", 8, priority=5)]
    first = decide(world("1x8", work, 5000.0), EAGER)
    orders = {each.subject.name: each for each in first.instructions}
    assert sorted(orders) == ["u", "v"]
    outcomes = done((orders["v"],), 5001.0, OutcomeKind.FAILED, retryable=True)
    policy = with_policy(EAGER, protection={"min_runtime_s": 900.0})
    step = decide(world("1x8", work, 5001.0, tick=1, outcomes=outcomes), policy, first.memory)
    assert [each.id for each in step.instructions] == ([orders["v"].id] if leaves else [])


VICTIMS: dict[str, tuple[dict[str, Any], str]] = {
    "opted out": ({"excluded": True}, "opted_out"),
    "protected": ({"slo_class": 0}, "protected_class"),
    "not preemptible": ({"preemptible": False}, "not_preemptible"),
}


@pytest.mark.parametrize("name", VICTIMS)
def test_a_victim_that_may_not_be_taken_any_more_stays(name: str) -> None:
    """The eviction is withdrawn, and what was to land there is planned anew."""
    play = lost_order()
    columns, code = VICTIMS[name]
    play.gangs["v"].columns |= columns
    step = play.tick(next(iter(play.memory.effects.in_flight.values())).instruction.deadline_s)
    assert (step.instructions, notes(step)[0]) == ((), code)
    assert play.memory.starts.pipelined_starts == ()
    assert play.running() == ["v"]


def test_an_eviction_under_todays_blast_radius_or_run_time_waits() -> None:
    """What the policy forbids now is not sent, though it was allowed when it was decided."""
    for policy, code in (
        (with_policy(EAGER, protection={"min_runtime_s": 9000.0}), "min_runtime"),
        (with_policy(EAGER, modes={"preempt": Mode.OFF}), "mode_off"),
        (with_policy(EAGER, protection={"most_stops": 0}), "stopped_often"),
        (with_policy(EAGER, budget={"per_cluster": 0, "concurrent": 0}), "budget_cluster"),
    ):
        play = lost_order()
        play.policy = policy
        step = play.tick(next(iter(play.memory.effects.in_flight.values())).instruction.deadline_s)
        assert [each for each in step.instructions if each.kind == "evict"] == []
        assert notes(step)[0] == code


def another_node(came_free: str, queues: QueueTable | None = None, **asks: Any) -> Step:
    """The order to stop v was lost; `came_free` ended before it is due to be sent again. GPUs 0 to 7 are of model 1."""
    first = [holds("v", 8, on=range(8), queue=1), holds("x", 8, on=range(8, 16), priority=5, queue=2)]
    work = [*first, waits("w", 8, priority=5, queue=1, **asks)]
    play = Ticking("2x8", work, queues=queues or tenants(("a", 0, 0), ("b", 0, 0)), nodes={"gpu_model": [1, 0]})
    step = play.tick(100.0, lost=True)
    assert [(each.kind, each.subject.name) for each in step.instructions] == [("evict", "v")]
    play.finish(*came_free.split())
    return play.tick(next(iter(play.memory.effects.in_flight.values())).instruction.deadline_s)


def orders(step: Step) -> list[tuple[str, str]]:
    """Kind and workload of each instruction."""
    return [(each.kind, each.subject.name) for each in step.instructions]


def test_an_eviction_is_not_sent_again_when_the_start_has_room_without_it() -> None:
    """The start is given up and the gang starts on the other node at once: nobody is stopped for it."""
    step = another_node("x")
    assert (orders(step), notes(step)[0], step.memory.starts.pipelined_starts) == ([("admit", "w")], "not_needed", ())


@pytest.mark.parametrize(("came_free", "asks"), [("", {}), ("x", {"gpu_models": 0b10})])
def test_an_eviction_is_sent_again_when_there_is_no_room_without_it(came_free: str, asks: dict[str, Any]) -> None:
    """Nothing came free, or only GPUs of another model than the gang asks for."""
    step = another_node(came_free, **asks)
    assert (("evict", "v") in orders(step), notes(step)) == (True, [])


def test_an_eviction_is_sent_again_when_its_queue_has_no_quota_without_it() -> None:
    """A node came free, but the limit of the queue allows one of the two gangs."""
    limited = tenants(("a", 0, 0), ("b", 0, 0), limit={"a": 8})
    step = another_node("x", limited)
    assert (orders(step), notes(step)) == ([("evict", "v")], [])


def one_fails(ends: str) -> tuple[Ticking, Step]:
    """Of 12 GPUs, u and v leave 8 to w; u leaves, the order to v fails, and `ends` ends before it is sent again."""
    work = [holds("u", 4), holds("v", 4), holds("x", 4, priority=5), waits("w", 8, priority=5, gpus_per_member=8)]
    play = Ticking("1x12", work)
    step = play.tick(100.0)
    assert orders(step) == [("evict", "u"), ("evict", "v")]
    play.gangs["v"].state = State.RUNNING
    play.outcomes = (play.outcomes[0], *done(step.instructions[1:], 100.0, OutcomeKind.FAILED, retryable=True))
    play.finish(*ends.split())
    return play, play.tick(101.0)


def test_room_without_a_victim_counts_what_another_one_gives_up() -> None:
    """4 GPUs are free and 4 come free: the gang waits for these only, and starts on both."""
    play, step = one_fails("x")
    assert (orders(step), notes(step)[0]) == ([], "not_needed")
    play.leave("u")
    assert orders(play.tick(130.0)) == [("admit", "w")]
    assert play.running() == ["v", "w"]


def test_an_eviction_is_sent_again_when_the_other_victim_is_not_enough() -> None:
    """Only 4 GPUs come free without it."""
    assert orders(one_fails("")[1]) == [("evict", "v")]


def followed(**changes: Any) -> tuple[Ticking, Step]:
    """The victim is gone; the gang changed meanwhile, and the tick at which it would start."""
    play = taking()
    play.tick(100.0)
    play.gangs["w"].columns |= changes
    play.leave("v")
    return play, play.tick(130.0)


def test_a_start_that_waited_goes_out() -> None:
    """Unchanged, with the fence of now."""
    play, step = followed()
    assert [(each.kind, each.subject.name) for each in step.instructions] == [("admit", "w")]
    assert play.running() == ["w"]


@pytest.mark.parametrize("changes", [{"gpus": 16, "min_gpus": 16}, {"gpus": 4, "min_gpus": 4}, {"gpus_per_member": 4}])
def test_a_gang_that_changed_does_not_start_on_what_was_freed_for_it(changes: dict[str, Any]) -> None:
    """A gang of 16 on 8 slots, for one: the landing is given up."""
    play, step = followed(**changes)
    started = [
        (len(each.operation.slots), each.proposal_id.split("-")[0])
        for each in step.instructions
        if each.subject.name == "w"
    ]
    assert started in ([], [(changes.get("gpus", 8), "admit")]), "planned anew, as it is now"
    assert notes(step)[0] == "changed"
    assert play.memory.starts.pipelined_starts == ()


def test_a_start_that_waited_stays_with_its_landing_while_the_mode_is_off() -> None:
    """It goes out when the mode is back, and is given up at the deadline of the landing."""
    play = taking()
    play.tick(100.0)
    play.leave("v")
    play.policy = with_policy(EAGER, modes={"preempt": Mode.OFF})
    step = play.tick(130.0)
    assert (step.instructions, notes(step)[0]) == ((), "mode_off")
    assert [len(pipelined.parts) for pipelined in play.memory.starts.pipelined_starts] == [1]
    play.policy = EAGER
    step = play.tick(140.0)
    assert [each.subject.name for each in step.instructions] == ["w"]


def test_a_start_over_a_limit_that_was_lowered_is_given_up() -> None:
    """The queue of the gang may use less by now."""
    play = Ticking("1x8", [holds("v", 8, queue=2), waits("w", 8, queue=1)], queues=tenants(("a", 0, 8), ("b", 0, 0)))
    play.tick(100.0)
    assert play.leaving() == ["v"]
    play.queues = tenants(("a", 0, 4), ("b", 0, 0), limit={"a": 4})
    play.leave("v")
    step = play.tick(130.0)
    assert not [each for each in step.instructions if each.subject.name == "w"]
    assert play.gangs["w"].state == State.PENDING
    assert ControllerMemory().starts.pipelined_starts == play.memory.starts.pipelined_starts
