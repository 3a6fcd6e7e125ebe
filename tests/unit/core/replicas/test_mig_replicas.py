"""Services whose replicas are MIG instances: floors, room, new geometry, and the price as a part of a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from autopilot.core.geometry.recut import RecutGpu
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.memory.budget import BudgetMemory, Disruption
from autopilot.core.model.memory.replicas import ReplicasMemory, ServiceRecord
from autopilot.core.model.policy import Mode, Modes
from autopilot.core.model.records import Code, Observation, Proposal
from autopilot.core.model.snapshot import Recut, SloClass
from autopilot.core.replicas.scale import Scale
from autopilot.explain.proposals import proposal_words
from tests.kits.core_world import AUTO, Item, decide, holds, observe, queue_tree, snapshot, waits, with_policy
from tests.kits.demand_world import LEARNED, forecast, serving
from tests.kits.geometry_world import stating
from tests.kits.instructions import asked

EVERY = {f.name: Mode.AUTO for f in fields(Modes)}
ACTING = with_policy(
    AUTO,
    modes=EVERY,
    hysteresis={"dwell_s": 0.0},
    scale_ahead={"level": 0.9},
    preemption={"saves_prior": 1.0, "blast_ratio": 100.0},
)
NOW_S = 5000.0
TWO_G = 1  # the profile 2g.20gb
REPLICA: dict[str, Any] = {
    "queue": 1,
    "service": 0,
    "slo_class": SloClass.LATENCY_CRITICAL,
    "preemptible": False,
    "mig_profile": TWO_G,
}
SAVES: dict[str, Any] = {"checkpoint_on_request": True, "checkpoint_write_s": 10.0, "restart_s": 20.0}
THREE = (("2g.20gb", 0), ("2g.20gb", 2), ("2g.20gb", 4))
FULL = {0: THREE, 1: THREE}
SMALL = {0: THREE[:2], 1: tuple(("1g.10gb", start) for start in range(4))}
SURE = (5.5, 6.0, 6.0)
DOUBTFUL = (1.0, 4.3, 6.0)


def batch(name: str, *on: int, **more: Any) -> Item:
    """Batch work that saves, on these instances."""
    return holds(name, len(on), on, **({"queue": 2, "mig_profile": TWO_G} | SAVES | more))


def seen(
    *work: Item,
    peaks: Sequence[float] = SURE,
    cuts: Mapping[int, Sequence[tuple[str, int]]] | None = None,
    recuts: Mapping[int, int] | None = None,
    shape: str = "1x2",
    guarantee: tuple[int, int] = (3, 3),
    waiting: bool = True,
    replica: Mapping[str, Any] | None = None,
    nodes: Mapping[str, Sequence[Any]] | None = None,
    **columns: Any,
) -> Observation:
    """Two replicas hold the first two instances, and a third that only the forecast calls for waits."""
    tree = queue_tree(("web", 0, -1), ("batch", 0, -1))
    guarantees = tree.guarantee.copy()
    guarantees[1:, 0] = guarantee
    like = REPLICA | dict(replica or {})
    every = [holds("chat/1", 1, [0], **like), holds("chat/2", 1, [1], **like), *work]
    every += [waits("chat/3", 1, submit_s=NOW_S - 10.0, **like)] if waiting else []
    hardware: dict[str, Any] = {"cuts": cuts or FULL, "recuts": recuts, "nodes": nodes}
    snap = snapshot(shape, every, queues=replace(tree, guarantee=guarantees), **hardware)
    usual = {"queue": [1], "replicas": [2 + waiting], "p99_s": [1.0], "floor": [2 + waiting]}
    usual |= {"floor_until_s": [NOW_S + 1700.0]}
    return serving(observe(snap, NOW_S), forecast({"chat": peaks}, NOW_S), **(usual | columns))


def told(observation: Observation, memory: ControllerMemory | None = None, **policy: Any) -> Step:
    """One decision with what was learned before."""
    return decide(
        observation,
        with_policy(ACTING, **policy),
        memory or ControllerMemory(replicas=ReplicasMemory(services=LEARNED)),
    )


def made(step: Step, action: str = "make_room") -> list[Proposal]:
    """Proposals of one action."""
    return [each for each in step.decision.plan.proposals if each.action == action]


def fact(proposal: Proposal, name: str) -> Any:
    """One number behind a proposal."""
    return next(each.value for each in proposal.evidence if each.name == name)


def kinds(step: Step) -> list[str]:
    """What was instructed."""
    return sorted(each.kind for each in step.instructions)


EIGHT = [batch(f"b{row}", row) for row in range(2, 6)]


# --- make_room --------------------------------------------------------------------------------------


def test_a_free_instance_is_used_as_it_is() -> None:
    """Nothing is stopped while one is free."""
    step = told(seen(*EIGHT[:3]))
    assert kinds(step) == ["admit"]


def test_work_on_one_instance_leaves_for_a_replica() -> None:
    """One of four leaves, at the price of a third of a GPU, and the words name the profile."""
    step = told(seen(*EIGHT))
    (room,) = made(step)
    assert room.accepted
    assert len(room.victims) == 1
    assert [slot.instance for slot in room.slots] == ["GPU-0/9"]
    assert "start on 1 MIG instance 2g.20gb of 1 node" in proposal_words(room)
    third, lead_s, save_s, back_s = 1 / 3, 300.0, 10.0, 20.0
    weight = ACTING.room.late_weight
    assert room.benefit_gpu_s == pytest.approx(third * (lead_s + save_s) * weight)
    again = ACTING.preemption.waiting_weight * third * (lead_s + save_s)
    assert room.cost_gpu_s == pytest.approx(third * (save_s + back_s) + third * save_s * weight + again, rel=1e-3)


def test_of_equal_work_that_in_a_gap_leaves_first() -> None:
    """It is the earlier source."""
    work = [batch(f"b{row}", row, backfilled=row == 4) for row in range(2, 6)]
    work[0] = batch("b2", 2, checkpoint_write_s=30.0)
    (room,) = made(told(seen(*work, guarantee=(3, 0))))
    assert [victim.workload for victim in room.victims] == ["b4"]
    assert fact(room, "source") == "work in gaps before reservations"


def test_work_moves_to_an_instance_that_the_replica_cannot_use() -> None:
    """The replica asks for an A100; the batch gang goes on on an H100."""
    apart: dict[str, Any] = {"shape": "2x1", "nodes": {"gpu_model": [0, 1]}, "replica": {"gpu_models": 1}}
    (room,) = made(told(seen(batch("b", 2), **apart)))
    assert [(victim.workload, victim.how) for victim in room.victims] == [("b", "move")]
    assert [slot.instance for slot in room.victims[0].keeps] == ["GPU-1/7"]
    assert fact(room, "source") == "work that continues elsewhere"


def test_a_gang_on_several_instances_is_priced_by_all_of_them() -> None:
    """Four instances stop for one."""
    (one,) = made(told(seen(*EIGHT)))
    (four,) = made(told(seen(batch("b", 2, 3, 4, 5))))
    assert four.cost_gpu_s - one.cost_gpu_s == pytest.approx(3 * (30.0 + 0.1 * 310.0) / 3, rel=1e-3)


def test_doubt_costs_a_part_of_a_gpu_too() -> None:
    """The replica and its victim, for the dwell time, in the cases in which the load does not come."""
    (room,) = made(told(seen(*EIGHT, peaks=DOUBTFUL)))
    wrong = (1.0 - fact(room, "chance_needed")) * (1 + ACTING.preemption.waiting_weight) / 3 * ACTING.room.dwell_s
    assert fact(room, "if_not_needed") == pytest.approx(wrong, rel=0.01)


def test_what_may_not_be_stopped_stays() -> None:
    """Work that cannot save, whole GPUs in place of an instance, and what was disrupted within the hour."""
    stays = [batch(f"b{row}", row, checkpoint_on_request=False) for row in range(2, 6)]
    assert not [room for room in made(told(seen(*stays))) if room.accepted]
    whole = holds("w", 1, [2], queue=2, gpus_per_member=1, **SAVES)
    beside = seen(whole, shape="1x3", cuts={0: THREE[:2], 1: SMALL[1]})
    assert not made(told(beside, modes={"regeometry": Mode.OFF}))
    lately = tuple(Disruption(NOW_S - 60.0, f"b{n}", "t", (), contract=True, uid=f"b{n}") for n in range(2, 6))
    assert not made(
        told(
            seen(*EIGHT),
            ControllerMemory(replicas=ReplicasMemory(services=LEARNED), budget=BudgetMemory(disrupted=lately)),
        )
    )


def test_a_service_in_breach_gets_an_instance() -> None:
    """Its load needs the replica; what it may take above its guarantee is batch work of its own queue."""
    own = [batch(f"b{row}", row, priority=-1) for row in range(2, 6)]
    own = [replace(item, columns={**item.columns, "queue": 1}) for item in own]
    step = told(
        seen(*own, guarantee=(0, 0), replica={"priority": 0}, needed_replicas=[3], p99_s=[20.0]),
        modes=EVERY | {"preempt": Mode.OFF, "reclaim_borrowed": Mode.OFF},
    )
    (room,) = made(step)
    assert (room.accepted, room.reason, len(room.victims)) == (True, "breach", 1)


# --- new geometry -----------------------------------------------------------------------------------


def recuts(step: Step) -> list[tuple[str, RecutGpu]]:
    """Changes of geometry that were started."""
    found = [(each.subject.uid, each.operation) for each in step.instructions]
    return [(uid, operation) for uid, operation in found if isinstance(operation, RecutGpu)]


def test_idle_capacity_is_cut_for_a_replica_that_is_foreseen() -> None:
    """Four small instances are idle; nothing is stopped for the replica that the new instance serves."""
    observation = seen(*EIGHT[:1], cuts={0: THREE, 1: SMALL[1]}, guarantee=(3, 0))
    step = told(observation)
    ((uid, change),) = recuts(step)
    assert uid == "GPU-1"
    assert "2g.20gb" in [profile for profile, _ in change.after or ()]
    assert kinds(step) == ["recut"]
    (cut,) = made(step, "regeometry")
    assert "for 1 waiting replica that a forecast calls for (needed with probability 1)" in proposal_words(cut)
    off = told(observation, modes={"regeometry": Mode.OFF})
    assert (kinds(off), len(made(off))) == (["evict"], 1)


def test_nothing_is_stopped_while_its_instance_is_made() -> None:
    """While the GPU changes, the reason given for the replica is that change."""
    observation = seen(*EIGHT[:1], cuts={0: THREE, 1: SMALL[1]}, guarantee=(3, 0))
    first = told(observation)
    ((_, change),) = recuts(first)
    assert change.after is not None
    mid = told(
        replace(
            seen(*EIGHT[:1], cuts={0: THREE, 1: SMALL[1]}, recuts={1: Recut.CHANGING}, guarantee=(3, 0)),
            now_s=NOW_S + 20.0,
            tick=1,
        ),
        first.memory,
    )
    assert (kinds(mid), made(mid)) == ([], [])
    refusals = mid.decision.plan.refusals
    assert [refusals.codes[code] for code in refusals.code.tolist()] == [Code.RECUT]


def test_an_instance_that_comes_too_late_is_not_waited_for() -> None:
    """A change that takes longer than `room.delay_s` is no source of room, and other room is made."""
    observation = seen(*EIGHT[:1], cuts={0: THREE, 1: SMALL[1]}, guarantee=(3, 0))
    assert kinds(told(observation, room={"delay_s": 30.0})) == ["evict"]


def test_a_cut_is_weighed_by_the_chance_that_it_is_needed() -> None:
    """The gain falls with it, and none is made on doubt or where nothing is to be cut ahead."""
    sure, doubtful = (
        made(told(seen(*EIGHT[:1], peaks=peaks, cuts={0: THREE, 1: SMALL[1]})), "regeometry")[0]
        for peaks in (SURE, DOUBTFUL)
    )
    assert doubtful.benefit_gpu_s == pytest.approx(sure.benefit_gpu_s * fact(doubtful, "chance_needed"), rel=0.01)
    idle = seen(*EIGHT[:1], cuts={0: THREE, 1: SMALL[1]})
    unknown = replace(idle, forecasts=replace(idle.forecasts, demand=(forecast({"chat": np.nan}, NOW_S),)))
    assert not recuts(told(unknown))
    assert not recuts(told(idle, regeometry={"ahead": False}))


def test_no_gpu_is_drained_for_a_replica_that_is_only_foreseen() -> None:
    """Where the load needs it, the GPU is drained and its work moves."""
    small = tuple(("1g.10gb", start) for start in range(7))
    cuts = {0: THREE[:2], 1: small, 2: small}
    others = [batch("x", 2, mig_profile=0), batch("y", 9, mig_profile=0)]
    gpu = {"drain_s": 600.0}

    def drained(**columns: Any) -> bool:
        observation = stating(seen(*others, cuts=cuts, shape="1x3", **columns), "gpu")
        step = told(observation, regeometry=gpu, protection={"min_runtime_s": 0.0})
        return "drain" in [each.kind for each in made(step, "regeometry")]

    assert not drained()
    assert drained(needed_replicas=[3])


# --- floors -----------------------------------------------------------------------------------------


def test_a_replica_on_an_instance_is_priced_as_its_part_of_a_gpu() -> None:
    """Two of the seven compute slices."""
    on_instance = made(told(seen(waiting=False)), "scale_ahead")[0]
    whole = seen(waiting=False, replica={"mig_profile": -1, "gpus_per_member": 1}, shape="1x4", cuts={3: THREE})
    on_gpu = made(told(whole), "scale_ahead")[0]
    assert on_instance.benefit_gpu_s == pytest.approx(on_gpu.benefit_gpu_s * 2 / 7)


@pytest.mark.parametrize(("profile", "floors"), [(TWO_G, [("ahead", 1)]), (-1, [])], ids=["alike", "whole GPUs"])
def test_only_replicas_of_the_same_kind_give_way_to_a_need(profile: int, floors: list[tuple[str, int]]) -> None:
    """A floor on instances comes down for a needed instance, and not for a needed GPU."""
    need = REPLICA | {"service": 1, "mig_profile": profile, "gpus_per_member": 1}
    work = [
        holds("ahead/1", 1, [0], **REPLICA),
        holds("ahead/2", 1, [1], **REPLICA),
        waits("need/1", 1, **need),
    ]
    tree = queue_tree(("web", 0, -1))
    snap = snapshot("1x1", work, queues=tree, cuts={0: THREE[:2]})
    columns: dict[str, Any] = {
        "id": ["ahead", "need"],
        "uid": ["ahead", "need"],
        "queue": [1, 1],
        "objective_s": [1.0, 1.0],
        "age_s": [0.0, 0.0],
        "ready_replicas": [2, 0],
        "replicas": [2, 1],
        "min_replicas": [0, 0],
        "max_replicas": [9, 9],
        "needed_replicas": [1, 1],
        "recent_rps": [np.nan, np.nan],
        "generation": [1, 1],
        "floor": [2, 0],
        "floor_until_s": [NOW_S + 1700.0, np.nan],
    }
    seen_now = serving(observe(snap, NOW_S), forecast({"ahead": 4.0, "need": 0.1}, NOW_S), **columns)
    memory = ControllerMemory(
        replicas=ReplicasMemory(
            services={name: ServiceRecord(**_fields(LEARNED["chat"])) for name in ("ahead", "need")}
        )
    )
    step = told(seen_now, memory, modes=EVERY | {"regeometry": Mode.OFF})
    found = [each for each in step.instructions if each.kind == "scale"]
    assert [(each.subject.name, asked(each, Scale).replicas) for each in found] == floors


def _fields(record: ServiceRecord) -> dict[str, Any]:
    return {each.name: getattr(record, each.name) for each in fields(record)}
