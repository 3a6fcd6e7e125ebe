"""Promised and realised: what a case promises, what counts as its gain, when it does not count, and the cap."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopilot.core.capabilities.guards import GUARDS
from autopilot.core.decision.reconciler import reconcile
from autopilot.core.model.approvals import seen_of
from autopilot.core.model.capability import Tick
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.memory.losses import LossesMemory, Stop
from autopilot.core.model.memory.trust import TrustMemory
from autopilot.core.model.modes import Mode, Modes
from autopilot.core.model.promises import Beneficiary, Promise, PromiseRecord, Realised
from autopilot.core.model.records import (
    Code,
    Command,
    CommandKind,
    Loss,
    NoteCode,
    Observation,
    Outcome,
    OutcomeKind,
    Verdict,
)
from autopilot.core.model.snapshot import State
from autopilot.core.trust.follow_promises import MOST_OPEN, follow_promises, judge_promises, remember_promises
from autopilot.explain.proposals import Answer, answer_of, proposal_words
from tests.kits.core_world import decide, forecasts, holds, waits, world
from tests.kits.ticking_world import EAGER, Ticking, tenants
from tests.kits.ticks import planned

FULL = [holds("v", 8), waits("w", 8, priority=5)]
"""A gang of higher priority waits for all GPUs."""
RUNS = {"v": 10_000.0, "w": 3000.0}
BOOKED = Promise("p", "preempt", 1000.0, 5000.0, 100.0, (Beneficiary("w", "w", 4000.0, counted_s=1000.0),))


def followed(
    promise: Promise, *ticks: tuple[float, list[Any]], losses: tuple[Loss, ...] = (), policy: Any = EAGER
) -> tuple[ControllerMemory, list[Realised]]:
    """Memory and the finished cases after these ticks; the losses come with the first."""
    memory, over = ControllerMemory(trust=TrustMemory(promises=(promise,))), list[Realised]()
    for now_s, work in ticks:
        tick = Tick(memory, world("2x8", work, now_s), policy, losses=losses)
        memory = follow_promises(memory, tick)
        over += tick.realised
        losses = ()
    return memory, over


def runs(width: int, start_s: float, **columns: Any) -> list[Any]:
    """The beneficiary runs."""
    return [holds("w", width, start_s=start_s, **columns)]


# --- what is promised ---------------------------------------------------------------------------------


def promises_of(step: Step) -> dict[str, Promise]:
    """The promises in memory, by action."""
    return {each.action: each for each in step.memory.trust.promises}


def seen(work: list[Any], total_s: dict[str, float], now_s: float = 1000.0, **more: Any) -> Observation:
    """A tick with forecasts."""
    return world("1x8", work, now_s, total_s=total_s, **more)


def test_a_preemption_promises_the_use_before_the_predicted_start() -> None:
    """The victim would have run until 10,000 s; the gang needs 3,000 s of it, and the victim loses its progress."""
    step = decide(seen(FULL, RUNS), EAGER)
    promise = promises_of(step)["preempt"]
    (gang,) = promise.beneficiaries
    assert replace(gang, without_s=0.0) == Beneficiary("w", "w", 0.0, counted_s=1000.0, gpus=8.0)
    assert gang.without_s == pytest.approx(10_000.0)
    lost_gpu_s = sum(victim.lost_gpu_s for victim in step.decision.plan.proposals[-1].victims)
    assert lost_gpu_s == 8000.0
    assert promise.promised_gpu_s == pytest.approx(8 * 3000.0 - lost_gpu_s)
    assert (promise.at_s, promise.until_s, promise.unknown) == (1000.0, 1000.0 + EAGER.horizon_s, "")


def test_the_promise_ends_with_the_predicted_start_and_with_the_horizon() -> None:
    """What the gang uses after either is no gain of the action."""
    long = {"v": 10_000.0, "w": 50_000.0}
    assert promises_of(decide(seen(FULL, long), EAGER))["preempt"].promised_gpu_s == pytest.approx(8 * 9000.0 - 8000.0)
    short = replace(EAGER, horizon_s=2000.0)
    assert promises_of(decide(seen(FULL, long), short))["preempt"].promised_gpu_s == pytest.approx(8 * 2000.0 - 8000.0)


@pytest.mark.parametrize(
    ("total_s", "why"),
    [({"v": 10_000.0}, "no_run_time"), ({"w": 3000.0}, "no_start"), ({"v": 500.0, "w": 3000.0}, "no_start")],
)
def test_what_nobody_predicts_does_not_count(total_s: dict[str, float], why: str) -> None:
    """Neither the run time of the gang nor the end of the work in its way is guessed, nor that of work that outlived
    its forecast.
    """
    assert promises_of(decide(seen(FULL, total_s), EAGER))["preempt"].unknown == why


def test_a_gang_that_waits_for_quota_has_no_predicted_start() -> None:
    """GPUs are free: what it waits for is not capacity."""
    queues = tenants(("a", 0, 0), ("b", 0, 0), limit={"a": 4})
    work = [holds("v", 4, range(4), queue=1), waits("w", 4, priority=5, queue=1)]
    step = decide(seen(work, {"v": 10_000.0, "w": 3000.0}, queues=queues), EAGER)
    assert promises_of(step)["preempt"].unknown == "no_start"


def test_contracts_free_starts_and_recommendations_promise_nothing() -> None:
    """Only what is weighed and carried out is a case."""
    queues = tenants(("a", 0, 8), ("b", 0, 0))
    owed = seen([holds("v", 8, queue=2), waits("w", 8, queue=1)], RUNS, queues=queues)
    assert decide(owed, EAGER).instructions
    assert decide(owed, EAGER).memory.trust.promises == ()
    assert decide(seen([waits("w", 8)], RUNS), EAGER).memory.trust.promises == ()
    recommends = replace(EAGER, modes=replace(EAGER.modes, preempt=Mode.RECOMMEND))
    assert decide(seen(FULL, RUNS), recommends).memory.trust.promises == ()


def test_a_new_geometry_promises_the_use_of_the_requests_that_wait() -> None:
    """One request of 3 of 7 slices; no instance of its profile exists, so that nothing would come free within the
    horizon. A change for what is only expected names nobody.
    """
    small = tuple(("1g.10gb", start) for start in range(7))
    work = [waits("w", 1, mig_profile=2)]
    step = decide(world("1x8", work, 0.0, total_s={"w": 7000.0}, cuts={0: small}), EAGER)
    promise = promises_of(step)["regeometry"]
    assert [(each.workload, each.without_s) for each in promise.beneficiaries] == [("w", inf)]
    assert promise.promised_gpu_s == pytest.approx(7000.0 * promise.beneficiaries[0].part)
    assert promise.beneficiaries[0].part == pytest.approx(3 / 7)


def test_no_more_cases_are_followed_than_memory_holds() -> None:
    """Further ones are not recorded."""
    seen = world("1x8", [], 0.0)
    memory = remember_promises(ControllerMemory(), planned(seen, EAGER, promises=(BOOKED,) * (MOST_OPEN - 1)))
    memory = remember_promises(memory, planned(seen, EAGER, promises=(BOOKED,) * 5))
    assert len(memory.trust.promises) == MOST_OPEN


# --- what is realised ---------------------------------------------------------------------------------


def test_use_counts_from_the_start_to_the_predicted_start_without_the_action() -> None:
    """Between two ticks the gang held what it held at the first; the case ends at 4,000 s."""
    memory, over = followed(BOOKED, (2000.0, runs(8, 1500.0)), (3000.0, runs(8, 1500.0)))
    assert (memory.trust.promises[0].beneficiaries[0].used_gpu_s, over) == (8 * 1500.0, [])
    memory, over = followed(BOOKED, (2000.0, runs(8, 1500.0)), (9000.0, runs(8, 1500.0)))
    assert over == [Realised("p", "preempt", 1000.0, 100.0, 8 * 2500.0, 0.0)]
    assert memory.trust.promises == ()
    assert memory.trust.kept_promises["preempt"].cases == ((100.0, 8 * 2500.0),)


def test_use_ends_with_the_horizon() -> None:
    """The predicted start lies beyond it."""
    late = replace(BOOKED, beneficiaries=(Beneficiary("w", "w", inf, counted_s=1000.0),))
    _, over = followed(late, (9000.0, runs(8, 3000.0)))
    assert [case.used_gpu_s for case in over] == [8 * 2000.0]


def test_the_width_counts_as_it_changes() -> None:
    """Eight GPUs for 500 s, then four."""
    _, over = followed(BOOKED, (1500.0, runs(8, 1000.0)), (2000.0, runs(4, 1000.0)), (9000.0, runs(4, 1000.0)))
    assert [case.used_gpu_s for case in over] == [8 * 1000.0 + 4 * 2000.0]


def test_a_case_ends_early_with_its_beneficiary() -> None:
    """Its exact end is used, also where it was never seen running."""
    ended = [waits("w", 8, state=State.SUCCEEDED, start_s=1200.0, ended_s=1700.0)]
    for ticks in ([(2000.0, ended)], [(1500.0, runs(8, 1200.0)), (2000.0, ended)]):
        _, over = followed(BOOKED, *ticks)
        assert [case.used_gpu_s for case in over] == [8 * 500.0]


def test_a_beneficiary_that_vanishes_used_its_gpus_until_then() -> None:
    """Its object is gone: nothing more can be seen of it."""
    _, over = followed(BOOKED, (1500.0, runs(8, 1200.0)), (1600.0, []))
    assert [case.used_gpu_s for case in over] == [8 * 400.0]


def test_a_beneficiary_that_waits_on_gains_nothing() -> None:
    """The victims have left, and the start never came: the loss alone is realised."""
    loss = Loss("p", "v", 0, 700.0, 0.0, 0.0)
    _, over = followed(BOOKED, (2000.0, [waits("w", 8)]), (4000.0, [waits("w", 8)]), losses=(loss,))
    assert [(case.gain_gpu_s, case.unknown) for case in over] == [(-700.0, "")]


def test_losses_of_victims_and_of_the_work_that_started_are_deducted() -> None:
    """Those of other work are not."""
    began = replace(BOOKED, beneficiaries=(replace(BOOKED.beneficiaries[0], width=8.0),))
    losses = (Loss("p", "v", 0, 300.0, 0.0, 0.0), Loss("q", "w", 0, 50.0, 0.0, 0.0), Loss("q", "x", 0, 9.0, 0.0, 0.0))
    _, over = followed(began, (4000.0, runs(8, 1000.0)), losses=losses)
    assert [(case.used_gpu_s, case.lost_gpu_s) for case in over] == [(8 * 3000.0, 350.0)]


def test_a_loss_that_is_not_reported_is_unknown_and_the_case_does_not_count() -> None:
    """Not zero."""
    memory, over = followed(BOOKED, (4000.0, runs(8, 1000.0)), losses=(Loss("p", "v", 0, float("nan"), 0.0, 0.0),))
    assert [case.unknown for case in over] == ["no_loss"]
    assert memory.trust.kept_promises == {}


def test_an_action_that_did_nothing_does_not_count() -> None:
    """Its victims could not save and kept their place, and nothing started."""
    memory, over = followed(BOOKED, (4000.0, [waits("w", 8)]))
    assert [case.unknown for case in over] == ["not_done"]
    assert memory.trust.kept_promises == {}


def stop(number: int = 1) -> Stop:
    """A stop of the case whose loss is awaited."""
    return Stop(f"i{number}", "p", "v", 0, "t", 1000.0, 8.0, 0.0, 0.0, True)


def test_a_case_waits_for_the_losses_of_its_victims() -> None:
    """Its horizon is over, and a victim still saves. A stop that is forgotten makes it unknown; a declined one not."""
    waiting = ControllerMemory(trust=TrustMemory(promises=(BOOKED,)), losses=LossesMemory(stops=(stop(),)))
    late = world("2x8", runs(8, 1000.0), 9000.0)
    tick = Tick(waiting, late, EAGER)
    memory = follow_promises(waiting, tick)
    assert tick.realised == ()
    gone = replace(memory, losses=replace(memory.losses, stops=()))
    tick = Tick(waiting, late, EAGER)
    follow_promises(gone, tick)
    assert [case.unknown for case in tick.realised] == ["no_loss"]
    declined = replace(late, outcomes=(Outcome("i1", OutcomeKind.DECLINED, 9000.0),))
    tick = Tick(waiting, declined, EAGER)
    follow_promises(gone, tick)
    assert [case.unknown for case in tick.realised] == [""]


@given(
    cuts=st.lists(st.floats(1000.0, 6000.0), max_size=6),
    start_s=st.floats(1000.0, 6000.0),
    ended_s=st.floats(0.0, 3000.0),
)
def test_the_ticks_in_between_do_not_change_the_gain(cuts: list[float], start_s: float, ended_s: float) -> None:
    """Any ticks between those that events call for: the start, and the end."""
    end_s = start_s + ended_s

    def shown(now_s: float) -> list[Any]:
        if now_s < start_s:
            return [waits("w", 8)]
        if now_s < end_s:
            return runs(8, start_s)
        return [waits("w", 8, state=State.SUCCEEDED, start_s=start_s, ended_s=end_s)]

    times = sorted({start_s, end_s, 9000.0})
    _, few = followed(BOOKED, *[(now_s, shown(now_s)) for now_s in times])
    _, many = followed(BOOKED, *[(now_s, shown(now_s)) for now_s in sorted({*times, *cuts})])
    expected = 8 * max(min(end_s, 4000.0) - start_s, 0.0)
    assert few[0].used_gpu_s == pytest.approx(expected)
    assert many[0].used_gpu_s == pytest.approx(expected)


class Foreseen(Ticking):
    """With forecasts."""

    def observe(self, now_s: float) -> Observation:
        """What a controller would see."""
        return replace(super().observe(now_s), forecasts=forecasts(self.snapshot(), RUNS))


def test_from_the_decision_to_the_finished_case() -> None:
    """Played through: the victim saves nothing, the gang runs to its end, and the journal's decision has the case."""
    play = Foreseen("1x8", FULL)
    play.tick(1000.0)
    play.gangs["v"].columns["lost_gpu_s"] = 8000.0
    play.leave("v")
    play.tick(1030.0)
    assert play.running() == ["w"]
    play.tick(1040.0)
    play.gangs["w"].columns["ended_s"] = 3040.0
    play.finish("w")
    play.gangs["w"].columns["start_s"] = 1030.0
    (case,) = play.tick(3040.0).decision.realised
    assert (case.action, case.promised_gpu_s, case.unknown) == ("preempt", 16_000.0, "")
    assert (case.used_gpu_s, case.lost_gpu_s) == (8 * 2010.0, 8000.0)


