"""Files of other programs: maps their columns to ours, and their cells to our units.

A column of our own name always counts. Otherwise a known name of other systems (`sacct`, clouds, spreadsheets) maps to
ours, in any case and with any of space, dash and underscore. `--columns OURS=THEIRS` overrides both; `OURS=THEIRS%`
marks a column in percent of one GPU or CPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autopilot.core.model.errors import InputError, unknown_name
from autopilot.core.model.units import counted
from simulator.traces.columns import BY_NAME, JOB_COLUMNS, REQUIRED
from simulator.traces.table_files import row_label
from simulator.traces.times import read_amounts, read_times

if TYPE_CHECKING:
    import pandas as pd

JOB_ALIASES: dict[str, tuple[str, ...]] = {
    "job_id": ("jobid", "jobidraw", "idjob", "id"),
    "tenant": ("account", "project", "team", "group", "virtualcluster", "vc", "namespace", "organization"),
    "user": ("username", "owner", "iduser", "uid"),
    "name": ("jobname",),
    "submit_s": (
        "submit",
        "submittime",
        "submitted",
        "submittedat",
        "submittedtime",
        "submissiontime",
        "timesubmit",
        "arrival",
        "arrivaltime",
        "created",
        "createdat",
        "creationtime",
        "creationtimestamp",
        "queuedat",
        "timestamp",
    ),
    "eligible_s": ("eligible", "eligibletime", "timeeligible"),
    "start_s": ("start", "starttime", "started", "startedat", "timestart"),
    "end_s": ("end", "endtime", "ended", "endedat", "finish", "finishtime", "finishedat", "completedat", "timeend"),
    "duration_s": ("duration", "elapsed", "elapsedraw", "runtime", "runtimes", "walltime", "elapsedtime"),
    "gpus": (
        "gpu",
        "numgpus",
        "numgpu",
        "ngpus",
        "gpunum",
        "gpucount",
        "gpusrequested",
        "reqgpus",
        "allocgpus",
        "alloctres",
        "reqtres",
        "allocgres",
        "reqgres",
        "gres",
        "plangpu",
    ),
    "nodes": ("nnodes", "numnodes", "nodecount", "allocnodes", "reqnodes"),
    "status": ("state", "jobstate", "exitstatus"),
    "kind": ("type", "jobtype", "tasktype"),
    "gpu_type": ("gpumodel", "gputypes", "accelerator", "acceleratortype"),
    "limit_s": ("timelimit", "timelimitraw", "limit", "walltimelimit", "reqtime"),
    "priority": ("prio",),
    "slo_class": ("slo", "qosclass", "serviceclass"),
    "cpus": ("ncpus", "numcpus", "alloccpus", "reqcpus", "cpucount", "plancpu"),
}
PERCENT = ("plangpu", "plancpu")
"""Columns that count percent of one GPU or CPU wherever they occur: those of Alibaba's cluster-trace-gpu-v2020."""

CLOCK_CHANGE_S = 3600.0
"""By how much local times go back where clocks change."""

IN_PERCENT = ("gpus", "min_gpus", "cpus")
"""Columns of ours that may be given in percent."""

REQUEST_ALIASES: dict[str, tuple[str, ...]] = {
    "t_s": ("timestamp", "time", "arrival", "arrivaltime", "arrivedat", "receivedat", "requesttime", "starttime", "t"),
    "service": ("model", "modelname", "deployment", "endpoint", "servicename"),
    "input_tokens": (
        "prompttokens",
        "contexttokens",
        "inputtokencount",
        "promptlength",
        "inputlength",
        "numprefilltokens",
    ),
    "output_tokens": (
        "completiontokens",
        "generatedtokens",
        "outputtokencount",
        "responselength",
        "outputlength",
        "numdecodetokens",
    ),
    "latency_s": ("latency", "duration", "e2elatency"),
}
TIMES = ("submit_s", "eligible_s", "start_s", "end_s", "t_s")
CLOCKS = ("duration_s", "limit_s", "restart_s", "checkpoint_interval_s", "preemption_delay_s", "latency_s")
"""Amounts of time, which may be written as [D-]HH:MM:SS."""

