r"""Preemption, moves and fill at a price: B3 (useful share) and B4 (JCT) of the shipped policy, seven tenants.

Every preemption or move loses 60 s of progress and adds 30 s of restore (`--physics charged`); `last-two` predicts run
times. It runs the functions behind

    autopilot simulate --jobs JOBS --tenant TENANT --cluster 7x8 --physics charged --telemetry off \
        --durations last-two --policy fifo-skip,las,autopilot

The curve repeats P1 with other values of one weight, `preemption.index_ratio`: how much higher the index of a waiting
gang must be than that of the gang it pauses. A higher ratio causes fewer pauses; the cost is printed beside it.

    python -m benchmarks.preemption [--quick] [--files P1,P2,T1,...] [--policy autopilot] [--workers 2]
        [--curve 1.5,6,12] [--keep ROWS.jsonl] [--json OUT]

`--quick` runs the first 60 jobs of P1. With `--keep` every measured row is written at once, and an interrupted run
resumes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.kit import ended, judged, measured, options
from benchmarks.runs import Call, Row, philly_jobs, play

BASELINES = ("fifo-skip", "las")
JCT_S = {"P1": 26_500.0, "P2": 26_000.0}
USEFUL = {"P1": 0.96, "P2": 0.96}
WEIGHT = "preemption.index_ratio"
HEADING = (
    "file, policy",
    "useful share",
    "JCT s",
    "/ fifo-skip",
    "first start p99 s",
    "total wait p99 s",
    "pre+moves/1,000",
    "lost",
    "wall s",
    "violations",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the JSON; 1 when a bar is missed."""
    given = options(
        __doc__, arguments, files="P1,P2,T1,T2,T3,T4,T5", policy="autopilot", workers=2, curve="1.5,6,12", keep=""
    )
    if philly_jobs() is None:
        return 0
    files, jobs = (["P1"], "0-60") if given.quick else (given.files.split(","), "")
    calls = [Call(file, name, 1, jobs=jobs) for file in files for name in (*BASELINES, given.policy)]
    if not given.quick and "P1" in files:
        calls += [Call("P1", given.policy, 1, policy_set=f"{WEIGHT}={each}") for each in given.curve.split(",") if each]
    found = measured({str(call): call for call in calls}, play, Row, given.workers, given.keep)
    rows = dict(zip(calls, found, strict=True))
    plain = {call.file: row for call, row in rows.items() if call.policy == "fifo-skip"}
    lines = [_line(call, row, plain[call.file]) for call, row in rows.items()]
    figures = {"rows": [{**asdict(call), "weight": _weight(call), **row.figures} for call, row in rows.items()]}
    return ended(given, HEADING, lines, figures, sound=not any(row["violated"] for row in found))


def _weight(call: Call) -> float | None:
    """Of a call of the curve."""
    return float(call.policy_set.partition("=")[2]) if call.policy_set else None


def _line(call: Call, row: Row, plain: Row) -> list[str]:
    """One row; goals are for the whole file under the policy as it ships."""
    share, jct_s, first_s = row["useful_ratio"] / row["bound_ratio"], row["jct_s"], row["first_start_p99_s"]
    useful, jct, first = f"{share:.3f}", f"{jct_s:,.0f}", f"{first_s:,.0f}"
    if call.policy not in BASELINES and not call.policy_set and not call.jobs:
        useful = judged(share, USEFUL[call.file], least=True, digits=3) if call.file in USEFUL else useful
        jct = judged(jct_s, JCT_S.get(call.file, plain["jct_s"]), digits=0)
        first = judged(first_s, plain["first_start_p99_s"], digits=0)
    return [
        f"{call.file} {row.name} {call.policy_set}".rstrip(),
        useful,
        jct,
        f"{jct_s / plain['jct_s']:.2f}",
        first,
        f"{row['total_wait_p99_s']:,.0f}",
        f"{row['preemptions_per_1000']:.0f}+{row['moves_per_1000']:.0f}",
        f"{row['lost_gpu_s'] / row['allocated_gpu_s']:.2%}",
        f"{row['wall_s']:.0f}",
        f"{row['violated']:.0f}",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
