"""Results of a simulation, as the JSON of `--json` and the rows of `--jobs-out`.

Keys are only ever added. An inapplicable or unmeasured value is null, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import fsum, isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from simulator.outcome.fared import evictions, longest_waits, submitted_jobs, waited_s
from simulator.outcome.idle_use import IdleUse
from simulator.outcome.real_use import RealUse
from simulator.outcome.shared_use import SharedUse
from simulator.running.accounting import gpu_s
from simulator.running.owed import longest
from simulator.running.simulation import Simulated, bound_ratio
from simulator.traces.table_files import write_table

if TYPE_CHECKING:
    import pandas as pd

N = TypeVar("N", int, float)
SCHEMA = "gpu-autopilot/simulation/1"


@dataclass(frozen=True, slots=True)
class Reservations:
    """Outcomes of the reservations of a policy with reservations."""

    made: int
    kept: int
    late: int
    released: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of a run beyond the cluster's own; None if not applicable or not measured."""

    active_gpu_s: float | None = None  # SM-active-weighted GPU-seconds
    early_active_gpu_s: float | None = None  # the same up to the last submit
    useful_gpu_s: float | None = None  # lone SM activity x relative progress
    early_useful_gpu_s: float | None = None  # the same up to the last submit
    requests: int | None = None
    p99_latency_s: float | None = None
    violation_ratio: float | None = None
    stranded_gpu_s: float | None = None
    fragmentation: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # means of the index, by pool
    reservations: Reservations | None = None
    alone_jct_s: Mapping[str, float] = field(default_factory=dict)  # by tenant: its mean job time alone
    # level -> group -> its GPU-seconds and ratios; empty: not measured
    use: Mapping[str, Mapping[str, Mapping[str, float | None]]] = field(default_factory=dict)
    idle: IdleUse | None = None  # None: no owner was away
    real_use: RealUse | None = None  # None: the activity of the work is not known
    shared_use: SharedUse | None = None  # None: the stays of work on GPUs were not recorded
    checked: int = 0  # invariants checked elsewhere (replay, for example)
    violated: int = 0
    wall_s: float | None = None  # instead of the engine's own


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings shared by all policies of one call."""

    seed: int
    physics: str
    durations: str | None
    jitter_ratio: float
    telemetry: str | None  # none in a result of an older version
    nodes: int
    gpus: int
    assumed: Mapping[str, int] = field(default_factory=dict)
    unusable_by_reason: Mapping[str, int] = field(default_factory=dict)
    engine: str | None = None  # the baseline in charge, beside which the policies only recommended


def quantile(ordered: Sequence[N], ratio: float) -> N | None:
    """`sorted[int(ratio n)]`, the definition of every percentile of a result; None for no values."""
    return ordered[min(int(ratio * len(ordered)), len(ordered) - 1)] if ordered else None


def mean(values: Sequence[float]) -> float | None:
    """The mean; None for no values."""
    return fsum(values) / len(values) if values else None


def _ratio(part: float | None, whole: float) -> float | None:
    return None if part is None or not whole else part / whole


def policy_result(
    simulated: Simulated,
    measured: Measured | None = None,
    unusable_by_reason: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The entry of one policy. `unusable_by_reason` counts the rows refused by the reader of the file."""
    measured = measured or Measured()
    run, totals = simulated.run, simulated.totals
    all_ = totals.all
    reservations = measured.reservations
    tenants = _tenants(simulated, measured.alone_jct_s)
    return {
        "tenants": tenants,
        "reservations": {
            "made": reservations.made if reservations else None,
            "kept": reservations.kept if reservations else None,
            "late": reservations.late if reservations else None,
            "released": reservations.released if reservations else None,
        },
        "gpu_s": {
            "capacity": gpu_s(totals.capacity),
            "allocated": gpu_s(all_.allocated),
            "useful": gpu_s(all_.useful),
            "lost": gpu_s(all_.lost),
            "overhead": gpu_s(all_.overhead),
            "idle": gpu_s(totals.idle),
        },
        "jobs": _jobs(simulated, unusable_by_reason or {}, _worst_slowdown(tenants)),
        "guarantees": _guarantees(simulated),
        "fared_worse": None,
        "makespan_s": run.end_s,
        "utilization": _utilization(simulated, measured),
        "use": dict(measured.use) or None,
        "slo": {
            "requests": measured.requests,
            "p99_latency_s": _finite(measured.p99_latency_s),
            "violation_ratio": _finite(measured.violation_ratio),
        },
        "disruptions": _disruptions(simulated),
        "idle": _idle(measured.idle),
        "real_use": None if measured.real_use is None else asdict(measured.real_use),
        "shared_use": None if measured.shared_use is None else asdict(measured.shared_use),
        "fragmentation": {
            "stranded_gpu_s": _finite(measured.stranded_gpu_s),
            "pools": dict(measured.fragmentation) or None,
        },
        "invariants": {
            "checked": simulated.found.checked + measured.checked,
            "violated": len(simulated.found.violations) + measured.violated,
        },
        "wall_s": run.wall_s if measured.wall_s is None else measured.wall_s,
        "interrupted": run.interrupted,
        "stuck": run.stuck or None,
    }