# --- the cap ------------------------------------------------------------------------------------------


def kept(promised: float, realised: float, cases: int = 20, capped_s: float = inf) -> PromiseRecord:
    """Equal cases."""
    return PromiseRecord(((promised, realised),) * cases, capped_s)


@pytest.mark.parametrize(
    ("record", "capped"),
    [
        (kept(100.0, 49.0), True),
        (kept(100.0, 50.0), False),
        (kept(100.0, -500.0, cases=19), False),
        (kept(-100.0, -199.0), False),
        (kept(-100.0, -201.0), True),
        (kept(0.0, -1.0), True),
        (kept(0.0, 0.0), False),
    ],
)
def test_below_half_of_the_promise_an_action_is_capped(record: PromiseRecord, capped: bool) -> None:
    """By the sum over twenty cases or more; where a loss was promised, twice the loss is allowed."""
    memory = judge_promises(ControllerMemory(trust=TrustMemory(kept_promises={"preempt": record})), 900.0, EAGER)
    assert memory.trust.kept_promises["preempt"].capped_s == (900.0 if capped else inf)


def test_it_is_judged_by_the_sum_not_by_single_cases() -> None:
    """One large success outweighs many small failures."""
    record = PromiseRecord((*((1.0, 0.0),) * 30, (100.0, 100.0)))
    assert judge_promises(
        ControllerMemory(trust=TrustMemory(kept_promises={"preempt": record})), 0.0, EAGER
    ).trust.kept_promises == {"preempt": record}


