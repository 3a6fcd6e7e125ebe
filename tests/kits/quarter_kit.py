"""A quarter of metering with its truth: jobs of three teams, restarts, a price change, and days that come late.

The truth is a table of spans in which nothing changes; bills are summed from it with pandas alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from autopilot.metering.amounts import AMOUNTS, GRAINS_PER_GPU_S, KEYS, TICKS_PER_S, Row
from autopilot.metering.prices import Prices
from autopilot.metering.segments import CUTS, DAY, Segments

START = pd.Timestamp("2026-01-15T09:05:00Z")
CHANGE = pd.Timestamp("2026-02-10T12:00:00Z")
POOLS = {"near": ("H100-80GB", 8), "far": ("H100-80GB", 4), "old": ("A100-80GB", 8)}
GUARANTEES = {("vision", "H100-80GB"): 5, ("language", "H100-80GB"): 2, ("language", "A100-80GB"): 3}
LIST = {("near", 0): 4.0, ("near", 1): 3.0, ("far", 0): 2.0, ("far", 1): 2.0, ("old", 0): 1.5, ("old", 1): 1.6}
BURST, LEAF = 0.5, 0.1
UNUSED = "(unused guarantee)"


def prices(zone: str) -> Prices:
    """The same as `LIST`, as a price file states it."""
    dated = [{"from": CHANGE.isoformat(), "gpu_hour": {"H100-80GB": 3.0, "A100-80GB": 1.6}}]
    return Prices.model_validate(
        {
            "currency": "EUR",
            "zone": zone,
            "region": "a",
            "regions": {
                "a": {"gpu_hour": {"H100-80GB": 4.0, "A100-80GB": 1.5}, "dated": dated},
                "b": {"gpu_hour": {"H100-80GB": 2.0}},
            },
            "pools": {"far": "b"},
            "burst_ratio": BURST,
            "topology_premium": {"leaf": LEAF},
        }
    )


@dataclass(frozen=True, slots=True)
class Quarter:
    """`spans`: what was held or reserved, from `low` to `high` (UTC); `late`: files that come after the first bill."""

    spans: pd.DataFrame
    folder: Path
    late: tuple[Path, ...]


def quarter(folder: Path, days: int, jobs: int, seed: int = 0) -> Quarter:
    """Write the segments of a quarter; the files of two days of its first month are moved to `folder/late`."""
    rng = np.random.default_rng(seed)
    long_s = days * 86_400
    begins = np.sort(rng.integers(0, long_s - 3600, jobs))
    work = pd.DataFrame(
        {
            "workload": [f"job-{at}" for at in range(jobs)],
            "begin_s": begins,
            "end_s": np.minimum(begins + rng.lognormal(9.5, 1.5, jobs).astype(int) + 20, long_s),
            "gpus": rng.choice([1, 2, 4], jobs),
            "pool": rng.choice(list(POOLS), jobs),
            "tenant": rng.choice(["vision", "language", "guest"], jobs),
            "user": rng.choice(["ada", "bob", "eve", ""], jobs),
            "team": rng.choice(["red", "blue", ""], jobs),
            "slo_class": rng.choice(["batch", "standard"], jobs),
            "topology": rng.choice(["", "leaf"], jobs),
        }
    )
    gaps = [(at, at + 5000) for at in rng.integers(0, long_s, 3).tolist()]
    free = {name: count for name, (_, count) in POOLS.items()}
    kept: list[dict[str, Any]] = []
    running: list[dict[str, Any]] = []
    for found in work.to_dict("records"):  # what has no room is left out
        job = {str(name): value for name, value in found.items()}
        for other in [each for each in running if each["end_s"] <= job["begin_s"]]:
            running.remove(other)
            free[other["pool"]] += other["gpus"]
        if free[job["pool"]] >= job["gpus"]:
            free[job["pool"]] -= job["gpus"]
            running.append(job)
            kept.append(job)
    edges = {0, long_s, *(at for gap in gaps for at in gap), int((CHANGE - START).total_seconds())}
    edges |= {int(job[name]) for job in kept for name in ("begin_s", "end_s")}
    shift_s = int(START.timestamp()) % 86_400
    edges |= {day * 86_400 + cut // TICKS_PER_S - shift_s for day in range(days + 2) for cut in CUTS.tolist()}
    times = sorted(at for at in edges if 0 <= at <= long_s)
    truth: list[dict[str, Any]] = []
    segments = Segments(folder, start_s=START.timestamp(), every=10_000)
    for low, high in pairwise(times):
        seen = not any(begin <= low < end for begin, end in gaps)
        mine = [job for job in kept if job["begin_s"] <= low and job["end_s"] >= high] if seen else []
        rows = _span(low, high, mine, seen)
        truth += [each for each in rows if each["kind"] in ("held", "reserved")]
        segments.put(low * TICKS_PER_S, high * TICKS_PER_S, [_row(each) for each in rows])
    segments.close()
    spans = pd.DataFrame(truth)
    for name in ("low", "high"):
        spans[name] = START + pd.to_timedelta(spans[name], unit="s")
    (folder / "late").mkdir()
    late = sorted(folder.glob("s-*.parquet"), key=lambda path: int(path.name.split("-")[1]))[3:5]
    return Quarter(spans, folder, tuple(path.rename(folder / "late" / path.name) for path in late))


def _span(low: int, high: int, jobs: list[dict[str, Any]], seen: bool) -> list[dict[str, Any]]:
    """The rows of one span, in GPUs; the work that started last has borrowed."""
    base = {"low": low, "high": high}
    rows: list[dict[str, Any]] = []
    left, free = dict(GUARANTEES), {name: count for name, (_, count) in POOLS.items()}
    for job in jobs:
        pool, gpus = str(job["pool"]), int(job["gpus"])
        place = (str(job["tenant"]), POOLS[pool][0])
        used = min(gpus, left.get(place, 0))
        left[place] = left.get(place, 0) - used
        free[pool] -= gpus
        rows.append({**base, **job, "kind": "held", "queue": place[0], "gpu_model": place[1], "borrowed": gpus - used})
    for (queue, model), gpus in GUARANTEES.items() if seen else ():
        rows.append({**base, "kind": "reserved", "tenant": queue, "queue": queue, "gpu_model": model, "gpus": gpus})
    for pool, (model, count) in POOLS.items():
        where = {**base, "pool": pool, "gpu_model": model}
        rows += [
            {**where, "kind": "capacity", "gpus": count},
            {**where, "kind": "idle" if seen else "gap", "gpus": free[pool]},
        ]
    return rows


def _row(of: dict[str, Any]) -> Row:
    texts = {**of, "uid": of.get("workload", ""), "labels": json.dumps({"team": of["team"]}) if of.get("team") else ""}
    long = (int(of["high"]) - int(of["low"])) * GRAINS_PER_GPU_S
    amounts = {"gpu_time": int(of["gpus"]) * long, "borrowed": int(of.get("borrowed", 0)) * long}
    return Row(
        int(of["low"]) * TICKS_PER_S,
        int(of["high"]) * TICKS_PER_S,
        tuple(str(texts.get(name, "")) for name in KEYS),
        tuple(amounts.get(name, 0) for name in AMOUNTS),
    )


def charges(spans: pd.DataFrame, zone: str) -> pd.DataFrame:
    """The charge of each span by pandas alone: columns of the owners, `day`, `month` and `charge`."""
    of = spans.assign(after=(spans["low"] >= CHANGE).astype(int))
    of["hours"] = (of["high"] - of["low"]).dt.total_seconds() / 3600
    local = of["low"].dt.tz_convert(zone)
    of["day"], of["month"] = local.dt.strftime("%Y-%m-%d"), local.dt.strftime("%Y-%m")
    total = {"H100-80GB": 12, "A100-80GB": 8}
    mean = {
        (model, after): sum(LIST[pool, after] * count for pool, (kind, count) in POOLS.items() if kind == model) / gpus
        for model, gpus in total.items()
        for after in (0, 1)
    }
    rate = np.array([mean[key] for key in zip(of["gpu_model"], of["after"], strict=True)])
    held = of["kind"] == "held"
    price = np.array([LIST.get(key, 0.0) for key in zip(of["pool"], of["after"], strict=True)])
    used = (of["gpus"] - of["borrowed"].fillna(0)).where(held, of["gpus"])
    of["charge"] = of["hours"] * used * rate
    of.loc[held, "charge"] += (of["hours"] * of["borrowed"] * price * BURST)[held]
    of.loc[held, "charge"] += (of["hours"] * of["gpus"] * price * LEAF * (of["topology"] == "leaf"))[held]
    paid = of.loc[held].assign(
        charge=-(of["hours"] * used * rate)[held], kind="reserved", workload="", user="", team=""
    )
    return pd.concat([of, paid.assign(slo_class="", tenant=paid["queue"])], ignore_index=True)


def by_group(found: pd.DataFrame, column: str) -> dict[str, float]:
    """The charge of each group, as a showback names it."""
    name = found[column].fillna("").where(found[column].fillna("") != "", "(none)")
    if column in ("user", "team", "workload", "slo_class"):
        name = name.where(found["kind"] == "held", UNUSED)
    return {str(key): float(value) for key, value in found.groupby(name)["charge"].sum().items()}


assert DAY == 86_400 * TICKS_PER_S
