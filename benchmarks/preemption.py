r"""Preemption, moves and fill at a price: B3 (useful share) and B4 (JCT) of the shipped policy, seven tenants.

Every preemption or move loses 60 s of progress and adds 30 s of restore (`--physics charged`); `last-two` predicts run
times. It runs the functions behind

    autopilot simulate --jobs JOBS --tenant TENANT --cluster 7x8 --physics charged --telemetry off \
        --durations last-two --policy fifo-skip,las,autopilot

The curve repeats P1 with other values of one weight, `preemption.index_ratio`: how much higher the index of a waiting
gang must be than that of the gang it pauses. A higher ratio causes fewer pauses; the cost is printed beside it.

    python -m benchmarks.preemption [--quick] [--files P1,P2,T1,...] [--policy autopilot] [--workers 2]
        [--curve 1.5,6,12] [--keep ROWS.jsonl] [--json OUT]

With `--keep` every measured row is written at once, and an interrupted run resumes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
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

MORE_FILES = {
    "T1": ("vc_6214e9", "6x8"),
    "T2": ("vc_7f04ca", "13x8"),
    "T3": ("vc_ee9e8c", "21x8"),
    "T4": ("vc_0e4a51", "9x8"),
    "T5": ("vc_11cb48", "2x8"),
}
"""The five more tenants of the same file."""

BASELINES = ("fifo-skip", "las")
JCT_S = {"P1": 26_500.0, "P2": 26_000.0}
USEFUL = {"P1": 0.96, "P2": 0.96}
WEIGHT = "preemption.index_ratio"


@dataclass(frozen=True, slots=True)
class Task:
    """One call of simulate."""

    file: str
    policies: tuple[str, ...]
    jobs: Path
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One policy's figures on one file; `weight` is set on the curve."""

    file: str
    policy: str
    weight: float | None
    useful_ratio: float
    jct_s: float
    first_start_s_p99: float
    total_wait_s_p99: float
    moved_per_1000: float
    preempted_per_1000: float
    lost_ratio: float
    wall_s: float
    violated: int


def measure(task: Task) -> list[Row]:
    """Run one call and read its document."""
    tenant, cluster = {**FILES, **MORE_FILES}[task.file]
    policies = task.policies
    with tempfile.TemporaryDirectory() as folder:
        if task.weight is not None:
            path = Path(folder) / "weight.yaml"
            part, name = WEIGHT.split(".")
            path.write_text(f"name: weight\nbase: {policies[0]}\n{part}:\n  {name}: {task.weight}\n", encoding="utf-8")
            policies = (str(path),)
        outcome = simulate(
            SimulateOptions(
                jobs=task.jobs,
                tenants=(tenant,),
                cluster=cluster,
                policies=policies,
                physics="charged",
                telemetry="off",
                durations="last-two",
                seed=1,
                series=False,
            )
        )
    return [_row(task, name, entry) for name, entry in outcome.document()["policies"].items()]


def _row(task: Task, name: str, entry: dict[str, Any]) -> Row:
    used, jobs, disrupted = entry["utilization"], entry["jobs"], entry["disruptions"]
    thousands = jobs["finished"] / 1000
    return Row(
        task.file,
        name,
        task.weight,
        used["to_last_arrival_ratio"] / used["bound_ratio"],
        jobs["jct_s_mean"],
        jobs["queue_wait_s_p99"],
        jobs["total_wait_s_p99"],
        disrupted["migrations"] / thousands,
        disrupted["preemptions"] / thousands,
        disrupted["lost_gpu_s"] / entry["gpu_s"]["allocated"],
        entry["wall_s"],
        entry["invariants"]["violated"],
    )


def measured(tasks: Sequence[Task], workers: int) -> Iterator[Row]:
    """All rows as they come."""
    calls = {f"{task.file}{'' if task.weight is None else f' {WEIGHT} {task.weight:g}'}": task for task in tasks}
    for rows in each_of(calls, measure, workers):
        yield from rows


