r"""The value of run-time forecasts to decisions (B5): one policy with true run times, `last-two`, and its own models.

P1 and P2: which part of the average total wait between `last-two` and `exact` does `predicted` recover? P10 (ten
tenants on 56 nodes): how much lower is the average wait to the first start with `predicted` than with `last-two`? And
how often does a gang start later than its reservation promised, without preemption (policy `admission`)? It runs the
functions behind

    autopilot simulate --jobs JOBS --tenant TENANT --cluster 7x8 --physics charged --telemetry off \
        --policy autopilot --durations exact|last-two|predicted

    python -m benchmarks.foresight [--quick] [--files P1,P2,P10] [--reservations P1,P2] [--policy autopilot]
        [--days 0] [--draws 0] [--workers 2] [--keep ROWS.jsonl] [--json OUT]

One run shows little: the order of a few wide gangs moves a mean by tens of percent. `--draws N` simulates every mode N
more times, each with all durations drawn anew within 5 % (`simulate --jitter 0.05 --seed 1` and so on), and prints the
recovered part of each. `--days N` simulates the first N days of P1 and P2, `--quick` the first 30 of P1. With `--keep`
every measured row is written at once, and an interrupted run resumes. P10 alone takes hours.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.named import check_policies
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
from benchmarks.tenants import QUICK_DAYS, case_of, cluster_text, first_days, usable

if TYPE_CHECKING:
    import pandas as pd

MODES = {
    "P1": ("last-two", "predicted", "exact"),
    "P2": ("last-two", "predicted", "exact"),
    "P10": ("last-two", "predicted"),
}
RECOVERED = {"P1": 0.30, "P2": 0.50}
"""Least part of the average total wait between last-two and exact."""

WAIT_RATIO = 0.85
"""P10: the largest average wait, relative to last-two's."""

PROMISING = "admission"
"""The policy whose reservations are counted: it makes them and preempts no gang."""

JITTER_RATIO = 0.05
"""Largest relative change of a duration in a draw."""

MOST_LATE = 0.05
"""Of the reservations whose gang started, the largest share that may start later than promised."""


@dataclass(frozen=True, slots=True)
class Task:
    """One call of simulate."""

    file: str
    policy: str
    durations: str
    jobs: Path
    tenants: tuple[str, ...]
    cluster: str
    draw: int = 0  # 0: durations as they are recorded


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one call. `policy` is as given."""

    file: str
    policy: str
    durations: str
    wait_s: float
    total_wait_s: float
    jct_s: float
    preempted_per_1000: float
    moved_per_1000: float
    lost_gpu_s: float
    made: int  # reservations
    kept: int
    late: int
    wall_s: float
    violated: int
    draw: int = 0


def measure(task: Task) -> Row:
    """Run one call and read its document."""
    outcome = simulate(
        SimulateOptions(
            jobs=task.jobs,
            tenants=task.tenants,
            cluster=task.cluster,
            policies=(task.policy,),
            physics="charged",
            telemetry="off",
            durations=task.durations,
            series=False,
            seed=task.draw,
            jitter_ratio=JITTER_RATIO if task.draw else 0.0,
        )
    )
    tell_violations(f"{task.file} {task.policy} {task.durations}", outcome)
    (entry,) = outcome.document()["policies"].values()
    jobs, stops, held = entry["jobs"], entry["disruptions"], entry["reservations"]
    return Row(
        task.file,
        task.policy,
        task.durations,
        jobs["queue_wait_s_mean"],
        jobs["total_wait_s_mean"],
        jobs["jct_s_mean"],
        stops["preemptions_per_1000_jobs"],
        stops["migrations_per_1000_jobs"],
        stops["lost_gpu_s"],
        held["made"] or 0,
        held["kept"] or 0,
        held["late"] or 0,
        entry["wall_s"],
        entry["invariants"]["violated"],
        task.draw,
    )


def measured(tasks: Sequence[Task], workers: int) -> Iterator[Row]:
    """All rows as they come."""
    calls = {f"{task.file} {task.policy} {task.durations} {task.draw}": task for task in tasks}
    return each_of(calls, measure, workers)


def recovered(rows: Mapping[str, Row]) -> float:
    """Part of the average total wait between last-two and exact that predicted recovers. `rows` by durations.

    NaN where these two are equal, for example because nothing waits in a few days.
    """
    worst, best = rows["last-two"].total_wait_s, rows["exact"].total_wait_s
    if worst == best:
        return float("nan")
    return (worst - rows["predicted"].total_wait_s) / (worst - best)


def show(file: str, rows: Mapping[str, Row]) -> bool:
    """Print the table and the judged figures of one file; True when the bar is met and no invariant is violated."""
    table(
        [
            file,
            "average wait s",
            "average total wait s",
            "JCT s",
            "pre+moves/1,000 jobs",
            "lost GPU-s",
            "wall s",
            "violations",
        ],
        [
            [
                name,
                f"{row.wait_s:,.0f}",
                f"{row.total_wait_s:,.0f}",
                f"{row.jct_s:,.0f}",
                f"{row.preempted_per_1000:,.0f}+{row.moved_per_1000:,.0f}",
                f"{row.lost_gpu_s:,.0f}",
                f"{row.wall_s:.0f}",
                str(row.violated),
            ]
            for name, row in rows.items()
        ],
    )
    if file in RECOVERED:
        words, found = "total wait recovered", judged(recovered(rows), RECOVERED[file], least=True)
    else:
        ratio = rows["predicted"].wait_s / rows["last-two"].wait_s
        total = rows["predicted"].total_wait_s / rows["last-two"].total_wait_s
        words, found = (
            f"average total wait / last-two's: {total:.2f}; average wait / last-two's",
            judged(ratio, WAIT_RATIO, least=False),
        )
    print(f"{words}: {found}")
    return "MISSED" not in found and not any(row.violated for row in rows.values())


def show_promises(rows: Sequence[Row]) -> bool:
    """Print the outcomes of the reservations; True when few were late."""
    lines = []
    for row in rows:
        met = row.kept + row.late
        late = judged(row.late / met, MOST_LATE, least=False) if met else "none was met"
        lines.append([row.file, str(row.made), str(row.kept), str(row.late), late, f"{row.wall_s:.0f}"])
    table([f"reservations of {PROMISING}", "made", "on time", "late", "late / met", "wall s"], lines)
    return not any("MISSED" in line[-2] for line in lines)


def show_draws(file: str, draws: Mapping[int, Mapping[str, Row]]) -> None:
    """Print the recovered part with durations drawn anew: each draw's, and the median."""
    parts = {draw: recovered(rows) for draw, rows in draws.items()}
    told = ", ".join(f"{part:.2f}" for part in parts.values())
    print(
        f"{file}, durations drawn anew within {JITTER_RATIO:.0%}: total wait recovered {told}; median "
        f"{median(parts.values()):.2f}"
    )
    for draw, rows in draws.items():
        waits = ", ".join(f"{name} {row.total_wait_s:,.0f} s" for name, row in rows.items())
        print(f"  draw {draw}: average total wait {waits}")


