"""GPUs kept for replicas that a forecast calls for soon: how many, from which work, and on which forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from autopilot.core.model.forecast import Forecast
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.memory.replicas import ReplicasMemory
from autopilot.core.model.policy import Mode, Modes
from autopilot.core.model.records import NoteCode, Observation
from autopilot.core.model.snapshot import ClusterSnapshot, QueueTable
from autopilot.core.sharing_time.resize_members import ResizeOperation
from tests.kits.core_world import AUTO, Item, decide, holds, observe, snapshot, started, waits, why_waits, with_policy
from tests.kits.demand_world import LEARNED, forecast, serving
from tests.kits.instructions import asked
from tests.kits.story_kit import story
from tests.kits.ticking_world import tenants

NOW_S = 5000.0
EVERY = {f.name: Mode.AUTO for f in fields(Modes)}
ACTING = with_policy(AUTO, modes=EVERY, reservation={"depth": 0}, backfill={"level": 0.9})
REPLICA: dict[str, Any] = {"queue": 1, "service": 0, "preemptible": False}
FOUR = {"chat": (7.0, 20.0, 30.0)}  # two requests/s a replica
TWO_QUEUES = tenants(("web", 0, 16), ("batch", 0, 0))


def seen(
    *demand: Forecast,
    wide: int = 5,
    run_s: float = 7200.0,
    shape: str = "1x8",
    per_replica: int = 1,
    queues: QueueTable = TWO_QUEUES,
    others: Sequence[Item] = (),
    preemptible: bool = False,
    **columns: Any,
) -> Observation:
    """Two replicas serve, and a batch gang waits that would take `wide` GPUs for `run_s`, before `others`."""
    at = [range(per_replica), range(per_replica, 2 * per_replica)]
    replica = REPLICA | {"preemptible": preemptible}
    work = [
        holds(f"chat/{number}", per_replica, at[number], gpus_per_member=per_replica, **replica) for number in (0, 1)
    ]
    work += [waits("b", wide, queue=2, gpus_per_member=1, submit_s=NOW_S - 10.0), *others]
    snap = snapshot(shape, work, queues=queues)
    made = demand or (forecast(FOUR, NOW_S),)
    total_s = {"b": run_s} | {each.id: run_s for each in others}
    return serving(observe(snap, NOW_S, total_s=total_s), *made, queue=[1], **columns)


def told(observation: Observation, **policy: Any) -> Step:
    """One decision with what was learned before."""
    return decide(
        observation, with_policy(ACTING, **policy), ControllerMemory(replicas=ReplicasMemory(services=LEARNED))
    )


PAIR = ("chat", "code")


def told_of_two(snap: ClusterSnapshot, **columns: Any) -> Step:
    """The same for two services that need four replicas each, at two requests/s."""
    twice: dict[str, Any] = {"id": PAIR, "uid": PAIR, "replicas": [2, 2], "needed_replicas": [2, 2]}
    twice |= {name: [value] * 2 for name, value in {"objective_s": 10.0, "age_s": 0.0, "ready_replicas": 2}.items()}
    twice |= {name: [value] * 2 for name, value in {"min_replicas": 1, "max_replicas": 20, "generation": 7}.items()}
    twice |= {"recent_rps": [np.nan] * 2} | columns
    made = forecast(dict.fromkeys(PAIR, FOUR["chat"]), NOW_S)
    return decide(
        serving(observe(snap, NOW_S), made, **twice),
        ACTING,
        ControllerMemory(replicas=ReplicasMemory(services=dict.fromkeys(PAIR, LEARNED["chat"]))),
    )


def kept(step: Step) -> float:
    """GPUs that the note names; 0 without a note."""
    notes = [note for note in step.decision.notes if note.code == NoteCode.REPLICAS_HELD]
    return sum(float(each.value) for note in notes for each in note.facts if each.name == "gpus")


def test_work_that_would_outlive_it_leaves_gpus_to_replicas_that_are_expected() -> None:
    """Seven requests/s are as likely as not: four replicas, two of them not there yet."""
    step = told(seen())
    assert started(step) == {}
    assert kept(step) == 2
    assert list(started(told(seen(wide=4)))) == ["b"]


def test_the_hold_is_the_reason_and_not_that_nothing_may_be_preempted() -> None:
    """Without the hold it would start. The replicas that run are protected, and that is no reason."""
    known = seen()
    assert why_waits(told(known), known, "b")[0] == "reserved"
    unknown = seen(run_s=np.nan)
    step = told(unknown, modes=EVERY | {"backfill": Mode.OFF})
    assert why_waits(step, unknown, "b")[0] == "runtime_unknown"


def test_work_that_ends_before_may_use_them() -> None:
    """At the backfill level it ends within the 10 minutes of the longest horizon."""
    assert list(started(told(seen(run_s=300.0)))) == ["b"]


def test_the_replicas_themselves_may_use_them() -> None:
    """One of the two that are expected waits already."""
    work = [holds(f"chat/{number}", 1, [number], **REPLICA) for number in (0, 1)]
    work += [waits("chat/2", 1, **REPLICA), waits("b", 5, queue=2, gpus_per_member=1)]
    snap = snapshot("1x8", work, queues=TWO_QUEUES)
    observation = serving(
        observe(snap, NOW_S, total_s={"b": 7200.0}), forecast(FOUR, NOW_S), queue=[1], replicas=[3], needed_replicas=[3]
    )
    assert list(started(told(observation))) == ["chat/2"]


@pytest.mark.parametrize(
    ("more", "gpus"),
    [({"max_replicas": [3]}, 1), ({"max_replicas": [2]}, 0), ({"age_s": [1e9]}, 0)],
    ids=["its maximum", "at its maximum", "the load is unknown"],
)
def test_no_more_is_kept_than_the_service_may_have(more: dict[str, Any], gpus: int) -> None:
    """Nor anything while its present load is unknown."""
    step = told(seen(**more))
    assert kept(step) == gpus
    assert list(started(step)) == ([] if gpus > 1 else ["b"])


@pytest.mark.parametrize(
    "policy",
    [
        {"modes": {"scale_ahead": Mode.RECOMMEND}},
        {"modes": {"make_room": Mode.APPROVE}},
        {"room": {"keep_s": 0.0}},
    ],
    ids=["floors are only recommended", "room waits for approval", "off"],
)
def test_nothing_is_kept_where_forecasts_of_demand_do_not_act(policy: dict[str, Any]) -> None:
    """Batch work starts as before."""
    step = told(seen(), **policy)
    assert kept(step) == 0
    assert list(started(step)) == ["b"]


@pytest.mark.parametrize(
    "doubt",
    [{"drifting": [True]}, {"outcomes": [[1000, 0]]}, {"made_s": NOW_S - 3600.0}],
    ids=["drifting", "unproven at the longest horizon", "stale"],
)
def test_nothing_is_kept_on_a_forecast_that_is_not_trusted(doubt: dict[str, Any]) -> None:
    """The horizon that room is kept for must be proven, not only that of the lead time."""
    columns: dict[str, Any] = {key: np.array(value) if key != "made_s" else value for key, value in doubt.items()}
    made = forecast(FOUR, columns.pop("made_s", NOW_S), **columns)
    assert kept(told(seen(made), scale_ahead={"lead_s": 60.0})) == 0


def test_nothing_is_stopped_for_a_hold_that_is_over() -> None:
    """The forecast is older than the time that room is kept for: backfilled work stays, and waiting work may start."""
    work = [holds(f"chat/{number}", 1, [number], **REPLICA) for number in (0, 1)]
    work += [holds("gap", 5, range(2, 7), queue=2, backfilled=True), waits("b", 1, queue=2)]
    snap = snapshot("1x8", work, queues=TWO_QUEUES)
    made = forecast(FOUR, NOW_S - 100.0)
    observation = serving(observe(snap, NOW_S, total_s={"b": 7200.0, "gap": 9e4}), made, queue=[1])
    assert started(told(observation)) == {}
    step = told(observation, room={"keep_s": 60.0})
    assert (kept(step), list(started(step))) == (0, ["b"])
    assert "evict" not in [each.kind for each in step.instructions]


def test_replicas_are_kept_whole_on_the_nodes_with_the_least_room() -> None:
    """A replica of three GPUs fits twice on the second node, and not on the two GPUs that are left on the first."""
    step = told(seen(wide=4, shape="2x8", per_replica=3))
    assert kept(step) == 6
    assert started(step)["b"].count("node-1") == 2  # the other two are on the rest of the first node


def test_a_node_that_is_free_stays_so() -> None:
    """The replicas are kept beside those that serve: a gang that takes a whole node has one."""
    work = [holds(f"chat/{number}", 1, [number], gpus_per_member=1, **REPLICA) for number in (0, 1)]
    work.append(waits("b", 8, queue=2, gpus_per_member=8))
    snap = snapshot("2x8", work, queues=TWO_QUEUES)
    step = told(serving(observe(snap, NOW_S, total_s={"b": 7200.0}), forecast(FOUR, NOW_S), queue=[1]))
    assert (kept(step), list(started(step))) == (2, ["b"])


def test_what_a_replica_finds_free_is_kept_too_where_it_does_not_fit_yet() -> None:
    """Four GPUs of a replica of six are free: the rest has to be made, and narrow work in between would leave too."""
    work = [
        holds("chat/0", 6, range(6), gpus_per_member=6, **REPLICA),
        holds("other", 4, range(8, 12), queue=2, gpus_per_member=4, preemptible=False),
        waits("b", 3, queue=2, gpus_per_member=1),
    ]
    snap = snapshot("2x8", work, queues=TWO_QUEUES)
    made = forecast({"chat": (3.0, 20.0, 30.0)}, NOW_S)
    columns: dict[str, Any] = {"queue": [1], "needed_replicas": [1], "replicas": [1], "ready_replicas": [1]}
    step = told(serving(observe(snap, NOW_S, total_s={"b": 7200.0, "other": 9e4}), made, **columns))
    assert (kept(step), started(step)) == (4, {})


def test_no_moves_make_room_on_what_is_kept() -> None:
    """A gang that fits only with the kept GPUs waits, also where it could displace other batch work for the rest."""
    work = [holds(f"chat/{number}", 1, [number], **REPLICA) for number in (0, 1)]
    work += [holds("small", 1, [2], queue=2), waits("wide", 6, queue=2, priority=5, gpus_per_member=6)]
    snap = snapshot("1x8", work, queues=TWO_QUEUES)
    observation = serving(
        observe(snap, NOW_S, total_s={"wide": 7200.0, "small": 9000.0}), forecast(FOUR, NOW_S), queue=[1]
    )
    assert [each.kind for each in told(observation).instructions] == ["scale"]


# --- beside guarantees ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queues", "gpus"),
    [
        (tenants(("web", 0, 3), ("batch", 0, 0)), 1),
        (tenants(("web", 0, 2), ("batch", 0, 0)), 0),
        (tenants(("web", 0, 8), ("batch", 0, 0), limit={"web": 3}), 1),
    ],
    ids=["a guarantee of three", "a guarantee that is used up", "a limit of three"],
)
def test_nothing_is_kept_for_replicas_that_quota_would_refuse(queues: QueueTable, gpus: int) -> None:
    """They may not be preempted, so they start within the guarantee of their queue only."""
    step = told(seen(queues=queues))
    assert kept(step) == gpus
    assert list(started(step)) == ["b"]


def test_services_of_a_queue_share_what_quota_lets_start() -> None:
    """Two more replicas of each are expected; the guarantee has room for three."""
    work = [
        holds(f"{name}/{at}", 1, [at + 2 * row], **REPLICA | {"service": row})
        for row, name in enumerate(PAIR)
        for at in (0, 1)
    ]
    snap = snapshot("2x8", work, queues=tenants(("web", 0, 7), ("batch", 0, 0)))
    assert kept(told_of_two(snap, queue=[1, 1])) == 3


def test_a_replica_uses_what_is_kept_for_it_beside_what_is_kept_for_another_queue() -> None:
    """Four GPUs are free on the node: two are kept for each of two queues, and a replica of the first waits."""
    work = [
        holds(f"{name}/{at}", 1, [at + 2 * row], **REPLICA | {"service": row, "queue": row + 1})
        for row, name in enumerate(PAIR)
        for at in (0, 1)
    ]
    work.append(waits("chat/2", 1, **REPLICA))
    snap = snapshot("1x8", work, queues=tenants(("web", 0, 4), ("code", 0, 4)))
    step = told_of_two(snap, queue=[1, 2], needed_replicas=[3, 2], replicas=[3, 2])
    assert (kept(step), list(started(step))) == (4, ["chat/2"])


LENT = tenants(("web", 0, 3), ("batch", 0, 5))


@pytest.mark.parametrize(("wide", "starts"), [(5, ["b"]), (6, [])], ids=["inside its guarantee", "above it"])
def test_above_the_guarantee_of_its_queue_room_gives_way_to_what_is_owed(wide: int, starts: list[str]) -> None:
    """Of six free GPUs two are kept for replicas that may be preempted, one of them within the guarantee."""
    step = told(seen(wide=wide, queues=LENT, preemptible=True))
    assert (kept(step), list(started(step))) == (2, starts)
    effects = [each for proposal in step.decision.plan.proposals for each in proposal.change.side_effects]
    loses = [(each.workload, each.queue, each.gpus) for each in effects]
    assert loses == [("expected replicas of chat", "web", 1.0)] * len(starts)


def test_what_borrows_leaves_all_that_is_kept() -> None:
    """The same gang, without a guarantee."""
    step = told(seen(queues=tenants(("web", 0, 3), ("batch", 0, 0)), preemptible=True))
    assert (kept(step), started(step)) == (2, {})


def test_room_gives_way_as_far_as_each_guarantee_goes() -> None:
    """Two GPUs are lent, four spare. `b` uses the guarantee of `c` up, and not that of `d`, whose turn comes last."""
    queues = tenants(("web", 0, 2), ("batch", 0, 3), ("lab", 0, 3), priority={"batch": 1})
    others = [
        waits("c", 3, queue=2, gpus_per_member=1, submit_s=NOW_S - 9.0),
        waits("d", 3, queue=3, gpus_per_member=1, submit_s=NOW_S - 8.0),
    ]
    step = told(seen(wide=3, queues=queues, preemptible=True, others=others))
    assert (kept(step), sorted(started(step))) == (2, ["b", "d"])


def test_what_is_owed_takes_other_room_first() -> None:
    """Six GPUs are free on the node of the replicas, two of them lent; the other node has eight."""
    work = [holds(f"chat/{number}", 1, [number], **REPLICA | {"preemptible": True}) for number in (0, 1)]
    work.append(waits("b", 5, queue=2, gpus_per_member=5))
    snap = snapshot("2x8", work, queues=tenants(("web", 0, 2), ("batch", 0, 8)))
    step = told(serving(observe(snap, NOW_S, total_s={"b": 7200.0}), forecast(FOUR, NOW_S), queue=[1]))
    assert (kept(step), set(started(step)["b"])) == (2, {"node-1"})


# --- beside elastic gangs -------------------------------------------------------------------------------


def elastic(*work: Item, queues: QueueTable = TWO_QUEUES, **replica: Any) -> Step:
    """Six GPUs are left by two replicas, and two more are expected; `work` runs or waits beside them."""
    every = [holds(f"chat/{number}", 1, [number], **REPLICA | replica) for number in (0, 1)]
    snap = snapshot("1x8", [*every, *work], queues=queues)
    total_s = {each.id: 7200.0 for each in work}
    return told(serving(observe(snap, NOW_S, total_s=total_s), forecast(FOUR, NOW_S), queue=[1]))


def narrow(name: str, least: int, most: int, **columns: Any) -> Item:
    """An elastic gang of the other queue that waits."""
    return waits(name, most, min_gpus=least, **{"queue": 2, "gpus_per_member": 1} | columns)


@pytest.mark.parametrize("least", [1, 3, 4])
def test_an_elastic_gang_takes_what_is_left_beside_them(least: int) -> None:
    """Four GPUs, whatever its least width: what it has been given at its turn is not in its way when it widens."""
    assert {name: len(at) for name, at in started(elastic(narrow("b", least, 6))).items()} == {"b": 4}


def test_elastic_gangs_share_what_is_left_beside_them() -> None:
    """Two of at least one and at most four get four together."""
    found = started(elastic(narrow("b", 1, 4), narrow("c", 1, 4)))
    assert (sorted(found), sum(map(len, found.values()))) == (["b", "c"], 4)


def test_gangs_that_grow_leave_what_is_kept() -> None:
    """Two run with one member of four. Four GPUs are free, and two of them are kept."""
    at: dict[str, Any] = {"queue": 2, "gpus_per_member": 1, "min_gpus": 1}
    step = elastic(holds("b", 4, [2], **at), holds("c", 4, [3], **at))
    wide = [len(asked(each, ResizeOperation).slots) for each in step.instructions if each.kind == "resize"]
    assert (kept(step), wide) == (2, [2, 2])


@pytest.mark.parametrize(("least", "gets"), [(3, 4), (5, 5)])
def test_members_above_a_guarantee_leave_what_is_kept(least: int, gets: int) -> None:
    """Two GPUs are lent, four spare. The guarantee is the least width of the gang, and it would take six."""
    queues = tenants(("web", 0, 2), ("batch", 0, least))
    step = elastic(narrow("b", least, 6), queues=queues, preemptible=True)
    assert (kept(step), {name: len(at) for name, at in started(step).items()}) == (2, {"b": gets})


def test_the_story_of_work_that_waits_for_what_is_kept_names_it() -> None:
    """It names the service whose replicas the GPUs are kept for, and says that their run time is unknown."""
    lines, _ = story(seen(), "b", ACTING, ControllerMemory(replicas=ReplicasMemory(services=LEARNED)))
    assert "not before what is reserved for expected replicas of chat (starts " in lines
