"""Moves ahead of demand: what wide gangs gain, and what other work loses, against reactive `defragment` alone.

Scenario `fragmented`: most GPUs are free, but seldom those of a whole island, and every two hours a gang needs one.
Both policies move work when such a gang waits; `defragment-ahead` also moves work before it comes. Goals: the mean wait
of the wide gangs at most .8 of that under `autopilot`; at most 1 % more of the GPU time allocated is lost, the time in
which stopped work saves and starts again included; and on P1 (first 1,500 jobs), P2 (first 1,000), `demo` and `mixed`,
where nothing is fragmented on purpose, the useful share until the last arrival at least .995 of that of `autopilot`
(median over the seeds, each with run times jittered by 10 %). The last goal holds for `regeometry` too: `--policy
regeometry` plays it in place of `defragment-ahead`, without the scenario `fragmented`. Of the files only `mixed` has
GPUs in MIG mode.

    python -m benchmarks.defragmentation [--quick] [--seeds 5] [--files P1,P2,demo,mixed] [--policy defragment-ahead]
        [--workers 1] [--rows FILE] [--json OUT]

Rows in `--rows` are kept between runs. `--quick` plays one seed of `fragmented` only.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import simulate
from benchmarks.kit import (
    FILES,
    each_of,
    judged,
    keep_row,
    kept_rows,
    options,
    philly_jobs,
    table,
    tell_violations,
    write_json,
)

FRAGMENTED, WIDE = "fragmented", "pretrain"
REACTIVE, AHEAD = "autopilot", "defragment-ahead"
FIRST_JOBS = {"P1": 1500, "P2": 1000}
JITTER_RATIO = 0.1
MOST_WAIT, MOST_LOST, LEAST_USEFUL = 0.8, 0.01, 0.995


@dataclass(frozen=True, slots=True)
class Call:
    """One run."""

    source: str
    seed: int
    policy: str


@dataclass(frozen=True, slots=True)
class Row:
    """Its figures. Wide gangs are those of `fragmented`; the wait is that before the first start."""

    source: str
    seed: int
    policy: str
    wide_gangs: int
    wide_wait_s: float
    useful_ratio: float  # until the last arrival
    allocated_gpu_s: float
    lost_gpu_s: float
    overhead_gpu_s: float  # held without progress: first starts, saves, restarts
    moves: int
    violated: int


def measure(call: Call) -> Row:
    """Run one policy once."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = simulate(_options(call, Path(folder)))
    tell_violations(f"{call.source} {call.seed} {call.policy}", outcome)
    result = outcome.document()["policies"][call.policy]
    jobs = outcome.job_frames()[0]
    wide = jobs[jobs["job_id"].str.startswith(WIDE) & (call.source == FRAGMENTED)]
    spent = result["gpu_s"]
    return Row(
        call.source,
        call.seed,
        call.policy,
        len(wide),
        float((wide["start_s"] - wide["submit_s"]).mean()) if len(wide) else 0.0,
        result["utilization"]["to_last_arrival_ratio"],
        spent["allocated"],
        spent["lost"],
        spent["overhead"],
        result["disruptions"]["migrations"],
        result["invariants"]["violated"],
    )


def _options(call: Call, folder: Path) -> SimulateOptions:
    if call.source == FRAGMENTED:
        return SimulateOptions(scenario=FRAGMENTED, policies=(call.policy,), seed=call.seed, series=False)
    if call.source not in FILES:
        return SimulateOptions(
            scenario=call.source, policies=(call.policy,), seed=call.seed, jitter_ratio=JITTER_RATIO, series=False
        )
    import pandas as pd

    tenant, cluster = FILES[call.source]
    path = philly_jobs()
    assert path is not None
    jobs = pd.read_parquet(path)
    part = folder / "jobs.parquet"
    of_tenant = jobs[jobs["tenant"] == tenant].sort_values("submit_s", kind="stable")
    of_tenant.head(FIRST_JOBS[call.source]).to_parquet(part)
    return SimulateOptions(
        jobs=part,
        cluster=cluster,
        policies=(call.policy,),
        seed=call.seed,
        jitter_ratio=JITTER_RATIO,
        physics="charged",
        durations="predicted",
        series=False,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    given = options(__doc__ or "", arguments, seeds=5, files="P1,P2,demo,mixed", policy=AHEAD, workers=1, rows="")
    seeds = range(1, 2 if given.quick else given.seeds + 1)
    files = [] if given.quick else [name for name in given.files.split(",") if name]
    if any(name in FILES for name in files) and philly_jobs() is None:
        files = [name for name in files if name not in FILES]
    sources = [FRAGMENTED, *files] if given.policy == AHEAD else files
    runs = [(source, seed) for source in sources for seed in seeds]
    calls = [Call(source, seed, policy) for source, seed in runs for policy in (REACTIVE, given.policy)]
    rows = kept_rows(given.rows, Row)
    done = {Call(row.source, row.seed, row.policy) for row in rows}
    left = {f"{call.source} {call.seed} {call.policy}": call for call in calls if call not in done}
    for row in each_of(left, measure, given.workers):
        rows.append(row)
        keep_row(given.rows, row)
    rows = [row for row in rows if Call(row.source, row.seed, row.policy) in calls]
    kept = show(rows, sources, given.policy)
    write_json(given.json, {"rows": [asdict(row) for row in rows], "kept": kept})
    return int(not kept)


def show(rows: Sequence[Row], sources: Sequence[str], policy: str) -> bool:
    """One line per source, `policy` beside `autopilot`; True when every goal is met."""
    lines = []
    for source in sources:
        of = {(row.seed, row.policy): row for row in rows if row.source == source}
        pairs = [(of[seed, REACTIVE], of[seed, policy]) for seed in sorted({seed for seed, _ in of})]
        useful = median(ahead.useful_ratio / plain.useful_ratio for plain, ahead in pairs)
        waits, ratio = "-", "-"
        if source == FRAGMENTED:
            before, after = (fmean(pair[place].wide_wait_s for pair in pairs) for place in (0, 1))
            waits, ratio = f"{before:.1f} -> {after:.1f}", judged(after / before, MOST_WAIT, least=False)
        lines.append(
            [
                source,
                str(len(pairs)),
                waits,
                ratio,
                judged(fmean(_lost_ratio(*pair) for pair in pairs), MOST_LOST, least=False, digits=4),
                judged(useful, LEAST_USEFUL, least=True, digits=4),
                " -> ".join(f"{sum(pair[place].moves for pair in pairs)}" for place in (0, 1)),
            ]
        )
    table(["source", "seeds", "wide wait s", "ratio", "lost", "useful share ratio", "moves"], lines)
    return not any("MISSED" in cell for line in lines for cell in line) and not any(row.violated for row in rows)


def _lost_ratio(plain: Row, ahead: Row) -> float:
    """Work that is lost more, and GPU time without progress that is spent more, over the GPU time allocated."""
    more = ahead.lost_gpu_s - plain.lost_gpu_s + ahead.overhead_gpu_s - plain.overhead_gpu_s
    return more / ahead.allocated_gpu_s


if __name__ == "__main__":
    raise SystemExit(main())
