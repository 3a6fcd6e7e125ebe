"""The size of the journal of a day: 4,000 GPUs, telemetry every 30 s, extrapolated from an hour.

Usage: python -m benchmarks.journal_size [--gpus 4000] [--minutes 60] [--tick-s 30] [--seed 1] [--quick] [--json OUT]

A closed loop of arriving and ending jobs under the shipped `reconcile`, with the telemetry of the simulator through the
collectors' windows (8 signals, mean and maximum over 1, 5 and 30 min), after the longest window has filled. Each row
reads telemetry at its own interval and keeps its own number of significant bits ("all" is as measured: 24). The journal
itself never rounds, and the end of every row is read back and compared. The goal is 200 MB a day. The cost of recording
per tick is also printed, here and on a cluster of 56 GPUs.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from autopilot.core.decision.reconciler import reconcile
from autopilot.core.model.errors import invariant
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy.bounds import JournalRules
from autopilot.core.model.records import Inventory, Observation
from autopilot.core.model.signal_table import SignalTable
from autopilot.core.model.snapshot import F32, InstanceTable, empty
from autopilot.records.journal import JournalReader, SqliteJournal
from autopilot.records.replay.unequal import first_unequal
from benchmarks.kit import ended, options
from benchmarks.small_world import AUTO, Tick, World
from collectors.window import WindowBuffer
from simulator.signals.behaviours import draw_jobs
from simulator.signals.telemetry import TelemetryGenerator
from simulator.signals.telemetry_entities import GpuState, entities_of, idle_state

GOAL_MB_PER_DAY = 200.0
SCRAPE_S = 30.0
WARM_UP_S = 1800.0
KEPT = [(refresh_s, bits) for refresh_s in (30.0, 60.0) for bits in (None, 12, 10, 8)]
DAY_S = 86_400.0


class Gauges:
    """Telemetry of a world's GPUs, scraped every 30 s."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.seed = world, seed
        inventory = Inventory(world.names, world.nodes, world.gpus, empty(InstanceTable))
        self.entities = entities_of(inventory)
        self.generator = TelemetryGenerator(seed)
        self.buffer = WindowBuffer()

    def state(self) -> GpuState:
        """The present activity of each GPU."""
        running = [job for job in self.world.jobs if job.slots]
        archetype, level = draw_jobs(self.seed, [job.id for job in running])
        state = idle_state(len(self.entities.id))
        for number, job in enumerate(running):
            state.job_code[job.slots] = int(job.id.removeprefix("job-"))
            state.archetype[job.slots], state.level[job.slots] = archetype[number], level[number]
            state.since_s[job.slots], state.gpus[job.slots] = job.start_s, job.gpus
        return state

    def scrape(self, slot: int) -> None:
        """Take one scrape and put its windows into the world."""
        values, quality = self.generator.sample(slot, self.entities, self.state())
        self.buffer.put(slot * SCRAPE_S, self.entities.id, values, quality)
        seen = self.buffer.windowed(slot * SCRAPE_S)
        self.world.telemetry = SignalTable(
            seen.signals,
            seen.windows_s,
            slot * SCRAPE_S,
            seen.mean,
            seen.maximum,
            seen.samples,
            seen.age_s,
            seen.quality,
        )


def to_bits(values: F32, bits: int | None) -> F32:
    """The nearest numbers with a number of significant bits."""
    if bits is None:
        return values
    dropped = 24 - bits
    half, mask = np.uint32(1 << (dropped - 1)), np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)
    return np.where(np.isfinite(values), ((values.view(np.uint32) + half) & mask).view(np.float32), values)


@dataclass(slots=True)
class Row:
    """One journal of the same run: telemetry read every `refresh_s`, kept to a number of significant bits."""

    refresh_s: float
    bits: int | None
    journal: SqliteJournal
    cpu_s: float = 0.0
    shown: SignalTable | None = None

    def add(self, tick: Tick) -> Observation:
        """Record a tick with telemetry as this row keeps it."""
        snapshot = tick.observation.snapshot
        seen = snapshot.telemetry
        if self.shown is None or (seen.collected_s % self.refresh_s == 0 and seen.collected_s > self.shown.collected_s):
            mean, maximum = to_bits(seen.mean, self.bits), to_bits(seen.maximum, self.bits)
            self.shown = replace(seen, mean=mean, maximum=maximum)
        older_s = np.float32(tick.observation.now_s - self.shown.collected_s)
        shown = replace(self.shown, age_s=self.shown.age_s + older_s) if older_s else self.shown
        observation = replace(tick.observation, snapshot=replace(snapshot, telemetry=shown))
        started = time.process_time()
        self.journal.intend(observation, AUTO, tick.memory, tick.step.decision, tick.step.instructions)
        self.journal.conclude(observation.tick, tick.outcomes)
        self.cpu_s += time.process_time() - started
        return observation


