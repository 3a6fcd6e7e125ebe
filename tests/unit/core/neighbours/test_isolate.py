"""A suspect is confirmed by a pause, then moved away; what cannot be confirmed is left to a person."""

from __future__ import annotations

from itertools import pairwise
from math import nan
from typing import Any

import pytest

from autopilot.core.model.memory import Step
from autopilot.core.model.modes import Mode
from autopilot.core.model.neighbours import Measure, Nearness
from autopilot.core.model.objects import Pausing
from autopilot.core.model.records import OutcomeKind
from autopilot.core.model.snapshot import SloClass
from autopilot.core.planning.pairs import uid_pair
from autopilot.explain.proposals import proposal_words
from autopilot.explain.story.telling import tell
from autopilot.metrics.samples import Samples
from autopilot.metrics.sharing_samples import put_neighbours
from tests.kits.core_world import AUTO, holds, with_policy
from tests.kits.noisy_world import NOW_S, VICTIM_MOVES, Noisy, after_pause, record
from tests.kits.sharing_world import SLICED, known, shared, sits

PAIR = uid_pair("victim", "suspect")


def recovered() -> Any:
    """The victim is as before while the suspect is paused."""
    return (record(now_ratio=1.1),)


def test_a_confirmed_suspect_is_moved_to_another_node() -> None:
    """It is paused at once, stays so until the level of its victim is known, and leaves from the pause."""
    world = Noisy()
    first = world.tick()
    assert [(each.kind, each.subject.name) for each in first.instructions] == [("pause", "suspect")]
    world.tick(60.0)
    world.found = recovered()
    world.run(180.0)
    assert world.kinds() == ["pause", "evict"]
    assert world.memory.neighbours.verdicts[PAIR].harmful
    (pair,) = world.memory.neighbours.pairs.values()
    assert (pair.harmful, pair.confirmed) == (1.0, 1)
    assert world.step is not None
    (move,) = [each for each in world.step.decision.plan.proposals if each.kind == "move"]
    assert {slot.node for slot in move.change.victims[0].keeps} == {"node-1"}
    assert world.sent[-1][0] <= NOW_S + 300.0


def test_a_suspect_whose_pause_changes_nothing_is_cleared() -> None:
    """It goes on within seven minutes, is not tried again, and the pair is remembered as harmless."""
    world = Noisy()
    world.tick()
    world.run(1200.0)
    assert world.kinds() == ["pause", "resume"]
    assert next(at_s for at_s, kind, _ in world.sent if kind == "resume") <= NOW_S + 480.0
    assert not world.memory.neighbours.verdicts[PAIR].harmful
    (pair,) = world.memory.neighbours.pairs.values()
    assert (pair.harmful, pair.harmless, pair.confirmed) == (0.0, 1.0, 0)


def test_a_long_trial_asks_again_before_the_pause_lapses() -> None:
    """While the level is unknown; it ends after ten minutes, and twice a day at most."""
    world = Noisy(found=(record(now_ratio=nan),))
    world.tick()
    world.run(2400.0)
    pauses = [at_s for at_s, kind, _ in world.sent if kind == "pause"]
    assert world.kinds() == ["pause", "resume"] * 2
    assert max(later - sooner for sooner, later in pairwise(pauses[:3])) <= 240.0
    assert not world.memory.neighbours.verdicts
    assert "found nothing" in world.notes()["neighbour_unconfirmed"]


@pytest.mark.parametrize(
    ("columns", "found", "words"),
    [
        ({"pausing": int(Pausing.NONE)}, {}, "takes no pauses"),
        ({"excluded": True}, {}, "opted out"),
        ({"preemptible": False}, {}, "protected"),
        ({"slo_class": int(SloClass.LATENCY_CRITICAL)}, {}, "protected"),
        ({}, {"suspect": "", "suspect_uid": ""}, "no workload of the view"),
        ({}, {"suspect": "gone", "suspect_uid": "gone"}, None),
        ({}, {"victim": "gone", "victim_uid": "gone"}, None),
        ({}, {"now_ratio": 1.1}, None),  # it has passed
        ({}, {"rise_ratio": nan}, None),
        ({}, {"rise_ratio": 0.9}, None),
    ],
)
def test_what_cannot_be_confirmed_is_noted_and_left_alone(
    columns: dict[str, Any], found: dict[str, Any], words: str | None
) -> None:
    """Nothing is paused or stopped; a suspect or a victim that left is not even noted."""
    world = Noisy(found=(record(**found),))
    world.change("suspect", **columns)
    world.run(120.0)
    assert world.sent == []
    told = world.notes().get("neighbour_unconfirmed")
    assert told is None if words is None else words in str(told)


@pytest.mark.parametrize("who", ["suspect", "victim"])
def test_a_trial_ends_when_one_of_them_is_gone(who: str) -> None:
    """Without a verdict; a suspect that stays goes on."""
    world = Noisy()
    world.tick()
    world.tick(60.0)
    del world.work[who]
    world.run(180.0)
    assert not world.memory.neighbours.trials
    assert not world.memory.neighbours.verdicts
    assert world.kinds() == (["pause"] if who == "suspect" else ["pause", "resume"])


