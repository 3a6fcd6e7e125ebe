"""Implementation of simulate, demo and the trace commands: run, print and write."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.control import Control
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.text import Text

from autopilot.app.options import BASELINE_NAMES, SimulateOptions
from autopilot.app.runs.outputs import Outputs, check_outputs, write_outputs
from autopilot.app.runs.run_journals import LAST, new_journal
from autopilot.core.model.errors import InputError
from autopilot.core.model.units import counted, format_duration, format_gpu_s, format_ratio, number, parse_duration_s
from autopilot.files import state_folder
from autopilot.printable import printable

if TYPE_CHECKING:
    from autopilot.app.runs.simulate import SimulationOutcome
    from autopilot.app.runs.world import World

# names of jobs, files and policies are printed verbatim: `[x]` is no markup, `:x:` no emoji


class _Printable(RenderHook):
    """Foreign names reach the terminal without its control characters. Styles are ours and stay."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Each with its text made printable, once it is rendered."""
        return [each if isinstance(each, Control) else _Shown(each) for each in renderables]


@dataclass(frozen=True, slots=True)
class _Shown:
    inner: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for each in console.render(self.inner, options):
            yield each if each.control else Segment(printable(each.text, "\n\t"), each.style)


def _console(*, stderr: bool) -> Console:
    made = Console(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)
    made.push_render_hook(_Printable())
    return made


out, err = _console(stderr=False), _console(stderr=True)

SHOWN_NOTES = 5
"""Number of printed notes on the input; the page has all."""


def last_journal() -> Path:
    """The journal of the last run without --journal."""
    return state_folder() / LAST


def writes_journal(name: str) -> bool:
    """True if a run of that policy keeps a journal: the autopilot's do."""
    from simulator.plugins.registry import registered_names

    return name not in BASELINE_NAMES and name not in registered_names()


@contextmanager
def journal_to_write(given: Path | None, policies: tuple[str, ...]) -> Iterator[Path | None]:
    """The journal of a run, None if no policy keeps one; without `given` a new file in the state folder.

    Raises `InputError` for an unusable path, and for a named journal without a policy that writes one.
    """
    if policies and not any(writes_journal(name) for name in policies):
        if given is not None:
            raise InputError(
                f"--journal: {', '.join(policies)} writes no journal; leave it out, or add autopilot to --policy"
            )
        yield None
    elif given is not None:
        from autopilot.records.journal.journal_file import check_place

        check_place(given, replace=True)
        yield given
    else:
        with new_journal(state_folder()) as path:
            yield path


Show = Callable[[str, int, int, str], None]
"""Called with (name, done, total, progress as text)."""

LINE_EVERY_S = 5.0
"""Seconds between two lines of progress without a terminal."""


@contextmanager
def progress_bar(now_s: Callable[[], float] = time.monotonic) -> Iterator[Show]:
    """One bar per name on a terminal, occasional lines in a pipe. Without a total (0) no percentage is shown."""
    if not err.is_terminal:
        yield _line_by_line(now_s)
        return
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description:<16}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[words]}", markup=False),
        TimeElapsedColumn(),
        console=err,
        transient=True,
    ) as bars:
        tasks: dict[str, Any] = {}

        def show(name: str, done: int, total: int, words: str) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total or None, words=words)
            bars.update(tasks[name], completed=done, words=words)

        yield show


def _line_by_line(now_s: Callable[[], float]) -> Show:
    """Progress as lines on standard error: the first after `LINE_EVERY_S`, so a quick command prints none."""
    printed_s = now_s()

    def show(name: str, done: int, total: int, words: str) -> None:
        nonlocal printed_s
        if now_s() - printed_s >= LINE_EVERY_S:
            printed_s = now_s()
            share = f"{done / total:.0%}, " if total else ""
            err.print(f"{name}: {share}{words}")

    return show


def jobs_done(show: Show) -> Callable[[str, float, int, int], None]:
    """Adapts `show` to the progress reports of a simulation: policy, virtual seconds, jobs ended, jobs in total."""

    def report(policy: str, now_s: float, ended: int, total: int) -> None:
        count = f"{ended:,}/{total:,} jobs " if total else ""
        show(policy, ended, total, f"{count}at {format_duration(now_s)}")

    return report


