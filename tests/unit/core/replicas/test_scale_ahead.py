"""Floors of services: raised, held, renewed, given back; refused where the forecast is not to be trusted."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from autopilot.core.effects.draft import Draft, Submit, VerbDraft
from autopilot.core.effects.lifecycle import next_deadline_s
from autopilot.core.model.forecast import Forecast
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.memory.replicas import ReplicasMemory
from autopilot.core.model.policy import Mode, Modes
from autopilot.core.model.records import Code, Gap, Instruction, Observation, OutcomeKind, Proposal, View
from autopilot.core.model.snapshot import SloClass
from autopilot.core.planning.context import Context
from autopilot.core.planning.foresight import Ahead
from autopilot.core.replicas import scale_ahead
from autopilot.core.replicas.scale import Scale
from autopilot.explain.proposals import explain_decision, proposal_words
from autopilot.explain.view import explain_proposal, view_of
from tests.kits.core_world import (
    AUTO,
    decide,
    done,
    evicted,
    holds,
    observe,
    queue_tree,
    snapshot,
    started,
    waits,
    with_policy,
)
from tests.kits.demand_world import LEARNED, forecast, serving
from tests.kits.instructions import asked

EVERY = {f.name: Mode.AUTO for f in fields(Modes)}
ACTING = with_policy(AUTO, modes=EVERY, hysteresis={"dwell_s": 0.0}, scale_ahead={"level": 0.99, "dwell_s": 600.0})
"""Every action acts by itself."""


def seen(now_s: float, *demand: Forecast, work: Any = (), **columns: Any) -> Observation:
    """One service whose load needs two replicas, on eight GPUs."""
    tree = queue_tree(("web", 0, -1), ("batch", 0, -1))
    guarantee = tree.guarantee.copy()
    guarantee[1:, 0] = 4
    snap = snapshot("1x8", work, queues=replace(tree, guarantee=guarantee))
    return serving(observe(snap, now_s, tick=int(now_s)), *demand, **({"queue": [1]} | columns))


def tell(observation: Observation, memory: ControllerMemory | None = None, **policy: Any) -> Step:
    """One decision with what was learned before."""
    memory = memory or ControllerMemory(replicas=ReplicasMemory(services=LEARNED))
    return decide(observation, with_policy(ACTING, **policy), memory)


def floors(step: Step) -> list[tuple[int, float]]:
    """Floors that were instructed, and until when."""
    return [
        (asked(each, Scale).replicas, asked(each, Scale).until_s) for each in step.instructions if each.kind == "scale"
    ]


def case(step: Step) -> Proposal:
    """The one proposal about a floor."""
    (found,) = (each for each in step.decision.plan.proposals if each.kind == "scale")
    return found


def desired_earlier(*desired: tuple[float, int], stands: int = 0) -> ControllerMemory:
    """Memory of earlier wishes, and of a floor that rose long ago."""
    return ControllerMemory(
        replicas=ReplicasMemory(services={"chat": replace(LEARNED["chat"], desired=desired, floor=stands)})
    )


# --- the life of a floor ----------------------------------------------------------------------------


def test_a_burst_that_is_foreseen_raises_the_floor_at_once() -> None:
    """Nine requests/s, two a replica: five replicas, for the lease, of this service as it is now."""
    step = tell(seen(100.0, forecast({"chat": (3.0, 5.0, 9.0)}, 100.0)))
    (effect,) = step.instructions
    assert (effect.kind, effect.subject.name, effect.subject.revision) == ("scale", "chat", 7)
    assert floors(step) == [(5, 1900.0)]
    assert effect.deadline_s == 220.0
    assert step.memory.effects.in_flight[effect.id].action == "scale_ahead"
    proposal = case(step)
    assert (proposal.queue, proposal.change, proposal.accepted) == (
        "web",
        Scale(replicas=5, until_s=1900.0),
        True,
    )
    # Two replicas serve four requests/s: more come in three of ten cases, and three replicas wait through the others.
    assert proposal.cost_gpu_s == pytest.approx(3 * 600 * 0.7, rel=0.02)
    assert 0 < proposal.benefit_gpu_s < 3 * 300


def test_a_floor_is_held_through_the_dwell_and_then_given_back() -> None:
    """Lower forecasts change nothing for ten minutes; then the highest wish left counts, at last none."""
    memory = desired_earlier((0.0, 6), (300.0, 4), stands=6)
    stands = {"floor": [6], "floor_until_s": [9000.0]}
    quiet = forecast({"chat": 2.0}, 599.0)
    assert floors(tell(seen(599.0, quiet, **stands), memory)) == []
    assert floors(tell(seen(600.0, quiet, **stands), memory)) == [(4, 2400.0)]
    last = tell(seen(900.0, forecast({"chat": 2.0}, 900.0), **stands), memory)
    assert floors(last) == [(0, 900.0)]
    assert "remove the floor" in proposal_words(case(last))


def test_a_floor_is_renewed_at_half_its_lease() -> None:
    """The note appears while the floor is wanted, and not before."""
    demand = forecast({"chat": 9.0}, 1000.0)
    for left_s, told in ((901.0, []), (900.0, [(5, 2800.0)])):
        observation = seen(1000.0, demand, floor=[5], floor_until_s=[1000.0 + left_s])
        assert floors(tell(observation)) == told


@pytest.mark.parametrize("stands", [0, 5])
def test_a_floor_that_was_not_renewed_is_taken_back(stands: int) -> None:
    """Also without a forecast, and where its owner lowered the replicas meanwhile; not before its time is over."""
    floor = {"floor": [stands], "floor_until_s": [1000.0]}
    before, after = (tell(seen(now_s, **floor)) for now_s in (999.0, 1000.0))
    assert (floors(before), before.wake_at_s) == ([], 1000.0)
    assert floors(after) == [(0, 1000.0)]
    assert "it ended 0 s ago and was not renewed" in proposal_words(case(after))


def test_time_alone_wakes_the_controller_for_its_floors() -> None:
    """When a wish leaves the dwell, when the lease is half over, when the forecast becomes stale: the first of them."""
    demand = forecast({"chat": 9.0}, 90.0)
    stands = {"floor": [5], "floor_until_s": [1900.0]}
    memory = desired_earlier((40.0, 5))
    assert tell(seen(100.0, demand, **stands), memory).wake_at_s == 270.0  # 90 + 180 s: stale
    long = {"scale_ahead": {"forecast_age_s": 5000.0}}
    assert tell(seen(100.0, demand, **stands), memory, **long).wake_at_s == 690.0  # 90 + 600 s: the dwell
    assert tell(seen(100.0, demand, floor=[5], floor_until_s=[1020.0]), memory, **long).wake_at_s == 120.0
    off = with_policy(ACTING, modes={"scale_ahead": Mode.OFF})
    assert decide(seen(100.0, demand, **stands), off, memory).wake_at_s == float("inf")


def test_what_the_owner_keeps_anyway_needs_no_floor() -> None:
    """A wish of no more than the minimum is none."""
    assert floors(tell(seen(0.0, forecast({"chat": 5.0}), min_replicas=[3]))) == []
    assert floors(tell(seen(0.0, forecast({"chat": 7.0}), min_replicas=[3]))) == [(4, 1800.0)]


def test_a_floor_may_hold_what_the_load_does_not_need_now_and_never_takes_any() -> None:
    """A wish below the present need is published too: it only binds when the need falls."""
    step = tell(seen(0.0, forecast({"chat": 6.0}), needed_replicas=[8]))
    assert floors(step) == [(3, 1800.0)]
    assert case(step).cost_gpu_s == 0.0


# --- when nothing is done, and why ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("demand", "columns", "words"),
    [
        (forecast({"chat": 9.0}), {"needed_replicas": [-1]}, "its load is unknown or stale"),
        (forecast({"chat": 9.0}), {"age_s": [np.inf]}, "its load is unknown or stale"),
        (forecast({"chat": np.nan}, reasons=("a gap of a day",)), {}, "abstains: a gap of a day"),
        (forecast({"other": 9.0}), {}, "chat: there is no forecast"),
    ],
)
def test_what_is_unknown_changes_no_floor(demand: Forecast, columns: dict[str, Any], words: str) -> None:
    """Neither up nor down, though the dwell is long over; the decision says why."""
    step = tell(seen(0.0, demand, floor=[6], floor_until_s=[10.0], **columns))
    assert step.instructions == ()
    assert any(words in line for line in explain_decision(step.decision)), explain_decision(step.decision)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"made_s": -200.0}, "forecast_stale"),
        ({"drifting": np.array([True])}, "forecast_drifting"),
        ({"outcomes": np.zeros((1, 2), np.int32)}, "forecast_unproven"),
        ({"coverage": np.full((1, 2, 3), 0.9)}, "forecast_uncalibrated"),
    ],
)
@pytest.mark.parametrize("stands", [0, 9])
def test_a_forecast_that_is_not_trusted_moves_nothing(more: dict[str, Any], code: str, stands: int) -> None:
    """Neither up nor down: the guard `confidence` alone refuses, in words; without it the floor would move."""
    observation = seen(0.0, forecast({"chat": 9.0}, **more), floor=[stands], floor_until_s=[1800.0])
    step = tell(observation)
    assert step.instructions == ()
    refused = [verdict for verdict in case(step).verdicts if not verdict.allowed]
    assert [(verdict.guard, verdict.code) for verdict in refused] == [("confidence", code)]
    assert "refused" in "\n".join(explain_proposal(view_of(case(step), step.decision)))
    from autopilot.core.capabilities.guards import GUARDS

    without = tuple((name, check) for name, check in GUARDS if name != "confidence")
    assert floors(
        decide(observation, ACTING, ControllerMemory(replicas=ReplicasMemory(services=LEARNED)), guards=without)
    ) == [(5, 1800.0)]


def test_the_guard_judges_the_forecast_and_not_what_the_action_claims_of_it() -> None:
    """An action that calls a forecast trusted is refused by the forecast's own record."""

    def boastful(ctx: Context, submit: Submit) -> None:
        scale_ahead.ACTION.propose(ctx, lambda draft: submit(_boastful(draft)))

    def _boastful(draft: Draft) -> Draft:
        assert isinstance(draft, VerbDraft)
        return replace(draft, ahead=_boast(draft.ahead))

    def _boast(ahead: Ahead | None) -> Ahead | None:
        return None if ahead is None else replace(ahead, code=Code.OK, value=1.0, threshold=0.0)

    observation = seen(0.0, forecast({"chat": 9.0}, drifting=np.array([True])))
    table = (replace(scale_ahead.ACTION, propose=boastful),)
    step = decide(observation, ACTING, ControllerMemory(replicas=ReplicasMemory(services=LEARNED)), actions=table)
    assert [each.code for each in case(step).verdicts if not each.allowed] == [Code.FORECAST_DRIFTING]
    assert step.instructions == ()


