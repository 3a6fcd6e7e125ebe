"""The ladder: what follows what, who is spared, and what ends it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autopilot.core.idle.follow import patience
from autopilot.core.idle.ladder import ladder_timers_s, rungs
from autopilot.core.model.errors import InputError
from autopilot.core.model.hours import parse_hours, passed_at
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.memory.idle import IdleMemory, IdleOwner, IdleRecord, IdleStep
from autopilot.core.model.policy import Policy, check_policy
from autopilot.core.model.records import Outcome, OutcomeKind
from autopilot.core.model.snapshot import ClusterSnapshot, Gate, State
from tests.kits.core_world import decide, holds, observe, snapshot, waits, with_policy
from tests.kits.idle_world import MEMORY, NOW_S, QUICK, idle_scene, look, measured, notified
from tests.kits.ticking_world import EAGER, tenants

HOUR_S = 3600.0


def kinds(step: Step) -> list[str]:
    """The steps on idle work that were accepted."""
    return [each.kind for each in step.decision.plan.proposals if each.action.endswith("_idle") and each.accepted]


def record(step: Step) -> Any:
    """The record of `w`."""
    return next(iter(step.memory.idle.records.values()))


def test_borrowed_gpus_skip_the_mark_but_not_the_notice() -> None:
    """Notice, grace, suspension; nothing in between."""
    snap = idle_scene()
    first = look(snap, NOW_S)
    assert (kinds(first), record(first).step) == (["notify"], IdleStep.SEEN)
    told = look(snap, NOW_S + 200.0, first)
    assert (kinds(told), record(told).step) == ([], IdleStep.NOTIFIED)
    early = look(snap, NOW_S + HOUR_S - 100.0, told)
    due = look(snap, NOW_S + HOUR_S + 300.0, early)
    assert (kinds(early), kinds(due)) == ([], ["pipeline"])


def test_inside_a_guarantee_the_mark_comes_first() -> None:
    """Each step waits for its own grace."""
    snap = idle_scene(guarantee=8)
    marked = look(snap, NOW_S + HOUR_S + 300.0, notified(snap))
    assert kinds(marked) == ["mark"]
    assert record(marked).step == IdleStep.MARKED
    soon = look(snap, NOW_S + HOUR_S + 600.0, marked)
    due = look(snap, NOW_S + 2 * HOUR_S + 600.0, soon)
    assert (kinds(soon), kinds(due)) == ([], ["pipeline"])


def test_zeros_from_the_time_of_a_fault_are_no_idleness() -> None:
    """Power contradicts the counters of the node. After the fault a whole window must be free of it."""
    rests = idle_scene()
    dark = measured(rests, {row: {"power_w": 600.0} for row in range(8)})
    fault = look(dark, NOW_S)
    soon = look(rests, NOW_S + 600.0, fault)
    free = look(rests, NOW_S + 2_400.0, soon)
    assert [bool(each.memory.idle.records) for each in (fault, soon, free)] == [False, False, True]
    assert free.memory.idle.doubted_s == {}


def test_memory_that_changes_ends_the_record_of_idle_work() -> None:
    """A program that takes memory lives, whatever the counters show; 4 MiB may be those of another program."""
    rests = idle_scene()
    most = rests.telemetry.maximum

    def took(more_mib: float) -> ClusterSnapshot:
        highest = most.copy()
        highest[MEMORY, :, 1] += more_mib
        return replace(rests, telemetry=replace(rests.telemetry, maximum=highest))

    first = look(rests, NOW_S)
    same = look(took(4.0), NOW_S + 300.0, first)
    grown = look(took(64.0), NOW_S + 600.0, same)
    assert [bool(each.memory.idle.records) for each in (first, same, grown)] == [True, True, False]


@pytest.mark.parametrize("guarantee", [0, 1])
def test_without_a_mark_no_more_is_taken_than_what_is_above_the_guarantee(guarantee: int) -> None:
    """A gang waits for the GPUs of both: they leave together, or none does."""
    own: dict[str, Any] = {"queue": 1, "gpus_per_member": 1, "start_s": 0.0, "user": "ann"}
    own |= {"checkpoint_on_request": True, "checkpoint_interval_s": 600.0, "checkpoint_write_s": 20.0}
    work = [holds(f"w{number}", 1, [number], **own) for number in (0, 1)]
    work.append(waits("p", 2, queue=2, gpus_per_member=1))
    queues = tenants(("a", 0, guarantee), ("b", 0, 0))
    snap = measured(snapshot("1x2", work, queues=queues), {})
    due = look(snap, NOW_S + HOUR_S + 300.0, notified(snap))
    gone = [victim.workload for made in due.decision.plan.proposals if made.accepted for victim in made.victims]
    assert gone == ([] if guarantee else ["w0", "w1"])


def test_no_step_starts_before_the_notice_is_done() -> None:
    """A notice without an outcome is no notice."""
    snap = idle_scene()
    first = look(snap, NOW_S)
    lost = replace(first, instructions=())
    assert record(look(snap, NOW_S + 3 * HOUR_S, lost)).step == IdleStep.SEEN


@pytest.mark.parametrize(
    ("columns", "guarantee"),
    [
        pytest.param({"slo_class": 0}, 0, id="protected class"),
        pytest.param({"excluded": True}, 0, id="opted out"),
        pytest.param({"service": 0}, 0, id="replica"),
        pytest.param({"preemptible": False}, 8, id="not preemptible inside its guarantee"),
    ],
)
def test_protected_work_gets_a_recommendation_only(columns: dict[str, Any], guarantee: int) -> None:
    """A note to a person, and no step."""
    step = look(idle_scene(guarantee, **columns), NOW_S)
    assert kinds(step) == []
    assert [note.code for note in step.decision.notes] == ["idle_advice"]


def test_work_that_wakes_up_leaves_the_ladder() -> None:
    """Also when the longest window still shows it idle, and for good once a look shows it busy."""
    snap = idle_scene()
    told = notified(snap)
    mean = snap.telemetry.mean.copy()
    mean[0, 0, :] = 0.8
    waking = replace(snap, telemetry=replace(snap.telemetry, mean=mean, maximum=mean * 1.02))
    assert kinds(look(waking, NOW_S + 2 * HOUR_S, told)) == []
    busy = measured(snap, {row: {"sm_active_ratio": 0.8, "power_w": 350.0} for row in range(8)})
    assert not look(busy, NOW_S + 2 * HOUR_S, told).memory.idle.records


@pytest.mark.parametrize("wakes", [True, False])
def test_a_suspension_is_not_tried_again_when_the_work_woke(*, wakes: bool) -> None:
    """Its first attempt failed. The longest window still shows the work idle, the newest shows it at work."""
    snap, due_s = idle_scene(), NOW_S + 2 * HOUR_S
    due = look(snap, due_s, notified(snap))
    (order,) = due.instructions
    assert order.kind == "evict"
    mean = snap.telemetry.mean.copy()
    mean[0, 0, :] = 0.8
    waking = replace(snap, telemetry=replace(snap.telemetry, mean=mean, maximum=mean * 1.02))
    failed = (Outcome(order.id, OutcomeKind.FAILED, due_s + 1.0, retryable=True),)
    step = decide(replace(observe(waking if wakes else snap, due_s + 2.0), outcomes=failed), QUICK, due.memory)
    assert [each.id for each in step.instructions] == ([] if wakes else [order.id])


def test_a_blackout_stops_the_ladder_without_ending_it() -> None:
    """Unknown is neither idle nor busy."""
    snap = idle_scene()
    told = notified(snap)
    table = snap.telemetry
    dark = replace(snap, telemetry=replace(table, age_s=table.age_s + 5000.0))
    step = look(dark, NOW_S + 2 * HOUR_S, told)
    assert (kinds(step), record(step).step) == ([], IdleStep.NOTIFIED)


def test_a_new_name_does_not_escape() -> None:
    """The record follows the owner and the GPUs; another owner on the same GPUs starts anew."""
    told = notified(idle_scene())
    since_s = record(told).since_s
    gone = measured(snapshot("1x8", []), {})
    between = look(gone, NOW_S + 400.0, told)
    for user, kept in (("ann", True), ("bob", False)):
        again = holds("x", 8, start_s=NOW_S + 500.0, user=user, queue=0, gpus_per_member=8)
        step = look(measured(snapshot("1x8", [again]), {}), NOW_S + 3000.0, between)
        found = step.memory.idle.records["x"]
        assert (found.since_s == since_s) == kept


def test_hourly_new_names_do_not_escape_suspension() -> None:
    """New objects each hour, of one owner on the same GPUs: the notice and the idle time carry over."""
    step, found = None, []
    for hour in range(6):
        began_s = NOW_S + hour * HOUR_S
        work = [
            holds(f"x{hour}", 8, start_s=began_s, user="ann", queue=1, gpus_per_member=8, checkpoint_interval_s=600.0),
            waits("p", 8, queue=2, priority=0),
        ]
        snap = measured(snapshot("1x8", work, queues=tenants(("a", 0, 0), ("b", 0, 0))), {})
        for later_s in (300.0, 2100.0, 3000.0, 3300.0):
            step = look(snap, began_s + later_s, step, EAGER)
            found += kinds(step)
        assert step is not None
        step = replace(step, instructions=())
    assert found[:2] == ["notify", "pipeline"]  # one notice for all six objects
    assert "notify" not in found[1:]


def test_the_score_of_tenants_and_sizes_are_noted() -> None:
    """Idle GPU-seconds inside and above guarantees once an hour; a smaller size once it is watched for long."""
    snap = idle_scene(guarantee=4)
    policy = with_policy(QUICK, idle={"size_s": 86_400.0})
    first = look(snap, 43_200.0, policy=policy)
    second = look(snap, 43_500.0, first, policy)
    hour = look(snap, 46_800.0, second, policy)
    [score] = [note for note in hour.decision.notes if note.code == "idle_score"]
    assert (score.subject, score.value) == ("t0", 8 * 3600.0)
    assert [fact.value for fact in score.facts] == [4 * 3600.0, 4 * 3600.0, 1]
    assert [note.code for note in second.decision.notes if note.code == "idle_score"] == []
    midnight = look(snap, 172_800.0, hour, policy)
    [size] = [note for note in midnight.decision.notes if note.code == "idle_size"]
    assert [fact.value for fact in size.facts if fact.name == "size"] == ["3 GPUs"]


def test_patience_lengthens_the_graces() -> None:
    """An owner who came back early once has twice the grace."""
    snap = idle_scene()
    told = notified(snap)
    known = replace(told.memory.idle, owners={"t0/ann": IdleOwner(early_returns=1, last_s=NOW_S)})
    patient = replace(told, memory=replace(told.memory, idle=known))
    [rung] = rungs(patient.memory, snap, QUICK)
    assert rung.grace_s == 2 * QUICK.idle.batch_grace_s
    assert kinds(look(snap, NOW_S + HOUR_S + 300.0, patient)) == []


def test_the_outcome_of_another_effect_is_not_that_of_the_notice() -> None:
    """A notice under way is not given."""
    snap = idle_scene()
    first = look(snap, NOW_S)
    other = Outcome("another", OutcomeKind.DONE, NOW_S + 100.0)
    later = decide(replace(observe(snap, NOW_S + 200.0), outcomes=(other,)), QUICK, first.memory)
    assert record(later).step == IdleStep.SEEN


def test_a_return_is_remembered_and_raises_the_patience() -> None:
    """Suspension, return, restart: each is seen on the object, and an early return lengthens every grace."""
    snap = idle_scene()
    due = look(snap, NOW_S + HOUR_S + 300.0, notified(snap))
    work = snap.workloads

    def shown(state: State, gate: Gate) -> Any:
        columns: dict[str, Any] = {
            "state": work.state.copy(),
            "gate": work.gate.copy(),
            "incarnation": work.incarnation + 1,
        }
        columns["state"][0], columns["gate"][0] = state, gate
        none = snap.placements.workload >= 99
        placements = type(snap.placements)(*(getattr(snap.placements, f)[none] for f in snap.placements.__slots__))
        return replace(snap, workloads=replace(work, **columns), placements=placements)

    away = look(shown(State.PENDING, Gate.REJECTED), NOW_S + HOUR_S + 400.0, due)
    assert record(away).step == IdleStep.SUSPENDED
    back = look(shown(State.PENDING, Gate.OPEN), NOW_S + HOUR_S + 900.0, away)
    owner = next(iter(back.memory.idle.owners.values()))
    assert (owner.suspensions, owner.returns, owner.early_returns) == (1, 1, 1)
    assert patience(owner, Policy()) >= 2.0 > patience(IdleOwner(suspensions=3), Policy())


def test_without_the_actions_nothing_is_remembered() -> None:
    """Off is as if they did not exist."""
    off = with_policy(
        EAGER, modes={"notify_idle": "off", "mark_idle": "off", "suspend_idle": "off", "shrink_idle": "off"}
    )
    step = look(idle_scene(), NOW_S, policy=off)
    assert (kinds(step), len(step.memory.idle.records)) == ([], 0)


def test_nothing_is_suspended_while_no_work_waits() -> None:
    """Idle GPUs without demand stay with their owner."""
    snap = idle_scene(state=State.RUNNING)
    alone = measured(snapshot("1x8", [holds("w", 8, start_s=0.0, gpus_per_member=8)]), {})
    assert kinds(look(alone, NOW_S + 2 * HOUR_S, notified(alone))) == []
    assert kinds(look(snap, NOW_S + 2 * HOUR_S, notified(snap))) == ["pipeline"]


def test_no_work_is_suspended_before_its_owner_is_gone_for_long() -> None:
    """Its graces are over after an hour, its idle time is long enough after four hours."""
    snap = idle_scene()
    told = notified(snap, EAGER)
    early = look(snap, NOW_S + 2 * HOUR_S, told, EAGER)
    assert kinds(early) == []
    assert NOW_S - 1800.0 + EAGER.idle.gone_s in ladder_timers_s(rungs(early.memory, snap, EAGER))
    assert kinds(look(snap, NOW_S + 4 * HOUR_S, told, EAGER)) == ["pipeline"]


def test_a_returning_owner_goes_first_inside_the_guarantee() -> None:
    """Before older work of its queue; above the guarantee it keeps its place."""
    for guarantee, first in ((8, "w"), (4, "p")):
        work = [waits("p", 8, queue=1, submit_s=0.0), waits("w", 8, queue=1, submit_s=50.0, user="ann")]
        snap = measured(snapshot("1x8", work, queues=tenants(("a", 0, guarantee), ("b", 0, 0))), {})
        uid = str(snap.workloads.uid[1])
        known = IdleRecord("a/ann", (), 8.0, 0.0, 0.0, estimated=False, step=IdleStep.RETURNED, step_s=NOW_S)
        memory = ControllerMemory(idle=IdleMemory(records={uid: known}))
        plan = decide(observe(snap, NOW_S), QUICK, memory).decision.plan
        assert [each.subject.name for each in plan.proposals if each.kind == "admit" and each.accepted] == [first]


def test_graces_pass_in_working_hours_only() -> None:
    """Two hours of grace from Friday 17:00 end on Monday at 09:00."""
    hours = parse_hours("Mon-Fri 08:00-18:00 +01:00", "working_hours")
    friday_s = 86_400.0 + 16 * HOUR_S  # 2 January 1970, 17:00 at +01:00
    assert passed_at(hours, friday_s, 2 * HOUR_S) == 4 * 86_400.0 + 8 * HOUR_S
    assert passed_at(None, friday_s, 2 * HOUR_S) == friday_s + 2 * HOUR_S


@pytest.mark.parametrize("text", ["weekdays", "Mon-Fri 18:00-08:00", "Foo 08:00-18:00"])
def test_hours_that_are_not_understood_are_refused(text: str) -> None:
    """One message with the field and a fix."""
    with pytest.raises(InputError, match="working_hours"):
        check_policy(with_policy(EAGER, idle={"working_hours": text}))
