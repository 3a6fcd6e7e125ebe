"""How often jobs are stopped or moved for other work, and what a bound on that costs.

Goals: 5 stops in the 99th percentile of the jobs, 12 at most; stops by contract are counted apart. `--most` are values
of `protection.most_stops`; 10000 is none. P1, P2 and P12 are cut to their first `--jobs`.

    python -m benchmarks.stops [--quick] [--files P1,P2,P12,demo] [--most 8] [--jobs 1500] [--durations predicted]
        [--telemetry auto] [--workers 1] [--keep ROWS.jsonl] [--json OUT]

`--quick` plays the first 100 jobs of P1 with exact run times.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.kit import ended, judged, measured, options
from benchmarks.runs import FILES, Call, Row, philly_jobs, play

P99, MOST = 5, 12
HEADING = (
    "jobs",
    "most_stops",
    "stops p50",
    "p99",
    "most",
    "by contract p99, most",
    "preemptions + moves",
    "mean wait min",
    "lost GPU-h",
    "goodput",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    given = options(
        __doc__,
        arguments,
        files="P1,P2,P12,demo",
        most="8",
        jobs=1500,
        durations="predicted",
        telemetry="auto",
        workers=1,
        keep="",
    )
    if given.quick:
        given.files, given.jobs, given.durations = "P1", 100, "exact"
    files = given.files.split(",")
    if philly_jobs() is None:
        files = [name for name in files if name not in FILES]
    calls = [_call(file, most, given.jobs, given) for file in files for most in given.most.split(",")]
    rows = measured({str(call): call for call in calls}, play, Row, given.workers, given.keep)
    lines = [_line(call, row) for call, row in zip(calls, rows, strict=True)]
    figures = {"rows": [{**asdict(call), **row.figures} for call, row in zip(calls, rows, strict=True)]}
    return ended(given, HEADING, lines, figures, sound=not any(row["violated"] for row in rows))


def _call(file: str, most: str, jobs: int, given: Namespace) -> Call:
    """A file of the trace is cut to its first jobs; a scenario has its own run times."""
    cut = {"durations": given.durations, "jobs": f"0-{jobs}"} if file in FILES else {}
    return Call(file, "autopilot", 0, telemetry=given.telemetry, policy_set=f"protection.most_stops={most}", **cut)


def _line(call: Call, row: Row) -> list[str]:
    return [
        f"{call.file} {call.jobs}".rstrip(),
        call.policy_set.partition("=")[2],
        f"{row['stops_p50']:.0f}",
        judged(row["stops_p99"], P99, digits=0),
        judged(row["stops_most"], MOST, digits=0),
        f"{row['contract_stops_p99']:.0f}, {row['contract_stops_most']:.0f}",
        f"{row['preemptions']:.0f} + {row['moves']:.0f}",
        f"{row['total_wait_s'] / 60:.0f}",
        f"{row['lost_gpu_s'] / 3600:.1f}",
        f"{row['goodput_ratio']:.4f}",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
