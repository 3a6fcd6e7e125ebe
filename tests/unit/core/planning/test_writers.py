"""Checkpoints of those who leave: who cannot save keeps its place, who writes first, who has no turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autopilot.core.effects.evict import EvictOperation
from autopilot.core.model.memory.effects import InFlight
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import About, Evidence, Instruction, Note, NoteCode, Save
from autopilot.core.model.stops import StopReason
from autopilot.core.planning.writers import in_turn
from autopilot.explain.proposals import explain_decision
from simulator.running.cluster_actuator import ClusterActuator
from simulator.world.cluster import Cluster
from simulator.world.facts import Stopped
from simulator.world.physics import REAL
from simulator.world.work import Jobs, uid_of
from tests.kits.cluster_kit import gang, inventory
from tests.kits.core_world import Item, decide, evicted, holds, snapshot, waits, with_policy, world
from tests.kits.instructions import asked, instruct
from tests.kits.ticking_world import EAGER, Ticking, tenants

GRACE_S = EAGER.preemption.grace_s
ANYWAY = with_policy(EAGER, preemption={"without_checkpoint": True})
COOL = with_policy(EAGER, hysteresis={"cool_down_s": 600.0})
TWO = tenants(("a", 0, 0), ("b", 0, 0))
OWED = tenants(("a", 0, 8), ("b", 0, 0))
NEVER = float("inf")


def field(cheap: Item, *more: Item) -> list[Item]:
    """`cheap` is the first victim for `w`, by its price; `dear` is the next."""
    return [cheap, holds("dear", 8, start_s=0.0), *more, waits("w", 8, priority=5, submit_s=1.0)]


@pytest.mark.parametrize(
    "columns",
    [{"checkpoint_interval_s": NEVER}, {"checkpoint_write_s": GRACE_S + 1.0}, {"checkpoint_on_request": False}],
    ids=["never", "slow", "not on request"],
)
def test_who_is_known_to_save_too_late_is_passed_over(columns: dict[str, Any]) -> None:
    """Another pays, though it costs more; with `without_checkpoint` the cheapest does."""
    work = field(holds("cheap", 8, start_s=5000.0, **columns))
    observation = world("2x8", work, 9000.0)
    assert evicted(decide(observation, EAGER)) == ["dear"]
    assert evicted(decide(observation, ANYWAY)) == ["cheap"]


def test_alone_it_keeps_its_place_and_the_story_says_why() -> None:
    """There is no other victim: the pending gang continues to wait."""
    work = [holds("v", 8, start_s=0.0, checkpoint_interval_s=NEVER), waits("w", 8, priority=5)]
    assert evicted(decide(world("1x8", work, 9000.0), EAGER)) == []


def test_a_contract_takes_it_all_the_same() -> None:
    """What was promised is given back; it leaves unsaved when its grace is over."""
    work = [holds("v", 8, queue=2, checkpoint_interval_s=NEVER), waits("w", 8, queue=1)]
    step = decide(world("1x8", work, 9000.0, queues=OWED), EAGER)
    (effect,) = step.instructions
    assert (effect.subject.name, asked(effect, EvictOperation).save, asked(effect, EvictOperation).grace_s) == (
        "v",
        Save.TRY,
        GRACE_S,
    )


@pytest.mark.parametrize(("policy", "save"), [(EAGER, Save.MUST), (ANYWAY, Save.TRY)])
def test_an_instruction_says_what_becomes_of_unsaved_work(policy: Policy, save: Save) -> None:
    """Weighed takings wait for the checkpoint, unless the policy says otherwise."""
    (effect,) = decide(world("1x8", [holds("v", 8), waits("w", 8, priority=5)], 9000.0), policy).instructions
    assert (effect.kind, asked(effect, EvictOperation).save, asked(effect, EvictOperation).grace_s) == (
        "evict",
        save,
        GRACE_S,
    )


def test_who_declines_stays_and_another_is_told() -> None:
    """Nothing was known of `cheap`; it cannot save. Its taking is given up with a reason, and the next one pays."""
    play = Ticking("2x8", field(holds("cheap", 8, start_s=5000.0)), COOL)
    play.unable = {"cheap"}
    play.tick(9000.0)
    assert play.told == [(9000.0, "evict", "cheap")]
    assert play.leaving() == []
    step = play.tick(9001.0)
    assert play.leaving() == ["dear"]
    assert [pipelined.victims[0].workload for pipelined in play.memory.starts.pipelined_starts] == ["dear"]
    assert play.memory.budget.cooled_until_s["cheap"] == 9601.0
    assert not play.memory.halt.failed
    (note,) = step.decision.notes
    assert note == Note(NoteCode.VICTIM_CANNOT_SAVE, About.WORKLOAD, "cheap", facts=(Evidence("start_of", "w"),))
    words = "cheap cannot save within its grace and stays; the start of w there is given up"
    assert f"  {words}" in explain_decision(step.decision)
    play.leave("dear")
    play.tick(9100.0)
    assert play.running() == ["cheap", "w"]
    play.check_books()


def test_who_declined_is_not_asked_again_at_once_even_without_a_cool_down() -> None:
    """For another grace at least."""
    play = Ticking("1x8", [holds("v", 8), waits("w", 8, priority=5)], EAGER)
    play.unable = {"v"}
    for now_s in (9000.0, 9001.0, 9000.0 + GRACE_S):
        play.tick(now_s)
    assert len(play.told) == 1
    step = play.tick(9001.0 + GRACE_S)
    assert [effect.subject.name for effect in step.instructions] == ["v"]


def test_a_landing_that_came_to_nothing_takes_no_other_victim() -> None:
    """A note says so at the deadline; the start then waits again for the GPUs that still leave."""
    play = Ticking("2x8", field(holds("cheap", 8, start_s=5000.0)), COOL)
    play.tick(9000.0)
    late_s = 9000.0 + COOL.preemption.pipelined_timeout_s
    for now_s in (late_s, late_s + 600.0):
        step = play.tick(now_s)
        assert [note.code for note in step.decision.notes] == [NoteCode.START_GIVEN_UP]
        assert len(play.told) == 1
        assert play.memory.starts.no_pipelined_until_s == {"w": now_s + 600.0}
        assert play.leaving() == ["cheap"]
        assert [victim.workload for victim in play.memory.starts.pipelined_starts[0].victims] == ["cheap"]
    play.leave("cheap")
    play.tick(late_s + 700.0)
    assert play.running() == ["dear", "w"]


# --- turns at the store -----------------------------------------------------------------------------


def evict(name: str, save: Save = Save.TRY) -> Instruction:
    """A taking with a grace of 100 s."""
    return instruct(name, EvictOperation(reason=StopReason.RECLAIM, grace_s=100.0, save=save))


LEAVERS = [
    holds("small", 2, start_s=0.0, checkpoint_write_s=60.0),  # 2 GPUs x 1000 s for 60 s
    holds("wide", 8, start_s=0.0, checkpoint_write_s=60.0),  # 8 GPUs x 1000 s for 60 s
    holds("quick", 1, start_s=0.0, checkpoint_write_s=1.0),  # 1 GPU x 1000 s for 1 s
    holds("silent", 4, start_s=0.0),
]
LOST = [2000.0, 8000.0, 1000.0, 4000.0]


def turns(writers: int, *effects: Instruction, under_way: tuple[InFlight, ...] = ()) -> list[tuple[str, Save]]:
    """Names in the order in which they are told, and what becomes of them."""
    snap = snapshot("2x8", LEAVERS)
    policy = with_policy(EAGER, preemption={"checkpoint_writers": writers})
    found = in_turn(effects, under_way, snap, np.array(LOST), 1000.0, policy)
    return [(effect.subject.name, asked(effect, EvictOperation).save) for effect in found]


def test_most_work_saved_per_byte_is_written_first() -> None:
    """Whatever the order in which they were chosen; what states no time comes last."""
    order = turns(0, *map(evict, ("silent", "small", "wide", "quick")))
    assert order == [(name, Save.TRY) for name in ("quick", "wide", "small", "silent")]


def test_whose_turn_cannot_come_is_stopped_at_once() -> None:
    """One writer, 100 s: 1 + 60 fit, 60 more do not. Two writers: all fit."""
    asked = [evict(name) for name in ("small", "wide", "quick")]
    assert turns(1, *asked) == [("quick", Save.TRY), ("wide", Save.TRY), ("small", Save.SKIP)]
    assert turns(2, *asked) == [("quick", Save.TRY), ("wide", Save.TRY), ("small", Save.TRY)]


def test_work_that_must_save_is_not_stopped_unsaved_for_want_of_a_turn() -> None:
    """It is asked, and declines if it cannot."""
    assert turns(1, evict("wide"), evict("small", Save.MUST)) == [("wide", Save.TRY), ("small", Save.MUST)]


def test_those_who_write_already_hold_their_writers() -> None:
    """`wide` was told 30 s ago and has 30 s to go: `small` still fits behind it; told just now, it does not."""
    told = InFlight(evict("wide"), "accepted", 970.0, "reclaim_borrowed", "t0", 0.0, contract=True)
    assert turns(1, evict("small"), under_way=(told,)) == [("small", Save.TRY)]
    assert turns(1, evict("small"), under_way=(replace(told, since_s=1000.0),)) == [("small", Save.SKIP)]


def test_the_loss_without_a_turn_is_stated() -> None:
    """Two borrowers of eight GPUs at once, and one writer: the decision says who is not saved and what that loses."""
    policy = with_policy(EAGER, preemption={"checkpoint_writers": 1, "grace_s": 100.0})
    work = [
        holds("v", 8, queue=2, start_s=0.0, checkpoint_write_s=60.0),
        holds("x", 8, queue=2, start_s=3000.0, checkpoint_write_s=60.0),
        waits("w", 16, queue=1),
    ]
    queues = tenants(("a", 0, 16), ("b", 0, 0))
    step = decide(world("2x8", work, 9000.0, queues=queues), policy)
    assert [(effect.subject.name, asked(effect, EvictOperation).save) for effect in step.instructions] == [
        ("v", Save.TRY),
        ("x", Save.SKIP),
    ]
    (note,) = step.decision.notes
    assert note == Note(NoteCode.NO_TURN_TO_SAVE, About.WORKLOAD, "x", 8 * 6000.0, "GPU-s")
    kept = {
        entry.instruction.subject.name: asked(entry.instruction, EvictOperation).save
        for entry in step.memory.effects.in_flight.values()
    }
    assert kept == {"v": Save.TRY, "x": Save.SKIP}


# --- in the simulated cluster -----------------------------------------------------------------------


def told(save: Save, interval_s: float = 1800.0, gib: float = 50.0) -> tuple[Cluster, str, str]:
    """One gang that has run for an hour and 100 s is evicted; the cluster, the outcome and its reason."""
    jobs = Jobs()
    jobs.add("v", "t", gang(4, 4), 0.0, 90_000.0, checkpoint_interval_s=interval_s, checkpoint_gib=gib)
    cluster = Cluster(inventory(1, 4), jobs, REAL)
    cluster.submit(0, 0.0)
    cluster.start(0, range(4), 0.0)
    cluster.ready(0, 0)
    actuator = ClusterActuator(cluster)
    now_s = cluster.ready_s[0] + 3700.0
    order = evict("v", save)
    outcome = actuator.apply(replace(order, subject=replace(order.subject, uid=uid_of("job", 0))), now_s)
    return cluster, outcome.kind, outcome.reason


def test_a_gang_that_can_save_leaves_with_its_progress() -> None:
    """It is saving, and holds its GPUs until then."""
    cluster, kind, _ = told(Save.MUST)
    assert kind == "accepted"
    assert cluster.leaving[0].write.done_s < float("inf")


@pytest.mark.parametrize(("interval_s", "gib"), [(NEVER, 50.0), (1800.0, 500.0)], ids=["never", "slow"])
def test_a_gang_that_cannot_save_declines_and_works_on(interval_s: float, gib: float) -> None:
    """It is not touched; told otherwise, it is stopped at once and loses what it did since its last checkpoint."""
    cluster, kind, reason = told(Save.MUST, interval_s, gib)
    assert (kind, reason) == ("declined", "the work cannot save its progress within its grace period")
    assert not cluster.leaving
    assert 0 in cluster.holding
    cluster, kind, _ = told(Save.TRY, interval_s, gib)
    assert kind == "done"
    assert cluster.served_s[0] == (0.0 if interval_s == NEVER else 3600.0)


def test_without_a_turn_it_goes_back_to_its_last_periodic_checkpoint() -> None:
    """Stopped immediately, although it could have saved with the store to itself: the loss is counted as lack of
    bandwidth.
    """
    stopped: list[Stopped] = []

    class Watch:
        """Looks on."""

        def on_stopped(self, fact: Stopped) -> None:
            """Note it."""
            stopped.append(fact)

    jobs = Jobs()
    jobs.add("v", "t", gang(4, 4), 0.0, 90_000.0, checkpoint_interval_s=1800.0, checkpoint_gib=50.0)
    cluster = Cluster(inventory(1, 4), jobs, REAL)
    cluster.observe(Watch())
    cluster.submit(0, 0.0)
    cluster.start(0, range(4), 0.0)
    cluster.ready(0, 0)
    assert cluster.evict(0, cluster.ready_s[0] + 3700.0, save=Save.SKIP) is None
    (fact,) = stopped
    assert (fact.gain_s, fact.lost_s, fact.no_bandwidth) == (3700.0, 100.0, True)
