"""Synthetic job traces with statistics fitted to real ones.

Users submit in batches (sweeps): the same tenant, user and width within a minute, with similar durations. Batches
follow a daily rhythm and come in bursts; few tenants submit most of them. The constants in `FITTED` are printed by
`python scripts/fit_arrivals.py DATA`; each names its source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autopilot.core.model.errors import InputError
from simulator.traces.defaults import usual_limit_s
from simulator.traces.job_trace import JobTrace
from simulator.traces.jobs import empty_columns

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_JOBS = 5_000_000
LONGEST_LIMIT_S = 2_592_000.0


@dataclass(frozen=True, slots=True)
class WidthClass:
    """Jobs of similar width. `mixture` is (weight, mean, standard deviation) of the log of the duration in s."""

    widths: tuple[int, ...]
    width_shares: tuple[float, ...]  # of all batches
    mixture: tuple[tuple[float, float, float], ...]
    failed_share: float
    killed_share: float
    single_share: float  # batches of one job; the others have n in [2, most] with P(n) ~ n ** -exponent
    batch_exponent: float
    batch_most: int


@dataclass(frozen=True, slots=True)
class ArrivalModel:
    """Statistics of submissions; scripts/fit_arrivals.py explains each fit."""

    classes: tuple[WidthClass, ...]
    batch_likeness: float  # fraction of the log duration's variance that a batch has in common
    gap_log_s: tuple[float, float]  # mean and standard deviation of log(gap between jobs of a batch + 0.5 s)
    hour_shape: tuple[float, ...]  # 24 relative rates of batches; hour 0 is the publisher's midnight
    burst_shape: float  # hourly rates vary like a gamma variable of this shape (smaller: burstier)
    tenant_exponent: float  # Zipf over tenants, of batches
    user_exponent: float  # Zipf over the users of a tenant
    unlimited_share: float  # jobs without a declared limit
    over_estimate_log: tuple[float, float]  # mean and standard deviation of log(limit / duration)
    interactive_share: float  # of single jobs of one GPU


# --- printed by scripts/fit_arrivals.py ---
FITTED = ArrivalModel(
    # Widths, durations and batches (same virtual cluster and width, gaps up to 60 s): Philly 2017,
    # 64,483 jobs; how they ended: 15,000 jobs of it.
    classes=(
        WidthClass(
            widths=(1,),
            width_shares=(0.81453,),
            mixture=(
                (0.171, 4.142, 0.199),
                (0.545, 7.237, 1.902),
                (0.284, 7.543, 0.497),
            ),
            failed_share=0.247,
            killed_share=0.114,
            single_share=0.824,
            batch_exponent=1.859,
            batch_most=1063,
        ),
        WidthClass(
            widths=(2, 4),
            width_shares=(0.05905, 0.05801),
            mixture=(
                (0.274, 2.755, 0.295),
                (0.303, 5.229, 1.841),
                (0.423, 11.162, 1.295),
            ),
            failed_share=0.475,
            killed_share=0.177,
            single_share=0.817,
            batch_exponent=2.795,
            batch_most=118,
        ),
        WidthClass(
            widths=(8,),
            width_shares=(0.05989,),
            mixture=(
                (0.567, 7.562, 2.324),
                (0.433, 12.291, 0.837),
            ),
            failed_share=0.520,
            killed_share=0.236,
            single_share=0.888,
            batch_exponent=2.886,
            batch_most=18,
        ),
        WidthClass(
            widths=(12, 16, 24, 32),
            width_shares=(0.00046, 0.00663, 0.00026, 0.00117),
            mixture=(
                (0.387, 5.467, 1.489),
                (0.613, 11.507, 1.129),
            ),
            failed_share=0.632,
            killed_share=0.064,
            single_share=0.916,
            batch_exponent=3.295,
            batch_most=5,
        ),
    ),
    # Similarity, gaps and rhythm of those batches: Philly 2017.
    batch_likeness=0.875,
    gap_log_s=(1.531, 1.192),
    hour_shape=(
        1.11,
        0.92,
        0.95,
        1.03,
        0.94,
        1.09,
        1.15,
        1.19,
        1.18,
        1.02,
        0.91,
        0.85,
        0.84,
        0.81,
        0.84,
        0.84,
        0.94,
        1.11,
        1.10,
        0.98,
        0.98,
        1.11,
        1.04,
        1.07,
    ),
    burst_shape=2.14,
    # Batches of the ten busiest virtual clusters; jobs of the 50 busiest users: Philly 2017.
    tenant_exponent=1.68,
    user_exponent=1.12,
    # Declared limits and interactive share of jobs with GPUs: MIT Supercloud 2021, Slurm accounting.
    unlimited_share=0.327,
    over_estimate_log=(4.127, 3.063),
    interactive_share=0.100,
)
# --- end ---


def generate_jobs(
    rng: np.random.Generator,
    *,
    cluster_gpus: int,
    horizon_s: float,
    load: float,
    tenants: int | Sequence[str] = 8,
    users_per_tenant: int = 6,
    max_duration_s: float | None = None,
    max_width: int | None = None,
    start_hour: float = 0.0,
    model: ArrivalModel | None = None,
) -> JobTrace:
    """Jobs submitted within `horizon_s`, requesting `load` x the cluster's GPU-seconds in this time.

    Jobs longer than `max_duration_s` (default: the horizon) are redrawn and jobs wider than `max_width` (default: the
    cluster) never drawn, so that no single giant job makes up the load. The last job may exceed the load by its own
    size. Limits are drawn as users declare them: far too long. Raises `InputError` for figures out of range.
    """
    model = FITTED if model is None else model
    names = [f"tenant-{i:02d}" for i in range(tenants)] if isinstance(tenants, int) else list(tenants)
    _check(cluster_gpus, horizon_s, load, names, users_per_tenant)
    longest_s = horizon_s if max_duration_s is None else max_duration_s
    widest = cluster_gpus if max_width is None else min(max_width, cluster_gpus)
    jobs = _draw_jobs(rng, model, load * cluster_gpus * horizon_s, max(longest_s, 1.0), widest)
    batches = int(jobs["batch"][-1]) + 1
    submit_s = _batch_starts(rng, model, batches, horizon_s, start_hour)[jobs["batch"]] + _within_batch(
        rng, model, jobs
    )
    submit_s = np.minimum(submit_s, np.nextafter(horizon_s, 0))
    tenant = rng.choice(len(names), size=batches, p=_zipf(len(names), model.tenant_exponent))
    user = rng.choice(users_per_tenant, size=batches, p=_zipf(users_per_tenant, model.user_exponent))
    order = np.argsort(submit_s, kind="stable")
    return _trace(
        rng,
        model,
        {name: values[order] for name, values in jobs.items()},
        submit_s[order],
        names,
        tenant,
        user,
    )


def _check(cluster_gpus: int, horizon_s: float, load: float, names: Sequence[str], users: int) -> None:
    for what, value, good, allowed in (
        ("cluster GPUs", cluster_gpus, cluster_gpus >= 1, "1 or more"),
        ("horizon", horizon_s, 60 <= horizon_s <= 1e9, "60 s or more"),
        ("load", load, 0 < load <= 100, "above 0 and at most 100"),
        ("tenants", len(names), len(names) >= 1, "1 or more"),
        ("users per tenant", users, users >= 1, "1 or more"),
    ):
        if not good:
            raise InputError(f"synthetic jobs: {what}: {value!r} is not allowed; write {allowed}")


def _draw_jobs(
    rng: np.random.Generator, model: ArrivalModel, wanted_gpu_s: float, longest_s: float, widest: int
) -> dict[str, Any]:
    """Columns batch, width, group (index of the width class), duration_s, until the required work is reached."""
    parts: list[dict[str, Any]] = []
    gpu_s, batches, count = 0.0, 0, 0
    while gpu_s < wanted_gpu_s:
        part = _draw_batches(rng, model, longest_s, widest)
        part["batch"] += batches
        batches = int(part["batch"][-1]) + 1
        parts.append(part)
        gpu_s += float(np.sum(part["width"] * part["duration_s"]))
        count += len(part["batch"])
        if count > MOST_JOBS:
            raise InputError(
                f"synthetic jobs: more than {MOST_JOBS:,} jobs; choose a shorter horizon or a smaller load"
            )
    jobs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    enough = int(np.searchsorted(np.cumsum(jobs["width"] * jobs["duration_s"]), wanted_gpu_s)) + 1
    return {name: values[:enough] for name, values in jobs.items()}


def _draw_batches(rng: np.random.Generator, model: ArrivalModel, longest_s: float, widest: int) -> dict[str, Any]:
    batches = 256
    kinds = [(g, w, s) for g, c in enumerate(model.classes) for w, s in zip(c.widths, c.width_shares, strict=True)]
    kinds = [kind for kind in kinds if kind[1] <= widest] or [(0, 1, 1.0)]
    share = np.array([kind[2] for kind in kinds])
    pick = rng.choice(len(kinds), size=batches, p=share / share.sum())
    group = np.array([kind[0] for kind in kinds])[pick]
    width = np.array([kind[1] for kind in kinds], dtype=np.int64)[pick]
    mean, spread = _components(rng, model, group)
    most_log = np.log(longest_s)
    common, own = np.sqrt(model.batch_likeness), np.sqrt(1 - model.batch_likeness)
    centre = _redraw_above(lambda at: mean[at] + common * spread[at] * rng.standard_normal(len(at)), batches, most_log)
    batch = np.repeat(np.arange(batches), _batch_sizes(rng, model, group))
    log_s = _redraw_above(
        lambda at: centre[batch[at]] + own * spread[batch[at]] * rng.standard_normal(len(at)),
        len(batch),
        most_log,
    )
    duration_s = np.maximum(1.0, np.floor(np.exp(log_s)))
    return {"batch": batch, "width": width[batch], "group": group[batch], "duration_s": duration_s}


def _components(rng: np.random.Generator, model: ArrivalModel, group: Ints) -> tuple[Floats, Floats]:
    mean, spread = np.empty(len(group)), np.empty(len(group))
    for number, each in enumerate(model.classes):
        here = np.flatnonzero(group == number)
        weight = np.array([part[0] for part in each.mixture])
        part = rng.choice(len(weight), size=len(here), p=weight / weight.sum())
        mean[here] = np.array([component[1] for component in each.mixture])[part]
        spread[here] = np.array([component[2] for component in each.mixture])[part]
    return mean, spread


def _batch_sizes(rng: np.random.Generator, model: ArrivalModel, group: Ints) -> Ints:
    size = np.ones(len(group), dtype=np.int64)
    for number, each in enumerate(model.classes):
        many = np.flatnonzero((group == number) & (rng.random(len(group)) >= each.single_share))
        sizes = np.arange(2, each.batch_most + 1)
        weight = sizes**-each.batch_exponent
        size[many] = rng.choice(sizes, size=len(many), p=weight / weight.sum())
    return size


def _redraw_above(draw: Any, count: int, most: float) -> Floats:
    """`draw(indices)` for all, and again (20 times at most) for those above `most`; the last of these become `most`."""
    values: Floats = draw(np.arange(count))
    for _ in range(20):
        above = np.flatnonzero(values > most)
        if not len(above):
            break
        values[above] = draw(above)
    return np.minimum(values, most)


def _batch_starts(
    rng: np.random.Generator, model: ArrivalModel, batches: int, horizon_s: float, start_hour: float
) -> Floats:
    """The start of each batch: hours weighted by the daily rhythm and a burst factor, uniform inside an hour."""
    hours = int(np.ceil(horizon_s / 3600))
    shape = np.array(model.hour_shape)[(np.arange(hours) + int(start_hour)) % 24]
    weight = shape * rng.standard_gamma(model.burst_shape, size=hours)
    weight[-1] *= (horizon_s - 3600 * (hours - 1)) / 3600
    hour = rng.choice(hours, size=batches, p=weight / weight.sum())
    end_s = np.minimum((hour + 1) * 3600.0, horizon_s)
    starts_s: Floats = hour * 3600.0 + rng.random(batches) * (end_s - hour * 3600.0)
    return starts_s


def _within_batch(rng: np.random.Generator, model: ArrivalModel, jobs: dict[str, Any]) -> Floats:
    """Seconds since the start of the job's batch."""
    mean, spread = model.gap_log_s
    gap = np.maximum(0.0, np.exp(mean + spread * rng.standard_normal(len(jobs["batch"]))) - 0.5)
    first = np.concatenate([[True], np.diff(jobs["batch"]) > 0])
    gap[first] = 0.0
    total = np.cumsum(gap)
    starts = np.flatnonzero(first)
    since: Floats = total - np.repeat(total[starts], np.diff([*starts, len(gap)]))
    return since


