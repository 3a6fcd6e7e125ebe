"""Burst forecasts on real traces, compared with the last value under the same conformal layer in the same run.

Usage: python -m benchmarks.bursts [--only servegen,azure,philly,gentd26] [--target value|peak] [--seed 0] [--quick]
[--json OUT]

Protocol: the last fifth of the time is the test, the fifth before it calibrates and chooses, the models are fitted to
the rest; a forecast is made at every step. Errors are medians over series, relative to the last value's; coverage is
the mean over series, its worst eighth over all series. ServeGen: two models, in all and their 12 heaviest clients each
(a window without a row is zero, the publisher omits those), 10 min. Azure: requests/s of the conversation service, 10
s. Philly: nodes in use, 1 min. GenTD26: requests, in all and of the 12 busiest services, 10 min.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kit import data_folder, judged, options, table, write_json
from models.backtest_bursts import backtest, document
from models.demand import Ask

Series = tuple[float, dict[str, np.ndarray]]

# horizon in seconds -> bars; all are ratios to the floor
SERVEGEN = {
    600: {"mae": 0.96, "pinball_p99": 0.35, "headroom_p99": 0.55},
    1800: {"mae": 0.92, "pinball_p99": 0.37, "headroom_p99": 0.52},
    3600: {"mae": 0.88, "pinball_p99": 0.39, "headroom_p99": 0.53},
}
AZURE = {10: {"mae": 0.85}, 60: {"mae": 0.88}, 120: {"mae": 0.85}}
PHILLY = {300: {"mae": 0.91}, 900: {"mae": 0.91}, 3600: {"mae": 0.91}}
GENTD26 = {600: {}, 1800: {}, 3600: {"mae": 0.85}}


def servegen(folder: Path) -> Series:
    """Requests/s of two models and their heaviest clients, in windows of 10 minutes."""
    import pandas as pd

    clients = pd.read_parquet(folder / "servegen_2025" / "client_windows.parquet")
    totals = pd.read_parquet(folder / "servegen_2025" / "model_rate_10min.parquet")
    found: dict[str, np.ndarray] = {}
    for model in ("language/m-large", "language/m-small"):
        total = totals[totals["model"] == model].set_index("t_s")["rate_rps"]
        found[model] = total.to_numpy(float)
        mine = clients[clients["model"] == model]
        heaviest = mine.groupby("tenant")["rate_rps"].sum().sort_values(ascending=False).index[:12]
        for tenant in heaviest:
            rate = mine[mine["tenant"] == tenant].set_index("t_s")["rate_rps"]
            found[str(tenant)] = rate.reindex(total.index).fillna(0.0).to_numpy(float)
    return 600.0, found


def azure(folder: Path) -> Series:
    """Requests/s of the conversation service in steps of 10 s, without the last, partial one."""
    from autopilot.app.backtests.from_requests import read_rates

    read = read_rates(folder / "azure_llm_2023" / "requests_conv.parquet", 10.0)
    return read.step_s, dict(zip(read.names, read.demand, strict=True))


def philly(folder: Path) -> Series:
    """Nodes with a job, minute by minute; a minute without a row is unknown."""
    import pandas as pd

    frame = pd.read_parquet(folder / "philly_jobs" / "active_nodes_1min.parquet").drop_duplicates("t_s")
    minutes = np.arange(frame["t_s"].min(), frame["t_s"].max() + 60, 60)
    return 60.0, {"nodes": frame.set_index("t_s")["active_nodes"].reindex(minutes).to_numpy(float)}


def gentd26(folder: Path) -> Series:
    """Requests in steps of 10 minutes, in all and of the busiest services; a step without one is zero."""
    import pandas as pd

    frame = pd.read_parquet(folder / "gentd26" / "diffusion_requests.parquet")
    place = (frame["t_s"] // 600).astype(int).to_numpy()
    steps = int(place.max())
    found = {"total": np.bincount(place, minlength=steps + 1)[:steps].astype(float)}
    for service in frame["service"].value_counts().index[:12]:
        found[str(service)] = np.bincount(place[frame["service"] == service], minlength=steps + 1)[:steps].astype(float)
    return 600.0, found


SETS: dict[str, tuple[Callable[[Path], Series], dict[int, dict[str, float]]]] = {
    "servegen": (servegen, SERVEGEN),
    "azure": (azure, AZURE),
    "philly": (philly, PHILLY),
    "gentd26": (gentd26, GENTD26),
}


def ratios(found: dict[str, Any]) -> dict[str, float]:
    """The figures that the bars apply to: ours / the floor's."""
    floor = found["floor"]
    return {
        "mae": found["mae_vs_naive"],
        "pinball_p90": found["pinball_p90"] / floor["pinball_p90"],
        "pinball_p99": found["pinball_p99"] / floor["pinball_p99"],
        "headroom_p99": found["headroom_p99"] / floor["headroom_p99"],
    }


def show(name: str, written: dict[str, Any], bars: dict[int, dict[str, float]], *, strict: bool) -> bool:
    """Print one table; True when every bar is met. Bars apply to values; peaks are only printed."""
    rows, kept = [], True
    for (horizon_s, limits), found in zip(bars.items(), written["horizons"].values(), strict=True):
        relative = ratios(found)
        cells = [
            judged(relative[key], limits[key], least=False) if strict and key in limits else f"{relative[key]:.2f}"
            for key in ("mae", "pinball_p90", "pinball_p99", "headroom_p99")
        ]
        covered, worst = found["coverage_p99"], found["coverage_p99_worst_eighth"]
        kept &= all(relative[key] <= bar for key, bar in limits.items())
        if name == "servegen":
            kept &= 0.985 <= covered <= 0.995 and worst >= 0.96
        models = ", ".join(f"{model} {count}" for model, count in found["chosen"].items())
        rows.append(
            [
                f"{horizon_s:g} s",
                *cells,
                f"{found['coverage_p90']:.3f}",
                f"{covered:.4f}",
                f"{worst:.3f}",
                f"{found['headroom_p99']:.2f}",
                models,
            ]
        )
    print(
        f"\n{name}: {written['series']} series; fit {written['fit_cpu_s']:.0f} s, predict "
        f"{written['predict_cpu_s']:.1f} s of CPU"
    )
    table(
        (
            "horizon",
            "MAE/naive",
            "pinball .9",
            "pinball .99",
            "headroom",
            "cover .9",
            "cover .99",
            "worst 1/8",
            "bound/mean",
            "chosen",
        ),
        rows,
    )
    return kept or not strict


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one table per set of traces; 1 when a bar is missed. `--quick`: Azure alone."""
    given = options(str(__doc__), arguments, only=",".join(SETS), target="value", seed=0)
    names = ["azure"] if given.quick else given.only.split(",")
    figures: dict[str, Any] = {"schema": "gpu-autopilot/benchmark-bursts/1", "target": given.target}
    kept = True
    for name in names:
        reader, bars = SETS[name]
        try:
            step_s, series = reader(data_folder())
        except FileNotFoundError as error:
            print(f"SKIPPED {name}: {error.filename} is absent; docs/data-sources.md names its publisher")
            continue
        ask = Ask(step_s, tuple(round(each / step_s) for each in bars), peak=given.target == "peak")
        values = np.array(list(series.values()))
        run = backtest(list(series), values, ask, given.seed, time.process_time, lambda _done, _all, _words: None)
        figures[name] = document(run)
        kept &= show(name, figures[name], bars, strict=given.target == "value")
    write_json(given.json, figures)
    return int(not kept)


if __name__ == "__main__":
    raise SystemExit(main())
