"""B6: jobs simulated per second by each textbook order on P1, checkers on.

Speed is submitted / wall_s of the result: one policy's run in the engine, without start-up, reading and
report. The anchor is 2,000 jobs/s. Every round runs all policies; printed are median and range.

    python benchmarks/sim_speed.py [--rounds 5] [--data ../shared/data] [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from simulator.baselines import BASELINES, TEXTBOOK  # noqa: E402
from simulator.cluster import Cluster  # noqa: E402
from simulator.clusterfile import parse_cluster  # noqa: E402
from simulator.engine import Scheduler  # noqa: E402
from simulator.inventory import build_inventory  # noqa: E402
from simulator.results import policy_result  # noqa: E402
from simulator.simulation import Simulation  # noqa: E402
from simulator.traces.jobs import read_jobs  # noqa: E402
from simulator.work import jobs_from_trace  # noqa: E402

ANCHOR_JOBS_PER_S = 2000.0
TARGET_RATIO = 5.0


def scheduler(name: str, _cluster: Cluster) -> Scheduler:
    """A new scheduler of that name."""
    return BASELINES[name]()


def main() -> int:
    """Measure, print the table, write the JSON; 1 when a policy misses the target."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--policies", default=",".join((*TEXTBOOK, "las", "easy")))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    path = options.data / "philly_jobs" / "jobs.parquet"
    if not path.exists():
        print(f"SKIPPED: no {path}")
        return 0
    inventory = build_inventory(parse_cluster("7x8"))
    trace = read_jobs(path, tenants=["vc_6c71a0"])
    speeds: dict[str, list[float]] = {name: [] for name in options.policies.split(",")}
    for _ in range(options.rounds):
        for name, found in speeds.items():
            jobs = jobs_from_trace(trace, inventory)
            entry = policy_result(Simulation(inventory, jobs, partial(scheduler, name)).run())
            found.append(entry["jobs"]["submitted"] / entry["wall_s"])
    print(
        f"B6 sim-speed, P1 ({len(trace):,} jobs), {options.rounds} rounds; ratio to {ANCHOR_JOBS_PER_S:,.0f} jobs/s"
    )
    print(f"{'policy':15} {'jobs/s':>9} {'min':>9} {'max':>9} {'ratio':>7}  target")
    rows = {}
    for name, found in speeds.items():
        ratio = median(found) / ANCHOR_JOBS_PER_S
        target = f">= {TARGET_RATIO:g}" if name in TEXTBOOK else "stated"
        print(f"{name:15} {median(found):9,.0f} {min(found):9,.0f} {max(found):9,.0f} {ratio:7.1f}  {target}")
        rows[name] = {"jobs_per_s": median(found), "min": min(found), "max": max(found), "ratio": ratio}
    if options.json:
        options.json.write_text(
            json.dumps({"benchmark": "B6", "rounds": options.rounds, "policies": rows}, indent=2) + "\n"
        )
    return int(any(rows[name]["ratio"] < TARGET_RATIO for name in rows if name in TEXTBOOK))


if __name__ == "__main__":
    raise SystemExit(main())
