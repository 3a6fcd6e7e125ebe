"""Where fits are run: one at a time, within their limits, and never waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from threadpoolctl import threadpool_limits

from autopilot.core.model.errors import InvariantError
from autopilot.core.model.policy.bounds import Forecasting
from autopilot.core.model.ports import Fit, FitWork
from autopilot.worker import BackgroundWorker, FitError, InlineWorker, in_process
from models.bursts import Bursts
from tests.kits.core_world import AUTO
from tests.kits.fit_works import Dies, Fails, Spins, Square, Threads
from tests.kits.processes import gone
from tests.properties.strategies import Held as PolicyHeld
from tests.service.kit import poll
from tests.tidy.tree import ROOT
from tests.unit.models.test_bursts import calm, seen
from tests.unit.shell.test_controller import World, built

RULES = Forecasting(fit_delay_s=120.0)
PATIENCE_S = 30.0


class Held:
    """Stands for the process: a fit that ends when the test says so. `kept` is set once its result was stored."""

    def __init__(self) -> None:
        self.begun, self.release, self.kept = Event(), Event(), Event()

    def __call__(self, work: FitWork, rules: Forecasting) -> Any:
        """Wait for the word, then fit."""
        self.begun.set()
        assert self.release.wait(PATIENCE_S)
        return work.run()

    def keep(self, owner: str, result: Any) -> str:
        """Take it."""
        self.kept.set()
        return ""


def taken(worker: BackgroundWorker) -> Fit:
    """The fit whose thread has said that it is nearly done."""
    return worker._ended.get(timeout=PATIENCE_S)  # the tests may wait where the loop may not


def test_an_inline_fit_is_seen_after_its_virtual_delay_once() -> None:
    """It ran at once; until the delay is over the result is invisible, and no other fit starts."""
    worker = InlineWorker()
    worker.start("model", Square(7), 1000.0, RULES)
    assert not worker.idle()
    assert worker.ended(1119.9) is None
    found = worker.ended(1120.0)
    assert found == Fit("model", (49, os.getpid()))
    assert worker.idle()
    assert worker.ended(5000.0) is None


def test_a_fit_beside_the_loop_is_not_waited_for() -> None:
    """While it runs the loop is told that there is nothing; its end is told once."""
    held = Held()
    worker = BackgroundWorker(held.keep, held)
    worker.start("model", Square(7), 0.0, RULES)
    assert held.begun.wait(PATIENCE_S)
    assert worker.ended(10_000.0) is None  # hours of the loop's time: only the thread's word counts
    assert not worker.idle()
    held.release.set()
    assert held.kept.wait(PATIENCE_S)
    assert taken(worker) == Fit("model", (49, os.getpid()))


def test_the_loop_takes_a_fit_that_has_ended_and_may_begin_the_next() -> None:
    """One at a time: the next begins when the last was taken."""
    worker = BackgroundWorker(run=lambda work, _rules: work.run())
    for value in (2, 3):
        worker.start("model", Square(value), 0.0, RULES)
        worker._ended.put(taken(worker))  # it has ended for sure now
        found = worker.ended(0.0)
        assert found is not None
        assert found.result[0] == value**2
        assert worker.idle()
        assert worker.ended(0.0) is None


@pytest.mark.parametrize("worker", [InlineWorker(), BackgroundWorker(run=Held())], ids=["inline", "beside"])
def test_two_fits_at_once_are_a_defect(worker: InlineWorker | BackgroundWorker) -> None:
    """Callers have to check first."""
    worker.start("model", Square(1), 0.0, RULES)
    with pytest.raises(InvariantError, match="one fit at a time"):
        worker.start("other", Square(1), 0.0, RULES)


def test_a_fit_that_fails_gives_its_reason() -> None:
    """Inline and beside the loop alike; the worker is free again."""
    inline, beside = InlineWorker(), BackgroundWorker(run=lambda work, _rules: work.run())
    inline.start("model", Fails(), 0.0, RULES)
    assert inline.ended(120.0) == Fit("model", None, "ZeroDivisionError: no rows")
    beside.start("model", Fails(), 0.0, RULES)
    assert taken(beside) == Fit("model", None, "ZeroDivisionError: no rows")
    assert inline.idle()


def test_what_could_not_be_stored_is_not_used() -> None:
    """The store says why, or breaks: either way there is a problem and no result."""

    def breaks(_owner: str, _result: Any) -> str:
        raise OSError("no space left")

    for keep, problem in ((lambda *_: "it is refused", "it is refused"), (breaks, "OSError: no space left")):
        worker = InlineWorker(keep)
        worker.start("model", Square(1), 0.0, RULES)
        assert worker.ended(120.0) == Fit("model", None, problem)


# --- the process ------------------------------------------------------------------------------------


def test_a_fit_runs_in_a_process_of_its_own_on_one_thread() -> None:
    """What it gives comes back; every pool of a library there has one thread, whatever the environment says."""
    threads, process = in_process(Threads(), RULES)
    assert threads == {1}
    assert process != os.getpid()


def test_a_fit_inside_this_process_runs_on_one_thread_too() -> None:
    """The limit is that of the fit alone: it is given back."""
    worker = InlineWorker()
    with threadpool_limits(limits=2):
        worker.start("model", Threads(), 0.0, RULES)
        found = worker.ended(120.0)
        assert found is not None
        assert found.result == ({1}, os.getpid())
        assert max(Threads().run()[0]) == 2


@pytest.mark.parametrize(
    ("work", "rules", "words"),
    [
        (Fails(), RULES, "ZeroDivisionError: no rows"),
        (Dies(), RULES, "its process exited with 3 and no result"),
        (Spins(), Forecasting(fit_cpu_s=1.0), "exceeded its 1 s of CPU and was stopped"),
        (Spins(), Forecasting(fit_timeout_s=1.0), "did not finish within 1 s and was stopped"),
    ],
    ids=["fails", "dies", "over its CPU", "over its time"],
)
def test_a_fit_that_goes_wrong_ends_with_a_reason(work: FitWork, rules: Forecasting, words: str) -> None:
    """A failure, a crash and both limits are told apart."""
    with pytest.raises(FitError, match=words):
        in_process(work, rules)


# --- in the loop ------------------------------------------------------------------------------------


def foreseen(worker: InlineWorker | BackgroundWorker) -> tuple[list[tuple[str, ...]], list[float]]:
    """Seventy minutes of two services through the controller: who spoke for them, and the bounds of the last minute."""
    world = World(seen(["a", "b"], [10.0, 10.0]))
    rules = replace(AUTO, forecasting=RULES)
    controller = built(world, forecasters=[Bursts(5)], worker=worker, policy=PolicyHeld(rules))
    chosen, bounds = [], [0.0]
    for minute, rates in enumerate(calm(70, 2).tolist()):
        world.snap = seen(["a", "b"], rates)
        controller.tick(60.0 * minute + 6.0)
        observation, *_ = world.seen[-2]
        forecast = observation.forecasts.demand[0]
        chosen.append(forecast.chosen)
        bounds = forecast.values.ravel().tolist()
    return chosen, bounds


def test_the_same_seed_gives_the_same_run() -> None:
    """The fit of the sixtieth minute is seen two minutes later, in every run; its bounds are the same to the bit."""
    chosen, bounds = foreseen(InlineWorker())
    again, bounds_again = foreseen(InlineWorker())
    assert chosen == again
    assert bounds == bounds_again
    spoke = [at for at, names in enumerate(chosen) if names != ("last-value",) * 2]
    assert spoke[0] == 62
    assert len(spoke) == 8


def test_ticks_go_on_while_a_fit_is_held_up() -> None:
    """A fit that does not end delays no tick: the floor serves to the last minute."""
    held = Held()
    chosen, bounds = foreseen(BackgroundWorker(run=held))
    assert held.begun.wait(PATIENCE_S)
    assert chosen == [("last-value",) * 2] * 70
    assert all(bound > 0.0 for bound in bounds)
    held.release.set()


def test_the_process_of_a_fit_ends_with_its_controller(tmp_path: Path) -> None:
    """Also where the controller is killed, and can tell no process."""
    told = tmp_path / "pid"
    code = "import sys; from tests.kits.fit_works import Tells; from autopilot.worker import in_process; "
    code += "from autopilot.core.model.policy.bounds import Forecasting; in_process(Tells(sys.argv[1]), Forecasting())"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(told)], env=os.environ | {"PYTHONPATH": str(ROOT)}
    ) as parent:
        pid = int(poll(lambda: told.read_text("utf-8") if told.exists() else "", "the fit begins"))
        parent.kill()
    try:
        poll(lambda: gone(pid), "the fit ends")
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # a fit that stays would go round for good
