"""The loop around the decision: what breaks outside is news, what breaks inside stops the tick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from autopilot.controller import Controller, Wiring
from autopilot.core.model.errors import InvariantError
from autopilot.core.model.forecast import Forecasts
from autopilot.core.model.policy.bounds import Forecasting
from autopilot.core.model.ports import FitWork
from autopilot.core.model.records import (
    Batch,
    Command,
    CommandKind,
    Gap,
    Instruction,
    Inventory,
    Outcome,
    OutcomeKind,
    Work,
)
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.records.memory import InMemoryStore
from autopilot.worker import InlineWorker
from tests.kits.core_world import AUTO, forecasts, holds, snapshot, waits
from tests.kits.fit_works import Fails, Square
from tests.properties.strategies import Held, Quiet


class World:
    """Collector, forecaster, actuator and journal in one, each with a switch to fail."""

    name = "world"

    def __init__(self, snap: ClusterSnapshot, log: list[str] | None = None) -> None:
        self.snap = snap
        self.log: list[str] = log if log is not None else []
        self.seen: list[Any] = []
        self.breaks: dict[str, Exception] = {}

    def _maybe(self, what: str) -> None:
        self.log.append(what)
        if what in self.breaks:
            raise self.breaks[what]

    def collect(self, now_s: float) -> Batch:
        """The snapshot as a batch."""
        self._maybe("collect")
        snap = self.snap
        return Batch(
            "world",
            now_s,
            Inventory(snap.names, snap.nodes, snap.gpus, snap.instances),
            Work(snap.names.tenants, snap.workloads, snap.placements, snap.services, snap.queues),
        )

    def update(self, *_: Any) -> None:
        """Learn nothing."""
        self._maybe("update")

    def forecast(self, _now_s: float, snap: ClusterSnapshot) -> Forecasts:
        """A minute for everything."""
        self._maybe("forecast")
        return forecasts(snap, dict.fromkeys(snap.workloads.id.tolist(), 60.0))

    def apply(self, instruction: Instruction, now_s: float) -> Outcome:
        """Done."""
        self._maybe("apply")
        return Outcome(instruction.id, OutcomeKind.DONE, now_s)

    def intend(self, *parts: Any) -> None:
        """Note it."""
        self._maybe("intend")
        self.seen.append(parts)

    def conclude(self, tick: int, outcomes: Sequence[Outcome]) -> None:
        """Note it."""
        self._maybe("conclude")
        self.seen.append(outcomes)


class Saving(InMemoryStore):
    """A store that says when it saves."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def save(self, memory: Any) -> None:
        """Note it and keep it."""
        self.log.append("save")
        super().save(memory)


class Learner(World):
    """A forecaster that offers a fit at each tick, and says what it was given."""

    def __init__(self, snap: ClusterSnapshot, fits: Sequence[FitWork]) -> None:
        super().__init__(snap)
        self.fits, self.adopted = list(fits), list[Any]()
        self.refuses: str | None = None

    def due(self, now_s: float) -> FitWork | None:
        """The next one."""
        return self.fits.pop(0) if self.fits else None

    def adopt(self, fitted: Any) -> str | None:
        """Take it."""
        self.adopted.append(fitted)
        return self.refuses


def built(world: World, quiet: Quiet | None = None, **more: Any) -> Controller:
    """A controller on that world."""
    quiet = quiet or Quiet()
    wiring = Wiring(
        [world], [world], {"admit": world, "evict": world}, world, Saving(world.log), quiet, Held(AUTO), quiet
    )
    return Controller(replace(wiring, **more))


def one_waits() -> World:
    """One gang waits on an idle node."""
    return World(snapshot("1x8", [waits("a", 8)]))


def test_intents_are_durable_before_effects() -> None:
    """A tick records its decision, saves its memory, acts, and records the outcome, in that order."""
    world = one_waits()
    built(world).tick(0.0)
    assert world.log[-5:] == ["forecast", "intend", "save", "apply", "conclude"]


def test_a_collector_that_breaks_is_a_gap() -> None:
    """The tick goes on without it: nothing is known, nothing is done, and the gap says why."""
    world = one_waits()
    world.breaks["collect"] = ConnectionError("refused")
    step = built(world).tick(5.0)
    assert step is not None
    assert not step.instructions
    (observation, *_), _ = world.seen
    assert observation.gaps == (Gap("world", "", "", "collector failed: ConnectionError: refused"),)
    assert observation.snapshot.work_age_s == float("inf")


