"""Rows of one job: overlapping dumps, runs of a requeued job, and parts of a resized one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from autopilot.core.model.units import counted

if TYPE_CHECKING:
    import pandas as pd

CLOCK_CHANGE_S = 3600.0
"""By how much local times go back where clocks change."""


class Table(Protocol):
    """The holder of the rows."""

    frame: pd.DataFrame


def keep_order(frame: pd.DataFrame) -> None:
    """Local times of an unknown zone: a start up to an hour before its submit is a change of the clocks."""
    late_s = (frame["submit_s"] - frame["start_s"]).to_numpy(np.float64)
    frame["start_s"] += np.where((late_s > 0) & (late_s <= CLOCK_CHANGE_S), late_s, 0.0)


def keep_ends(frame: pd.DataFrame) -> None:
    """The same for ends: none before the start and the run time."""
    least_s = frame["start_s"] + frame["duration_s"]
    frame["end_s"] = frame["end_s"].where(~(frame["end_s"] < least_s), least_s)


def join_dumps(found: Table) -> list[str]:
    """Drop rows repeated by a later dump: of equal ids and submit times the fullest one counts."""
    frame = found.frame
    doubled = frame.duplicated(["id", "submit_s"], keep=False).to_numpy(dtype=bool)
    if not doubled.any():
        return []
    dropped = np.zeros(len(frame), dtype=bool)
    mine = frame[doubled].assign(at=np.flatnonzero(doubled))
    for _, rows in mine.groupby(["id", "submit_s"], sort=False, dropna=False):
        known: dict[float, int] = {}
        waits = rows["start_s"].isna().to_numpy(dtype=bool)
        for at, start, end, waiting in zip(rows["at"], rows["start_s"], rows["end_s"], waits, strict=True):
            if waiting:
                dropped[at] = not waits.all() or at != rows["at"].iloc[-1]
                continue
            other = known.get(start)
            if other is not None:
                worse = at if np.isnan(end) and not np.isnan(frame["end_s"].iloc[other]) else other
                dropped[worse] = True
                known[start] = at if worse == other else other
            else:
                known[start] = at
    if not dropped.any():
        return []
    found.frame = frame[~dropped].copy()
    return [f"{counted(int(dropped.sum()), 'row repeats|rows repeat')} another one, and are dropped"]


def count_runs(found: Table) -> list[str]:
    """Give each row `name_of_row` (`59#2`: its second row), `run_of`, `run`, and `part`: a later part of a resized job.

    A part begins at a resize; sacct prints the start of the whole job, and the change as Submit.
    """
    frame = found.frame = found.frame.copy()
    rows = len(frame)
    again = frame["id"].duplicated(keep=False).to_numpy(dtype=bool)
    names, run_of, run = frame["id"].to_numpy(dtype=object).copy(), np.full(rows, "", object), np.full(rows, np.nan)
    part = np.zeros(rows, dtype=bool)
    submit, eligible, start = (
        frame[name].to_numpy(np.float64).copy() for name in ("submit_s", "eligible_s", "start_s")
    )
    jobs = 0
    if again.any():
        owner = [f"{user}\0{name}" for user, name in zip(_cells(frame, "user"), _cells(frame, "jobname"), strict=True)]
        states = frame["status"].tolist()
        order = np.lexsort((np.nan_to_num(start, nan=np.inf), np.nan_to_num(submit, nan=-np.inf)))
        last: dict[str, int] = {}
        count: dict[str, int] = {}
        for row in (int(each) for each in order if again[each]):
            job = str(frame["id"].iloc[row])
            count[job] = count.get(job, 0) + 1
            if count[job] > 1:
                names[row] = f"{job}#{count[job]}"
            before = last.get(job)
            last[job] = row
            if before is None or owner[before] != owner[row]:
                run_of[row], run[row] = names[row], 1
                continue
            jobs += run_of[before] == names[before] and run[before] == 1
            run_of[row], run[row] = run_of[before], run[before] + 1
            if states[before] == "resizing":
                part[row], run[row] = True, run[before]
                start[row] = max(start[row], submit[row]) if not np.isnan(submit[row]) else start[row]
                submit[row], eligible[row] = submit[before], eligible[before]
    frame["name_of_row"], frame["part"] = names, part
    alone = {name for name in set(run_of[again].tolist()) if (run_of == name).sum() == 1} if again.any() else set()
    frame["run_of"] = np.where(np.isin(run_of.astype(str), sorted(alone)), "", run_of) if alone else run_of
    frame["run"] = np.where(frame["run_of"] == "", np.nan, run)
    frame["submit_s"], frame["eligible_s"], frame["start_s"] = submit, eligible, start
    notes = []
    if jobs:
        notes.append(
            f"{counted(int(jobs), 'job has|jobs have')} several rows (requeued or resized), told apart as ID#2"
        )
    return notes


def _cells(frame: pd.DataFrame, name: str) -> list[str]:
    return [str(cell) for cell in frame[name].tolist()] if name in frame else [""] * len(frame)
