"""The jobs of a scenario: a file, a synthetic trace, and groups of similar jobs (notebooks, hoarders, wide gangs)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np

from autopilot.contract.tree import MOST_SHARED_GPUS
from autopilot.core.model.errors import InputError
from simulator.running.faults import child_generator
from simulator.traces.arrivals import generate_jobs
from simulator.traces.columns import BY_NAME
from simulator.traces.job_trace import JobTrace
from simulator.traces.jobs import empty_columns, read_jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class FileJobs:
    """Jobs of a file; `tenants` () takes all."""

    path: Path
    tenants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticJobs:
    """Parameters of `simulator.traces.arrivals.generate_jobs`."""

    load: float
    """GPU-seconds requested / (GPUs x horizon)"""
    tenants: tuple[str, ...]
    users_per_tenant: int = 6
    max_duration_s: float | None = None
    max_width: int | None = None
    start_hour: float = 0.0
    trust: str = ""
    share: str = ""
    """of the jobs that may share, at most four GPUs wide: their image is their name, so jobs of one sweep behave alike;
    "": none states it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroup:
    """`count` jobs of one kind, of tenants and widths drawn uniformly.

    They are submitted uniformly in [from_s, to_s]; with `every_s`, `together` of them at `from_s` and each of its
    multiples later, each job off by a normal deviation of `jitter_s`.
    Durations are log-normal around the median `duration_s`, with `spread` as the deviation of the logarithm.
    `limit_ratio` is the declared run time over the true one; NaN: none is declared.
    """

    kind: str
    count: int
    tenants: tuple[str, ...]
    duration_s: float
    from_s: float
    to_s: float
    gpus: tuple[int, ...] = (1,)
    gpu_milli: int = 1000
    mig_profile: str = ""
    gpu_type: str = ""
    """the GPU model that they ask for; "": any"""
    spread: float = 0.5
    cpus_per_gpu: float = nan
    topology: str = ""
    preemptible: bool | None = None
    priority: int | None = None
    min_gpus: int = 0
    """they can shrink to this many GPUs; 0: not elastic"""
    checkpoint_interval_s: float = nan
    """inf: they never save and cannot resume; NaN: from the physics"""
    checkpoint_gib: float = nan
    limit_ratio: float = nan
    every_s: float = 0.0
    together: int = 1
    jitter_s: float = 0.0
    name: str = ""
    """of its jobs, which a snapshot shows; "": the kind"""
    users: int = 0
    """users of each tenant that submit them; 0: not stated"""
    slo_class: str = ""
    trust: str = ""
    """untrusted, trusted or across-tenants; "": not stated, hence untrusted"""
    share: str = ""
    """never, dev or pair; "": not stated"""
    peak_memory_gib: float = nan
    """on each of their GPUs; NaN: by their behaviour"""
    images: int = 0
    """programs of each user: jobs with the same user, name and image behave alike; 0: not stated, each as drawn by its
    id"""


def scenario_jobs(
    jobs: FileJobs | None,
    synthetic: SyntheticJobs | None,
    groups: Sequence[JobGroup],
    *,
    cluster_gpus: int,
    horizon_s: float,
    seed: int,
) -> JobTrace:
    """All jobs in order of their submit time; times are those of the scenario, so the first may be after 0.

    Each source draws from its own generator under `seed`. Raises `InputError` for a file that cannot be used.
    """
    parts = []
    if jobs is not None:
        parts.append(read_jobs(jobs.path, tenants=jobs.tenants))
    if synthetic is not None:
        made = generate_jobs(
            child_generator(seed, "jobs"),
            cluster_gpus=cluster_gpus,
            horizon_s=horizon_s,
            load=synthetic.load,
            tenants=synthetic.tenants,
            users_per_tenant=synthetic.users_per_tenant,
            max_duration_s=synthetic.max_duration_s,
            max_width=synthetic.max_width,
            start_hour=synthetic.start_hour,
        )
        parts.append(_declared(made, synthetic))
    for number, group in enumerate(groups):
        parts.append(_group(child_generator(seed, f"jobs/{number}/{group.kind}"), group, number))
    if len(parts) == 1 and not groups:
        return parts[0]
    return _merged(parts)