def test_a_source_whose_clock_is_ahead_is_a_gap() -> None:
    """Its lists are dated in the future: nothing is known of them, and nothing starts."""
    world = one_waits()
    collect = world.collect
    world.collect = lambda now_s: collect(now_s + 4000.0)  # type: ignore[method-assign]
    observation = built(world).observe(0.0)
    assert observation.snapshot.work_age_s == float("inf")
    assert [gap.reason.partition(":")[0] for gap in observation.gaps] == ["clock skew"]


def test_one_broken_collector_does_not_hide_another() -> None:
    """What the other collectors brought still counts."""
    good, bad = one_waits(), one_waits()
    bad.breaks["collect"] = ValueError("x")
    step = built(good, collectors=[bad, good]).tick(0.0)
    assert step is not None
    assert [i.subject.name for i in step.instructions] == ["a"]


@pytest.mark.parametrize("where", ["update", "forecast"])
def test_a_forecaster_that_breaks_abstains(where: str) -> None:
    """Without foresight the decision goes on reactively, and the gap names the model."""
    world = one_waits()
    world.breaks[where] = ZeroDivisionError("no data")
    step = built(world).tick(0.0)
    assert step is not None
    assert [i.subject.name for i in step.instructions] == ["a"]
    assert world.seen[0][0].gaps[0].reason == "forecaster failed: ZeroDivisionError: no data"


def test_an_actuator_that_breaks_is_a_failed_effect() -> None:
    """The outcome of the next tick says what went wrong; the effect is tried again under its id."""
    world = one_waits()
    world.breaks["apply"] = TimeoutError("slow")
    controller = built(world)
    first = controller.tick(0.0)
    assert first is not None
    (outcome,) = world.seen[-1]
    assert (outcome.kind, outcome.reason, outcome.retryable) == (
        OutcomeKind.FAILED,
        "TimeoutError: slow",
        True,
    )
    world.breaks.clear()
    second = controller.tick(1.0)
    assert second is not None
    assert [i.id for i in second.instructions] == [i.id for i in first.instructions]


def test_an_effect_that_nobody_carries_out_has_failed() -> None:
    """An instruction of a kind without an actuator fails with the reason, for good."""
    world = one_waits()
    built(world, actuators={}).tick(0.0)
    assert world.seen[-1][0].reason == "no actuator for instructions of kind admit"
    assert not world.seen[-1][0].retryable


def fitting(fits: Sequence[FitWork]) -> tuple[Learner, Controller]:
    """A controller with a forecaster that wants `fits`, and a worker that shows them after 100 s."""
    world = Learner(snapshot("1x8", []), fits)
    rules = replace(AUTO, forecasting=Forecasting(fit_delay_s=100.0))
    return world, built(world, worker=InlineWorker(), policy=Held(rules))


def gaps_of(world: World) -> tuple[Gap, ...]:
    """What was missing at the last tick."""
    observation, *_ = world.seen[-2]
    gaps: tuple[Gap, ...] = observation.gaps
    return gaps


def test_a_fit_is_adopted_at_a_tick_after_it_has_ended() -> None:
    """Begun when it is due, taken in once, at the first tick that finds it ended; then the next begins."""
    world, controller = fitting([Square(2), Square(3)])
    seen = []
    for now_s in (0.0, 99.0, 130.0, 229.0, 230.0, 500.0):
        controller.tick(now_s)
        seen.append(len(world.adopted))
    assert seen == [0, 0, 1, 1, 2, 2]
    assert [answer for answer, _ in world.adopted] == [4, 9]
    assert gaps_of(world) == ()


def test_a_fit_waits_for_a_forecaster_that_breaks_just_then() -> None:
    """What was fitted, and perhaps promoted, is not lost with one odd snapshot."""
    world, controller = fitting([Square(2)])
    controller.tick(0.0)
    world.breaks["update"] = ValueError("an odd snapshot")
    controller.tick(130.0)
    assert world.adopted == []
    world.breaks.clear()
    controller.tick(190.0)
    assert [answer for answer, _ in world.adopted] == [4]


def test_a_fit_that_fails_leaves_the_old_model_and_says_why() -> None:
    """The gap is in the record of the tick that learned of it, and the next fit is run."""
    world, controller = fitting([Fails(), Square(3)])
    for now_s in (0.0, 100.0):
        controller.tick(now_s)
    assert gaps_of(world) == (Gap("world", "fit", "", "the previous models stay in use: ZeroDivisionError: no rows"),)
    assert world.adopted == []
    controller.tick(200.0)
    assert [answer for answer, _ in world.adopted] == [9]


