"""Approvals that a person can use: what becomes of them, and what they cost against acting at once.

    python -m benchmarks approvals            # demo, burst-full and hoarders, five seeds
    python -m benchmarks approvals --quick    # six hours of demo, one seed
    python -m benchmarks approvals --scenarios demo --workers 2 --keep ROWS.jsonl    # an interrupted run resumes

A simulated person looks every 10 min, needs 1 min for each card (equal recommendations of one action and owner are one
card), and approves all. Beside it `auto` runs with the same delays: each recommendation is carried out, as it is then,
after a delay that is drawn from those of the person. Goals: at least 95 % of the approvals whose object still waits are
carried out; at most two ids for an object in an hour, in the median; waiting and lost work within 10 % of `auto`; no
effect beyond what was approved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.people import Delay, People, Somebody
from autopilot.app.runs.simulate import simulate
from autopilot.core.model.policy import Policy
from benchmarks.kit import ended, measured, options
from benchmarks.runs import Call, scenario_of

POLICY = "approve"
SCENARIOS = ("demo", "burst-full", "hoarders")
SEEDS = 5
QUICK_HOURS = 6
CARRIED_RATIO, IDS, NEAR_RATIO = 0.95, 2.0, 0.1
HEADING = (
    "scenario",
    "seed",
    "approvals",
    "carried out",
    "left",
    "ratio",
    "ids an hour",
    "delay min",
    "wait min",
    "auto",
    "lost GPU-h",
    "auto",
    "outside",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario and seed."""

    scenario: str
    seed: int
    approvals: int
    carried: int
    left: int  # not carried out although their object waited on
    ids: float  # for an object in an hour, median
    delay_s: float  # from first sight to the approval, median
    wait_s: float  # of jobs, mean
    auto_wait_s: float
    lost_gpu_h: float
    auto_lost_gpu_h: float
    outside: int
    words: tuple[str, ...] = ()  # what went beyond an approval, and what was not carried out

    @property
    def carried_ratio(self) -> float:
        """Of the approvals whose object still waits, those that were carried out."""
        return self.carried / max(self.carried + self.left, 1)


def play(scenario: str, seed: int, people: type[People], **more: Any) -> tuple[People, dict[str, Any]]:
    """One run: who approved, and its result."""
    made: list[People] = []

    def make(policy: Policy) -> People:
        made.append(people(policy, **more))
        return made[-1]

    call = SimulateOptions(scenario=scenario, seed=seed, policies=(POLICY,), series=False)
    outcome = simulate(call, people=make)
    return made[0], outcome.policies[0].result


def measure(call: Call) -> Row:
    """The row of one scenario and seed."""
    seed = call.seed or 0
    with TemporaryDirectory() as folder:
        return _measured(scenario_of(call, Path(folder)), call.file, seed)


def _measured(scenario: str, name: str, seed: int) -> Row:
    person, result = play(scenario, seed, Somebody)
    delays_s = [each.at_s - each.shown_s for each in person.given] or [0.0]
    auto, other = play(scenario, seed, Delay, delays_s=delays_s, random=np.random.default_rng(seed))
    carried = [each for each in person.given if each.plans]
    left = [each for each in person.given if not each.plans and each.waits]
    return Row(
        name,
        seed,
        len(person.given),
        len(carried),
        len(left),
        median(map(len, person.ids.values())) if person.ids else 0.0,
        median(delays_s),
        result["jobs"]["total_wait_s_mean"],
        other["jobs"]["total_wait_s_mean"],
        _lost(result),
        _lost(other),
        len(person.outside) + len(auto.outside),
        (
            *person.outside,
            *auto.outside,
            *(f"not carried out: {each.proposal.recommendation}: {each.held}" for each in left),
        ),
    )


def _lost(result: dict[str, Any]) -> float:
    found = result["disruptions"]["lost_gpu_s"] / 3600.0
    return float(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a goal is missed."""
    given = options(__doc__, arguments, scenarios="", seeds=SEEDS, hours=0, words=False, workers=1, keep="")
    names = given.scenarios.split(",") if given.scenarios else ("demo",) if given.quick else SCENARIOS
    hours, seeds = given.hours or (QUICK_HOURS if given.quick else 0), 1 if given.quick else given.seeds
    calls = [Call(name, POLICY, seed, horizon=f"{hours}h" if hours else "") for name in names for seed in range(seeds)]
    rows = measured({str(call): call for call in calls}, measure, Row, given.workers, given.keep)
    if given.words:
        print(*(f"  {each}" for row in rows for each in row.words), sep="\n")
    figures = {"rows": [asdict(row) for row in rows]}
    return ended(given, HEADING, [_cells(row) for row in rows], figures, sound=_met(rows))


def _met(rows: Sequence[Row]) -> bool:
    """Whether all goals are met: waiting and lost work over all runs together."""
    whole = replace(rows[0], carried=sum(each.carried for each in rows), left=sum(each.left for each in rows))
    near = all(
        sum(getattr(each, name) for each in rows)
        <= (1 + NEAR_RATIO) * sum(getattr(each, f"auto_{name}") for each in rows)
        for name in ("wait_s", "lost_gpu_h")
    )
    ids = median(each.ids for each in rows) <= IDS
    return whole.carried_ratio >= CARRIED_RATIO and ids and near and not any(each.outside for each in rows)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.scenario,
        f"{row.seed}",
        f"{row.approvals}",
        f"{row.carried}",
        f"{row.left}",
        f"{row.carried_ratio:.3f}",
        f"{row.ids:g}",
        f"{row.delay_s / 60:.1f}",
        f"{row.wait_s / 60:.1f}",
        f"{row.auto_wait_s / 60:.1f}",
        f"{row.lost_gpu_h:.1f}",
        f"{row.auto_lost_gpu_h:.1f}",
        f"{row.outside}",
    )


if __name__ == "__main__":
    raise SystemExit(main())
