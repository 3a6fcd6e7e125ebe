"""GPU-seconds are conserved: allocated ones are useful, lost or overhead; the rest of the capacity was idle.

Useful and lost time are recomputed from starts, evictions, resizes and stops, with the physics' durations of a
start, a checkpoint and a resize, and compared with the cluster's statements and the accounts. Two things are not
in the facts: whether the store had time for a checkpoint, and when a gang lost a member. There the cluster's statement
is checked for plausibility.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import fsum, inf, isnan
from typing import Protocol

from autopilot.core.model.snapshot import SloClass
from simulator.checkers.base import Checker, World
from simulator.world.facts import Evicting, Paced, Paused, Started, Stopped, Why
from simulator.world.physics import TICKS_PER_S, Physics, on_grid, up_to_grid

KEEPS_ALL = (Why.END, Why.CUT, Why.RETIRE, Why.RESIZE)
"""Stops that lose nothing."""

GOES_ON = (Why.PREEMPT, Why.MOVE, Why.FAULT, Why.RECOVER, Why.PARK, Why.RESIZE)
"""Stops after which the work runs again, so that a later stop may lose what it did before."""


PACED_TICKS = 2
"""Rounding of progress at changing rates."""


class Booked(Protocol):
    """Integer GPU time in the accounts."""

    allocated: int
    useful: int
    lost: int
    overhead: int


@dataclass(slots=True)
class _Stay:
    """One stay on GPUs: start, width, readiness, eviction, (from, rate) of each pace on shared GPUs, and pauses."""

    since_s: float
    milli: int
    ready_s: float
    evicted_s: float = inf
    paces: list[tuple[float, float]] = field(default_factory=list)
    pauses: list[tuple[float, float]] = field(default_factory=list)  # from, until; inf: open

    def worked_ticks(self, ready_s: float, halt_s: float) -> int:
        """The most progress between two times, in ticks."""
        if not self.paces:
            waited_s = sum(max(min(until_s, halt_s) - from_s, 0.0) for from_s, until_s in self.pauses)
            return int((halt_s - ready_s - waited_s) * TICKS_PER_S)
        ends_s = [at_s for at_s, _ in self.paces[1:]] + [inf]
        spans = zip(self.paces, ends_s, strict=True)
        worked_s = [max(min(end_s, halt_s) - max(at_s, ready_s), 0.0) * rate for (at_s, rate), end_s in spans]
        return int(fsum(worked_s) * TICKS_PER_S) + PACED_TICKS


@dataclass(slots=True)
class _Seen:
    """GPU time of one tenant as it was observed, in the unit of the accounts."""

    allocated: int = 0
    useful: int = 0
    lost: int = 0


class Conservation(Checker):
    """Recomputes each tenant's time from the events, and each job's work from its duration."""

    name = "conservation"

    def __init__(self, world: World) -> None:
        """Nothing was allocated yet."""
        super().__init__(world)
        self._stays: dict[int, _Stay] = {}
        self._resized: dict[int, float] = {}  # job that continues at this instant -> its expected readiness
        self._images: set[tuple[int, int, str]] = set()
        self._kept: dict[int, list[tuple[int, int]]] = {}  # (ticks, full width) that a stop may still lose
        self._seen: list[_Seen] = [_Seen() for _ in world.jobs.tenants]
        self._progress: dict[int, int] = {}  # ticks kept by jobs that were stopped before they ended
        self._capacity = 1000 * len(world.inventory.gpus.uuid)

    # --- facts ----------------------------------------------------------------------------

    def on_started(self, fact: Started) -> None:
        """Its time starts, and its start-up."""
        self._stays[fact.job] = _Stay(fact.at_s, fact.milli, self._ready_s(fact))

    def on_paced(self, fact: Paced) -> None:
        """On shared GPUs it goes on at another pace."""
        if fact.job in self._stays:
            self._stays[fact.job].paces.append((fact.at_s, fact.rate))

    def on_paused(self, fact: Paused) -> None:
        """It waits, or goes on."""
        stay = self._stays.get(fact.job)
        if stay is None:
            return
        if stay.pauses and stay.pauses[-1][1] == inf:
            stay.pauses[-1] = (stay.pauses[-1][0], inf if fact.on else fact.at_s)
        elif fact.on:
            stay.pauses.append((fact.at_s, inf))

    def on_evicting(self, fact: Evicting) -> None:
        """It stops working."""
        stay = self._stays.get(fact.job)
        if stay is not None:
            stay.evicted_s = min(stay.evicted_s, fact.at_s)

    def on_stopped(self, fact: Stopped) -> None:
        """Its time is the difference; an ended job did exactly its duration."""
        self.checked += 1
        stay = self._stays.pop(fact.job, _Stay(fact.at_s, 0, fact.ready_s))
        gain, lost = int(fact.gain_s * TICKS_PER_S), int(fact.lost_s * TICKS_PER_S)
        self._check_times(fact, stay, gain)
        if self.world.physics is not None:
            self._check_loss(fact, stay, gain, self.world.physics)
        if fact.why == Why.RESIZE:
            self._resized[fact.job] = stay.ready_s
            if lost:
                message = f"lost {fact.lost_s:g} s by a resize, which keeps all progress"
                self.violate(fact.at_s, self.job(fact.job), message)
        self._count(fact, stay, gain, lost)
        self._check_work(fact, gain - lost)

    # --- what it must have been -----------------------------------------------------------

    def _ready_s(self, fact: Started) -> float:
        """The time of its readiness to work, by the physics."""
        physics, jobs, job = self.world.physics, self.jobs, fact.job
        if physics is None:
            return fact.at_s
        node_of = self.world.inventory.gpus.node
        images = {(int(node_of[gpu]), jobs.tenant[job], jobs.kind[job]) for gpu in fact.gpus}
        cached = images <= self._images
        self._images |= images
        if job in self._resized:
            return max(self._resized.pop(job), fact.at_s) + up_to_grid(physics.resize_s)
        if fact.incarnation:
            size_gib = physics.checkpoint_size_gib(jobs.checkpoint_gib[job], jobs.gpus[job])
            return fact.at_s + up_to_grid(physics.restart_s(jobs.restart_s[job], size_gib, cached))
        service = jobs.slo_class[job] == SloClass.LATENCY_CRITICAL
        return fact.at_s + up_to_grid(physics.first_start_s(service, jobs.restart_s[job], cached))

    def _check_times(self, fact: Stopped, stay: _Stay, gain: int) -> None:
        """Start, readiness, halt and stop in order; no more progress than fits between, and no less."""
        job = self.job(fact.job)
        if not fact.start_s <= fact.ready_s <= fact.halt_s <= fact.at_s:
            self.violate(fact.at_s, job, "start, readiness, halt and stop are out of order")
        worked = stay.worked_ticks(fact.ready_s, fact.halt_s) * stay.milli
        if gain * fact.full_milli > worked:
            self.violate(
                fact.at_s,
                job,
                f"made {fact.gain_s:g} s of progress at full width in {fact.halt_s - fact.ready_s:g} s on "
                f"{stay.milli} of "
                f"{fact.full_milli} thousandths",
            )
        if self.world.physics is None:
            return
        ready_s = min(stay.ready_s, fact.at_s)
        if fact.ready_s != ready_s:
            message = (
                f"was ready {fact.ready_s - stay.since_s:g} s after its start, which takes {ready_s - stay.since_s:g} s"
            )
            self.violate(fact.at_s, job, message)
        if fact.halt_s > max(stay.evicted_s, fact.ready_s):
            message = f"worked on for {fact.halt_s - stay.evicted_s:g} s after its eviction"
            self.violate(fact.at_s, job, message)
        left = self.jobs.duration_s[fact.job] * TICKS_PER_S - self._progress.get(fact.job, 0)
        if stay.paces:
            left -= PACED_TICKS
            worked -= 2 * PACED_TICKS * stay.milli
        if fact.why != Why.END and fact.full_milli and gain < min(worked // fact.full_milli, left):
            message = f"made only {fact.gain_s:g} s of progress in {fact.halt_s - fact.ready_s:g} s of work"
            self.violate(fact.at_s, job, message)

    def _check_loss(self, fact: Stopped, stay: _Stay, gain: int, physics: Physics) -> None:
        """The loss of a stop: nothing if a checkpoint could be written in time, else the unsaved progress."""
        unsaved_s = 0.0 if fact.why in KEEPS_ALL else self._unsaved_s(fact, gain, physics)
        if fact.lost_s == unsaved_s or (not fact.lost_s and self._could_save(fact, stay, physics)):
            return
        self.violate(
            fact.at_s,
            self.job(fact.job),
            f"lost {fact.lost_s:g} s of progress by its stop, not {unsaved_s:g} s",
        )

    def _interval_s(self, job: int, physics: Physics) -> float:
        """Progress between two checkpoints; 0 if none is ever lost, infinity if the job cannot resume."""
        stated_s = self.jobs.checkpoint_interval_s[job]
        if not physics.checkpoint_interval_s:
            return 0.0
        if isnan(stated_s):
            return physics.checkpoint_interval_s if self.jobs.slo_class[job] == SloClass.BATCH else inf
        return stated_s

    def _unsaved_s(self, fact: Stopped, gain: int, physics: Physics) -> float:
        progress_s = (self._progress.get(fact.job, 0) + gain) / TICKS_PER_S
        interval_s = self._interval_s(fact.job, physics)
        if interval_s == inf:
            return progress_s
        since_s = on_grid(fact.gain_s % interval_s) if interval_s else 0.0
        return min(max(since_s, physics.flat_loss_s), progress_s)

    def _could_save(self, fact: Stopped, stay: _Stay, physics: Physics) -> bool:
        """True if the time from eviction to stop was enough for a checkpoint."""
        job = fact.job
        if not physics.writes_checkpoints or self._interval_s(job, physics) == inf:
            return False
        write_s = physics.write_s(physics.checkpoint_size_gib(self.jobs.checkpoint_gib[job], self.jobs.gpus[job]))
        in_time = write_s <= physics.grace_s and fact.at_s - stay.evicted_s >= write_s
        return self.jobs.saves_on_request[job] and in_time

    # --- what was seen --------------------------------------------------------------------

    def _count(self, fact: Stopped, stay: _Stay, gain: int, lost: int) -> None:
        """Add one stay to its tenant; losses are taken from the end of the job's progress."""
        tenant = self.jobs.tenant[fact.job]
        self._seen += [_Seen() for _ in range(tenant + 1 - len(self._seen))]
        seen, kept = self._seen[tenant], self._kept.setdefault(fact.job, [])
        seen.allocated += int((fact.at_s - stay.since_s) * TICKS_PER_S) * stay.milli
        seen.useful += gain * fact.full_milli
        kept.append((gain, fact.full_milli))
        while lost > 0 and kept:
            ticks, width = kept.pop()
            seen.useful -= min(ticks, lost) * width
            seen.lost += min(ticks, lost) * width
            if ticks > lost:
                kept.append((ticks - lost, width))
            lost -= min(ticks, lost)
        if fact.why not in GOES_ON:
            del self._kept[fact.job]

    def _check_work(self, fact: Stopped, ticks: int) -> None:
        """The total work of a job is its duration, and it loses no more than it had done."""
        job = fact.job
        if fact.why == Why.END:
            done = self._progress.pop(job, 0) + ticks
            asked = int(self.jobs.duration_s[job] * TICKS_PER_S)
            if done != asked:
                message = f"ended after {done / TICKS_PER_S:g} s of work, not {asked / TICKS_PER_S:g} s"
                self.violate(fact.at_s, self.job(job), message)
            return
        kept = self._progress[job] = self._progress.get(job, 0) + ticks
        if kept < 0:
            self.violate(fact.at_s, self.job(job), f"lost {-kept / TICKS_PER_S:g} s more than it had done")

    # --- the accounts ---------------------------------------------------------------------

    def compare(self, end_s: float, capacity: int, idle: int, by_tenant: tuple[Booked, ...]) -> None:
        """Compare the accounts of the whole run with the observations."""
        for tenant, booked in enumerate(by_tenant):
            self.checked += 1
            seen = self._seen[tenant] if tenant < len(self._seen) else _Seen()
            name = f"tenant {self.jobs.tenants[tenant]}"
            for what, amount, observed in (
                ("allocated", booked.allocated, seen.allocated),
                ("useful", booked.useful, seen.useful),
                ("lost", booked.lost, seen.lost),
            ):
                if amount != observed:
                    self.violate(end_s, name, f"{amount} units booked as {what}, {observed} seen")
            if booked.allocated != booked.useful + booked.lost + booked.overhead:
                self.violate(end_s, name, "allocated is not useful + lost + overhead")
            if min(booked.useful, booked.lost, booked.overhead) < 0:
                self.violate(end_s, name, "a negative amount of GPU time")
        total = sum(booked.allocated for booked in by_tenant)
        if capacity != self._capacity * int(end_s * TICKS_PER_S) or capacity != total + idle or idle < 0:
            self.violate(end_s, "cluster", "capacity is not allocated + idle")
