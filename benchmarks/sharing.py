"""Shared GPUs: the policy `autopilot` as shipped beside itself with sharing off, on the same work.

    python -m benchmarks sharing                  # crowded, hoarders-busy, underdriven and the demo, five seeds
    python -m benchmarks sharing --quick          # three hours of underdriven, one seed
    python -m benchmarks sharing --scenarios crowded --seeds 2 --workers 2 --keep ROWS.jsonl    # it resumes

Figures are medians over the seeds; differences and ratios are those of each seed. Utilization is that until the last
arrival. Packed is what the whole mix of work reaches when it is packed under the rules; the strict bound prefers active
work and keeps no tenants apart (simulator/outcome/shareable.py). Physical GPU-hours count a GPU with any holder whole.
Those of finished work are divided by the GPU-hours that the finished jobs ask for at their durations: where both runs
finish the same jobs, the ratio is that of the physical GPU-hours.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import isnan, nan
from operator import sub, truediv
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import SimulationOutcome, simulate
from benchmarks.kit import ended, judged, measured, options, tell_violations
from benchmarks.runs import Call, changes_of, row_of, scenario_of
from simulator.outcome.shared_use import useful_part_of_rise

POLICY = "autopilot"
SCENARIOS = ("crowded", "hoarders-busy", "underdriven", "demo-shared")
SEEDS = 5
OFF = "modes.share=off,modes.unshare=off"
QUICK_HORIZON = "3h"
HEADING = ("scenario, figure", "seeds", "sharing off", "shared", "demand")


@dataclass(frozen=True, slots=True)
class Row:
    """One run. `figures` are those of `benchmarks.runs.FIGURES`."""

    figures: dict[str, float]
    finished_work_gpu_s: float  # GPUs x duration of the jobs that finished
    violations: dict[str, int]  # by checker


def measure(call: Call) -> Row:
    """Run it, and print some of its figures at once."""
    with TemporaryDirectory() as folder:
        given = SimulateOptions(
            scenario=scenario_of(call, Path(folder)),
            policies=(call.policy,),
            policy_set=changes_of(call),
            seed=call.seed,
            series=False,
        )
        outcome = simulate(given)
    tell_violations(str(call), outcome)
    row = row_of_sharing(outcome)
    shown = {name: round(row.figures[name], 4) for name in ("useful_utilization", "stretch_mean", "suspensions")}
    print(f"  {call}: {shown}", file=sys.stderr, flush=True)
    return row


def row_of_sharing(outcome: SimulationOutcome) -> Row:
    """The row of a run of one policy."""
    jobs = outcome.job_frames()[0]
    done = jobs[np.isfinite(jobs["end_s"])]
    found = outcome.policies[0].simulated.found
    work_gpu_s = float((done["gpus"] * done["duration_s"]).sum())
    return Row(row_of(outcome).figures, work_gpu_s, dict(Counter(each.checker for each in found.violations)))


Figure = Callable[[Row], float]


def of(name: str, *, per: str = "", times: float = 1.0) -> Figure:
    """A figure of a run, times a factor, over another."""
    return lambda row: row.figures[name] * times / (row.figures[per] if per else 1.0)


def _of_bound(bound: str, row: Row) -> float:
    return row.figures["useful_utilization"] * row.figures["capacity_gpu_s"] / row.figures[bound]


def _of_finished(row: Row) -> float:
    return row.figures["physical_finished_gpu_s"] / row.finished_work_gpu_s if row.finished_work_gpu_s else nan


def _violations(row: Row) -> float:
    return float(sum(row.violations.values()))


def _rise(on: Row, off: Row) -> float:
    before, after = ((each.figures["active_gpu_s"], each.figures["useful_gpu_s"]) for each in (off, on))
    part = useful_part_of_rise(*before, *after)
    return nan if part is None else part


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table: a figure of each run, or what `both` makes of the two (shared, off) of a seed.

    A demand is the most that it may be, or with `least` the least, by scenario.
    """

    words: str
    figure: Figure | None = None
    form: str = ".2f"
    both: Callable[[Row, Row], float] | None = None
    least: bool = False
    demand: Mapping[str, float] = field(default_factory=dict)


def change(figure: Figure, how: Callable[[float, float], float]) -> Callable[[Row, Row], float]:
    """The difference or ratio of a figure of two runs."""
    return lambda on, off: nan if how is truediv and not figure(off) else how(figure(on), figure(off))


