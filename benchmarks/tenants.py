r"""Many tenants on one cluster: the shipped policy against Kueue's rules, EASY backfill and LAS, on P12 and P10.

P12 is the work of P1 and P2 together on their 17 nodes, each guaranteed its own (7 and 10). P10 is that of the ten
tenants with most GPU-seconds on 56 nodes: 39 of them are guaranteed by share of GPU-seconds (largest remainder, at
least one each), the others can be lent. M1, M2 and M3 are mixes of the same file. Of the tenants by GPU-seconds they
hold the 1st, 3rd, 5th, 7th and 9th; the 2nd, 4th, 6th, 8th and 10th; and the 4th to 11th. Nodes and guarantees are
those of P10 in proportion to GPU-seconds. It runs the functions behind

    autopilot simulate --jobs JOBS --tenant TENANT,... --cluster CLUSTER.yaml --physics charged --telemetry off \
        --policy fifo-skip,las,easy,kueue,autopilot --durations last-two

Average wait is to the first start; average total wait is completion time less duration. A tenant's slowdown is its mean
completion time divided by that of the tenant alone under fifo-skip on its guaranteed nodes (at least those of its
widest gang); the worst tenant's is printed with its name. Owed is the GPU time by which tenants ran below their
guarantees while a gang of theirs waited that fits, with the longest such spell of one tenant. Useful share is
to_last_arrival_ratio / bound_ratio. The shipped policy must have a lower average wait and a lower worst slowdown than
kueue and easy. `las` is no bar, because it knows no guarantees and may stop any job. It is shown for its low wait.

    python -m benchmarks.tenants [--quick] [--files P12,P10] [--policy autopilot] [--baselines fifo-skip,las,easy,kueue]
        [--durations last-two] [--slice 400-1400] [--jitter 0.05 --seed 1] [--workers 2] [--keep ROWS.jsonl]
        [--json OUT]

`--quick` runs the first 30 days of P12. `--slice A-B` runs jobs A to B of each file by submit, as a trace of their own.
`--policy` takes a policy file too. `--jitter` and `--seed` draw durations as `simulate` does.
With `--keep` every measured row is written at once, and an interrupted run resumes. `--policy ""` measures the
baselines alone.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.named import check_policies
from autopilot.app.runs.simulate import simulate
from benchmarks.kit import (
    FILES,
    each_of,
    keep_row,
    kept_rows,
    options,
    philly_jobs,
    table,
    tell_violations,
    write_json,
)
from simulator.baselines.static import largest_remainder
from simulator.specs.clusterfile import SHAPE_MODEL

if TYPE_CHECKING:
    import pandas as pd

DAY_S = 86_400.0
QUICK_DAYS = 30
GPUS_PER_NODE = 8
P10_TENANTS, P10_NODES, P10_GUARANTEED = 10, 56, 39
MIXES = {"M1": range(0, 10, 2), "M2": range(1, 11, 2), "M3": range(3, 11)}
"""Tenants by rank of GPU-seconds."""
CASES = ("P12", "P10", *MIXES)
RIVALS = ("kueue", "easy")
COMPARED = {"wait": "wait_s", "total wait": "total_wait_s", "worst slowdown": "slowdown"}
"""Columns of `Row` that are printed beside the rivals' figures."""
LOWER = ("wait", "worst slowdown")
"""Figures that must be lower than the rivals'."""


@dataclass(frozen=True, slots=True)
class Case:
    """One mix of tenants: the nodes of the cluster, and the guaranteed nodes of each tenant."""

    file: str
    nodes: int
    guarantee: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Task:
    """One call of simulate."""

    file: str
    policy: str
    tenants: tuple[str, ...]
    jobs: Path
    cluster: Path
    durations: str
    jitter_ratio: float
    seed: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """One policy's figures on one file."""

    file: str
    policy: str
    jobs: int
    finished: int
    wait_s: float
    total_wait_s: float
    slowdown: float  # of the tenant that has the worst
    worst_tenant: str
    preemptions_per_1000: float
    moves_per_1000: float
    most_evictions: int  # of one job
    longest_wait_s: float  # of one job, in all
    lost_gpu_s: float
    owed_gpu_s: float
    longest_owed_s: float  # of one tenant
    total_wait_p99_s: float
    useful_ratio: float
    wall_s: float
    violated: int


def case_of(file: str, jobs: pd.DataFrame) -> Case:
    """P12, P10 or a mix. `jobs` are rows of tenant, gpus and duration_s, whole seconds of work on GPUs alone."""
    if file == "P12":
        guarantee = {tenant: int(shape.partition("x")[0]) for tenant, shape in FILES.values()}
        return Case(file, sum(guarantee.values()), guarantee)
    gpu_s = (jobs["gpus"] * jobs["duration_s"]).groupby(jobs["tenant"]).sum()
    ranked = gpu_s.sort_values(ascending=False, kind="stable")
    p10 = ranked.head(P10_TENANTS)
    most = ranked.iloc[list(MIXES[file])] if file in MIXES else p10
    part = float(most.sum() / p10.sum())
    nodes = largest_remainder([float(each) for each in most], round(P10_GUARANTEED * part), [1] * len(most))
    return Case(file, round(P10_NODES * part), dict(zip(most.index.tolist(), nodes, strict=True)))