def capped(action: str, **more: Any) -> ControllerMemory:
    """The action is capped since 900 s."""
    return ControllerMemory(trust=TrustMemory(kept_promises={action: kept(100.0, 20.0, capped_s=900.0)}), **more)


def answer(step: Step, kind: str) -> Verdict:
    """The verdict of the guard on the proposal of `<action> <kind>`."""
    (found,) = [each for each in step.decision.plan.proposals if f"{each.action} {each.kind}" == kind]
    return next(verdict for verdict in found.verdicts if verdict.guard == "promise")


def test_a_capped_action_recommends_and_its_words_name_the_sums() -> None:
    """Nothing is sent; the proposal stands, and says what was promised and what was realised."""
    step = decide(seen(FULL, RUNS), EAGER, capped("preempt"))
    assert step.instructions == ()
    assert step.memory.trust.promises == ()
    verdict = answer(step, "preempt pipeline")
    assert (verdict.allowed, verdict.code, verdict.value, verdict.threshold) == (False, Code.CAPPED, 400.0, 1000.0)
    proposal = step.decision.plan.proposals[-1]
    assert answer_of(proposal) == Answer.RECOMMENDED
    assert "0.111 GPU-h realised of 0.556 GPU-h promised by 20 cases" in proposal_words(proposal)
    assert decide(seen(FULL, RUNS), EAGER, capped("defragment")).instructions


