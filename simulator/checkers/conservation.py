"""GPU-seconds are conserved: what was handed out is useful, lost or overhead; the rest of the capacity idled."""

from __future__ import annotations

from typing import Protocol

from simulator.checkers.base import Checker, World
from simulator.facts import Started, Stopped, Why
from simulator.physics import TICKS_PER_S


class Booked(Protocol):
    """Integer GPU time as the accounts have it."""

    handed_out: int
    useful: int
    lost: int
    overhead: int


class Conservation(Checker):
    """Recomputes each tenant's time from starts and stops, and each job's work from its duration."""

    name = "conservation"

    def __init__(self, world: World) -> None:
        """Nothing was handed out."""
        super().__init__(world)
        self._since: dict[int, tuple[float, int]] = {}
        self._handed_out: list[int] = [0] * len(world.jobs.tenants)
        self._progress: dict[int, int] = {}  # ticks kept by jobs that were stopped before their end
        self._capacity = 1000 * len(world.inventory.gpus.uuid)

    def on_started(self, fact: Started) -> None:
        """Its time runs."""
        self._since[fact.job] = (fact.at_s, fact.milli)

    def on_stopped(self, fact: Stopped) -> None:
        """Its time is what lies between; work that ended has done exactly its duration."""
        self.checked += 1
        job = fact.job
        since_s, milli = self._since.pop(job, (fact.at_s, 0))
        tenant = self.jobs.tenant[job]
        if tenant >= len(self._handed_out):
            self._handed_out += [0] * (tenant + 1 - len(self._handed_out))
        self._handed_out[tenant] += int((fact.at_s - since_s) * TICKS_PER_S) * milli
        ticks = int((fact.gain_s - fact.lost_s) * TICKS_PER_S)
        if fact.why == Why.END:
            done = self._progress.pop(job, 0) + ticks
            asked = int(self.jobs.duration_s[job] * TICKS_PER_S)
            if done != asked:
                self.violate(
                    fact.at_s,
                    self.job(job),
                    f"ended after {done / TICKS_PER_S:g} s of work, not {asked / TICKS_PER_S:g} s",
                )
        else:
            kept = self._progress[job] = self._progress.get(job, 0) + ticks
            if kept < 0:
                self.violate(
                    fact.at_s, self.job(job), f"lost {-kept / TICKS_PER_S:g} s more than it had done"
                )
        if fact.why == Why.RESIZE and fact.lost_s:
            self.violate(
                fact.at_s, self.job(job), f"lost {fact.lost_s:g} s by a resize, which keeps all progress"
            )
        if (
            int(fact.gain_s * TICKS_PER_S) * fact.full_milli
            > int((fact.halt_s - fact.ready_s) * TICKS_PER_S) * milli
        ):
            self.violate(
                fact.at_s,
                self.job(job),
                f"made {fact.gain_s:g} s of progress at full width in {fact.halt_s - fact.ready_s:g} s on {milli} of "
                f"{fact.full_milli} thousandths",
            )
        if not fact.start_s <= fact.ready_s <= fact.halt_s <= fact.at_s:
            self.violate(fact.at_s, self.job(job), "start, readiness, halt and stop are out of order")

    def compare(self, end_s: float, capacity: int, idle: int, by_tenant: tuple[Booked, ...]) -> None:
        """Hold the accounts of the whole run against what was seen."""
        for tenant, booked in enumerate(by_tenant):
            self.checked += 1
            seen = self._handed_out[tenant] if tenant < len(self._handed_out) else 0
            name = f"tenant {self.jobs.tenants[tenant]}"
            if booked.handed_out != seen:
                self.violate(end_s, name, f"{booked.handed_out} units booked as handed out, {seen} seen")
            if booked.handed_out != booked.useful + booked.lost + booked.overhead:
                self.violate(end_s, name, "handed out is not useful + lost + overhead")
            if min(booked.useful, booked.lost, booked.overhead) < 0:
                self.violate(end_s, name, "a negative amount of GPU time")
        total = sum(booked.handed_out for booked in by_tenant)
        if capacity != self._capacity * int(end_s * TICKS_PER_S) or capacity != total + idle or idle < 0:
            self.violate(end_s, "cluster", "capacity is not handed out + idle")
