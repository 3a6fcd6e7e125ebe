"""What the detector of interference costs a tick: 5,000 services of four replicas, 500 of them on shared nodes.

The minute of the detector, with arrivals to judge, beside a whole tick without it in which nothing changed.
"""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from autopilot.core.intake.assemble import assemble
from autopilot.core.model.latencies import ReplicaLatency
from autopilot.core.model.snapshot import ClusterSnapshot
from benchmarks import tick
from benchmarks.kit import judged
from models.interference import MINUTE_S, Interferences

SERVICES, SHARED, REPLICAS, PENDING, TENANTS = 5_000, 500, 4, 500, 100
MINUTES, ARRIVALS = 70, 1
GOAL_RATIO = 0.05
HEADING = ("figure", "measured")


def measure(quick: bool) -> tuple[list[tuple[str, ...]], dict[str, Any]]:
    """CPU of both."""
    rng = np.random.default_rng(1)
    count = SERVICES * REPLICAS
    fleet = tick.build_fleet(count // 8 + 250, 1, TENANTS, 1, distinct=False)
    running = np.ones(count, np.int32)
    work = tick.workloads_of(rng, running, np.ones(PENDING, np.int32), TENANTS)
    service = np.full(len(work.id), -1, np.int32)
    fleet.workloads = replace(work, service=service)
    fleet.placements = tick.placements(
        np.arange(count, dtype=np.int32), np.arange(count, dtype=np.int32), fleet.inventory.gpus
    )
    loop = tick.Loop(fleet, tick.learned(fleet, 1))
    whole_s = []
    for number in range(2 if quick else 4):
        spent: dict[str, float] = {}
        loop.tick(tick.NOW_S + 5.0 * number, spent)
        whole_s.append(sum(spent.values()))
    spent_s = _minutes(fleet, rng)
    tick_s, minute_s = median(whole_s[1:]), sum(spent_s[40:]) / len(spent_s[40:])
    ratio = minute_s / tick_s
    lines: list[tuple[str, ...]] = [
        HEADING,
        ("CPU of a tick without it, nothing changed, ms", f"{1e3 * tick_s:.0f}"),
        (
            f"CPU of a minute of the detector, {SHARED * REPLICAS} replicas, an arrival beside eight of them, ms",
            f"{1e3 * minute_s:.1f}",
        ),
        (
            "5,000 services, 500 shared: the tick of that minute is slower by, %",
            judged(100.0 * ratio, 100.0 * GOAL_RATIO, digits=1),
        ),
        ("a tick is slower by, mean at one in 15 s, %", f"{100.0 * ratio * 15.0 / MINUTE_S:.1f}"),
    ]
    return lines, {"tick_s": tick_s, "minute_s": minute_s, "ratio": ratio}


def _minutes(fleet: tick.Fleet, rng: np.random.Generator) -> list[float]:
    """CPU of each minute: latencies of the shared replicas, and some work that came to their nodes."""
    snapshot, _ = assemble(fleet.batches(tick.NOW_S), tick.NOW_S)
    shared = SHARED * REPLICAS
    service = np.full(len(snapshot.workloads.id), -1, np.int32)
    service[: SERVICES * REPLICAS] = np.arange(SERVICES * REPLICAS) % SERVICES
    snapshot = replace(snapshot, workloads=replace(snapshot.workloads, service=service))
    rows = np.flatnonzero((service >= 0) & (service < SHARED))[:shared]
    begin = tick.NOW_S // MINUTE_S * MINUTE_S
    watcher, found = Interferences(), []
    for minute in range(MINUTES):
        now_s = begin + MINUTE_S * (minute + 1)
        shot = _at(snapshot, rows, now_s, minute, rng)
        began_s = time.process_time()
        watcher.update(now_s, shot)
        watcher.forecast(now_s, shot)
        found.append(time.process_time() - began_s)
    return found


def _at(
    snapshot: ClusterSnapshot, rows: np.ndarray, now_s: float, minute: int, rng: np.random.Generator
) -> ClusterSnapshot:
    """The snapshot of a minute: since the last one, work came to the GPUs of some replicas."""
    held, gpus = snapshot.placements, snapshot.gpus
    others = np.flatnonzero(snapshot.workloads.service >= SHARED)[: ARRIVALS * (minute + 1)]
    beside = rows[np.arange(len(others)) % len(rows)]
    placed = tick.placements(
        np.concatenate([held.workload, others.astype(np.int32)]), np.concatenate([held.gpu, held.gpu[beside]]), gpus
    )
    latencies = ReplicaLatency(
        id=snapshot.workloads.id[rows],
        minute_s=np.full(len(rows), now_s - MINUTE_S),
        requests=np.full(len(rows), 60.0),
        mean_log_s=rng.normal(0.5, 0.1, len(rows)),
        buckets=np.ones(len(rows), np.int64),
        age_s=np.zeros(len(rows)),
    )
    return replace(snapshot, placements=placed, latencies=latencies)
