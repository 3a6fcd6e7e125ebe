"""`backtest runtimes`: reads jobs with their run times and replays them in time order.

Any table with a submit time and a run time will do: besides job files, this reads the public extracts of requests
(`t_s`, `exec_s`) and of pods without a GPU count. Features are limited to facts known at submission: never its status,
start or end. A row without an end is taken as still running; one without a submit time is dropped.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autopilot.app.backtests.backtest_options import BackProgress, GateEvidence, RuntimesOptions, counted
from autopilot.core.model.errors import InputError
from autopilot.core.model.kinds import name_stem
from autopilot.core.model.snapshot import F64
from models.evidence import runtime_cases

if TYPE_CHECKING:
    import pandas as pd

    from models.backtest_runtimes import Backtest
    from models.rehearsal import JobHistory

SUBMIT = ("submit_s", "t_s")
DURATION = ("duration_s", "exec_s")
NAMES = ("service", "partition")
"""Columns that describe a job, in addition to its name or instead of it."""
KINDS = ("kind", "num_lora", "gpu_type", "mig_profile")
"""Columns with few values, for telling apart jobs of one name."""
ASKED = (
    "cpus",
    "cpu_milli",
    "memory_mib",
    "memory_gib",
    "gpu_milli",
    "gpu_memory_gib",
    "nodes",
    "limit_s",
    "timelimit_s",
    "priority",
    "min_gpus",
    "rdma_pct",
    "disk_gib",
    "max_instance_per_node",
    "images",
    "steps",
    "num_lora",
    "prompt_length",
)
"""Numbers declared by a job at its submission."""
SHAPE = ("cpus", "cpu_milli", "memory_mib", "memory_gib", "gpu_milli")
"""Identity of a job without a name: replicas of one template request the same."""


def run(options: RuntimesOptions, progress: BackProgress) -> dict[str, Any]:
    """The document of `backtest runtimes`. Raises `InputError` naming the file, the column and the fix."""
    progress(0, 100, f"reading {options.jobs.name}")
    history, left_out = read_history(options.jobs)

    from models.backtest_runtimes import run_backtest

    def tell(words: str, done: float) -> None:
        progress(int(100 * done), 100, words)

    evidence = options.evidence
    try:
        found = run_backtest(
            history,
            time.process_time,
            tell,
            seed=options.seed,
            champion=evidence.champion if evidence else None,
            schema=evidence.champion_schema if evidence else (),
        )
    except InputError as error:
        raise InputError(f"{options.jobs}: {error}") from None
    if evidence is not None:
        _fill(evidence, found, history, options.seed)
    running = int(np.count_nonzero(np.isnan(history.duration_s)))
    assumed = counted({"jobs without a run time were still running when the file ended": running})
    return found.document | {"left_out_by_reason": left_out, "assumed_by_reason": assumed}


def _fill(evidence: GateEvidence, found: Backtest, history: JobHistory, seed: int) -> None:
    """Fill in the input of the gate and the registry: losses by tenant, the models, and their training data."""
    from models.runtime_boosting import BoostingRules, content_of
    from models.runtime_features import feature_names

    models, total = found.models, found.total
    champion = None if found.champion is None else found.champion.blend
    evidence.cases += runtime_cases(
        history.asked.tenant[total.rows], total.made_s, total.log_s, total.blend, total.floor, champion
    )
    evidence.champion_problem = found.champion_problem
    evidence.artifact = {
        "model": "runtimes",
        "boosted": content_of(models.boosted),
        "usual_left": models.usual_left,
    }
    evidence.feature_schema = feature_names(history.others)
    evidence.parameters = asdict(BoostingRules()) | {"seed": seed}
    evidence.data = dict(zip(("from_s", "to_s", "rows"), found.trained, strict=True))
    evidence.counted_work = 0 if models.boosted is None else models.boosted.work


def read_history(path: Path) -> tuple[JobHistory, dict[str, int]]:
    """The jobs of a file in order of submission, and the number of dropped rows by reason. Raises `InputError`."""
    from models.recent import Asked
    from models.rehearsal import JobHistory
    from simulator.traces.table_files import number_array, read_table

    frame = read_table(path)
    frame = frame.rename(columns=lambda name: str(name).strip())
    frame = frame.loc[:, ~frame.columns.duplicated()]
    submit_s = number_array(frame, _column(frame, SUBMIT, path), path)
    duration_s = _durations(frame, path)
    timed, possible = np.isfinite(submit_s), ~(np.isinf(duration_s) | (duration_s <= 0.0))
    usable = timed & possible
    left_out = {
        "without a submit time": int(np.count_nonzero(~timed)),
        "whose run time is 0, below 0 or infinite": int(np.count_nonzero(timed & ~possible)),
    }
    if not (usable & ~np.isnan(duration_s)).any():
        raise InputError(f"{path}: no row has both a submit time and a run time above 0")
    rows = np.flatnonzero(usable)
    rows = rows[np.argsort(submit_s[rows], kind="stable")]
    frame, submit_s, duration_s = frame.iloc[rows], submit_s[rows], duration_s[rows]
    start_s = submit_s
    if "start_s" in frame.columns:
        given = number_array(frame, "start_s", path)
        start_s = np.where(np.isfinite(given) & (given >= submit_s), given, submit_s)
    others = tuple(name for name in ASKED if name in frame.columns)
    numbers = [number_array(frame, name, path) for name in others]
    other = np.column_stack(numbers) if numbers else np.zeros((len(frame), 0))
    gpus = number_array(frame, "gpus", path) if "gpus" in frame.columns else np.ones(len(frame))
    asked = Asked(
        _text(frame, ("tenant",)),
        _text(frame, ("user",)),
        _stems(frame),
        np.asarray(np.round(np.nan_to_num(gpus, nan=1.0), 6), float),
        submit_s,
        np.where(np.isinf(other), np.nan, other),
    )
    return JobHistory(asked, start_s, duration_s, others), counted(left_out)


def _column(frame: pd.DataFrame, names: tuple[str, ...], path: Path) -> str:
    found = next((name for name in names if name in frame.columns), None)
    if found is None:
        there = ", ".join(str(name) for name in list(frame.columns)[:20])
        raise InputError(f"{path}: a backtest of run times needs the column {names[0]}; the file has {there}")
    return found


def _durations(frame: pd.DataFrame, path: Path) -> F64:
    """Run times; computed from start and end without a column of them. NaN: not ended yet."""
    from simulator.traces.table_files import number_array

    if not any(name in frame.columns for name in DURATION) and {"start_s", "end_s"} <= set(frame.columns):
        return number_array(frame, "end_s", path) - number_array(frame, "start_s", path)
    return number_array(frame, _column(frame, DURATION, path), path)


def _text(frame: pd.DataFrame, names: tuple[str, ...]) -> NDArray[np.object_]:
    """Text columns joined by `|`, "" if all are missing."""
    from simulator.traces.jobs import text_column

    parts = [text_column(frame[name]) for name in names if name in frame.columns]
    parts = [part for part in parts if (part != "").any()]
    answer = np.full(len(frame), "", object)
    if parts:
        answer[:] = ["|".join(cells) for cells in zip(*parts, strict=True)]
    return answer


def _stems(frame: pd.DataFrame) -> NDArray[np.object_]:
    """An identifier of each job (its name without digits, else its service or partition, else its request), and its
    kind.
    """
    names, others = _text(frame, ("name",)), _text(frame, NAMES)
    if not (names != "").any() and not (others != "").any():
        others = _text(frame, SHAPE)
    stems = np.full(len(frame), "", object)
    stems[:] = [
        "|".join(part for part in (name_stem(name), other, kind) if part)
        for name, other, kind in zip(names.tolist(), others.tolist(), _text(frame, KINDS).tolist(), strict=True)
    ]
    return stems