def run_simulate(options: SimulateOptions, outputs: Outputs) -> SimulationOutcome:
    """Simulate, print the table, write the requested files, and end with the result in one sentence."""
    from autopilot.app.runs.advised import check_advisors
    from autopilot.app.runs.named import check_policies
    from autopilot.app.runs.pages import headline
    from autopilot.app.runs.simulate import simulate

    (check_policies if options.engine is None else check_advisors)(options.policies)
    with journal_to_write(options.journal, options.policies) as journal, progress_bar() as show:
        options = replace(options, journal=journal)
        check_outputs(outputs, options)
        outcome = simulate(options, jobs_done(show))
    print_outcome(outcome)
    written, problems = write_outputs(outcome, outputs, command_line())
    for line in written:
        out.print(line)
    for policy in outcome.policies:
        if policy.journal is not None:
            out.print(f"journal: {policy.journal}")
    out.print()
    out.print(headline(outcome))
    if outcome.failure:
        problems.append(f"{outcome.failure} Not finished: {', '.join(outcome.not_run)}.")
    if outcome.interrupted:
        err.print(f"autopilot: {interrupted_words(outcome)}")
    if problems:
        raise InputError("; ".join(problems))
    if outcome.interrupted:
        sys.exit(130)
    return outcome


def interrupted_words(outcome: SimulationOutcome) -> str:
    """The progress of an interrupted run."""
    last = outcome.policies[-1]
    jobs = sum(service < 0 for service in last.simulated.cluster.jobs.service)
    finished = last.result["jobs"]["finished"]
    more = f"; not run: {', '.join(outcome.not_run)}" if outcome.not_run else ""
    return (
        f"interrupted; {last.name} reached {format_duration(last.simulated.run.end_s)} of its run with "
        f"{finished:,} of {jobs:,} jobs finished{more}. The output covers the run up to then"
    )


def command_line() -> str:
    """The command line as it was entered, for the page."""
    return shlex.join(["autopilot", *sys.argv[1:]])


FIGURES: tuple[tuple[str, str, str], ...] = (
    ("real utilization until the last arrival", "utilization.to_last_arrival.real_utilization_ratio", "ratio"),
    ("useful utilization until the last arrival", "utilization.to_last_arrival.useful_utilization_ratio", "ratio"),
    ("total wait, mean", "jobs.total_wait_s_mean", "time"),
    ("total wait, longest", "jobs.longest_wait_s", "time"),
    ("allocated until the last arrival", "utilization.to_last_arrival.allocation_ratio", "ratio"),
    ("kept progress until the last arrival", "utilization.to_last_arrival_ratio", "ratio"),
    ("allocated over the makespan", "utilization.allocation_ratio", "ratio"),
    ("SM-active / allocated", "utilization.hardware_ratio", "ratio"),
    ("real utilization over the makespan", "utilization.real_utilization_ratio", "ratio"),
    ("goodput (useful / allocated)", "utilization.goodput_ratio", "ratio"),
    ("JCT, mean", "jobs.jct_s_mean", "time"),
    ("queue wait, mean", "jobs.queue_wait_s_mean", "time"),
    ("queue wait, p50", "jobs.queue_wait_s_p50", "time"),
    ("queue wait, p90", "jobs.queue_wait_s_p90", "time"),
    ("queue wait, p99", "jobs.queue_wait_s_p99", "time"),
    ("slowdown, worst tenant", "jobs.slowdown_worst", "number"),
    ("inference latency, p99", "slo.p99_latency_s", "time"),
    ("requests over their objective", "slo.violation_ratio", "ratio"),
    ("preemptions", "disruptions.preemptions", "count"),
    ("moves", "disruptions.migrations", "count"),
    ("evictions per job, mean", "disruptions.evictions_per_job_mean", "number"),
    ("evictions of one job, most", "disruptions.evictions_per_job_max", "count"),
    ("guarantee shortfall", "guarantees.owed_gpu_s", "gpu_time"),
    ("longest guarantee shortfall of a queue", "guarantees.longest_owed_s", "time"),
    ("work lost", "disruptions.lost_gpu_s", "gpu_time"),
    ("stretch of batch work by sharing, mean", "shared_use.batch_stretch_mean", "number"),
    ("stretch of batch work by sharing, p95", "shared_use.batch_stretch_p95", "number"),
    ("slowdown of owners on shared GPUs, mean", "shared_use.owner_slowdown_mean", "number"),
    ("slowdown of owners on shared GPUs, p95", "shared_use.owner_slowdown_p95", "number"),
    ("jobs that finished later than under the baseline", "fared_worse.worse", "count"),
    ("invariants violated", "invariants.violated", "count"),
    ("simulated in", "wall_s", "time"),
)
"""Rows of the printed table: heading, key in a policy's block, kind. A row absent from all policies is omitted."""
SHOWN_WORSE = 3
"""Number of jobs named below the table as having finished later; the JSON and the page name more."""