def _declared(made: JobTrace, synthetic: SyntheticJobs) -> JobTrace:
    if not synthetic.share:
        return made
    narrow = made.gpus <= MOST_SHARED_GPUS
    trust, share = (np.where(narrow, word, "").astype(object) for word in (synthetic.trust, synthetic.share))
    return replace(made, trust=trust, share=share, image=np.where(narrow, made.name, "").astype(object))


def _group(rng: np.random.Generator, group: JobGroup, number: int) -> JobTrace:
    count = group.count
    columns = empty_columns(count)
    tenant = np.array(group.tenants, object)[rng.integers(len(group.tenants), size=count)]
    duration_s = np.exp(np.log(group.duration_s) + group.spread * rng.standard_normal(count))
    name = group.name or group.kind
    columns |= {
        "job_id": np.array([f"{name}-{number}-{k:04d}" for k in range(count)], object),
        "tenant": tenant,
        "name": np.array([name] * count, object),
        "kind": np.array([group.kind] * count, object),
        "submit_s": np.trunc(_submitted_s(rng, group)),
        "duration_s": np.maximum(1.0, np.rint(duration_s)),
        "gpus": np.array(group.gpus, np.int64)[rng.integers(len(group.gpus), size=count)],
        "gpu_milli": np.full(count, group.gpu_milli, np.int64),
        "mig_profile": np.array([group.mig_profile] * count, object),
        "topology": np.array([group.topology] * count, object),
    }
    if not isnan(group.cpus_per_gpu):
        columns["cpus"] = group.cpus_per_gpu * columns["gpus"]
    if not isnan(group.limit_ratio):
        columns["limit_s"] = np.maximum(1.0, np.rint(columns["duration_s"] * group.limit_ratio))
    if group.min_gpus:
        columns["min_gpus"] = np.minimum(columns["gpus"], group.min_gpus)
    columns["checkpoint_interval_s"] = np.full(count, group.checkpoint_interval_s)
    columns["checkpoint_gib"] = np.full(count, group.checkpoint_gib)
    if group.preemptible is not None:
        columns["preemptible"] = np.full(count, int(group.preemptible), np.int8)
    if group.users:
        whose = rng.integers(group.users, size=count).tolist()
        columns["user"] = np.array([f"{each}-{user:02d}" for each, user in zip(tenant, whose, strict=True)], object)
    if group.gpu_type:
        columns["gpu_type"] = np.array([group.gpu_type] * count, object)
    if group.slo_class:
        columns["slo_class"] = np.array([group.slo_class] * count, object)
    if group.priority is not None:
        columns["priority"] = np.full(count, group.priority, np.int64)
    for column in ("trust", "share"):
        columns[column] = np.array([getattr(group, column)] * count, object)
    columns["peak_memory_gib"] = np.full(count, group.peak_memory_gib)
    if group.images:
        image = rng.integers(group.images, size=count).tolist()
        columns["image"] = np.array([f"{group.kind}-{each}" for each in image], object)
    return JobTrace(source=f"group {group.kind}", **columns, rows=count)


def _submitted_s(rng: np.random.Generator, group: JobGroup) -> np.ndarray:
    if not group.every_s:
        return rng.uniform(group.from_s, group.to_s, group.count)
    planned_s = group.from_s + group.every_s * (np.arange(group.count) // group.together)
    return np.maximum(planned_s + group.jitter_s * rng.standard_normal(group.count), 0.0)


def _merged(parts: Sequence[JobTrace]) -> JobTrace:
    """All parts as one trace, by submit time, then id. Columns outside the format are dropped."""
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in BY_NAME}
    order = np.lexsort((columns["job_id"].astype(str), columns["submit_s"]))
    ids = columns["job_id"].tolist()
    if len(set(ids)) < len(ids):
        twice = next(name for name, count in Counter(ids).items() if count > 1)
        raise InputError(
            f"{'; '.join(part.source for part in parts)}: two jobs have the id {twice!r}; rename one of them"
        )
    first = parts[0]
    return replace(
        first,
        source="; ".join(part.source for part in parts),
        **{name: values[order] for name, values in columns.items()},
        extra={},
        rows=sum(part.rows for part in parts),
    )