def _utilization(simulated: Simulated, measured: Measured) -> dict[str, Any]:
    """Ratios over the makespan, and until the last arrival (for a run cut before it: until the cut)."""
    run, totals = simulated.run, simulated.totals
    allocated_s, capacity_s = gpu_s(totals.all.allocated), gpu_s(totals.capacity)
    early_s = min(run.last_submit_s, run.end_s)
    early_capacity_s = simulated.cluster.hardware.capacity_milli / 1000 * early_s
    early_allocated_s, early_useful_s = gpu_s(totals.early_allocated), gpu_s(totals.early_useful)
    return {
        "allocation_ratio": _ratio(allocated_s, capacity_s),
        "to_last_arrival_ratio": _ratio(early_useful_s, early_capacity_s),
        "bound_ratio": _finite(bound_ratio(simulated.cluster)),
        "hardware_ratio": _ratio(measured.active_gpu_s, allocated_s),
        "real_utilization_ratio": _ratio(measured.active_gpu_s, capacity_s),
        "useful_utilization_ratio": _ratio(measured.useful_gpu_s, capacity_s),
        "goodput_ratio": _ratio(gpu_s(totals.all.useful), allocated_s),
        "to_last_arrival": {
            "allocation_ratio": _ratio(early_allocated_s, early_capacity_s),
            "hardware_ratio": _ratio(measured.early_active_gpu_s, early_allocated_s),
            "real_utilization_ratio": _ratio(measured.early_active_gpu_s, early_capacity_s),
            "useful_utilization_ratio": _ratio(measured.early_useful_gpu_s, early_capacity_s),
            "goodput_ratio": _ratio(early_useful_s, early_allocated_s),
        },
    }


def _disruptions(simulated: Simulated) -> dict[str, Any]:
    accounts, hardware = simulated.accounts, simulated.cluster.hardware
    lost = simulated.totals.all.lost
    thousands = len(submitted_jobs(simulated)) / 1000
    return {
        "preemptions": accounts.preemptions,
        "migrations": accounts.migrations,
        "preemptions_per_1000_jobs": _ratio(accounts.preemptions, thousands),
        "migrations_per_1000_jobs": _ratio(accounts.migrations, thousands),
        **evictions(simulated),
        **_stops_per_job("stops", simulated, accounts.weighed_stops),
        **_stops_per_job("contract_stops", simulated, accounts.contract_stops),
        "regeometries": accounts.regeometries if any(hardware.mig) or accounts.regeometries else None,
        "lost_gpu_s": gpu_s(lost),
        "reversals": accounts.reversals,
        "resizes": accounts.resizes,
        "recoveries": accounts.recoveries,
        "lost_since_checkpoint_gpu_s": gpu_s(lost - accounts.lost_no_bandwidth),
        "lost_no_bandwidth_gpu_s": gpu_s(accounts.lost_no_bandwidth),
    }


