"""One simulated run of a policy, on jobs of the Philly trace or on a scenario, and its figures.

P1, P2 and T1 to T5 are tenants of the trace with a cluster each. P12 is the work of P1 and P2 together on their 17
nodes, each guaranteed its own (7 and 10). P10 is that of the ten tenants with most GPU-seconds on 56 nodes: 39 of them
are guaranteed by share of GPU-seconds (largest remainder, at least one each), the others can be lent. M1, M2 and M3 are
mixes of the same file. Of the tenants by GPU-seconds they hold the 1st, 3rd, 5th, 7th and 9th; the 2nd, 4th, 6th, 8th
and 10th; and the 4th to 11th. Nodes and guarantees are those of P10 in proportion to GPU-seconds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import SimulationOutcome, simulate
from benchmarks.kit import data_folder, tell_violations
from simulator.baselines import BASELINES
from simulator.baselines.static import largest_remainder
from simulator.scenarios.loader import SHIPPED
from simulator.specs.clusterfile import SHAPE_MODEL

if TYPE_CHECKING:
    import pandas as pd

GPUS_PER_NODE = 8
ALONE = {
    "P1": ("vc_6c71a0", 7),
    "P2": ("vc_b436b2", 10),
    "T1": ("vc_6214e9", 6),
    "T2": ("vc_7f04ca", 13),
    "T3": ("vc_ee9e8c", 21),
    "T4": ("vc_0e4a51", 9),
    "T5": ("vc_11cb48", 2),
}
"""Tenant and nodes of the files of one tenant."""
P10_TENANTS, P10_NODES, P10_GUARANTEED = 10, 56, 39
MIXES = {"M1": range(0, 10, 2), "M2": range(1, 11, 2), "M3": range(3, 11)}
"""Tenants by rank of GPU-seconds."""
FILES = (*ALONE, "P12", "P10", *MIXES)

FIGURES = {
    "jobs": "jobs.submitted",
    "finished": "jobs.finished",
    "jct_s": "jobs.jct_s_mean",
    "first_start_s": "jobs.queue_wait_s_mean",
    "first_start_p99_s": "jobs.queue_wait_s_p99",
    "total_wait_s": "jobs.total_wait_s_mean",
    "total_wait_p99_s": "jobs.total_wait_s_p99",
    "longest_wait_s": "jobs.longest_wait_s",
    "slowdown": "jobs.slowdown_worst",
    "useful_ratio": "utilization.to_last_arrival_ratio",
    "bound_ratio": "utilization.bound_ratio",
    "real_ratio": "utilization.to_last_arrival.real_utilization_ratio",
    "goodput_ratio": "utilization.goodput_ratio",
    "allocated_gpu_s": "gpu_s.allocated",
    "overhead_gpu_s": "gpu_s.overhead",
    "late_ratio": "slo.violation_ratio",
    "preemptions": "disruptions.preemptions",
    "moves": "disruptions.migrations",
    "preemptions_per_1000": "disruptions.preemptions_per_1000_jobs",
    "moves_per_1000": "disruptions.migrations_per_1000_jobs",
    "stops_p50": "disruptions.stops_per_job_p50",
    "stops_p99": "disruptions.stops_per_job_p99",
    "stops_most": "disruptions.stops_per_job_max",
    "contract_stops_p99": "disruptions.contract_stops_per_job_p99",
    "contract_stops_most": "disruptions.contract_stops_per_job_max",
    "lost_gpu_s": "disruptions.lost_gpu_s",
    "owed_gpu_s": "guarantees.owed_gpu_s",
    "longest_owed_s": "guarantees.longest_owed_s",
    "returned_ratio": "idle.returned_ratio",
    "suspensions": "idle.suspensions",
    "early_returns": "idle.early_returns",
    "useful_utilization": "utilization.to_last_arrival.useful_utilization_ratio",
    "capacity_gpu_s": "real_use.capacity_gpu_s",
    "active_gpu_s": "real_use.active_gpu_s",
    "useful_gpu_s": "real_use.useful_gpu_s",
    "bound_active_gpu_s": "real_use.bound_active_gpu_s",
    "bound_shared_gpu_s": "real_use.bound_shared_gpu_s",
    "packed_gpu_s": "real_use.packed_gpu_s",
    "physical_gpu_s": "shared_use.physical_gpu_s",
    "physical_finished_gpu_s": "shared_use.physical_finished_gpu_s",
    "several_gpu_s": "shared_use.several_gpu_s",
    "stretch_mean": "shared_use.batch_stretch_mean",
    "stretch_p95": "shared_use.batch_stretch_p95",
    "owner_slowdown_mean": "shared_use.owner_slowdown_mean",
    "owner_slowdown_p95": "shared_use.owner_slowdown_p95",
    "violated": "invariants.violated",
    "wall_s": "wall_s",
}
"""Each figure of a run and its place in the JSON of `autopilot simulate`."""


@dataclass(frozen=True, slots=True)
class Call:
    """One run. `file` is one of `FILES` or a scenario. Empty options of a scenario are its own."""

    file: str
    policy: str  # a name, or a policy file
    seed: int | None = None
    durations: str = ""
    telemetry: str = ""
    jobs: str = ""  # `A-B`: jobs A to B of the file by submit, as a trace of their own
    policy_set: str = ""  # `FIELD=VALUE,...` on top of a policy of the autopilot
    jitter_ratio: float = 0.0
    horizon: str = ""  # of the scenario, where it is not its own

    def __str__(self) -> str:
        """The label of the call: everything that is not empty."""
        return " ".join(f"{name}={value}" for name, value in asdict(self).items() if value)


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one run: NaN where the simulation states none."""

    name: str  # of the policy, as shown
    figures: dict[str, float]
    worst_tenant: str  # by slowdown
    widest_wait_s: float  # mean until the first start of the jobs with most GPUs

    def __getitem__(self, figure: str) -> float:
        """One of `FIGURES`."""
        return self.figures[figure]


