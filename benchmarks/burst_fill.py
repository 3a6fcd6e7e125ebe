"""Batch beside services: what the idle GPUs of separate nodes yield, and how often work is stopped for it (B10).

Scenario `burst-full`, judged on its second day, with batch offered at 1.5 times the GPU-hours that idle under `static`
(separate nodes for services and batch). Goals: (useful batch GPU-hours of `autopilot` - those of `static`) / idle
GPU-hours of `static` at least .60; requests over their objective within 0.1 points of `autopilot` without batch; stops
of batch work (moves included) per useful GPU-hour at most .67 of those of `reactive`.

    python -m benchmarks.burst_fill [--quick] [--seeds 5] [--workers 1] [--rows FILE] [--json OUT]

Rows in `--rows` are kept between runs. `--quick` plays one seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from benchmarks.burst_full import show
from benchmarks.burst_runs import AUTOPILOT, REACTIVE, STATIC, Call, Row, offered_gpu_h, rows_of
from benchmarks.kit import judged, options, write_json

OFFERED = 1.5
LEAST_GAINED, MOST_LATE_POINTS, MOST_STOPS = 0.60, 0.1, 0.67
WITHOUT = "no batch"
DAYS = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    given = options(__doc__ or "", arguments, seeds=5, workers=1, rows="")
    seeds = range(1, 2 if given.quick else given.seeds + 1)
    static = rows_of([Call(STATIC, seed) for seed in seeds], given.workers, given.rows)
    calls = []
    for row in static:
        jobs = round(OFFERED * row.idle_gpu_h * DAYS / offered_gpu_h(row.seed), 3)
        calls += [Call(REACTIVE, row.seed, jobs), Call(AUTOPILOT, row.seed, jobs), Call(AUTOPILOT, row.seed, 0.0)]
    played = rows_of(calls, given.workers, given.rows)
    rows = [*static, *(row if row.jobs else replace(row, policy=WITHOUT) for row in played)]
    show(rows)
    kept = judge(rows)
    write_json(given.json, {"rows": [asdict(row) for row in rows], "kept": kept})
    return int(not kept)


def judge(rows: Sequence[Row]) -> bool:
    """Print the figures over all seeds beside their goals; True when they are met."""
    by_run = {run: [row for row in rows if row.policy == run] for run in (STATIC, REACTIVE, AUTOPILOT, WITHOUT)}
    useful = {run: sum(row.useful_gpu_h for row in mine) for run, mine in by_run.items()}
    late = {run: sum(row.late for row in mine) / sum(row.requests for row in mine) for run, mine in by_run.items()}
    stops = {run: sum(row.stops for row in mine) / max(useful[run], 1e-9) for run, mine in by_run.items()}
    gained = (useful[AUTOPILOT] - useful[STATIC]) / sum(row.idle_gpu_h for row in by_run[STATIC])
    points = 100.0 * (late[AUTOPILOT] - late[WITHOUT])
    evictions = stops[AUTOPILOT] / stops[REACTIVE] if stops[REACTIVE] else float(stops[AUTOPILOT] > 0)
    sound = not any(row.violated for row in rows)
    print(
        f"gained of static's idle GPU-hours {judged(gained, LEAST_GAINED, least=True)}, late requests beside batch "
        f"{judged(points, MOST_LATE_POINTS, least=False, digits=3)} points, stops of reactive's "
        f"{judged(evictions, MOST_STOPS, least=False)}{'' if sound else ', INVARIANTS BROKEN'}"
    )
    return gained >= LEAST_GAINED and points <= MOST_LATE_POINTS and evictions <= MOST_STOPS and sound


if __name__ == "__main__":
    raise SystemExit(main())
