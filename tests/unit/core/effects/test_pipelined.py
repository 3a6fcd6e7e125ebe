"""The life of a start that waits for others to leave, tick by tick, and what becomes of it when things go wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.effects.pipelined import Lookup
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.starts import Part, PipelinedStart, StartsMemory
from autopilot.core.model.policy import Mode
from autopilot.core.model.records import NoteCode, Slot, Victim
from autopilot.core.model.snapshot import Gate, State
from autopilot.core.placement.vacate import vacate
from autopilot.core.placement.whatif import Layout, WhatIf
from tests.kits.core_world import Item, decide, holds, snapshot, started, waits, with_policy, world
from tests.kits.instructions import asked
from tests.kits.ticking_world import EAGER, Ticking, rows_of, tenants

TWO = tenants(("a", 0, 8), ("b", 0, 0))

PATIENT = with_policy(EAGER, reservation={"depth": 1, "firm_after_s": 1e5}, order={"max_wait_s": 3600.0})
"""Room is held for gangs that have waited for an hour, and goes first to a gang that is owed it."""
FORESEEN = {"x": 12600.0, "old": 9100.0, "big": 7200.0, "w": 9000.0}


def reclaim(*more: Item, shape: str = "2x8", wide: int = 8, **columns: object) -> Ticking:
    """`w` of a queue within its guarantee waits; `v` and `x` of another hold all."""
    work = [
        holds("v", 8, queue=2, start_s=5.0),
        holds("x", 8, queue=2),
        waits("w", wide, queue=1, submit_s=1.0, **columns),
        *more,
    ]
    return Ticking(shape, work, queues=TWO)


def layout(*gpus: int, milli: int = 1000) -> Layout:
    """Whole GPUs, or shares of them."""
    return Layout(np.array(gpus, np.int32), np.full(len(gpus), -1, np.int32), np.full(len(gpus), milli, np.int32))


# --- as it should go --------------------------------------------------------------------------------


def test_what_waits_for_nobody_starts_at_once() -> None:
    """`w` is owed what is held for a gang that is overdue: the GPUs are idle, its guarantee takes precedence,
    and it has them at this tick, not a later one.
    """
    work = [holds("x", 8, queue=2), waits("big", 16, queue=2), waits("w", 1, queue=1, submit_s=8990.0)]
    observation = world("2x8", work, 9000.0, queues=TWO, total_s=FORESEEN)
    for policy in (PATIENT, with_policy(PATIENT, modes={"reclaim_borrowed": Mode.OFF})):
        step = decide(observation, policy)
        assert started(step) == {"w": ["node-1"]}
        assert step.memory.starts.pipelined_starts == ()


def test_gpus_of_one_who_leaves_are_waited_for() -> None:
    """`w` may have four idle GPUs and two of `old`, which saves to leave: nothing more is stopped, and it waits."""
    work = [
        holds("x", 8, queue=2),
        holds("old", 4, on=range(12, 16), queue=2, state=State.CHECKPOINTING),
        waits("big", 16, queue=2),
        waits("w", 6, queue=1, submit_s=8990.0),
    ]
    step = decide(world("2x8", work, 9000.0, queues=TWO, total_s=FORESEEN), PATIENT)
    assert started(step) == {}
    assert step.instructions == ()
    assert [pipelined.workload for pipelined in step.memory.starts.pipelined_starts] == ["w"]


def test_a_gang_starts_when_its_victim_is_gone_and_not_before() -> None:
    """Told at the first tick; the gang waits, however many ticks come, and starts on those very GPUs once they are
    free.
    """
    play = reclaim()
    step = play.tick(100.0)
    assert play.told == [(100.0, "evict", "v")]
    (pipelined,) = step.memory.starts.pipelined_starts
    assert (pipelined.workload, pipelined.contract, pipelined.deadline_s) == ("w", True, 700.0)
    for now_s in (100.0, 110.0, 160.0):
        play.tick(now_s)
        play.check_books()
    assert len(play.told) == 1
    play.leave("v")
    play.tick(170.0)
    assert play.told[1:] == [(170.0, "admit", "w")]
    assert play.on("w") == tuple(range(8))
    assert play.memory.starts.pipelined_starts == ()
    play.tick(180.0)
    play.check_books()
    assert len(play.told) == 2


def test_it_starts_only_when_the_last_victim_is_gone() -> None:
    """Two victims that leave at different ticks: nothing of the gang starts in between."""
    play = Ticking(
        "2x4",
        [holds("v1", 4, queue=2), holds("v2", 4, queue=2), waits("w", 8, queue=1, gpus_per_member=4)],
        queues=TWO,
    )
    play.tick(100.0)
    assert play.leaving() == ["v1", "v2"]
    play.leave("v2")
    play.tick(120.0)
    assert play.running() == []
    play.leave("v1")
    play.tick(140.0)
    assert play.running() == ["w"]
    assert sorted(play.on("w")) == list(range(8))


def test_the_gpus_of_one_who_leaves_are_nobody_elses() -> None:
    """A victim frees more than the gang needs: the rest is not allocated before it is gone, and then it is."""
    play = Ticking(
        "1x8",
        [holds("v", 8, queue=2), waits("w", 4, queue=1, gpus_per_member=4), waits("small", 2, queue=1, submit_s=9.0)],
        queues=TWO,
    )
    play.tick(100.0)
    play.tick(110.0)
    assert play.running() == []
    play.leave("v")
    play.tick(120.0)
    assert play.running() == ["small", "w"]


def test_a_second_gang_waits_for_the_same_victim_and_nobody_is_told_twice() -> None:
    """What one taking leaves over is booked for the next that waits; both start when the victim is gone."""
    play = Ticking(
        "1x8",
        [
            holds("v", 8, queue=2),
            waits("w", 4, queue=1, gpus_per_member=4),
            waits("w2", 4, queue=1, submit_s=9.0, gpus_per_member=4),
        ],
        queues=TWO,
    )
    play.tick(100.0)
    play.tick(110.0)
    assert [kind for _, kind, _ in play.told] == ["evict"]
    play.check_books()
    play.leave("v")
    play.tick(120.0)
    play.check_books()
    assert play.running() == ["w", "w2"]
    assert sorted(play.on("w") + play.on("w2")) == list(range(8))


def moving() -> Ticking:
    """A gang of eight finds room when `m`, four on its node, goes to the four that are idle elsewhere."""
    work = [
        holds("m", 4, on=range(4), queue=2),
        holds("x", 4, on=range(8, 12), queue=2),
        waits("w", 8, queue=1, submit_s=1.0),
    ]
    return Ticking("2x8", work, queues=TWO)


def test_a_moved_victim_goes_on_at_its_target() -> None:
    """It is evicted, starts again where it was meant to, and the gang has its GPUs; each by itself."""
    play = moving()
    step = play.tick(100.0)
    (pipelined,) = step.memory.starts.pipelined_starts
    targets = {part.workload: rows_of(part.slots) for part in pipelined.parts}
    assert targets == {"w": tuple(range(8)), "m": (12, 13, 14, 15)}
    assert [(order.kind, order.subject.name, order.operation.takes) for order in step.instructions] == [
        ("evict", "m", "move")
    ]
    play.check_books()
    play.leave("m")
    step = play.tick(130.0)
    assert {order.subject.name: asked(order, AdmitOperation).moved for order in step.instructions} == {
        "w": False,
        "m": True,
    }
    assert (play.on("w"), play.on("m")) == (tuple(range(8)), (12, 13, 14, 15))
    play.check_books()


def test_a_target_is_kept_for_the_one_who_moves() -> None:
    """A newcomer that would fit there does not get it while the mover is still on its way."""
    play = moving()
    play.tick(100.0)
    play.submit(waits("thief", 4, queue=2, submit_s=100.0, gpus_per_member=4))
    play.tick(110.0)
    assert play.running() == ["x"]
    play.leave("m")
    play.tick(130.0)
    assert play.running() == ["m", "w", "x"]


def test_an_elastic_victim_gives_members_and_goes_on() -> None:
    """It keeps its minimum in place; the gang starts on what it gave."""
    work = [holds("e", 8, queue=2, min_gpus=2, gpus_per_member=1), waits("w", 4, queue=1, gpus_per_member=4)]
    play = Ticking("1x8", work, queues=TWO)
    play.tick(100.0)
    assert play.told == [(100.0, "resize", "e")]
    kept = play.on("e")
    assert len(kept) == 4
    play.tick(110.0)
    assert play.on("e") == kept
    assert set(play.on("w")) == set(range(8)) - set(kept)
    play.check_books()


def test_what_a_shrink_gives_up_is_not_free_before_it_is_seen_to_be() -> None:
    """The instruction to shrink was lost: nothing starts on those GPUs until it was sent again and done."""
    work = [holds("e", 8, queue=2, min_gpus=4, gpus_per_member=4), waits("w", 3, queue=1, gpus_per_member=3)]
    play = Ticking("1x8", work, queues=TWO)
    play.tick(100.0, lost=True)
    play.submit(waits("small", 1, queue=2, submit_s=100.0))
    play.tick(110.0)
    play.check_books()
    assert play.running() == ["e"]
    play.tick(340.0)  # past its deadline and grace: it is told again
    play.tick(341.0)
    assert play.running() == ["e", "small", "w"]
    assert len(play.on("e")) == 4


def test_the_landing_of_a_share_frees_no_more_of_its_gpu_than_it_needs() -> None:
    """In the capacity books a leaving victim keeps the part of its GPU that no start claims: nothing else is planned
    there.
    """
    snap = snapshot(
        "1x1",
        [
            holds("v", 1, on=[0], gpu_milli=600),
            holds("o", 1, on=[0], gpu_milli=400),
            waits("w", 1, gpu_milli=300),
        ],
    )
    whatif = WhatIf(snap)
    assert vacate(whatif, [0], [layout(0, milli=300)], {}) == {0}
    assert int(whatif.gpu_used[0]) == 700
    assert int(whatif.layout_of(0).milli[0]) == 300
    assert whatif.fits(layout(0, milli=300))
    assert not whatif.fits(layout(0, 0, milli=200))  # two shares of one GPU count together


# --- when things go wrong ---------------------------------------------------------------------------


def test_a_victim_that_never_leaves_ends_the_landing_and_nothing_is_lost() -> None:
    """At its deadline the landing is given up, with a note; the next one waits for the same GPUs, and stops nobody."""
    play = reclaim()
    play.tick(100.0)
    play.tick(699.0)
    assert play.leaving() == ["v"]
    step = play.tick(700.0)
    assert [note.subject for note in step.decision.notes if note.code == NoteCode.START_GIVEN_UP] == ["w"]
    assert [
        (pipelined.since_s, pipelined.victims[0].workload) for pipelined in play.memory.starts.pipelined_starts
    ] == [(700.0, "v")]
    assert step.instructions == ()
    assert play.gangs["w"].state == State.PENDING
    assert play.gangs["v"].on == tuple(range(8))
    play.check_books()
    play.leave("v")
    play.tick(720.0)
    assert play.running() == ["w", "x"]


def test_the_gang_goes_away_while_its_victim_leaves() -> None:
    """Nothing starts, and the victim is planned again like any other gang."""
    play = reclaim()
    play.tick(100.0)
    play.cancel("w")
    play.tick(110.0)
    assert play.memory.starts.pipelined_starts == ()
    play.check_books()
    play.leave("v")
    play.tick(120.0)
    assert play.running() == ["v", "x"]


def test_a_gang_that_is_switched_off_does_not_land() -> None:
    """A check that turned against it, or an opt-out, while it waited for its victim: the landing is given up."""
    for column in ({"gate": Gate.REJECTED}, {"excluded": True}):
        play = reclaim()
        play.tick(100.0)
        play.gangs["w"].columns.update(column)
        play.leave("v")
        play.tick(110.0)
        assert "w" not in play.running(), column
        assert play.memory.starts.pipelined_starts == ()


def test_a_node_of_its_slots_fails() -> None:
    """The landing is given up, and the gang finds another victim."""
    play = reclaim()
    play.tick(100.0)
    slots = rows_of(play.memory.starts.pipelined_starts[0].parts[0].slots)
    play.lose_node(slots[0] // 8)
    play.tick(110.0)
    play.check_books()
    assert [pipelined.since_s for pipelined in play.memory.starts.pipelined_starts] == [110.0]
    play.leave_all()
    play.tick(120.0)
    assert "w" in play.running()


def test_a_victim_that_ends_by_itself_makes_way_too() -> None:
    """The gang starts; the victim is not started anywhere again."""
    play = moving()
    play.tick(100.0)
    play.finish("m")
    play.tick(110.0)
    assert play.running() == ["w", "x"]
    assert "m" not in play.gangs
    play.tick(120.0)
    assert play.memory.starts.pipelined_starts == ()


def test_the_target_of_a_mover_fails() -> None:
    """It loses its place like an evicted one; the gang is not held up by it, and the mover waits its turn."""
    play = moving()
    play.tick(100.0)
    play.down.add(1)
    for name in ("x",):
        play.finish(name)
    play.leave("m")
    play.tick(110.0)
    assert play.running() == ["w"]
    assert play.gangs["m"].state == State.PENDING
    play.check_books()


def test_who_moves_onto_the_gpus_of_another_waits_for_that_one() -> None:
    """The mover's target is held by a second victim: if the mover ends by itself, that one's GPUs stay its own."""
    pipelined = PipelinedStart(
        "pipeline-w",
        "reclaim_borrowed",
        "t0",
        "w",
        victims=(_victim("m"), _victim("o")),
        parts=(_part("w", range(4), 0), _part("m", range(4, 8), 1)),
        since_s=90.0,
        deadline_s=700.0,
        contract=True,
    )
    work = [
        holds("m", 4, on=range(4), queue=2),
        holds("o", 4, on=range(4, 8), queue=2),
        waits("w", 4, queue=1, gpus_per_member=4),
        waits("thief", 4, queue=1, submit_s=9.0, gpus_per_member=4),
    ]
    play = Ticking("1x8", work, queues=TWO)
    play.memory = ControllerMemory(starts=StartsMemory(pipelined_starts=(pipelined,)))
    for name in ("m", "o"):
        play.gangs[name].state = State.CHECKPOINTING
    play.finish("m")
    play.tick(100.0)
    assert play.running() == ["w"]  # and nobody is put onto what `o` holds still
    play.leave("o")
    play.tick(110.0)
    assert set(play.running()) >= {"w", "thief"} or set(play.running()) >= {"w", "o"}


def _victim(name: str) -> Victim:
    return Victim(name, 0, 4, 0.0, True, "move" if name == "m" else "evict")


def _part(name: str, gpus: range, incarnation: int) -> Part:
    return Part(name, incarnation, tuple(Slot("node-0", f"GPU-{gpu}") for gpu in gpus))


def test_the_kill_switch_stops_a_landing_and_it_goes_on_after() -> None:
    """While everything is held nothing starts, though the GPUs are free; when it is resumed the gang lands."""
    play = reclaim()
    play.tick(100.0)
    play.leave("v")
    play.memory = replace(play.memory, halt=replace(play.memory.halt, killed=True))
    for now_s in (110.0, 300.0, 500.0, 690.0):
        play.tick(now_s)
    assert play.running() == ["x"]
    play.memory = replace(play.memory, halt=replace(play.memory.halt, killed=False))
    play.tick(695.0)
    assert play.running() == ["w", "x"]
    assert play.memory.halt.failed == ()


# --- memory -----------------------------------------------------------------------------------------


def test_a_lookup_knows_what_is_gone() -> None:
    """Slots on a GPU or an instance that is not there have no layout."""
    names = Lookup(snapshot("1x4", [], cuts={3: [("1g.10gb", 0)]}))
    found = names.layout((Slot("node-0", "GPU-1"), Slot("node-0", "GPU-3", "GPU-3/7", 0)))
    assert found is not None
    assert (found.gpu.tolist(), found.instance.tolist(), found.milli.tolist()) == ([1, 3], [-1, 0], [1000, 0])
    assert names.layout((Slot("node-0", "GPU-9"),)) is None
    assert names.layout((Slot("node-0", "GPU-3", "GPU-3/99", 0),)) is None


def test_a_landing_of_instances_waits_for_them() -> None:
    """An instance that somebody leaves is claimed and not free; others on the same GPU are not touched."""
    work = [
        holds("v", 1, on=[0], mig_profile=0, state=State.CHECKPOINTING),
        holds("o", 1, on=[1], mig_profile=0),
        waits("w", 1, mig_profile=0),
    ]
    snap = snapshot("1x1", work, cuts={0: [("1g.10gb", 0), ("1g.10gb", 1)]})
    whatif = WhatIf(snap)
    claimed = Layout(np.array([0], np.int32), np.array([0], np.int32), np.array([0], np.int32))
    assert vacate(whatif, [0, 1], [claimed], {}) == {0}
    assert whatif.fits(claimed)
    assert not whatif.fits(replace(claimed, instance=np.array([1], np.int32)))


def test_a_policy_may_shorten_how_long_a_landing_waits() -> None:
    """The deadline is the policy's."""
    play = reclaim()
    play.policy = with_policy(EAGER, preemption={"pipelined_timeout_s": 60.0})
    assert play.tick(100.0).memory.starts.pipelined_starts[0].deadline_s == 160.0
