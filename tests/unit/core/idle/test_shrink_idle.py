"""An idle service is scaled down after its notice, and has its replicas back as soon as it is used."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from autopilot.core.idle.ceiling import Ceiling
from autopilot.core.idle.follow import patience
from autopilot.core.model.memory import Step
from autopilot.core.model.objects import CeilingWay
from autopilot.core.model.snapshot import SloClass
from autopilot.core.planning.queue_turns import returning_rows
from tests.kits.core_world import decide, observe, with_policy
from tests.kits.idle_services import GRACE_S, POLICY, due, scene, shrunk
from tests.kits.idle_world import NOW_S, QUICK, look


def ceilings(step: Step) -> list[tuple[int, str]]:
    """Ceilings that were sent, and why."""
    reasons = {each.id: each.reason for each in step.decision.plan.proposals}
    return [
        (each.operation.replicas, reasons[each.proposal_id])
        for each in step.instructions
        if isinstance(each.operation, Ceiling)
    ]


def test_every_replica_has_a_notice_before_the_service_is_scaled_down() -> None:
    """First the notices, after their grace the ceiling; at most the minimum of its owner."""
    first = look(scene(), NOW_S, policy=POLICY)
    assert [each.kind for each in first.instructions] == ["notify", "notify"]
    told = look(scene(), NOW_S + 200.0, first, POLICY)
    early = look(scene(), NOW_S + GRACE_S - 100.0, told, POLICY)
    assert ceilings(told) == ceilings(early) == []
    assert ceilings(due()) == [(0, "idle")]
    assert ceilings(due(min_replicas=1)) == [(1, "idle")]


def test_inside_a_guarantee_the_mark_comes_first() -> None:
    """As for other idle work."""
    assert ceilings(due(guarantee=8)) == [(0, "idle")]
    told = look(scene(8), NOW_S + 200.0, look(scene(8), NOW_S, policy=POLICY), POLICY)
    assert ceilings(look(scene(8), NOW_S + GRACE_S + 300.0, told, POLICY)) == []


@pytest.mark.parametrize(
    ("changed", "sent"),
    [
        ({"min_replicas": 2}, []),
        ({"waiting": False}, []),
        ({"floor": 2}, []),
        ({"excluded": True}, []),
        ({"slo_class": int(SloClass.LATENCY_CRITICAL)}, []),
        ({"rate_rps": 0.1}, []),
        ({"rate_rps": nan}, []),
        ({"recent_rps": 0.1}, []),
        ({"recent_rps": nan}, []),
        ({"queue_depth": 1.0}, []),
        ({"load_ratio": nan}, []),
        ({"violation_ratio": 0.1}, []),
        ({"age_s": inf}, []),
        ({"ready_replicas": 1}, []),
        ({"wake_age_s": nan}, [(1, "idle")]),
        ({"wake_age_s": 4000.0}, [(1, "idle")]),
        ({"wake_rps": nan}, [(1, "idle")]),
        ({"ceiling_way": CeilingWay.REPLICAS, "load_ratio": nan}, [(0, "idle")]),
        ({"ceiling_way": CeilingWay.REPLICAS, "load_ratio": 0.1}, []),
        ({"ceiling_way": CeilingWay.TO_ZERO}, [(0, "idle")]),
        ({"ceiling_way": CeilingWay.TO_ZERO, "min_replicas": 1}, []),
        ({"ceiling_way": CeilingWay.NO_CONSENT}, []),
        ({"ceiling_way": CeilingWay.UNDECLARED}, []),
        ({"ceiling_way": CeilingWay.KEDA}, []),
    ],
)
def test_in_doubt_or_in_use_it_is_left_alone(changed: dict[str, Any], sent: list[tuple[int, str]]) -> None:
    """Each doubt alone keeps the service, or one replica."""
    assert ceilings(due(**changed)) == sent


def test_non_preemptible_replicas_inside_a_guarantee_are_advice_only() -> None:
    """No notice, no ceiling."""
    step = look(scene(8, preemptible=False), NOW_S, policy=POLICY)
    assert step.instructions == ()
    assert "idle_advice" in [note.code for note in step.decision.notes]


def test_replicas_that_no_ceiling_reaches_get_advice_only() -> None:
    """No notice, and the note says what is missing."""
    step = look(scene(ceiling_way=CeilingWay.NO_CONSENT), NOW_S, policy=POLICY)
    assert step.instructions == ()
    (why,) = [
        str(fact.value)
        for note in step.decision.notes
        for fact in note.facts
        if note.code == "idle_service" and fact.name == "why"
    ]
    assert why.endswith("; its owner does not allow to scale it (`scale` is not true)")


def test_while_the_action_may_not_act_replicas_get_advice_only() -> None:
    """As before it existed: no notice either."""
    step = look(scene(), NOW_S, policy=with_policy(QUICK, modes={"shrink_idle": "recommend"}))
    assert step.instructions == ()
    assert {note.code for note in step.decision.notes} >= {"idle_advice", "idle_service"}


@pytest.mark.parametrize(
    ("changed", "sent"),
    [
        ({}, []),
        ({"ceiling_until_s": NOW_S + 5000.0}, [(0, "renewed")]),
        ({"wake_rps": 0.1}, [(-1, "returned")]),
        ({"wake_rps": nan}, [(-1, "returned")]),
        ({"wake_age_s": inf}, [(-1, "returned")]),
        ({"wake_age_s": 4000.0}, [(-1, "returned")]),
        ({"min_replicas": 1}, [(-1, "returned")]),
        ({"generation": 2}, [(-1, "returned")]),
        ({"ceiling_until_s": NOW_S}, [(-1, "returned")]),
        ({"ceiling_way": CeilingWay.NO_CONSENT}, [(-1, "returned")]),
        ({"floor": 1}, [(-1, "returned")]),
    ],
)
def test_the_ceiling_ends_as_soon_as_it_is_used_or_in_doubt(
    changed: dict[str, Any], sent: list[tuple[int, str]]
) -> None:
    """Requests at the gateway, an unknown signal, a change by its owner; else it is renewed in time."""
    assert ceilings(shrunk(due(), NOW_S + GRACE_S + 1000.0, **changed)) == sent


@pytest.mark.parametrize(
    "changed",
    [
        {"recent_rps": 0.2},
        {"recent_rps": nan},
        {"queue_depth": 2.0},
        {"load_ratio": 0.4},
        {"age_s": inf},
        {"excluded": True},
    ],
)
def test_what_remains_of_a_service_shows_that_it_is_used(changed: dict[str, Any]) -> None:
    """Where replicas stay, what they report counts, and what is unknown."""
    quiet = {"min_replicas": 1, "recent_rps": 0.0, "load_ratio": 0.0}
    before, now_s = due(min_replicas=1), NOW_S + GRACE_S + 1000.0
    assert ceilings(shrunk(before, now_s, replicas=1, **quiet)) == []
    assert ceilings(shrunk(before, now_s, replicas=1, **{**quiet, **changed})) == [(-1, "returned")]


def test_only_the_first_ceiling_waits_for_a_person() -> None:
    """Where ceilings need an approval, a renewal and a return need none."""
    asks = with_policy(QUICK, modes={"shrink_idle": "approve"})
    assert ceilings(due(policy=asks)) == []
    before = shrunk(due(), NOW_S + GRACE_S + 1000.0)
    state: dict[str, Any] = {"ceiling": 0, "replicas": 0, "ready_replicas": 0}
    state |= {"ceiling_until_s": NOW_S + GRACE_S + 1500.0, "waiting": False}
    assert ceilings(look(scene(**state), NOW_S + GRACE_S + 1100.0, before, asks)) == [(0, "renewed")]
    assert ceilings(look(scene(**state, wake_rps=1.0), NOW_S + GRACE_S + 1100.0, before, asks)) == [(-1, "returned")]


def test_the_owner_comes_first_on_return_and_its_cost_raises_its_threshold() -> None:
    """Its replicas wait as returned work does; an early return and the wait lengthen the next graces."""
    under = shrunk(due(), NOW_S + GRACE_S + 1000.0)
    assert under.memory.idle.owners["t0/ann"].suspensions == 1
    wake_s = NOW_S + GRACE_S + 1300.0
    woken = shrunk(under, wake_s, wake_rps=1.0)
    coming = scene(waiting=False, replicas=0, pending=2, needed_replicas=2)
    coming = replace(coming, services=replace(coming.services, ready_replicas=np.array([0], np.int32)))
    back = look(coming, wake_s + 60.0, woken, POLICY)
    owner = back.memory.idle.owners["t0/ann"]
    assert (owner.returns, owner.early_returns) == (1, 1)
    assert returning_rows(back.memory, coming) == {0, 1}
    served = look(scene(waiting=False), wake_s + 360.0, back, POLICY)
    owner = served.memory.idle.owners["t0/ann"]
    assert owner.waited_gpu_s == pytest.approx(300.0 * 8)
    assert patience(owner, POLICY) > 2.0
    assert served.memory.idle.shrunk == {}


def test_after_a_return_the_ladder_begins_anew() -> None:
    """New replicas of the same owner on the same GPUs continue neither the evidence nor the notice."""
    under = shrunk(due(), NOW_S + GRACE_S + 1000.0)
    assert under.memory.idle.records
    back = look(scene(waiting=False, replicas=0, pending=2), NOW_S + GRACE_S + 1400.0, under, POLICY)
    assert back.memory.idle.records == {}


def test_what_came_to_nothing_is_forgotten() -> None:
    """A ceiling that was refused leaves no trace."""
    step = due()
    assert set(step.memory.idle.shrunk) == {"chat-uid"}
    lost = replace(
        step, memory=replace(step.memory, effects=replace(step.memory.effects, in_flight={})), instructions=()
    )
    after = look(scene(waiting=False), NOW_S + GRACE_S + 1000.0, lost, POLICY)
    assert after.memory.idle.shrunk == {}


def test_a_ceiling_is_done_when_the_replicas_are_gone() -> None:
    """Its record comes first: a controller that died after it has left the replicas to the next one."""
    step = due()
    (sent,) = [each for each in step.instructions if isinstance(each.operation, Ceiling)]
    assert isinstance(sent.operation, Ceiling)
    until_s, now_s = sent.operation.until_s, NOW_S + GRACE_S + 912.0
    for replicas, open_still in ((2, True), (0, False)):
        snap = scene(replicas=replicas, ready_replicas=replicas, ceiling=0, ceiling_until_s=until_s)
        services = replace(snap.services, replicas=np.full(1, replicas, snap.services.replicas.dtype))
        after = decide(observe(replace(snap, services=services), now_s), POLICY, step.memory)
        assert (sent.id in after.memory.effects.in_flight) is open_still
