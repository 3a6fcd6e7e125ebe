"""Requests with the bursts of real traces, for the services of scenario `bursts`.

ServeGen publishes the rate of each client in windows of ten minutes, not single requests. The hours of Azure and
Mooncake are single requests, too short to show how load changes over a day. So each service has the rate of one
ServeGen client and requests of the other two traces: their arrivals, carried to that rate with their own gaps (time is
stretched until the expected count is the trace's; Gerhardt & Nelson, 2009), and their lengths, in their order, repeated
when the hour is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from autopilot.core.model.errors import invariant

Floats = NDArray[np.float64]

WINDOW_S = 600.0
"""Length of ServeGen's windows."""

RISE = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Part of its rate that a service has in its first windows: a run begins mid-day with few replicas."""

CLIENTS = Path("servegen_2025", "client_windows.parquet")
LENGTHS = {
    "azure": Path("azure_llm_2023", "requests_conv.parquet"),
    "mooncake": Path("mooncake_2025", "requests_conversation.parquet"),
}


@dataclass(frozen=True, slots=True)
class Source:
    """Sources of one service: the `rank`-th heaviest client of a ServeGen model, and the trace of its requests."""

    service: str
    model: str
    rank: int
    lengths: str
    peak_rps: float  # its rate in its busiest ten minutes of the part that is played


def files(folder: Path) -> list[Path]:
    """The required trace files."""
    return [folder / CLIENTS, *(folder / each for each in LENGTHS.values())]


def client_rates(windows: pd.DataFrame, model: str, rank: int) -> Floats:
    """Requests/s of the `rank`-th heaviest client (0: the heaviest) of a model, window after window; 0 where it has
    none.
    """
    mine = windows[windows["model"] == model]
    total = mine.groupby("tenant")["rate_rps"].sum().sort_values(ascending=False, kind="stable")
    client = mine[mine["tenant"] == total.index[rank]]
    count = int(windows["t_s"].max() // WINDOW_S) + 1
    rates = np.zeros(count)
    rates[(client["t_s"].to_numpy() // WINDOW_S).astype(np.int64)] = client["rate_rps"].to_numpy(np.float64)
    return rates


def carried(t_s: Floats, rates_rps: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Arrivals at these rates, with the gaps of the arrivals `t_s`: (times, which of `t_s` each one is).

    `rates_rps` are of windows of ten minutes; between their middles the rate is a straight line. The i-th arrival comes
    when the expected count reaches the i-th of `t_s`, counted in mean gaps; after the last the first follows again.
    """
    invariant(len(t_s) > 1 and bool((np.diff(t_s) >= 0).all()), "arrivals are sorted, and more than one")
    ends_s = np.arange(len(rates_rps) + 1) * WINDOW_S
    middles_s = ends_s[:-1] + WINDOW_S / 2
    grid_s = np.arange(0.0, ends_s[-1] + 1.0, 10.0)
    rate = np.interp(grid_s, middles_s, rates_rps)
    expected = np.concatenate([[0.0], np.cumsum((rate[1:] + rate[:-1]) / 2 * np.diff(grid_s))])
    marks = (t_s - t_s[0]) / (t_s[-1] - t_s[0]) * (len(t_s) - 1)  # in mean gaps
    rounds = int(expected[-1] // len(t_s)) + 1
    every = (marks[None, :] + len(t_s) * np.arange(rounds)[:, None]).ravel()
    every = every[every <= expected[-1]]
    return np.interp(every, expected, grid_s), np.arange(len(every), dtype=np.int64) % len(t_s)


def requests(
    folder: Path, sources: tuple[Source, ...], from_s: float, length_s: float, starts_s: float
) -> pd.DataFrame:
    """The requests of all services from `from_s` of the ServeGen days on, nothing before `starts_s` of the run."""
    windows = pd.read_parquet(folder / CLIENTS)
    first, count = int(from_s // WINDOW_S), int(length_s // WINDOW_S)
    parts = []
    for source in sources:
        rates = client_rates(windows, source.model, source.rank)[first : first + count]
        rates = rates * source.peak_rps / max(float(rates.max()), 1e-9)
        rates[: len(RISE)] *= RISE[:count]
        trace = pd.read_parquet(folder / LENGTHS[source.lengths]).sort_values("t_s", kind="stable")
        t_s, rows = carried(trace["t_s"].to_numpy(np.float64), rates)
        part = pd.DataFrame({"t_s": t_s, "service": source.service})
        for column in ("input_tokens", "output_tokens"):
            part[column] = trace[column].to_numpy(np.int64)[rows]
        parts.append(part[part["t_s"] >= starts_s])
    return pd.concat(parts, ignore_index=True).sort_values("t_s", kind="stable", ignore_index=True)