def show(rows: Sequence[Row], file: str) -> bool:
    """Print the table of one file; True when every bar is met."""
    mine = sorted(
        (row for row in rows if row.file == file and row.weight is None),
        key=lambda row: ([*BASELINES, row.policy].index(row.policy), row.policy),
    )
    plain = next(row for row in mine if row.policy == "fifo-skip")
    lines, kept = [], True
    for row in mine:
        own = row.policy not in BASELINES
        useful, jct, wait = f"{row.useful_ratio:.3f}", f"{row.jct_s:,.0f}", f"{row.first_start_s_p99:,.0f}"
        if own:
            useful = judged(row.useful_ratio, USEFUL[file], least=True, digits=3) if file in USEFUL else useful
            jct = judged(row.jct_s, JCT_S.get(file, plain.jct_s), least=False, digits=0)
            wait = judged(row.first_start_s_p99, plain.first_start_s_p99, least=False, digits=0)
        kept &= not any("MISSED" in cell for cell in (useful, jct, wait)) and not (own and row.violated)
        lines.append(
            [
                row.policy,
                useful,
                jct,
                f"{row.jct_s / plain.jct_s:.2f}",
                wait,
                f"{row.total_wait_s_p99:,.0f}",
                f"{row.preempted_per_1000:.0f}+{row.moved_per_1000:.0f}",
                f"{row.lost_ratio:.2%}",
                f"{row.wall_s:.0f}",
                str(row.violated),
            ]
        )
    table(
        [
            file,
            "useful share",
            "JCT s",
            "/ fifo-skip",
            "first start p99 s",
            "total wait p99 s",
            "pre+moves/1,000",
            "lost",
            "wall s",
            "violations",
        ],
        lines,
    )
    return kept


def show_curve(rows: Sequence[Row], own: str, weight: float) -> None:
    """The trade-off over one weight; `weight` is that of the policy `own`."""
    played = [row for row in rows if row.weight is not None]
    if played:
        played += [row for row in rows if (row.file, row.policy, row.weight) == ("P1", own, None)]
        found = {row.weight if row.weight is not None else weight: row for row in played}
        table(
            [f"P1 by {WEIGHT}", "useful share", "JCT s", "pre+moves/1,000", "lost"],
            [
                [
                    f"{value:g}",
                    f"{row.useful_ratio:.3f}",
                    f"{row.jct_s:,.0f}",
                    f"{row.preempted_per_1000:.0f}+{row.moved_per_1000:.0f}",
                    f"{row.lost_ratio:.2%}",
                ]
                for value, row in sorted(found.items())
            ],
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print one table per file and the curve, write the JSON; 1 when a bar is missed."""
    given = options(
        str(__doc__), arguments, files="P1,P2,T1,T2,T3,T4,T5", policy="autopilot", workers=2, curve="1.5,6,12", keep=""
    )
    jobs = philly_jobs()
    if jobs is None:
        return 0
    files = given.files.split(",")[: 1 if given.quick else None]
    weights = [] if given.quick else [float(text) for text in given.curve.split(",") if text]
    tasks = [Task(file, (*BASELINES, given.policy), jobs) for file in files]
    tasks += [Task("P1", (given.policy,), jobs, weight) for weight in weights]
    kept = kept_rows(given.keep, Row)
    own, policy = next(iter(check_policies((given.policy,)).items()))
    done = {(row.file, row.weight) for row in kept if row.policy == own or row.weight is not None}
    # rows of another policy, and the baselines beside it, are not of this table
    rows = [
        row
        for row in kept
        if (row.file, row.weight) in done and (row.policy in (*BASELINES, own) or row.weight is not None)
    ]
    for row in measured([task for task in tasks if (task.file, task.weight) not in done], given.workers):
        rows.append(row)
        keep_row(given.keep, row)
    print("preemption, moves and fill at a price (charged physics, last-two)")
    missed = [file for file in files if not show(rows, file)]
    if policy is not None:
        show_curve(rows, own, policy.preemption.index_ratio)
    write_json(given.json, {"benchmark": "preemption", "rows": [asdict(row) for row in rows]})
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
