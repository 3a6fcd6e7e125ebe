"""Prints the constants of simulator/signals/behaviours.py fitted to measurements.

    python scripts/fit_telemetry.py [DATA_FOLDER]        (default: ../shared/data)

Reads three public data sets and writes nothing: `h100_telemetry_runs` (relations between the signals of
one GPU), `acme_util_cdf` (the distribution of a fleet's SM activity) and `gentd26` (the bursts of an
interactive GPU). Only summary figures leave this script; no data is shipped.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize, nnls
from scipy.stats import norm

F64 = NDArray[np.float64]

WATCH_S = 30
H100_TDP_W = 700.0
RUNS = {"t3": "compute", "t13_node0": "communication", "t2": "small", "i4": "light_inference"}
LEVEL_POINTS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
# Bands of SM activity in which a kind of training lives; each contains its run's mean in
# h100_telemetry_runs (compute .88, small .64, communication .45). The input-starved band is assumed.
BANDS = {
    "compute": (0.60, 1.0),
    "small": (0.30, 0.75),
    "communication": (0.35, 0.65),
    "starved": (0.02, 0.40),
}
PRIOR = 0.5
RESIDENT = 1.0  # % of board memory in use above which somebody holds the GPU


def fit_relations(data: Path) -> dict[str, dict[str, float]]:
    """Ratios to SM activity, from 30 s means of the steady phases; power above the loaded-but-idle board.

    `power_per_sm` is in board power limits (700 W) per unit of SM activity; `jitter` is the standard
    deviation of the 30 s mean within one GPU over its mean, the median over GPUs.
    """
    steady = _steady_means(data)
    loaded_w = float(steady.loc["b1", "power_w"].mean())
    relations = {}
    for run, name in RUNS.items():
        mean, gpus = steady.loc[run].mean(), steady.loc[run].groupby("gpu")
        sm = float(mean["sm_active"])
        spread = gpus[["sm_active", "tensor_active", "dram_active", "power_w"]].std()
        relative = (spread / gpus[list(spread.columns)].mean()).median()
        relations[name] = {
            "sm_mean": sm,
            "tensor_per_sm": float(mean["tensor_active"]) / sm,
            "dram_per_sm": float(mean["dram_active"]) / sm,
            "nvlink_bytes_s_per_sm": float(mean["nvlink"]) / sm,
            "pcie_bytes_s_per_sm": float(mean["pcie"]) / sm,
            "busy_exponent": float(np.log1p(-mean["gpu_util"] / 100) / np.log1p(-sm)),
            "power_per_sm": (float(mean["power_w"]) - loaded_w) / H100_TDP_W / sm,
            "sm_per_busy": sm / float(mean["gpu_util"]) * 100,
            "jitter": float(relative["sm_active"]),
            "tensor_noise": float(relative["tensor_active"]),
            "dram_noise": float(relative["dram_active"]),
            "power_noise": float(relative["power_w"]),
        }
    return relations


def _steady_means(data: Path) -> Any:
    frame = _h100(data)
    frame = frame[frame["phase"] == "steady"].assign(window=lambda f: f["t_s"] // WATCH_S)
    grouped = frame.groupby(["run", "gpu", "window"])
    columns = ["gpu_util", "sm_active", "tensor_active", "dram_active", "nvlink", "pcie", "power_w"]
    return grouped[columns].mean()[grouped.size() >= WATCH_S - 2]


def _h100(data: Path) -> Any:  # tables are Any here: their columns are known by name only
    frame: Any = pd.read_parquet(data / "h100_telemetry_runs" / "gpu_1s.parquet")
    return frame.assign(
        nvlink=frame["nvlink_tx_bytes_s"] + frame["nvlink_rx_bytes_s"],
        pcie=frame["pcie_tx_bytes_s"] + frame["pcie_rx_bytes_s"],
    )


def fit_idle(data: Path) -> dict[str, float]:
    """H100 power without and with a loaded model (W), and PCIe traffic while models load (bytes/s)."""
    frame = _h100(data)
    idle = frame[(frame["run"] == "b1") & (frame["phase"] == "init")]
    loaded = frame[(frame["run"] == "b1") & (frame["phase"] == "steady")]
    loading = frame[(frame["phase"] == "loading")]
    return {
        "idle_w": float(idle["power_w"].mean()),
        "loaded_w": float(loaded["power_w"].mean()),
        "loaded_dram_ratio": float(loaded["dram_active"].mean()),
        "loaded_pcie_bytes_s": float(loaded["pcie"].mean()),
        "loading_pcie_bytes_s": float(loading.groupby("run")["pcie"].mean().mean()),
    }


def fit_fleet(data: Path, cluster: str = "seren") -> dict[str, Any]:
    """Levels by band and their shares of allocated GPU time, from the fleet's SM activity.

    A GPU with at most 1 % of its memory in use counts as unallocated. The share of hoarders is
    P(memory held) - P(GPU util > 0). The other shares solve a non-negative least squares problem: the
    mixture of the bands against the distribution of SM activity above 1 %.
    """
    frame: Any = pd.read_parquet(data / "acme_util_cdf" / "quantiles_raw.parquet")
    frame = frame[frame["cluster"] == cluster]
    column = {m: g["value"].to_numpy() / 100 for m, g in frame.groupby("metric")}
    sm, held = np.sort(column["sm_active"]), 1 - float(np.mean(column["fb_used"] <= RESIDENT / 100))
    levels = {name: _band_quantiles(sm, *band) for name, band in BANDS.items()}
    grid = np.linspace(0.01, 1.0, 100)
    active = sm[sm > 0.01]
    target = np.searchsorted(active, grid, side="right") / len(active)
    parts = np.column_stack([np.interp(grid, table, LEVEL_POINTS) for table in levels.values()])
    count = parts.shape[1]
    ones = np.full((1, count), 100.0)  # a heavy row: the shares sum to one
    equal = np.eye(count) * PRIOR  # overlapping bands are told apart by a light pull towards equal shares
    shares, _ = nnls(np.vstack([parts, ones, equal]), np.r_[target, 100.0, np.full(count, PRIOR / count)])
    misfit = float(np.abs(parts @ shares - target).max())
    active_share = (1 - float(np.mean(sm <= 0.01))) / held
    working = {n: float(s) * active_share for n, s in zip(levels, shares, strict=True)}
    hoarding = (held - float(np.mean(column["gpu_util"] > 0))) / held
    busy = sm > 0.3
    return {
        "held_share": held,
        "levels": levels,
        "shares": working,
        "hoarder_share": hoarding,
        "other_idle_share": 1 - active_share - hoarding,
        "occupancy_per_sm": float(np.median(np.sort(column["sm_occupancy"])[busy] / sm[busy])),
        "largest_cdf_error": misfit,
        "idle_w": float(np.quantile(column["gpu_power"] * 100, (1 - held) / 2)),
        "loaded_w": float(np.median(column["gpu_power"] * 100)),
    }


def _band_quantiles(sm: F64, low: float, high: float) -> tuple[float, ...]:
    inside = sm[(sm >= low) & (sm <= high)]
    return tuple(round(float(q), 3) for q in np.quantile(inside, LEVEL_POINTS))


def fit_bursts(data: Path, sm_per_busy: float) -> dict[str, Any]:
    """Share of samples with any work, and levels (pod mean duty x SM per busy time), from `gentd26`."""
    frame: Any = pd.read_parquet(data / "gentd26" / "gpu_util.parquet").dropna(subset=["gpu_util"])
    pods = frame.groupby("pod")["gpu_util"].mean().to_numpy() / 100 * sm_per_busy
    return {
        "duty": float((frame["gpu_util"] >= 1).mean()),
        "levels": tuple(round(float(q), 4) for q in np.quantile(pods, LEVEL_POINTS)),
        "memory_mib_median": float(frame.groupby("pod")["mem_used_mib"].median().median()),
    }


def fit_gaps(data: Path, step_s: float = 57.0) -> dict[str, Any]:
    """Lengths of stretches with a duty cycle of at most 1 %, from `gentd26`, by maximum likelihood.

    The end of a pod cuts a stretch off. The model is a mixture of two log-normals and of endless stretches
    (simulator/signals/owners.py).
    """
    lengths, cut, busy = _stretches(data, step_s)

    def cdf(at_s: F64, p: F64) -> F64:
        share = np.exp(np.r_[0.0, p[:2]]) / np.exp(np.r_[0.0, p[:2]]).sum()
        parts = [share[k] * norm.cdf((np.log(at_s) - p[2 + k]) / np.exp(p[4 + k])) for k in range(2)]
        return np.asarray(parts[0] + parts[1])

    def cost(p: F64) -> float:
        inside = cdf(lengths + step_s / 2, p) - cdf(np.maximum(lengths - step_s / 2, 1.0), p)
        ended, open_ended = np.maximum(inside[~cut], 1e-300), np.maximum(1.0 - cdf(lengths[cut], p), 1e-300)
        return -float(np.log(ended).sum() + np.log(open_ended).sum())

    start = np.array([0.1, -4.8, np.log(70.0), np.log(290.0), -1.2, 0.06])
    best = minimize(cost, start, method="Nelder-Mead", options={"maxiter": 20000, "maxfev": 20000}).x
    share = np.exp(np.r_[0.0, best[:2]]) / np.exp(np.r_[0.0, best[:2]]).sum()
    return {
        "stretches": len(lengths),
        "cut_off": int(cut.sum()),
        "shares": tuple(round(float(each), 4) for each in share),
        "medians_s": tuple(round(float(np.exp(each)), 1) for each in best[2:4]),
        "sigmas": tuple(round(float(np.exp(each)), 3) for each in best[4:6]),
        "mean_work_s": float(busy.mean()),
    }


def _stretches(data: Path, step_s: float) -> tuple[F64, Any, F64]:
    """Lengths of idle stretches, marks of those cut off by the end of the pod, and lengths of stretches of work."""
    frame: Any = pd.read_parquet(data / "gentd26" / "gpu_util.parquet").sort_values(["pod", "t_s"])
    idle, cut, busy = [], [], []
    for _, pod in frame.groupby("pod"):
        util, at_s = pod["gpu_util"].to_numpy(float), pod["t_s"].to_numpy(float)
        kind = np.where(np.isnan(util), 2, (util <= 1.0).astype(int))
        edges = np.r_[0, np.flatnonzero(np.diff(kind)) + 1, len(util)]
        for begin, end in zip(edges[1:-1].tolist(), edges[2:].tolist(), strict=True):  # the first one began unseen
            length_s, last = at_s[end - 1] - at_s[begin] + step_s, end == len(util)
            if kind[begin] == 1:
                idle.append(length_s)
                cut.append(last)
            elif kind[begin] == 0 and not last:
                busy.append(length_s)
    return np.array(idle), np.array(cut), np.array(busy)


def _show(title: str, values: dict[str, Any]) -> None:
    print(f"# {title}")
    for name, value in values.items():
        print(f"{name} = {value:.6g}" if isinstance(value, float) else f"{name} = {value}")
    print()


def main(arguments: list[str]) -> int:
    """Print every fitted constant; exit code 2 without the data."""
    data = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1].parent / "shared" / "data"
    if not (data / "acme_util_cdf").is_dir():
        print(f"{data}: no data set acme_util_cdf here; name the data folder", file=sys.stderr)
        return 2
    relations = fit_relations(data)
    for name, values in relations.items():
        _show(f"{name} (h100_telemetry_runs)", dict(values))
    _show("idle board (h100_telemetry_runs, H100 SXM5)", dict(fit_idle(data)))
    _show("fleet (acme_util_cdf, Seren)", fit_fleet(data))
    _show("fleet (acme_util_cdf, Kalos)", fit_fleet(data, "kalos"))
    _show("bursts (gentd26)", fit_bursts(data, relations["light_inference"]["sm_per_busy"]))
    _show("gaps (gentd26)", fit_gaps(data))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
