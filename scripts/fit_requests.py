"""Fits the constants of synthetic requests to public traces and prints them.

Usage: python -m scripts.fit_requests [DATA_DIR]     (default ../shared/data)

Prints the rows of `SHAPES` in simulator/inference/synthetic_requests.py. Sources, one per row:
- servegen_2025: Alibaba ServeGen (NSDI'26), 10-minute statistics of 10 days (r1: one day).
  Daily shape: least squares of log rate on two harmonics of the day; noise: its residual.
  Gap CV: median over client windows, weighted by requests. Tokens: log-normal from each
  client's p50 and p90, pooled by the client's mean rate (within plus between variance).
- azure_llm_2023: Azure conversation service, 58 minutes. Gap CV: inside one-minute windows,
  weighted by requests. Tokens: mean and deviation of the logarithm.
- mooncake_2025: Kimi conversation, 59 minutes, time stamps in 3 s steps, so that gaps are not
  seen: gap CV = sqrt(variance / mean) of the counts per 30 s, the limit of a renewal process.
The two one-hour traces show no day: their daily shape and noise are those of m-large.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from autopilot.core.model.errors import InputError
from simulator.inference.synthetic_requests import DAY_S, PERIOD_S, RequestShape

Floats = NDArray[np.float64]
Z90 = 1.2815515594600038  # 90 % point of the standard normal distribution
SERVEGEN = {"m-large": "language/m-large", "m-small": "language/m-small", "r1": "reason/deepseek-r1"}


def weighted_median(values: Floats, weights: Floats) -> float:
    """The value at half of the weight."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def fit_day(t_s: Floats, rate_rps: Floats) -> tuple[tuple[float, float, float, float], float, float]:
    """(cos 1, sin 1, cos 2, sin 2), noise deviation and noise correlation of the log rate."""
    seen = rate_rps > 0
    t, log_rate = t_s[seen], np.log(rate_rps[seen])
    angle = 2 * np.pi * t / DAY_S
    terms = np.column_stack([np.ones(len(t)), np.cos(angle), np.sin(angle), np.cos(2 * angle), np.sin(2 * angle)])
    weights = np.linalg.lstsq(terms, log_rate, rcond=None)[0]
    noise = log_rate - terms @ weights
    next_to = np.diff(t) == PERIOD_S
    corr = float(np.corrcoef(noise[:-1][next_to], noise[1:][next_to])[0, 1])
    cos_1, sin_1, cos_2, sin_2 = (float(w) for w in weights[1:])
    return (cos_1, sin_1, cos_2, sin_2), float(noise.std()), corr


def fit_servegen(folder: Path, model: str) -> RequestShape:
    """One model of the ServeGen data."""
    rates = pd.read_parquet(folder / "model_rate_10min.parquet")
    rates = rates[rates["model"] == model].sort_values("t_s")
    daily, noise_sd, noise_corr = fit_day(rates["t_s"].to_numpy(np.float64), rates["rate_rps"].to_numpy(np.float64))
    windows = pd.read_parquet(folder / "client_windows.parquet")
    windows = windows[windows["model"] == model]
    client_rate = windows.groupby("tenant")["rate_rps"].sum()
    tokens = pd.read_parquet(folder / "client_token_quantiles.parquet")
    tokens = tokens[tokens["model"] == model].dropna()
    tokens = tokens.assign(weight=tokens["tenant"].map(client_rate)).dropna()
    fitted = [fit_pooled_tokens(tokens, side) for side in ("in", "out")]
    return RequestShape(
        daily=daily,
        noise_sd=noise_sd,
        noise_corr=noise_corr,
        gap_cv=weighted_median(windows["cv"].to_numpy(np.float64), windows["rate_rps"].to_numpy(np.float64)),
        input_log_mean=fitted[0][0],
        input_log_sd=fitted[0][1],
        input_max=fitted[0][2],
        output_log_mean=fitted[1][0],
        output_log_sd=fitted[1][1],
        output_max=fitted[1][2],
    )


