"""B6: jobs simulated per second on P1, by the textbook orders and by the autopilot, checkers on.

Speed is submitted / wall_s of the JSON that `autopilot simulate` writes: one policy's run in the engine, without
start-up, reading and report. The anchor is 2,000 jobs/s. Every round runs all textbook orders; the median and the range
are printed. The autopilot has no goal. It runs the first thousand jobs: once as a simulation of months runs by default
(telemetry in windows, journal on disk) and once with neither.

    python -m benchmarks.sim_speed [--quick] [--rounds 5] [--json OUT]
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import simulate
from benchmarks.kit import ended, judged, options
from benchmarks.runs import ALONE, GPUS_PER_NODE, part_of, philly_jobs
from simulator.baselines import TEXTBOOK

ANCHOR_JOBS_PER_S = 2000.0
TARGET_RATIO = 5.0
OTHERS = ("las", "easy")
STATED_JOBS = 1000


def speeds(jobs: Path, policies: tuple[str, ...], **more: Any) -> dict[str, float]:
    """Jobs per second of each policy, in one call."""
    tenant, nodes = ALONE["P1"]
    given = SimulateOptions(
        jobs=jobs,
        tenants=(tenant,),
        cluster=f"{nodes}x{GPUS_PER_NODE}",
        policies=policies,
        physics="ideal",
        series=False,
        **more,
    )
    entries = simulate(given).document()["policies"]
    return {name: entry["jobs"]["submitted"] / entry["wall_s"] for name, entry in entries.items()}


def stated(jobs: Path) -> dict[str, list[float]]:
    """The autopilot, on a part of P1: every tick observes, decides and records, which takes minutes on P1."""
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "part.parquet"
        part_of(jobs, ALONE["P1"][:1], f"0-{STATED_JOBS}").to_parquet(part, index=False)
        usual = speeds(part, ("autopilot",), journal=Path(folder) / "run.journal")
        bare = speeds(part, ("autopilot",), telemetry="off")
    return {
        f"autopilot, first {STATED_JOBS:,} jobs": list(usual.values()),
        f"autopilot, first {STATED_JOBS:,} jobs, neither telemetry nor journal": list(bare.values()),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the JSON; 1 when a textbook order misses the target. `--quick`: one round, no autopilot."""
    given = options(__doc__, arguments, rounds=5)
    jobs = philly_jobs()
    if jobs is None:
        return 0
    rounds = 1 if given.quick else given.rounds
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, speed in speeds(jobs, (*TEXTBOOK, *OTHERS)).items():
            found.setdefault(name, []).append(speed)
    if not given.quick:
        found |= stated(jobs)
    lines, figures = [], {}
    for name, each in found.items():
        ratio = median(each) / ANCHOR_JOBS_PER_S
        target = judged(ratio, TARGET_RATIO, least=True, digits=1) if name in TEXTBOOK else f"{ratio:.1f}"
        lines.append([name, f"{median(each):,.0f}", f"{min(each):,.0f}..{max(each):,.0f}", target])
        figures[name] = {"jobs_per_s": median(each), "min": min(each), "max": max(each), "ratio": ratio}
    heading = (f"speed on P1, {rounds} rounds", "jobs/s", "range", f"/ {ANCHOR_JOBS_PER_S:,.0f}")
    return ended(given, heading, lines, {"rounds": rounds, "policies": figures})


if __name__ == "__main__":
    raise SystemExit(main())
