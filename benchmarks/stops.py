"""How often jobs are stopped or moved for other work, and what a bound on that costs.

Goals: 5 stops in the 99th percentile of the jobs, 12 at most; stops by contract are counted apart. `--most` are values
of `protection.most_stops`; 10000 is none. P1, P2 and P12 are cut to their first `--jobs`.

    python -m benchmarks.stops [--quick] [--files P1,P2,P12,demo] [--most 5] [--jobs 1500] [--durations predicted]
        [--telemetry auto] [--workers 1] [--json OUT]

`--quick` plays the first 100 jobs of P1 with exact run times.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import simulate
from benchmarks.kit import (
    FILES,
    each_of,
    judged,
    options,
    philly_jobs,
    table,
    tell_violations,
    write_json,
)
from benchmarks.tenants import case_of, cluster_text, usable

PART = {"P1": ("P1",), "P2": ("P2",), "P12": ("P1", "P2")}
P99, MOST = 5, 12


@dataclass(frozen=True, slots=True)
class Call:
    """One run."""

    source: str
    most: int
    jobs: int
    durations: str
    telemetry: str


@dataclass(frozen=True, slots=True)
class Row:
    """Its figures; stops are by job, for other work."""

    call: Call
    p50: int
    p99: int
    most: int
    contract_p99: int
    contract_most: int
    preemptions: int
    moves: int
    wait_s: float
    lost_gpu_s: float
    goodput_ratio: float
    violated: int


def measure(call: Call) -> Row:
    """Run it."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = simulate(_options(call, Path(folder)))
    tell_violations(f"{call.source} at most {call.most}", outcome)
    (result,) = outcome.document()["policies"].values()
    stops = result["disruptions"]
    return Row(
        call,
        stops["stops_per_job_p50"],
        stops["stops_per_job_p99"],
        stops["stops_per_job_max"],
        stops["contract_stops_per_job_p99"],
        stops["contract_stops_per_job_max"],
        stops["preemptions"],
        stops["migrations"],
        result["jobs"]["total_wait_s_mean"],
        stops["lost_gpu_s"],
        result["utilization"]["goodput_ratio"],
        result["invariants"]["violated"],
    )


def _options(call: Call, folder: Path) -> SimulateOptions:
    policy = folder / "bounded.yaml"
    policy.write_text(f"name: bounded\nbase: autopilot\nprotection: {{most_stops: {call.most}}}\n", encoding="utf-8")
    if call.source not in PART:
        return SimulateOptions(
            scenario=call.source, policies=(str(policy),), seed=0, telemetry=call.telemetry, series=False
        )
    path = philly_jobs()
    assert path is not None
    frame, part = usable(path), folder / "jobs.parquet"
    mine = frame[frame["tenant"].isin([FILES[name][0] for name in PART[call.source]])]
    mine.sort_values("submit_s", kind="stable").head(call.jobs).to_parquet(part)
    cluster = FILES[call.source][1] if call.source in FILES else str(folder / "cluster.yaml")
    if call.source not in FILES:
        Path(cluster).write_text(cluster_text(case_of(call.source, frame)), encoding="utf-8")
    return SimulateOptions(
        jobs=part,
        cluster=cluster,
        policies=(str(policy),),
        seed=0,
        physics="charged",
        durations=call.durations,
        telemetry=call.telemetry,
        series=False,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    given = options(
        __doc__ or "",
        arguments,
        files="P1,P2,P12,demo",
        most="5",
        jobs=1500,
        durations="predicted",
        telemetry="auto",
        workers=1,
    )
    files, jobs, durations = given.files.split(","), given.jobs, given.durations
    if given.quick:
        files, jobs, durations = ["P1"], 100, "exact"
    if philly_jobs() is None:
        files = [name for name in files if name not in PART]
    calls = [
        Call(file, int(most), jobs, durations, given.telemetry) for file in files for most in given.most.split(",")
    ]
    rows = list(each_of({f"{call.source} at most {call.most}": call for call in calls}, measure, given.workers))
    lines = [_line(row) for row in sorted(rows, key=lambda row: calls.index(row.call))]
    head = ["jobs", "most_stops", "stops p50", "p99", "most", "by contract p99, most", "preemptions + moves"]
    table([*head, "mean wait min", "lost GPU-h", "goodput"], lines)
    write_json(given.json, {"rows": [asdict(row) for row in rows]})
    return int(any("MISSED" in cell for line in lines for cell in line) or any(row.violated for row in rows))


def _line(row: Row) -> list[str]:
    return [
        f"{row.call.source}, {row.call.jobs:,}" if row.call.source in PART else row.call.source,
        f"{row.call.most}",
        f"{row.p50}",
        judged(row.p99, P99, least=False, digits=0),
        judged(row.most, MOST, least=False, digits=0),
        f"{row.contract_p99}, {row.contract_most}",
        f"{row.preemptions} + {row.moves}",
        f"{row.wait_s / 60:.0f}",
        f"{row.lost_gpu_s / 3600:.1f}",
        f"{row.goodput_ratio:.4f}",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