AMOUNTS = (
    *(column.name for column in JOB_COLUMNS if column.kind in ("amount", "count") and column.name != "submit_s"),
    "latency_s",
)
JOB_NAMES = (*BY_NAME, "eligible_s", "start_s", "end_s")
NOT_ENDED = frozenset({"running", "pending", "suspended", "requeued", "resizing", "configuring", "completing"})
_GPUS = re.compile(r"(?:gres[/:])?gpu(:[\w.-]*[A-Za-z][\w.-]*)?(?:[=:](\d{1,7}))?")


@dataclass(slots=True)
class Own:
    """A table in our columns. `notes`: the interpretation of the input; `dated`: its times count from 1970; `local`:
    they are dates without a zone; `percent`: columns of ours in percent.
    """

    frame: pd.DataFrame
    notes: list[str] = field(default_factory=list)
    dated: bool = False
    local: bool = False
    percent: set[str] = field(default_factory=set)


def parse_columns(text: str) -> dict[str, str]:
    """`submit_s=Submit,gpus=AllocTRES` as a mapping, empty for an empty text. Raises `InputError`."""
    found: dict[str, str] = {}
    if not text:
        return found
    known = {*JOB_NAMES, *REQUEST_ALIASES}
    for part in text.split(","):
        ours, equals, theirs = (piece.strip() for piece in part.partition("="))
        if not equals or not ours or not theirs:
            raise InputError(
                f"--columns: {part.strip()!r} is no pair; write for example submit_s=Submit,gpus=AllocTRES"
            )
        if ours not in known:
            raise InputError(f"--columns: {ours!r} is none of our columns; {unknown_name(ours, sorted(known), 40)}")
        if theirs.endswith("%") and ours not in IN_PERCENT:
            raise InputError(f"--columns: {part.strip()!r}: only {', '.join(IN_PERCENT)} can be given in percent")
        if ours in found:
            raise InputError(f"--columns: {ours} is mapped twice; map it once")
        found[ours] = theirs
    return found


def own_jobs(frame: pd.DataFrame, path: Path, columns: Mapping[str, str]) -> Own:
    """A table of jobs from any program, in our columns and units. Raises `InputError` naming row and column."""
    own = Own(frame)
    renamed = _rename(own, path, columns, JOB_NAMES, JOB_ALIASES, REQUIRED)
    _convert(own, path)
    _fill_jobs(own, renamed)
    _say_text(own)
    return own


def own_requests(frame: pd.DataFrame, path: Path, columns: Mapping[str, str]) -> Own:
    """A table of requests, likewise; with dates or epoch times the first request is at 0."""
    own = Own(frame)
    _rename(own, path, columns, tuple(REQUEST_ALIASES), REQUEST_ALIASES, tuple(REQUEST_ALIASES)[:4])
    _convert(own, path, lenient=True)
    if own.dated:
        own.frame["t_s"] = own.frame["t_s"] - own.frame["t_s"].min()
        own.notes.append("the first request is at time 0 of the run")
    _say_text(own)
    return own


