"""The value of demand forecasts to services: scenario `bursts` under `autopilot` and under `reactive`, without
forecasts.

Two cases on the same cluster, services and training. `synthetic`: the scenario as it is. `traces`: the same services
with the bursts of real traces (benchmarks/burst_requests.py), each sized so that its busiest ten minutes need three
quarters of its maximum of replicas. It runs the functions behind

    autopilot simulate --scenario bursts [--requests FILE] --policy reactive,autopilot

Violations are requests over their service's objective / requests, of those that complete after the first two hours.
Before that, under both policies, every service has too few replicas and no forecast is proven (the whole run is printed
too). GPU-hours are all GPU time allocated, services and training together. Goal: at most half of the violations at
GPU-hours within 2 %, or no more violations at 15 % fewer.

    python -m benchmarks.bursts_slo [--quick] [--cases synthetic,traces] [--seeds 1] [--json OUT]

`--quick` simulates the first two hours of `synthetic`. `--seeds N` simulates N draws of each case and judges their
sums.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import simulate
from benchmarks.burst_requests import LENGTHS, Source, files, requests
from benchmarks.kit import data_folder, judged, options, table, write_json
from simulator.inference.deployments import Deployment
from simulator.scenarios import SHIPPED, load_scenario

SCENARIO, POLICIES = "bursts", ("reactive", "autopilot")
CASES = ("synthetic", "traces")
MOST_VIOLATIONS, EQUAL_GPU_H, FEWER_GPU_H = 0.5, 1.02, 0.85
"""The bar: half of the violations at equal GPU-hours, or equal violations at 15 % fewer."""

QUICK_S = 7200.0
WARM_UP_S = 7200.0
"""Nothing is judged before this time."""

PEAK_RATIO = 0.75
"""Part of a service's largest number of replicas that its busiest ten minutes need."""

FROM_S = 5 * 86_400.0 + 8 * 3600.0
"""Simulated part of the ten ServeGen days: from the morning of the sixth on."""

SHAPES = {
    "chat": ("language/m-large", 0, "azure"),
    "code": ("language/m-large", 1, "azure"),
    "search": ("language/m-small", 0, "azure"),
    "documents": ("language/m-large", 2, "mooncake"),
}
"""By service: the source of its rate (ServeGen model, rank of the client by its requests) and of its requests."""


