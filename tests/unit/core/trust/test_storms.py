"""Storms: what counts, when an action is paused, what continues, and how a storm ends."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopilot.core.capabilities.guards import GUARDS
from autopilot.core.effects.admit import AdmitChange, AdmitOperation
from autopilot.core.effects.evict import EvictChange
from autopilot.core.geometry.recut import RecutGpu
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.effects import EffectsMemory, InFlight
from autopilot.core.model.memory.trust import StormRecord, TrustMemory
from autopilot.core.model.objects import Subject, SubjectKind, Victim
from autopilot.core.model.policy.storms import Storms
from autopilot.core.model.records import (
    Code,
    Command,
    CommandKind,
    Instruction,
    Outcome,
    OutcomeKind,
    Proposal,
    Verdict,
)
from autopilot.core.replicas.scale import Scale
from autopilot.core.reserving.reserve import ReserveChange
from autopilot.core.trust.follow_storms import count_acts, events_in_hour, judge_storms, limit_of, storm_timers_s
from tests.kits.core_world import decide, holds, waits, with_policy, world
from tests.kits.demand_world import serving
from tests.kits.ticking_world import EAGER, Ticking, tenants
from tests.kits.ticks import planned

HOUR_S, DAY_S = 3600.0, 86_400.0
STRICT = with_policy(EAGER, storms={"per_hour": 2})
SEEN = serving(world("1x8", []), floor=[3])


def victim(name: str) -> Victim:
    """A gang of eight that leaves."""
    return Victim(name, 0, 8, 0.0, False, uid=name)


def proposal(action: str, change: Any, subject: str = "w") -> Proposal:
    """An accepted proposal."""
    kind = SubjectKind.SERVICE if isinstance(change, Scale) else SubjectKind.WORKLOAD
    return Proposal("p", action, Subject(kind, subject, subject, 0), "q", "t", change, accepted=True)


CUT = proposal("regeometry", RecutGpu(pool="p", before=None, after=(), scope="instance", node="n", index=0))


def acted(memory: ControllerMemory, now_s: float, *proposals: Proposal) -> ControllerMemory:
    """Memory after a tick that accepted these."""
    return count_acts(memory, planned(replace(SEEN, now_s=now_s), EAGER, *proposals))


def events(memory: ControllerMemory, action: str, now_s: float) -> int:
    """Events of the action within the last hour."""
    return events_in_hour(memory.trust.storms.get(action, StormRecord()), now_s)


def stop(*names: str) -> EvictChange:
    """These leave."""
    return EvictChange(victims=tuple(map(victim, names)))


def test_a_workload_that_is_stopped_again_within_the_hour_is_a_reversal() -> None:
    """By the same action; by another one, of another workload or an hour later it is none."""
    first = acted(ControllerMemory(), 0.0, proposal("preempt", stop("a")))
    assert events(first, "preempt", 0.0) == 0
    for action, name, at_s, count in (
        ("preempt", "a", 3599.0, 1),
        ("preempt", "a", 3600.0, 0),
        ("preempt", "b", 60.0, 0),
        ("defragment", "a", 60.0, 0),
    ):
        assert events(acted(first, at_s, proposal(action, stop(name))), action, at_s) == count


def test_a_floor_that_rises_within_an_hour_of_its_fall_is_a_reversal() -> None:
    """The first rise counts, the next does not; a fall alone does not."""
    lower, higher = Scale(replicas=1, until_s=9e9), Scale(replicas=4, until_s=9e9)
    memory = acted(ControllerMemory(), 0.0, proposal("scale_ahead", lower, "chat"))
    memory = acted(memory, 100.0, proposal("scale_ahead", lower, "chat"))
    assert events(memory, "scale_ahead", 100.0) == 0
    memory = acted(memory, 200.0, proposal("scale_ahead", higher, "chat"))
    assert events(memory, "scale_ahead", 200.0) == 1
    memory = acted(memory, 300.0, proposal("scale_ahead", higher, "chat"))
    assert events(memory, "scale_ahead", 300.0) == 1


def test_every_change_of_geometry_counts_and_no_reservation() -> None:
    """Starts count as acts without an event; a reservation is no act."""
    memory = acted(ControllerMemory(), 0.0, CUT, CUT)
    start = AdmitChange(slots=())
    memory = acted(memory, 1.0, proposal("admit_gang", start), proposal("backfill", ReserveChange(start_s=9.0)))
    assert events(memory, "regeometry", 1.0) == 2
    assert set(memory.trust.storms) == {"regeometry", "admit_gang"}
    assert events(memory, "admit_gang", 1.0) == 0


def test_the_median_counts_once_the_action_acted_in_a_day_of_hours() -> None:
    """Before that the limit of the policy alone holds; it also caps the median, and `least` is its floor."""
    rules = Storms(per_hour=60, median_ratio=3.0, least=5)
    busy = StormRecord(hours=tuple((hour * HOUR_S, 4) for hour in range(24)))
    now_s = 24 * HOUR_S
    assert limit_of(busy, now_s, rules) == 12.0
    assert limit_of(replace(busy, hours=busy.hours[1:]), now_s, rules) == 60.0
    assert limit_of(busy, now_s - 1.0, rules) == 60.0, "the hour that is not over does not count"
    assert limit_of(replace(busy, hours=tuple((at_s, 0) for at_s, _ in busy.hours)), now_s, rules) == 5.0
    assert limit_of(replace(busy, hours=tuple((at_s, 90) for at_s, _ in busy.hours)), now_s, rules) == 60.0
    assert limit_of(busy, now_s + 7 * DAY_S, rules) == 60.0, "what is older than 7 days is forgotten"


@given(st.lists(st.tuples(st.floats(0.1, 5000.0), st.integers(0, 3)), max_size=200))
def test_memory_is_bounded_and_counts_every_event(steps: list[tuple[float, int]]) -> None:
    """An hour of minutes and a week of hours, whatever happens; the last hour is counted to the minute."""
    memory, now_s, past = ControllerMemory(), 0.0, list[float]()
    for gap_s, cuts in steps:
        now_s += gap_s
        memory = acted(memory, now_s, *[CUT] * cuts, proposal("regeometry", AdmitChange(slots=())))
        past += [now_s] * cuts
        record = memory.trust.storms["regeometry"]
        assert len(record.minutes) <= 61
        assert len(record.hours) <= 7 * 24 + 1
        counted = events_in_hour(record, now_s)
        assert sum(now_s - at_s < HOUR_S - 60.0 for at_s in past) <= counted
        assert counted <= sum(now_s - at_s < HOUR_S for at_s in past)


def stormy(action: str, **more: Any) -> ControllerMemory:
    """The action is in a storm since 9,000 s."""
    record = StormRecord(((9000.0, 9),), ((9000.0, 9),), last_s=9000.0, since_s=9000.0, events=9)
    return ControllerMemory(trust=TrustMemory(storms={action: record}), **more)


def held_by_storm(step: Any) -> dict[str, Verdict]:
    """The verdict of the guard on each proposal, by action and kind."""
    return {
        f"{each.action} {each.kind}": next(verdict for verdict in each.verdicts if verdict.guard == "storm")
        for each in step.decision.plan.proposals
    }


FULL = [holds("v", 8), waits("w", 8, priority=5)]
"""A gang of higher priority waits for all GPUs."""


def test_a_paused_action_proposes_and_does_nothing() -> None:
    """The proposal stands in the record with the numbers; the other actions go on."""
    step = decide(world("1x8", FULL, 9100.0), EAGER, stormy("preempt"))
    verdict = held_by_storm(step)["preempt pipeline"]
    assert (verdict.allowed, verdict.code, verdict.value, verdict.threshold) == (False, Code.STORM, 9.0, 60.0)
    assert step.instructions == ()
    assert decide(world("1x8", FULL, 9100.0), EAGER, stormy("defragment")).instructions


def test_without_the_guard_a_stormy_action_goes_on() -> None:
    """The planted defect that the guard is there for."""
    without = tuple((name, check) for name, check in GUARDS if name != "storm")
    assert decide(world("1x8", FULL, 9100.0), EAGER, stormy("preempt"), guards=without).instructions


def test_contracts_continue_in_a_storm() -> None:
    """What a queue is owed is taken back, and the number is recorded."""
    queues = tenants(("a", 0, 8), ("b", 0, 0))
    seen = world("1x8", [holds("v", 8, queue=2), waits("w", 8, queue=1)], 9100.0, queues=queues)
    step = decide(seen, EAGER, stormy("reclaim_borrowed"))
    verdict = held_by_storm(step)["reclaim_borrowed pipeline"]
    assert (verdict.allowed, verdict.code, verdict.value) == (True, Code.WAIVED_CONTRACT, 9.0)
    assert [each.kind for each in step.instructions] == ["evict"]


def test_a_start_whose_victims_have_left_is_sent_in_a_storm() -> None:
    """What was begun is ended: the place is not left empty."""
    play = Ticking("1x8", FULL)
    (begun,) = play.tick(8000.0).instructions
    play.leave("v")
    play.memory = replace(play.memory, trust=replace(play.memory.trust, storms=stormy("preempt").trust.storms))
    (start,) = play.tick(9010.0).instructions
    assert (start.kind, start.proposal_id) == ("admit", begun.proposal_id), "not a new start by another action"


def test_it_ends_after_calm_and_announces_that() -> None:
    """Two hours after the latest event, not earlier; the tick of the end is announced."""
    seen = world("1x8", FULL, 9100.0)
    step = decide(seen, EAGER, stormy("preempt"))
    assert step.wake_at_s <= 9000.0 + EAGER.storms.calm_s
    for now_s, ends in ((16_199.0, False), (16_200.0, True)):
        late = decide(replace(seen, now_s=now_s, tick=1), EAGER, step.memory)
        assert (late.memory.trust.storms["preempt"].since_s == inf) == ends
        assert bool(late.instructions) == ends
        assert [note.code for note in late.decision.notes] == ["storm_ended"] * ends


def test_the_end_is_a_time_to_wake_at() -> None:
    """Two hours after the latest event of each action that is in a storm."""
    calm = {"backfill": StormRecord(last_s=8000.0)}
    memory = ControllerMemory(trust=TrustMemory(storms={**stormy("preempt").trust.storms, **calm}))
    assert list(storm_timers_s(memory, planned(SEEN, EAGER))) == [16_200.0]


def test_a_person_ends_it_and_the_same_events_begin_no_new_one() -> None:
    """The command resume, at once."""
    resume = Command(CommandKind.RESUME, "ann", 9100.0, sequence=1)
    step = decide(world("1x8", FULL, 9100.0, commands=(resume,)), STRICT, stormy("preempt"))
    assert step.memory.trust.storms["preempt"].since_s == inf
    assert step.instructions


def test_more_events_than_the_limit_begin_one() -> None:
    """As many as the limit do not; the worst hour is remembered, in words."""
    calm, busy = (StormRecord(((9000.0, count),), last_s=9000.0) for count in (2, 3))
    assert (
        judge_storms(ControllerMemory(trust=TrustMemory(storms={"preempt": calm})), 9100.0, STRICT).trust.storms[
            "preempt"
        ]
        == calm
    )
    step = decide(world("1x8", FULL, 9100.0), STRICT, ControllerMemory(trust=TrustMemory(storms={"preempt": busy})))
    record = step.memory.trust.storms["preempt"]
    assert (record.since_s, record.events) == (9100.0, 3)
    assert [(note.code, note.subject) for note in step.decision.notes] == [("storm_began", "preempt")]
    assert step.instructions == ()


@pytest.mark.parametrize(("action", "kinds"), [("admit_gang", []), ("reclaim_borrowed", ["evict"])])
def test_failed_effects_count_for_their_action_and_stop_no_contract(action: str, kinds: list[str]) -> None:
    """Three failures in one tick are a storm; a contract of the same action goes on all the same."""
    start = AdmitOperation(slots=())
    effects = {
        f"e{number}": InFlight(
            Instruction(f"e{number}", Subject(SubjectKind.WORKLOAD, f"x{number}", f"x{number}", 0), start, 9e9, 0, "p"),
            *("issued", 9000.0, action, "t", 0.0, False),
        )
        for number in range(3)
    }
    outcomes = tuple(Outcome(key, OutcomeKind.FAILED, 9050.0, "no") for key in effects)
    queues = tenants(("a", 0, 8), ("b", 0, 0))
    work = [waits("w", 8, queue=1), *([holds("v", 8, queue=2)] if kinds else [])]
    seen = world("1x8", work, 9100.0, queues=queues, outcomes=outcomes)
    policy = with_policy(STRICT, pause={"failures": 100})
    step = decide(seen, policy, ControllerMemory(effects=EffectsMemory(in_flight=effects)))
    assert step.memory.trust.storms[action].events == 3
    assert [each.kind for each in step.instructions] == kinds
