"""The pulse of the loop. A process with a hanging loop says so, lets another controller lead, and ends itself.

A thread of its own looks once a second. It counts the time in which it runs itself, so a process or a machine that was
stopped for a while is not taken for a hanging one.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog

log: Any = structlog.get_logger("service")

FIRST_S = 600.0
"""Longest time without a whole tick before the first complete list of the cluster."""
LEAST_S, PERIODS = 60.0, 3.0
"""Longest time without a whole tick afterwards: `LEAST_S`, or this many periods of the loop if that is longer."""
SHOWN_S = 10.0
"""Time from the report of a hanging loop to the end: /healthz shows the reason, and the Lease lapses."""
ENDS_S = 9.0
"""Longest time from SIGTERM or SIGINT to the end of the process."""
LOOK_S = 1.0


def _end(_reason: str) -> None:
    """Leave at once: a hanging thread cannot be asked to end, and the disk is whole at any moment."""
    with suppress(Exception):
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
    os._exit(1)


class Pulse:
    """Counts the time since the last whole tick. `beat` and `looked` may be called from any thread."""

    def __init__(
        self,
        period_s: float,
        stop: Callable[[], None] = lambda: None,
        end: Callable[[str], None] = _end,
        *,
        first_s: float = FIRST_S,
        least_s: float = LEAST_S,
    ) -> None:
        """`period_s`: wall time between two ticks. `stop` asks the loop to end, `end` ends the process."""
        self._first_s, self._later_s = first_s, max(least_s, PERIODS * period_s)
        self.stop, self._end = stop, end
        self._limit_s, self._silent_s = max(first_s, self._later_s), 0.0
        self._ending_s: float | None = None  # time since a signal asked for the end
        self.problem = ""  # reason for its own end; "" while it ticks

    def beat(self, *, listed: bool) -> None:
        """A tick ended. `listed`: it saw complete lists of the cluster."""
        self._silent_s = 0.0
        if listed:
            self._limit_s = self._later_s

    def looked(self, passed_s: float) -> None:
        """So much time has passed; judge."""
        if self._ending_s is not None:
            self._ending_s += passed_s
            if self._ending_s >= ENDS_S:
                self._leave(f"it did not end within {ENDS_S:.0f} s of the signal")
            return
        self._silent_s += passed_s
        if self._silent_s < self._limit_s:
            return
        if not self.problem:
            self.problem = f"no tick has ended for {self._limit_s:.0f} s; this process ends itself"
            log.error("the loop hangs", reason=self.problem, fix="report it with the stacks below the last log line")
            self.stop()
        elif self._silent_s >= self._limit_s + SHOWN_S:
            self._leave(self.problem)

    def ending(self) -> None:
        """A signal asked for the end: it comes within `ENDS_S`, even past a hanging thread."""
        if self._ending_s is None:
            self._ending_s = 0.0

    def start(self) -> None:
        """Look from now on, until the process ends; only the main thread may call it.

        Signals are seen also while the main thread hangs in a call.
        """
        caught, tell = socket.socketpair()
        tell.setblocking(False)
        signal.set_wakeup_fd(tell.detach(), warn_on_full_buffer=False)
        threading.Thread(target=self._run, args=(caught,), name="pulse", daemon=True).start()

    def _run(self, signals: socket.socket) -> None:
        before_s = time.monotonic()
        while True:
            if select.select([signals], [], [], LOOK_S)[0]:
                caught = signals.recv(64)
                if set(caught) & {signal.SIGTERM, signal.SIGINT}:
                    self.ending()
            now_s = time.monotonic()
            self.looked(min(now_s - before_s, 2.0 * LOOK_S))
            before_s = now_s

    def _leave(self, reason: str) -> None:
        log.error("ended at once", reason=reason)
        self._end(reason)