def print_rows(headings: Sequence[str], rows: Iterable[Sequence[str]], *, figures: bool = False) -> None:
    """Print a table without truncated lines at any width of the terminal, for copying and searching.

    With `figures` every column but the first is right-aligned.
    """
    lines = [[printable(cell) for cell in line] for line in (headings, *rows)]
    widths = [max(cell_len(line[at]) for line in lines) for at in range(len(headings))]
    for line in lines:
        cells = []
        for at, (text, width) in enumerate(zip(line, widths, strict=True)):
            blank = " " * (width - cell_len(text))
            cells.append(blank + text if figures and at else text + blank)
        out.print("  ".join(cells).rstrip())


def print_outcome(outcome: SimulationOutcome) -> None:
    """Print the comparison as a table, and the assumptions and dropped input."""
    from autopilot.report.words import (  # imports numpy, which help does without
        ahead_words,
        fared_lines,
        fared_words,
        refused_words,
    )

    world = outcome.world
    out.print(
        f"{world.title}: {counted(world.spec.nodes, 'node')}, {counted(world.spec.gpus, 'GPU')}, "
        f"physics {world.physics}, seed {world.seed}"
        + (f", durations {outcome.setting.durations}" if outcome.setting.durations else "")
        + (f", engine {outcome.setting.engine} (the autopilot only recommends)" if outcome.setting.engine else "")
    )
    names = [policy.name + (" (interrupted)" if policy.result["interrupted"] else "") for policy in outcome.policies]
    results = [policy.result for policy in outcome.policies]
    if world.recorded:
        names, results = [*names, "as recorded"], [*results, dict(world.recorded)]
    rows = [[heading, *(_cell(result, key, kind) for result in results)] for heading, key, kind in FIGURES]
    if outcome.setting.telemetry == "off":
        rows[0][1:] = ["no telemetry"] * len(names)  # in place of real utilization
    print_rows(["", *names], [row for row in rows if set(row[1:]) != {"-"}], figures=True)
    print_reproduction(outcome.reproduction())
    for policy in outcome.policies:
        if policy.name not in BASELINE_NAMES and (worse := fared_words(policy.result)):
            out.print(f"{policy.name}: {worse}")
            for line in fared_lines(policy.result, SHOWN_WORSE):
                out.print(f"  {line}")
    own = next((policy for policy in outcome.policies if policy.name not in BASELINE_NAMES), None)
    for policy in outcome.policies if own and not outcome.interrupted else ():
        if own and (ahead := ahead_words(policy.name, policy.result, own.name, own.result)):
            out.print(ahead)
    for policy in outcome.policies:
        if "advice" in policy.result:
            out.print(f"{policy.name}: {advice_words(policy.result['advice'])}")
        if refused := refused_words(policy.result):
            out.print(f"{policy.name}: {refused}")
        if policy.result.get("stuck"):
            out.print(f"{policy.name}: {policy.result['stuck']}")
        for note in policy.passed_over:
            out.print(f"{policy.name}: models: {note}")
        for violation in policy.simulated.found.violations[:3]:
            out.print(
                f"{policy.name}: violated {violation.checker} at {format_duration(violation.at_s)}: "
                f"{violation.object}: {violation.message}"
            )
    print_world(world)
    if world.physics == "ideal" and any(_disrupted(policy.result) for policy in outcome.policies):
        out.print(IDEAL)


def print_reproduction(found: dict[str, Any] | None) -> None:
    """Print the agreement of the baselines with the recorded starts; the page has the days and all causes."""
    from autopilot.report.reproduced import TITLE, busy_words, sentence, tables

    if found is None:
        return
    out.print(f"\n{TITLE}")
    for table in tables(found):
        if not table.title.endswith(("by day", "causes")):
            print_rows(table.headings, table.rows, figures=True)
    if words := busy_words(found["policies"][found["closest"]]):
        out.print(words)
    out.print(f"{sentence(found['words'])}\n")


