"""Idle reclaim on the scenario `hoarders`: idle GPU-hours returned to others, and owners who come back early.

    python -m benchmarks idle_reclaim            # seeds 1 to 5, two days of 512 GPUs each (long)
    python -m benchmarks idle_reclaim --quick    # one seed, an eighth of the cluster, one day

Idle are the GPU-hours of work whose owner is away (the truth of the generator), held or suspended, until the last
arrival; no work of the scenario is of a protected class. Returned are those that other work used while the idle work
was suspended. A return is early within an hour of the suspension.

`--policies` names others to compare, `--rows FILE` keeps finished runs, `--workers` runs them side by side.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import simulate
from benchmarks.kit import each_of, judged, keep_row, kept_rows, options, table, tell_violations, write_json
from simulator.scenarios.loader import SHIPPED

LEAST_RETURNED, MOST_EARLY, LEAST_SUSPENSIONS = 0.6, 0.02, 300
SEEDS = (1, 2, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    policy: str
    seed: int
    idle_gpu_h: float  # owner away: held, or suspended
    idle_ratio: float  # of the GPU-hours that all work holds
    freed_ratio: float  # suspended, of the idle ones
    returned_ratio: float  # used by other work, of the idle ones
    suspensions: int
    early_returns: int
    returned_wait_s: float  # mean, from return to restart
    real_utilization_ratio: float  # until the last arrival
    violated: int
    wall_s: float


def measure(task: tuple[str, str, int]) -> Row:
    """One policy on one seed."""
    scenario, policy, seed = task
    outcome = simulate(SimulateOptions(scenario=scenario, policies=(policy,), seed=seed))
    tell_violations(f"{policy}, seed {seed}", outcome)
    result = outcome.policies[0].result
    idle, early = result["idle"], result["utilization"]["to_last_arrival"]
    gpu_s = idle["held_gpu_s"] + idle["freed_gpu_s"]
    totals = outcome.policies[0].simulated.totals
    return Row(
        policy,
        seed,
        gpu_s / 3600,
        gpu_s / (totals.early_allocated / 1000 / 1024),
        idle["freed_gpu_s"] / gpu_s,
        idle["returned_ratio"],
        idle["suspensions"],
        idle["early_returns"],
        idle["returned_wait_s"] or 0.0,
        early["real_utilization_ratio"],
        result["invariants"]["violated"],
        result["wall_s"],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a goal is missed."""
    given = options(__doc__ or "", arguments, policies="reclaim-idle", rows="", workers=1)
    with TemporaryDirectory() as folder:
        scenario = _smaller(Path(folder)) if given.quick else "hoarders"
        kept = kept_rows(given.rows, Row)
        done = {(row.policy, row.seed) for row in kept}
        tasks = {
            f"{policy}, seed {seed}": (scenario, policy, seed)
            for seed in SEEDS[: 1 if given.quick else None]
            for policy in given.policies.split(",")
            if (policy, seed) not in done
        }
        for row in each_of(tasks, measure, given.workers) if tasks else ():
            keep_row(given.rows, row)
            kept.append(row)
    kept.sort(key=lambda row: (row.policy, row.seed))
    table(
        HEADS,
        [_cells(row) for row in kept],
    )
    missed = False
    for policy in given.policies.split(","):
        rows = [row for row in kept if row.policy == policy and row.suspensions]
        if rows:
            missed |= _judge(policy, rows)
    write_json(given.json, {"rows": [asdict(row) for row in kept]})
    return int(missed and not given.quick)


HEADS = (
    "policy",
    "seed",
    "idle GPU-h",
    "of held",
    "suspended",
    "returned",
    "suspensions",
    "early",
    "wait on return",
    "real utilization",
    "violations",
)


def _cells(row: Row) -> list[str]:
    return [
        row.policy,
        f"{row.seed}",
        f"{row.idle_gpu_h:,.0f}",
        f"{row.idle_ratio:.1%}",
        f"{row.freed_ratio:.1%}",
        f"{row.returned_ratio:.1%}",
        f"{row.suspensions}",
        f"{row.early_returns}",
        f"{row.returned_wait_s / 60:.0f} min",
        f"{row.real_utilization_ratio:.1%}",
        f"{row.violated}",
    ]


def _judge(policy: str, rows: Sequence[Row]) -> bool:
    """Print the goals of one policy over its seeds; True where one is missed."""
    idle = sum(row.idle_gpu_h for row in rows)
    returned = sum(row.returned_ratio * row.idle_gpu_h for row in rows) / idle
    suspensions, early = sum(row.suspensions for row in rows), sum(row.early_returns for row in rows)
    print(f"{policy}, {len(rows)} seeds:")
    print(f"  idle GPU-hours returned to others: {judged(returned, LEAST_RETURNED, least=True)}")
    print(f"  suspensions: {judged(suspensions, LEAST_SUSPENSIONS, least=True, digits=0)}")
    print(f"  owners back within an hour: {judged(early / suspensions, MOST_EARLY, least=False, digits=3)}")
    return (
        returned < LEAST_RETURNED
        or suspensions < LEAST_SUSPENSIONS
        or early > MOST_EARLY * suspensions
        or any(row.violated for row in rows)
    )


def _smaller(folder: Path) -> str:
    """An eighth of the scenario for a day."""
    scenario = yaml.safe_load((SHIPPED / "hoarders.yaml").read_text(encoding="utf-8"))
    scenario["cluster"]["pools"][0]["nodes"] //= 8
    for queue in scenario["cluster"]["queues"]:
        queue["guarantee"] = {model: gpus // 8 for model, gpus in queue["guarantee"].items()}
    for group in scenario["jobs"]["groups"]:
        group["count"] //= 8 if group["kind"] == "intermittent" else 16
        group["duration"], group["to"] = ("20h", "1h") if group["kind"] == "intermittent" else ("3h", "23h")
    scenario["horizon"] = "24h"
    path = folder / "hoarders.yaml"
    path.write_text(yaml.safe_dump(scenario), encoding="utf-8")
    return str(path)


if __name__ == "__main__":
    sys.exit(main())
