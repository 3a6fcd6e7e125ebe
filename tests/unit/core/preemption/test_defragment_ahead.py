"""Moves ahead of demand: which they are, what they are worth, and when nothing is moved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.model.errors import InputError
from autopilot.core.model.forecast import MixKind, abstaining_mix
from autopilot.core.model.hours import next_edge_s, parse_hours, within_hours
from autopilot.core.model.policy import Mode, Policy, check_policy
from autopilot.core.model.records import Observation, Proposal
from autopilot.core.model.stops import StopReason
from tests.kits.core_world import decide, holds, waits, with_policy
from tests.kits.expected_world import (
    HOUR_S,
    ISLAND,
    LASTING,
    NOW_S,
    PATIENT,
    SAVES,
    STRAGGLERS,
    island_expected,
    mix_of,
    patient,
)


def moved(observation: Observation, policy: Policy = PATIENT) -> Proposal | None:
    """The move ahead that is proposed; None: none is."""
    found = [each for each in decide(observation, policy).decision.plan.proposals if each.kind == "move"]
    assert len(found) <= 1
    return found[0] if found else None


def test_the_cheapest_moves_that_make_room_are_chosen() -> None:
    """One gang of two GPUs instead of one of four, to the other island."""
    found = moved(island_expected())
    assert found is not None
    assert found.accepted
    assert [victim.workload for victim in found.victims] == ["b"]
    assert {slot.node for slot in found.victims[0].keeps} <= {"node-0", "node-1"}
    step = decide(island_expected(), PATIENT)
    (effect,) = step.instructions
    assert effect.operation.takes == StopReason.MOVE_AHEAD
    (start,) = step.memory.starts.pipelined_starts
    assert [part.workload for part in start.parts] == ["b"]


def test_all_blockers_of_an_island_move_in_one_proposal() -> None:
    """Two gangs on one island, four GPUs that block the other: the two are cheaper than the one."""
    work = [
        holds("wide", 8, range(8), **SAVES),
        holds("x", 1, [16], gpus_per_member=1, **SAVES),
        holds("y", 1, [24], gpus_per_member=1, **SAVES),
    ]
    found = moved(island_expected(work, total_s=dict.fromkeys(("wide", "x", "y"), 100 * HOUR_S)))
    assert found is not None
    assert {victim.workload for victim in found.victims} == {"x", "y"}
    assert {slot.node for victim in found.victims for slot in victim.keeps} == {"node-1"}


def test_it_is_worth_the_waiting_that_it_saves() -> None:
    """Gangs come every two hours. Without `defragment` the first would wait for the rest of four hours."""
    by_hand = with_policy(PATIENT, modes={"defragment": Mode.OFF})
    found = moved(island_expected(), by_hand)
    assert found is not None
    facts = {each.name: each.value for each in found.evidence}
    assert (facts["arrivals"], facts["by_itself"]) == (2.0, 4 * HOUR_S)
    saved_s = 4 * HOUR_S - 2 * HOUR_S * (1 - 2.718281828**-2)  # the mean of (4 h - A), A exponential of mean 2 h
    assert facts["saved"] == pytest.approx(saved_s, rel=1e-6)
    assert found.benefit_gpu_s == pytest.approx(16 * saved_s * 2, rel=1e-6)
    assert found.cost_gpu_s == pytest.approx(2 * (20.0 + 30.0))


def test_where_defragment_acts_only_its_delay_is_saved() -> None:
    """A gang that comes would start after the dwell time and the grace of the moves."""
    quick = moved(island_expected())
    slow = moved(island_expected(), with_policy(PATIENT, preemption={"grace_s": 600.0}))
    assert quick is not None
    assert slow is not None
    assert 0.0 < quick.benefit_gpu_s < 16 * 120.0 * 2
    assert slow.benefit_gpu_s > 4 * quick.benefit_gpu_s


def test_what_does_not_pay_is_not_proposed() -> None:
    """A rare gang, or stragglers that lose much."""
    assert moved(island_expected(mix=mix_of(ISLAND, each_hour=0.005))) is None
    dear = [replace(each, columns={**each.columns, "restart_s": 3000.0}) for each in STRAGGLERS]
    assert moved(island_expected(dear)) is None


def test_nothing_moves_for_what_fits_or_never_fits() -> None:
    """Half an island fits now; 64 GPUs are more than there are; parts of GPUs are the business of others."""
    for kind in (MixKind((), 8, 8), MixKind((), 64, 8), MixKind((), 1, 1, 500), MixKind(("none",), 16, 8)):
        assert moved(island_expected(mix=mix_of(kind))) is None


@pytest.mark.parametrize(
    "observation",
    [
        island_expected(mix=abstaining_mix(mix_of(ISLAND), "less than an hour of data")),
        island_expected(mix=mix_of(ISLAND, made_s=NOW_S - 3 * HOUR_S)),
        replace(island_expected(), forecasts=replace(island_expected().forecasts, mix=None)),
        island_expected([*STRAGGLERS, waits("w", 64)]),
    ],
    ids=["abstains", "old", "no mix", "work waits"],
)
def test_it_abstains(observation: Observation) -> None:
    """Without a mix that can be used, and while work waits."""
    assert moved(observation) is None


def test_without_fresh_telemetry_it_is_held() -> None:
    """The guard `freshness` answers."""
    found = moved(island_expected(age_s=3600.0))
    assert found is not None
    assert not found.accepted
    assert [each.guard for each in found.verdicts if not each.allowed] == ["freshness"]


def test_idle_work_is_not_moved() -> None:
    """It is left to those who reclaim it; unknown telemetry is not idle."""
    assert moved(island_expected(sm_active=0.0)) is None


def test_what_ends_soon_drains_by_itself() -> None:
    """`b` ends in 20 minutes: its island comes free. In 50 minutes it does not count as soon."""
    assert moved(island_expected(total_s={**LASTING, "b": NOW_S + 1200.0})) is None
    found = moved(island_expected(total_s={**LASTING, "b": NOW_S + 3000.0}))
    assert found is not None


def test_only_what_does_not_end_soon_moves() -> None:
    """Of two gangs on an island one ends soon: the other moves, and not onto what comes free."""
    work = [*STRAGGLERS, holds("soon", 2, range(24, 26), gpus_per_member=2, **SAVES)]
    found = moved(island_expected(work, total_s={**LASTING, "soon": NOW_S + 1200.0}))
    assert found is not None
    assert [victim.workload for victim in found.victims] == ["b"]
    assert {slot.node for slot in found.victims[0].keeps} <= {"node-0", "node-1"}


def test_work_moves_at_most_once_within_the_dwell_time() -> None:
    """What was restarted an hour ago stays, whatever stopped it; what never stopped may go."""
    again = [
        replace(each, columns={**each.columns, "incarnation": 1, "start_s": NOW_S - HOUR_S}) for each in STRAGGLERS
    ]
    assert moved(island_expected(again)) is None
    found = moved(island_expected([STRAGGLERS[0], again[1]]))
    assert found is not None
    assert [victim.workload for victim in found.victims] == ["a"]
    assert moved(island_expected(again), patient(dwell_s=HOUR_S)) is not None


def test_nothing_moves_in_peak_hours() -> None:
    """Time 0 is a Thursday; it is five in the morning in UTC."""
    assert moved(island_expected(), patient(peak_hours="Mon-Fri 04:00-06:00")) is None
    assert moved(island_expected(), patient(peak_hours="Mon-Fri 04:00-06:00 +02:00")) is not None
    assert moved(island_expected(), patient(peak_hours="Sat-Sun 04:00-06:00")) is not None
    step = decide(island_expected(), patient(peak_hours="Thu 04:00-05:01"))
    assert step.wake_at_s == NOW_S + 60.0


def test_one_set_of_moves_is_under_way_at_a_time() -> None:
    """Six nodes are expected too. They need one more move, which waits until the first gang has moved."""
    six = MixKind((), 48, 8)
    work = [
        *STRAGGLERS,
        holds("c", 3, range(32, 35), gpus_per_member=3, **SAVES),
        holds("d", 1, [48], gpus_per_member=1, **SAVES),
    ]
    total_s = {**LASTING, "c": 100 * HOUR_S, "d": 100 * HOUR_S}
    seen = island_expected(work, total_s=total_s, islands=(0, 0, 1, 1, 2, 2, 3, 3), mix=mix_of(ISLAND, six))
    step = decide(seen, PATIENT)
    assert [each.subject.name for each in step.instructions] == ["d"]
    again = decide(replace(seen, tick=1, now_s=NOW_S + 10.0), PATIENT, step.memory)
    assert not [each for each in again.decision.plan.proposals if each.kind == "move"]


def test_the_expected_gang_keeps_its_island() -> None:
    """What moves does not stay inside of it, although it is as empty as the other place."""
    work = [holds("b", 2, range(2), gpus_per_member=2, **SAVES), holds("full", 8, range(16, 24), **SAVES)]
    found = moved(island_expected(work, total_s=dict.fromkeys(("b", "full"), 100 * HOUR_S)))
    assert found is not None
    assert {slot.node for slot in found.victims[0].keeps} == {"node-3"}


def test_nothing_moves_onto_what_is_still_held() -> None:
    """The only other GPUs come free soon, but not yet."""
    work = [
        holds("full", 14, range(14), gpus_per_member=2, preemptible=False),
        holds("soon", 2, range(14, 16), gpus_per_member=2, **SAVES),
        STRAGGLERS[1],
    ]
    total_s = {"full": 100 * HOUR_S, "b": 100 * HOUR_S, "soon": NOW_S + 1200.0}
    assert moved(island_expected(work, total_s=total_s)) is None


def test_switched_off_it_leaves_no_trace() -> None:
    """Also not in the times at which the loop wakes."""
    off = with_policy(PATIENT, modes={"defragment_ahead": Mode.OFF})
    step = decide(island_expected(), off)
    assert not step.decision.plan.proposals
    assert (
        step.wake_at_s
        == decide(replace(island_expected(), forecasts=replace(island_expected().forecasts, mix=None)), off).wake_at_s
    )


def test_moved_work_continues_in_its_new_place() -> None:
    """It stops, and starts where it was to go, as moved work."""
    gone = replace(STRAGGLERS[1], columns={**STRAGGLERS[1].columns, "state": 0, "incarnation": 1}, on=None)
    step = decide(island_expected(), PATIENT)
    after = decide(replace(island_expected([STRAGGLERS[0], gone]), tick=1, now_s=NOW_S + 30.0), PATIENT, step.memory)
    (start,) = after.instructions
    assert (start.kind, start.subject.name, start.operation.moved) == ("admit", "b", True)  # type: ignore[attr-defined]
    assert {slot.node for slot in start.operation.slots} <= {"node-0", "node-1"}
    assert not after.memory.starts.pipelined_starts


@given(
    at_s=st.floats(NOW_S, NOW_S + 2 * HOUR_S),
    start_s=st.floats(0.0, NOW_S),
    end_s=st.floats(NOW_S, NOW_S + 6 * HOUR_S),
    peak=st.sampled_from(["", "Thu 05:10-05:50", "Thu 00:00-06:20"]),
    later=st.floats(0.0, 1.0),
)
@settings(max_examples=60, deadline=None)
def test_nothing_changes_before_it_wakes(at_s: float, start_s: float, end_s: float, peak: str, later: float) -> None:
    """Between two wake-ups the answer is the same: what changes with time alone is announced."""
    again = replace(STRAGGLERS[1], columns={**STRAGGLERS[1].columns, "incarnation": 1, "start_s": start_s})
    policy, total_s = patient(peak_hours=peak), {"a": 100 * HOUR_S, "b": end_s - start_s}

    def seen(now_s: float) -> Observation:
        return island_expected([STRAGGLERS[0], again], now_s=now_s, total_s=total_s, mix=mix_of(ISLAND, made_s=NOW_S))

    step = decide(seen(at_s), policy)
    until_s = min(step.wake_at_s, at_s + HOUR_S)
    between_s = at_s + later * (until_s - at_s) * 0.999
    first, second = moved(seen(at_s), policy), moved(seen(between_s), policy)
    assert (first and (first.id, first.accepted)) == (second and (second.id, second.accepted))


def test_hours() -> None:
    """Days, times and the zone; edges; what is not understood names its field."""
    hours = parse_hours("Fri-Mon 08:00-18:00 +01:00", "x")
    monday_s = 4 * 24 * HOUR_S
    inside = [within_hours(hours, monday_s + hour * HOUR_S) for hour in (6, 7, 16, 17, 31)]
    assert inside == [False, True, True, False, False]
    assert next_edge_s(hours, monday_s + 7 * HOUR_S) == monday_s + 17 * HOUR_S
    assert next_edge_s(hours, monday_s + 17 * HOUR_S) == monday_s + 4 * 24 * HOUR_S + 7 * HOUR_S
    assert parse_hours("", "x") is None
    assert not within_hours(None, 0.0)
    for text in ("always", "Mon-Fri 18:00-08:00", "Mon-Xyz 08:00-18:00"):
        with pytest.raises(InputError, match=r"defragment_ahead\.peak_hours"):
            check_policy(patient(peak_hours=text))
