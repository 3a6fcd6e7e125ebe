"""Every demand series of the real traces, and a seeded zoo of generated ones, cut into windows with several starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autopilot.core.model.snapshot import F64


@dataclass(frozen=True, slots=True)
class Window:
    """Some series of one kind over the same steps. `horizons` are in steps; `start` is the first step of the trace."""

    kind: str
    step_s: float
    horizons: tuple[int, ...]
    start: int
    names: tuple[str, ...]
    values: F64  # [series, steps]


def windows_of(
    kind: str, step_s: float, horizons: tuple[int, ...], series: dict[str, F64], length: int, starts: int
) -> Iterator[Window]:
    """`starts` windows of `length` steps, evenly spread from the first to the last that fits. Empty series are left
    out.
    """
    names = list(series)
    values = np.array([series[name] for name in names])
    length = min(length, values.shape[1])
    for start in np.unique(np.linspace(0, values.shape[1] - length, starts).astype(int)).tolist():
        part = values[:, start : start + length]
        kept = [row for row in range(len(names)) if np.nansum(part[row]) > 0.0]
        if kept:
            yield Window(kind, step_s, horizons, start, tuple(names[row] for row in kept), part[kept])


# --- real traces ------------------------------------------------------------------------------------


def real_windows(folder: Path) -> Iterator[Window]:
    """All windows of all demand series in the folder of real traces."""
    yield from _requests(folder)
    yield from _servegen(folder)
    yield from _gentd26(folder)
    yield from _clusters(folder)
    yield from _arrivals(folder)


def _counts(t_s: F64, step_s: float, weight: F64 | None = None, begin_s: float = 0.0) -> F64:
    """Sum of `weight` (1 each by default) a second in steps of `step_s` from `begin_s` on; the last, partial step is
    left out.
    """
    place = np.floor((t_s - begin_s) / step_s).astype(int)
    kept = (place >= 0) & (place < place.max())
    return np.asarray(np.bincount(place[kept], None if weight is None else weight[kept]) / step_s, float)


def _requests(folder: Path) -> Iterator[Window]:
    """Requests and tokens a second of three request traces, in steps of 10 s from three offsets, and of 2 s."""
    import pandas as pd

    for kind, path in (
        ("azure", "azure_llm_2023/requests_conv"),
        ("mooncake", "mooncake_2025/requests_conversation"),
        ("mooncake poisson", "mooncake_2025/requests_synthetic_poisson"),
    ):
        frame = pd.read_parquet(folder / f"{path}.parquet")
        t_s = frame["t_s"].to_numpy(float)
        amounts = {"requests": None} | {name: frame[name].to_numpy(float) for name in ("input_tokens", "output_tokens")}
        for begin_s in (0.0, 300.0, 600.0):
            for what, weight in amounts.items():
                yield from windows_of(
                    f"{kind} 10 s",
                    10.0,
                    (1, 6, 12),
                    {f"{what} from {begin_s:g} s": _counts(t_s, 10.0, weight, begin_s)},
                    100_000,
                    1,
                )
        for what, weight in amounts.items():
            yield from windows_of(f"{kind} 2 s", 2.0, (1, 5, 15), {what: _counts(t_s, 2.0, weight)}, 100_000, 1)


def _servegen(folder: Path) -> Iterator[Window]:
    """Requests a second of all clients and models, in windows of 10 minutes: ten days, and two parts of six."""
    import pandas as pd

    clients = pd.read_parquet(folder / "servegen_2025" / "client_windows.parquet")
    totals = pd.read_parquet(folder / "servegen_2025" / "model_rate_10min.parquet")
    for model in ("language/m-large", "language/m-small"):
        index = pd.Index(np.arange(totals["t_s"].min(), totals["t_s"].max() + 600, 600))
        total = totals[totals["model"] == model].set_index("t_s")["rate_rps"].reindex(index)
        series = {model: total.to_numpy(float)}
        for tenant, rows in clients[clients["model"] == model].groupby("tenant"):
            series[str(tenant)] = rows.set_index("t_s")["rate_rps"].reindex(index).fillna(0.0).to_numpy(float)
        yield from windows_of("servegen 10 min", 600.0, (1, 3, 6), series, 1440, 1)
        yield from windows_of("servegen 10 min, 6 days", 600.0, (1, 3, 6), series, 864, 2)


def _gentd26(folder: Path) -> Iterator[Window]:
    """Requests by service and in all, in steps of 1 and 10 minutes; queries a second and GPU use of pods."""
    import pandas as pd

    frame = pd.read_parquet(folder / "gentd26" / "diffusion_requests.parquet")
    t_s = frame["t_s"].to_numpy(float)
    for step_s, length, starts, most in ((600.0, 2600, 1, 30), (60.0, 7200, 2, 6)):
        steps = int(t_s.max() // step_s)
        place = (t_s // step_s).astype(int)
        series = {"total": np.bincount(place, minlength=steps + 1)[:steps].astype(float)}
        for service in frame["service"].value_counts().index[:most]:
            mine = place[(frame["service"] == service).to_numpy()]
            series[str(service)] = np.bincount(mine, minlength=steps + 1)[:steps].astype(float)
        kind = f"gentd26 requests {step_s / 60:g} min"
        yield from windows_of(kind, step_s, (1, 3, 6) if step_s > 60.0 else (2, 5, 15), series, length, starts)
    metrics = pd.read_parquet(folder / "gentd26" / "service_metrics.parquet")
    for metric in ("qps_api", "qps_generative", "queue_size"):
        mine = metrics[(metrics["metric"] == metric) & metrics["pod"].isna()].groupby("t_s")["value"].mean()
        if len(mine) > 200:
            yield from windows_of(f"gentd26 {metric}", 57.0, (2, 5, 15), {metric: mine.to_numpy(float)}, 2000, 1)
    use = pd.read_parquet(folder / "gentd26" / "gpu_util.parquet").pivot_table(
        index="t_s", columns="pod", values="gpu_util"
    )
    series = {str(pod): use[pod].to_numpy(float) for pod in use.columns[:24]}
    yield from windows_of("gentd26 GPU use", 57.0, (2, 5, 15), series, 2000, 1)


def _clusters(folder: Path) -> Iterator[Window]:
    """GPUs and nodes in use and waited for: Helios by virtual cluster, Philly, the spot trace, and DLRM by service."""
    import pandas as pd

    minutes = pd.read_parquet(folder / "helios_earth_vc" / "vc_minutes.parquet")
    for what in ("running_gpus", "pending_gpus"):
        table = minutes.pivot_table(index="t_s", columns="vc", values=what)
        series = {f"{vc} {what}": table[vc].to_numpy(float) for vc in table.columns}
        yield from windows_of(f"helios {what} 1 min", 60.0, (2, 5, 15), series, 5400, 2)
    frame = pd.read_parquet(folder / "philly_jobs" / "active_nodes_1min.parquet").drop_duplicates("t_s")
    index = np.arange(frame["t_s"].min(), frame["t_s"].max() + 60, 60)
    nodes = frame.set_index("t_s")["active_nodes"].reindex(index).to_numpy(float)
    yield from windows_of("philly nodes 1 min", 60.0, (5, 15, 60), {"nodes": nodes}, 7200, 4)
    hourly = pd.read_parquet(folder / "spot_gpu_2026" / "hourly.parquet")
    named = [name for name in hourly.columns if name not in ("hour", "t_s") and "capacity" not in name]
    spot = {name: hourly[name].to_numpy(float) for name in named}
    yield from windows_of("spot hourly", 3600.0, (1, 3, 6), spot, 3200, 1)
    yield from windows_of("spot hourly, half", 3600.0, (1, 3, 6), spot, 1546, 2)
    dlrm = pd.read_parquet(folder / "dlrm_2025" / "instances.parquet")
    steps = int(np.nanmax(dlrm["end_s"].to_numpy(float)) // 600)
    series = {}
    for app in dlrm["tenant"].value_counts().index[:30]:
        mine = dlrm[dlrm["tenant"] == app]
        begun = np.nan_to_num(mine["submit_s"].to_numpy(float), nan=0.0) // 600
        ended = mine["end_s"].to_numpy(float) // 600
        change = np.zeros(steps + 2)
        np.add.at(change, np.clip(begun, 0, steps + 1).astype(int), 1.0)
        np.add.at(change, np.clip(ended[np.isfinite(ended)] + 1, 0, steps + 1).astype(int), -1.0)
        series[str(app)] = np.cumsum(change)[:steps]
    yield from windows_of("dlrm instances 10 min", 600.0, (1, 3, 6), series, 5000, 1)


def _arrivals(folder: Path) -> Iterator[Window]:
    """Jobs that were submitted, by tenant and in all: Philly and MIT in steps of 10 minutes, openb in steps of an
    hour.
    """
    import pandas as pd

    for kind, path, step_s, length, starts in (
        ("philly arrivals 10 min", "philly_jobs/jobs", 600.0, 5400, 2),
        ("mit arrivals 10 min", "mit_supercloud_slurm/jobs", 600.0, 5400, 1),
        ("openb arrivals 1 h", "openb_2023/pods_default", 3600.0, 2000, 1),
    ):
        frame = pd.read_parquet(folder / f"{path}.parquet")
        submit_s = frame["submit_s"].to_numpy(float)
        known = np.isfinite(submit_s)
        place = ((submit_s - np.nanmin(submit_s)) // step_s)[known].astype(int)
        tenants = frame["tenant"].to_numpy(object)[known]
        steps = int(place.max())
        series = {"all": np.bincount(place, minlength=steps + 1)[:steps].astype(float)}
        for tenant in frame["tenant"].value_counts().index[:8]:
            series[str(tenant)] = np.bincount(place[tenants == tenant], minlength=steps + 1)[:steps].astype(float)
        yield from windows_of(kind, step_s, (1, 3, 6), series, length, starts)


# --- the zoo ----------------------------------------------------------------------------------------

ZOO = (
    "ar",
    "season with drift of phase",
    "regimes",
    "counts with bursts",
    "heavy tails",
    "sparse",
    "random walk",
    "atoms",
)
MIXED = "zoo mixed"


def zoo_windows(seed: int, steps: int = 5400, series: int = 3, draws: int = 1) -> Iterator[Window]:
    """Windows of generated minutes, `draws` of each kind, and the first draw of all kinds together."""
    every: dict[str, F64] = {}
    for number, kind in enumerate(ZOO):
        for draw in range(draws):
            rng = np.random.default_rng((seed, number, draw))
            values = np.array([_drawn(kind, rng, steps) for _ in range(series)])
            names = tuple(f"{kind} {draw}.{row}" for row in range(series))
            yield Window(f"zoo {kind}", 60.0, (2, 5, 15), 0, names, values)
            if not draw:
                every |= dict(zip(names, values, strict=True))
    yield Window(MIXED, 60.0, (2, 5, 15), 0, tuple(every), np.array(list(every.values())))


def _drawn(kind: str, rng: np.random.Generator, steps: int) -> F64:
    """One series of a kind of the zoo."""
    at = np.arange(steps)
    if kind == "ar":
        noise, pull = rng.normal(0.0, 1.0, steps), rng.uniform(0.3, 0.98)
        state = np.zeros(steps)
        for step in range(1, steps):
            state[step] = pull * state[step - 1] + noise[step]
        return np.maximum(10.0 + state * rng.uniform(0.5, 2.0), 0.0)
    if kind == "season with drift of phase":
        phase = np.cumsum(rng.normal(0.0, 0.01, steps)) + rng.uniform(0.0, 6.3)
        day = 1.0 + rng.uniform(0.3, 0.9) * np.sin(2.0 * np.pi * at / 1440.0 + phase)
        return rng.lognormal(2.0, 1.0) * day * rng.gamma(20.0, 0.05, steps)
    if kind == "regimes":
        level, length = [], 0
        while length < steps:
            stay = int(rng.geometric(1.0 / 400.0))
            level.append(np.full(stay, rng.lognormal(2.0, 1.0)))
            length += stay
        shape = np.concatenate(level)[:steps]
        return shape * np.where(np.arange(steps) // 900 % 2, rng.gamma(5.0, 0.2, steps), rng.gamma(80.0, 0.0125, steps))
    if kind == "counts with bursts":
        rate = np.full(steps, rng.uniform(0.5, 5.0))
        for start in rng.integers(0, steps, steps // 300):
            rate[start : start + int(rng.integers(3, 40))] *= rng.uniform(2.0, 12.0)
        return rng.poisson(rate).astype(float)
    if kind == "heavy tails":
        return rng.lognormal(0.0, 0.3) * np.minimum(1.0 + rng.pareto(rng.uniform(1.6, 3.0), steps), 1e4)
    if kind == "sparse":
        awake = rng.random(steps) < rng.uniform(0.005, 0.1)
        return np.where(awake, 1.0 + rng.poisson(2.0, steps), 0.0)
    if kind == "random walk":
        return np.abs(np.cumsum(rng.normal(0.0, 1.0, steps)) + 50.0)
    return np.round(rng.gamma(2.0, 1.0, steps)) * float(rng.integers(1, 9))