@pytest.mark.parametrize(("mode", "made"), [(Mode.OFF, 0), (Mode.OBSERVE, 1), (Mode.RECOMMEND, 1), (Mode.APPROVE, 1)])
def test_the_mode_decides_how_far_it_goes(mode: Mode, made: int) -> None:
    """Shown or not, but not done."""
    step = tell(seen(0.0, forecast({"chat": 9.0})), modes={"scale_ahead": mode})
    assert len([each for each in step.decision.plan.proposals if each.kind == "scale"]) == made
    assert step.instructions == ()


def test_a_halt_holds_floors_too() -> None:
    """The kill switch is on: nothing goes out."""
    observation = replace(seen(0.0, forecast({"chat": 9.0})), kill_switch=True)
    assert tell(observation).instructions == ()


# --- effects under way ------------------------------------------------------------------------------


def sent() -> tuple[Step, Instruction]:
    """A floor of five, just instructed."""
    step = tell(seen(100.0, forecast({"chat": 9.0}, 100.0)))
    return step, step.instructions[0]


def test_a_floor_under_way_is_not_asked_for_twice_and_its_deadline_is_a_timer() -> None:
    """Until its outcome is known, or it is seen."""
    first, effect = sent()
    again = tell(seen(110.0, forecast({"chat": 15.0}, 110.0)), first.memory)
    assert again.instructions == ()
    assert next_deadline_s(again.memory, (), -1.0) == effect.deadline_s


