"""Room for replicas: made for what a trusted forecast calls for, at a price, and not on doubt."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from autopilot.core.model.forecast import Forecast
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.memory.budget import BudgetMemory, Disruption
from autopilot.core.model.memory.replicas import ReplicasMemory
from autopilot.core.model.policy import Mode, Modes
from autopilot.core.model.records import Code, Proposal
from autopilot.core.model.snapshot import SloClass
from autopilot.core.replicas.follow import remember_services, room_until_s
from autopilot.core.replicas.room_sources import SOURCES
from tests.kits.core_world import AUTO, decide, holds, observe, queue_tree, snapshot, waits, with_policy
from tests.kits.demand_world import LEARNED, forecast, serving
from tests.kits.ticks import follow

EVERY = {f.name: Mode.AUTO for f in fields(Modes)}
ACTING = with_policy(AUTO, modes=EVERY, hysteresis={"dwell_s": 0.0}, scale_ahead={"level": 0.9})
NOW_S = 5000.0
REPLICA: dict[str, Any] = {"queue": 1, "service": 0, "slo_class": SloClass.LATENCY_CRITICAL, "preemptible": False}
SAVES: dict[str, Any] = {"checkpoint_on_request": True, "checkpoint_write_s": 10.0, "restart_s": 20.0}


def seen(*demand: Forecast, needed: int = 2, p99_s: float = 1.0, **victim: Any) -> Any:
    """Eight GPUs: two replicas serve, a third waits, and a batch gang of another queue holds the rest."""
    tree = queue_tree(("web", 0, -1), ("batch", 0, -1))
    guarantee = tree.guarantee.copy()
    guarantee[1:, 0] = (4, 4)
    work = [
        holds("chat/1", 1, [0], **REPLICA),
        holds("chat/2", 1, [1], **REPLICA),
        holds("b", 6, range(2, 8), queue=2, gpus_per_member=1, **(SAVES | victim)),
        waits("chat/3", 1, submit_s=NOW_S - 10.0, **REPLICA),
    ]
    snap = snapshot("1x8", work, queues=replace(tree, guarantee=guarantee))
    columns = {"queue": [1], "replicas": [3], "needed_replicas": [needed], "p99_s": [p99_s]}
    columns |= {"floor": [3], "floor_until_s": [NOW_S + 1700.0]}
    return serving(observe(snap, NOW_S), *demand, **columns)


def burst(now_s: float = NOW_S, **more: Any) -> Forecast:
    """Six requests/s are nearly certain: three replicas."""
    return forecast({"chat": (5.5, 6.0, 6.0)}, now_s, **more)


def told(observation: Any, memory: ControllerMemory | None = None, **policy: Any) -> Step:
    """One decision with what was learned before."""
    rules: dict[str, Any] = {"preemption": {"saves_prior": 1.0, "blast_ratio": 100.0}} | policy
    return decide(
        observation, with_policy(ACTING, **rules), memory or ControllerMemory(replicas=ReplicasMemory(services=LEARNED))
    )


def room(step: Step) -> list[Proposal]:
    """Proposals of the action."""
    return [each for each in step.decision.plan.proposals if each.action == "make_room"]


def fact(made: Proposal, name: str) -> Any:
    """One number behind a proposal."""
    return next(each.value for each in made.evidence if each.name == name)


def test_batch_work_leaves_for_a_replica_that_is_foreseen() -> None:
    """The gang saves and leaves; the price names the source, the chance, and the case that the load does not come."""
    step = told(seen(burst()))
    (made,) = room(step)
    assert made.accepted
    assert (made.reason, [victim.workload for victim in made.victims]) == ("foreseen", ["b"])
    assert [each.how for each in made.victims] == ["evict"]
    assert "evict" in [each.kind for each in step.instructions]
    assert fact(made, "source") == "batch work that saves a checkpoint"
    assert 0.9 < fact(made, "chance_needed") <= 1.0
    assert fact(made, "delay") == 10.0
    assert made.cost_gpu_s > fact(made, "if_not_needed")


def test_the_less_likely_the_load_the_higher_the_price_of_being_wrong() -> None:
    """A load that stays below two replicas in most cases is not worth stopping work."""
    (sure,) = room(told(seen(burst())))
    (doubtful,) = room(told(seen(forecast({"chat": (1.0, 4.5, 6.0)}, NOW_S))))
    assert fact(doubtful, "chance_needed") < fact(sure, "chance_needed")
    assert fact(doubtful, "if_not_needed") > fact(sure, "if_not_needed")
    assert not doubtful.accepted
    assert Code.MARGIN in [verdict.code for verdict in doubtful.verdicts if not verdict.allowed]


@pytest.mark.parametrize(
    "demand",
    [
        (),
        (forecast({"chat": np.nan}, NOW_S),),
        (burst(NOW_S - 4000.0),),
        (burst(drifting=np.array([True])),),
        (burst(outcomes=np.full((1, 2), 3, np.int32)),),
    ],
)
def test_nothing_is_taken_on_doubt(demand: tuple[Forecast, ...]) -> None:
    """No forecast, one that abstains, is stale, drifts, or is unproven: no room is made."""
    assert room(told(seen(*demand))) == []


def test_switched_off_it_takes_nothing() -> None:
    """The mode stands on its own; the floor is not affected."""
    assert room(told(seen(burst()), modes=EVERY | {"make_room": Mode.OFF})) == []


@pytest.mark.parametrize("victim", [{"checkpoint_on_request": False}, {"slo_class": SloClass.INTERACTIVE}])
def test_only_batch_work_that_saves_is_preempted(victim: dict[str, Any]) -> None:
    """Work without a checkpoint on request, and work of another class, keeps its place."""
    assert [made for made in room(told(seen(burst(), **victim))) if made.accepted] == []


def test_work_that_was_disrupted_within_the_hour_stays() -> None:
    """The same gang is stopped for room at most once within `room.reversal_s`."""
    lately = Disruption(NOW_S - 3000.0, "b", "t", (), contract=True, uid="b")
    memory = ControllerMemory(replicas=ReplicasMemory(services=LEARNED), budget=BudgetMemory(disrupted=(lately,)))
    assert room(told(seen(burst()), memory)) == []
    assert room(told(seen(burst()), memory, room={"reversal_s": 2000.0}))


def test_the_floor_stays_until_the_room_may_be_returned() -> None:
    """For the dwell time after room was made, and so that room is returned once within the hour."""
    rules = ACTING.room
    record = LEARNED["chat"]
    assert room_until_s(record, rules) == -np.inf
    assert room_until_s(replace(record, room_s=100.0), rules) == 100.0 + rules.dwell_s
    assert room_until_s(replace(record, room_s=900.0, returned_s=800.0), rules) == 800.0 + rules.reversal_s
    assert room_until_s(replace(record, room_s=100.0, returned_s=800.0), rules) == -np.inf


def test_the_sources_are_in_the_order_of_preference() -> None:
    """Between equal prices the earlier is taken."""
    order = ["free", "borrowed", "idle_above", "idle_inside", "backfill", "moves", "preemption"]
    assert [source.name for source in SOURCES] == order


def test_room_that_was_made_later_is_not_forgotten() -> None:
    """An older start that still waits for its victims does not move the time back."""
    step = told(seen(burst()))
    assert step.memory.starts.pipelined_starts[0].since_s == NOW_S
    record = replace(LEARNED["chat"], room_s=NOW_S + 30.0)
    memory = replace(step.memory, replicas=replace(step.memory.replicas, services={"chat": record}))
    after = follow(remember_services, memory, replace(seen(burst()), now_s=NOW_S + 60.0), ACTING)
    assert after.replicas.services["chat"].room_s == NOW_S + 30.0
    fresh = replace(step.memory, replicas=replace(step.memory.replicas, services=LEARNED))
    assert follow(remember_services, fresh, seen(burst()), ACTING).replicas.services["chat"].room_s == NOW_S
