"""Progress of jobs and the losses of stops: seconds at full width.

A job alone on its GPUs makes a second of progress in a second; one on shared GPUs has a pace
(simulator/world/sharing.py).
"""

from __future__ import annotations

from abc import abstractmethod
from math import floor, nan

from simulator.world.breakable import Breakable
from simulator.world.hardware import Held
from simulator.world.physics import TICKS_PER_S, up_to_grid
from simulator.world.progress import Checkpoints

READY, END, VACATE, GIVE_UP = 0, 1, 2, 3
"""Kinds of the events that the cluster requests from its engine: start-up done, work done, evicted work has left, a
gang that lost a member fails.
"""


class Gaining(Breakable):
    """Jobs on fallible hardware, with their progress."""

    checkpoints: Checkpoints

    @abstractmethod
    def paced_s(self, job: int, halt_s: float) -> float | None:
        """Progress of the present incarnation of a job on shared GPUs up to a time; None for any other job."""

    @abstractmethod
    def halted(self, job: int, now_s: float) -> None:
        """A job on shared GPUs works no more, or works again: the pace of the others changes."""

    def _full_milli(self, job: int, held: Held) -> int:
        """Width of a counted second of progress (milli)."""
        if len(held.gpus) == self.jobs.gpus[job]:
            return held.milli
        return self.jobs.shape_of(job).full_milli

    def left_s(self, job: int) -> float:
        """Time from the end of its start-up to the end of its work, alone on its GPUs."""
        held, left_s = self.held[job], self.jobs.duration_s[job] - self.served_s[job]
        if held is not None and len(held.gpus) != self.jobs.gpus[job]:
            left_s = up_to_grid(left_s * self._full_milli(job, held) / held.milli)
        return left_s

    def _halt_s(self, job: int, now_s: float) -> float:
        """End of the useful work of a job with GPUs: now, or the time of its eviction or of the loss of a member."""
        if job in self.leaving:
            now_s = min(now_s, self.leaving[job].since_s)
        if job in self.paused:
            now_s = min(now_s, self.paused[job])
        return min(now_s, self.stale[job]) if job in self.stale else now_s

    def _gain_s(self, job: int, now_s: float) -> float:
        """Progress of the present incarnation up to `now_s`, rounded down to the grid."""
        elapsed_s = self._halt_s(job, now_s) - self.ready_s[job] - self.waited_s.get(job, 0.0)
        if elapsed_s <= 0:
            return 0.0
        held, paced_s = self.held[job], self.paced_s(job, self._halt_s(job, now_s))
        if paced_s is not None:
            elapsed_s = floor(paced_s * TICKS_PER_S + 1e-6) / TICKS_PER_S
        elif held is not None and len(held.gpus) != self.jobs.gpus[job]:
            elapsed_s = floor(elapsed_s * TICKS_PER_S * held.milli / self._full_milli(job, held)) / TICKS_PER_S
        return min(elapsed_s, self.jobs.duration_s[job] - self.served_s[job])

    def _lost_s(self, job: int, now_s: float, gain_s: float) -> float:
        """Progress lost by a stop now; nothing once the checkpoint of its eviction is written."""
        if job in self.leaving and self.leaving[job].saved(now_s):
            return 0.0
        return self.checkpoints.loss_s(job, self.served_s[job], gain_s, self.incarnation[job], now_s)

    def progress_s(self, job: int, now_s: float) -> float:
        """All progress of a job, as if none were lost: seconds at full width."""
        return self.served_s[job] + (self._gain_s(job, now_s) if job in self.holding else 0.0)

    def last_checkpoint_s(self, job: int, now_s: float) -> float:
        """Time of the newest periodic checkpoint of the present incarnation; NaN if none was made."""
        interval_s = self.checkpoints.interval_s(job)
        gain_s = self._gain_s(job, now_s) if job in self.holding else 0.0
        if not 0 < interval_s <= gain_s:
            return nan
        return self.ready_s[job] + floor(gain_s / interval_s) * interval_s
