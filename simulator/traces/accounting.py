"""What the rows of an accounting of Slurm are: jobs, steps of jobs, runs of one job, and components of one job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from autopilot.core.model.units import counted

if TYPE_CHECKING:
    import pandas as pd

_STEP = r"\.(?:batch|extern|interactive|\d+)(?:\+\d+)?$"
_COMPONENT = r"^(\d+)\+(\d+)$"
_SUMMED = ("gpus", "nodes", "cpus")
_LAST = ("end_s", "duration_s")


class Table(Protocol):
    """What holds the rows."""

    frame: pd.DataFrame


def drop_steps(own: Table) -> list[str]:
    """Drop the steps of jobs, which are parts of them; gives notes."""
    steps = own.frame["job_id"].astype("string").str.contains(_STEP, regex=True).fillna(False).to_numpy(dtype=bool)
    if not steps.any() or steps.all():
        return []
    own.frame = own.frame[~steps]
    return [f"{int(steps.sum()):,} job steps dropped (their job counts)"]


def last_runs(own: Table) -> list[str]:
    """Keep the last run of each job: with --duplicates a job that was requeued has a row for each run. Without, sacct
    shows the last one, too. Gives notes.
    """
    frame = own.frame
    if not frame["job_id"].duplicated().any() or "submit_s" not in frame.columns:
        return []
    began_s = frame["submit_s"].to_numpy(np.float64)
    order = np.argsort(np.nan_to_num(began_s, nan=-np.inf), kind="stable")
    earlier = frame["job_id"].iloc[order].duplicated(keep="last").to_numpy(dtype=bool)
    dropped = np.zeros(len(frame), dtype=bool)
    dropped[order] = earlier
    own.frame = frame[~dropped]
    rows = counted(int(dropped.sum()), "earlier row|earlier rows")
    return [f"{rows} of job IDs that occur again, by a requeue or anew, dropped (the last one counts)"]


def join_components(own: Table) -> list[str]:
    """Make the components of each heterogeneous job (`8+0`, `8+1`), which start together, one job: `8`. Gives notes."""
    import pandas as pd

    frame = own.frame
    parts = frame["job_id"].astype("string").str.extract(_COMPONENT)
    component = parts[0].notna().to_numpy(dtype=bool)
    if not component.any():
        return []
    mine, number = frame[component], parts[1][component].astype("int64")
    mine = mine.assign(job_id=parts[0][component]).iloc[np.argsort(number.to_numpy(), kind="stable")]
    groups = mine.groupby("job_id", sort=False)
    whole = mine[~mine["job_id"].duplicated()].set_index("job_id")
    for name in (each for each in _SUMMED if each in mine.columns):
        whole[name] = groups[name].apply(lambda values: values.sum(skipna=False))
    for name in (each for each in _LAST if each in mine.columns):
        whole[name] = groups[name].max()
    joined = whole.reset_index().set_axis(mine.index[~mine["job_id"].duplicated()], axis=0)
    attrs = frame.attrs
    own.frame = pd.concat([frame[~component], joined[frame.columns]]).sort_index()
    own.frame.attrs.update(attrs)
    return [f"the components of {counted(len(whole), 'heterogeneous job|heterogeneous jobs')} are one job each"]