def cluster_text(case: Case) -> str:
    """The cluster file of a case."""
    lines = [
        f"pools:\n  - {{name: default, nodes: {case.nodes}, gpus_per_node: {GPUS_PER_NODE}, gpu_model: {SHAPE_MODEL}}}",
        "queues:",
    ]
    lines += [
        f"  - {{name: {tenant}, guarantee: {{{SHAPE_MODEL}: {GPUS_PER_NODE * nodes}}}}}"
        for tenant, nodes in case.guarantee.items()
    ]
    return "\n".join(lines) + "\n"


def usable(path: Path) -> pd.DataFrame:
    """The rows that request GPUs and last a second or more, durations cut to whole seconds."""
    import pandas as pd

    frame: pd.DataFrame = pd.read_parquet(path)
    frame = frame[(frame["gpus"] > 0) & (frame["duration_s"] >= 1)]
    return frame.assign(duration_s=frame["duration_s"].astype("int64"))


def first_days(frame: pd.DataFrame, tenants: Sequence[str], days: float) -> pd.DataFrame:
    """The jobs that these tenants submit within `days` of their first submit."""
    mine = frame[frame["tenant"].isin(list(tenants))]
    early: pd.DataFrame = mine[mine["submit_s"] < mine["submit_s"].min() + days * DAY_S]
    return early


def sliced(frame: pd.DataFrame, tenants: Sequence[str], asked: str) -> pd.DataFrame:
    """Jobs `A-B` of these tenants by submit; the first of them is submitted at 0."""
    first, _, last = asked.partition("-")
    if not (first.isdigit() and last.isdigit() and int(first) < int(last)):
        raise SystemExit(f"--slice: {asked!r} is not of the form 400-1400")
    mine = frame[frame["tenant"].isin(list(tenants))].sort_values("submit_s", kind="stable")
    part: pd.DataFrame = mine.iloc[int(first) : int(last)]
    if part.empty:
        raise SystemExit(f"--slice {asked}: these tenants have {len(mine):,} jobs; name a slice of them")
    return part.assign(submit_s=part["submit_s"] - part["submit_s"].min())


def measure(task: Task) -> Row:
    """Run one call and read its document."""
    outcome = simulate(
        SimulateOptions(
            jobs=task.jobs,
            tenants=task.tenants,
            cluster=str(task.cluster),
            policies=(task.policy,),
            physics="charged",
            telemetry="off",
            durations=task.durations,
            jitter_ratio=task.jitter_ratio,
            seed=task.seed,
            series=False,
        )
    )
    tell_violations(f"{task.file} {task.policy}", outcome)
    ((name, entry),) = outcome.document()["policies"].items()
    jobs, used, stops, owed = (entry[block] for block in ("jobs", "utilization", "disruptions", "guarantees"))
    worst = max(task.tenants, key=lambda tenant: entry["tenants"][tenant]["slowdown"])
    return Row(
        task.file,
        name,
        jobs["submitted"],
        jobs["finished"],
        jobs["queue_wait_s_mean"],
        jobs["total_wait_s_mean"],
        entry["tenants"][worst]["slowdown"],
        worst,
        stops["preemptions_per_1000_jobs"],
        stops["migrations_per_1000_jobs"],
        stops["evictions_per_job_max"],
        jobs["longest_wait_s"],
        stops["lost_gpu_s"],
        owed["owed_gpu_s"],
        owed["longest_owed_s"],
        jobs["total_wait_s_p99"],
        used["to_last_arrival_ratio"] / used["bound_ratio"],
        entry["wall_s"],
        entry["invariants"]["violated"],
    )


def measured(tasks: Sequence[Task], workers: int) -> Iterator[Row]:
    """All rows as they come."""
    calls = {f"{task.file} {task.policy}": task for task in tasks}
    return each_of(calls, measure, workers)


def ratios(row: Row, rows: Mapping[str, Row]) -> dict[str, float]:
    """Each compared figure / that of each measured rival, as `wait / kueue`."""
    return {
        f"{name} / {rival}": getattr(row, column) / getattr(rows[rival], column)
        for name, column in COMPARED.items()
        for rival in RIVALS
        if rival in rows
    }


def missed(found: Mapping[str, float]) -> list[str]:
    """The ratios of the shipped policy that are not below 1 and should be."""
    return [name for name, ratio in found.items() if name.startswith(LOWER) and not ratio < 1.0]


