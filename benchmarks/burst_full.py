"""Room before a burst: late requests under `reactive`, `autopilot`, and `autopilot` told the true demand.

Scenario `burst-full`: four services need three to nine tenths of 128 GPUs, and training wants more than the rest. All
three preempt batch work for replicas that a load needs already. `autopilot` also makes room for replicas that its
forecast calls for; `true demand` is the same with a forecast that is always right. Everything is counted on the second
day. Goal: of the distance in late requests from `reactive` to `true demand`, `autopilot` closes at least .6, and the
work that jobs lose stays under 3 % of their GPU time.

    python -m benchmarks.burst_full [--quick] [--seeds 5] [--workers 1] [--rows FILE] [--json OUT]

Rows in `--rows` are kept between runs. `--quick` plays one seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.burst_runs import AUTOPILOT, REACTIVE, TRUE_DEMAND, Call, Row, rows_of
from benchmarks.kit import judged, options, table, write_json

RUNS = (REACTIVE, AUTOPILOT, TRUE_DEMAND)
LEAST_CLOSED, MOST_LOST = 0.6, 0.03


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    given = options(__doc__ or "", arguments, seeds=5, workers=1, rows="")
    seeds = range(1, 2 if given.quick else given.seeds + 1)
    rows = rows_of([Call(policy, seed) for seed in seeds for policy in RUNS], given.workers, given.rows)
    show(rows)
    kept = judge(rows)
    write_json(given.json, {"rows": [asdict(row) for row in rows], "kept": kept})
    return int(not kept)


def show(rows: Sequence[Row]) -> None:
    """One line per run."""
    table(
        [
            "run",
            "seed",
            "requests",
            "late",
            "useful GPU-h",
            "lost",
            "services GPU-h",
            "idle",
            "stops",
            "moves",
            "broken",
        ],
        [
            [
                row.policy,
                str(row.seed),
                f"{row.requests:,.0f}",
                f"{100 * row.late_ratio:.3f} %",
                f"{row.useful_gpu_h:,.0f}",
                f"{100 * row.lost_ratio:.2f} %",
                f"{row.service_gpu_h:,.0f}",
                f"{row.idle_gpu_h:,.0f}",
                str(row.stops),
                str(row.moves),
                str(row.violated),
            ]
            for row in rows
        ],
    )


def judge(rows: Sequence[Row]) -> bool:
    """Print the figures over all seeds beside their goals; True when they are met."""
    late = {run: sum(row.late for row in rows if row.policy == run) for run in RUNS}
    distance = late[REACTIVE] - late[TRUE_DEMAND]
    closed = (late[REACTIVE] - late[AUTOPILOT]) / distance if distance > 0 else 0.0
    lost = max(row.lost_ratio for row in rows if row.policy != REACTIVE)
    sound = not any(row.violated for row in rows)
    print(
        f"closed of the distance {judged(closed, LEAST_CLOSED, least=True)}, "
        f"lost work {judged(lost, MOST_LOST, least=False, digits=4)}{'' if sound else ', INVARIANTS BROKEN'}"
    )
    return closed >= LEAST_CLOSED and lost <= MOST_LOST and sound


if __name__ == "__main__":
    raise SystemExit(main())