def _stops_per_job(name: str, simulated: Simulated, stops: Mapping[int, int]) -> dict[str, int | None]:
    """Stops and moves of jobs for other work, per job."""
    ordered = sorted(stops.get(job, 0) for job in submitted_jobs(simulated))
    ratios = {"p50": 0.50, "p99": 0.99, "max": 1.0}
    return {f"{name}_per_job_{level}": quantile(ordered, ratio) for level, ratio in ratios.items()}


def _guarantees(simulated: Simulated) -> dict[str, Any] | None:
    """The debts to queues from their guarantees; None if no queue has one."""
    debts = simulated.owed.by_queue
    if not debts:
        return None
    longest_s, queue = longest(debts)
    return {
        "owed_gpu_s": fsum(debt.gpu_s for debt in debts.values()),
        "longest_owed_s": longest_s,
        "longest_owed_queue": queue,
        "queues": {name: {"owed_gpu_s": debt.gpu_s, "longest_owed_s": debt.longest_s} for name, debt in debts.items()},
    }


def _idle(idle: IdleUse | None) -> dict[str, Any] | None:
    return None if idle is None else {**asdict(idle), "returned_ratio": idle.returned_ratio}


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


@dataclass(slots=True)
class _Waits:
    """Waits of some jobs: from submit to first start, to the end, and the end minus the run time."""

    submitted: int = 0
    queue_s: list[float] = field(default_factory=list)
    jct_s: list[float] = field(default_factory=list)
    total_s: list[float] = field(default_factory=list)


def _waits(simulated: Simulated) -> tuple[_Waits, list[_Waits]]:
    """Of all jobs, and by tenant; replicas of services are not jobs."""
    cluster, jobs = simulated.cluster, simulated.cluster.jobs
    everybody, by_tenant = _Waits(), [_Waits() for _ in jobs.tenants]
    for job, state in enumerate(cluster.state):
        if jobs.service[job] >= 0 or state < 0:
            continue
        submit_s, end_s, start_s = jobs.submit_s[job], cluster.end_s[job], cluster.first_start_s[job]
        for waits in (everybody, by_tenant[jobs.tenant[job]]):
            waits.submitted += 1
            if isfinite(start_s):
                waits.queue_s.append(start_s - submit_s)
            if isfinite(end_s):
                waits.jct_s.append(end_s - submit_s)
                waits.total_s.append(waited_s(simulated, job))
    return everybody, by_tenant


