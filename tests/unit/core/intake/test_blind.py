"""A tick that does not see: nothing is concluded from what is absent, nothing acts, and what is under way stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any

import numpy as np
import pytest

from autopilot.controller import Controller, Wiring
from autopilot.core.intake.sight import INVENTORY, WORK
from autopilot.core.model.forecast import Forecasts
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import (
    Batch,
    Command,
    CommandKind,
    Instruction,
    Inventory,
    Listing,
    Outcome,
    OutcomeKind,
    Work,
)
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.records.memory import InMemoryStore
from tests.kits.core_world import AUTO, Item, decide, done, holds, snapshot, started, waits, world
from tests.kits.ticking_world import EAGER, Ticking
from tests.properties.strategies import Held, Quiet


@dataclass
class Source:
    """A collector of one kind of list, or both, that can fail, lag and leave things out."""

    name: str
    show: Callable[[], ClusterSnapshot]
    kinds: tuple[str, ...] = (INVENTORY, WORK)
    fails: bool = False
    lag_s: float = 0.0
    listing: Listing = field(default_factory=Listing)
    lists: bool = True

    def collect(self, now_s: float) -> Batch:
        """What it shows."""
        if self.fails:
            raise ConnectionError("refused")
        snap = self.show()
        inventory = Inventory(snap.names, snap.nodes, snap.gpus, snap.instances)
        work = Work(snap.names.tenants, snap.workloads, snap.placements, snap.services, snap.queues)
        return Batch(
            self.name,
            now_s - self.lag_s,
            inventory if INVENTORY in self.kinds else None,
            work if WORK in self.kinds else None,
            inventory_list=self.listing,
            work_list=self.listing,
        )


class Loop:
    """A controller on two gangs and one node; what it sends is accepted and takes its time."""

    name = "loop"

    def __init__(
        self,
        shape: str = "1x8",
        items: tuple[Item, ...] = (waits("a", 8), waits("b", 8)),
        *,
        kinds: tuple[tuple[str, ...], ...] = ((INVENTORY, WORK),),
        policy: Policy = AUTO,
    ) -> None:
        self.shape, self.items = shape, list(items)
        self.quiet = Quiet()
        self.learned: list[int] = []
        self.sent: list[Instruction] = []
        self.answer = OutcomeKind.ACCEPTED
        self.sources = [Source(f"api-{number}", self.show, each) for number, each in enumerate(kinds)]
        self.store = InMemoryStore()
        self.wiring = Wiring(
            self.sources, [self], {"admit": self, "evict": self}, self, self.store, self.quiet, Held(policy), self.quiet
        )
        self.controller = Controller(self.wiring)
        self.observations: list[Any] = []

    def show(self) -> ClusterSnapshot:
        """The cluster now."""
        return snapshot(self.shape, self.items)

    def update(self, _now_s: float, snap: ClusterSnapshot) -> None:
        """Learn how much work there is."""
        self.learned.append(len(snap.workloads.id))

    def forecast(self, *_: Any) -> Forecasts:
        """Nothing."""
        return Forecasts()

    def apply(self, instruction: Instruction, now_s: float) -> Outcome:
        """Take it."""
        self.sent.append(instruction)
        return Outcome(instruction.id, self.answer, now_s)

    def intend(self, *parts: Any) -> None:
        """Keep what was seen."""
        self.observations.append(parts[0])

    def conclude(self, *_: Any) -> None:
        """Nothing."""

    def tick(self, now_s: float) -> Step:
        """Once."""
        step = self.controller.tick(now_s)
        assert step is not None
        return step

    def told(self) -> list[str]:
        """Who was told to start, in order."""
        return [each.subject.name for each in self.sent]


def test_a_source_that_lists_no_longer_does_not_blind_the_next_process() -> None:
    """An earlier build took the inventory of one machine's driver too; this one takes the cluster's alone."""
    loop = Loop(kinds=((INVENTORY, WORK), (INVENTORY,)))
    loop.tick(0.0)
    assert "inventory/api-1" in loop.controller.memory.intake.views
    loop.sources[1].kinds = ()
    loop.controller = Controller(loop.wiring)
    assert "api-1" in loop.controller.observe(4.0).views[-1].source  # silent, and expected
    loop.sources[1].lists = False
    loop.controller = Controller(loop.wiring)
    loop.tick(5.0)
    assert loop.told()
    assert not any("api-1" in key for key in loop.controller.memory.intake.views)


def test_a_collector_that_fails_once_does_not_hand_out_the_same_gpus_twice() -> None:
    """An admission is under way; the blind tick says why nothing happens, and the next one knows of it still."""
    loop = Loop()
    loop.tick(0.0)
    loop.sources[0].fails = True
    blind = loop.tick(5.0)
    assert (blind.instructions, blind.decision.plan.proposals) == ((), ())
    assert (
        "api-0: its list of workloads is not complete (collector failed: ConnectionError: refused)"
        in blind.decision.halted
    )
    assert 5.0 < blind.wake_at_s < 60.0
    loop.sources[0].fails = False
    loop.tick(10.0)
    assert loop.told() == ["a"]
    loop.items[0] = holds("a", 8)
    loop.tick(15.0)
    assert loop.controller.memory.effects.in_flight == {}
    assert loop.told() == ["a"]


def test_a_blind_tick_teaches_no_model_and_measures_nothing() -> None:
    """Else a model would learn that all jobs ended at once; NaN is not zero."""
    loop = Loop()
    loop.tick(0.0)
    loop.sources[0].fails = True
    loop.tick(5.0)
    assert loop.learned == [2]
    signals = loop.observations[-1].signals
    assert isnan(signals.allocated_gpus)
    assert isnan(signals.pending_gpus)
    assert signals.largest_gang_gpus == -1


@pytest.mark.parametrize("part", ["one of two sources", "one page", "one pool", "a count that differs"])
def test_a_partial_view_is_no_evidence(part: str) -> None:
    """What is missing from a list that is not complete is not gone."""
    kinds = ((INVENTORY,), (WORK,)) if part == "one of two sources" else ((INVENTORY, WORK),)
    loop = Loop(kinds=kinds)
    loop.tick(0.0)
    kept = loop.items
    if part == "one of two sources":
        loop.sources[1].fails = True
    elif part == "a count that differs":
        loop.items, loop.sources[0].listing = [waits("b", 8)], Listing(objects=2)
    else:
        loop.items, loop.sources[0].listing = (
            [waits("b", 8)],
            Listing(complete=False, reason=f"{part} is missing"),
        )
    step = loop.tick(5.0)
    assert step.instructions == ()
    assert step.decision.halted
    loop.items, loop.sources[0].listing, loop.sources[-1].fails = kept, Listing(), False
    loop.tick(10.0)
    assert loop.told() == ["a"]


def test_a_source_that_the_wiring_names_must_answer_from_the_first_tick_on() -> None:
    """Nothing starts while no source lists the work."""
    loop = Loop(kinds=((INVENTORY, WORK), (WORK,)))
    loop.wiring = replace(loop.wiring, lists=((WORK, "api-1"),))
    loop.controller = Controller(loop.wiring)
    loop.sources[1].fails = True
    assert loop.tick(0.0).instructions == ()
    loop.sources[1].fails = False
    assert loop.tick(5.0).instructions


def test_a_source_that_was_there_before_a_restart_must_answer() -> None:
    """Memory knows it."""
    loop = Loop(kinds=((INVENTORY, WORK), (WORK,)))
    loop.tick(0.0)
    loop.controller = Controller(loop.wiring)
    loop.sources[1].fails = True
    assert "api-1" in loop.tick(5.0).decision.halted


def test_an_effect_stays_booked_until_a_list_made_after_its_end() -> None:
    """The list is young enough by its age, and older than the outcome: the GPUs look free, and are not."""
    loop = Loop()
    loop.answer = OutcomeKind.DONE
    loop.tick(10.0)
    loop.sources[0].lag_s = 3.0
    step = loop.tick(11.0)
    assert (step.decision.halted != "", loop.told()) == (True, ["a"]), "older than the list that was seen"
    loop.sources[0].lag_s = 1.5
    loop.tick(11.5)
    assert loop.told() == ["a"]
    loop.items[0], loop.sources[0].lag_s = holds("a", 8), 0.0
    loop.tick(20.0)
    assert loop.controller.memory.effects.in_flight == {}
    assert loop.told() == ["a"]


def test_a_reported_end_counts_with_a_list_made_since_then() -> None:
    """Before that the effect is neither sent again nor given up, whatever its deadline says."""
    first = decide(world("1x8", [waits("a", 8), waits("b", 8)], 100.0))
    outcomes = done(first.instructions, 100.0)
    old = world("1x8", [waits("a", 8), waits("b", 8)], 110.0, tick=1, outcomes=outcomes, work_age_s=20.0)
    step = decide(old, AUTO, first.memory)
    assert step.instructions == ()
    assert [entry.state for entry in step.memory.effects.in_flight.values()] == ["reported"]
    assert step.wake_at_s <= 125.0
    late = decide(world("1x8", [waits("a", 8), waits("b", 8)], 300.0, tick=2, work_age_s=59.0), AUTO, step.memory)
    gone = first.instructions[0].id not in late.memory.effects.in_flight
    assert gone, "this list was made after the end and does not show it"


def many(count: int) -> tuple[Item, ...]:
    """Gangs that run, and one that waits for a place."""
    return (*(holds(f"r{number}", 1) for number in range(count)), waits("w", 1))


def test_a_source_that_shrinks_is_suspected_and_a_person_may_confirm() -> None:
    """29 of 40 gone without a word: their GPUs are not allocated; then they are."""
    loop = Loop("5x8", many(40))
    loop.tick(0.0)
    loop.items = [*many(40)[29:]]
    assert loop.tick(5.0).instructions == ()
    assert "29 of its workloads are gone" in loop.tick(6.0).decision.halted
    loop.quiet.commands = [Command(CommandKind.CONFIRM, "ann", 7.0, "api-0", sequence=1)]
    assert started(loop.tick(7.0)).keys() == {"w"}


def test_a_source_that_shrinks_counts_again_after_three_lists() -> None:
    """Without anybody's word, and the controller asks to be woken for them."""
    loop = Loop("5x8", many(40))
    loop.tick(0.0)
    loop.items = [*many(40)[29:]]
    now_s, ticks = 5.0, 0
    while not loop.tick(now_s).instructions:
        assert now_s < loop.controller.wake_at_s <= now_s + 30.0
        now_s, ticks = loop.controller.wake_at_s, ticks + 1
    assert now_s >= 65.0
    assert ticks < 10


