"""The output files of `simulate`: paths are checked before a long run, files are written whole after it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from autopilot.app.options import SimulateOptions
from autopilot.core.model.errors import InputError
from autopilot.files import check_output, is_plain

if TYPE_CHECKING:
    from autopilot.app.runs.simulate import SimulationOutcome


@dataclass(frozen=True, slots=True)
class Outputs:
    """Files to write; `report` is a folder."""

    json: Path | None = None
    jobs: Path | None = None
    report: Path | None = None


def check_outputs(outputs: Outputs, options: SimulateOptions) -> None:
    """Before a long run, refuse paths without write access, and paths of an input.

    Raises `InputError` naming the flag and the path.
    """
    files = [
        (flag, path) for flag, path in (("--json", outputs.json), ("--jobs-out", outputs.jobs)) if path is not None
    ]
    for flag, path in files:
        check_output(path, flag)
    if outputs.jobs is not None and outputs.jobs.suffix not in {".csv", ".parquet"}:
        raise InputError(f"--jobs-out: {outputs.jobs} must end in .csv or .parquet")
    if outputs.report is not None:
        _check_page(outputs.report)
    if options.registry is not None:
        _check_folder("--registry", options.registry)
    taken = {path.resolve(): flag for flag, path in options.files()}
    if options.journal is not None:
        taken[options.journal.resolve()] = "--journal"
    for flag, path in files:
        if not is_plain(path):
            continue  # two outputs may share a pipe
        other = taken.setdefault(path.resolve(), flag)
        if other != flag:
            raise InputError(f"{flag}: {path} is already the file of {other}; name another file")


def _check_page(report: Path) -> None:
    if report.suffix.lower() in {".html", ".htm"} and not report.is_dir():
        raise InputError(f"--report: {report} names a folder (for the page and its plots); leave out {report.suffix}")
    _check_folder("--report", report)


def _check_folder(flag: str, folder: Path) -> None:
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not there.is_dir():
        raise InputError(f"{flag}: {there} is a file; name a folder")
    if not os.access(there, os.W_OK):
        raise InputError(f"{flag}: {there} cannot be written; choose another folder")


def write_outputs(outcome: SimulationOutcome, outputs: Outputs, command: str) -> tuple[list[str], list[str]]:
    """JSON, job rows and page, each whole or not at all: (lines naming the written files, errors).

    If the disk is full for one file, the others are still written.
    """
    written: list[str] = []
    problems: list[str] = []
    for wanted, write in ((outputs.json, _json), (outputs.jobs, _jobs), (outputs.report, _report)):
        if wanted is None:
            continue
        try:
            written.append(write(outcome, wanted, command))
        except InputError as error:
            problems.append(str(error))
    return written, problems


def _json(outcome: SimulationOutcome, path: Path, _command: str) -> str:
    from autopilot.files import write_document

    write_document(outcome.document(), path)
    return f"result: {path}"


def _jobs(outcome: SimulationOutcome, path: Path, _command: str) -> str:
    from simulator.outcome.results import write_job_rows

    write_job_rows(outcome.job_frames(), path)
    return f"jobs: {path}"


def _report(outcome: SimulationOutcome, folder: Path, command: str) -> str:
    from autopilot.app.runs.pages import report_data
    from autopilot.report.page import write_report

    written = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    write_report(report_data(outcome, command, written), folder)
    return f"report: {folder / 'index.html'}"