def _tenants(simulated: Simulated, alone_jct_s: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    _, by_tenant = _waits(simulated)
    entries = {}
    for name, waits in zip(simulated.cluster.jobs.tenants, by_tenant, strict=True):
        jct_s, alone_s = mean(waits.jct_s), alone_jct_s.get(name)
        entries[name] = {
            "submitted": waits.submitted,
            "finished": len(waits.jct_s),
            "queue_wait_s_mean": mean(waits.queue_s),
            "total_wait_s_mean": mean(waits.total_s),
            "total_wait_s_p50": quantile(sorted(waits.total_s), 0.50),
            "total_wait_s_p90": quantile(sorted(waits.total_s), 0.90),
            "slowdown": _finite(_ratio(jct_s, alone_s)) if alone_s is not None else None,
        }
    return entries


def _worst_slowdown(tenants: Mapping[str, dict[str, Any]]) -> tuple[float | None, str | None]:
    """The highest slowdown and its tenant; None if no tenant has one."""
    known = [(entry["slowdown"], name) for name, entry in tenants.items() if entry["slowdown"] is not None]
    return max(known, default=(None, None))


def _jobs(simulated: Simulated, unusable: Mapping[str, int], worst: tuple[float | None, str | None]) -> dict[str, Any]:
    waits, _ = _waits(simulated)
    for values in (waits.queue_s, waits.jct_s, waits.total_s):
        values.sort()
    reasons = Counter(unusable) + Counter(simulated.run.never_fits.values())
    longest = longest_waits(simulated)
    return {
        "submitted": waits.submitted,
        "finished": len(waits.jct_s),
        "unusable": sum(reasons.values()),
        "unusable_by_reason": dict(reasons),
        "jct_s_mean": mean(waits.jct_s),
        "jct_s_p50": quantile(waits.jct_s, 0.50),
        "jct_s_p99": quantile(waits.jct_s, 0.99),
        "queue_wait_s_mean": mean(waits.queue_s),
        "queue_wait_s_p50": quantile(waits.queue_s, 0.50),
        "queue_wait_s_p90": quantile(waits.queue_s, 0.90),
        "queue_wait_s_p95": quantile(waits.queue_s, 0.95),
        "queue_wait_s_p99": quantile(waits.queue_s, 0.99),
        "total_wait_s_mean": mean(waits.total_s),
        "total_wait_s_p50": quantile(waits.total_s, 0.50),
        "total_wait_s_p90": quantile(waits.total_s, 0.90),
        "total_wait_s_p99": quantile(waits.total_s, 0.99),
        "longest_wait_s": longest[0]["total_wait_s"] if longest else None,
        "longest_waits": longest,
        "slowdown_worst": worst[0],
        "slowdown_worst_tenant": worst[1],
    }


def document(setting: Setting, policies: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The whole result of one call."""
    return {
        "schema": SCHEMA,
        "seed": setting.seed,
        "physics": setting.physics,
        "durations": setting.durations,
        "jitter_ratio": setting.jitter_ratio,
        "telemetry": setting.telemetry,
        "engine": setting.engine,
        "cluster": {"nodes": setting.nodes, "gpus": setting.gpus},
        "assumed": dict(setting.assumed),
        "policies": dict(policies),
    }


def job_rows(policy: str, simulated: Simulated) -> pd.DataFrame:
    """One row per job; an inapplicable value is empty.

    `total_wait_s` is end - submit - duration, empty if the job did not end. `evictions` counts every stop after
    which the job waited again (including moves, recoveries and faults), `moves` the moves among them.
    """
    import pandas as pd

    cluster, jobs = simulated.cluster, simulated.cluster.jobs
    names = cluster.inventory.nodes.id
    rows = [job for job, state in enumerate(cluster.state) if state >= 0 and jobs.service[job] < 0]
    return pd.DataFrame(
        {
            "policy": [policy] * len(rows),
            "job_id": [jobs.id[job] for job in rows],
            "tenant": [jobs.tenants[jobs.tenant[job]] for job in rows],
            "submit_s": [jobs.submit_s[job] for job in rows],
            "start_s": [cluster.first_start_s[job] for job in rows],
            "end_s": [cluster.end_s[job] for job in rows],
            "duration_s": [jobs.duration_s[job] for job in rows],
            "total_wait_s": [waited_s(simulated, job) if isfinite(cluster.end_s[job]) else nan for job in rows],
            "gpus": [jobs.gpus[job] for job in rows],
            "nodes": pd.array([cluster.nodes_used[job] or None for job in rows], dtype="Int64"),
            "node_names": ["+".join(str(names[node]) for node in cluster.ran_on[job]) for job in rows],
            "evictions": [cluster.evictions[job] for job in rows],
            "moves": [simulated.accounts.moves[job] for job in rows],
            "lost_gpu_s": [gpu_s(simulated.accounts.lost[job]) for job in rows],
        }
    )


def write_job_rows(frames: Sequence[pd.DataFrame], path: Path | str) -> None:
    """Write the rows of all policies as CSV or Parquet by the suffix, atomically. Raises `InputError`."""
    import pandas as pd

    write_table(pd.concat(frames, ignore_index=True), Path(path), for_spreadsheets=True)
