"""From the JSON files of the benchmarks to the rows of docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.preemption import JCT_S, USEFUL
from benchmarks.tenants import RIVALS
from simulator.baselines import TEXTBOOK

LAST_TWO = "`--durations last-two --telemetry off`"
"""Options of the autopilot's rows that are not the defaults."""


class Figure(NamedTuple):
    """One row of the table."""

    what: str
    value: str
    goal: str


def of_preemption(found: dict[str, Any]) -> Iterator[Figure]:
    """Useful share, completion time, longest first starts and disruption with a price on preemption and moves.

    P1 and P2 with their neighbours, the other tenants against fifo-skip alone, and the curve over one weight.
    """
    goals = {file: f">= {USEFUL[file]:.3f}; <= {most_s:,.0f} s; below fifo-skip" for file, most_s in JCT_S.items()}
    for row in found["rows"]:
        disrupted = f"{row['preemptions_per_1000']:.0f} + {row['moves_per_1000']:.0f}"
        share = f"{row['useful_ratio'] / row['bound_ratio']:.3f}; {row['jct_s']:,.0f} s"
        if row["weight"] is not None:
            yield Figure(
                f"P1, `preemption.index_ratio` {row['weight']:g} ({LAST_TWO}): useful share; mean completion; "
                f"pauses + moves per 1,000 jobs",
                f"{share}; {disrupted}",
                "stated",
            )
        elif row["file"] in goals:
            yield Figure(
                f"{row['file']}, {row['policy']}{f' ({LAST_TWO})' if row['policy'] == 'autopilot' else ''}, a "
                f"pause or move costs 60 s of progress and 30 s of restore: useful share; mean completion; p99 "
                f"of the first start; pauses + moves per 1,000 jobs",
                f"{share}; {row['first_start_p99_s']:,.0f} s; {disrupted}",
                goals[row["file"]] if row["policy"] == "autopilot" else "stated",
            )
        elif row["policy"] == "autopilot":
            plain = next(each for each in found["rows"] if (each["file"], each["policy"]) == (row["file"], "fifo-skip"))
            jct, first = (row[key] / plain[key] for key in ("jct_s", "first_start_p99_s"))
            yield Figure(
                f"{row['file']}, autopilot ({LAST_TWO}), same prices: mean completion and p99 of "
                f"the first start against fifo-skip; pauses + moves per 1,000 jobs",
                f"{jct:.2f}; {first:.2f}; {disrupted}",
                "below 1; at most 1",
            )


def of_sim_speed(found: dict[str, Any]) -> Iterator[Figure]:
    """Jobs simulated per second: the slowest textbook order, and the others as they are."""
    textbook = {name: row for name, row in found["policies"].items() if name in TEXTBOOK}
    slowest = min(textbook, key=lambda name: float(textbook[name]["ratio"]))
    for name, row in found["policies"].items():
        if name == slowest:
            yield Figure(
                f"simulated jobs per second on P1, slowest textbook order ({name})",
                f"{row['jobs_per_s']:,.0f}",
                "10,000",
            )
        elif name not in TEXTBOOK:
            yield Figure(f"simulated jobs per second on P1, {name}", f"{row['jobs_per_s']:,.0f}", "stated")


def of_reclaim_storm(found: dict[str, Any]) -> Iterator[Figure]:
    """The wait of the last owner for its guarantee, and its cost."""
    title = f"{found['owners']} owners return at once to {found['gpus']:,} GPUs of {found['tenants']} tenants"
    yield Figure(
        f"{title}: the last one has its guarantee back after",
        f"{found['restored_s_worst'] or float('inf'):.0f} s",
        f"{found['bound_s']:.0f} s (one grace period and two ticks)",
    )
    yield Figure(
        f"{title}: work lost since its checkpoint, and for lack of bandwidth to save it",
        f"{found['lost_since_checkpoint_gpu_s'] / 3600:,.0f} and {found['lost_no_bandwidth_gpu_s'] / 3600:,.0f} GPU-h",
        "stated",
    )


