r"""Many tenants on one cluster: the shipped policy against Kueue's rules, EASY backfill and LAS, on P12 and P10.

`benchmarks/runs.py` has the files. It runs the functions behind

    autopilot simulate --jobs JOBS --tenant TENANT,... --cluster CLUSTER.yaml --physics charged --telemetry off \
        --policy fifo-skip,las,easy,kueue,autopilot --durations last-two

Average wait is to the first start; average total wait is completion time less duration. A tenant's slowdown is its mean
completion time divided by that of the tenant alone under fifo-skip on its guaranteed nodes (at least those of its
widest gang); the worst tenant's is printed with its name. Owed is the GPU time by which tenants ran below their
guarantees while a gang of theirs waited that fits, with the longest such spell of one tenant. Useful share is
to_last_arrival_ratio / bound_ratio. The shipped policy must have a lower average wait and a lower worst slowdown than
kueue and easy. `las` is no bar, because it knows no guarantees and may stop any job. It is shown for its low wait.

    python -m benchmarks.tenants [--quick] [--files P12,P10] [--policy autopilot] [--baselines fifo-skip,las,easy,kueue]
        [--policy-set FIELD=VALUE,...] [--durations last-two] [--slice 400-1400] [--jitter 0.05 --seed 1] [--workers 2]
        [--keep ROWS.jsonl] [--json OUT]

`--quick` runs the first 60 jobs of P12. `--slice A-B` runs jobs A to B of each file by submit, as a trace of their
own. `--files` takes P1, P2, M1, M2 and M3 too; with `--durations last-two`, `predicted` and `exact` they tell what
forecasts are worth. `--policy` takes a policy file too; `--policy ""` measures the baselines alone. `--jitter` and
`--seed` draw durations as `simulate` does. With `--keep` every measured row is written at once, and an interrupted run
resumes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from autopilot.app.runs.named import check_policies
from benchmarks.kit import ended, judged, measured, options
from benchmarks.runs import FILES, Call, Row, philly_jobs, play

RIVALS = ("kueue", "easy")
HEADING = (
    "file, policy",
    "average wait s",
    "average total wait s",
    "p99 s",
    "worst slowdown",
    "of tenant",
    "pre+moves/1,000 jobs",
    "longest wait s",
    "lost GPU-h",
    "owed GPU-h",
    "longest owed h",
    "useful share",
    "wall s",
    "violations",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the JSON; 1 when a bar is missed."""
    given = options(
        __doc__,
        arguments,
        files="P12,P10",
        policy="autopilot",
        policy_set="",
        baselines="fifo-skip,las,easy,kueue",
        durations="last-two",
        slice="",
        jitter=0.0,
        seed=-1,
        workers=2,
        keep="",
    )
    if philly_jobs() is None:
        return 0
    if given.quick:
        given.files, given.slice = "P12", given.slice or "0-60"
    files = given.files.split(",")
    if unknown := [file for file in files if file not in FILES]:
        raise SystemExit(f"--files: {unknown[0]!r} is not one of {', '.join(FILES)}")
    policies = tuple(name for name in (given.policy, *given.baselines.split(",")) if name)
    check_policies(policies)
    seed = given.seed if given.seed >= 0 else None
    calls = [
        Call(
            file,
            name,
            seed,
            given.durations,
            policy_set=given.policy_set,
            jobs=given.slice,
            jitter_ratio=given.jitter,
        )
        for file in files
        for name in policies
    ]
    found = measured({str(call): call for call in calls}, play, Row, given.workers, given.keep)
    rows = dict(zip(calls, found, strict=True))
    lines = [_line(call, row, _rivals(call, rows) if call.policy == given.policy else []) for call, row in rows.items()]
    figures = {"rows": [{**asdict(call), "name": row.name, **row.figures} for call, row in rows.items()]}
    sound = not any(row["violated"] or row["finished"] < row["jobs"] for row in found)
    return ended(given, HEADING, lines, figures, sound=sound)


def _rivals(call: Call, rows: dict[Call, Row]) -> list[Row]:
    """The rows that a policy must not be behind."""
    return [row for other, row in rows.items() if other.file == call.file and other.policy in RIVALS]


def _line(call: Call, row: Row, rivals: Sequence[Row]) -> list[str]:
    def beside(figure: str, digits: int) -> str:
        if not rivals:
            return f"{row[figure]:,.{digits}f}"
        return judged(row[figure], min(rival[figure] for rival in rivals), digits=digits)

    return [
        f"{call.file} {row.name}",
        beside("first_start_s", 0),
        f"{row['total_wait_s']:,.0f}",
        f"{row['total_wait_p99_s']:,.0f}",
        beside("slowdown", 3),
        row.worst_tenant,
        f"{row['preemptions_per_1000']:,.0f}+{row['moves_per_1000']:,.0f}",
        f"{row['longest_wait_s']:,.0f}",
        f"{row['lost_gpu_s'] / 3600:,.0f}",
        f"{row['owed_gpu_s'] / 3600:,.0f}",
        f"{row['longest_owed_s'] / 3600:,.1f}",
        f"{row['useful_ratio'] / row['bound_ratio']:.3f}",
        f"{row['wall_s']:.1f}",
        f"{row['violated']:.0f}",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
