"""Jobs that wait or run at the time of the dump: their run time in a replay, and its assumptions."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from autopilot.core.model.units import counted
from simulator.traces.job_trace import Floats

if TYPE_CHECKING:
    import pandas as pd

WAITS = ("pending", "requeue_hold", "special_exit")
GOES = ("running", "suspended", "configuring", "completing", "stopped", "signaling", "stage_out")
LEAST_LIKE = 3
"""Ended jobs that are needed to say how long one like them runs."""
LIKE = (("user", "gpus"), ("user",), ("tenant",), ())
"""What jobs have in common that run alike, the closest first."""
DATED_FROM_S = 1e9


def let_open_jobs_run(frame: pd.DataFrame, notes: list[str]) -> None:
    """Give open jobs a run time: the median of ended jobs like them that ran longer than they did so far, at most the
    limit; without such jobs the limit, and without a limit as long again as they ran.

    Jobs that wait for a hold or another job stay without one: they do not ask for GPUs yet.
    """
    if not {"duration_s", "status", "start_s"} <= set(frame.columns):
        return
    unknown = frame["duration_s"].isna()
    goes = (unknown & frame["status"].isin(GOES) & frame["start_s"].notna()).to_numpy(dtype=bool)
    waits = (unknown & frame["status"].isin(WAITS)).to_numpy(dtype=bool)
    held = np.zeros(len(frame), dtype=bool)
    if "eligible_s" in frame and frame["eligible_s"].notna().any():
        held = waits & frame["eligible_s"].isna().to_numpy(dtype=bool)
    rows = np.flatnonzero(goes | (waits & ~held))
    if not len(rows):
        return
    now_s = float(
        np.nanmax(frame[[name for name in ("submit_s", "start_s", "end_s") if name in frame]].to_numpy(float))
    )
    since_s = now_s - frame["start_s"].to_numpy(np.float64)
    stated_s = frame["so_far_s"].to_numpy(np.float64) if "so_far_s" in frame else np.full(len(frame), np.nan)
    so_far_s = np.where(goes, np.where(np.isnan(stated_s), since_s, stated_s), 0.0)
    limit_s = frame["limit_s"].to_numpy(np.float64) if "limit_s" in frame else np.full(len(frame), np.nan)
    alike = _RunTimes(frame)
    ways: Counter[str] = Counter()
    duration_s = frame["duration_s"].to_numpy(np.float64, copy=True)
    for row in rows.tolist():
        found_s = alike.longer_than(row, float(so_far_s[row]))
        way = "like" if not np.isnan(found_s) else "limit" if not np.isnan(limit_s[row]) else "again"
        if way == "again":
            found_s = 2 * so_far_s[row] if goes[row] else np.nan
        ways[way] += 1
        duration_s[row] = np.fmax(np.fmin(found_s, limit_s[row]), max(so_far_s[row], 1.0) if goes[row] else np.nan)
    frame["duration_s"] = duration_s
    when = f" ({datetime.fromtimestamp(now_s, UTC):%Y-%m-%d %H:%M} UTC)" if now_s >= DATED_FROM_S else ""
    running, waiting = int(goes.sum()), len(rows) - int(goes.sum())
    words = {
        "like": "the median of ended jobs like it that ran longer than it did so far, at most its limit",
        "limit": "its limit",
        "again": "as long again as it ran",
    }
    ways_words = "; ".join(f"{words[way]} ({ways[way]:,})" for way in words if ways[way])
    notes.append(
        f"{counted(running, 'job runs|jobs run')} and {counted(waiting, 'waits|wait')} for GPUs at the last time in "
        f"the file{when}; assumed run time: {ways_words}"
    )
    if held.any():
        asks = counted(
            int(held.sum()), "job waits for a hold or another job and asks|jobs wait for a hold or another job and ask"
        )
        notes.append(f"{asks} for no GPU")


class _RunTimes:
    """Run times of ended jobs by their common properties."""

    def __init__(self, frame: pd.DataFrame) -> None:
        """Those of all ended jobs."""
        self._keys = [
            list(zip(*(frame[name].tolist() for name in names), strict=True)) if names else [()] * len(frame)
            for names in LIKE
            if set(names) <= set(frame.columns)
        ]
        ended = np.flatnonzero((frame["duration_s"] >= 1).to_numpy(dtype=bool))
        duration_s = frame["duration_s"].to_numpy(np.float64)
        groups: list[dict[object, list[float]]] = [{} for _ in self._keys]
        for keys, mine in zip(self._keys, groups, strict=True):
            for row in ended.tolist():
                mine.setdefault(keys[row], []).append(float(duration_s[row]))
        self._sorted: list[dict[object, Floats]] = [
            {key: np.sort(np.array(values)) for key, values in mine.items()} for mine in groups
        ]

    def longer_than(self, row: int, so_far_s: float) -> float:
        """The median run time of jobs like this one with a longer run; NaN if they are too few."""
        for keys, groups in zip(self._keys, self._sorted, strict=True):
            values = groups.get(keys[row], np.zeros(0))
            longer = values[np.searchsorted(values, so_far_s, side="right") :]
            if len(longer) >= LEAST_LIKE:
                return float(np.median(longer))
        return float("nan")