def of_tenants(found: dict[str, Any]) -> Iterator[Figure]:
    """Many tenants on one cluster: waits, the worst tenant, and the cost of preemption; `las` is no bar."""
    best = {
        file: [
            min(row[key] for row in found["rows"] if row["file"] == file and row["policy"] in RIVALS)
            for key in ("first_start_s", "slowdown")
        ]
        for file in {row["file"] for row in found["rows"]}
    }
    for row in found["rows"]:
        wait_s, slowdown = best[row["file"]]
        ours = row["policy"] not in ("fifo-skip", "las", *RIVALS)
        yield Figure(
            f"{row['file']}, {row['policy']}{f' ({LAST_TWO})' if ours else ''}: mean total wait; mean wait until "
            f"the first start; "
            "worst tenant's slowdown; preemptions + moves per 1,000 jobs; lost",
            f"{row['total_wait_s']:,.0f} s; {row['first_start_s']:,.0f} s; {row['slowdown']:.2f}; "
            f"{row['preemptions_per_1000']:,.0f} + {row['moves_per_1000']:,.0f}; {row['lost_gpu_s'] / 3600:,.0f} GPU-h",
            f"first start below {wait_s:,.0f} s, slowdown below {slowdown:.2f}" if ours else "stated",
        )


def of_forecast_speed(found: dict[str, Any]) -> Iterator[Figure]:
    """The cost of forecasting."""
    minute_s, retrain_s = sorted(found["minute_s"]), sum(found["retrain_s"].values())
    yield Figure(
        f"a minute's forecasts of {found['services']:,} services, requests and tokens; one job, 99th percentile",
        f"{minute_s[len(minute_s) // 2]:.2f} s; {found['job_ms_p99']:.1f} ms of CPU",
        "1 s; 10 ms",
    )
    yield Figure("a retrain of everything", f"{retrain_s:.0f} s of CPU", "180 s")


def of_kube_sync(found: dict[str, Any]) -> Iterator[Figure]:
    """List and watch of a large cluster."""
    size = f"{found['pods']:,.0f} pods on {found['nodes']:,.0f} nodes"
    yield Figure(f"{size}: first sync after the bytes arrived", f"{found['sync_s']:.2f} s of CPU", "at most 2 s")
    unchanged_ms = found["unchanged_s"] * 1000
    yield Figure(f"{size}: an unchanged view until it is assembled", f"{unchanged_ms:.0f} ms of CPU", "at most 50 ms")
    yield Figure(f"{size}: 500 watch events/s", f"{found['watch_ratio'] * 100:.0f} % of a core", "under 20 %")
    yield Figure(f"{size}: memory", f"{found['memory_mib']:.0f} MiB", "under 500 MB")


def of_field(found: dict[str, Any]) -> Iterator[Figure]:
    """The signals read by each way in, and the reported situations with the right outcome."""
    yield Figure(
        "signals by way in: cells of the table that are filled", f"{found['filled']} of {found['cells']}", "stated"
    )
    if found["cases"]:
        yield Figure("reported situations that come out right", f"{found['right']} of {found['cases']}", "all")


def of_serving_speed(found: dict[str, Any]) -> Iterator[Figure]:
    """Time to simulate a day of requests."""
    worst = max(found["rows"], key=lambda row: float(row["day_at_1000_rps_s"] or 0.0))
    yield Figure(
        f"simulating a day of inference at 1,000 requests/s, worst case ({worst['case']})",
        f"{worst['day_at_1000_rps_s']:.0f} s of CPU",
        "under 60 s",
    )


def of_showback(found: dict[str, Any]) -> Iterator[Figure]:
    """The time of an answer over a month of metering, and the cost to meter a tick."""
    goal = f"{found['goal_s']:.0f} s"
    for what, took_s in found["seconds"].items():
        month = f"a month of {found['gpus']:,} GPUs ({found['rows']:,} rows)"
        yield Figure(f"{what}, {month}", f"{took_s:.1f} s", goal)
    yield Figure(
        f"metering one tick of {found['gpus']:,} GPUs", f"{1000 * found['tick_cpu_s']:.0f} ms of CPU", "stated"
    )


def of_journal_size(found: dict[str, Any]) -> Iterator[Figure]:
    """Size of the record of a day: telemetry as measured, and in the smallest form."""
    rows = sorted(found["large"], key=lambda row: float(row["mb_per_day"]))
    for row in (rows[-1], rows[0]):
        digits = "as measured" if row["significant_bits"] is None else f"kept to {row['significant_bits']} bits"
        yield Figure(
            f"journal of a day, {row['gpus']:,} GPUs, telemetry every {row['refresh_s']:.0f} s {digits}",
            f"{row['mb_per_day']:.0f} MB",
            "200 MB",
        )
