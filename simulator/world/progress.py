"""The cost of starting, saving and stopping a job: duration of a start, of a checkpoint, and the loss of a stop.

Progress is in seconds at a job's full width. Checkpoints are written to one store with bandwidth for a number of
writers at a time; the others queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapreplace
from math import inf, isnan, nan
from typing import NamedTuple

from autopilot.core.model.snapshot import SloClass
from simulator.world.facts import Why
from simulator.world.physics import TICKS_PER_S, Physics, on_grid, up_to_grid
from simulator.world.work import Jobs


class Write(NamedTuple):
    """One requested checkpoint; infinity if it is not written within the grace period."""

    done_s: float = inf
    alone_s: float = inf  # completion time if no other write used bandwidth


NO_WRITE = Write()


class Saved(NamedTuple):
    """A checkpoint requested of running work, and its progress of the incarnation."""

    incarnation: int
    gain_s: float
    write: Write


class Leaving(NamedTuple):
    """An evicted job: it no longer works, and holds its GPUs."""

    why: Why
    since_s: float
    write: Write

    def saved(self, now_s: float) -> bool:
        """True if its checkpoint is written."""
        return self.write.done_s <= now_s

    def starved(self, now_s: float) -> bool:
        """True if it would have its checkpoint by now, or would have been allowed to write it, with the store to
        itself.
        """
        if self.write.done_s == inf:
            return self.write.alone_s < inf
        return self.write.alone_s <= now_s < self.write.done_s


class Checkpoints:
    """Checkpoint intervals and durations of jobs, and the losses without."""

    def __init__(self, jobs: Jobs, physics: Physics) -> None:
        """No writer is busy."""
        self._jobs, self._physics = jobs, physics
        count = int(physics.store_gib_per_s // physics.checkpoint_gib_per_s) if physics.writes_checkpoints else 1
        self._writers = [0.0] * max(1, count)  # when each is free
        self._saved: dict[int, Saved] = {}

    def interval_s(self, job: int) -> float:
        """Progress between two checkpoints; infinity if the job cannot resume, 0 if it never loses any."""
        stated_s = self._jobs.checkpoint_interval_s[job]
        if not self._physics.checkpoint_interval_s:
            return 0.0
        if not isnan(stated_s):
            return stated_s
        return self._physics.checkpoint_interval_s if self._jobs.slo_class[job] == SloClass.BATCH else inf

    def stated_interval_s(self, job: int) -> float:
        """The stated interval: the job's own, or the maximum loss of a stop if it is fixed."""
        stated_s = self._jobs.checkpoint_interval_s[job]
        return stated_s if self._physics.checkpoint_interval_s or stated_s == inf else self._physics.flat_loss_s

    def saves(self, job: int) -> bool:
        """True if it declares to save its progress at an eviction; if saving takes no time it writes nothing."""
        return self._jobs.saves_on_request[job] and self.interval_s(job) < inf

    def on_request(self, job: int) -> bool:
        """True if it writes a checkpoint at an eviction."""
        return self.saves(job) and not isnan(self.write_s(job))

    def restart_s(self, job: int) -> float:
        """Time from placement to the first useful step after a stop, on nodes with its image."""
        return self._physics.restart_s(self._jobs.restart_s[job], self.size_gib(job), image_cached=True)

    def size_gib(self, job: int) -> float:
        """Size of one checkpoint of the whole gang."""
        return self._physics.checkpoint_size_gib(self._jobs.checkpoint_gib[job], self._jobs.gpus[job])

    def write_s(self, job: int) -> float:
        """Time of an undisturbed write; NaN if none is written or the job cannot resume from one."""
        if not self._physics.writes_checkpoints or self.interval_s(job) == inf:
            return nan
        return self._physics.write_s(self.size_gib(job))

    def loss_s(self, job: int, served_s: float, gain_s: float, incarnation: int = -1, now_s: float = inf) -> float:
        """Progress lost by a stop without a fresh checkpoint, after `gain_s` on top of `served_s`.

        `incarnation`, `now_s`: of running work, which may have been asked for a checkpoint before.
        """
        periodic_s = self._periodic_loss_s(job, served_s, gain_s)
        return min(periodic_s, max(gain_s - self._asked_s(job, incarnation, now_s), 0.0))

    def _periodic_loss_s(self, job: int, served_s: float, gain_s: float) -> float:
        progress_s = served_s + gain_s
        interval_s = self.interval_s(job)
        if interval_s == inf:
            return progress_s
        since_s = on_grid(gain_s % interval_s) if interval_s else 0.0
        return min(max(since_s, self._physics.flat_loss_s), progress_s)

    def ask(self, job: int, now_s: float, within_s: float | None = None) -> Write:
        """Request a checkpoint now: its place in the queue of the store, if its turn comes within the grace period, or
        within `within_s`.
        """
        write_s = self.write_s(job)
        if not self.on_request(job):
            return NO_WRITE
        alone_s, done_s = up_to_grid(now_s + write_s), up_to_grid(max(now_s, self._writers[0]) + write_s)
        last_s = now_s + (self._physics.grace_s if within_s is None else within_s)
        if alone_s > last_s:
            return NO_WRITE
        if done_s > last_s:
            return Write(inf, alone_s)
        heapreplace(self._writers, done_s)  # one writer of the store's bandwidth is busy until then
        next_s = now_s + 1 / TICKS_PER_S
        return Write(max(done_s, next_s), max(alone_s, next_s))

    def save(self, job: int, incarnation: int, gain_s: float, now_s: float, within_s: float) -> float:
        """Write a checkpoint of running work with a gain of `gain_s`; the time of its completion, infinity if it is not
        complete within `within_s`.
        """
        write = self.ask(job, now_s, within_s) if gain_s > 0 else NO_WRITE
        if write.done_s < inf:
            self._saved[job] = Saved(incarnation, gain_s, write)
        return write.done_s

    def _asked_s(self, job: int, incarnation: int, now_s: float) -> float:
        """Progress of an incarnation in the last such checkpoint; minus infinity without one."""
        saved = self._saved.get(job)
        known = saved is not None and saved.incarnation == incarnation and saved.write.done_s <= now_s
        return saved.gain_s if saved is not None and known else -inf

    def no_turn(self, job: int, now_s: float) -> Write:
        """A checkpoint not requested, because other writes last beyond the grace period."""
        write_s = self.write_s(job)
        in_time = self.on_request(job) and write_s <= self._physics.grace_s
        alone_s = up_to_grid(now_s + write_s) if in_time else inf
        return Write(inf, alone_s)

    def keeps(self, job: int, write: Write) -> bool:
        """True if the job leaves with its progress saved: by this write, or because saving takes no time here."""
        return write.done_s < inf or (not self._physics.writes_checkpoints and self.interval_s(job) < inf)


class Startups:
    """Duration from placement to the first useful step of a job."""

    def __init__(self, jobs: Jobs, physics: Physics, checkpoints: Checkpoints) -> None:
        """No node has an image yet."""
        self._jobs, self._physics, self._checkpoints = jobs, physics, checkpoints
        self._images: set[tuple[int, int, str]] = set()

    def pull(self, job: int, nodes: Iterable[int]) -> bool:
        """Mark the images of the job's kind as present on these nodes; returns True if all had them before."""
        images = [(node, self._jobs.tenant[job], self._jobs.kind[job]) for node in nodes]
        cached = all(image in self._images for image in images)
        self._images.update(images)
        return cached

    def startup_s(self, job: int, nodes: Iterable[int], *, again: bool) -> float:
        """Time of a start on these nodes, the slowest deciding; `again`: of work stopped before."""
        physics, jobs = self._physics, self._jobs
        cached = self.pull(job, nodes)
        if again:
            size_gib = self._checkpoints.size_gib(job)
            return up_to_grid(physics.restart_s(jobs.restart_s[job], size_gib, cached))
        service = jobs.slo_class[job] == SloClass.LATENCY_CRITICAL
        return up_to_grid(physics.first_start_s(service, jobs.restart_s[job], cached))