def _rename(
    own: Own,
    path: Path,
    columns: Mapping[str, str],
    names: Sequence[str],
    aliases: Mapping[str, tuple[str, ...]],
    required: Sequence[str],
) -> dict[str, str]:
    """Rename the columns to ours; returns the original names of renamed ones, by ours.

    In a file with all `required` columns under our names no alias is looked for: the others keep their meaning.
    """
    there = [str(name).strip() for name in own.frame.columns]
    own.frame = own.frame.set_axis(there, axis=1)
    twice = own.frame.columns[own.frame.columns.duplicated()]
    if len(twice):
        raise InputError(f"{path}: the column {twice[0]} occurs twice")
    taken: dict[str, str] = {}
    for ours, theirs in columns.items():
        if ours not in names:
            continue
        name = theirs if theirs in there else theirs.removesuffix("%").rstrip()
        if name not in there:
            raise InputError(f"--columns: {path} has no column {name!r}; {unknown_name(name, there)}")
        if theirs.endswith("%"):
            own.percent.add(ours)
        taken[ours] = name
    by_folded: dict[str, str] = {}
    for name in there:
        by_folded.setdefault(_folded(name), name)
    for ours in names:
        if ours in taken or ours in there:
            continue
        others = () if set(required) <= set(there) else aliases.get(ours, ())
        for alias in (_folded(ours), *others):
            theirs = by_folded.get(alias, "")
            if theirs and theirs not in taken.values() and theirs not in names:
                taken[ours] = theirs
                break
    own.percent |= {ours for ours, theirs in taken.items() if ours in IN_PERCENT and _folded(theirs) in PERCENT}
    hidden = [ours for ours, theirs in taken.items() if ours in there and ours != theirs]
    first = {theirs: ours for ours, theirs in reversed(taken.items())}
    source, own.frame = own.frame, own.frame.drop(columns=hidden).rename(columns=first)
    for ours, theirs in taken.items():
        if first[theirs] != ours:  # a column that is mapped to several of ours
            own.frame[ours] = source[theirs]
    renamed = {ours: theirs for ours, theirs in taken.items() if ours != theirs}
    if renamed:
        own.notes.append("columns: " + ", ".join(f"{theirs} read as {ours}" for ours, theirs in renamed.items()))
    return renamed


def _folded(name: str) -> str:
    return re.sub(r"[\s_\-]+", "", name).casefold()


def _convert(own: Own, path: Path, *, lenient: bool = False) -> None:
    """Times and amounts as float seconds and numbers. `lenient`: an invalid cell is left to the checks by row."""
    frame = own.frame = own.frame.copy()
    label = _labels(frame, path)
    comma = frame.attrs.get("separator") == ";"
    ways: dict[str, str] = {}
    for name in TIMES:
        if name in frame.columns:
            raw = frame[name]
            frame[name], ways[name] = read_times(raw, name, path, label, comma=comma, lenient=lenient)
    kinds = {way.split()[0] for way in ways.values() if way}
    if kinds and "" in (ways[name] for name in ways if np.isfinite(frame[name].to_numpy(np.float64)).any()):
        odd = next(name for name, way in ways.items() if not way)
        raise InputError(
            f"{path}: column {odd} counts from an arbitrary zero and "
            f"{next(n for n, w in ways.items() if w)} since 1970; use one convention for both"
        )
    if kinds:
        own.dated = True
        if "date" in ways.values():
            own.notes.append("times without a time zone are read as UTC")
        if "epoch ms" in ways.values():
            names = ", ".join(name for name, way in ways.items() if way == "epoch ms")
            own.notes.append(f"milliseconds since 1970: {names}")
    own.local = "date" in ways.values()
    if "gpus" in frame.columns:
        frame["gpus"] = _gpus(frame["gpus"])
    for name in IN_PERCENT if not lenient else ():
        if name in frame.columns:
            _strip_percent(own, name)
    for name in AMOUNTS if not lenient else ("latency_s",) if comma else ():
        if name in frame.columns:
            frame[name] = read_amounts(frame[name], name, path, label, comma=comma, clock=name in CLOCKS)
    for name in sorted(own.percent & set(frame.columns)):
        frame[name] = np.round(frame[name].to_numpy(np.float64) / 100.0, 6)
        own.notes.append(f"{name} is given in percent: 100 is one")


def _strip_percent(own: Own, name: str) -> None:
    """Cells like `50 %` without their sign. A column with mixed cells is left to `read_amounts`."""
    words = own.frame[name].astype("string").str.strip()
    signed = words.str.endswith("%").fillna(False)
    if signed.any() and (signed | words.isna() | (words == "")).all():
        own.frame[name] = words.str.removesuffix("%").str.strip()
        own.percent.add(name)


def _labels(frame: pd.DataFrame, path: Path) -> Any:
    index = frame.index.to_numpy()
    return lambda row: row_label(path, int(index[row]))