@pytest.mark.parametrize("told", ["deleted", "ended"])
def test_work_that_is_reported_gone_is_no_shrinkage(told: str) -> None:
    """By its uid, or shown as ended once."""
    loop = Loop("5x8", many(40))
    loop.tick(0.0)
    if told == "ended":
        loop.items = [*(waits(f"r{number}", 1, state=4) for number in range(29)), *many(40)[29:]]
    else:
        loop.items = [*many(40)[29:]]
        loop.sources[0].listing = Listing(deleted=tuple(f"r{number}" for number in range(29)))
    assert started(loop.tick(5.0)).keys() == {"w"}
    loop.items, loop.sources[0].listing = [*many(40)[29:40]], Listing()
    assert loop.tick(6.0).decision.halted == ""


def test_nodes_that_vanish_are_suspected_too() -> None:
    """Nodes and GPUs count."""
    loop = Loop("5x8", (waits("w", 1),))
    loop.tick(0.0)
    loop.shape = "1x8"
    assert "nodes and GPUs are gone" in loop.tick(5.0).decision.halted


# --- what is between ticks stays --------------------------------------------------------------------


def test_nothing_in_memory_moves_on_a_blind_tick() -> None:
    """Landings, promises, cool-downs, wishes, use: as they were; deadlines are judged when it sees again."""
    play = Ticking("1x8", [holds("v", 8), waits("w", 8, priority=5)], EAGER)
    play.tick(100.0)
    before = play.memory
    unseen = replace(play.observe(5000.0), outcomes=())
    unseen = replace(unseen, snapshot=replace(snapshot("1x8", []), work_age_s=float("inf")))
    step = decide(unseen, EAGER, before)
    assert step.instructions == ()
    changed = replace(before, tick=step.memory.tick, now_s=5000.0, wake_at_s=step.memory.wake_at_s)
    assert step.memory == changed or repr(step.memory) == repr(changed)
    play.memory = step.memory
    after = play.tick(5001.0)
    assert after.memory.starts.pipelined_starts == () or after.memory.starts.pipelined_starts[0].since_s == 5001.0, (
        "given up by now"
    )


def test_outcomes_and_people_count_while_blind() -> None:
    """A failure is a failure, and a kill is a kill; nothing is sent, and no attempt counts."""
    first = decide(world("1x8", [waits("a", 8)]))
    failed = done(first.instructions, 1.0, OutcomeKind.FAILED, retryable=True)
    kill = Command(CommandKind.KILL, "ann", 1.0, sequence=1)
    observation = world("1x8", [], 1.0, tick=1, outcomes=failed, commands=(kill,), work_age_s=np.inf)
    step = decide(observation, AUTO, first.memory)
    assert step.decision.halted.startswith("kill switch; no source shows workloads")
    assert [(each.state, each.attempts) for each in step.memory.effects.in_flight.values()] == [("held", 1)]
    lost = decide(
        replace(observation, outcomes=done(first.instructions, 1.0, OutcomeKind.CONFLICT)), AUTO, first.memory
    )
    assert not lost.memory.effects.in_flight
    assert step.memory.halt.killed
    assert ControllerMemory().halt.failed == step.memory.halt.failed
