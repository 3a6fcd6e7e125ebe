"""What the commands do: run, show, write. The only place that prints."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from autopilot.app.options import SimulateOptions
from autopilot.core.errors import InputError
from autopilot.core.units import format_duration, parse_duration_s

if TYPE_CHECKING:
    from autopilot.app.simulate import SimulationOutcome

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Files to write."""

    json: Path | None = None
    jobs: Path | None = None
    report: Path | None = None


def state_folder() -> Path:
    """The user's state folder of this product (XDG_STATE_HOME/gpu-autopilot)."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "gpu-autopilot"


def last_journal() -> Path:
    """The journal of the last run."""
    return state_folder() / "last.journal"


def journal_to_read(given: Path | None) -> Path:
    """The journal that a command reads. Raises `InputError` when there is none."""
    path = given or last_journal()
    if not path.exists():
        hint = (
            ""
            if given
            else " Run `autopilot demo` or `autopilot simulate` first, or name one with --journal."
        )
        raise InputError(f"{path}: there is no journal here.{hint}")
    return path


def journal_to_write(given: Path | None) -> Path:
    """Where a run's journal goes; the state folder is made when needed."""
    if given is not None:
        return given
    folder = state_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder}: the journal cannot be kept here ({error.strerror}); name another place with --journal"
        ) from error
    return last_journal()


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float, int, int], None]]:
    """A bar a policy on a terminal, nothing in a pipe."""
    with Progress(
        SpinnerColumn(), TextColumn("{task.description:<16}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f} jobs"),
        TextColumn("{task.fields[clock]}"), TimeElapsedColumn(), console=err, transient=True, disable=not err.is_terminal,
    ) as bars:  # fmt: skip
        tasks: dict[str, Any] = {}

        def show(policy: str, now_s: float, ended: int, total: int) -> None:
            if policy not in tasks:
                tasks[policy] = bars.add_task(policy, total=max(total, 1), clock="")
            bars.update(
                tasks[policy], completed=ended, total=max(total, 1), clock=f"at {format_duration(now_s)}"
            )

        yield show


def run_simulate(options: SimulateOptions, outputs: Outputs) -> SimulationOutcome:
    """Simulate, print the table, write what was asked for."""
    from autopilot.app.simulate import check_policies, simulate

    check_policies(options.policies)
    check_outputs(outputs)
    options = replace(options, journal=journal_to_write(options.journal))
    with progress_bar() as show:
        outcome = simulate(options, show)
    print_outcome(outcome)
    write_outputs(outcome, outputs)
    if outcome.interrupted:
        err.print("autopilot: interrupted; what is shown and written covers the run up to then")
        sys.exit(130)
    return outcome


def check_outputs(outputs: Outputs) -> None:
    """Refuse before a long run what could not be written after it."""
    for flag, path in (("--json", outputs.json), ("--jobs-out", outputs.jobs)):
        if path is None:
            continue
        if path.is_dir():
            raise InputError(f"{flag}: {path} is a folder; name a file")
        if not path.parent.is_dir():
            raise InputError(f"{flag}: {path.parent} is no folder; create it first")
        if not os.access(path.parent, os.W_OK):
            raise InputError(f"{flag}: {path.parent} cannot be written; choose another folder")
    if outputs.jobs is not None and outputs.jobs.suffix not in {".csv", ".parquet"}:
        raise InputError(f"--jobs-out: {outputs.jobs} must end in .csv or .parquet")
    if outputs.report is not None and outputs.report.is_file():
        raise InputError(f"--report: {outputs.report} is a file; name a folder")


def write_outputs(outcome: SimulationOutcome, outputs: Outputs) -> None:
    """JSON, job rows and page, each whole or not at all."""
    from simulator.results import write_document, write_job_rows

    if outputs.json is not None:
        write_document(outcome.document(), outputs.json)
        out.print(f"result: {outputs.json}")
    if outputs.jobs is not None:
        write_job_rows(outcome.job_frames(), outputs.jobs)
        out.print(f"jobs: {outputs.jobs}")
    if outputs.report is not None:
        from autopilot.app.pages import report_data
        from autopilot.report.page import write_report

        write_report(report_data(outcome, command_line()), outputs.report)
        out.print(f"report: {outputs.report / 'index.html'}")
    for policy in outcome.policies:
        if policy.journal is not None:
            out.print(f"journal: {policy.journal}")


def command_line() -> str:
    """The command as it was given, for the page."""
    return shlex.join(["autopilot", *sys.argv[1:]])


FIGURES: tuple[tuple[str, str, str], ...] = (
    ("allocation (handed out / capacity)", "utilization.allocation_ratio", "ratio"),
    ("hardware (SM-active / handed out)", "utilization.hardware_ratio", "ratio"),
    ("real utilization (SM-active / capacity)", "utilization.real_utilization_ratio", "ratio"),
    ("goodput (useful / handed out)", "utilization.goodput_ratio", "ratio"),
    ("JCT, mean", "jobs.jct_s_mean", "time"),
    ("queue wait, mean", "jobs.queue_wait_s_mean", "time"),
    ("queue wait, p99", "jobs.queue_wait_s_p99", "time"),
    ("inference latency, p99", "slo.p99_latency_s", "time"),
    ("requests over their objective", "slo.violation_ratio", "ratio"),
    ("preemptions", "disruptions.preemptions", "count"),
    ("invariants violated", "invariants.violated", "count"),
    ("simulated in", "wall_s", "time"),
)
"""Rows of the printed table: heading, key in a policy's block, kind."""