def _gpus(raw: pd.Series[Any]) -> pd.Series[Any]:
    """TRES and GRES lists (`billing=8,gres/gpu=4`, `gpu:a100:4`) as numbers, other cells as they are."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(raw.dtype):
        return raw
    words = raw.astype("string").str.strip()
    listed = words.str.contains("=|gpu", regex=True).fillna(False)
    if not listed.any():
        return raw
    counts = {word: _gpus_of(word) for word in words[listed].unique()}
    found: pd.Series[Any] = words.where(~listed, words.map(counts).astype("string")).fillna("0")
    return found


def _gpus_of(tres: str) -> str:
    """The plain `gres/gpu=4`, else the sum over the types; an item without a number is one GPU, and a list without GPUs
    asks for none.
    """
    items = [_GPUS.fullmatch(item.strip()) for item in re.sub(r"\([^)]*\)", "", tres).split(",")]
    found = [(item[1] is None, int(item[2] or 1)) for item in items if item is not None]
    plain = [count for untyped, count in found if untyped]
    return str(plain[0] if plain else sum(count for _, count in found))


def _fill_jobs(own: Own, renamed: Mapping[str, str]) -> None:
    """Values derived from other columns: durations from start and end, the tenant from the user."""
    frame = own.frame
    if {"start_s", "end_s"} <= set(frame.columns):
        _fill_durations(own)
    if "tenant" not in frame.columns and "user" in frame.columns:
        frame["tenant"] = frame["user"]
        own.notes.append("tenant is the user, because the file names no account")
    if "status" in renamed and "duration_s" in frame.columns:
        words = frame["status"].astype("string").str.split().str[0].str.lower()
        frame["status"] = words
        going = words.isin(NOT_ENDED).fillna(False).to_numpy(dtype=bool)
        if "end_s" in frame.columns:
            going = going & np.isnan(frame["end_s"].to_numpy(np.float64))
        if going.any():
            frame.loc[going, "duration_s"] = np.nan
            own.notes.append(f"{counted(int(going.sum()), 'job has|jobs have')} not ended: their run times are unknown")


def _fill_durations(own: Own) -> None:
    """Run times from start to end, for cells without one. Local times repeat or skip an hour at a change of clocks: a
    stated run time counts, and sets the end if it does not fit before it.
    """
    frame = own.frame
    ran_s = (frame["end_s"] - frame["start_s"]).to_numpy(np.float64)
    possible_s = np.where(ran_s >= 0, ran_s, np.nan)
    if "duration_s" not in frame.columns:
        frame["duration_s"] = possible_s
        own.notes.append("duration_s is the time from start to end")
        if odd := int((ran_s < 0).sum()):
            own.notes.append(f"{counted(odd, 'job ends|jobs end')} before the start: the run time is unknown")
        return
    stated_s = frame["duration_s"].to_numpy(np.float64)
    frame["duration_s"] = duration_s = np.where(np.isnan(stated_s), possible_s, stated_s)
    if differ := int((np.abs(duration_s - ran_s) >= 1).sum()):
        own.notes.append(f"{counted(differ, 'job has|jobs have')} another run time than from start to end; it counts")
    if own.local:
        late_s = (frame["submit_s"] - frame["start_s"]).to_numpy(np.float64) if "submit_s" in frame.columns else np.nan
        frame["start_s"] = frame["start_s"] + np.where((late_s > 0) & (late_s <= CLOCK_CHANGE_S), late_s, 0.0)
        least_s = frame["start_s"] + duration_s
        frame["end_s"] = frame["end_s"].where(~(frame["end_s"] < least_s), least_s)


def _say_text(own: Own) -> None:
    """Note an unusual reading of the text."""
    about = own.frame.attrs
    if about.get("encoding") == "latin-1":
        own.notes.append("the text is no UTF-8 and was read as Latin-1")
    names = {";": "a semicolon", "\t": "a tab", "|": "a vertical bar"}
    if about.get("separator") in names:
        own.notes.append(f"the columns are separated by {names[about['separator']]}")