def test_a_crash_between_effect_and_outcome_is_healed_by_looking() -> None:
    """The effect is done when the floor is as requested, by any source; a floor that lapses sooner, or of another
    number, does not count.
    """
    first, effect = sent()
    for columns, left in (
        ({"floor": [5], "floor_until_s": [1900.0]}, 0),
        ({"floor": [5], "floor_until_s": [500.0]}, 1),
        ({"floor": [4], "floor_until_s": [1900.0]}, 1),
    ):
        step = tell(seen(110.0, forecast({"chat": 9.0}, 110.0), **columns), first.memory)
        assert (effect.id in step.memory.effects.in_flight) == bool(left)


def test_a_floor_that_is_not_seen_by_its_deadline_is_asked_for_again_and_then_failed() -> None:
    """Three attempts under one id; the third is the last, and then it is wished for anew."""
    step, effect = sent()
    memory, ids = step.memory, list[list[str]]()
    for now_s in (220.0, 340.0, 460.0):
        step = tell(seen(now_s, forecast({"chat": 9.0}, now_s)), memory)
        memory, ids = step.memory, [*ids, [each.id for each in step.instructions]]
    assert ids[:2] == [[effect.id], [effect.id]]
    assert ids[2] == [f"460/{effect.proposal_id}"]
    assert len(memory.halt.failed) == 1