def _zipf(count: int, exponent: float) -> Floats:
    weight = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    shares: Floats = weight / weight.sum()
    return shares


def _trace(
    rng: np.random.Generator,
    model: ArrivalModel,
    jobs: dict[str, Any],
    submit_s: Floats,
    names: Sequence[str],
    tenant: Ints,
    user: Ints,
) -> JobTrace:
    rows = len(submit_s)
    columns = empty_columns(rows)
    digits = max(6, len(str(rows)))
    batch, width, duration_s = jobs["batch"], jobs["width"], jobs["duration_s"]
    single = np.bincount(batch)[batch] == 1
    interactive = single & (width == 1) & (rng.random(rows) < model.interactive_share)
    failed = np.array([each.failed_share for each in model.classes])[jobs["group"]]
    killed = np.array([each.killed_share for each in model.classes])[jobs["group"]]
    fate = rng.random(rows)
    mean, spread = model.over_estimate_log
    factor = np.maximum(1.0, np.exp(mean + spread * rng.standard_normal(rows)))
    limit_s = np.maximum(duration_s, np.minimum(usual_limit_s(duration_s * factor), LONGEST_LIMIT_S))
    limit_s[rng.random(rows) < model.unlimited_share] = np.nan
    columns |= {
        "job_id": np.array([f"synthetic-{number:0{digits}d}" for number in range(rows)], dtype=object),
        "tenant": np.array(names, dtype=object)[tenant[batch]],
        "user": np.array([f"{names[t]}-user-{u}" for t, u in zip(tenant, user, strict=True)], dtype=object)[batch],
        "name": np.array([f"sweep-{number}" for number in range(len(tenant))], dtype=object)[batch],
        "submit_s": np.trunc(submit_s - submit_s[0]),
        "duration_s": duration_s,
        "gpus": width.astype(np.int64),
        "kind": np.where(interactive, "interactive", "train").astype(object),
        "status": np.where(fate < failed, "failed", np.where(fate < failed + killed, "killed", "completed")).astype(
            object
        ),
        "limit_s": limit_s,
    }
    return JobTrace(source="synthetic jobs", **columns, rows=rows)