def test_without_the_guard_a_capped_action_goes_on() -> None:
    """The planted defect that the guard is there for."""
    without = tuple((name, check) for name, check in GUARDS if name != "promise")
    assert decide(seen(FULL, RUNS), EAGER, capped("preempt"), guards=without).instructions


def test_a_capped_action_takes_no_approval() -> None:
    """In mode approve its proposals are recommendations as well, also approved ones."""
    policy = replace(EAGER, modes=replace(EAGER.modes, preempt=Mode.APPROVE))
    first = decide(seen(FULL, RUNS), policy, capped("preempt"))
    proposal = first.decision.plan.proposals[-1]
    assert answer_of(proposal) == Answer.RECOMMENDED
    yes = Command(CommandKind.APPROVE, "ann", 1000.0, proposal.recommendation, 1, seen_of(proposal))
    assert decide(seen(FULL, RUNS, tick=1, commands=(yes,)), policy, first.memory).instructions == ()
    free = replace(first.memory, trust=replace(first.memory.trust, kept_promises={}))
    assert decide(seen(FULL, RUNS, tick=1, commands=(yes,)), policy, free).instructions


def test_contracts_of_a_capped_action_continue() -> None:
    """What a queue is owed is taken back, and the sums are recorded."""
    queues = tenants(("a", 0, 8), ("b", 0, 0))
    owed = seen([holds("v", 8, queue=2), waits("w", 8, queue=1)], RUNS, queues=queues)
    step = decide(owed, EAGER, capped("reclaim_borrowed"))
    verdict = answer(step, "reclaim_borrowed pipeline")
    assert (verdict.allowed, verdict.code, verdict.value) == (True, Code.WAIVED_CONTRACT, 400.0)
    assert [each.kind for each in step.instructions] == ["evict"]