@dataclass(frozen=True, slots=True)
class Row:
    """One policy on one case."""

    case: str
    seed: int
    policy: str
    requests: int
    violation_ratio: float
    late: float  # requests over their objective after the warm-up
    p99_latency_s: float
    gpu_h: float
    finished: int
    violated: int
    wall_s: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, judge."""
    given = options(__doc__ or "", arguments, cases=",".join(CASES), seeds=1)
    cases = ["synthetic"] if given.quick else [each for each in given.cases.split(",") if each]
    absent = [path for path in files(data_folder()) if not path.exists()]
    if "traces" in cases and absent:
        print(f"SKIPPED: case traces: {absent[0]} is absent; docs/data-sources.md names its publisher")
        cases.remove("traces")
    rows: list[Row] = []
    for case in cases:
        for seed in range(given.seeds):
            rows += play(case, seed, quick=given.quick)
            show(rows[-len(POLICIES) :])
    kept = [judge(case, [row for row in rows if row.case == case]) for case in cases]
    write_json(given.json, {"rows": [asdict(row) for row in rows], "kept": dict(zip(cases, kept, strict=True))})
    return int(not all(kept) and not given.quick)


def play(case: str, seed: int, *, quick: bool) -> list[Row]:
    """Both policies on one draw of a case."""
    scenario = load_scenario(SCENARIO)
    with tempfile.TemporaryDirectory() as folder:
        path, file = Path(folder, "scenario.yaml"), Path(folder, "requests.parquet")
        text = (SHIPPED / f"{SCENARIO}.yaml").read_text(encoding="utf-8")
        path.write_text(
            text.replace("horizon: 12h", f"horizon: {QUICK_S:g}s")
            .replace("to: 10h", "to: 1h")
            .replace("count: 320", "count: 40")
            if quick
            else text,
            encoding="utf-8",
        )
        if case == "traces":
            real = trace_requests(scenario.services, FROM_S + 86_400.0 * (seed % 4), scenario.horizon_s)
            real.to_parquet(file, index=False)
        done = simulate(
            SimulateOptions(
                scenario=str(path),
                requests=file if case == "traces" else None,
                policies=POLICIES,
                seed=scenario.seed + seed,
                series=True,
            )
        )
    rows = []
    for each in done.policies:
        result = each.result
        late = sum(
            float(service.late[service.t_s >= (0.0 if quick else WARM_UP_S)].sum())
            for service in (each.run.services if each.run else ())
            if service.late is not None
        )
        rows.append(
            Row(
                case,
                seed,
                each.name,
                result["slo"]["requests"],
                result["slo"]["violation_ratio"],
                late,
                result["slo"]["p99_latency_s"],
                result["gpu_s"]["allocated"] / 3600.0,
                result["jobs"]["finished"],
                result["invariants"]["violated"],
                result["wall_s"],
            )
        )
    return rows


def trace_requests(services: Sequence[Deployment], from_s: float, length_s: float) -> pd.DataFrame:
    """Requests with the bursts of real traces for these services."""
    folder = data_folder()
    sources = []
    for service in services:
        model, rank, lengths = SHAPES[service.name]
        tokens = pd.read_parquet(folder / LENGTHS[lengths])
        busy_s = service.serving.service_s(tokens["input_tokens"].to_numpy(), tokens["output_tokens"].to_numpy())
        spec = service.autoscaler
        slots = PEAK_RATIO * spec.max_replicas * service.serving.slots * spec.target
        sources.append(Source(service.name, model, rank, lengths, slots / float(np.mean(busy_s))))
    starts_s = max(service.calls_from_s for service in services)
    return requests(folder, tuple(sources), from_s, length_s, starts_s)


def show(rows: Sequence[Row]) -> None:
    """One line per policy."""
    table(
        [
            "case",
            "seed",
            "policy",
            "requests",
            "over the objective",
            "after 2 h",
            "p99",
            "GPU-hours",
            "jobs done",
            "broken",
            "wall",
        ],
        [
            [
                row.case,
                str(row.seed),
                row.policy,
                f"{row.requests:,}",
                f"{100 * row.violation_ratio:.3f} %",
                f"{row.late:,.0f}",
                f"{row.p99_latency_s:.1f} s",
                f"{row.gpu_h:.1f}",
                str(row.finished),
                str(row.violated),
                f"{row.wall_s:.0f} s",
            ]
            for row in rows
        ],
    )
    sys.stdout.flush()


def judge(case: str, rows: Sequence[Row]) -> bool:
    """Print the figures of the case beside the bar; True when it is met."""
    late = {name: sum(row.late for row in rows if row.policy == name) for name in POLICIES}
    gpu_h = {name: sum(row.gpu_h for row in rows if row.policy == name) for name in POLICIES}
    reactive, ahead = POLICIES
    violations = late[ahead] / late[reactive] if late[reactive] else float(late[ahead] > 0)
    hours = gpu_h[ahead] / gpu_h[reactive]
    equal = hours <= EQUAL_GPU_H and violations <= MOST_VIOLATIONS
    fewer = hours <= FEWER_GPU_H and violations <= 1.0
    sound = not any(row.violated for row in rows)
    print(
        f"{case}: violations {judged(violations, MOST_VIOLATIONS, least=False)} of reactive's, "
        f"GPU-hours {judged(hours, EQUAL_GPU_H, least=False, digits=3)}{'' if sound else ', INVARIANTS BROKEN'}"
    )
    return (equal or fewer) and sound


if __name__ == "__main__":
    raise SystemExit(main())