def test_outcomes_end_a_floor_under_way() -> None:
    """Done and conflict end it; after a conflict it is wished for as the service is then."""
    first, effect = sent()
    for kind in (OutcomeKind.DONE, OutcomeKind.CONFLICT):
        observation = replace(
            seen(130.0, forecast({"chat": 9.0}, 130.0), generation=[8]), outcomes=done((effect,), 129.0, kind)
        )
        step = tell(observation, first.memory)
        assert effect.id not in step.memory.effects.in_flight
        assert [each.subject.revision for each in step.instructions] == [8]


@pytest.mark.parametrize(
    ("source", "name", "signal", "over"),
    [
        pytest.param("api", "chat", "deployments.apps", False, id="it cannot be read"),
        pytest.param("api", "", "objects", False, id="it may be one of those that no gap names"),
        pytest.param("api", "", "", False, id="nothing is listed"),
        pytest.param("api", "other", "deployments.apps", True, id="another one cannot be read"),
        pytest.param("api", "", "horizontalpodautoscalers.autoscaling", True, id="lists of other objects are late"),
        pytest.param("prometheus", "", "", True, id="a source that lists no services is silent"),
    ],
)
def test_a_service_that_is_gone_needs_no_floor_but_one_out_of_sight_may(
    source: str, name: str, signal: str, *, over: bool
) -> None:
    """An effect on a deleted service is over; behind a gap of the list nothing is known."""
    first, effect = sent()
    views = (View("api", "inventory", True, 110.0, 8), View("api", "work", True, 110.0, 1))
    gone = replace(seen(110.0, id=["other"], uid=["other"]), views=views)
    hidden = replace(gone, gaps=(Gap(source, name, signal, "no answer"),))
    assert effect.id not in tell(gone, first.memory).memory.effects.in_flight
    assert (effect.id not in tell(hidden, first.memory).memory.effects.in_flight) is over


# --- free and borrowed capacity only ----------------------------------------------------------------

REPLICA: dict[str, Any] = {
    "service": 0,
    "queue": 1,
    "tenant": 1,
    "slo_class": int(SloClass.LATENCY_CRITICAL),
    "preemptible": False,
}
TRAINING: dict[str, Any] = {
    "queue": 2,
    "start_s": -9000.0,
    "preemptible": True,
    "checkpoint_interval_s": 60.0,
}


@pytest.mark.parametrize(("needed", "victims"), [(4, 1), (3, 0)])
def test_nobody_gives_way_for_what_is_only_foreseen(needed: int, victims: int) -> None:
    """Inside its guarantee a replica that the load needs takes the borrowers' GPUs back; one that is foreseen waits."""
    work = [
        holds("chat/1", 1, **REPLICA),
        holds("chat/2", 1, **REPLICA),
        holds("chat/3", 1, **REPLICA),
        *(holds(f"train/{n}", 1, **TRAINING) for n in range(5)),
        waits("chat/4", 1, **REPLICA),
    ]
    observation = seen(0.0, work=work, replicas=[4], needed_replicas=[needed], floor=[4], floor_until_s=[1800.0])
    step = decide(observation, ACTING)
    assert len(evicted(step)) == victims