def show(rows: Mapping[str, Row], file: str, ours: str) -> bool:
    """Print both tables of one file; True when every bar is met, no invariant is violated and all work ended."""
    table(
        [
            file,
            "average wait s",
            "average total wait s",
            "p99 s",
            "worst slowdown",
            "of tenant",
            "pre+moves/1,000 jobs",
            "most evictions",
            "longest wait s",
            "lost GPU-h",
            "owed GPU-h",
            "longest owed h",
            "useful share",
            "wall s",
            "violations",
        ],
        [
            [
                row.policy,
                f"{row.wait_s:,.0f}",
                f"{row.total_wait_s:,.0f}",
                f"{row.total_wait_p99_s:,.0f}",
                f"{row.slowdown:.3f}",
                row.worst_tenant,
                f"{row.preemptions_per_1000:,.0f}+{row.moves_per_1000:,.0f}",
                f"{row.most_evictions:,}",
                f"{row.longest_wait_s:,.0f}",
                f"{row.lost_gpu_s / 3600:,.0f}",
                f"{row.owed_gpu_s / 3600:,.0f}",
                f"{row.longest_owed_s / 3600:,.1f}",
                f"{row.useful_ratio:.3f}",
                f"{row.wall_s:.1f}",
                str(row.violated),
            ]
            for row in rows.values()
        ],
    )
    lines, kept = [], True
    for row in rows.values():
        found = ratios(row, rows)
        failed = missed(found) if row.policy == ours else []
        lines.append(
            [
                row.policy,
                *(f"{ratio:.3f}{' MISSED' if name in failed else ''}" for name, ratio in found.items()),
            ]
        )
        kept &= not failed and not row.violated and row.finished == row.jobs
    table([f"{file}, ratios", *(ratios(next(iter(rows.values())), rows))], lines)
    return kept


def _heading(given: Namespace, ours: str) -> str:
    """What was measured."""
    days = f", first {QUICK_DAYS} days" if given.quick else ""
    jobs = f", jobs {given.slice}" if given.slice else ""
    jitter = f", durations jittered by {given.jitter}" if given.jitter else ""
    return (
        f"many tenants, charged physics{days}{jobs}{jitter}: {ours or 'baselines alone'}, durations {given.durations}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print two tables per file, write the JSON; 1 when a bar is missed."""
    given = options(
        str(__doc__),
        arguments,
        files="P12,P10",
        policy="autopilot",
        baselines="fifo-skip,las,easy,kueue",
        durations="last-two",
        slice="",
        jitter=0.0,
        seed=-1,
        workers=2,
        keep="",
    )
    jobs = philly_jobs()
    if jobs is None:
        return 0
    files = ["P12"] if given.quick else given.files.split(",")
    if unknown := [file for file in files if file not in CASES]:
        raise SystemExit(f"--files: {unknown[0]!r} is not one of {', '.join(CASES)}")
    asked = tuple(name for name in (given.policy, *given.baselines.split(",")) if name)
    policies = {shown: name for name in asked for shown in check_policies((name,))}
    ours = next(iter(check_policies((given.policy,)))) if given.policy else ""
    frame = usable(jobs)
    cases = {file: case_of(file, frame) for file in files}
    rows = kept_rows(given.keep, Row)
    done = {(row.file, row.policy) for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        played = jobs
        if given.quick:
            played = Path(folder) / "first-days.parquet"
            first_days(frame, tuple(cases["P12"].guarantee), QUICK_DAYS).to_parquet(played)
        tasks, seed = [], given.seed if given.seed >= 0 else None
        for file, case in cases.items():
            cluster = Path(folder) / f"{file}.yaml"
            cluster.write_text(cluster_text(case), encoding="utf-8")
            tenants = tuple(case.guarantee)
            if given.slice:
                part = sliced(frame, tenants, given.slice)
                tenants = tuple(each for each in tenants if (part["tenant"] == each).any())
                played = Path(folder) / f"{file}.parquet"
                part.to_parquet(played)
            tasks += [
                Task(file, name, tenants, played, cluster, given.durations, given.jitter, seed)
                for shown, name in policies.items()
                if (file, shown) not in done
            ]
        for row in measured(tasks, given.workers):
            rows.append(row)
            keep_row(given.keep, row)
    print(_heading(given, ours))
    found = {
        file: {row.policy: row for name in policies for row in rows if (row.file, row.policy) == (file, name)}
        for file in files
    }
    bad = [file for file in files if not show(found[file], file, ours)]
    write_json(
        given.json,
        {
            "benchmark": "tenants",
            "guaranteed_nodes": {file: dict(case.guarantee) for file, case in cases.items()},
            "rows": [asdict(row) for rows_of in found.values() for row in rows_of.values()],
            "ratios": {
                file: {name: ratios(row, rows_of) for name, row in rows_of.items()} for file, rows_of in found.items()
            },
        },
    )
    return int(bool(bad))


if __name__ == "__main__":
    raise SystemExit(main())