def loop(world: World, gauges: Gauges, minutes: float, tick_s: float) -> Any:
    """Ticks after the windows have filled; telemetry is replaced every 30 s."""
    memory, scraped = ControllerMemory(), -1
    end_s = WARM_UP_S + minutes * 60.0
    while world.now_s < end_s:
        world.advance(world.now_s + tick_s)
        for slot in range(scraped + 1, int(world.now_s // SCRAPE_S) + 1):
            gauges.scrape(slot)
            scraped = slot
        observation = world.observe()
        step = reconcile(memory, observation, AUTO)
        outcomes = world.apply(step.instructions)
        if world.now_s > WARM_UP_S:
            yield Tick(memory, observation, step, outcomes)
        world.outcomes, memory = outcomes, step.memory


def large(gpus: int, minutes: float, tick_s: float, seed: int, folder: Path) -> list[dict[str, Any]]:
    """One row per precision."""
    world = World(gpus // 8, seed, load=1.05, run_s=7200.0, backlog=gpus // 3)
    gauges = Gauges(world, seed)
    rules = JournalRules()
    rows = [
        Row(refresh_s, bits, SqliteJournal(folder / f"{refresh_s}-{bits}.journal", durable=False, rules=rules))
        for refresh_s, bits in KEPT
    ]
    ticks = 0
    last: list[Observation] = []
    for tick in loop(world, gauges, minutes, tick_s):
        ticks += 1
        last = [row.add(tick) for row in rows]
    results = []
    per_day = DAY_S / (minutes * 60.0) / 1e6
    for row, wanted in zip(rows, last, strict=True):
        path = row.journal.path
        row.journal.close()
        with JournalReader(path) as reader:
            *_, read = reader.ticks()
        difference = first_unequal(wanted, read.observation, "observation")
        invariant(difference is None, f"the record is not what was recorded: {difference}")
        results.append(
            {
                "gpus": gpus,
                "refresh_s": row.refresh_s,
                "significant_bits": row.bits,
                "ticks": ticks,
                "mb_per_day": path.stat().st_size * per_day,
                "telemetry_mb_per_day": telemetry_bytes(path) * per_day,
                "cpu_ms_per_tick": row.cpu_s / ticks * 1e3,
            }
        )
    return results


def telemetry_bytes(path: Path) -> int:
    """The part of a journal that is telemetry."""
    db = sqlite3.connect(path)
    size = int(db.execute("SELECT sum(length(signals)) FROM ticks").fetchone()[0])
    db.close()
    return size


def small(seed: int, folder: Path) -> dict[str, Any]:
    """The cost of a tick of a simulation: 56 GPUs, some 300 jobs, one tick per event, no telemetry."""
    world = World(7, seed, load=1.3, backlog=300)
    path = folder / "small.journal"
    ticks = list(world.run(2000))
    started = time.process_time()
    with SqliteJournal(path, durable=False, rules=JournalRules()) as journal:
        for tick in ticks:
            journal.intend(tick.observation, AUTO, tick.memory, tick.step.decision, tick.step.instructions)
            journal.conclude(tick.observation.tick, tick.outcomes)
    spent_s = time.process_time() - started
    rows = float(np.mean([len(tick.observation.snapshot.workloads.id) for tick in ticks]))
    return {
        "gpus": 56,
        "workloads_mean": rows,
        "cpu_ms_per_tick": spent_s / len(ticks) * 1e3,
        "bytes_per_tick": path.stat().st_size / len(ticks),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write JSON on request; 1 when no row meets the goal. `--quick`: 800 GPUs, 5 minutes."""
    given = options(__doc__, arguments, gpus=4000, minutes=60.0, tick_s=30.0, seed=1)
    if given.quick:
        given.gpus, given.minutes = min(given.gpus, 800), min(given.minutes, 5.0)
    with tempfile.TemporaryDirectory() as name:
        tick = small(given.seed, Path(name))
        rows = large(given.gpus, given.minutes, given.tick_s, given.seed, Path(name))
    lines = [
        (
            f"{row['refresh_s']:g} s, {row['significant_bits'] or 'all'} bits",
            f"{row['mb_per_day']:.0f}",
            f"{row['telemetry_mb_per_day']:.0f}",
            f"{row['cpu_ms_per_tick']:.1f}",
        )
        for row in rows
    ]
    print(f"a tick of 56 GPUs and {tick['workloads_mean']:.0f} jobs: {tick['cpu_ms_per_tick']:.2f} ms")
    heading = (f"{given.gpus} GPUs, goal {GOAL_MB_PER_DAY:g} MB", "MB a day", "telemetry", "ms a tick")
    sound = any(row["mb_per_day"] <= GOAL_MB_PER_DAY for row in rows)
    return ended(given, heading, lines, {"small": tick, "large": rows}, sound=sound)


if __name__ == "__main__":
    raise SystemExit(main())
