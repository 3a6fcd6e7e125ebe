"""The times of the controller's two loops: they wake at fixed steps, and pass over the queue if it changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor, inf

from simulator.baselines.slurm.config import Config

WAKE_S = 1.0
"""The main loop wakes once a second; the backfill loop does so while it has nothing to do."""


@dataclass(slots=True)
class Loops:
    """`main_s` and `backfill_s` are the times of first wake-ups, the drifts the relative delay of each later step.

    `second` gives the whole second kept by Slurm for a time: intervals are compared in these.
    """

    config: Config
    main_s: float = 0.0
    backfill_s: float = 0.0
    main_drift: float = 0.0
    backfill_drift: float = 0.0
    second: Callable[[float], int] = floor
    _last_main_s: int = -(10**9)
    _last_full_s: int = 0
    _queued_s: float = inf  # since when a job was submitted or has ended after the last main pass
    _dirty_s: float = inf  # since when anything has changed after the last main pass
    _changed_s: float = -inf  # the last change, for the backfill loop
    _passed_s: float = -inf  # the last backfill pass
    _wake_s: float = -inf  # the last wake-up of the main loop that was used
    _kicked_s: float = inf

    def __post_init__(self) -> None:
        """The first full main pass is due at once."""
        self._last_full_s = self.second(self.main_s)

    def changed(self, now_s: float, *, queued: bool) -> None:
        """Jobs have changed; `queued`: one was submitted or has ended."""
        self._changed_s = now_s
        self._dirty_s = min(self._dirty_s, now_s)
        if queued:
            self._queued_s = min(self._queued_s, now_s)

    def kick(self, at_s: float) -> None:
        """Ask for a main pass at this time: preempted work has left its nodes."""
        self._kicked_s = at_s

    def next_main_s(self) -> float:
        """Time of the next main pass; inf if nothing asks for it."""
        return min(self._kicked_s, self._event_pass_s(), self._full_pass_s())

    def _wake_after(self, time_s: float) -> float:
        """The first wake-up of the main loop at or after a time, and after the last one used."""
        step_s = WAKE_S * (1 + self.main_drift)
        k = ceil((max(time_s, self._wake_s + step_s / 2) - self.main_s) / step_s - 1e-9)
        return self.main_s + max(k, 0) * step_s

    def _event_pass_s(self) -> float:
        if self._queued_s == inf:
            return inf
        last_s = max(self._last_main_s, self._full_before(self._queued_s))
        wake_s = self._wake_after(self._queued_s)
        while self.second(wake_s) - last_s < self.config.batch_sched_delay_s:
            wake_s += WAKE_S * (1 + self.main_drift)
        return wake_s

    def _full_before(self, time_s: float) -> int:
        """The second of the last full pass before a time; those without a change before them were left out."""
        every_s = self.config.sched_interval_s
        passed = max(0, (self.second(time_s) - 1 - self._last_full_s) // every_s)
        return self._last_full_s + passed * every_s

    def _full_pass_s(self) -> float:
        if self._dirty_s == inf:
            return inf
        due_s = self._full_before(self._dirty_s)
        wake_s = self._wake_after(self._dirty_s)
        while self.second(wake_s) - due_s < self.config.sched_interval_s:
            wake_s += WAKE_S * (1 + self.main_drift)
        return wake_s

    def main_done(self, at_s: float) -> None:
        """A main pass ran at this time."""
        if at_s == self._kicked_s:
            self._kicked_s = inf
            return
        full = at_s == self._full_pass_s()
        before_s = self._full_before(at_s)
        self._last_main_s = self.second(at_s)
        self._last_full_s = self._last_main_s if full else before_s
        self._wake_s = at_s
        self._queued_s = self._dirty_s = inf

    def next_backfill_s(self) -> float:
        """Time of the next backfill pass; inf if nothing has changed since the last one."""
        if not self.config.backfill:
            return inf
        stretch = 1 + self.backfill_drift
        if self._passed_s == -inf:
            every_s = self.config.bf_interval_s * stretch
            k = max(0, ceil((self._changed_s - self.backfill_s) / every_s)) if self._changed_s > -inf else 0
            return self.backfill_s + k * every_s if self._changed_s > -inf else inf
        due_s = self._passed_s + self.config.bf_interval_s * stretch
        if self.second(self._changed_s) < self.second(self._passed_s):
            return inf
        late_s = self._changed_s - due_s
        return due_s + (ceil(late_s / WAKE_S) * WAKE_S * stretch if late_s > 0 else 0.0)

    def backfill_done(self, at_s: float) -> None:
        """A backfill pass ran at this time."""
        self._passed_s = at_s
