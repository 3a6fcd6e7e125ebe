"""ServeGen (Alibaba Model Studio): rates of clients in 10-minute windows, made into requests again.

Input is `client_windows` in our columns, or a folder of the publisher (`data/language/m-large`) with
`chunk-N-trace.csv` and `chunk-N-dataset.json`. In each window a client has as many requests as its
published rate says; the gaps between them are drawn from the published Gamma or Weibull shape and
scaled to fill the window, which keeps count and burstiness. Tokens are drawn from the client's
published distribution of the hour. One seed gives the same requests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autopilot.core.model.errors import InputError
from simulator.traces.importers.common import Imported, ImportOptions, layout_error, read_layout
from simulator.traces.importers.servegen_tokens import TokenTable, tokens_of_folder, tokens_of_table
from simulator.traces.table_files import Progress, number_column, read_table

WINDOW_S = 600.0
DEFAULT_SPAN_S = 3600.0
MOST_REQUESTS = 20_000_000
TRACE_COLUMNS = ("t_s", "rate_rps", "cv", "pattern", "p1", "p2")
TABLE_COLUMNS = ("t_s", "model", "tenant", "rate_rps", "pattern", "p1")


def read(path: Path, options: ImportOptions, progress: Progress) -> Imported:
    """Draw the requests of a window (default: one hour from the start) at `rate_scale` of the clients' rates."""
    windows, tokens = _windows_of_folder(path) if path.is_dir() else _windows_of_table(path)
    span_s = DEFAULT_SPAN_S if options.span_s is None else options.span_s
    end_s = options.start_s + span_s
    inside = (windows["t_s"] + WINDOW_S > options.start_s) & (windows["t_s"] < end_s) & (windows["rate_rps"] > 0)
    chosen = windows[inside].sort_values(["t_s", "model", "tenant"], kind="stable").reset_index(drop=True)
    rng = np.random.default_rng(options.seed)
    expected = chosen["rate_rps"].to_numpy(dtype=np.float64) * WINDOW_S * options.rate_scale
    if not len(chosen) or expected.sum() < 1:
        raise InputError(f"{path}: no request between {options.start_s:,.0f} s and {end_s:,.0f} s")
    if expected.sum() > MOST_REQUESTS:
        raise InputError(
            f"{path}: about {expected.sum():,.0f} requests; choose a shorter span or a smaller rate scale "
            f"(at most {MOST_REQUESTS:,} are written)"
        )
    # A published rate is a count over the window, so it gives whole requests; thinning makes it random.
    count = np.rint(expected) if options.rate_scale == 1 else rng.poisson(expected)
    progress("drawing arrivals", 0.1)
    window, t_s = _arrivals(rng, chosen, count.astype(np.int64))
    keep = (t_s >= options.start_s) & (t_s < end_s)
    order = np.argsort(t_s[keep], kind="stable")
    window, t_s = window[keep][order], t_s[keep][order]
    progress("drawing tokens", 0.5)
    frame = _requests(rng, chosen, window, t_s, tokens, options.start_s)
    notes = [
        f"drawn with seed {options.seed} from {len(chosen):,} client windows, {options.start_s:,.0f} s to "
        f"{end_s:,.0f} s",
        "counts and arrival shapes are published; the single requests are not",
    ]
    if options.rate_scale < 1:
        notes.append(f"{options.rate_scale:g} of the published rates, with the published burstiness")
    return Imported(frame, len(windows), notes=notes)


def _windows_of_table(path: Path) -> tuple[Any, TokenTable]:
    frame = read_layout(path)
    if not set(TABLE_COLUMNS) <= set(frame.columns):
        raise layout_error(path, "servegen", (", ".join(TABLE_COLUMNS), "a folder of chunk-N-trace.csv files"), frame)
    for name in ("t_s", "rate_rps", "p1"):
        frame[name] = number_column(frame, name, path)
    quantiles = path.with_name("client_token_quantiles.parquet")
    return frame, tokens_of_table(read_table(quantiles) if quantiles.exists() else None)


def _windows_of_folder(path: Path) -> tuple[Any, TokenTable]:
    import pandas as pd

    model = "/".join(path.resolve().parts[-2:])
    parts = []
    for file in sorted(path.glob("chunk-*-trace.csv"), key=lambda each: int(each.name.split("-")[1])):
        part = read_table(file, names=TRACE_COLUMNS)
        for name in ("t_s", "rate_rps", "p1"):
            part[name] = number_column(part, name, file)
        part["model"], part["tenant"] = model, f"{model}#{file.name.split('-')[1]}"
        parts.append(part[part["rate_rps"] > 0])
    if not parts:
        raise InputError(f"{path}: no chunk-N-trace.csv in the folder; give data/CATEGORY/MODEL of ServeGen")
    return pd.concat(parts, ignore_index=True), tokens_of_folder(path, model)


def _arrivals(
    rng: np.random.Generator, windows: Any, count: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """(row of its window, time) of every request: `count + 1` gaps fill each window."""
    shape = np.maximum(windows["p1"].to_numpy(dtype=np.float64), 1e-3)
    weibull = (windows["pattern"].astype(str) == "Weibull").to_numpy()
    poisson = ~weibull & (windows["pattern"].astype(str) != "Gamma").to_numpy()
    shape[poisson] = 1.0
    row = np.repeat(np.arange(len(count)), count + 1)
    gaps = np.where(weibull[row], rng.weibull(shape[row]), rng.standard_gamma(shape[row])) + 1e-12
    sums = np.cumsum(gaps)
    last = np.cumsum(count + 1) - 1
    before = np.concatenate([[0.0], sums[last[:-1]]])
    length = sums[last] - before
    inside = (sums - before[row]) / length[row]
    is_request = np.ones(len(row), dtype=bool)
    is_request[last] = False
    start_s = windows["t_s"].to_numpy(dtype=np.float64)
    return row[is_request], (start_s[row] + inside * WINDOW_S)[is_request]


def _requests(
    rng: np.random.Generator,
    windows: Any,
    window: npt.NDArray[np.int64],
    t_s: npt.NDArray[np.float64],
    tokens: TokenTable,
    start_s: float,
) -> Any:
    import pandas as pd

    tenant = windows["tenant"].astype(str).to_numpy(dtype=object)
    model = windows["model"].astype(str).to_numpy(dtype=object)
    requests = pd.DataFrame({"t_s": np.round(t_s - start_s, 6), "service": model[window]})
    hour = windows["t_s"].to_numpy(dtype=np.float64)
    for column, values in tokens.draw(rng, tenant, model, hour, window).items():
        requests[column] = values
    requests["tenant"] = tenant[window]
    return requests
