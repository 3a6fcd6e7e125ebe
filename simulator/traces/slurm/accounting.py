"""An accounting of Slurm as a job file: one row for each run of a job, task of an array or component of a gang.

Both `traces import slurm` and `simulate --jobs` read it here. Beside the columns of a job file the table has
`eligible_s` (waiting for GPUs begins then), `start_s`, `end_s`, `suspended_s`, `shards`, `partition`, `qos`,
`node_list`, `so_far_s` (of jobs still running), and the links from rows to jobs (`simulator.traces.slurm.replay`):
`gang`, `run_of`, `run`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autopilot.core.model.errors import InputError
from autopilot.core.model.units import counted
from simulator.traces.slurm import runs
from simulator.traces.slurm.clocks import check_zone, read_clock
from simulator.traces.slurm.columns import (
    Accounting,
    check_fields,
    drop_steps,
    frame_of,
    name_rows,
    notes_of,
    read_numbers,
)
from simulator.traces.slurm.documents import read_document
from simulator.traces.slurm.fields import OURS, TEXTS, is_accounting
from simulator.traces.slurm.open_jobs import GOES, WAITS
from simulator.traces.slurm.text import first_line, is_fixed_width, opened, read_rows, read_text, split_header
from simulator.traces.slurm.tres import Gpus, gpus_of

if TYPE_CHECKING:
    import pandas as pd

NO_LIMIT_S = 365 * 86_400.0
"""Sites write a limit of a year or more for none."""

STATES = {
    "bf": "boot_fail",
    "ca": "cancelled",
    "cd": "completed",
    "cf": "configuring",
    "cg": "completing",
    "dl": "deadline",
    "f": "failed",
    "nf": "node_fail",
    "oom": "out_of_memory",
    "pd": "pending",
    "pr": "preempted",
    "r": "running",
    "rq": "requeued",
    "rs": "resizing",
    "rv": "revoked",
    "s": "suspended",
    "to": "timeout",
}
LIST_NAMES = {"alloctres": "AllocTRES", "allocgres": "AllocGRES", "reqtres": "ReqTRES", "reqgres": "ReqGRES"}


def looks_like_accounting(path: Path) -> bool:
    """True if a file holds `sacct` output or the JSON of Slurm, by its content."""
    try:
        head = first_line(path) if path.is_file() else ""
    except OSError:
        return False
    if head.startswith("{"):
        with opened(path) as handle:
            start = handle.read(4096)
        return b'"jobs"' in start or b'"slurm"' in start.lower()
    if not head:
        return False
    return is_accounting(split_header(head)) or is_fixed_width(head, first_line(path, second=True))


def read_accounting(
    path: Path, *, timezone: str = "", columns: Mapping[str, str] | None = None, shards_per_gpu: int | None = None
) -> Accounting:
    """The jobs of an accounting. `timezone`: of dates without one (IANA name; empty: UTC).

    `columns` maps other headers to columns of a job file. Raises `InputError` if the file cannot be read at all.
    """
    check_zone(timezone)
    if shards_per_gpu is not None and shards_per_gpu < 1:
        raise InputError(f"shards per GPU: {shards_per_gpu} is not allowed; write a number from 1")
    text, encoding = read_text(path)
    json = text.lstrip()[:1] in ("{", "[")
    rows = read_document(path, text) if json else read_rows(path, text)
    if not rows.cells:
        raise InputError(f"{path}: no row in the file, only its header")
    found = Accounting(frame_of(rows, path, columns or {}), len(rows.cells))

    def label(row: int) -> str:
        return f"job {row + 1}" if json else f"line {rows.lines[row]}"

    check_fields(found.frame, path)
    read_numbers(found.frame, path, label)
    drop_steps(found)
    name_rows(found)
    kept = found.frame["row"].to_numpy(np.int64)
    times = read_clock(found.frame, path, timezone, lambda row: label(int(kept[row])))
    found.dated = times.way == "epoch" or times.way.startswith("date")
    for name, values in times.s.items():
        found.frame[f"{name}_s"] = values
    for name in ("submit_s", "eligible_s", "start_s", "end_s"):
        if name not in found.frame:
            found.frame[name] = np.nan
    if times.local and not timezone:
        found.notes.append("times without a time zone are read as UTC; name theirs with --timezone Europe/Berlin")
        runs.keep_order(found.frame)
    if times.settled:
        found.notes.append(
            f"{counted(times.settled, 'job lies|jobs lie')} in the hour that the clocks repeat: job numbers and "
            "Elapsed say in which of the two"
        )
    _states(found)
    found.notes += runs.join_dumps(found)
    found.notes += runs.count_runs(found)
    _durations(found, timezone, local=times.local)
    _gpus(found, shards_per_gpu)
    _limits(found)
    _drop_never_started(found)
    found.frame = _table(found, columns or {})
    found.notes += notes_of(rows, encoding)
    return found


def _states(found: Accounting) -> None:
    """The state in one word. A waiting job has no start, and an open one has no end."""
    frame = found.frame
    words = frame["state"].str.split().str[0].str.lower().str.rstrip("+").fillna("")
    frame["status"] = words.map(lambda word: STATES.get(word, word))
    waits = frame["status"].isin(WAITS).to_numpy(dtype=bool)
    goes = frame["status"].isin(GOES).to_numpy(dtype=bool)
    frame.loc[waits, ["start_s", "end_s"]] = np.nan
    frame.loc[goes, "end_s"] = np.nan
    frame["open"] = waits | goes


def _durations(found: Accounting, timezone: str, *, local: bool) -> None:
    """Elapsed counts; without it the time from start to end. A suspended job keeps its GPUs, and does not run."""
    frame = found.frame
    between = (frame["end_s"] - frame["start_s"]).to_numpy(np.float64)
    between = np.where(between >= 0, between, np.nan)
    stated = frame["elapsed_s"].to_numpy(np.float64)
    held = np.where(np.isnan(stated), between - np.nan_to_num(frame["suspended_s"].to_numpy(np.float64)), stated)
    duration = np.where(frame["part"].to_numpy(dtype=bool) & (between < held), between, held)
    unsettled = frame["open"].to_numpy(dtype=bool) | (
        frame["end_s"].isna() & frame["status"].isin(("requeued", "resizing"))
    ).to_numpy(dtype=bool)
    frame["duration_s"] = np.where(unsettled, np.nan, duration)
    if "elapsed" not in frame and "elapsedraw" not in frame:
        found.notes.append("the file has no Elapsed: duration_s is the time from start to end")
        odd = int(((frame["end_s"] - frame["start_s"]) < 0).sum())
        if odd:
            found.notes.append(f"{counted(odd, 'job ends|jobs end')} before the start: the run time is unknown")
    differ = (np.abs(duration - (frame["end_s"] - frame["start_s"])) >= 1).to_numpy(dtype=bool)
    if differ.any() and not (local and timezone == ""):
        paused = (between - duration)[differ & (between > duration)]
        if len(paused):
            frame.loc[differ & (between > duration) & frame["suspended_s"].isna().to_numpy(), "suspended_s"] = (
                between - duration
            )[differ & (between > duration) & frame["suspended_s"].isna().to_numpy()]
            found.notes.append(
                f"{counted(len(paused), 'job was|jobs were')} suspended: they ran for Elapsed, and held GPUs"
            )
    elif differ.any():
        found.notes.append(
            f"{counted(int(differ.sum()), 'job has|jobs have')} another run time than from start to end; it counts"
        )
        runs.keep_ends(frame)
    waiting = int(frame["status"].isin(WAITS).sum())
    going = int(frame["open"].sum()) - waiting
    if waiting or going:
        found.notes.append(
            f"{counted(waiting + going, 'job has|jobs have')} not ended "
            f"({waiting} waiting, {going} running at the time of the dump)"
        )


def _gpus(found: Accounting, shards_per_gpu: int | None) -> None:
    """The held GPUs if the job started, else the requested ones."""
    frame = found.frame
    known: dict[str, Gpus] = {}

    def lists(names: tuple[str, ...]) -> list[str]:
        cells = np.full(len(frame), "", dtype=object)
        for name in (each for each in names if each in frame):
            cells = np.where(cells == "", frame[name].fillna("").to_numpy(dtype=object), cells)
        return [str(cell) for cell in cells.tolist()]

    held, asked = lists(("alloctres", "allocgres")), lists(("reqtres", "reqgres"))
    for cell in {*held, *asked}:
        known[cell] = gpus_of(cell)
    started = frame["start_s"].notna().tolist()
    counts, models, profiles, shards = [], [], [], []
    for of_held, of_asked, began, plain in zip(held, asked, started, frame["plain_gpus"].tolist(), strict=True):
        text = of_held if of_held and (began or not of_asked) else of_asked
        gpus, other = known[text], known[of_asked]
        counts.append(float(gpus.count) if text else plain)
        if gpus.shards and not gpus.count:
            counts[-1] = gpus.shards / shards_per_gpu if shards_per_gpu else np.nan
        models.append("|".join(gpus.models or (other.models if gpus.count else ())))
        profiles.append(gpus.profile or (other.profile if gpus.count else ""))
        shards.append(float(gpus.shards) if gpus.shards else np.nan)
    frame["gpus"], frame["gpu_type"], frame["mig_profile"], frame["shards"] = counts, models, profiles, shards
    there = [name for key, name in LIST_NAMES.items() if key in frame]
    if there:
        found.notes.append(f"GPUs are those of {', else of '.join(there)}")
    shared = int(np.isfinite(frame["shards"].to_numpy(np.float64)).sum())
    if shared and not shards_per_gpu:
        found.notes.append(
            f"{counted(shared, 'job holds|jobs hold')} shards, a share of a GPU: how many make one is not in the "
            "accounting; state it with --shards-per-gpu"
        )
    without = int((frame["gpus"] == 0).sum())
    if without:
        found.notes.append(f"no GPU: {counted(without, 'job')}")


def _limits(found: Accounting) -> None:
    """UNLIMITED and Partition_Limit are no limit; sites write a year or more for none."""
    frame = found.frame
    if "timelimit" not in frame and "timelimitraw" not in frame:
        found.notes.append("the file has no time limits, so easy and slurm assume some; ask sacct for TimelimitRaw")
        return
    words = frame[[name for name in ("timelimit", "timelimitraw") if name in frame]]
    given = (words != "").any(axis=1) & frame["limit_s"].isna()
    long = int((frame["limit_s"] >= NO_LIMIT_S).sum())
    for count, what in (
        (int(given.sum()), "no time limit; easy and slurm assume one"),
        (int((~given & frame["limit_s"].isna()).sum()), "an unknown time limit"),
        (long, "a limit of a year or more, which stands for none"),
    ):
        if count:
            found.notes.append(f"{counted(count, 'job has|jobs have')} {what}")


def _drop_never_started(found: Accounting) -> None:
    """Drop jobs cancelled, or failed, before they had any GPU."""
    frame = found.frame
    ghost = (
        frame["elapsed_s"].eq(0) & frame["start_s"].eq(frame["end_s"]) & frame["status"].isin(["cancelled", "deadline"])
    )
    if "alloctres" in frame and frame["alloctres"].ne("").any():
        ghost &= frame["alloctres"] == ""
    elif "nodelist" in frame:
        ghost &= frame["nodelist"].isin(["None assigned", "(null)", ""])
    else:
        ghost &= False
    never = (~frame["open"] & (frame["start_s"].isna() | ghost)).to_numpy(dtype=bool)
    if never.any():
        found.dropped["never started"] = int(never.sum())
        found.frame = frame[~never]


def _table(found: Accounting, columns: Mapping[str, str]) -> pd.DataFrame:
    """The columns of a job file, and those beside them."""
    import pandas as pd

    frame = found.frame
    table: dict[str, Any] = {"job_id": frame["name_of_row"], "tenant": frame.get("account")}
    if "account" not in frame:
        table["tenant"] = frame.get("user", "unknown")
        found.notes.append("tenant is the user, because the file names no account")
    table |= {"user": frame.get("user"), "name": frame.get("jobname")}
    for name in ("submit_s", "eligible_s", "start_s", "end_s", "duration_s", "suspended_s", "gpus"):
        table[name] = frame[name]
    if (goes := frame["status"].isin(GOES)).any():
        table["so_far_s"] = frame["elapsed_s"].where(goes)
    table |= {name: frame[name] for name in ("gpu_type", "mig_profile", "shards", "nodes", "cpus", "status", "limit_s")}
    for theirs in TEXTS:
        if theirs in frame and theirs not in ("user", "account"):
            table["node_list" if theirs == "nodelist" else theirs] = frame[theirs]
    table |= {name: frame[name] for name in ("gang", "run_of", "run")}
    table |= {ours: frame[f"mapped {ours}"] for ours in columns if ours not in OURS}
    result = pd.DataFrame(table, index=frame.index)
    for name in (each for each in result.columns if each != "name"):
        if result[name].dtype.kind == "O":
            result[name] = result[name].where(result[name] != "", None)
    return result
