"""Job files: read into columns, checked row by row, ready for replay; and written again.

The format has one row per job (columns in `columns.JOB_COLUMNS`), CSV or Parquet by the suffix. Its resolution is whole
seconds: after shifting the first submit to 0, times are truncated to whole seconds, so that every reader of a file
replays the same instants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autopilot.contract import MOST_GPUS
from autopilot.core.model.errors import InputError, unknown_name
from simulator.traces.checks import Capacity, RowReasons, find_unusable, parse_flags
from simulator.traces.columns import BY_NAME, FALSE_WORDS, JOB_COLUMNS, REQUIRED, TRUE_WORDS
from simulator.traces.defaults import Defaults
from simulator.traces.job_trace import Floats, JobTrace, Texts
from simulator.traces.own_columns import Own, own_jobs
from simulator.traces.slurm.accounting import looks_like_accounting, read_accounting
from simulator.traces.slurm.replay import Site, hold_to_models, jobs_of_rows
from simulator.traces.table_files import number_array, read_table, require_columns, row_label, write_table

if TYPE_CHECKING:
    import pandas as pd


ROOT, ROOT_TENANT = "root", "root-account"
"""Slurm's account of this name, and how it is called: `root` is the queue above all others."""

RECORDED = ("eligible_s", "start_s", "end_s")
"""Recorded times of a job, which count from the first submit as all others do."""

DATED_FROM_S = 1e9
"""A first submit of at least this is a date (seconds since 1970; this is in 2001)."""


def read_jobs(
    path: Path | str,
    *,
    tenants: Sequence[str] = (),
    defaults: Defaults | None = None,
    capacity: Capacity | None = None,
    whole_seconds: bool = True,
    columns: Mapping[str, str] | None = None,
    site: Site | None = None,
) -> JobTrace:
    """Read a job file, keep the jobs of `tenants` (all if empty), and fill missing values from `defaults`.

    Files of other programs are read too (`simulator.traces.own_columns`), and the output of Slurm
    (`simulator.traces.slurm`, with the facts of `site`); `columns` maps their names to ours. Raises
    `InputError` if the file cannot be used at all: unreadable, empty, truncated, a required column missing, a cell
    without a number, an unknown tenant, or no usable row.
    """
    path = Path(path)
    site = site or Site()
    own = _read_own(path, columns or {}, site)
    frame, joined = jobs_of_rows(own.frame, path)
    frame, models = hold_to_models(frame, capacity.by_type if capacity is not None else {}, site)
    trace = jobs_from_frame(
        frame, path, tenants=tenants, defaults=defaults, capacity=capacity, whole_seconds=whole_seconds
    )
    notes = (*own.notes, *joined, *models, *trace.notes)
    return replace(trace, notes=notes, start_s=trace.start_s if own.dated else None)


def _read_own(path: Path, columns: Mapping[str, str], site: Site) -> Own:
    """The rows of a file in our columns, by the content of the file."""
    if path.suffix.lower() in (".parquet", ".pq") or not looks_like_accounting(path):
        return own_jobs(read_table(path), path, columns)
    found = read_accounting(path, timezone=site.timezone, columns=columns, shards_per_gpu=site.shards_per_gpu)
    dropped = [f"{reason}: {count:,}" for reason, count in found.dropped.items()]
    return Own(found.frame, [*found.notes, *dropped], dated=found.dated)


def jobs_from_frame(
    frame: pd.DataFrame,
    path: Path,
    *,
    tenants: Sequence[str] = (),
    defaults: Defaults | None = None,
    capacity: Capacity | None = None,
    whole_seconds: bool = True,
) -> JobTrace:
    """As `read_jobs`, from a table already in memory; `path` names it in messages."""
    frame = frame.rename(columns=lambda name: str(name).strip())
    require_columns(frame, REQUIRED, path, "a job file")
    repeated = frame.columns[frame.columns.duplicated()]
    if len(repeated):
        raise InputError(f"{path}: the column {repeated[0]} occurs twice")
    text, numbers = _columns_of(frame, path)
    selected = _select_tenants(text["tenant"], tenants, path)
    reasons = find_unusable(text, numbers, capacity, selected)
    if not reasons.usable.any():
        raise InputError(f"{path}: no usable row: {reasons.in_words(frame, path)}")
    kept = np.flatnonzero(reasons.usable)
    kept = kept[_order(numbers["submit_s"][kept], text["job_id"][kept])]
    trace = _build(frame, path, text, numbers, kept, reasons, whole_seconds)
    return trace if defaults is None else defaults.fill(trace)


def write_jobs(trace: JobTrace, path: Path | str) -> None:
    """Write the jobs by the suffix of `path`, atomically. Raises `InputError`."""
    write_table(trace.to_frame(), Path(path))


def _columns_of(frame: pd.DataFrame, path: Path) -> tuple[dict[str, Texts], dict[str, Floats]]:
    text: dict[str, Texts] = {}
    numbers: dict[str, Floats] = {}
    for column in JOB_COLUMNS:
        if column.name not in frame.columns:
            continue
        if column.kind == "text":
            text[column.name] = text_column(frame[column.name])
        elif column.kind == "flag":
            numbers[column.name] = parse_flags(frame[column.name], TRUE_WORDS, FALSE_WORDS)
            if np.isinf(numbers[column.name]).any():
                first = int(np.isinf(numbers[column.name]).argmax())
                where = row_label(path, int(frame.index[first]))
                value = frame[column.name].iloc[first]
                raise InputError(f"{path}: {where}, column {column.name}: {value!r} is neither true nor false")
        else:
            numbers[column.name] = number_array(frame, column.name, path)
    for name in RECORDED:
        if name in frame.columns:
            numbers[name] = number_array(frame, name, path)
    # Binary32 in the file (0.46 -> 0.4600000083) does not carry nine digits.
    gpus = numbers["gpus"]
    numbers["gpus"] = np.where(np.abs(gpus) <= MOST_GPUS, np.round(np.clip(gpus, -MOST_GPUS, MOST_GPUS), 6), gpus)
    return text, numbers