def advice_words(advice: dict[str, Any]) -> str:
    """The autopilot's recommendations beside an engine, on one line."""
    each = ", ".join(f"{action} {count:,}" for action, count in advice["by_action"].items())
    proposals = counted(advice["proposals"], "proposal")
    return f"{proposals} in {counted(advice['ticks'], 'tick')}" + (f": {each}" if each else "")


def print_world(world: World) -> None:
    """Print the dropped input rows, the interpretation of the input, and the assumptions."""
    if world.unusable_by_reason:
        first = {reason: f" (first in {row})" for reason, row in world.first_unusable.items()}
        parts = (f"{count:,} {why}{first.get(why, '')}" for why, count in world.unusable_by_reason.items())
        out.print(f"rows dropped: {', '.join(parts)}")
    for note in world.notes[:SHOWN_NOTES]:
        out.print(note)
    if len(world.notes) > SHOWN_NOTES:
        out.print(f"and {len(world.notes) - SHOWN_NOTES:,} more notes of this kind; the page (--report) lists all")
    if world.assumed:
        out.print(
            "assumed where the file has no value: "
            + ", ".join(f"{name} ({counted(rows, 'row')})" for name, rows in world.assumed.items())
        )


IDEAL = (
    "physics ideal: preemptions and moves cost no time, which favours the policies that use them; compare "
    "with --physics real"
)


def _disrupted(result: dict[str, Any]) -> bool:
    counts = result["disruptions"]
    return any(counts[kind] for kind in ("preemptions", "migrations", "resizes"))


def _cell(result: dict[str, Any], key: str, kind: str) -> str:
    from autopilot.report.words import count, pick

    value = pick(result, *key.split("."))
    if kind == "number":
        return "-" if value is None else f"{value:.2f}"
    show = {"ratio": format_ratio, "time": format_duration, "gpu_time": format_gpu_s}.get(kind, count)
    return show(value)


def run_demo(seed: int | None, report: Path | None, *, open_page: bool) -> None:
    """Run the demo scenario under its policies, and write a page."""
    folder = report or state_folder() / "demo"
    options = SimulateOptions(scenario="demo", seed=seed)
    run_simulate(options, Outputs(report=folder))
    out.print("To see why a decision on the page was made: autopilot explain ID")
    page = folder / "index.html"
    out.print(f"To read the day that was played, open this page in a browser: {page.resolve().as_uri()}")
    if open_page:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def list_traces() -> None:
    """The table of public traces."""
    from simulator.traces.catalog import TRACE_KINDS

    for kind in TRACE_KINDS.values():
        out.print(Text.assemble((kind.kind, "bold"), f" ({kind.makes}): {kind.what}"))
        out.print(f"    {kind.address}\n    reads {kind.files}\n    licence: {kind.licence}\n    cite: {kind.citation}")


def import_public_trace(
    kind: str,
    path: Path,
    target: Path | None,
    seed: int,
    start: str,
    span: str | None,
    rate_scale: float,
    timezone: str,
    shards_per_gpu: int | None,
) -> None:
    """Import one public trace and print the outcome for its rows. Without `target` it goes to KIND.parquet, if there is
    no such file yet.
    """
    from simulator.traces.importers.common import ImportOptions
    from simulator.traces.importing import import_trace

    options = ImportOptions(
        seed=seed,
        start_s=parse_duration_s(start, "--start"),
        span_s=parse_duration_s(span, "--span") if span is not None else None,
        rate_scale=rate_scale,
        timezone=timezone,
        shards_per_gpu=shards_per_gpu,
    )
    if target is None:
        target = Path(f"{kind}.parquet")
        if target.exists():
            raise InputError(f"{target}: already exists; write --out {target} to replace it, or name another file")
    with progress_bar() as show:
        report = import_trace(
            kind,
            path,
            target,
            options=options,
            progress=lambda what, part: show(kind, int(100 * part), 100, f"{part:.0%} {what}"),
        )
    out.print(
        f"{report.out}: {counted(report.rows_written, 'row')} of {number(report.rows_read)} read, "
        f"{counted(report.tenants, 'tenant')}, "
        f"over {format_duration(report.span_s)}"
    )
    if report.cluster_out:
        out.print(f"cluster file: {report.cluster_out}")
    for heading, counts in (
        ("dropped", report.dropped_by_reason),
        ("a replay will skip", report.unusable_by_reason),
        ("assumed", report.assumed),
    ):
        for reason, count in counts.items():
            out.print(f"{heading}: {count:,} {reason}")
    for note in report.notes:
        out.print(note)
