"""Facts that are kept while their inputs stay: kept equals fresh, and a row with a wrong list of inputs is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.decision.intake_facts import IntakeFacts
from autopilot.core.decision.reconciler import reconcile
from autopilot.core.facts.table import Kept, Table, fact, root, rows_of
from autopilot.core.idle.facts import IdleFacts
from autopilot.core.intake.usage.facts import SnapshotFacts
from autopilot.core.intake.usage.parts import parts_of
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Command, CommandKind, Observation, View
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.planning.facts import Facts
from autopilot.core.sharing.facts import SharingFacts
from autopilot.records.replay.unequal import first_unequal
from tests.kits.core_world import AUTO, holds, observe, snapshot, waits, with_policy
from tests.kits.usage_world import measured

Given = tuple[Observation, ControllerMemory, Policy]
Rows = Callable[[Given, Kept], Table]

IDLE = {"sm_active_ratio": [0.0] * 8, "power_w": [80.0] * 8}
BUSY = {"sm_active_ratio": [0.7] * 8, "power_w": [500.0] * 8}
KILL = Command(CommandKind.KILL, "ann", 0.0, sequence=1)
WORK = (
    (holds("a", 4, start_s=0.0), waits("b", 4), waits("c", 8)),
    (holds("a", 2, start_s=0.0), holds("b", 4, start_s=50.0), waits("c", 8)),
    (holds("b", 8, start_s=90.0), waits("a", 2), waits("c", 1)),
)


def work(given: Given, number: int) -> Given:
    """Other work on the same machines."""
    seen, memory, policy = given
    snap = snapshot("2x4", WORK[number % 3])
    now = replace(snap, nodes=seen.snapshot.nodes, gpus=seen.snapshot.gpus, telemetry=seen.snapshot.telemetry)
    return replace(seen, snapshot=now), memory, policy


def telemetry(given: Given, number: int) -> Given:
    """Other telemetry."""
    seen, memory, policy = given
    return replace(seen, snapshot=measured(seen.snapshot, (IDLE, BUSY)[number % 2])), memory, policy


def machines(given: Given, number: int) -> Given:
    """A GPU that fails or is repaired, or a node that is closed."""
    seen, memory, policy = given
    healthy, cordoned = np.ones(8, np.bool_), np.zeros(2, np.bool_)
    healthy[number % 8], cordoned[number % 2] = number % 3 == 0, number % 5 == 0
    snap = seen.snapshot
    gpus, nodes = replace(snap.gpus, healthy=healthy), replace(snap.nodes, cordoned=cordoned)
    return replace(seen, snapshot=replace(snap, gpus=gpus, nodes=nodes)), memory, policy


def time(given: Given, number: int) -> Given:
    """Time passes, or the clock is set."""
    seen, memory, policy = given
    return replace(seen, now_s=seen.now_s + (30.0, 700.0, -400.0)[number % 3], elapsed_s=30.0), memory, policy


def people(given: Given, number: int) -> Given:
    """A command, or a view with fewer objects."""
    seen, memory, policy = given
    views = (View("api", "work", number % 3 > 0, seen.now_s, 10 + number, 10, 0),)
    return replace(seen, commands=(KILL,) * (number % 2), views=views), memory, policy


def rules(given: Given, number: int) -> Given:
    """Another policy."""
    seen, memory, _ = given
    changes: tuple[dict[str, Any], ...] = (
        {"freshness": {"telemetry_s": 1.0}},
        {"reservation": {"depth": 1}, "protection": {"min_runtime_s": 10.0}},
        {"preemption": {"grace_s": 5.0, "saves_prior": 0.9}, "placement": {"spot_saves": True}},
    )
    return seen, memory, with_policy(AUTO, **changes[number % 3])


def tick(given: Given, _: int) -> Given:
    """The memory of a decision."""
    seen, memory, policy = given
    return replace(seen, tick=seen.tick + 1), reconcile(memory, seen, policy).memory, policy


CHANGES = (work, telemetry, machines, time, people, rules, tick)
START: Given = (observe(snapshot("2x4", WORK[0]), 1000.0), ControllerMemory(), AUTO)
steps = st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 30)), min_size=2, max_size=8)


def intake(given: Given, kept: Kept) -> Table:
    """What is asked before planning."""
    observation, memory, policy = given
    return IntakeFacts(memory, observation, policy, kept)


def seen(given: Given, kept: Kept) -> SnapshotFacts:
    """What is asked of the snapshot."""
    return SnapshotFacts(observation=given[0], policy=given[2], kept=kept)


def planning(given: Given, kept: Kept) -> Facts:
    """What planning asks. Work that holds GPUs may have an effect under way."""
    observation, memory, policy = given
    busy = frozenset({0} if observation.tick % 2 else ())
    return Facts(observation=observation, policy=policy, kept=kept, recalled=memory, busy=busy)


def idle(given: Given, kept: Kept) -> IdleFacts:
    """What is asked of idle work."""
    return IdleFacts(observation=given[0], policy=given[2], kept=kept, recalled=given[1])


def sharing(given: Given, kept: Kept) -> SharingFacts:
    """What is asked of work on shared GPUs."""
    return SharingFacts(observation=given[0], policy=given[2], kept=kept, recalled=given[1])


TABLES: tuple[Rows, ...] = (intake, seen, planning, idle, sharing)


def plain(value: Any) -> Any:
    """A value that can be compared: of a what-if its columns, without the answers that it remembers."""
    if not isinstance(value, WhatIf):
        return value
    return {name: each for name, each in vars(value).items() if not name.startswith("_") and name != "suited"}


def differs(table: Rows, changes: list[tuple[Callable[[Given, int], Given], int]]) -> str:
    """The first fact that is not as it would be computed anew after one of these changes; "" where all are."""
    given, kept = START, Kept()
    for change, number in changes:
        given = change(given, number)
        ours, fresh = table(given, kept), table(given, Kept())
        for name in rows_of(type(ours)):
            found = first_unequal(plain(getattr(ours, name)), plain(getattr(fresh, name)), name)
            if found is not None:
                return name
    return ""


@pytest.mark.parametrize("table", TABLES, ids=lambda each: each.__name__)
@given(changes=steps)
@settings(max_examples=15)
def test_a_kept_fact_equals_a_fresh_one(table: Rows, changes: list[tuple[Callable[[Given, int], Given], int]]) -> None:
    """After any changes of work, telemetry, machines, time, commands, policy and memory."""
    assert differs(table, changes) == ""


@given(changes=steps)
@settings(max_examples=15)
def test_no_decision_depends_on_what_is_kept_or_changes_it(
    changes: list[tuple[Callable[[Given, int], Given], int]],
) -> None:
    """A decision on kept facts is that on fresh ones, and each kept value is still what its function answers."""
    given, kept = START, Kept()
    for change, number in changes:
        given = change(given, number)
        observation, memory, policy = given
        ours, fresh = reconcile(memory, observation, policy, kept=kept), reconcile(memory, observation, policy)
        assert first_unequal(ours, fresh, "step") is None
        for row, (inputs, value) in kept.values.items():
            assert first_unequal(plain(value), plain(row.function(*inputs)), row.name) is None


LATEST: list[ClusterSnapshot] = []


def _gpus_alone(own: SnapshotFacts) -> Any:
    LATEST[:] = [own.observation.snapshot]
    return own.observation.snapshot.gpus


@dataclass(frozen=True, kw_only=True)
class Planted(SnapshotFacts):
    """A row that reads placements and names the GPUs as its only input."""

    _gpus = root(_gpus_alone)
    wrong_inputs = fact(lambda _: parts_of(LATEST[0]), _gpus)


def test_a_planted_wrong_list_of_inputs_is_found() -> None:
    """Other work on the same GPUs shows it; where nothing changes, it cannot be seen."""

    def planted(given: Given, kept: Kept) -> Table:
        return Planted(observation=given[0], policy=given[2], kept=kept)

    assert differs(planted, [(work, 1), (work, 1), (time, 0), (work, 2)]) == "wrong_inputs"
    assert differs(seen, [(work, 1), (work, 1), (time, 0), (work, 2)]) == ""


def test_a_fact_is_computed_once_for_the_same_inputs() -> None:
    """Two tables with one `Kept` share values; a number counts as the same where it is equal."""
    kept = Kept()
    one, two = seen(START, kept), seen((replace(START[0], tick=9), *START[1:]), kept)
    assert one.doubts is two.doubts
    other = seen(rules(START, 0), kept)
    assert other.parts is one.parts
    assert other.doubts is not one.doubts
