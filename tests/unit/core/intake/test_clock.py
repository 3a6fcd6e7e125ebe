"""Clocks that jump: nothing acts on one that is not believed, nothing is frozen, and no promise is shortened."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from itertools import pairwise
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopilot.controller import Controller, Wiring
from autopilot.core.intake.assemble import assemble
from autopilot.core.intake.clock import moved, not_of_the_future, read_clock
from autopilot.core.model.codes import ConditionKind
from autopilot.core.model.forecast import Forecasts
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.memory.budget import BudgetMemory, Disruption
from autopilot.core.model.memory.effects import EffectsMemory, InFlight
from autopilot.core.model.memory.halt import Failure, HaltMemory
from autopilot.core.model.memory.intake import ClockDoubt, IntakeMemory
from autopilot.core.model.memory.people import Approval, PeopleMemory
from autopilot.core.model.memory.plan import Condition, Noted, PlanMemory
from autopilot.core.model.memory.spending import SpendingMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.policy.bounds import JournalRules
from autopilot.core.model.records import (
    Batch,
    Command,
    CommandKind,
    Gap,
    Inventory,
    NoteCode,
    Seen,
    Telemetry,
    Work,
)
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.records.journal import SqliteJournal
from autopilot.records.memory import InMemoryStore
from tests.kits.core_world import (
    AUTO,
    Disrupt,
    decide,
    evicted,
    holds,
    snapshot,
    started,
    waits,
    with_policy,
    world,
)
from tests.kits.instructions import STOP, instruct
from tests.properties.strategies import Held, Quiet

YEARS_S = 10 * 365 * 86_400.0
EAGER = with_policy(
    AUTO,
    hysteresis={"dwell_s": 0.0, "cool_down_s": 600.0},
    protection={"min_runtime_s": 0.0},
    budget={"window_s": 900.0, "per_cluster": 2, "per_tenant": 2, "per_node": 2},
)


def look(
    now_s: float, memory: ControllerMemory | None = None, elapsed_s: float = nan, *, policy: Policy = EAGER, **more: Any
) -> Step:
    """A tick at which the eviction of one gang is wished for, whatever happened before."""
    work = [holds("v", 8, start_s=-1e12), waits("w", 8)]
    observation = replace(world("1x8", work, now_s, **more), elapsed_s=elapsed_s)
    return decide(observation, policy, memory, actions=Disrupt("w", ("v",)).table)


def settled(step: Step) -> ControllerMemory:
    """Its memory, with nothing under way."""
    return replace(step.memory, effects=replace(step.memory.effects, in_flight={}))


def acts(step: Step) -> bool:
    """Was the eviction told?"""
    return evicted(step) == ["v"]


# --- a clock that jumps ------------------------------------------------------------------------------


@pytest.mark.parametrize("by_s", [3600.0, YEARS_S, -3600.0])
def test_a_jump_and_back_changes_nothing_but_that_tick(by_s: float) -> None:
    """Nothing acts while it lasts, and the decision gives the reason; the next tick continues as if it had not
    happened.
    """
    first = look(1000.0)
    assert acts(first)
    memory = settled(first)
    jumped = look(1010.0 + by_s, memory, 10.0)
    assert not jumped.instructions
    assert "the clock" in jumped.decision.halted
    assert jumped.wake_at_s == 1011.0 + by_s
    back = look(1020.0, jumped.memory, 10.0)
    assert back.decision.halted == ""
    assert back.memory.budget.cooled_until_s == first.memory.budget.cooled_until_s
    assert back.memory.budget.disrupted == first.memory.budget.disrupted


@pytest.mark.parametrize("by_s", [3600.0, YEARS_S, -3600.0])
def test_a_jump_that_stays_is_believed_after_three_ticks_and_timers_move_with_it(by_s: float) -> None:
    """The cool-down lasts its ten minutes in true time, neither more nor less."""
    memory = settled(look(1000.0))
    halted, cooled_s = [], 0.0
    for tick in range(1, 70):
        step = look(1000.0 + 10.0 * tick + by_s, memory, 10.0)
        memory = step.memory
        halted.append(bool(step.decision.halted))
        if acts(step):
            cooled_s = 10.0 * tick
            break
    assert halted[:4] == [True, True, False, False]
    assert cooled_s == 600.0


def test_a_jump_that_is_believed_is_said() -> None:
    """With the seconds by which every timer moved."""
    memory = look(1000.0).memory
    for tick in range(1, 4):
        step = look(1000.0 + 10.0 * tick + 3600.0, memory, 10.0)
        memory = step.memory
    assert [(note.code, note.value) for note in step.decision.notes] == [(NoteCode.CLOCK_MOVED, 3600.0)]


def test_a_clock_that_leaps_at_every_tick_is_never_believed() -> None:
    """It is no clock."""
    memory = look(1000.0).memory
    for tick in range(1, 30):
        step = look(1000.0 + 3600.0 * tick, memory, 10.0)
        memory = step.memory
        assert step.decision.halted


def test_small_differences_are_made_up_for() -> None:
    """A clock that runs a tenth too fast shortens no cool-down: it lasts ten minutes by the monotonic clock."""
    memory, true_s = settled(look(1000.0)), 0.0
    while True:
        true_s += 10.0
        step = look(1000.0 + 1.1 * true_s, memory, 10.0)
        memory = step.memory
        assert not step.decision.halted
        if acts(step):
            break
    assert true_s == pytest.approx(600.0, abs=10.0)


def test_differences_too_small_to_act_on_add_up() -> None:
    """A clock that gains 40 ms at every tick shortens no cool-down either."""
    memory = settled(look(1000.0))
    for tick in range(1, 700):
        step = look(1000.0 + 1.04 * tick, memory, 1.0)
        memory = step.memory
        if acts(step):
            break
    assert tick == pytest.approx(600, abs=2)


def test_virtual_time_may_go_ahead_by_any_step() -> None:
    """A long quiet gap is no jump where there is no other clock: time is what the shell says."""
    memory = settled(look(1000.0))
    assert acts(look(1000.0 + YEARS_S, memory))


def test_virtual_time_that_went_back_is_believed_after_three_ticks() -> None:
    """A memory whose times lie in the far future freezes nothing: they come back with the clock."""
    memory = settled(look(YEARS_S))
    said = []
    for tick in range(3):
        step = look(1000.0 + tick, memory)
        memory = step.memory
        said.append(step.decision.halted)
    assert said[0].startswith("the clock went back 315")
    assert said[2] == ""
    assert memory.now_s == 1002.0
    assert memory.budget.cooled_until_s == {"v": 1600.0}
    assert acts(look(1600.0, memory))


def test_commands_are_heard_while_the_clock_is_doubted() -> None:
    """A KILL counts at once."""
    kill = (Command(CommandKind.KILL, "ann", 900.0, sequence=0),)
    step = look(900.0, look(1000.0).memory, commands=kill)
    assert step.memory.halt.killed
    assert step.memory.now_s == 1000.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from((1.0, 10.0, 45.0, 200.0)),
            st.sampled_from((0.0, 0.0, 0.0, 30.0, -30.0, 5000.0, -5000.0, YEARS_S)),
        ),
        min_size=10,
        max_size=60,
    )
)
def test_budgets_and_cool_downs_hold_in_true_time(steps: list[tuple[float, float]]) -> None:
    """However the clock jumps: no cool-down and no budget window is shorter than promised, and nothing freezes."""
    memory, true_s, skew_s = ControllerMemory(), 0.0, 0.0
    acted: list[float] = []
    for passes_s, jump_s in steps:
        true_s, skew_s = true_s + passes_s, skew_s + jump_s
        step = look(true_s + skew_s, memory, passes_s)
        memory = settled(step)
        acted += [true_s] * acts(step)
    assert all(later - earlier > 599.0 for earlier, later in pairwise(acted))
    assert all(later - earlier > 899.0 for earlier, later in zip(acted, acted[2:], strict=False))
    for _ in range(12):
        true_s += 100.0
        step = look(true_s + skew_s, memory, 100.0)
        memory = settled(step)
        if acts(step):
            return
    pytest.fail("nothing acts twenty minutes after the clock has settled")


# --- memory moves as a whole -------------------------------------------------------------------------


def test_a_moved_memory_comes_back() -> None:
    """There and back it is the same, and unknown times stay unknown."""
    effect = instruct("v", replace(STOP, grace_s=120.0), "e", deadline_s=500.0)
    memory = ControllerMemory(
        now_s=100.0,
        effects=EffectsMemory(in_flight={"e": InFlight(effect, "issued", 90.0, "preempt", "t", 0.0, False)}),
        halt=HaltMemory(failed=(Failure(60.0, "u", "t"),)),
        budget=BudgetMemory(disrupted=(Disruption(80.0, "v", "t", (), False),), cooled_until_s={"v": 700.0}),
        spending=SpendingMemory(spent_gpu_s={"t": ((0, 5.0),)}),
        plan=PlanMemory(conditions=(Noted(Condition(ConditionKind.STUCK, "v", 0), 70.0),)),
    )
    later = moved(memory, 10 * 86_400.0)
    assert later.effects.in_flight["e"].instruction.deadline_s == 864_500.0
    assert later.effects.in_flight["e"].instruction.operation.grace_s == 120.0
    assert (later.budget.disrupted[0].at_s, later.halt.failed, later.budget.cooled_until_s) == (
        864_080.0,
        (Failure(864_060.0, "u", "t"),),
        {"v": 864_700.0},
    )
    assert later.spending.spent_gpu_s == {"t": ((10, 5.0),)}
    assert [noted.since_s for noted in later.plan.conditions] == [864_070.0]
    assert np.isnan(later.halt.paused_since_s)
    there_and_back = moved(later, -10 * 86_400.0)
    assert replace(there_and_back, halt=replace(there_and_back.halt, paused_since_s=0.0)) == replace(
        memory, halt=replace(memory.halt, paused_since_s=0.0)
    )


def test_doubt_survives_a_restart() -> None:
    """It is part of the memory."""
    doubt = ClockDoubt(5000.0, 5010.0, 2, 20.0)
    memory = ControllerMemory(now_s=1000.0, intake=IntakeMemory(clock_doubt=doubt))
    assert read_clock(memory, 5020.0, 10.0, EAGER).doubt == ""
    assert read_clock(memory, 9000.0, 10.0, EAGER).memory.intake.clock_doubt == ClockDoubt(9000.0, 9000.0, 1, 30.0)


# --- the controller ----------------------------------------------------------------------------------


class Shell:
    """The ports of a controller with two clocks."""

    name = "shell"

    def __init__(self) -> None:
        self.snap = snapshot("1x8", [holds("x", 8)])
        self.read_s, self.updates = 0.0, 0

    def collect(self, now_s: float) -> Batch:
        """All that there is."""
        snap = self.snap
        return Batch(
            "shell",
            now_s,
            Inventory(snap.names, snap.nodes, snap.gpus, snap.instances),
            Work(snap.names.tenants, snap.workloads, snap.placements, snap.services, snap.queues),
        )

    def update(self, *_: Any) -> None:
        """Count."""
        self.updates += 1

    def forecast(self, *_: Any) -> Any:
        """Nothing."""
        return Forecasts()

    def controller(self, memory: InMemoryStore) -> Controller:
        """A new process."""
        quiet = Quiet()
        return Controller(
            Wiring([self], [self], {}, quiet, memory, quiet, Held(EAGER), quiet, monotonic_s=lambda: self.read_s)
        )


def test_models_learn_nothing_from_a_time_that_is_not_believed() -> None:
    """And the controller goes on by itself."""
    shell, memory = Shell(), InMemoryStore()
    controller = shell.controller(memory)
    for now_s, read_s in ((1000.0, 50.0), (1010.0, 60.0), (1010.0 + YEARS_S, 70.0), (1030.0, 80.0)):
        shell.read_s = read_s
        step = controller.tick(now_s)
    assert shell.updates == 3
    assert step is not None
    assert step.decision.halted == ""


def test_the_time_of_a_restart_counts_for_nobody() -> None:
    """A process that comes back after eight hours looks three times; its cool-downs have as long to go as before."""
    shell, memory = Shell(), InMemoryStore()
    shell.controller(memory).tick(1000.0)
    kept = memory.load()
    assert kept is not None
    memory.save(replace(kept, budget=replace(kept.budget, cooled_until_s={"x": 1500.0})))
    controller = shell.controller(memory)
    for tick in range(3):
        shell.read_s = 7.0 + 10.0 * tick
        step = controller.tick(30_000.0 + 10.0 * tick)
    assert step is not None
    assert step.decision.halted == ""
    assert step.memory.budget.cooled_until_s == {"x": 30_500.0}


SEEN = Seen("preempt", "q", "w", 0, "plan", False, True, 8.0, 8.0, 100.0, ("q",), ("batch",))


@pytest.mark.parametrize("later_s", [40.0, 29_000.0], ids=["at once", "after the clock is believed again"])
def test_an_approval_does_not_outlast_a_restart(later_s: float) -> None:
    """Cool-downs get the unknown time on top; a permission ages as the clock says."""
    approval = Approval(SEEN, False, 990.0, "ann")
    memory = ControllerMemory(
        now_s=1000.0, budget=BudgetMemory(cooled_until_s={"x": 1500.0}), people=PeopleMemory(approvals={"p": approval})
    )
    for passed_s in (0.0, 10.0, 20.0):
        reading = read_clock(memory, 1000.0 + later_s + passed_s, min(passed_s, 10.0), Policy())
        memory = reading.memory
        if not reading.doubt:
            break
    assert memory.budget.cooled_until_s == {"x": 1500.0 + later_s}
    assert memory.people.approvals == {"p": approval}


def test_an_approval_moves_with_a_clock_that_is_set_while_the_process_runs() -> None:
    """Then the time that passed is known."""
    memory = ControllerMemory(now_s=1000.0, people=PeopleMemory(approvals={"p": Approval(SEEN, False, 990.0, "ann")}))
    for now_s, passed_s, given_s in ((1050.0, 10.0, 1030.0), (1050.0, 0.0, 990.0), (950.0, 0.0, 940.0)):
        assert read_clock(memory, now_s, passed_s, Policy()).memory.people.approvals["p"].given_s == given_s


# --- sources whose clock is ahead --------------------------------------------------------------------


def batch(now_s: float, *, ages_s: float = 0.0, collected_s: float | None = None, **columns: Any) -> Batch:
    """What a source brings."""
    snap = snapshot("1x2", [holds("x", 2, **columns)])
    table = np.zeros((1, 1, 2), np.float32)
    seen = Telemetry(
        ("sm_active_ratio",),
        (60.0,),
        snap.gpus.uuid,
        table,
        table,
        np.ones((1, 2), np.int32),
        np.full(2, ages_s, np.float32),
        np.full(2, 3, np.int8),
    )
    return Batch(
        "src",
        now_s if collected_s is None else collected_s,
        Inventory(snap.names, snap.nodes, snap.gpus, snap.instances),
        Work(snap.names.tenants, snap.workloads, snap.placements, snap.services, snap.queues),
        seen,
    )


def known(given: Batch) -> tuple[ClusterSnapshot, tuple[Gap, ...]]:
    """What is known of a batch at 100 s."""
    return assemble([not_of_the_future(given, 100.0, Policy().clock.max_skew_s)], 100.0)


def test_a_batch_of_the_future_is_not_known() -> None:
    """It is as if the source had not answered, and the gap names it. A little ahead is now."""
    snap, gaps = known(batch(100.0, collected_s=4000.0))
    assert (len(snap.workloads.id), snap.work_age_s, snap.inventory_age_s) == (0, np.inf, np.inf)
    assert [(gap.source, gap.reason) for gap in gaps] == [
        ("src", "clock skew: dated 3900 s in the future; set the clocks right")
    ]
    snap, gaps = known(batch(100.0, collected_s=103.0))
    assert (len(snap.workloads.id), gaps) == (1, ())


def test_samples_of_the_future_are_not_fresh() -> None:
    """They have no age, whatever the source says."""
    snap, gaps = known(batch(100.0, ages_s=-60.0))
    assert np.isinf(snap.telemetry.age_s).all()
    assert [gap.signal for gap in gaps] == ["samples"]


def test_a_checkpoint_of_the_future_saves_nothing() -> None:
    """It is not known when the last one was."""
    snap, gaps = known(batch(100.0, last_checkpoint_s=500.0, start_s=10.0))
    assert np.isnan(snap.workloads.last_checkpoint_s).all()
    assert [gap.signal for gap in gaps] == ["last checkpoint"]


def test_a_view_of_the_future_starts_nobody() -> None:
    """The whole way: the controller stays as it is."""
    snap, gaps = known(batch(100.0, collected_s=YEARS_S))
    observation = replace(world("1x2", [waits("w", 1)], 100.0), snapshot=snap, gaps=gaps)
    assert started(decide(observation, EAGER)) == {}


def test_the_journal_keeps_its_past_when_the_clock_jumps(tmp_path: Path) -> None:
    """Segments are dropped by age only where the clock went on from the last decision."""
    rules = JournalRules(keyframe_s=10.0, keyframe_ticks=1)
    with SqliteJournal(tmp_path / "j", durable=False, rules=rules) as journal:
        for tick, (now_s, last_s) in enumerate([(0.0, -1.0), (20.0, 0.0), (YEARS_S, 20.0)]):
            observation = world("1x2", [holds("x", 2)], now_s, tick=tick)
            memory = ControllerMemory(now_s=last_s)
            journal.intend(observation, EAGER, memory, decide(observation, EAGER).decision, ())
    with sqlite3.connect(tmp_path / "j") as db:
        assert db.execute("SELECT count(*) FROM ticks").fetchone() == (3,)
