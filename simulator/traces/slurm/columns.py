"""The cells of an accounting as numbers, and the identity of its rows: jobs, steps, tasks of arrays, components."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autopilot.core.model.errors import InputError, unknown_name
from autopilot.core.model.units import counted
from simulator.traces.job_trace import Floats
from simulator.traces.slurm.fields import ASK, LISTS, OURS, field_of
from simulator.traces.slurm.text import FREE, Rows
from simulator.traces.times import read_amounts

if TYPE_CHECKING:
    import pandas as pd

MOST_TASKS = 1_000_000


@dataclass(slots=True)
class Accounting:
    """The table, its omissions, and remarks. `dated`: its times count from 1970."""

    frame: pd.DataFrame
    rows_read: int
    dropped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    dated: bool = True


def frame_of(rows: Rows, path: Path, columns: Mapping[str, str]) -> pd.DataFrame:
    """The cells under the names of the fields. Columns mapped by `columns` are read from there."""
    import pandas as pd

    whole = pd.DataFrame(rows.cells, columns=pd.Index(range(len(rows.headers))), dtype=object)
    frame = pd.DataFrame({"row": np.arange(len(whole))}, index=[line - 2 for line in rows.lines])
    for at, header in enumerate(rows.headers):
        name = field_of(header)
        if name and name not in frame:
            cells = whole[at]
            frame[name] = (cells if name in FREE else cells.str.strip()).to_numpy(dtype=object)
    for ours, theirs in columns.items():
        plain = theirs.removesuffix("%").rstrip()
        if plain not in rows.headers:
            raise InputError(f"--columns: {path} has no column {plain!r}; {unknown_name(plain, rows.headers)}")
        mapped = whole[rows.headers.index(plain)].str.strip().to_numpy(dtype=object)
        target = OURS.get(ours, f"mapped {ours}")
        if ours == "gpus":
            frame = frame.drop(columns=[name for name in (*LISTS, "gpus") if name in frame])
            target = "alloctres" if pd.Series(mapped).str.contains("=|gpu", regex=True).any() else "gpus"
        elif ours == "duration_s":
            frame = frame.drop(columns=[name for name in ("elapsedraw",) if name in frame])
        elif ours == "limit_s":
            frame = frame.drop(columns=[name for name in ("timelimitraw",) if name in frame])
        frame[target] = mapped
    return frame


def notes_of(rows: Rows, encoding: str) -> list[str]:
    """Remarks on the reading of the text, if any."""
    notes = []
    if rows.repaired:
        notes.append(f"{counted(rows.repaired, 'row')} repaired: a name or comment holds the separator or a new line")
    if rows.broken:
        first = ", ".join(str(line) for line in rows.broken[:3])
        notes.append(f"{counted(len(rows.broken), 'line is|lines are')} no row and skipped (first: {first})")
    if encoding == "latin-1":
        notes.append("the text is no UTF-8 and was read as Latin-1")
    names = {";": "a semicolon", "\t": "a tab", "|": "a vertical bar", ",": "a comma"}
    if rows.separator:
        notes.append(f"the columns are separated by {names.get(rows.separator, repr(rows.separator))}")
    return notes


def check_fields(frame: pd.DataFrame, path: Path) -> None:
    """Raise `InputError` if an indispensable field is missing."""
    missing = [name for name in ("Submit", "Start", "End") if name.lower() not in frame]
    if "jobid" not in frame and "jobidraw" not in frame:
        missing.insert(0, "JobID")
    if "state" not in frame:
        missing.append("State")
    if missing == ["End"] and {"elapsed", "elapsedraw"} & set(frame.columns):
        missing = []
    if missing:
        raise InputError(f"{path}: the accounting has no {', '.join(missing)} (sacct -l lacks times): ask for {ASK}")
    if not {"gpus", *LISTS} & set(frame.columns):
        raise InputError(f"{path}: no column is read as gpus: ask sacct for AllocTRES and ReqTRES: {ASK}")


def read_numbers(frame: pd.DataFrame, path: Path, label: Any) -> None:
    """Run times, suspensions and limits in seconds, and counts; NaN if unknown."""

    def amounts(name: str, *, clock: bool = True) -> Floats:
        if name not in frame:
            return np.full(len(frame), np.nan)
        cells = frame[name].where(~frame[name].str.upper().isin(["INVALID", "NOT_SET"]), "")
        return np.array(read_amounts(cells, name, path, label, clock=clock), np.float64)

    raw = amounts("elapsedraw")
    frame["elapsed_s"] = np.where(np.isnan(raw), amounts("elapsed"), raw)
    frame["suspended_s"] = amounts("suspended")
    minutes = amounts("timelimitraw")
    frame["limit_s"] = np.where(np.isnan(minutes), amounts("timelimit"), minutes * 60)
    for name, sources in {
        "nodes": ("allocnodes", "nnodes", "reqnodes"),
        "cpus": ("alloccpus", "ncpus", "reqcpus"),
        "plain_gpus": ("gpus",),
    }.items():
        value = np.full(len(frame), np.nan)
        for each in (source for source in sources if source in frame):
            cells = frame[each].str.extract(r"^(\d+(?:\.\d+)?)([KMG]?)$")
            number = cells[0].astype("float64") * cells[1].map({"K": 1e3, "M": 1e6, "G": 1e9}).fillna(1.0)
            value = np.where(value > 0, value, number.to_numpy(np.float64))
        frame[name] = value if name == "plain_gpus" else np.where(value > 0, value, np.nan)


def drop_steps(found: Accounting) -> None:
    """Steps are parts of their jobs."""
    name = "jobid" if "jobid" in found.frame else "jobidraw"
    steps = found.frame[name].str.contains(".", regex=False).to_numpy(dtype=bool)
    if steps.any() and not steps.all():
        found.frame = found.frame[~steps].copy()
        found.notes.append(f"{counted(int(steps.sum()), 'job step')} dropped (their job counts)")


def name_rows(found: Accounting) -> None:
    """`id`, `gang` and `order` of each row; a pending array becomes a row for each task."""
    frame = found.frame
    ids = frame["jobid"] if "jobid" in frame else frame["jobidraw"]
    if "jobidraw" in frame:
        ids = ids.where(ids != "", frame["jobidraw"])
    parts = ids.str.extract(r"^(\d+)(?:_(\d+)|_\[([^\]]*)\]?)?(?:\+(\d+))?$")
    prefix = _clusters(found)
    frame["gang"] = np.where(parts[3].notna(), prefix + parts[0].fillna(""), "")
    frame["order"] = parts[0].astype("float64").fillna(np.inf)
    folded = parts[2].notna().to_numpy(dtype=bool)
    frame["id"] = prefix + ids
    if folded.any():
        tasks = [tasks_of(spec) if isinstance(spec, str) else [] for spec in parts[2].tolist()]
        if sum(len(each) for each in tasks) <= MOST_TASKS:
            whole = (prefix + parts[0].fillna("")).tolist()
            frame["id"] = [
                [f"{array}_{task}" for task in each] if each else [plain]
                for array, each, plain in zip(whole, tasks, frame["id"].tolist(), strict=True)
            ]
            found.frame = frame.explode("id")
            found.notes.append(f"{counted(int(folded.sum()), 'array')} counted by task")


def _clusters(found: Accounting) -> Any:
    """The prefix to tell the job numbers of several clusters apart."""
    frame = found.frame
    if "cluster" not in frame or frame["cluster"].nunique() < 2:
        return ""
    found.notes.append(f"{frame['cluster'].nunique()} clusters in one file: job ids begin with theirs")
    return frame["cluster"] + ":"


def tasks_of(spec: str) -> list[int]:
    """The tasks of a pending array: `0-7%2`, `1,4,8-12:2`, or the mask `0xFF`; empty if it is unreadable."""
    spec = spec.partition("%")[0].strip()
    if re.fullmatch(r"0x[0-9A-Fa-f]{1,300000}", spec):
        mask = bin(int(spec, 16))[:1:-1]
        return [at for at, bit in enumerate(mask) if bit == "1"]
    tasks: list[int] = []
    for part in spec.split(","):
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", part.strip().rstrip("."))
        if found is not None:
            first, last = int(found[1]), int(found[2] or found[1])
            tasks += range(first, min(last, first + MOST_TASKS) + 1, int(found[3] or 1) or 1)
    return tasks
