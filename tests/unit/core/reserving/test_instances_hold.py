"""MIG instances kept for replicas that a forecast calls for soon: how many, and from which work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import pytest

from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.memory.replicas import ReplicasMemory
from autopilot.core.model.policy import Mode, Modes
from autopilot.core.model.records import Code, NoteCode, Observation
from autopilot.core.model.snapshot import QueueTable
from tests.kits.core_world import AUTO, Item, decide, holds, observe, snapshot, started, waits, why_waits, with_policy
from tests.kits.demand_world import LEARNED, forecast, serving
from tests.kits.story_kit import story
from tests.kits.ticking_world import tenants

NOW_S = 5000.0
EVERY = {f.name: Mode.AUTO for f in fields(Modes)}
ACTING = with_policy(AUTO, modes=EVERY, reservation={"depth": 0}, backfill={"level": 0.9})
TWO_G: dict[str, Any] = {"mig_profile": 1}
REPLICA: dict[str, Any] = {"queue": 1, "service": 0, "preemptible": False} | TWO_G
FOUR = {"chat": (7.0, 20.0, 30.0)}  # two requests/s a replica
THREE = [("2g.20gb", start) for start in (0, 2, 4)]
QUEUES = tenants(("web", 0, 4), ("batch", 0, 0))


def seen(
    *work: Item,
    run_s: Mapping[str, float] | None = None,
    cuts: Mapping[int, Sequence[tuple[str, int]]] | None = None,
    replica: Mapping[str, Any] | None = None,
    nodes: Mapping[str, Sequence[Any]] | None = None,
    shape: str = "1x2",
    queues: QueueTable = QUEUES,
    **columns: Any,
) -> Observation:
    """Two replicas hold two of six instances; two more are expected."""
    every = [holds(f"chat/{number}", 1, [number], **REPLICA | dict(replica or {})) for number in (0, 1)]
    snap = snapshot(shape, [*every, *work], queues=queues, cuts=cuts or {0: THREE, 1: THREE}, nodes=nodes)
    return serving(observe(snap, NOW_S, total_s=run_s or {}), forecast(FOUR, NOW_S), queue=[1], **columns)


def told(observation: Observation, **policy: Any) -> Step:
    """One decision with what was learned before."""
    return decide(
        observation, with_policy(ACTING, **policy), ControllerMemory(replicas=ReplicasMemory(services=LEARNED))
    )


def kept(step: Step) -> list[tuple[float, str]]:
    """Instances that the notes name, with their profile."""
    found = [
        {each.name: each.value for each in note.facts}
        for note in step.decision.notes
        if note.code == NoteCode.INSTANCES_HELD
    ]
    return [(float(facts["instances"]), str(facts["profile"])) for facts in found]


def batch(count: int, name: str = "b", **more: Any) -> Item:
    """A gang of the other queue that waits for instances."""
    return waits(name, count, **({"queue": 2, "submit_s": NOW_S - 10.0} | TWO_G | more))


ALONE = {"preempt": Mode.OFF, "reclaim_borrowed": Mode.OFF}
LONG = {"b": 7200.0, "c": 7200.0}


def test_work_that_would_outlive_it_leaves_instances_to_replicas_that_are_expected() -> None:
    """Two of the four that are free are kept; the reason names them."""
    observation = seen(batch(3), run_s=LONG)
    step = told(observation, modes=ALONE)
    assert (started(step), kept(step)) == ({}, [(2.0, "2g.20gb")])
    assert why_waits(step, observation, "b") == (Code.RESERVED, 2.0, 3.0)
    assert list(started(told(seen(batch(2), run_s=LONG)))) == ["b"]


@pytest.mark.parametrize(("guaranteed", "starts"), [(3, ["b"]), (0, [])], ids=["owed", "borrowing"])
def test_above_the_guarantee_of_its_queue_it_gives_way_to_what_is_owed(guaranteed: int, starts: list[str]) -> None:
    """Of four free instances two are kept, one of them within the guarantee; a gang takes three and never four."""
    for count in (3, 4):
        queues = tenants(("web", 0, 3), ("batch", 0, guaranteed and count))
        observation = seen(batch(count), run_s=LONG, queues=queues, replica={"preemptible": True})
        step = told(observation, modes=ALONE)
        assert (kept(step), list(started(step))) == ([(2.0, "2g.20gb")], starts if count == 3 else [])
        effects = [each for proposal in step.decision.plan.proposals for each in proposal.change.side_effects]
        loses = [(each.workload, each.gpus) for each in effects]
        assert loses == [("expected replicas of chat", 1.0)] * len(started(step))


def test_gangs_that_start_use_up_what_is_left() -> None:
    """The second one waits."""
    step = told(seen(batch(1), batch(2, "c"), run_s=LONG))
    assert list(started(step)) == ["b"]


def test_work_that_ends_before_and_the_replicas_themselves_may_use_them() -> None:
    """At the backfill level the gang ends within the 10 minutes of the longest horizon."""
    assert list(started(told(seen(batch(4), run_s={"b": 300.0})))) == ["b"]
    new = waits("chat/2", 1, submit_s=NOW_S - 5.0, **REPLICA)
    columns: dict[str, Any] = {"replicas": [3], "needed_replicas": [3]}
    assert list(started(told(seen(new, batch(4), run_s=LONG, **columns)))) == ["chat/2"]


def test_instances_that_come_free_by_then_are_kept_in_their_place() -> None:
    """Two are in use for five more minutes: the two that are free now may be used."""
    soon = holds("s", 2, [4, 5], queue=2, **TWO_G)
    assert list(started(told(seen(soon, batch(2), run_s=LONG | {"s": 5300.0})))) == ["b"]
    assert started(told(seen(soon, batch(2), run_s=LONG | {"s": 9e4}))) == {}


def test_other_profiles_and_gpus_that_replicas_cannot_use_are_not_kept() -> None:
    """Replicas on A100 leave the instances of an H100 to others, also where their own are kept."""
    small = seen(batch(2, mig_profile=0), run_s=LONG, cuts={0: THREE, 1: [("1g.10gb", 0), ("1g.10gb", 1)]})
    assert list(started(told(small))) == ["b"]
    apart: dict[str, Any] = {"shape": "2x1", "nodes": {"gpu_model": [0, 1]}, "replica": {"gpu_models": 1}}
    step = told(seen(batch(3), run_s=LONG, **apart))
    assert (kept(step), started(step)) == ([(1.0, "2g.20gb")], {"b": ["node-1"] * 3})


@pytest.mark.parametrize(
    "policy",
    [{"modes": {"make_room": Mode.APPROVE}}, {"room": {"keep_s": 0.0}}],
    ids=["room waits for approval", "off"],
)
def test_nothing_is_kept_where_forecasts_of_demand_do_not_act(policy: dict[str, Any]) -> None:
    """Batch work starts as before."""
    step = told(seen(batch(4), run_s=LONG), **policy)
    assert (kept(step), list(started(step))) == ([], ["b"])


def test_work_does_not_move_onto_what_is_kept() -> None:
    """A gang of higher priority waits: the work in its way finds no other instance."""
    victim = holds("v", 1, [2], queue=2, **TWO_G)
    wide = batch(3, "b", priority=5)
    assert started(told(seen(victim, wide, run_s=LONG | {"v": 9e4}))) == {}


def test_what_is_kept_is_not_cut_for_others() -> None:
    """Both are on the GPU whose three instances would make room for a 3g.40gb; the other GPU is in use."""
    observation = seen(holds("x", 1, [2], queue=2, **TWO_G), batch(1, mig_profile=2), run_s=LONG | {"x": 9e4})
    assert "recut" not in [each.kind for each in told(observation).instructions]
    assert "recut" in [each.kind for each in told(observation, room={"keep_s": 0.0}).instructions]


def test_the_story_names_the_hold() -> None:
    """The explanation names the service, the held instances, and those left for other work."""
    observation = seen(batch(3), run_s=LONG)
    lines, _ = story(
        observation, "b", with_policy(ACTING, modes=ALONE), ControllerMemory(replicas=ReplicasMemory(services=LEARNED))
    )
    assert "expected replicas of chat: 2 MIG instances 2g.20gb on node-0" in lines
    assert "until then 2 MIG instances 2g.20gb of this profile stay for others" in lines