def print_outcome(outcome: SimulationOutcome) -> None:
    """The comparison as a table, and what was assumed or left out."""
    world = outcome.world
    out.print(f"{world.title}: {world.spec.nodes} nodes, {world.spec.gpus} GPUs, physics {world.physics}, seed {world.seed}"
              + (f", durations {outcome.setting.durations}" if outcome.setting.durations else ""))  # fmt: skip
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for policy in outcome.policies:
        table.add_column(policy.name, justify="right", no_wrap=True)
    for heading, key, kind in FIGURES:
        table.add_row(heading, *(_cell(policy.result, key, kind) for policy in outcome.policies))
    out.print(table)
    for policy in outcome.policies:
        if policy.result.get("stuck"):
            out.print(f"{policy.name}: {policy.result['stuck']}")
        for violation in policy.simulated.found.violations[:3]:
            out.print(
                f"{policy.name}: violated {violation.checker} at {format_duration(violation.at_s)}: {violation.object}: {violation.message}"
            )
    if world.unusable_by_reason:
        parts = ", ".join(f"{count:,} {reason}" for reason, count in world.unusable_by_reason.items())
        out.print(f"rows left out: {parts}")
    for note in world.notes:
        out.print(note, markup=False)
    if world.assumed:
        out.print(
            "assumed where the file is silent: "
            + ", ".join(f"{name} ({rows:,} rows)" for name, rows in world.assumed.items())
        )


def _cell(result: dict[str, Any], key: str, kind: str) -> str:
    value: Any = result
    for part in key.split("."):
        value = value[part]
    if value is None:
        return "-"
    if kind == "ratio":
        return f"{100 * value:.1f} %"
    return format_duration(value) if kind == "time" else f"{value:,}"


def run_demo(seed: int | None, report: Path | None, *, open_page: bool) -> None:
    """The demo scenario under first come first served and under the autopilot, with a page."""
    folder = report or state_folder() / "demo"
    options = SimulateOptions(scenario="demo", seed=seed)
    outcome = run_simulate(options, Outputs(report=folder))
    from autopilot.app.pages import headline

    out.print()
    out.print(headline(outcome))
    out.print("Why did it do what it did? Ask for any decision of the page: autopilot explain ID")
    page = folder / "index.html"
    if open_page:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def run_plan(scenario: str | None, cluster: str | None, seed: int | None, at: str, policy: str) -> None:
    """Plan once at a moment of a scenario."""
    from autopilot.app.plan import plan_at
    from autopilot.core.explain import explain_decision

    observation, decision = plan_at(scenario, cluster, seed, parse_duration_s(at, "--at"), policy)
    signals = observation.signals
    out.print(f"{signals.allocated_gpus:g} of {signals.capacity_gpus:g} GPUs handed out, {signals.pending_gpus:g} asked for; "
              f"{signals.stranded_gpus:g} free GPUs fit nobody who waits, the widest gang that fits now has {signals.largest_gang_gpus}")  # fmt: skip
    for line in explain_decision(decision):
        out.print(line, markup=False)


def run_replay(journal: Path | None, policy: str | None) -> None:
    """Decide a journal again and print the outcome; exit 1 when it is not identical."""
    from autopilot.replay import replay, replay_lines
    from autopilot.settings import load_policy

    path = journal_to_read(journal)
    candidate = load_policy(policy) if policy else None
    result = replay(path, candidate)
    for line in replay_lines(result):
        out.print(line, markup=False)
    if candidate is None and not result.identical:
        sys.exit(1)


def run_explain(decision: str | None, workload: str | None, at: str | None, journal: Path | None) -> None:
    """Explain a proposal, a tick, or a workload from a journal."""
    from autopilot.app.story import explain_from

    at_s = parse_duration_s(at, "--at") if at is not None else None
    for line in explain_from(journal_to_read(journal), decision, workload, at_s):
        out.print(line, markup=False)


def list_traces() -> None:
    """The table of public traces."""
    from simulator.traces.catalog import TRACE_KINDS

    for kind in TRACE_KINDS.values():
        out.print(f"[bold]{kind.kind}[/bold] ({kind.makes}): {kind.what}")
        out.print(
            f"    {kind.address}\n    reads {kind.files}\n    licence: {kind.licence}\n    cite: {kind.citation}",
            markup=False,
        )


def import_public_trace(
    kind: str, path: Path, target: Path, seed: int, start: str, span: str | None, rate_scale: float
) -> None:
    """Import one public trace and say what became of its rows."""
    from simulator.traces.importers.common import ImportOptions
    from simulator.traces.importing import import_trace

    options = ImportOptions(
        seed=seed, start_s=parse_duration_s(start, "--start"),
        span_s=parse_duration_s(span, "--span") if span is not None else None, rate_scale=rate_scale,
    )  # fmt: skip
    with progress_bar() as show:
        report = import_trace(kind, path, target, options=options,
                              progress=lambda what, part: show(what, 0.0, int(100 * part), 100))  # fmt: skip
    out.print(f"{report.out}: {report.rows_written:,} rows of {report.rows_read:,} read, {report.tenants:,} tenants, "
              f"over {format_duration(report.span_s)}", markup=False)  # fmt: skip
    if report.cluster_out:
        out.print(f"cluster file: {report.cluster_out}", markup=False)
    for heading, counts in (("dropped", report.dropped_by_reason), ("a replay will skip", report.unusable_by_reason),
                            ("assumed", report.assumed)):  # fmt: skip
        for reason, count in counts.items():
            out.print(f"{heading}: {count:,} {reason}", markup=False)
    for note in report.notes:
        out.print(note, markup=False)
