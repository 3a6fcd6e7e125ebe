"""Fit the habits behind `simulator/traces/arrivals.py` to real traces and print them as Python.

    python scripts/fit_arrivals.py DATA            print the constants
    python scripts/fit_arrivals.py DATA --write    put them into simulator/traces/arrivals.py

DATA is a folder with `philly_jobs/jobs.parquet`, `philly_jobs/jobs_with_status_first15k.parquet` and
`mit_supercloud_slurm/jobs.parquet` in the job format (docs/data-sources.md says where they come from).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from simulator.traces.arrivals import ArrivalModel, WidthClass  # noqa: E402

BATCH_GAP_S = 60.0
"""Jobs of one tenant and width that follow each other within a minute are one batch."""

CLASSES = (((1,), 3), ((2, 4), 3), ((8,), 2), ((12, 16, 24, 32), 2))
"""Widths that share a duration mixture, and its number of components."""

START, END = "# --- printed by scripts/fit_arrivals.py ---\n", "# --- end ---\n"


def log_normal_mixture(log_s: npt.NDArray[np.float64], parts: int) -> tuple[tuple[float, float, float], ...]:
    """(weight, mean, standard deviation) of a mixture of normals by expectation maximisation, started at quantiles."""
    mean = np.quantile(log_s, (np.arange(parts) + 0.5) / parts)
    spread = np.full(parts, log_s.std() / parts)
    weight = np.full(parts, 1.0 / parts)
    for _ in range(300):
        density = weight * np.exp(-0.5 * ((log_s[:, None] - mean) / spread) ** 2) / spread
        member = density / np.maximum(density.sum(axis=1, keepdims=True), 1e-300)
        size = member.sum(axis=0) + 1e-9
        mean = (member * log_s[:, None]).sum(axis=0) / size
        spread = np.maximum(np.sqrt((member * (log_s[:, None] - mean) ** 2).sum(axis=0) / size), 0.05)
        weight = size / size.sum()
    order = np.argsort(mean)
    return tuple((float(weight[i]), float(mean[i]), float(spread[i])) for i in order)


def zeta_exponent(sizes: npt.NDArray[Any], most: int) -> float:
    """Maximum-likelihood exponent of P(n) ~ n ** -exponent on 2 .. most."""
    from scipy.optimize import minimize_scalar

    numbers = np.log(np.arange(2, most + 1))
    mean_log = float(np.log(sizes).mean())
    found = minimize_scalar(
        lambda a: a * mean_log + np.log(np.exp(-a * numbers).sum()), bounds=(0.5, 6.0), method="bounded"
    )
    return float(found.x)


def zipf_exponent(counts: npt.NDArray[Any]) -> float:
    """Slope of log count against log rank."""
    ranked = np.sort(counts)[::-1]
    return float(-np.polyfit(np.log(np.arange(1, len(ranked) + 1)), np.log(ranked), 1)[0])


def fit(data: Path) -> ArrivalModel:
    """The model of the traces under `data`."""
    import pandas as pd

    jobs = pd.read_parquet(data / "philly_jobs" / "jobs.parquet").sort_values(["submit_s", "job_id"])
    ended = pd.read_parquet(data / "philly_jobs" / "jobs_with_status_first15k.parquet")
    slurm = pd.read_parquet(data / "mit_supercloud_slurm" / "jobs.parquet")
    jobs["width"] = jobs["gpus"].astype(int)
    gap_s = jobs.groupby(["tenant", "width"])["submit_s"].diff()
    jobs["batch"] = (~(gap_s <= BATCH_GAP_S)).groupby([jobs["tenant"], jobs["width"]]).cumsum()
    batches = jobs.groupby(["tenant", "width", "batch"]).agg(start_s=("submit_s", "min"), size=("submit_s", "size"))
    inside = np.log(gap_s[gap_s <= BATCH_GAP_S].to_numpy() + 0.5)
    hour_shape, burst_shape = rhythm(batches["start_s"].to_numpy())
    limited = slurm.dropna(subset=["timelimit_s"])
    over = np.log(limited["timelimit_s"] / limited["duration_s"])
    with_gpu = slurm[slurm["gpus"] > 0]
    tenants = batches.groupby("tenant").size().sort_values(ascending=False).to_numpy()
    users = ended["tenant"].value_counts().to_numpy()
    return ArrivalModel(
        classes=tuple(width_class(jobs, batches, ended, widths, parts) for widths, parts in CLASSES),
        batch_likeness=likeness(jobs),
        gap_log_s=(float(inside.mean()), float(inside.std())),
        hour_shape=hour_shape,
        burst_shape=burst_shape,
        tenant_exponent=zipf_exponent(tenants[:10]),
        user_exponent=zipf_exponent(users[:50]),
        unlimited_share=float(slurm["timelimit_s"].isna().mean()),
        over_estimate_log=(float(over.mean()), float(over.std())),
        interactive_share=float(with_gpu["kind"].str.contains("interactive").mean()),
    )


def width_class(jobs: Any, batches: Any, ended: Any, widths: tuple[int, ...], parts: int) -> WidthClass:
    """Shares, durations and fates of one class of widths."""
    of_batch = batches.index.get_level_values("width")
    mine = jobs[jobs["width"].isin(widths)]
    low, high = widths[0], (widths[-1] if widths[-1] < 32 else 10_000)
    fate = ended[(ended["gpus"] >= low) & (ended["gpus"] <= high)]["status"].value_counts(normalize=True)
    sizes = batches["size"].to_numpy()[of_batch.isin(widths)]
    many = sizes[sizes > 1]
    return WidthClass(
        widths=widths,
        width_shares=tuple(float((of_batch == width).mean()) for width in widths),
        mixture=log_normal_mixture(np.log(mine["duration_s"].to_numpy()), parts),
        failed_share=float(fate["failed"]),
        killed_share=float(fate["killed"]),
        single_share=float((sizes == 1).mean()),
        batch_exponent=zeta_exponent(many, int(many.max())),
        batch_most=int(many.max()),
    )


def likeness(jobs: Any) -> float:
    """Intra-class correlation of the log durations inside batches (one-way analysis of variance)."""
    log_s = np.log(jobs["duration_s"])
    rest = log_s - log_s.groupby(jobs["width"]).transform("mean")
    keys = [jobs["tenant"], jobs["width"], jobs["batch"]]
    groups = rest.groupby(keys)
    within = float(((rest - groups.transform("mean")) ** 2).sum() / (len(jobs) - groups.ngroups))
    return 1.0 - within / float(rest.var())


def rhythm(start_s: npt.NDArray[np.float64]) -> tuple[tuple[float, ...], float]:
    """Relative rate of each hour of the day, and the gamma shape of the hours' variation beyond it and Poisson."""
    hour = (start_s // 3600).astype(int)
    shape = np.bincount(hour % 24, minlength=24) / len(hour) * 24
    count = np.bincount(hour)
    expected = count.mean() * shape[np.arange(len(count)) % 24]
    burst = float((expected**2).sum() / ((count - expected) ** 2 - expected).sum())
    return tuple(float(each) for each in shape), burst


def as_python(model: ArrivalModel) -> str:
    """The constants, each with its source."""

    def row(values: tuple[float, ...], digits: int = 3) -> str:
        return "(" + ", ".join(f"{value:.{digits}f}" for value in values) + ("," if len(values) == 1 else "") + ")"

    lines = [
        "FITTED = ArrivalModel(",
        "    # Widths, durations and batches (same virtual cluster and width, gaps up to 60 s): Philly 2017,",
        "    # 64,483 jobs; how they ended: 15,000 jobs of it.",
        "    classes=(",
    ]
    for each in model.classes:
        lines += [
            "        WidthClass(",
            f"            widths={each.widths!r},",
            f"            width_shares={row(each.width_shares, 5)},",
            "            mixture=(",
            *(f"                {row(part)}," for part in each.mixture),
            "            ),",
            f"            failed_share={each.failed_share:.3f},",
            f"            killed_share={each.killed_share:.3f},",
            f"            single_share={each.single_share:.3f},",
            f"            batch_exponent={each.batch_exponent:.3f},",
            f"            batch_most={each.batch_most},",
            "        ),",
        ]
    lines += [
        "    ),",
        "    # Similarity, gaps and rhythm of those batches: Philly 2017.",
        f"    batch_likeness={model.batch_likeness:.3f},",
        f"    gap_log_s={row(model.gap_log_s)},",
        "    hour_shape=(",
        *(f"        {', '.join(f'{each:.2f}' for each in model.hour_shape[at : at + 12])}," for at in (0, 12)),
        "    ),",
        f"    burst_shape={model.burst_shape:.2f},",
        "    # Batches of the ten busiest virtual clusters; jobs of the 50 busiest users: Philly 2017.",
        f"    tenant_exponent={model.tenant_exponent:.2f},",
        f"    user_exponent={model.user_exponent:.2f},",
        "    # Declared limits and interactive share of jobs with GPUs: MIT Supercloud 2021, Slurm accounting.",
        f"    unlimited_share={model.unlimited_share:.3f},",
        f"    over_estimate_log={row(model.over_estimate_log)},",
        f"    interactive_share={model.interactive_share:.3f},",
        ")",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the constants, or put them into the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with philly_jobs/ and mit_supercloud_slurm/")
    parser.add_argument("--write", action="store_true", help="put them into simulator/traces/arrivals.py")
    arguments = parser.parse_args()
    text = as_python(fit(arguments.data))
    if not arguments.write:
        print(text, end="")
        return
    module = ROOT / "simulator" / "traces" / "arrivals.py"
    source = module.read_text(encoding="utf-8")
    before, after = source.split(START)[0], source.split(END)[1]
    module.write_text(before + START + text + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
