r"""Admission and backfill alone, without preemption: the shipped policy on P1 and P2, durations jittered.

Results of non-preemptive orders vary widely, so the figures are medians over seeds 1 to 10 of `--jitter 0.05` (each
job's duration x uniform(.95, 1.05) from the seed, the same for every policy of a seed). It runs the functions behind

    autopilot simulate --jobs JOBS --tenant TENANT --cluster 7x8 --physics ideal --telemetry off \
        --jitter 0.05 --seed N --policy fifo-skip,easy,admission --durations exact

and once more with `--durations last-two`. Useful share is to_last_arrival_ratio / bound_ratio; JCT and the 99th
percentile of the queue wait are ratios of medians, to fifo-skip's. Each bar is printed beside its figure.

    python -m benchmarks.admission [--quick] [--files P1,P2] [--seeds 10] [--policy admission] [--workers 2]
        [--durations exact,last-two] [--keep ROWS.jsonl] [--json OUT]

With `--keep` every measured row is written at once, and an interrupted run resumes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

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
    write_json,
)

JITTER = 0.05
BASELINES = ("fifo-skip", "easy")

USEFUL = {"P1": 0.90, "P2": 0.95}  # of the bound, at least
JCT = {"P1": 0.55, "P2": 1.10}  # of fifo-skip's, at most
WAIT = {"P1": 1.00, "P2": 1.10}
LAST_TWO_JCT = {"P1": 0.75}


@dataclass(frozen=True, slots=True)
class Task:
    """One call of simulate."""

    file: str
    seed: int
    policies: tuple[str, ...]
    durations: str
    jobs: Path


@dataclass(frozen=True, slots=True)
class Row:
    """One policy's figures at one seed."""

    file: str
    seed: int
    policy: str
    durations: str  # "" for a baseline
    useful_ratio: float
    jct_s: float
    wait_s_p99: float
    wall_s: float
    violated: int


def measure(task: Task) -> list[Row]:
    """Run one call and read its document."""
    tenant, cluster = FILES[task.file]
    outcome = simulate(
        SimulateOptions(
            jobs=task.jobs,
            tenants=(tenant,),
            cluster=cluster,
            policies=task.policies,
            physics="ideal",
            telemetry="off",
            durations=task.durations,
            jitter_ratio=JITTER,
            seed=task.seed,
            series=False,
        )
    )
    rows = []
    for name, entry in outcome.document()["policies"].items():
        used = entry["utilization"]
        rows.append(
            Row(
                task.file,
                task.seed,
                name,
                "" if name in BASELINES else task.durations,
                used["to_last_arrival_ratio"] / used["bound_ratio"],
                entry["jobs"]["jct_s_mean"],
                entry["jobs"]["queue_wait_s_p99"],
                entry["wall_s"],
                entry["invariants"]["violated"],
            )
        )
    return rows


def tasks_of(files: Sequence[str], seeds: int, policy: str, jobs: Path, wanted: Sequence[str]) -> list[Task]:
    """Longest first, so that the workers finish together."""
    return [
        Task(file, seed, policies, durations, jobs)
        for durations, policies in (("exact", (*BASELINES, policy)), ("last-two", (policy,)))
        for seed in range(1, seeds + 1)
        for file in files
        if durations in wanted
    ]


def measured(tasks: Sequence[Task], workers: int) -> Iterator[Row]:
    """All rows as they come."""
    calls = {f"{task.file} seed {task.seed} {task.durations}": task for task in tasks}
    for rows in each_of(calls, measure, workers):
        yield from rows


def summary(rows: Sequence[Row], file: str) -> list[dict[str, Any]]:
    """Medians of each policy on one file, fifo-skip first."""
    kinds = sorted(
        {(row.policy, row.durations) for row in rows},
        key=lambda kind: (kind[1], kind[0] != "fifo-skip", kind[0]),
    )
    found: list[dict[str, Any]] = []
    for policy, durations in kinds:
        mine = [row for row in rows if (row.file, row.policy, row.durations) == (file, policy, durations)]
        found.append(
            {
                "file": file,
                "policy": policy,
                "durations": durations,
                "seeds": len(mine),
                "useful_ratio": median(row.useful_ratio for row in mine),
                "jct_s": median(row.jct_s for row in mine),
                "jct_s_min": min(row.jct_s for row in mine),
                "jct_s_max": max(row.jct_s for row in mine),
                "wait_s_p99": median(row.wait_s_p99 for row in mine),
                "wall_s": median(row.wall_s for row in mine),
                "violated": sum(row.violated for row in mine),
            }
        )
    for each in found:
        each["jct_ratio"] = each["jct_s"] / found[0]["jct_s"]
        each["wait_ratio"] = each["wait_s_p99"] / found[0]["wait_s_p99"]
    return found


def show(found: Sequence[dict[str, Any]], file: str) -> bool:
    """Print the table of one file; True when every bar is met."""
    lines, kept = [], True
    for each in found:
        cells = [f"{each['useful_ratio']:.3f}", f"{each['jct_ratio']:.2f}", f"{each['wait_ratio']:.2f}"]
        if each["durations"] == "exact":
            cells = [
                judged(each["useful_ratio"], USEFUL[file], least=True, digits=3),
                judged(each["jct_ratio"], JCT[file], least=False),
                judged(each["wait_ratio"], WAIT[file], least=False),
            ]
        elif each["durations"] and file in LAST_TWO_JCT:
            cells[1] = judged(each["jct_ratio"], LAST_TWO_JCT[file], least=False)
        kept &= not any("MISSED" in cell for cell in cells) and not each["violated"]
        lines.append(
            [
                f"{each['policy']} {each['durations']}".strip(),
                cells[0],
                f"{each['jct_s']:,.0f}",
                f"{each['jct_s_min']:,.0f}..{each['jct_s_max']:,.0f}",
                cells[1],
                f"{each['wait_s_p99']:,.0f}",
                cells[2],
                f"{each['wall_s']:.1f}",
                str(each["violated"]),
            ]
        )
    table(
        [
            file,
            "useful share",
            "JCT s",
            "range",
            "/ fifo-skip",
            "p99 wait s",
            "/ fifo-skip",
            "wall s",
            "violations",
        ],
        lines,
    )
    return kept


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print one table per file, write the JSON; 1 when a bar is missed."""
    given = options(
        str(__doc__),
        arguments,
        files="P1,P2",
        seeds=10,
        policy="admission",
        workers=2,
        durations="exact,last-two",
        keep="",
    )
    jobs = philly_jobs()
    if jobs is None:
        return 0
    files = given.files.split(",")
    seeds = min(given.seeds, 2) if given.quick else given.seeds
    shown = next(iter(check_policies((given.policy,))))
    rows = kept_rows(given.keep, Row)
    done = {(row.file, row.seed, row.durations) for row in rows if row.durations}
    tasks = tasks_of(files, seeds, given.policy, jobs, given.durations.split(","))
    for row in measured([task for task in tasks if (task.file, task.seed, task.durations) not in done], given.workers):
        rows.append(row)
        keep_row(given.keep, row)
    print(f"admission and backfill alone ({shown}), {seeds} seeds of jitter {JITTER:g}, medians")
    found = {file: summary([row for row in rows if row.file == file], file) for file in files}
    missed = [file for file in files if not show(found[file], file)]
    write_json(
        given.json,
        {
            "benchmark": "admission",
            "jitter_ratio": JITTER,
            "medians": found,
            "rows": [asdict(row) for row in rows],
        },
    )
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