USEFUL, LATE, SUSPENSIONS = of("useful_utilization", times=100.0), of("late_ratio", times=100.0), of("suspensions")
LINES = (
    Line("useful utilization, %", USEFUL, ".1f", least=True, demand={"hoarders-busy": 50.0, "underdriven": 35.0}),
    Line("its difference in points", both=change(USEFUL, sub), form=".1f", least=True, demand={"crowded": 6.0}),
    Line("part of the packed bound", partial(_of_bound, "packed_gpu_s"), least=True, demand={"crowded": 0.85}),
    Line("part of the strict bound", partial(_of_bound, "bound_shared_gpu_s")),
    Line("useful part of the rise in SM-active", both=_rise, least=True, demand=dict.fromkeys(SCENARIOS, 0.9)),
    Line("requests over their objective, %", LATE, ".3f"),
    Line("their difference in points", both=change(LATE, sub), form=".3f", demand={"crowded": 0.02}),
    Line("stretch of batch work, mean", of("stretch_mean"), ".3f", demand={"crowded": 1.03}),
    Line("stretch of batch work, p95", of("stretch_p95"), ".3f", demand={"crowded": 1.15}),
    Line("slowdown of owners at work, mean", of("owner_slowdown_mean"), ".3f", demand={"hoarders-busy": 1.15}),
    Line("slowdown of owners at work, p95", of("owner_slowdown_p95"), ".3f", demand={"hoarders-busy": 1.4}),
    Line("suspensions of idle work", SUSPENSIONS, ".0f"),
    Line("their ratio", both=change(SUSPENSIONS, truediv), demand={"hoarders-busy": 0.5}),
    Line("physical over asked GPU-hours of finished work", _of_finished, ".3f"),
    Line("its ratio", both=change(_of_finished, truediv), form=".3f", demand={"demo-shared": 0.9}),
    Line("physical GPU-hours", of("physical_gpu_s", times=1 / 3600), ",.0f"),
    Line("of them with several holders, %", of("several_gpu_s", per="physical_gpu_s", times=100.0), ".1f"),
    Line("jobs finished", of("finished"), ".0f"),
    Line("mean total wait, min", of("total_wait_s", times=1 / 60), ".1f"),
    Line("violations of checkers", _violations, ".0f", demand=dict.fromkeys(SCENARIOS, 0.0)),
)


def table_of(name: str, off: Sequence[Row | None], on: Sequence[Row | None]) -> list[list[str]]:
    """The lines of one scenario; the runs by seed, None for a run that was not asked for."""
    lines = []
    pairs = [(a, b) for a, b in zip(on, off, strict=True) if a is not None and b is not None]
    for line in LINES:
        runs = [
            [] if line.figure is None else [line.figure(row) for row in side if row is not None] for side in (off, on)
        ]
        if line.both is not None:
            runs[1] = [line.both(*pair) for pair in pairs]
        before, after = (_median(side) for side in runs)
        if isnan(before) and isnan(after):
            continue
        demand = "" if isnan(after) or name not in line.demand else _judged(line, after, line.demand[name])
        shown = ("-" if isnan(each) else format(each, line.form) for each in (before, after))
        lines.append([f"{name}: {line.words}", f"{max(map(len, runs))}", *shown, demand])
    return lines


def _median(values: Sequence[float]) -> float:
    known = [each for each in values if not isnan(each)]
    return median(known) if known else nan


def _judged(line: Line, value: float, bar: float) -> str:
    return judged(value, bar, least=line.least, digits=int(line.form[-2]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a demand is missed."""
    given = options(
        __doc__, arguments, scenarios=",".join(SCENARIOS), seeds=SEEDS, sides="off,on", horizon="", workers=1, keep=""
    )
    if given.quick:
        given.scenarios, given.seeds, given.horizon = "underdriven", 1, QUICK_HORIZON
    names, sides, seeds = given.scenarios.split(","), given.sides.split(","), range(1, given.seeds + 1)
    calls = {
        (name, seed, side): Call(name, POLICY, seed, policy_set=OFF if side == "off" else "", horizon=given.horizon)
        for seed in seeds
        for name in names
        for side in sides
    }
    rows = measured({str(call): call for call in calls.values()}, measure, Row, given.workers, given.keep)
    found = dict(zip(calls, rows, strict=True))
    lines = [
        line
        for name in names
        for line in table_of(name, *([found.get((name, seed, side)) for seed in seeds] for side in ("off", "on")))
    ]
    figures = {"rows": [{**asdict(call), **asdict(row)} for call, row in zip(calls.values(), rows, strict=True)]}
    return ended(given, HEADING, lines, figures)


if __name__ == "__main__":
    raise SystemExit(main())