def philly_jobs() -> Path | None:
    """The job file of the Philly trace; None, and a message, where this machine has none."""
    path = data_folder() / "philly_jobs" / "jobs.parquet"
    if path.exists():
        return path
    print(
        f"SKIPPED: {path} is absent. docs/data-sources.md names the publisher of the Philly jobs; put the imported\n"
        "file there, or name another folder in AUTOPILOT_SHARED_DATA."
    )
    return None


def play(call: Call) -> Row:
    """Run it. Raises `InputError` for a policy, a scenario or a part that does not exist."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if call.file in FILES:
            given = _of_file(call, folder)
        else:
            given = SimulateOptions(scenario=scenario_of(call, folder), **_common(call, None, None))
        outcome = simulate(given)
    tell_violations(str(call), outcome)
    return row_of(outcome)


def row_of(outcome: SimulationOutcome) -> Row:
    """The figures of a run of one policy."""
    ((shown, entry),) = outcome.document()["policies"].items()
    jobs = outcome.job_frames()[0]
    widest = jobs[jobs["gpus"] == jobs["gpus"].max()]
    return Row(
        shown,
        {name: _at(entry, path) for name, path in FIGURES.items()},
        str(entry["jobs"]["slowdown_worst_tenant"]),
        float((widest["start_s"] - widest["submit_s"]).mean()),
    )


def _at(entry: Mapping[str, Any], path: str) -> float:
    value: Any = entry
    for name in path.split("."):
        value = None if value is None else value[name]
    return float("nan") if value is None else float(value)


def _of_file(call: Call, folder: Path) -> SimulateOptions:
    path = philly_jobs()
    if path is None:
        raise SystemExit(f"{call.file} needs the Philly jobs")
    tenants, cluster = _site(call.file, path, folder)
    if call.jobs:
        part = part_of(path, tenants, call.jobs)
        tenants = tuple(each for each in tenants if (part["tenant"] == each).any())
        path = folder / "jobs.parquet"
        part.to_parquet(path)
    return SimulateOptions(
        jobs=path, tenants=tenants, cluster=cluster, physics="charged", **_common(call, "last-two", "off")
    )


def scenario_of(call: Call, folder: Path) -> str:
    """The scenario of a call: its name, or a file with another horizon."""
    if not call.horizon:
        return call.file
    content = yaml.safe_load((SHIPPED / f"{call.file}.yaml").read_text(encoding="utf-8"))
    path = folder / f"{call.file}.yaml"
    path.write_text(yaml.safe_dump(content | {"horizon": call.horizon}), encoding="utf-8")
    return str(path)


def _common(call: Call, durations: str | None, telemetry: str | None) -> dict[str, Any]:
    return {
        "policies": (call.policy,),
        "policy_set": changes_of(call),
        "seed": call.seed,
        "durations": call.durations or durations,
        "telemetry": call.telemetry or telemetry,
        "jitter_ratio": call.jitter_ratio,
        "series": False,
    }


def changes_of(call: Call) -> tuple[str, ...]:
    """The changed fields of a policy of the autopilot; a baseline has none."""
    return () if call.policy in BASELINES else tuple(filter(None, call.policy_set.split(",")))


def _site(file: str, path: Path, folder: Path) -> tuple[tuple[str, ...], str]:
    """The tenants of a file, and its cluster: a shape, or a cluster file with their guarantees."""
    if file in ALONE:
        tenant, nodes = ALONE[file]
        return (tenant,), f"{nodes}x{GPUS_PER_NODE}"
    nodes, guarantee = _guarantees(file, path)
    pool = {"name": "default", "nodes": nodes, "gpus_per_node": GPUS_PER_NODE, "gpu_model": SHAPE_MODEL}
    queues = [{"name": each, "guarantee": {SHAPE_MODEL: GPUS_PER_NODE * own}} for each, own in guarantee.items()]
    cluster = folder / "cluster.yaml"
    cluster.write_text(yaml.safe_dump({"pools": [pool], "queues": queues}), encoding="utf-8")
    return tuple(guarantee), str(cluster)


def _guarantees(file: str, path: Path) -> tuple[int, dict[str, int]]:
    """Nodes of the cluster, and guaranteed nodes by tenant."""
    if file == "P12":
        own = dict(ALONE[name] for name in ("P1", "P2"))
        return sum(own.values()), own
    jobs = usable(path)
    gpu_s = (jobs["gpus"] * jobs["duration_s"]).groupby(jobs["tenant"]).sum()
    ranked = gpu_s.sort_values(ascending=False, kind="stable")
    p10 = ranked.head(P10_TENANTS)
    most = ranked.iloc[list(MIXES[file])] if file in MIXES else p10
    part = float(most.sum() / p10.sum())
    nodes = largest_remainder([float(each) for each in most], round(P10_GUARANTEED * part), [1] * len(most))
    return round(P10_NODES * part), dict(zip(most.index.tolist(), nodes, strict=True))


def usable(path: Path) -> pd.DataFrame:
    """The rows that request GPUs and last a second or more, durations cut to whole seconds."""
    import pandas as pd

    frame: pd.DataFrame = pd.read_parquet(path)
    frame = frame[(frame["gpus"] > 0) & (frame["duration_s"] >= 1)]
    return frame.assign(duration_s=frame["duration_s"].astype("int64"))


def part_of(path: Path, tenants: tuple[str, ...], asked: str) -> pd.DataFrame:
    """Jobs `A-B` of these tenants by submit; the first of them is submitted at 0."""
    first, _, last = asked.partition("-")
    if not (first.isdigit() and last.isdigit() and int(first) < int(last)):
        raise SystemExit(f"{asked!r} is no part of a file; write for example 400-1400")
    frame = usable(path)
    mine = frame[frame["tenant"].isin(list(tenants))].sort_values("submit_s", kind="stable")
    part: pd.DataFrame = mine.iloc[int(first) : int(last)]
    if part.empty:
        raise SystemExit(f"part {asked}: these tenants have {len(mine):,} jobs; name a part of them")
    return part.assign(submit_s=part["submit_s"] - part["submit_s"].min())
