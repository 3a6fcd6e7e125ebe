"""Policies on the shipped scenarios: waiting, real utilization and its bound, late requests, lost and idle work.

The bound is the most real utilization that any schedule of the same work could reach until the last arrival
(simulator/outcome/real_use.py). Widest: the mean wait until the first start of the jobs with most GPUs. Returned: of
the GPU-hours whose owner was away, those that other work used; a return is early within an hour of the suspension.

    python -m benchmarks scenarios [--quick] [--scenarios demo,hoarders] [--policies static,autopilot] [--seeds 5]
        [--policy-set FIELD=VALUE,...] [--horizon 8h] [--workers 1] [--keep ROWS.jsonl] [--json OUT]

Without `--policies` each scenario has its own. `--policy-set` changes fields of each policy of the autopilot. `--quick`
plays one seed of `quickstart`. With `--keep` every measured row is written at once, and an interrupted run resumes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import isnan
from statistics import fmean

from benchmarks.kit import ended, judged, measured, options
from benchmarks.runs import Call, Row, play

PLAYED = {
    "demo": "static,autopilot",
    "hoarders": "static,autopilot",
    "fragmented": "static,autopilot",
    "mig-churn": "static,autopilot",
    "burst-full": "static,autopilot",
}
LEAST_OF_BOUND = {("demo", "autopilot"): 0.9, ("hoarders", "autopilot"): 0.9}
LEAST_RETURNED = {("hoarders", "autopilot"): 0.6}
HEADING = (
    "scenario, policy",
    "seeds",
    "mean wait s",
    "first start s",
    "widest s",
    "real",
    "of the bound",
    "useful share",
    "late requests",
    "lost GPU-h",
    "pre+moves",
    "returned",
    "suspended, early",
    "violations",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each scenario and policy, means over the seeds; 1 where a goal is missed."""
    given = options(
        __doc__,
        arguments,
        scenarios=",".join(PLAYED),
        policies="",
        seeds=5,
        policy_set="",
        horizon="",
        workers=1,
        keep="",
    )
    if given.quick:
        given.scenarios, given.seeds = "quickstart", 1
    calls = [
        Call(scenario, policy, seed, policy_set=given.policy_set, horizon=given.horizon)
        for scenario in given.scenarios.split(",")
        for policy in (given.policies or PLAYED.get(scenario, "autopilot")).split(",")
        for seed in range(1, given.seeds + 1)
    ]
    rows = measured({str(call): call for call in calls}, play, Row, given.workers, given.keep)
    runs: dict[tuple[str, str], list[Row]] = {}
    for call, row in zip(calls, rows, strict=True):
        runs.setdefault((call.file, call.policy), []).append(row)
    lines = [_line(run, of_run) for run, of_run in runs.items()]
    figures = {"rows": [{**asdict(call), **asdict(row)} for call, row in zip(calls, rows, strict=True)]}
    return ended(given, HEADING, lines, figures, sound=not any(row["violated"] for row in rows))


def _line(run: tuple[str, str], rows: Sequence[Row]) -> list[str]:
    def mean(figure: str, form: str, per: float = 1.0) -> str:
        value = fmean(row[figure] for row in rows) / per
        return "-" if isnan(value) else format(value, form)

    def goal(value: float, least: float | None) -> str:
        if isnan(value):
            return "-"
        return f"{value:.2f}" if least is None else judged(value, least, least=True)

    of_bound = fmean(row["real_ratio"] * row["capacity_gpu_s"] / row["bound_active_gpu_s"] for row in rows)
    widest_s = fmean(row.widest_wait_s for row in rows)
    return [
        " ".join(run),
        f"{len(rows)}",
        mean("total_wait_s", ",.0f"),
        mean("first_start_s", ",.0f"),
        "-" if isnan(widest_s) else f"{widest_s:,.0f}",
        mean("real_ratio", ".1%"),
        goal(of_bound, LEAST_OF_BOUND.get(run)),
        mean("useful_ratio", ".3f"),
        mean("late_ratio", ".2%"),
        mean("lost_gpu_s", ",.1f", 3600.0),
        f"{mean('preemptions', '.0f')}+{mean('moves', '.0f')}",
        goal(fmean(row["returned_ratio"] for row in rows), LEAST_RETURNED.get(run)),
        f"{mean('suspensions', '.0f')}, {mean('early_returns', '.0f')}",
        mean("violated", ".0f"),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
