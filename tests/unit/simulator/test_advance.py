"""Advance reservations: read from the cluster file, drained for, held for their queue, released when unused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.model.errors import InputError
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import NoteCode, Observation
from autopilot.core.model.snapshot import AdvanceTable, QueueTable, make
from simulator.specs.advance_spec import advance_table
from simulator.specs.clusterfile import parse_cluster
from tests.kits.core_world import (
    Item,
    decide,
    evicted,
    holds,
    observe,
    queue_tree,
    snapshot,
    started,
    waits,
    why_waits,
    with_policy,
)
from tests.kits.instructions import asked
from tests.kits.ticking_world import EAGER, tenants

FROM_S, GRACE_S = 10_000.0, 1800.0
TREE = queue_tree(("owner", 0, -1), ("guest", 0, -1), ("team", 1, -1))
PATIENT: Policy = with_policy(EAGER, preemption={"time_sharing": False})


def seen(
    work: list[Item],
    now_s: float,
    *,
    gpus: int = 8,
    shape: str = "2x8",
    total_s: Mapping[str, float] | None = None,
    model: int = 0,
    queue: int = 1,
    queues: QueueTable = TREE,
) -> Observation:
    """What is observed while 8 GPUs are reserved for the owner from 10,000 s on."""
    table = make(
        AdvanceTable,
        id=["launch"],
        queue=[queue],
        gpu_model=[model],
        gpus=[gpus],
        start_s=[FROM_S],
        grace_s=[GRACE_S],
    )
    snap = replace(snapshot(shape, work, queues=queues), advance=table)
    return observe(snap, now_s, total_s=total_s)


# --- draining ---------------------------------------------------------------------------------------


def test_work_that_would_outlive_the_start_finds_only_what_is_spare() -> None:
    """Sixteen GPUs, eight reserved: one long job starts, the second waits and is told why."""
    work = [waits("a", 8, queue=2, submit_s=0.0), waits("b", 8, queue=2, submit_s=1.0)]
    observation = seen(work, 5000.0, total_s={"a": 9000.0, "b": 9000.0})
    step = decide(observation, PATIENT)
    assert list(started(step)) == ["a"]
    assert why_waits(step, observation, "b")[0] == "reserved"


def test_work_that_ends_before_may_use_them() -> None:
    """Backfill: its quantile ends before 10,000 s."""
    work = [waits("a", 8, queue=2, submit_s=0.0), waits("b", 8, queue=2, submit_s=1.0)]
    step = decide(seen(work, 5000.0, total_s={"a": 4000.0, "b": 4000.0}), PATIENT)
    assert sorted(started(step)) == ["a", "b"]


def test_preemptible_work_of_unknown_length_gives_way_when_it_is_due() -> None:
    """It starts in the gap, marked; at the start it is evicted, and not a second before."""
    work = [holds("x", 8, range(8), queue=2), waits("b", 8, queue=2)]
    step = decide(seen(work, 5000.0), PATIENT)
    (effect,) = step.instructions
    assert (effect.subject.name, asked(effect, AdmitOperation).backfill) == ("b", True)
    marked = [holds("x", 8, range(8), queue=2), holds("b", 8, range(8, 16), queue=2, backfilled=True)]
    assert evicted(decide(seen(marked, FROM_S - 1.0), PATIENT)) == []
    due = decide(seen(marked, FROM_S), PATIENT)
    (told,) = due.instructions
    assert (told.subject.name, told.operation.takes) == ("b", "backfill")


def test_unknown_work_that_may_not_be_preempted_stays_out() -> None:
    """No work could be preempted for it."""
    work = [holds("x", 8, range(8), queue=2), waits("b", 8, queue=2, preemptible=False)]
    assert started(decide(seen(work, 5000.0), PATIENT)) == {}


def test_long_before_nothing_is_held() -> None:
    """Draining begins `advance_lead_s` before; that moment is a timer."""
    policy = with_policy(PATIENT, reservation={"advance_lead_s": 1000.0})
    work = [waits("a", 16, queue=2)]
    early = decide(seen(work, 5000.0, total_s={"a": 90_000.0}), policy)
    assert list(started(early)) == ["a"]
    assert decide(seen([], 5000.0), policy).wake_at_s == 9000.0
    assert started(decide(seen(work, 9000.0, total_s={"a": 90_000.0}), policy)) == {}


def note_of(step: Step) -> tuple[str, str, list[object]]:
    """The one note of a decision: code, subject, values of its facts."""
    (note,) = step.decision.notes
    return note.code, note.subject, [fact.value for fact in note.facts]


# --- the time itself --------------------------------------------------------------------------------


def test_the_gpus_idle_for_the_owner_and_then_are_released() -> None:
    """From the start on others wait; the work of the queue, and of a queue below it, starts; after the grace all do."""
    guest = [holds("x", 8, range(8), queue=2), waits("g", 8, queue=2, submit_s=0.0)]
    held = decide(seen(guest, FROM_S + 60.0), PATIENT)
    assert started(held) == {}
    assert note_of(held) == (NoteCode.ADVANCE_HELD, "launch", [8, 0])
    for queue in (1, 3):
        both = [*guest, waits("o", 8, queue=queue, submit_s=5000.0)]
        step = decide(seen(both, FROM_S + 60.0), PATIENT)
        assert list(started(step)) == ["o"]
        assert not asked(step.instructions[-1], AdmitOperation).backfill
    assert list(started(decide(seen(guest, FROM_S + GRACE_S), PATIENT))) == ["g"]


@pytest.mark.parametrize("now_s", [5000.0, FROM_S + 60.0], ids=["before its time", "at its time"])
@pytest.mark.parametrize(
    ("owner", "guest", "starts"),
    [(0, 8, ["g"]), (4, 8, []), (4, 4, ["h"]), (8, 8, []), (0, 0, [])],
    ids=["all is above its guarantee", "half is", "half is owed", "none is", "none is owed"],
)
def test_above_the_guarantee_of_its_queue_it_gives_way_to_what_is_owed(
    owner: int, guest: int, starts: list[str], now_s: float
) -> None:
    """Eight GPUs are left, and all are reserved; the guest has two gangs, of eight and of four."""
    work = [holds("x", 8, range(8), queue=3), waits("g", 8, queue=2, submit_s=0.0)]
    work.append(waits("h", 4, queue=2, submit_s=1.0, gpus_per_member=4))
    if guest == 8 and owner == 4:
        work.pop()
    queues = tenants(("owner", 0, owner), ("guest", 0, guest), ("team", 0, 0))
    total_s = {"x": 1e6, "g": 1e6, "h": 1e6}
    assert list(started(decide(seen(work, now_s, total_s=total_s, queues=queues), PATIENT))) == starts


def test_what_the_owner_holds_already_counts() -> None:
    """Six of the eight are its own: two are held, and the guest has the rest."""
    work = [
        holds("o", 6, range(6), queue=1, gpus_per_member=6),
        waits("g", 8, queue=2),
        waits("h", 1, queue=2),
    ]
    step = decide(seen(work, FROM_S + 60.0), PATIENT)
    assert started(step) == {"g": ["node-1"] * 8}


def test_nobody_is_evicted_but_backfill_and_that_is_said() -> None:
    """What still runs there is in the way: eight are reserved, none is free."""
    work = [holds("x", 8, range(8), queue=2), holds("y", 8, range(8, 16), queue=2)]
    step = decide(seen(work, FROM_S), PATIENT)
    assert evicted(step) == []
    assert note_of(step) == (NoteCode.ADVANCE_NOT_FREE, "launch", [8, 8])


def test_the_nodes_stay_the_same_from_tick_to_tick() -> None:
    """Another node that comes free does not move the reservation."""
    first = decide(seen([holds("x", 8, range(8), queue=2)], 5000.0, total_s={"x": 90_000.0}), PATIENT)
    assert first.memory.plan.advance == {"launch": ("node-1",)}
    again = decide(seen([], 5100.0), PATIENT, first.memory)
    assert again.memory.plan.advance == {"launch": ("node-1",)}
    assert decide(seen([], 5100.0), PATIENT, ControllerMemory()).memory.plan.advance == {"launch": ("node-0",)}


def test_it_is_no_reservation_of_a_gang() -> None:
    """It counts neither against the depth nor among the promises of the plan."""
    step = decide(seen([], 5000.0), PATIENT)
    assert step.decision.plan.reservations == ()


def test_another_model_is_not_held() -> None:
    """The nodes are of model 0; a reservation of model 1 finds none and holds nothing."""
    step = decide(seen([waits("a", 16, queue=2)], FROM_S, model=1), PATIENT)
    assert list(started(step)) == ["a"]


# --- the file ---------------------------------------------------------------------------------------

POOLS = (
    "pools: [{name: a, nodes: 2, gpus_per_node: 8, gpu_model: H100-80GB}]\nqueues: [{name: q, limit: 12}, {name: r}]\n"
)


def read(folder: Path, text: str) -> Any:
    """A cluster file with these reservations."""
    path = folder / "cluster.yaml"
    path.write_text(f"{POOLS}reservations: {text}\n", encoding="utf-8")
    return parse_cluster(path)


def test_a_file_reserves_for_a_queue_and_becomes_a_table(tmp_path: Path) -> None:
    """Durations in words; the grace has a default."""
    text = (
        "[{name: a, queue: r, gpu_model: H100-80GB, gpus: 16, from: 9h, grace: 10m}, {name: b, queue: q, "
        "gpu_model: H100-80GB, gpus: 8, from: 0}]"
    )
    cluster = read(tmp_path, text)
    assert [(each.start_s, each.grace_s, each.gpus) for each in cluster.advance] == [
        (32_400.0, 600.0, 16),
        (0.0, 1800.0, 8),
    ]
    table = advance_table(cluster.advance, ["root", "q", "r"], ["A100-80GB", "H100-80GB"])
    assert (table.queue.tolist(), table.gpu_model.tolist(), table.start_s.tolist()) == (
        [2, 1],
        [1, 1],
        [32_400.0, 0.0],
    )
    assert len(advance_table((), [], []).id) == 0


ONE = "name: a, queue: r, gpu_model: H100-80GB, gpus: 8, from: 9h"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[{queue: r, gpu_model: H100-80GB, gpus: 8, from: 9h}]", ["reservations[0].name", "is missing"]),
        (f"[{{{ONE}}}, {{{ONE}}}]", ["reservations[1].name", "twice"]),
        ("[{name: a, queue: x, gpu_model: H100-80GB, gpus: 8, from: 9h}]", ["reservations[0].queue", "'x'", "q, r"]),
        ("[{name: a, queue: r, gpu_model: T4, gpus: 8, from: 9h}]", ["reservations[0].gpu_model", "no pool has"]),
        (
            "[{name: a, queue: r, gpu_model: H100-80GB, gpus: 17, from: 9h}]",
            ["reservations[0].gpus", "17", "from 1 to 16"],
        ),
        ("[{name: a, queue: r, gpu_model: H100-80GB, gpus: 0, from: 9h}]", ["reservations[0].gpus", "0"]),
        (
            "[{name: a, queue: q, gpu_model: H100-80GB, gpus: 13, from: 9h}]",
            ["reservations[0].gpus", "queue q may hold 12"],
        ),
        ("[{name: a, queue: r, gpu_model: H100-80GB, gpus: 8}]", ["reservations[0].from", "is missing"]),
        ("[{name: a, queue: r, gpu_model: H100-80GB, gpus: 8, from: -1}]", ["reservations[0].from"]),
        ("[{name: a, queue: r, gpu_model: H100-80GB, gpus: 8, from: soon}]", ["reservations[0].from", "soon"]),
        (
            f"[{{{ONE}}}, {{name: b, queue: r, gpu_model: H100-80GB, gpus: 9, from: 9h15m}}]",
            ["reservations[1].gpus", "17 x H100-80GB", "the cluster has 16"],
        ),
        (f"[{{{ONE}, colour: red}}]", ["reservations[0].colour", "no such field"]),
    ],
)
def test_a_mistake_in_a_reservation_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    """File, field, value and what is allowed stand in one message."""
    with pytest.raises(InputError) as error:
        read(tmp_path, text)
    for word in words:
        assert word in str(error.value)


def test_reservations_one_after_the_other_may_each_take_all(tmp_path: Path) -> None:
    """The second begins when the grace of the first is over."""
    text = (
        f"[{{{ONE.replace('gpus: 8', 'gpus: 16')}}}, "
        f"{{name: b, queue: r, gpu_model: H100-80GB, gpus: 16, from: 9h30m}}]"
    )
    assert len(read(tmp_path, text).advance) == 2
