"""Room from idle work: where the ladder allows it, at its own price, and before busy work is stopped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autopilot.core.effects.evict import EvictOperation
from autopilot.core.idle.follow import return_cost_gpu_s
from autopilot.core.model.memory import Step
from autopilot.core.model.memory.budget import Disruption
from autopilot.core.model.memory.idle import IdleOwner, IdleStep
from autopilot.core.model.memory.trust import StormRecord, TrustMemory
from autopilot.core.model.promises import PromiseRecord
from autopilot.core.model.records import Proposal
from autopilot.core.model.snapshot import ClusterSnapshot, Gate, SloClass, State
from autopilot.core.model.stops import StopReason
from autopilot.core.planning.queue_turns import returning_rows
from tests.kits.core_world import holds, snapshot, waits, with_policy
from tests.kits.idle_world import NOW_S, measured
from tests.kits.room_world import BUSY, HOUR_S, OWN, POLICY, REPLICA, ROOM_ONLY, due, look, noticed, scene
from tests.kits.ticking_world import tenants


def room(step: Step) -> list[Proposal]:
    """Accepted room."""
    return [each for each in step.decision.plan.proposals if each.action == "make_room" and each.accepted]


def victims(step: Step) -> list[str]:
    """Who leaves for the replica."""
    return [victim.workload for made in room(step) for victim in made.victims]


def fact(made: Proposal, name: str) -> Any:
    """One fact behind a proposal."""
    return next(each.value for each in made.evidence if each.name == name)


def test_idle_work_leaves_for_a_replica_that_is_foreseen_and_busy_work_stays() -> None:
    """It is suspended with a checkpoint; the record names the source, its price, and what the others would cost."""
    step = due(scene())
    (made,) = room(step)
    assert (made.reason, victims(step)) == ("foreseen_on_idle", ["w"])
    (effect,) = [each.operation for each in step.instructions if isinstance(each.operation, EvictOperation)]
    assert effect.reason == StopReason.IDLE
    assert fact(made, "source") == "idle work above the guarantee of its queue"
    assert fact(made, "expected_cost") == pytest.approx(made.cost_gpu_s, abs=1e-3)
    assert fact(made, "owners") == "t0/ann"
    others = dict(each.split(": ") for each in fact(made, "others").split("; "))
    assert others["free GPUs"] == "too little"
    assert others["work in gaps before reservations"] == "none"
    assert others["batch work that saves a checkpoint"].endswith(("GPU-min", "GPU-h"))


def test_nothing_is_taken_before_the_notice_is_done_and_its_grace_is_over() -> None:
    """Until then busy work makes the room."""
    snap = scene()
    early = look(snap, NOW_S + HOUR_S + 30.0, noticed(snap))
    unheard = look(snap, NOW_S + HOUR_S + 300.0, replace(look(snap, NOW_S), instructions=()))
    assert victims(early) == victims(unheard) == ["b"]


def test_inside_a_guarantee_the_mark_comes_first() -> None:
    """After its grace the source is named; work above a guarantee does not suffice."""
    snap = scene(guarantee=4)
    marked = due(snap)
    assert victims(marked) == ["b"]
    [record] = marked.memory.idle.records.values()
    assert record.step == IdleStep.MARKED
    memory = replace(
        marked.memory,
        starts=replace(marked.memory.starts, pipelined_starts=()),
        effects=replace(marked.memory.effects, in_flight={}),
        budget=replace(marked.memory.budget, disrupted=()),
    )
    step = look(snap, NOW_S + 2 * HOUR_S + 600.0, replace(marked, memory=memory, instructions=()))
    assert victims(step) == ["w"]
    assert fact(room(step)[0], "source") == "idle work, also inside guarantees"


@pytest.mark.parametrize(
    ("columns", "guarantee"),
    [
        pytest.param({"slo_class": SloClass.LATENCY_CRITICAL}, 0, id="protected class"),
        pytest.param({"excluded": True}, 0, id="opted out"),
        pytest.param({"preemptible": False}, 4, id="not preemptible inside its guarantee"),
        pytest.param({"checkpoint_on_request": False}, 0, id="cannot save"),
    ],
)
def test_protected_work_is_never_taken(columns: dict[str, Any], guarantee: int) -> None:
    """Not after any time."""
    snap = scene(guarantee=guarantee, **columns)
    step = due(snap)
    memory = replace(
        step.memory,
        starts=replace(step.memory.starts, pipelined_starts=()),
        effects=replace(step.memory.effects, in_flight={}),
        budget=replace(step.memory.budget, disrupted=()),
    )
    later = look(snap, NOW_S + 9 * HOUR_S, replace(step, memory=memory, instructions=()))
    assert "w" not in [*victims(step), *victims(later)]


def test_work_that_is_made_not_preemptible_after_its_mark_stays() -> None:
    """Its owner changed it; inside the guarantee that counts."""
    marked = due(scene(guarantee=4))
    memory = replace(
        marked.memory,
        starts=replace(marked.memory.starts, pipelined_starts=()),
        effects=replace(marked.memory.effects, in_flight={}),
        budget=replace(marked.memory.budget, disrupted=()),
    )
    changed = scene(guarantee=4, preemptible=False)
    step = look(changed, NOW_S + 2 * HOUR_S + 600.0, replace(marked, memory=memory, instructions=()))
    assert victims(step) == ["b"]


@pytest.mark.parametrize("mode", ["off", "observe", "recommend", "approve"])
def test_it_needs_no_less_approval_than_a_suspension(mode: str) -> None:
    """While `suspend_idle` may not act by itself, an action that does takes no idle work."""
    step = due(scene(), with_policy(POLICY, modes={"suspend_idle": mode}))
    assert victims(step) == ["b"]
    words = dict(each.split(": ") for each in fact(room(step)[0], "others").split("; "))
    assert words["idle work above the guarantee of its queue"] == "nothing may suspend it"


def test_where_both_need_an_approval_it_is_proposed() -> None:
    """A person sees idle work as the victim."""
    step = due(scene(), with_policy(POLICY, modes={"suspend_idle": "approve", "make_room": "approve"}))
    made = [each for each in step.decision.plan.proposals if each.action == "make_room"]
    assert [(each.reason, each.accepted) for each in made] == [("foreseen_on_idle", False)]


@pytest.mark.parametrize(
    "held",
    [
        {"storms": {"suspend_idle": StormRecord(since_s=NOW_S, last_s=NOW_S + HOUR_S)}},
        {"kept_promises": {"suspend_idle": PromiseRecord(capped_s=NOW_S)}},
    ],
    ids=lambda each: next(iter(each)),
)
def test_a_paused_or_capped_suspension_is_no_source(held: dict[str, Any]) -> None:
    """What the storm detector or its promises hold back is not done under another name."""
    told = noticed(scene())
    step = due(scene(), before=replace(told, memory=replace(told.memory, trust=TrustMemory(**held))))
    assert victims(step) == ["b"]


def test_an_owner_who_comes_back_early_is_dearer_than_busy_work() -> None:
    """His record raises the price; his patience is as long in both cases."""
    told = noticed(scene())
    (cheap,) = room(due(scene(), before=told))
    owners = {"t0/ann": IdleOwner(early_returns=2, last_s=NOW_S)}
    known = replace(told, memory=replace(told.memory, idle=replace(told.memory.idle, owners=owners)))
    later = look(scene(), NOW_S + 3 * HOUR_S + 300.0, known)
    assert fact(cheap, "owner_returns") == 0.0
    assert victims(later) == ["b"]
    words = dict(each.split(": ") for each in fact(room(later)[0], "others").split("; "))
    assert words["idle work above the guarantee of its queue"] == "1.39 GPU-h"  # 2 GPUs, twice, for 15 + 5 min


def test_work_that_was_disrupted_within_the_hour_stays() -> None:
    """The same work is stopped for room at most once within `room.reversal_s`."""
    told = noticed(scene())
    lately = Disruption(NOW_S + 1000.0, "w", "t", (), contract=True, uid="w")
    step = due(
        scene(),
        before=replace(told, memory=replace(told.memory, budget=replace(told.memory.budget, disrupted=(lately,)))),
    )
    assert victims(step) == ["b"]


def test_work_above_a_guarantee_is_not_taken_below_it() -> None:
    """Two gangs of a queue that borrows one GPU: without a mark one of them may go, not both."""
    work = [
        holds("chat/1", 1, [0], **REPLICA),
        *(holds(f"w{n}", 1, [1 + n], queue=2, start_s=0.0, gpus_per_member=1, user="ann", **OWN) for n in (0, 1)),
        waits("chat/3", 2, gpus_per_member=2, submit_s=NOW_S - 10.0, **REPLICA),
    ]
    for guarantee, gone in ((1, []), (0, ["w0", "w1"])):
        queues = tenants(("web", 0, 8), ("lab", 0, guarantee))
        snap = measured(snapshot("1x3", work, queues=queues), {0: BUSY})
        told = look(snap, NOW_S + 200.0, look(snap, NOW_S))
        assert victims(look(snap, NOW_S + HOUR_S + 300.0, told)) == gone


def test_a_replica_that_misses_its_objective_has_the_source_too() -> None:
    """Where the start is worth too little to `suspend_idle`, which is asked first."""
    step = due(scene(), ROOM_ONLY, breach=True)
    taking = [each for each in step.decision.plan.proposals if each.victims]
    assert [(each.action, each.reason, each.accepted) for each in taking] == [
        ("suspend_idle", "", False),
        ("make_room", "breach_on_idle", True),
    ]


def test_the_return_of_the_owner_is_that_after_a_suspension() -> None:
    """The same record and the same counters: an early return lengthens his graces and raises the price."""
    snap = scene()
    step = due(snap)
    work, held = snap.workloads, snap.placements
    row, stays = work.id.tolist().index("w"), held.workload != work.id.tolist().index("w")
    placements = type(held)(*(getattr(held, name)[stays] for name in held.__slots__))

    def shown(gate: Gate) -> ClusterSnapshot:
        state, gates, runs = work.state.copy(), work.gate.copy(), work.incarnation.copy()
        state[row], gates[row], runs[row] = State.PENDING, gate, 1
        left = replace(work, state=state, gate=gates, incarnation=runs)
        return replace(snap, workloads=left, placements=placements)

    away = look(shown(Gate.REJECTED), NOW_S + HOUR_S + 400.0, step)
    assert [each.step for each in away.memory.idle.records.values()] == [IdleStep.SUSPENDED]
    back = look(shown(Gate.OPEN), NOW_S + HOUR_S + 900.0, away)
    owner = back.memory.idle.owners["t0/ann"]
    assert (owner.suspensions, owner.returns, owner.early_returns) == (1, 1, 1)
    assert return_cost_gpu_s(owner, 100.0, POLICY) == pytest.approx(100.0)
    assert returning_rows(back.memory, shown(Gate.OPEN)) == {row}
