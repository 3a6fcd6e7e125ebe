"""Runs the fits of models: live in a process beside the loop; in a simulation immediately, with the result delayed.

One fit at a time, on one thread. The loop polls for results and never waits for a fit.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any

from autopilot.core.model.errors import invariant
from autopilot.core.model.policy.bounds import Forecasting
from autopilot.core.model.ports import Fit, FitWork
from autopilot.core.model.units import format_duration

NICENESS = 10
"""Niceness of a fit relative to the loop."""

Keep = Callable[[str, Any], str]
"""Stores the result of a fit; returns the reason against its use, "" without one."""

Run = Callable[[FitWork, Forecasting], Any]
"""Runs a fit within its limits. Exceptions of the fit pass through."""


class FitError(Exception):
    """A fit without a result, with the reason."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Fit on one thread, independent of the environment: another order of summation gives other models."""
    import sklearn.ensemble  # noqa: F401 - only pools of libraries that are loaded can be limited
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):
        yield


class InlineWorker:
    """Runs a fit immediately and returns its result `fit_delay_s` of virtual time later (port `Worker`)."""

    def __init__(self, keep: Keep | None = None) -> None:
        self._keep = keep
        self._ready_s = float("inf")
        self._fit: Fit | None = None

    def idle(self) -> bool:
        """True if no result is pending."""
        return self._fit is None

    def start(self, owner: str, work: FitWork, now_s: float, rules: Forecasting) -> None:
        """Fit now. Equal work gives equal models, so a run depends on its seed alone."""
        invariant(self._fit is None, "worker: one fit at a time")
        self._fit = _run_and_keep(owner, work, rules, _here, self._keep)
        self._ready_s = now_s + rules.fit_delay_s

    def ended(self, now_s: float) -> Fit | None:
        """The result, once its delay is over."""
        if self._fit is None or now_s < self._ready_s:
            return None
        fit, self._fit = self._fit, None
        return fit


class BackgroundWorker:
    """Runs a fit in a separate process, supervised by a thread (port `Worker`)."""

    def __init__(self, keep: Keep | None = None, run: Run | None = None) -> None:
        """`run` replaces the process in tests."""
        self._keep, self._run = keep, run or in_process
        self._ended: SimpleQueue[Fit] = SimpleQueue()
        self._busy = False  # accessed by the loop's thread only

    def idle(self) -> bool:
        """True if no fit is under way or waits to be collected."""
        return not self._busy

    def start(self, owner: str, work: FitWork, now_s: float, rules: Forecasting) -> None:
        """Start the fit and return."""
        invariant(not self._busy, "worker: one fit at a time")
        self._busy = True

        def look_after() -> None:
            self._ended.put(_run_and_keep(owner, work, rules, self._run, self._keep))

        # a daemon: stopping the controller does not wait for a fit
        threading.Thread(target=look_after, name=f"fit of {owner}", daemon=True).start()

    def ended(self, now_s: float) -> Fit | None:
        """The fit ended since the last call."""
        try:
            fit = self._ended.get_nowait()
        except Empty:
            return None
        self._busy = False
        return fit


def _run_and_keep(owner: str, work: FitWork, rules: Forecasting, run: Run, keep: Keep | None) -> Fit:
    """Run and store a fit; an exception becomes its problem, and the previous models stay in use."""
    try:
        result = run(work, rules)
        problem = keep(owner, result) if keep is not None else ""
    except Exception as error:  # noqa: BLE001 - a fit must not stop the loop
        words = str(error) if isinstance(error, FitError) else f"{type(error).__name__}: {error}"
        return Fit(owner, None, words)
    return Fit(owner, None, problem) if problem else Fit(owner, result)


def _here(work: FitWork, _rules: Forecasting) -> Any:
    with one_thread():
        return work.run()


def in_process(work: FitWork, rules: Forecasting) -> Any:
    """Fit in a new process, niced, within `rules.fit_cpu_s` of CPU and `rules.fit_timeout_s`.

    Raises `FitError` if it exceeds a limit, ends without a result, or fails. The result is unpickled: it comes from our
    own child through its own pipe. Files on disk are never unpickled.
    """
    context = multiprocessing.get_context("spawn")  # a fork would copy locks held by other threads
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_fit_alone, args=(sender, work, rules.fit_cpu_s), name="fit", daemon=True)
    try:
        process.start()
        sender.close()
        if not receiver.poll(rules.fit_timeout_s):
            raise FitError(f"did not finish within {format_duration(rules.fit_timeout_s)} and was stopped")
        result, problem = receiver.recv()
    except EOFError:
        process.join()
        raise FitError(_why_it_ended(process.exitcode, rules)) from None
    finally:
        receiver.close()
        if process.pid is not None:
            process.kill()
            process.join()
    if problem:
        raise FitError(problem)
    return result


def _why_it_ended(status: int | None, rules: Forecasting) -> str:
    if status == -signal.SIGXCPU:
        return f"exceeded its {format_duration(rules.fit_cpu_s)} of CPU and was stopped"
    if status is not None and status < 0:
        return f"its process was terminated by {signal.Signals(-status).name}"
    return f"its process exited with {status} and no result"


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _fit_alone(sender: Connection, work: FitWork, cpu_s: float) -> None:
    """The body of the process. It ends with the controller, even a killed one."""
    threading.Thread(target=_end_with_parent, name="tied", daemon=True).start()
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hardest = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (ceil(cpu_s), hardest))
    try:
        with one_thread():
            answer = (work.run(), "")
    except Exception as error:  # noqa: BLE001 - the parent is told
        answer = (None, f"{type(error).__name__}: {error}")
    sender.send(answer)