def test_a_start_whose_victims_have_left_is_sent_under_the_cap() -> None:
    """What was begun is ended: the place is not left empty."""
    play = Ticking("1x8", FULL)
    play.tick(8000.0)
    play.leave("v")
    play.memory = replace(
        play.memory, trust=replace(play.memory.trust, kept_promises=capped("preempt").trust.kept_promises)
    )
    (start,) = play.tick(8030.0).instructions
    assert (start.kind, play.memory.effects.in_flight[start.id].action) == ("admit", "preempt")


def test_the_cap_begins_in_the_tick_that_finishes_the_case_and_says_so() -> None:
    """Before that tick plans: nothing more is done on a promise that is known to be bad."""
    record, last = kept(100.0, 20.0, cases=19), replace(BOOKED, until_s=1000.0, done=True)
    memory = ControllerMemory(trust=TrustMemory(promises=(last,), kept_promises={"preempt": record}))
    step = decide(seen(FULL, RUNS), EAGER, memory)
    assert step.instructions == ()
    assert step.memory.trust.kept_promises["preempt"].capped_s == 1000.0
    assert [(note.code, note.subject) for note in step.decision.notes] == [(NoteCode.ACTION_CAPPED, "preempt")]


def test_a_person_lifts_the_cap_and_new_cases_count() -> None:
    """At once; a second lift, or one of another action, is refused."""
    lift = Command(CommandKind.LIFT, "ann", 1000.0, "preempt", sequence=1)
    step = decide(seen(FULL, RUNS, commands=(lift,)), EAGER, capped("preempt"))
    assert step.instructions
    assert step.memory.trust.kept_promises["preempt"] == PromiseRecord()
    assert [note.code for note in step.decision.notes] == [NoteCode.CAP_LIFTED]
    for memory in (step.memory, ControllerMemory()):
        again = replace(lift, sequence=step.memory.people.last_sequence + 1)
        after = decide(seen([], {}, tick=1, commands=(again,)), EAGER, memory)
        assert [note.code for note in after.decision.notes] == [NoteCode.LIFT_REFUSED]


