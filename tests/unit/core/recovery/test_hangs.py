"""Gangs that do nothing: who is looked at, what is believed of the telemetry, and what holds a stop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autopilot.core.effects.evict import EvictOperation
from autopilot.core.model.codes import ConditionKind
from autopilot.core.model.memory import Step
from autopilot.core.model.memory.plan import Condition
from autopilot.core.model.policy import Mode, Policy
from autopilot.core.model.records import Code, Observation, Save
from autopilot.core.model.snapshot import State
from autopilot.core.recovery.hangs import doing_nothing
from autopilot.explain.notes import note_words
from tests.kits.core_world import decide, evicted, holds, observe, snapshot, waits, with_policy
from tests.kits.hang_world import fleet, measured, training
from tests.kits.instructions import asked
from tests.kits.ticking_world import EAGER


def notes(step: Step) -> list[str]:
    """What the decision says beside its plan."""
    return [note_words(note) for note in step.decision.notes]


WORKED = Condition(ConditionKind.WORKED, "g")


def conditions(step: Step) -> dict[Condition, float]:
    """The conditions that memory keeps, and since when they hold."""
    return {noted.condition: noted.since_s for noted in step.memory.plan.conditions}


# --- gangs that do nothing --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("active", "more", "nothing"),
    [
        pytest.param(dict.fromkeys(range(4), 0.0), {}, True, id="all idle"),
        pytest.param({0: 0.0, 1: 0.0, 2: 0.0, 3: 0.4}, {}, False, id="one of them works"),
        pytest.param(dict.fromkeys(range(3), 0.0), {}, False, id="one of them is busy"),
        pytest.param(dict.fromkeys(range(4), 0.0), {"dram": 0.3}, False, id="bound by memory"),
        pytest.param(dict.fromkeys(range(4), 0.0), {"dram": np.nan}, False, id="memory not measured"),
        pytest.param(dict.fromkeys(range(4), np.nan), {}, False, id="not measured"),
        pytest.param(dict.fromkeys(range(4), 0.0), {"age_s": 999.0}, False, id="stale"),
        pytest.param(dict.fromkeys(range(4), 0.0), {"samples": (2, 20)}, False, id="gaps in the window"),
        pytest.param(dict.fromkeys(range(4), 0.0), {"power_w": np.nan}, False, id="power not measured"),
        pytest.param(dict.fromkeys(range(4), 0.0), {"power_w": 250.0}, False, id="power of work"),
        pytest.param(dict.fromkeys(range(4), 0.0), {"links": 5e9}, False, id="links carry data"),
        pytest.param(dict.fromkeys(range(4), 0.0), {"links": np.nan, "pcie": np.nan}, True, id="no link measured"),
        pytest.param(dict.fromkeys(range(4), 0.0), {"pcie": 1e9}, False, id="loading or saving"),
        pytest.param(dict.fromkeys(range(4), 1.0), {}, True, id="spinning in a collective"),
        pytest.param(dict.fromkeys(range(4), 1.0), {"power_w": np.nan}, False, id="spinning, power not measured"),
        pytest.param(dict.fromkeys(range(4), 1.0), {"links": 1e9}, False, id="talking to others"),
        pytest.param(dict.fromkeys(range(4), 1.0), {"tensor": 0.3}, False, id="computing"),
        pytest.param(dict.fromkeys(range(4), 1.0), {"links": np.nan}, False, id="links not measured"),
    ],
)
def test_doing_nothing_needs_every_gpu_and_a_whole_window(
    active: dict[int, float], more: dict[str, Any], *, nothing: bool
) -> None:
    """Unknown values count in favour of the gang."""
    snap = measured(training(), active, **more).snapshot
    assert doing_nothing(snap, EAGER).tolist() == [nothing, False]


@pytest.mark.parametrize(
    "columns", [{"slo_class": 1}, {"service": 0}, {"excluded": True}, {"state": State.STARTING}], ids=str
)
def test_who_is_not_looked_at(columns: dict[str, Any]) -> None:
    """Notebooks idle by nature, replicas wait for requests, starting work loads."""
    snap = measured(training(**columns), dict.fromkeys(range(4), 0.0)).snapshot
    assert not doing_nothing(snap, EAGER).any()


def test_a_gang_on_shares_is_not_looked_at() -> None:
    """The counters of a shared GPU are those of all its sharers."""
    snap = measured(training(), dict.fromkeys(range(4), 0.0)).snapshot
    snap = replace(snap, placements=replace(snap.placements, milli=snap.placements.milli // 2))
    assert not doing_nothing(snap, EAGER).any()


def test_a_hung_gang_is_stopped_after_its_time_once_and_then_left() -> None:
    """The window covers half an hour; the silence must last an hour in all. After one restart the gang is left, with a
    note.
    """
    idle = dict.fromkeys(range(4), 0.0)
    policy = with_policy(
        EAGER, modes=dict.fromkeys(("notify_idle", "mark_idle", "suspend_idle", "shrink_idle"), Mode.OFF)
    )
    before = decide(replace(measured(training(), {}), now_s=8_000.0), policy)
    seen = replace(measured(training(), idle), now_s=10_000.0)
    first = decide(seen, policy, before.memory)
    assert (evicted(first), first.wake_at_s) == ([], 11_800.0)
    due = decide(replace(seen, now_s=11_800.0), policy, first.memory)
    assert evicted(due) == ["g"]
    again = measured(
        observe(
            snapshot("1x8", [holds("g", 4, range(4), incarnation=1, start_s=12_000.0), holds("o", 4, range(4, 8))]),
            20_000.0,
        ),
        idle,
    )
    later = decide(again, policy, due.memory)
    last = decide(replace(again, now_s=24_000.0), policy, later.memory)
    assert (evicted(later), evicted(last)) == ([], [])
    assert any("after 1 restart for that reason; it is left to its owner" in note for note in notes(last))


@pytest.mark.parametrize("level", [0.0, 1.0], ids=["idle", "spinning"])
def test_a_gang_that_never_worked_is_left_to_its_owner(level: float) -> None:
    """A hang is a change. Work that holds its GPUs and does nothing from its start is not healed by another start."""
    still = measured(training(), dict.fromkeys(range(4), level))
    first = decide(replace(still, now_s=10_000.0), EAGER)
    due = decide(replace(still, now_s=20_000.0), EAGER, first.memory)
    assert evicted(due) == []
    assert any("has done nothing since it started" in note for note in notes(due))


def test_what_others_did_on_its_gpus_is_not_its_work() -> None:
    """Until a window has passed since its start, the samples belong to earlier work; then the gang is judged."""
    early = decide(replace(measured(training(), {}), now_s=1_799.0), EAGER)
    assert early.wake_at_s == 1_800.0
    assert WORKED not in conditions(early)
    assert WORKED in conditions(decide(replace(measured(training(), {}), now_s=1_800.0), EAGER))


def test_a_gang_that_worked_before_it_was_stopped_can_hang_after_it() -> None:
    """What was seen is remembered while the gang waits, and forgotten when it is gone."""
    worked = decide(replace(measured(training(), {}), now_s=8_000.0), EAGER)
    waiting = decide(observe(snapshot("1x8", [waits("g", 4)]), 9_000.0), EAGER, worked.memory)
    assert WORKED in conditions(waiting)
    gone = decide(observe(snapshot("1x8", [waits("other", 4)]), 9_010.0), EAGER, waiting.memory)
    assert WORKED not in conditions(gone)


def test_another_gang_of_the_same_name_has_not_worked_yet() -> None:
    """A condition belongs to an object, not to its name: the new gang is left to its owner."""
    idle = dict.fromkeys(range(4), 0.0)
    worked = decide(replace(measured(training(), {}), now_s=8_000.0), EAGER)
    again = measured(training(uid="g-again"), idle)
    first = decide(replace(again, now_s=10_000.0), EAGER, worked.memory)
    due = decide(replace(again, now_s=20_000.0), EAGER, first.memory)
    assert evicted(due) == []
    assert [note.code for note in due.decision.notes] == ["never_worked"]


def test_a_gang_is_recognised_by_its_uid() -> None:
    """The object that worked and then does nothing is stopped, whatever its name."""
    idle = dict.fromkeys(range(4), 0.0)
    worked = decide(replace(measured(training(uid="object-1"), {}), now_s=8_000.0), EAGER)
    silent = measured(training(uid="object-1"), idle)
    first = decide(replace(silent, now_s=10_000.0), EAGER, worked.memory)
    assert evicted(decide(replace(silent, now_s=11_800.0), EAGER, first.memory)) == ["g"]


def test_a_stop_that_had_no_effect_is_not_a_restart() -> None:
    """The same incarnation still does nothing after its stop: it is stopped again, and not left to its owner."""
    idle = dict.fromkeys(range(4), 0.0)
    step = decide(replace(measured(training(), {}), now_s=8_000.0), EAGER)
    for now_s in (10_000.0, 11_800.0, 12_000.0):
        seen_now = replace(measured(training(), idle), now_s=now_s)
        step = decide(
            seen_now,
            EAGER,
            replace(
                step.memory,
                effects=replace(step.memory.effects, in_flight={}),
                budget=replace(step.memory.budget, cooled_until_s={}),
            ),
        )
    assert evicted(step) == ["g"]
    assert step.decision.notes == ()


def test_a_gang_that_works_again_is_judged_anew() -> None:
    """The clock begins with the next silence."""
    idle = dict.fromkeys(range(4), 0.0)
    first = decide(measured(training(), idle), EAGER)
    busy = decide(replace(measured(training(), {}), now_s=11_000.0), EAGER, first.memory)
    assert not any(held.kind == ConditionKind.QUIET for held in conditions(busy))
    silent = decide(replace(measured(training(), idle), now_s=11_800.0), EAGER, busy.memory)
    assert evicted(silent) == []


# --- whether the telemetry is believed --------------------------------------------------------------

BUDGETED = with_policy(EAGER, budget={"window_s": 3600.0, "per_cluster": 1, "per_tenant": 9, "per_node": 9})


def by_sources(observation: Observation, first: int) -> Observation:
    """The first GPUs were measured by one source, the rest by another."""
    table = observation.snapshot.telemetry
    source = (np.arange(len(table.age_s)) >= first).astype(np.int8)
    telemetry = replace(table, sources=("east", "west"), source=source)
    return replace(observation, snapshot=replace(observation.snapshot, telemetry=telemetry))


def hours(see: Any, until_s: float = 20_000.0, policy: Policy = EAGER) -> list[tuple[float, str]]:
    """Who is stopped when, looked at every 200 s from 8,000 s on; what is stopped is shown on. All worked until 10,000
    s.
    """
    step, told = decide(see(8000.0), policy), []
    now_s = 10_000.0
    while now_s < until_s:
        step = decide(see(now_s), policy, replace(step.memory, effects=replace(step.memory.effects, in_flight={})))
        told += [(now_s, name) for name in evicted(step)]
        now_s += 200.0
    said.clear()
    said.extend(notes(step))
    return told


said: list[str] = []


def seen(now_s: float, hung: set[int], **more: Any) -> Observation:
    """Before 10,000 s all work."""
    return fleet(
        now_s,
        hung if now_s >= 10_000.0 else set(),
        **{**more, "zeros": more.get("zeros", False) and now_s >= 10_000.0},
    )


def test_fresh_zeros_of_a_broken_exporter_stop_nobody() -> None:
    """Twenty of twenty gangs do nothing: that is no hang, and a note gives the reason."""
    assert hours(lambda now_s: seen(now_s, set(), zeros=True)) == []
    assert len(said) == 20
    assert said[0].startswith(
        "g0 seems to hang and is not stopped: 20 of 20 gangs measured by telemetry do nothing at once; its GPUs "
        "did nothing for "
    )


def test_one_hung_gang_among_live_ones_is_stopped() -> None:
    """It is weighed, not by contract; it is not asked to save what it cannot."""
    told = hours(lambda now_s: seen(now_s, {3}), 12_000.0)
    assert told == [(11_800.0, "g3")]
    step = decide(seen(8000.0, {3}), EAGER)
    step = decide(seen(10_000.0, {3}), EAGER, step.memory)
    step = decide(seen(11_800.0, {3}), EAGER, step.memory)
    (proposal,) = step.decision.plan.proposals
    assert not any(victim.contract for victim in proposal.victims)
    assert not any(verdict.code == Code.WAIVED_CONTRACT for verdict in proposal.verdicts)
    assert proposal.cost_gpu_s == 4 * 1800.0
    (effect,) = step.instructions
    assert (effect.operation.takes, asked(effect, EvictOperation).save) == ("restart", Save.TRY)
    assert [entry.contract for entry in step.memory.budget.disrupted] == [False]


def test_a_budget_of_one_stops_one_hung_gang_a_window() -> None:
    """Three hang; an hour lies between any two stops."""
    told = hours(lambda now_s: seen(now_s, {3, 8, 15}), 18_000.0, BUDGETED)
    assert [at_s for at_s, _ in told] == [11_800.0, 15_400.0]


@pytest.mark.parametrize(("hung", "stops"), [(5, True), (6, False)])
def test_more_than_a_share_at_once_is_a_fault_of_the_telemetry(hung: int, *, stops: bool) -> None:
    """A quarter of twenty are five."""
    assert bool(hours(lambda now_s: seen(now_s, set(range(0, 2 * hung, 2))), 12_000.0)) is stops


@pytest.mark.parametrize(("hung", "stops"), [({0}, True), ({0, 1}, False)], ids=["one of two", "two of two"])
def test_few_gangs_are_judged_by_each_other(hung: set[int], *, stops: bool) -> None:
    """One of two hangs where the other is alive; both at once are a broken exporter."""
    assert bool(hours(lambda now_s: seen(now_s, hung, count=2), 12_000.0)) is stops


def test_a_gang_that_nothing_else_vouches_for_is_not_stopped() -> None:
    """It is alone behind its exporter."""
    assert hours(lambda now_s: seen(now_s, {0}, count=1)) == []
    assert "telemetry shows 0 of 0 other GPUs in use at work" in said[0]


def test_one_gang_alive_among_many_silent_ones_does_not_vouch() -> None:
    """Nine of ten others are services that show nothing: too few are at work to believe that the tenth is a hang."""

    def mostly_silent(now_s: float) -> Observation:
        observation = seen(now_s, {0, *range(2, 10)}, count=10)
        work = observation.snapshot.workloads
        served = replace(work, slo_class=np.where(np.arange(10) < 2, 2, 1).astype(work.slo_class.dtype))
        return replace(observation, snapshot=replace(observation.snapshot, workloads=served))

    assert hours(mostly_silent, 12_000.0) == []
    assert "shows 4 of 36 other GPUs in use at work" in said[0]


def test_another_source_does_not_vouch() -> None:
    """Ten gangs are alive by the exporter in the west; the one that shows this gang shows nothing else."""
    assert hours(lambda now_s: by_sources(seen(now_s, {0}), 4), 12_000.0) == []
    assert "east shows 0 of 0 other GPUs in use at work" in said[0]
    assert hours(lambda now_s: by_sources(seen(now_s, {0}), 8), 12_000.0) == [(11_800.0, "g0")]


def test_a_node_where_nothing_is_at_work_does_not_vouch() -> None:
    """Both gangs of one node do nothing, all other nodes are alive: the exporter of that node may be broken."""
    assert hours(lambda now_s: seen(now_s, {0, 1}), 12_000.0) == []
    assert "shows nothing else at work on node-0, where other work runs" in said[0]


def test_samples_of_the_future_are_no_proof() -> None:
    """Neither of silence nor of life."""

    def ahead(now_s: float) -> Observation:
        observation = seen(now_s, {3})
        telemetry = observation.snapshot.telemetry
        telemetry = replace(telemetry, age_s=telemetry.age_s - 1000.0)
        return replace(observation, snapshot=replace(observation.snapshot, telemetry=telemetry))

    assert hours(ahead, 14_000.0) == []


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({"preemptible": False}, Code.NOT_PREEMPTIBLE),
        ({"start_s": -1e6, "checkpoint_interval_s": np.nan}, Code.MARGIN),
    ],
    ids=["not preemptible", "loses more than a day"],
)
def test_a_hung_gang_is_held_to_the_guards(columns: dict[str, Any], code: Code) -> None:
    """Nothing is waived for it. What it did before it fell silent is what a stop loses."""
    step = decide(seen(8000.0, {3}, **columns), EAGER)
    step = decide(seen(10_000.0, {3}, **columns), EAGER, step.memory)
    step = decide(seen(11_800.0, {3}, **columns), EAGER, step.memory)
    (proposal,) = step.decision.plan.proposals
    assert code in {verdict.code for verdict in proposal.verdicts if not verdict.allowed}
    assert not any(held.kind == ConditionKind.HUNG for held in conditions(step))
