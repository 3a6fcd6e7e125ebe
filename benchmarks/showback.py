"""A month of metering of 10,000 GPUs: how long a showback, a FOCUS export and the daily spending take.

The month is synthetic: 30 merged days with hourly rows of 2,000 workloads at a time, as `autopilot.metering.segments`
leaves them. Measured are wall time and the peak memory of this process. The meter itself is measured on the fleet of
`benchmarks.tick`: CPU of taking in one tick.

    python -m benchmarks.showback [--quick] [--gpus 10000] [--json OUT]
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from autopilot.core.decision.reconciler import reconcile
from autopilot.core.intake.assemble import assemble
from autopilot.core.intake.signals import measure
from autopilot.core.model.forecast import Forecasts
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.records import Observation
from autopilot.core.placement.whatif import WhatIf
from autopilot.metering.amounts import AMOUNTS, GRAINS_PER_GPU_S, KEYS, Row
from autopilot.metering.focus import focus_rows
from autopilot.metering.meter import Meter
from autopilot.metering.prices import load_prices
from autopilot.metering.segments import DAY, HOUR, Segments, open_store
from autopilot.metering.showback import Asked, showback
from autopilot.metering.spend import calendar_of, daily_spending
from autopilot.settings import shipped_policy
from benchmarks.kit import ended, judged, options
from benchmarks.tick import NOW_S, build_fleet

GOAL_S = 5.0
DAYS, TENANTS, WORKLOADS = 30, 200, 2000
TICKS = 5


class Nothing:
    """A sink that keeps nothing."""

    end: int | None = None
    shift = 0

    def put(self, begin: int, end: int, rows: Sequence[Row]) -> None:
        """Keep only the end."""
        self.end = end


def write_month(folder: Path, gpus: int, days: int) -> int:
    """Write the segments of a month; returns the number of rows."""
    Segments(folder, start_s=1_795_392_000.0).close()
    rng = np.random.default_rng(0)
    for day in range(days):
        hours = np.repeat(np.arange(24), WORKLOADS)
        count = len(hours)
        work = np.tile(np.arange(WORKLOADS), 24) + day * WORKLOADS // 2
        held = np.full(count, gpus * 0.9 / WORKLOADS)
        active = held * rng.uniform(0.1, 0.9, count)
        texts = {
            "kind": np.full(count, "held"),
            "tenant": np.char.add("tenant-", (work % TENANTS).astype(str)),
            "queue": np.char.add("tenant-", (work % TENANTS).astype(str)),
            "workload": np.char.add("job-", work.astype(str)),
            "uid": np.char.add("uid-", work.astype(str)),
            "gpu_model": np.where(work % 3, "H100-80GB", "A100-80GB"),
            "slo_class": np.full(count, "batch"),
            "pool": np.where(work % 3, "h100", "a100"),
        }
        amounts = {"gpu_time": held, "measured": held, "active": active, "borrowed": held * (work % 2), "powered": held}
        rest = [("capacity", gpus * 1.0), ("idle", gpus * 0.1)]
        texts = {name: np.concatenate([column, np.repeat(_free(name, rest), 24)]) for name, column in texts.items()}
        grains = {
            name: np.rint(np.append(column, np.repeat([_amount(name, each) for _, each in rest], 24)) * 3600)
            for name, column in amounts.items()
        }
        begin = day * DAY + np.append(hours, np.tile(np.arange(24), len(rest))) * HOUR
        columns: dict[str, Any] = {"begin": begin, "end": begin + HOUR}
        columns |= {name: texts.get(name, np.full(len(begin), "")) for name in KEYS}
        columns |= {
            name: (grains[name] * GRAINS_PER_GPU_S).astype(np.int64)
            if name in grains
            else np.zeros(len(begin), np.int64)
            for name in AMOUNTS
        }
        pq.write_table(pa.table(columns), folder / f"s-{day * DAY}-{(day + 1) * DAY}.parquet", compression="zstd")
    return days * 24 * (WORKLOADS + 2)


def _free(name: str, rest: Sequence[tuple[str, float]]) -> list[str]:
    """A text column of the rows that are no work."""
    given = {"kind": [kind for kind, _ in rest], "gpu_model": ["H100-80GB"] * len(rest), "pool": ["h100"] * len(rest)}
    return given.get(name, [""] * len(rest))


def _amount(name: str, gpus: float) -> float:
    return gpus if name in ("gpu_time", "powered") else 0.0


def tick_cpu_s(gpus: int) -> float:
    """CPU of metering one tick of a fleet, the median of a few."""
    fleet = build_fleet(gpus // 8, 100, TENANTS, 0, distinct=False)
    policy, meter, spent = shipped_policy("autopilot"), Meter(Nothing()), []
    for number in range(TICKS + 1):
        now_s = NOW_S + 30.0 * number
        snapshot, gaps = assemble(fleet.batches(now_s), now_s)
        observation = Observation(
            number + 1, now_s, snapshot, measure(snapshot, WhatIf(snapshot)), Forecasts(), gaps=gaps
        )
        step = reconcile(replace(ControllerMemory(), fence=1), observation, policy)
        began_s = time.process_time()
        meter.take(observation, step.instructions)
        spent.append(time.process_time() - began_s)
    return sorted(spent[1:])[TICKS // 2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the JSON; 1 when an answer takes longer than the goal. `--quick`: three days."""
    given = options(__doc__, arguments, gpus=10_000)
    prices, figures = load_prices(), {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = write_month(folder, given.gpus, 3 if given.quick else DAYS)
        size_mb = sum(path.stat().st_size for path in folder.iterdir()) / 1e6

        def asked(since: int | None = None, until: int | None = None) -> Asked:
            store = open_store(folder)
            return Asked(store, prices, calendar_of(store, prices), since, until)

        answer = showback(asked())
        questions: dict[str, Callable[[], object]] = {
            "showback by tenant": lambda: showback(asked()),
            "showback by workload": lambda: showback(asked(), "workload"),
            "showback by type, one day": lambda: showback(asked(DAY, 2 * DAY), "type"),
            "FOCUS rows by day": lambda: focus_rows(asked()),
            "daily spending": lambda: daily_spending(open_store(folder), prices),
        }
        for what, ask in questions.items():
            began_s = time.perf_counter()
            ask()
            figures[what] = time.perf_counter() - began_s
    cpu_s = tick_cpu_s(given.gpus)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    lines = [[what, judged(took_s, GOAL_S)] for what, took_s in figures.items()]
    lines += [
        ["reconciled: difference", f"{answer.reconciled.difference_ratio:.3%}"],
        ["peak memory", f"{peak_mib:.0f} MiB"],
        ["metering one tick", f"{cpu_s * 1000:.0f} ms of CPU"],
    ]
    heading = (f"{rows:,} rows of {given.gpus:,} GPUs, {size_mb:.0f} MB", "seconds")
    found = {"gpus": given.gpus, "rows": rows, "size_mb": size_mb, "seconds": figures, "goal_s": GOAL_S}
    return ended(given, heading, lines, {**found, "tick_cpu_s": cpu_s, "peak_mib": peak_mib})


if __name__ == "__main__":
    raise SystemExit(main())