def test_resume_does_not_lift_a_cap() -> None:
    """A pause and a cap are different things."""
    resume = Command(CommandKind.RESUME, "ann", 1000.0, sequence=1)
    assert decide(seen(FULL, RUNS, commands=(resume,)), EAGER, capped("preempt")).instructions == ()


MODES = st.sampled_from(Mode)


@given(mode=MODES, work=st.sampled_from(("preempt", "reclaim_borrowed")), ticks=st.integers(1, 3))
def test_a_cap_never_raises_a_mode(mode: Mode, work: str, ticks: int) -> None:
    """With the cap, everything that is accepted is accepted without it, in every mode of the capped action."""
    modes = replace(Modes(*[Mode.AUTO] * len(Modes.__dataclass_fields__)), **{work: mode})
    policy = replace(EAGER, modes=modes)
    queues = tenants(("a", 0, 4), ("b", 0, 0))
    gangs = [holds("v", 8, queue=2), waits("w", 8, priority=5, queue=2), waits("o", 4, queue=1)]
    held = ControllerMemory(trust=TrustMemory(kept_promises=capped(work).trust.kept_promises))
    for tick in range(ticks):
        now = seen(gangs, {**RUNS, "o": 500.0}, 1000.0 + tick, queues=queues, tick=tick)
        with_cap = reconcile(held, now, policy)
        without = reconcile(replace(held, trust=replace(held.trust, kept_promises={})), now, policy)
        accepted = {each.id for each in with_cap.decision.plan.proposals if each.accepted and each.action == work}
        assert accepted <= {each.id for each in without.decision.plan.proposals if each.accepted}
        weighed = [
            each
            for each in with_cap.decision.plan.proposals
            if each.action == work and each.accepted and not any(victim.contract for victim in each.victims)
        ]
        assert weighed == []
        held = with_cap.memory