def test_what_a_forecaster_does_not_adopt_is_told() -> None:
    """A forecaster may refuse what a fit gave; its reason is in the record."""
    world, controller = fitting([Square(2)])
    world.refuses = "the gate refused it"
    for now_s in (0.0, 100.0):
        controller.tick(now_s)
    assert [gap.reason for gap in gaps_of(world)] == ["the previous models stay in use: the gate refused it"]


def test_without_a_worker_nothing_is_fitted() -> None:
    """A fit is not even asked for."""
    world = Learner(snapshot("1x8", []), [Square(2)])
    built(world).tick(0.0)
    assert len(world.fits) == 1


def test_who_does_not_lead_does_not_tick() -> None:
    """Without the lease nothing is read, decided or done."""
    world, quiet = one_waits(), Quiet()
    quiet.leads = False
    assert built(world, quiet).tick(0.0) is None
    assert world.log == []


@pytest.mark.parametrize("where", ["collect", "apply", "forecast"])
def test_broken_code_stops_the_tick(where: str) -> None:
    """An invariant that broke passes through to the caller, from every adapter."""
    world = one_waits()
    world.breaks[where] = InvariantError("broken")
    with pytest.raises(InvariantError, match="broken"):
        built(world).tick(0.0)


def test_a_record_that_cannot_be_written_stops_the_effects() -> None:
    """When the journal cannot take the intent, nothing is saved and nothing is done."""
    world = one_waits()
    world.breaks["intend"] = OSError("disk full")
    with pytest.raises(OSError, match="disk full"):
        built(world).tick(0.0)
    assert "save" not in world.log
    assert "apply" not in world.log


def test_a_command_survives_a_tick_that_broke() -> None:
    """A kill that arrives in a tick which breaks is obeyed in the next one."""
    world, quiet = one_waits(), Quiet()
    quiet.commands = [Command(CommandKind.KILL, "ann", 0.0)]
    world.breaks["intend"] = InvariantError("broken")
    controller = built(world, quiet)
    with pytest.raises(InvariantError):
        controller.tick(0.0)
    world.breaks.clear()
    step = controller.tick(1.0)
    assert step is not None
    assert step.decision.halted == "kill switch"


def test_models_learn_from_the_tick_that_confirms_a_loss() -> None:
    """A list without most of its workloads is suspect; once a person confirms the loss, its tick is like any other."""
    world, quiet = World(snapshot("1x8", [waits(f"w{number}", 1) for number in range(40)])), Quiet()
    controller = built(world, quiet)
    controller.tick(0.0)
    world.snap = snapshot("1x8", [waits("w0", 1)])
    world.log.clear()
    controller.tick(1.0)
    assert "update" not in world.log
    quiet.commands = [Command(CommandKind.CONFIRM, "ann", 2.0, "world", sequence=1)]
    step = controller.tick(2.0)
    assert step is not None
    assert not step.decision.halted
    assert "update" in world.log


def test_a_switch_that_is_on_halts_the_loop() -> None:
    """The kill switch is read in every tick."""
    world, quiet = one_waits(), Quiet()
    quiet.killed = True
    step = built(world, quiet).tick(0.0)
    assert step is not None
    assert step.decision.halted == "kill switch"
    assert "apply" not in world.log


def test_a_new_process_goes_on_from_saved_memory() -> None:
    """A controller loads the memory of the last one: its tick numbers go on and its effects are known."""
    world, store = one_waits(), InMemoryStore()
    first = built(world, memory=store).tick(0.0)
    assert first is not None
    again = built(world, memory=store)
    assert again.memory == first.memory
    step = again.tick(1.0)
    assert step is not None
    assert step.decision.tick == 1
    assert not step.instructions


def test_the_wake_up_counts_open_effects() -> None:
    """The loop wakes for the deadline of an effect that did not end at once."""
    world = one_waits()
    world.breaks["apply"] = TimeoutError("slow")
    controller = built(world)
    controller.tick(0.0)
    assert controller.wake_at_s <= 120.0
    world = World(snapshot("1x8", [holds("a", 8)]))
    idle = built(world)
    idle.tick(0.0)
    assert idle.wake_at_s == float("inf")