def test_of_two_suspects_one_is_tried_after_the_other() -> None:
    """The more likely one first; the second once the first is cleared."""
    other = record(suspect="other", suspect_uid="other", confidence=0.4)
    world = Noisy(found=(other, record(confidence=0.45)), shape="2x3")
    world.work["other"] = holds("other", 1, [2], pausing=int(Pausing.ABLE), checkpoint_on_request=True)
    world.tick()
    world.tick(60.0)
    assert {name for _, _, name in world.sent} == {"suspect"}
    world.run(600.0)
    assert [name for _, kind, name in world.sent if kind == "pause"][-1] == "other"


@pytest.mark.parametrize("answer", [OutcomeKind.FAILED, OutcomeKind.CONFLICT])
def test_a_pause_that_fails_ends_the_trial(answer: OutcomeKind) -> None:
    """It is not asked for without end, and nothing is learned."""
    world = Noisy(answer=answer)
    world.tick()
    world.run(3600.0, every_s=300.0)
    assert len([kind for _, kind, _ in world.sent if kind == "pause"]) <= 5
    assert not world.memory.neighbours.verdicts
    assert not world.memory.neighbours.pairs


def test_a_restart_of_the_controller_during_a_pause_goes_on_with_it() -> None:
    """Its detector has forgotten: the trial ends without a verdict, and the work goes on."""
    world = Noisy()
    world.tick()
    world.tick(60.0)
    world.found = ()
    world.run(900.0)
    assert world.kinds() == ["pause", "resume"]
    assert not world.memory.neighbours.verdicts


def test_a_confirmed_suspect_without_another_place_goes_on_after_a_while() -> None:
    """The note says what a person may do."""
    world = Noisy(shape="1x2")
    world.tick()
    world.tick(60.0)
    world.found = recovered()
    world.run(180.0)
    assert "no move is allowed" in world.notes()["neighbour_confirmed"] or "another place" in str(world.notes())
    world.run(900.0)
    assert world.kinds() == ["pause", "resume"]


@pytest.mark.parametrize(("mode", "sent"), [(Mode.RECOMMEND, False), (Mode.APPROVE, False), (Mode.AUTO, True)])
def test_its_mode_says_whether_it_acts(mode: Mode, sent: bool) -> None:
    """The proposal is there in each, with its words."""
    world = Noisy(policy=with_policy(AUTO, modes={"isolate": mode}))
    step = world.tick()
    (proposal,) = [each for each in step.decision.plan.proposals if each.kind == "pause"]
    assert bool(world.sent) == sent
    words = "pause it for 10 min to see whether victim recovers: it takes 1.5 times as long since this came beside it"
    assert words in proposal_words(proposal)


@pytest.mark.parametrize(("rise", "sent"), [(1.1, []), (1.5, ["pause"])])
def test_a_gang_on_shares_is_no_victim_while_it_is_as_slow_as_was_predicted(rise: float, sent: list[str]) -> None:
    """Sharing costs that; what is slower than that by 0.15 of its rate alone is not part of it."""
    found = record(measure=Measure.RATE, nearness=Nearness.GPU, rise_ratio=rise, now_ratio=rise)
    world = Noisy(found=(found,), shape="2x1", on={0: SLICED})
    able = {"pausing": int(Pausing.ABLE), "checkpoint_on_request": True}
    world.work = {name: sits(name, [0], **able) for name in ("victim", "suspect")}
    snap = shared(world.shape, list(world.work.values()), world.on)
    world.memory = known(snap, NOW_S)
    world.tick()
    assert world.kinds() == sent


def test_metrics_count_the_victims_by_what_is_known_of_the_suspect() -> None:
    """Without a report there is no series, and what was cleared or has passed counts no more."""

    def counted(step: Step) -> dict[str, float]:
        out = Samples()
        put_neighbours(out, world.seen, step.memory)
        return {labels[1]: value for labels, value in out.values.get("pool_disturbed_workloads", {}).items() if value}

    world = Noisy()
    world.change("suspect", pausing=int(Pausing.NONE))
    assert counted(world.tick()) == {"suspected": 1.0}
    world.change("suspect", pausing=int(Pausing.ABLE))
    assert counted(world.tick(60.0)) == {"paused": 1.0}
    world.run(480.0)
    assert counted(world.tick(60.0)) == {}
    world.found = recovered()
    assert counted(world.tick(60.0)) == {}
    world.found = ()
    assert counted(world.tick(60.0)) == {}


def test_the_story_names_who_is_slowed_by_whom_and_how_far_that_is_known() -> None:
    """Of the victim and of the suspect."""
    world = Noisy()
    world.tick()
    step = world.tick(60.0)
    told = {name: "; ".join(tell(name, world.seen, step.decision, memory=step.memory)) for name in world.work}
    words = "it takes 1.50 times as long since, 1.50 times now (it is paused for that)"
    assert f"slowed by suspect on the same node: {words}" in told["victim"]
    assert "suspected to slow victim on the same node" in told["suspect"]


def test_a_gang_whose_rate_falls_is_moved_where_that_costs_less() -> None:
    """It has just begun, and the suspect never saves."""
    move = after_pause(200.0, 1.0, VICTIM_MOVES).instructions
    assert [(each.kind, each.subject.name) for each in move] == [("evict", "victim"), ("pause", "suspect")]