def test_what_is_foreseen_takes_what_is_free_and_comes_after_what_is_needed() -> None:
    """Two GPUs are free: the needed replica of another service first, then the foreseen one, then training."""
    work = [
        *(holds(f"train/{n}", 1, **TRAINING) for n in range(6)),
        waits("ahead/1", 1, **REPLICA | {"submit_s": -50.0}),
        waits("ahead/2", 1, **REPLICA | {"submit_s": -40.0}),
        waits("need/1", 1, **REPLICA | {"service": 1}),
        waits("job", 1, **TRAINING | {"start_s": np.nan}),
    ]
    observation = seen(
        0.0,
        work=work,
        id=["ahead", "need"],
        queue=[1, 1],
        objective_s=[1.0, 1.0],
        age_s=[0.0, 0.0],
        ready_replicas=[0, 0],
        replicas=[2, 1],
        min_replicas=[0, 0],
        max_replicas=[9, 9],
        needed_replicas=[0, 1],
        recent_rps=[0.0, 0.0],
        generation=[1, 1],
        floor=[2, 0],
        floor_until_s=[1800.0, np.nan],
    )
    assert sorted(started(decide(observation, ACTING))) == ["ahead/1", "need/1"]


def crowded(needed: int, **more: Any) -> Observation:
    """`ahead` holds two replicas beyond its need on a full cluster; one of `need` may find no place."""
    work = [
        *(holds(f"ahead/{n}", 1, **REPLICA) for n in range(4)),
        holds("need/1", 1, **REPLICA | {"service": 1}),
        *(holds(f"train/{n}", 1, **TRAINING | {"preemptible": False}) for n in range(3)),
        waits("need/2", 1, **REPLICA | {"service": 1}),
    ]
    columns = {
        "id": ["ahead", "need"],
        "uid": ["ahead", "need"],
        "queue": [1, 1],
        "objective_s": [1.0, 1.0],
        "age_s": [0.0, 0.0],
        "ready_replicas": [4, 1],
        "replicas": [4, 2],
        "min_replicas": [1, 1],
        "max_replicas": [9, 9],
        "needed_replicas": [2, needed],
        "recent_rps": [np.nan, np.nan],
        "generation": [1, 1],
        "floor": [4, 2],
        "floor_until_s": [1800.0, 1800.0],
    }
    return seen(0.0, forecast({"ahead": 12.0, "need": 12.0}), work=work, **columns | more)


def test_foresight_gives_way_to_a_need_that_finds_no_place() -> None:
    """The floor comes down to the need of its own service though the dwell is young, and no other floor rises."""
    records = {name: replace(LEARNED["chat"], desired=((-1.0, 6),)) for name in ("ahead", "need")}
    for needed, told in ((2, [("ahead", 2)]), (1, [("ahead", 6), ("need", 6)])):
        step = tell(
            crowded(needed),
            ControllerMemory(replicas=ReplicasMemory(services=records)),
            scale_ahead={"most_ratio": 4.0},
        )
        assert [(each.subject.name, asked(each, Scale).replicas) for each in step.instructions] == told


def test_a_floor_that_rose_stays_through_the_dwell_whenever_it_was_wished_for() -> None:
    """The wish may be older than the floor: it is the floor's rise that is waited for."""
    memory = desired_earlier((0.0, 6))
    raised = tell(seen(300.0, forecast({"chat": 2.0}, 300.0), floor=[6], floor_until_s=[2100.0]), memory).memory
    assert raised.replicas.services["chat"].raised_s == 300.0
    for now_s, told in ((700.0, []), (899.0, []), (900.0, [(0, 900.0)])):
        quiet = forecast({"chat": 2.0}, now_s)
        assert floors(tell(seen(now_s, quiet, floor=[6], floor_until_s=[2100.0]), raised)) == told