def fit_pooled_tokens(tokens: pd.DataFrame, side: str) -> tuple[float, float, int]:
    """Log mean, log deviation and largest p99 of a mixture of log-normal clients."""
    weight = tokens["weight"].to_numpy(np.float64)
    median = np.log(np.maximum(tokens[f"{side}_p50"].to_numpy(np.float64), 1))
    p90 = np.log(np.maximum(tokens[f"{side}_p90"].to_numpy(np.float64), 1))
    mean = np.average(median, weights=weight)
    within = np.average(((p90 - median) / Z90) ** 2, weights=weight)
    between = np.average((median - mean) ** 2, weights=weight)
    return float(mean), float(np.sqrt(within + between)), int(tokens[f"{side}_p99"].max())


def fit_log_normal(tokens: Floats) -> tuple[float, float, int]:
    """Log mean, log deviation and largest of token counts seen one by one."""
    logs = np.log(np.maximum(tokens, 1))
    return float(logs.mean()), float(logs.std()), int(tokens.max())


def cv_inside_minutes(t_s: Floats) -> float:
    """CV of gaps, each divided by the mean gap of its minute, so that slow changes do not count."""
    gaps, minute = np.diff(t_s), (t_s[1:] // 60).astype(np.int64)
    count = np.bincount(minute)
    mean = np.bincount(minute, weights=gaps) / np.maximum(count, 1)
    relative = gaps[count[minute] >= 30] / mean[minute][count[minute] >= 30]
    return float(relative.std())


def cv_of_counts(t_s: Floats, step_s: float) -> float:
    """sqrt(variance / mean) of the counts per `step_s`, the last, cut one left out."""
    counts = np.bincount((t_s // step_s).astype(np.int64))[:-1]
    return float(np.sqrt(counts.var() / counts.mean()))


def fit_hour(path: Path, day: RequestShape, stepped: bool) -> RequestShape:
    """A one-hour trace of single requests, with the daily shape and noise of `day`."""
    frame = pd.read_parquet(path)
    t_s = frame["t_s"].to_numpy(np.float64)
    inputs = fit_log_normal(frame["input_tokens"].to_numpy(np.float64))
    outputs = fit_log_normal(frame["output_tokens"].to_numpy(np.float64))
    return RequestShape(
        daily=day.daily,
        noise_sd=day.noise_sd,
        noise_corr=day.noise_corr,
        gap_cv=cv_of_counts(t_s, 30.0) if stepped else cv_inside_minutes(t_s),
        input_log_mean=inputs[0],
        input_log_sd=inputs[1],
        input_max=inputs[2],
        output_log_mean=outputs[0],
        output_log_sd=outputs[1],
        output_max=outputs[2],
    )


def fit_all(data: Path) -> dict[str, RequestShape]:
    """Every row of `SHAPES`; raises `InputError` without the traces."""
    if not (data / "servegen_2025").is_dir():
        raise InputError(f"{data}: no folder servegen_2025 in it; name the folder of the public traces")
    shapes = {name: fit_servegen(data / "servegen_2025", model) for name, model in SERVEGEN.items()}
    day = shapes["m-large"]
    shapes["azure"] = fit_hour(data / "azure_llm_2023" / "requests_conv.parquet", day, stepped=False)
    shapes["mooncake"] = fit_hour(data / "mooncake_2025" / "requests_conversation.parquet", day, stepped=True)
    return shapes


def main() -> None:
    """Print the rows of `SHAPES`."""
    data = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/data")
    try:
        shapes = fit_all(data)
    except InputError as error:
        print(f"fit_requests: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    for name, shape in shapes.items():
        print(f'    "{name}": RequestShape(')
        for column in shape.__dataclass_fields__:
            value = getattr(shape, column)
            if isinstance(value, tuple):
                value = f"({', '.join(f'{part:.3f}' for part in value)})"
            text = f"{value:.3f}" if isinstance(value, float) else str(value)
            print(f"        {column}={text},")
        print("    ),")


if __name__ == "__main__":
    main()
