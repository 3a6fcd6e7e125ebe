"""Results of simulations as the report is given them: realistic in shape, made from a seed."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from autopilot.report.data import (
    DecisionRow,
    Heat,
    PolicyRun,
    ReportData,
    Series,
    ServiceSeries,
    heat_of_intervals,
    resample,
)

DAY_S = 86400.0
POLICIES = ("fifo-skip", "autopilot", "sjf-skip")


SHAPE = {
    "free_gpus": 12.5,
    "index_ratio": 0.375,
    "index_ratio_max": 0.75,
    "index_by_cause": {"node_remainder": 0.25, "topology": 0.125},
}


def make_report(
    policies: tuple[str, ...] = POLICIES,
    *,
    seed: int = 1,
    nodes: int = 7,
    span_s: float = 9 * DAY_S,
    services: bool = True,
    name: str = "job",
) -> ReportData:
    """A report over `policies`; `name` begins the name of every job, so that a test may make it hostile."""
    rng = np.random.default_rng(seed)
    return ReportData(
        title="Nine days of two training teams and a chat service",
        seed=seed,
        physics="charged",
        durations="last-two",
        telemetry="windowed",
        cluster={"nodes": nodes, "gpus": nodes * 8},
        assumed={"checkpoint_interval_s": 9054, "cpus": 212},
        command=f"autopilot simulate --jobs jobs.parquet --cluster {nodes}x8 --policy {','.join(policies)} "
        f"--seed {seed}",
        notes=("Times are moved so that the first job arrives at 0.",),
        policies=tuple(make_run(p, rng, nodes, span_s, services, name) for p in policies),
    )


def make_run(policy: str, rng: np.random.Generator, nodes: int, span_s: float, services: bool, name: str) -> PolicyRun:
    """One policy: `autopilot` waits less and fills more than the others."""
    ours = policy == "autopilot"
    textbook = not ours
    waits_s = _waits(rng, 4000, 0.5 if ours else 1.0)
    series = _series(rng, nodes * 8, span_s, 0.9 if ours else 0.8, measured=not textbook or policy == "fifo-skip")
    return PolicyRun(
        name=policy,
        result=_result(policy, waits_s, series, nodes, span_s),
        series=series,
        waits_s=waits_s,
        heat=_heat(rng, nodes, span_s, 0.9 if ours else 0.8),
        services=_services(rng, span_s, 1.0 if ours else 1.5) if services else (),
        decisions=_decisions(rng, 260, name) if ours else (),
        policy_diff=(("backfill.risk_ratio", "0.2", "0.1"),) if ours else (),
        waited_gpu_s={("vision", "capacity"): 9e6, ("language", "fairness"): 1e6} if ours else {},
        policy={"budget.per_cluster": "4"} if ours else {},
    )


def _waits(rng: np.random.Generator, jobs: int, scale: float) -> np.ndarray:
    waits_s = np.exp(rng.normal(6.0, 2.4, jobs)) * scale
    waits_s[rng.random(jobs) < 0.4] = 0.0
    waits_s[:3] = np.nan
    return waits_s


def _series(rng: np.random.Generator, gpus: int, span_s: float, level: float, *, measured: bool) -> Series:
    changes = np.sort(rng.uniform(0, span_s, 3000))
    changes[0] = 0.0
    day = np.sin(changes / DAY_S * 2 * np.pi)
    drift = np.cumsum(rng.normal(0, 0.02, len(changes)))
    allocation = np.clip(level + 0.12 * day + drift - drift.mean(), 0, 1)
    hardware = np.clip(0.55 + 0.15 * np.sin(changes / DAY_S * 5) + rng.normal(0, 0.1, len(changes)), 0, 1)
    hardware[(changes > span_s * 0.4) & (changes < span_s * 0.45)] = np.nan
    stranded = np.maximum(0, np.round((1 - allocation) * gpus * rng.uniform(0, 1, len(changes))))
    pending = np.round(np.clip(allocation - 0.7, 0, None) * gpus * rng.uniform(0, 9, len(changes)))
    columns = {
        "allocation_ratio": allocation,
        "hardware_ratio": hardware if measured else np.full_like(hardware, np.nan),
        "pending_gpus": pending,
        "stranded_gpus": stranded,
    }
    sampled = {key: resample(changes, values, span_s)[1] for key, values in columns.items()}
    return Series(t_s=resample(changes, allocation, span_s)[0], **sampled)


def _heat(rng: np.random.Generator, nodes: int, span_s: float, level: float) -> Heat:
    jobs = nodes * 150
    start = np.sort(rng.uniform(0, span_s, jobs))
    length = rng.exponential(span_s / 150 * 2, jobs)
    return heat_of_intervals(
        rng.integers(0, nodes, jobs),
        start,
        np.minimum(start + length, span_s),
        rng.choice([1.0, 2.0, 4.0], jobs) * level,
        tuple(f"gpu-node-{i:03d}" for i in range(nodes)),
        np.full(nodes, 8.0),
        span_s,
    )


def _services(rng: np.random.Generator, span_s: float, slow: float) -> tuple[ServiceSeries, ...]:
    t_s = np.linspace(0, span_s, 600, endpoint=False)
    found = []
    for index, (service, objective_s) in enumerate((("chat-70b", 2.0), ("embed", 0.15), ("rerank", None))):
        rate = 40 * (1 + index) * (1.3 + np.sin(t_s / DAY_S * 2 * np.pi)) * rng.uniform(0.9, 1.1, len(t_s))
        p99 = (0.8, 0.05, 0.3)[index] * slow * np.exp(rng.normal(0, 0.3, len(t_s)) + rate / rate.max() * 0.6)
        p99[100:104] = np.nan
        found.append(
            ServiceSeries(
                name=service,
                t_s=t_s,
                p99_s=p99,
                objective_s=objective_s,
                rate_rps=rate,
                replicas=np.ceil(rate / 15),
                late=np.floor(rate * (t_s[1] - t_s[0]) * (0.02, 0.01, 0.0)[index] * slow),
            )
        )
    return tuple(found)


def _decisions(rng: np.random.Generator, rows: int, name: str) -> tuple[DecisionRow, ...]:
    reasons = (
        "fits on gpu-node-003; island bonus 1.0, stranded penalty 0.12, no one waits longer in this tier",
        "backfill: ends with 82 % chance before the reservation of wide-17 at 2 d 04:00, 6 GPUs idle until then",
        "budget: 4 disruptions in the last hour, at most 4",
    )
    return tuple(
        DecisionRow(
            id=f"d-{i:05d}",
            action=("admit_gang", "backfill", "backfill")[i % 3],
            workload=f"{name}-{int(rng.integers(9999)):04d}",
            tenant=("vision", "language")[i % 2],
            gpus=int(rng.choice([1, 2, 8, 16])),
            at=f"{i * 977 // 3600} h",
            answer="refused" if i % 3 == 2 else "accepted",
            refusals=(("budget", "budget_cluster", reasons[2]),) if i % 3 == 2 else (),
            why=reasons[i % 3],
            case=(f"d-{i:05d}: the case", f"  {reasons[i % 3]}"),
            lost_gpu_s=840.0 if i % 3 == 1 else 0.0,
            benefit_gpu_s=float(rng.exponential(9000)),
        )
        for i in range(rows)
    )


REAL_USE = {
    "capacity_gpu_s": 1000.0,
    "active_gpu_s": 405.0,
    "useful_gpu_s": 400.0,
    "low_activity_gpu_s": 200.0,
    "low_shares_gpu_s": 120.0,
    "low_memory_gpu_s": 30.0,
    "low_trust_gpu_s": 50.0,
    "low_width_gpu_s": 0.0,
    "low_class_gpu_s": 0.0,
    "start_up_gpu_s": 25.0,
    "away_guaranteed_gpu_s": 0.0,
    "away_borrowed_gpu_s": 120.0,
    "free_wanted_gpu_s": 150.0,
    "free_gpu_s": 100.0,
    "bound_active_gpu_s": 550.0,
    "bound_low_activity_gpu_s": 300.0,
    "bound_free_gpu_s": 150.0,
    "bound_shared_gpu_s": 700.0,
    "packed_gpu_s": 500.0,
    "unpacked_gpu_s": 420.0,
}


def _result(policy: str, waits_s: np.ndarray, series: Series, nodes: int, span_s: float) -> dict[str, object]:
    """The policy's block of the JSON result; what was not measured is null."""
    ours = policy == "autopilot"
    allocation = float(np.nanmean(series.allocation_ratio))
    known = np.isfinite(series.hardware_ratio).any()
    hardware = float(np.nanmean(series.hardware_ratio)) if known else None
    waits = waits_s[np.isfinite(waits_s)]
    capacity = nodes * 8 * span_s
    tenant = {"submitted": 2000, "finished": 1999, "queue_wait_s_mean": float(waits.mean()), "slowdown": 1.31}
    return {
        "tenants": {
            "vision": {**tenant, "total_wait_s_mean": float(waits.mean()) * 1.1},
            "language": {**tenant, "total_wait_s_mean": float(waits.mean()) * 0.9, "slowdown": None},
        },
        "use": {
            level: {
                name: {
                    "held_gpu_s": 7200.0,
                    "active_gpu_s": 1800.0,
                    "gap_gpu_s": 5400.0,
                    "allocation_ratio": 0.5,
                    "hardware_ratio": 0.25,
                    "real_utilization_ratio": 0.125,
                }
                for name in names
            }
            for level, names in (
                ("tenant", ("vision", "language")),
                ("pool", ("main",)),
                ("service", ("chat",)),
                ("workload", ("train-7",)),
            )
        },
        "real_use": REAL_USE if ours else None,
        "fragmentation": {"stranded_gpu_s": 7.0, "pools": {"main": SHAPE if ours else {"free_gpus": 3.0}}},
        "reservations": {"made": 41, "kept": 38, "late": 2, "released": 1} if ours else None,
        "gpu_s": {
            "capacity": capacity,
            "allocated": capacity * allocation,
            "idle": capacity * (1 - allocation),
        },
        "jobs": {
            "submitted": 4000,
            "finished": 3997,
            "unusable": 7,
            "unusable_by_reason": {"duration_s is negative": 5, "wider than the cluster": 2},
            "jct_s_mean": float(waits.mean()) + 14444.0,
            "queue_wait_s_mean": float(waits.mean()),
            "queue_wait_s_p50": float(np.quantile(waits, 0.5)),
            "queue_wait_s_p99": float(np.quantile(waits, 0.99)),
            "total_wait_s_mean": float(waits.mean()) * (1.05 if ours else 1.0),
        },
        "makespan_s": span_s,
        "utilization": {
            "allocation_ratio": allocation,
            "to_last_arrival_ratio": allocation * 0.98,
            "bound_ratio": 0.95,
            "hardware_ratio": hardware,
            "real_utilization_ratio": None if hardware is None else hardware * allocation,
            "goodput_ratio": 0.994 if ours else 1.0,
        },
        "slo": {"requests": 90000, "p99_latency_s": 1.7, "violation_ratio": 0.004 if ours else 0.021},
        "disruptions": {"preemptions": 118 if ours else 0, "lost_gpu_s": 61234.0 if ours else 0.0},
        "invariants": {"checked": 120345, "violated": 0},
        "wall_s": 3.2 if ours else 0.4,
    }


def with_result(data: ReportData, policy: str, **blocks: Any) -> ReportData:
    """The report with blocks of one policy's result replaced, or extended where both are mappings."""

    def change(run: PolicyRun) -> PolicyRun:
        result = dict(run.result)
        for key, value in blocks.items():
            old = result.get(key)
            result[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
        return dataclasses.replace(run, result=result) if run.name == policy else run

    return dataclasses.replace(data, policies=tuple(map(change, data.policies)))
