"""Turn accounting rows into jobs of a replay: components of a het job start together, the last run of a job counts.

Reads a Slurm dump, or the file written from it by `traces import slurm`, with the columns `eligible_s`,
`gang`, `run_of` and `run`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autopilot.core.model.units import counted
from simulator.traces.gpu_models import KNOWN_GPU_MODELS, models_like
from simulator.traces.slurm.open_jobs import let_open_jobs_run
from simulator.traces.table_files import number_array

if TYPE_CHECKING:
    import pandas as pd

_SUMMED = ("gpus", "nodes", "cpus", "shards")
_LAST = ("end_s", "duration_s", "start_s", "eligible_s", "submit_s")
SECONDS_PER_HOUR = 3600.0
LOST = "recorded_lost_gpu_s"
"""Work of the earlier runs of a requeued job, in GPU-seconds."""


@dataclass(frozen=True, slots=True)
class Site:
    """Facts missing from an accounting.

    `timezone`: of its dates (IANA name; empty: UTC). `partitions`: the GPU models of each. `any_model`: the cluster
    states no GPU model, so the models of the jobs do not count.
    """

    timezone: str = ""
    shards_per_gpu: int | None = None
    partitions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    any_model: bool = False


def jobs_of_rows(frame: pd.DataFrame, path: Path) -> tuple[pd.DataFrame, list[str]]:
    """The jobs, arriving at their eligibility, and notes."""
    notes: list[str] = []
    frame = frame.copy()
    for name in (each for each in ("eligible_s", *_LAST, "limit_s", "so_far_s", "run", *_SUMMED) if each in frame):
        frame[name] = number_array(frame, name, path)
    let_open_jobs_run(frame, notes)
    if "run_of" in frame and "run" in frame:
        frame = _last_runs(frame, notes)
    if "gang" in frame:
        frame = _join_components(frame, notes)
    if "eligible_s" in frame:
        _arrivals(frame, notes)
    return frame, notes


def _last_runs(frame: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """The last run of each job, arriving with the first; earlier ones are lost work."""
    several = frame["run_of"].notna() & frame["run"].notna() & (frame["run_of"] != "")
    if not several.any():
        return frame
    mine = frame[several]
    groups = mine.groupby("run_of", sort=False)
    last = groups["run"].transform("max")
    for name in ("submit_s", "eligible_s"):
        if name in frame:
            frame.loc[several, name] = groups[name].transform("min")
    later_part = mine.assign(start=mine["start_s"]).sort_values("start").duplicated(["run_of", "run"]).sort_index()
    parts = later_part.reindex(mine.index) if not mine.index.duplicated().any() else later_part
    resized = np.zeros(len(frame), dtype=bool)
    resized[np.flatnonzero(several)] = parts.to_numpy(dtype=bool)
    for name in (each for each in ("submit_s", "eligible_s") if each in frame):
        frame[name] = np.where(resized & frame["start_s"].notna(), frame["start_s"], frame[name])
    earlier = np.zeros(len(frame), dtype=bool)
    earlier[np.flatnonzero(several)] = (mine["run"] < last).to_numpy(dtype=bool)
    lost_gpu_s = float((frame["gpus"] * frame["duration_s"])[earlier].sum())
    if earlier.any():
        jobs = counted(int(frame["run_of"][earlier].nunique()), "requeued job counts|requeued jobs count")
        notes.append(
            f"{jobs} with the last run, from the first submit; earlier runs are work that was "
            f"lost: {lost_gpu_s / SECONDS_PER_HOUR:.1f} GPU-h"
        )
    if resized.any():
        notes.append(f"{counted(int(resized.sum()), 'part')} of resized jobs arrive when the part before ended")
    first_s = groups["start_s"].transform("min").to_numpy(np.float64)
    whole = several.to_numpy(dtype=bool) & ~resized
    frame.loc[whole, "start_s"] = first_s[whole[np.flatnonzero(several)]]
    lost = (mine["gpus"] * mine["duration_s"]).where(mine["run"] < last, 0.0).groupby(mine["run_of"]).transform("sum")
    frame[LOST] = 0.0
    frame.loc[whole, LOST] = lost.to_numpy(np.float64)[whole[np.flatnonzero(several)]]
    frame["job_id"] = np.where(several & ~earlier & ~resized, frame["run_of"], frame["job_id"])
    return frame[~earlier].copy()


def _join_components(frame: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Each heterogeneous job (`8+0`, `8+1`) as one gang, `8`."""
    import pandas as pd

    inside = (frame["gang"].notna() & (frame["gang"] != "")).to_numpy(dtype=bool)
    if not inside.any():
        return frame
    mine = frame[inside].copy()
    mine["at"] = np.arange(len(mine))
    mine["component"] = pd.to_numeric(mine["job_id"].str.extract(r"\+(\d+)")[0], errors="coerce")
    mine = mine.sort_values("component", kind="stable")
    groups = mine.groupby("gang", sort=False)
    whole = mine[~mine["gang"].duplicated()].set_index("gang")
    for name in (each for each in _SUMMED if each in mine):
        whole[name] = groups[name].apply(lambda values: values.sum(skipna=False))
    for name in (each for each in _LAST if each in mine):
        whole[name] = groups[name].max()
    for name in (each for each in ("gpu_type", "mig_profile", "partition") if each in mine):
        whole[name] = groups[name].apply(
            lambda values: "|".join(dict.fromkeys(str(v) for v in values if isinstance(v, str) and v))
        )
    whole["job_id"] = whole.index
    joined = whole.reset_index()[list(frame.columns)]
    joined.index = mine[~mine["gang"].duplicated()].index
    notes.append(f"the components of {counted(len(joined), 'heterogeneous job')} start together, as one gang each")
    return pd.concat([frame[~inside], joined]).sort_index(kind="stable")


