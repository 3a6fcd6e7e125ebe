"""`autopilot traces import KIND PATH`: converts a public layout to a job or request file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autopilot.core.model.errors import InputError, unknown_name
from autopilot.core.model.units import counted
from autopilot.files import check_output, write_text
from simulator.inference.requests import read_requests
from simulator.traces.catalog import TRACE_KINDS
from simulator.traces.gpu_models import KNOWN_GPU_MODELS, models_like
from simulator.traces.importers.common import Imported, ImportOptions, window_of
from simulator.traces.jobs import jobs_from_frame
from simulator.traces.slurm.replay import jobs_of_rows
from simulator.traces.table_files import Progress, no_progress, number_array, write_table

if TYPE_CHECKING:
    import pandas as pd

MODULES = {
    "philly": "philly",
    "openb": "openb",
    "genai": "genai",
    "dlrm": "dlrm",
    "azure-llm": "azure_llm",
    "servegen": "servegen",
    "mooncake": "mooncake",
    "slurm": "slurm",
}


@dataclass(frozen=True, slots=True)
class ImportReport:
    """Rows read, written, dropped and assumptions of an import. `unusable_by_reason`: rows skipped by a replay."""

    kind: str
    makes: str
    source: str
    out: str
    cluster_out: str | None
    rows_read: int
    rows_written: int
    dropped_by_reason: Mapping[str, int]
    unusable_by_reason: Mapping[str, int]
    assumed: Mapping[str, int]
    usable: int
    tenants: int
    span_s: float
    gpu_s: float | None
    notes: tuple[str, ...]


def import_trace(
    kind: str,
    path: Path | str,
    out: Path | str,
    *,
    options: ImportOptions | None = None,
    progress: Progress = no_progress,
) -> ImportReport:
    """Read `path` in the layout `kind` and write `out` (.csv or .parquet), whole or not at all.

    Rows beyond the layout are dropped and counted; rows unusable in a replay are
    written and counted too. A layout that lists nodes also writes `OUT.cluster.yaml`. Raises
    `InputError` if the kind is unknown, the file is unusable, or `out` cannot be written.
    """
    if kind not in TRACE_KINDS:
        raise InputError(f"trace kind {kind!r} is not known; {unknown_name(kind, TRACE_KINDS)}")
    source, target = Path(path), Path(out)
    if target.suffix.lower() not in (".csv", ".parquet", ".pq"):
        raise InputError(f"{target}: the imported trace is written to a .csv or .parquet file")
    check_output(target)
    if target.exists() and source.exists() and target.samefile(source):
        raise InputError(f"{target}: is the input file; write to another one")
    reader = import_module(f"simulator.traces.importers.{MODULES[kind]}")
    imported: Imported = reader.read(source, options or ImportOptions(), progress)
    frame = imported.frame.reset_index(drop=True)
    if TRACE_KINDS[kind].makes == "jobs":
        frame = _cut_jobs(frame, options or ImportOptions(), source, imported.notes)
    progress("checking", 0.7)
    if TRACE_KINDS[kind].makes == "jobs":
        checked = _check_jobs(frame, source)
        progress("writing", 0.8)
        write_table(_in_order(frame, "submit_s"), target)
    else:
        checked = _write_requests(_in_order(frame, "t_s"), source, target)
    cluster_out = None
    if imported.cluster_yaml is not None:
        cluster_out = target.with_name(f"{target.stem}.cluster.yaml")
        write_text(imported.cluster_yaml, cluster_out)
    progress("done", 1.0)
    return ImportReport(
        kind=kind,
        makes=TRACE_KINDS[kind].makes,
        source=str(source),
        out=str(target),
        cluster_out=None if cluster_out is None else str(cluster_out),
        rows_read=imported.rows_read,
        rows_written=len(frame),
        dropped_by_reason=imported.dropped,
        unusable_by_reason=checked.unusable_by_reason,
        assumed=imported.assumed,
        usable=checked.usable,
        tenants=checked.tenants,
        span_s=checked.span_s,
        gpu_s=checked.gpu_s,
        notes=tuple(imported.notes),
    )


@dataclass(frozen=True, slots=True)
class _Checked:
    """The reading of the written file by a replay."""

    unusable_by_reason: Mapping[str, int]
    usable: int
    tenants: int
    span_s: float
    gpu_s: float | None


def _check_jobs(frame: pd.DataFrame, source: Path) -> _Checked:
    rows = jobs_of_rows(frame, source)[0]
    if "gpu_type" in rows:  # a short name of an accounting (a100) means the models alike, here those of every cluster
        for cell in rows["gpu_type"].dropna().astype(str).unique():
            alike = dict.fromkeys(model for name in cell.split("|") for model in models_like(name, KNOWN_GPU_MODELS))
            rows["gpu_type"] = rows["gpu_type"].replace(cell, "|".join(alike))
    jobs = jobs_from_frame(rows, source)
    tenants = len(np.unique(jobs.tenant.astype(str)))
    return _Checked(jobs.unusable_by_reason, len(jobs), tenants, jobs.span_s, jobs.total_gpu_s)


def _write_requests(frame: pd.DataFrame, source: Path, target: Path) -> _Checked:
    found: list[_Checked] = []

    def check(temporary: Path) -> None:
        try:
            requests = read_requests(temporary)
        except InputError as error:
            raise InputError(str(error).replace(str(temporary), str(source))) from None
        names = frame["tenant"] if "tenant" in frame else frame["service"]
        span_s = float(requests.t_s[-1] - requests.t_s[0])
        found.append(_Checked(requests.unusable_by_reason, len(requests), int(names.nunique()), span_s, None))

    write_table(frame, target, check)
    return found[0]


def _cut_jobs(frame: pd.DataFrame, options: ImportOptions, source: Path, notes: list[str]) -> pd.DataFrame:
    """The jobs submitted inside the window of the options; jobs are never thinned."""
    if options.rate_scale != 1:
        raise InputError(f"{source}: a rate scale thins requests; jobs are not thinned")
    if options.start_s == 0 and options.span_s is None:
        return frame
    inside = window_of(number_array(frame, "submit_s", source), options)
    if not inside.any():
        raise InputError(f"{source}: no job was submitted inside the window")
    notes.append(f"{counted(int(len(frame) - inside.sum()), 'job')} outside the window")
    cut: pd.DataFrame = frame[inside].reset_index(drop=True)
    return cut


def _in_order(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows by time, unknown times last, without empty columns."""
    import pandas as pd

    times = pd.to_numeric(frame[name], errors="coerce")
    ordered = frame.loc[times.sort_values(kind="stable", na_position="last").index]
    required = ("service", "input_tokens", "output_tokens")
    silent = [name for name in ordered.columns if name not in required and ordered[name].isna().all()]
    kept: pd.DataFrame = ordered.drop(columns=silent)
    return kept