def tasks_for(
    files: Sequence[str],
    promising: Sequence[str],
    policy: str,
    jobs: Path,
    frame: pd.DataFrame,
    folder: Path,
    draws: int = 0,
) -> list[Task]:
    """One task per file and mode, the tasks that count reservations, and the draws of P1 and P2.

    The cluster of P10 is written to `folder`.
    """
    clusters: dict[str, tuple[tuple[str, ...], str]] = {
        name: ((tenant,), shape) for name, (tenant, shape) in FILES.items()
    }
    if "P10" in files:
        case, path = case_of("P10", frame), folder / "P10.yaml"
        path.write_text(cluster_text(case), encoding="utf-8")
        clusters["P10"] = (tuple(case.guarantee), str(path))
    calls = [(file, policy, mode, 0) for file in files for mode in MODES[file]]
    calls += [(file, PROMISING, "predicted", 0) for file in promising]
    calls += [
        (file, policy, mode, draw)
        for draw in range(1, draws + 1)
        for file in files
        if file in RECOVERED
        for mode in MODES[file]
    ]
    return [Task(file, name, mode, jobs, *clusters[file], draw) for file, name, mode, draw in calls]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print one table per file and the reservations, write the JSON; 1 when a bar is missed."""
    given = options(
        str(__doc__),
        arguments,
        files=",".join(MODES),
        reservations="P1,P2",
        policy="autopilot",
        days=0,
        draws=0,
        workers=2,
        keep="",
    )
    jobs = philly_jobs()
    if jobs is None:
        return 0
    from pandas import concat

    check_policies((given.policy,))
    files = ["P1"] if given.quick else [file for file in given.files.split(",") if file]
    promising = ["P1"] if given.quick else [file for file in given.reservations.split(",") if file]
    for flag, names, known in (("--files", files, MODES), ("--reservations", promising, FILES)):
        if unknown := [name for name in names if name not in known]:
            raise SystemExit(f"{flag}: {unknown[0]!r} is not one of {', '.join(known)}")
    if given.days and not set(files) <= set(FILES):
        raise SystemExit("--days: give P1, P2 or both with --files; P10 is simulated whole")
    frame, days = usable(jobs), given.days or (QUICK_DAYS if given.quick else 0)
    rows = kept_rows(given.keep, Row)
    done = {(row.file, row.policy, row.durations, row.draw) for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        if days:
            jobs = Path(folder) / "first-days.parquet"
            concat([first_days(frame, FILES[file][:1], days) for file in files]).to_parquet(jobs)
        tasks = [
            task
            for task in tasks_for(files, promising, given.policy, jobs, frame, Path(folder), given.draws)
            if (task.file, task.policy, task.durations, task.draw) not in done
        ]
        for row in measured(tasks, given.workers):
            rows.append(row)
            keep_row(given.keep, row)
    print(f"what run-time forecasts are worth, charged physics{f', first {days} days' if days else ''}: {given.policy}")
    by_call = {(row.file, row.policy, row.durations, row.draw): row for row in rows}
    found = {
        (file, draw): {mode: by_call[file, given.policy, mode, draw] for mode in MODES[file]}
        for file in files
        for draw in range(given.draws + 1 if file in RECOVERED else 1)
    }
    bad = [file for file in files if not show(file, found[file, 0])]
    for file in [each for each in files if given.draws and each in RECOVERED]:
        show_draws(file, {draw: found[file, draw] for draw in range(1, given.draws + 1)})
    late = [row for row in rows if row.policy == PROMISING and row.file in promising]
    kept = show_promises(late) if late else True
    write_json(given.json, {"benchmark": "foresight", "rows": [asdict(row) for row in rows]})
    return int(bool(bad) or not kept)


if __name__ == "__main__":
    raise SystemExit(main())