def _arrivals(frame: pd.DataFrame, notes: list[str]) -> None:
    """A job arrives as soon as it may start: holds, begin times and dependencies before are no waiting for GPUs."""
    eligible = frame["eligible_s"].to_numpy(np.float64)
    start = frame["start_s"].to_numpy(np.float64) if "start_s" in frame else np.full(len(frame), np.nan)
    submit = frame["submit_s"].to_numpy(np.float64)
    arrives = np.where(
        np.isnan(eligible), submit, np.fmin(np.fmax(eligible, submit), np.where(np.isnan(start), np.inf, start))
    )
    later = int((arrives - submit >= 1).sum())
    if later:
        notes.append(
            f"{counted(later, 'job arrives|jobs arrive')} when they became eligible, not when they were submitted"
        )
    frame["submit_s"] = arrives


def hold_to_models(frame: pd.DataFrame, by_type: Mapping[str, int], site: Site) -> tuple[pd.DataFrame, list[str]]:
    """`gpu_type` in the names of the cluster: of the partition if `site` maps it, else of the accounting."""
    types = frame["gpu_type"].fillna("").astype(str) if "gpu_type" in frame else None
    notes: list[str] = []
    if types is not None:
        words: dict[str, Any] = {}
        for cell in types.unique():
            names = [name.strip() for name in cell.split("|") if name.strip()]
            found = dict.fromkeys(model for name in names for model in models_like(name, by_type))
            own = all(name in KNOWN_GPU_MODELS for name in names)
            words[cell] = "" if site.any_model and not own else "|".join(found)
        read = [f"{cell} is {words[cell]}" for cell in words if cell and words[cell] not in ("", cell)]
        dropped = [cell for cell in words if cell and not words[cell]]
        frame["gpu_type"] = types.map(words)
        notes += [f"GPU models: {'; '.join(read[:10])}"] if read else []
        if dropped:
            notes.append(
                f"the cluster is given as a shape: the GPU models of the jobs ({', '.join(dropped[:5])}) do not count"
            )
    if site.partitions and "partition" in frame:
        mapped = frame["partition"].fillna("").astype(str).map(lambda cell: _of_partitions(cell, site.partitions))
        old = frame.get("gpu_type", "")
        frame["gpu_type"] = mapped.where(mapped != "", old)
        notes.append(
            f"{counted(int((mapped != '').sum()), 'job is held|jobs are held')} to the GPU models of their partitions"
        )
    return frame, notes


def _of_partitions(cell: str, models: Mapping[str, tuple[str, ...]]) -> str:
    """The models of a partition, or of several joined by commas."""
    return "|".join(
        dict.fromkeys(model for name in cell.replace("|", ",").split(",") for model in models.get(name, ()))
    )