def text_column(column: pd.Series[Any]) -> Texts:
    """The column as stripped text, "" if it is empty; whole floats are written without `.0`."""
    import pandas as pd

    if pd.api.types.is_float_dtype(column.dtype):
        whole = column.dropna()
        if (whole == whole.round()).all():
            column = column.astype("Int64")
    values: Texts = column.astype("string").str.strip().fillna("").to_numpy(dtype=object)
    return values


def _select_tenants(tenant: Texts, wanted: Sequence[str], path: Path) -> npt.NDArray[np.bool_]:
    if not wanted:
        return np.ones(len(tenant), dtype=bool)
    names, counts = np.unique(tenant.astype(str), return_counts=True)
    missing = sorted(set(wanted) - set(names.tolist()))
    if missing:
        by_size = [str(names[i]) for i in np.argsort(-counts, kind="stable")]
        lacking = ", ".join(repr(name) for name in missing)
        raise InputError(f"{path}: no job of tenant {lacking}; {unknown_name(missing[0], by_size, most=10)}")
    return np.isin(tenant.astype(str), list(wanted))


def _order(submit_s: Floats, job_id: Texts) -> npt.NDArray[np.intp]:
    """Positions by submit time, then job id; the number at the end of an id counts as a number."""
    import pandas as pd

    parts = pd.Series(job_id).str.extract(r"^(.*?)(\d*)$", expand=True)
    prefix = np.unique(parts[0].fillna("").to_numpy(dtype=str), return_inverse=True)[1]
    number = pd.to_numeric(parts[1].replace("", "-1"), errors="coerce").to_numpy(dtype=np.float64)
    return np.lexsort((job_id.astype(str), number, prefix, submit_s))


def _build(
    frame: pd.DataFrame,
    path: Path,
    text: Mapping[str, Texts],
    numbers: Mapping[str, Floats],
    kept: npt.NDArray[np.intp],
    reasons: RowReasons,
    whole_seconds: bool,
) -> JobTrace:
    columns: dict[str, Any] = {}
    for column in JOB_COLUMNS:
        if column.kind == "text":
            whole = text.get(column.name)
            columns[column.name] = np.full(len(kept), "", dtype=object) if whole is None else whole[kept]
            continue
        given = numbers.get(column.name)
        values = np.full(len(kept), np.nan) if given is None else given[kept]
        if column.kind == "amount" and column.name != "gpus":
            columns[column.name] = values.copy()
        elif column.name != "gpus":
            dtype = np.int8 if column.kind == "flag" else np.int64
            columns[column.name] = np.where(np.isnan(values), -1, values).astype(dtype)
    gpus = numbers["gpus"][kept]
    share = np.where(gpus < 1, np.maximum(np.rint(gpus * 1000), 1), 1000).astype(np.int64)
    columns["gpu_milli"] = np.where(columns["gpu_milli"] > 0, columns["gpu_milli"], share)
    columns["gpus"] = np.ceil(gpus).astype(np.int64)
    first_s = float(columns["submit_s"][0])
    columns["submit_s"] = columns["submit_s"] - first_s
    if whole_seconds:
        columns["submit_s"], columns["duration_s"] = (
            np.trunc(columns["submit_s"]),
            np.trunc(columns["duration_s"]),
        )
    assumed = {}
    nameless = columns["tenant"] == ""
    if nameless.any():
        columns["tenant"] = np.where(nameless, "unknown", columns["tenant"])
        assumed["tenant"] = int(np.count_nonzero(nameless))
    taken = columns["tenant"] == ROOT  # the queue above all others has this name
    columns["tenant"] = np.where(taken, ROOT_TENANT, columns["tenant"])
    return JobTrace(
        source=str(path),
        notes=(f"the tenant {ROOT} is called {ROOT_TENANT} here",) if taken.any() else (),
        **columns,
        assumed=assumed,
        extra={
            str(n): numbers[n][kept] - first_s if n in RECORDED else frame[n].to_numpy()[kept]
            for n in frame.columns
            if n not in BY_NAME
        },
        rows=len(frame),
        unusable_by_reason=dict(reasons.count_by_reason),
        first_unusable=reasons.first_rows(frame, path),
        start_s=first_s if first_s >= DATED_FROM_S else None,
    )


def empty_columns(rows: int) -> dict[str, Any]:
    """Every job column, all unknown: the start of a generated trace."""
    columns: dict[str, Any] = {}
    for item in fields(JobTrace):
        if item.name in BY_NAME:
            kind = BY_NAME[item.name].kind
            if kind == "text":
                columns[item.name] = np.full(rows, "", dtype=object)
            elif kind == "amount" and item.name != "gpus":
                columns[item.name] = np.full(rows, np.nan)
            else:
                columns[item.name] = np.full(rows, -1, dtype=np.int8 if kind == "flag" else np.int64)
    columns["gpu_milli"] = np.full(rows, 1000, dtype=np.int64)
    return columns
