"""The shared part of the readers of public layouts: their result, their options, and times as seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autopilot.core.model.errors import InputError
from autopilot.core.model.units import counted
from simulator.traces.table_files import read_table, row_label
from simulator.traces.times import read_times

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The options of a caller. Only layouts with rates instead of requests draw by `seed`.

    `start_s`, `span_s` cut a window out of request traces (None: to the end), `rate_scale` in (0, 1]
    thins them. `timezone` (IANA name) is that of dates without one, as `sacct` prints them; empty: UTC.
    `shards_per_gpu` of an accounting; None: not known.
    """

    seed: int = 0
    start_s: float = 0.0
    span_s: float | None = None
    rate_scale: float = 1.0
    timezone: str = ""
    shards_per_gpu: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.rate_scale <= 1:
            raise InputError(f"rate scale: {self.rate_scale!r} is not allowed; write a number above 0 and at most 1")
        if not 0 <= self.start_s < float("inf"):
            raise InputError(f"start: {self.start_s!r} is not allowed; write seconds from 0 on")
        if self.span_s is not None and not 0 < self.span_s < float("inf"):
            raise InputError(f"span: {self.span_s!r} is not allowed; write seconds above 0")


@dataclass(slots=True)
class Imported:
    """The result of a layout: the table in our format, and all omissions, assumptions and remarks."""

    frame: pd.DataFrame
    rows_read: int
    dropped: dict[str, int] = field(default_factory=dict)
    assumed: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    cluster_yaml: str | None = None


def layout_error(path: Path, kind: str, known: Sequence[str], frame: pd.DataFrame) -> InputError:
    """The error for a file with the columns of no known layout of `kind`."""
    there = ", ".join(str(name) for name in list(frame.columns)[:20])
    return InputError(f"{path}: not a {kind} trace: the columns must be {' or '.join(known)}; the file has {there}")


def timestamps_s(frame: pd.DataFrame, name: str, path: Path) -> pd.Series[float]:
    """A column of times as seconds, dates since 1970 (NaN if unknown).

    Raises `InputError` naming the row of the first cell without a time, or with one of another kind.
    """
    import pandas as pd

    index = frame.index.to_numpy()
    times, _ = read_times(frame[name], name, path, lambda row: row_label(path, int(index[row])))
    return pd.Series(times, index=frame.index)


def read_layout(path: Path) -> pd.DataFrame:
    """The table at `path` with stripped column names."""
    frame = read_table(path)
    return frame.rename(columns=lambda name: str(name).strip())


def numbered(prefix: str, rows: int) -> list[str]:
    """`prefix-000000`, `prefix-000001`, ...: ids for layouts without any."""
    width = max(6, len(str(rows)))
    return [f"{prefix}-{number:0{width}d}" for number in range(rows)]


def window_of(times_s: Any, options: ImportOptions) -> Any:
    """Mask of the times inside the chosen window, counted from the first time."""
    from_start = times_s - np.nanmin(times_s)
    inside = from_start >= options.start_s
    if options.span_s is not None:
        inside &= from_start < options.start_s + options.span_s
    return inside


def thin(frame: pd.DataFrame, options: ImportOptions, notes: list[str]) -> pd.DataFrame:
    """The window of request rows chosen by the options, thinned to `rate_scale`; its start becomes 0."""
    inside = window_of(frame["t_s"].to_numpy(dtype=np.float64), options)
    if options.rate_scale < 1:
        inside &= np.random.default_rng(options.seed).random(len(frame)) < options.rate_scale
        notes.append(f"thinned to {options.rate_scale:g} of the requests (seed {options.seed})")
    if not inside.all():
        notes.append(f"{counted(int(len(frame) - inside.sum()), 'request')} outside the window or thinned out")
    kept: pd.DataFrame = frame[inside]
    return kept.assign(
        t_s=kept["t_s"].astype("float64") - float(frame["t_s"].astype("float64").min()) - options.start_s
    )
