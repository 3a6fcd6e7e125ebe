"""The command line. Importing it loads no numpy, pandas or scikit-learn: commands import their own libraries."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from autopilot.app.commands.json_out import JsonCommand, JsonPlace
from autopilot.app.commands.models_cli import models_app
from autopilot.app.commands.planner_cli import PLANNER_COMMANDS
from autopilot.app.commands.run_args import (
    Cluster,
    Columns,
    DefaultsFile,
    Durations,
    EngineName,
    Interval,
    Jitter,
    Jobs,
    JobsOut,
    JournalOut,
    JsonOut,
    LimitsName,
    Partitions,
    PhysicsName,
    PolicyNames,
    PolicySet,
    RateScale,
    ReportDir,
    Requests,
    Scenario,
    Seed,
    ShardsPerGpu,
    SlurmSite,
    TelemetryMode,
    Tenants,
    Timezone,
)
from autopilot.app.options import SHIPPED_NAMES, SimulateOptions
from autopilot.core.model.errors import AutopilotError, InputError, shown
from autopilot.core.model.units import parse_duration_s
from autopilot.operate.audit_cli import audit_app
from autopilot.operate.backtest_cli import backtest_app
from autopilot.operate.check_cli import add_check_command
from autopilot.operate.journal_cli import JOURNAL_COMMANDS, showback
from autopilot.operate.oncall_cli import add_oncall_commands
from autopilot.operate.service_cli import add_service_commands
from autopilot.operate.uninstall.cli import add_uninstall_command
from autopilot.playground.playground_cli import playground
from autopilot.printable import printable

UsageError: type[Any] = typer.BadParameter.__bases__[0]
"""typer's error for a command line with a mistake; typer itself does not export it."""


class Commands(TyperGroup):
    """The commands, each run inside `clear_errors`: typer itself exits without a message at Ctrl-C."""

    def main(self, args: Sequence[str] | None = None, *_: Any, standalone_mode: bool = True, **__: Any) -> Any:
        """Parse the command line and run it. A parse error is one message, as every other error."""
        given = list(sys.argv[1:] if args is None else args)
        if missing := without_value(self, given):
            _say(f"autopilot: {missing}")
            sys.exit(2)
        try:
            code = super().main(given, "autopilot", standalone_mode=False)
        except UsageError as error:
            if type(error).__name__ != "NoArgsIsHelpError":  # a group without a command has printed its help
                _say(f"autopilot: {usage_words(error, given)}")
            code = error.exit_code
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        with clear_errors():
            return super().invoke(ctx)


app = typer.Typer(
    name="autopilot",
    cls=Commands,
    help="gpu-autopilot: runs beside the scheduler of a GPU cluster, measures, forecasts and decides.\n\nStart "
    "with `autopilot demo`: a day on a simulated cluster that the autopilot manages.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
traces_app = typer.Typer(help="Public traces: list and import them.", no_args_is_help=True)
app.add_typer(traces_app, name="traces")
app.add_typer(backtest_app, name="backtest")
app.add_typer(models_app, name="models")
app.add_typer(audit_app, name="audit")
for _command in JOURNAL_COMMANDS:
    app.command(cls=JsonCommand)(_command)
for _planner in PLANNER_COMMANDS:
    app.command(cls=JsonCommand)(_planner)
add_service_commands(app)
app.command()(showback)
add_oncall_commands(app)
app.command()(playground)
add_check_command(app)
add_uninstall_command(app)


@app.command()
def demo(
    seed: Seed = None,
    report: ReportDir = None,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = False,
) -> None:
    """Simulate a day on a 128-GPU cluster under Kueue's rules, least attained service and the autopilot."""
    from autopilot.app.commands.run_commands import run_demo

    run_demo(seed, report, open_page=open_page)


@app.command()
def simulate(
    scenario: Scenario = None,
    jobs: Jobs = None,
    requests: Requests = None,
    columns: Columns = None,
    timezone: Timezone = "",
    partitions: Partitions = None,
    shards_per_gpu: ShardsPerGpu = None,
    cluster: Cluster = None,
    defaults: DefaultsFile = None,
    policy: PolicyNames = None,
    policy_set: PolicySet = None,
    seed: Seed = None,
    tenant: Tenants = None,
    physics: PhysicsName = None,
    durations: Durations = None,
    limits: LimitsName = "file",
    jitter: Jitter = 0.0,
    telemetry: TelemetryMode = None,
    rate_scale: RateScale = 1.0,
    engine: EngineName = None,
    interval: Interval = "30s",
    slurm: SlurmSite = None,
    json_out: JsonOut = None,
    jobs_out: JobsOut = None,
    report: ReportDir = None,
    journal: JournalOut = None,
    registry: Annotated[
        Path | None,
        typer.Option(
            "--registry",
            help="Registry of models: gate new models of demand and of run times, store them in this folder, "
            "and start with those that serve there. Without it every new model serves and none is stored.",
        ),
    ] = None,
) -> None:
    """Compare policies on a trace or a scenario, on a simulated cluster.

    With --engine kueue, Kueue's rules run the cluster and the autopilot only recommends beside it.
    """
    from autopilot.app.commands.run_commands import run_simulate
    from autopilot.app.runs.outputs import Outputs

    names = None if policy is None else tuple(name.strip() for name in policy.split(",") if name.strip())
    if names == ():
        raise InputError("--policy: names no policy; leave it out, or write for example --policy fifo-skip,autopilot")
    options = SimulateOptions(
        scenario=scenario,
        jobs=jobs,
        requests=requests,
        columns=columns,
        timezone=timezone,
        partitions=partitions,
        shards_per_gpu=shards_per_gpu,
        cluster=cluster,
        defaults=defaults,
        policies=names or (),
        policy_set=tuple(policy_set or ()),
        seed=seed,
        tenants=tuple(tenant or ()),
        physics=physics,
        durations=durations,
        limits=limits,
        jitter_ratio=jitter,
        telemetry=telemetry,
        slurm=slurm,
        rate_scale=rate_scale,
        engine=engine,
        interval_s=parse_duration_s(interval, "--interval"),
        journal=journal,
        series=report is not None,
        registry=registry,
    )
    run_simulate(options, Outputs(json_out, jobs_out, report))


@app.command(cls=JsonCommand)
def plan(
    scenario: Scenario = None,
    jobs: Jobs = None,
    requests: Requests = None,
    columns: Columns = None,
    timezone: Timezone = "",
    partitions: Partitions = None,
    shards_per_gpu: ShardsPerGpu = None,
    cluster: Cluster = None,
    defaults: DefaultsFile = None,
    tenant: Tenants = None,
    seed: Seed = None,
    at: Annotated[
        str, typer.Option("--at", help="How far into the scenario or the job file to plan, for example 2h.")
    ] = "1h",
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            help=f"The policy to plan with: {', '.join(SHIPPED_NAMES)}, or a policy file (.yaml).",
        ),
    ] = "recommend",
    json_out: JsonPlace = None,
) -> None:
    """Show what the autopilot would do now, and why, on a simulated cluster under first come first served. Nothing is
    carried out.

    The cluster is the built-in one, that of --scenario, or --cluster; this command never reads your own cluster. --jobs
    plans on your own jobs.
    """
    from autopilot.app.commands.ask_commands import run_plan

    options = SimulateOptions(
        scenario=scenario,
        jobs=jobs,
        requests=requests,
        columns=columns,
        timezone=timezone,
        partitions=partitions,
        shards_per_gpu=shards_per_gpu,
        cluster=cluster,
        defaults=defaults,
        tenants=tuple(tenant or ()),
        seed=seed,
    )
    run_plan(options, at, policy, json_out)


@app.command()
def version() -> None:
    """Print the version."""
    _print_version()


def _print_version(wanted: bool = True) -> None:
    from importlib.metadata import version as version_of

    if wanted:
        typer.echo(f"gpu-autopilot {version_of('gpu-autopilot')}")
        raise typer.Exit


@app.callback()
def everywhere(
    _version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Options of the program itself; `app` holds its help."""


@traces_app.command("list")
def traces_list() -> None:
    """List the public traces that can be imported: publisher, licence, citation."""
    from autopilot.app.commands.run_commands import list_traces

    list_traces()


@traces_app.command("import")
def traces_import(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="The layout: see `autopilot traces list`.")],
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The publisher's file or folder.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Job or request file to write (.parquet or .csv).",
            show_default="KIND.parquet, if that is new",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed for random draws (arrivals within a window).")] = 0,
    start: Annotated[str, typer.Option("--start", help="Skip what precedes this time of the trace.")] = "0s",
    span: Annotated[
        str | None, typer.Option("--span", help="Take only this much, for example 6h.", show_default="all")
    ] = None,
    rate_scale: Annotated[float, typer.Option("--rate-scale", help="Keep this fraction of the requests.")] = 1.0,
    timezone: Timezone = "",
    shards_per_gpu: ShardsPerGpu = None,
) -> None:
    """Convert a public trace to a job or request file."""
    from autopilot.app.commands.run_commands import import_public_trace

    import_public_trace(kind, path, out, seed, start, span, rate_scale, timezone, shards_per_gpu)


def usage_words(error: Any, given: Sequence[str]) -> str:
    """The fault of a command line: the flag, the value if any, the reason, and the place of help."""
    reason = " ".join(error.format_message().split()).rstrip(".")
    flags: Sequence[str] = getattr(getattr(error, "param", None), "opts", ())
    values = [after for flag, after in pairwise(given) if flag in flags]
    values += [word.partition("=")[2] for word in given if "=" in word and word.partition("=")[0] in flags]
    if error.message and values:  # an option with a refused value
        why = " ".join(error.message.split()).rstrip(".")
        why = why.removeprefix("Value error, ").removeprefix("value error, ")
        value = ", ".join(map(shown, values))
        why = why if why.startswith(value) else f"{value} is not allowed: {why[:1].lower()}{why[1:]}"
        reason = f"{flags[0]}: {why}"
    command = error.ctx.command_path if error.ctx is not None else "autopilot"
    return f"{reason}; see `{command} --help`"


def without_value(group: Any, given: Sequence[str]) -> str:
    """The option without a value (it is last, or another option follows and would be taken for its value), in words; ""
    for none.
    """
    command, path = group, "autopilot"
    for word in given:
        if word in (commands := getattr(command, "commands", {})):
            command, path = commands[word], f"{path} {word}"
    kinds = {flag: each for each in command.params for flag in each.opts if flag.startswith("-")}
    kinds |= {flag: each for each in command.params for flag in each.secondary_opts}
    for flag, after in pairwise([*given, None]):
        kind = kinds.get(flag or "")
        takes = kind is not None and not kind.is_flag and not (flag == "--json" and isinstance(command, JsonCommand))
        if takes and (after is None or after in kinds):
            behind = f"and {after} follows" if after is not None else "and nothing follows"
            return f"{flag}: takes a value, {behind}; write one behind it; see `{path} --help`"
    return ""


@contextmanager
def clear_errors() -> Iterator[None]:
    """Report an expected error as one message with exit code 2; exit with 130 at Ctrl-C, and silently on a
    closed pipe.
    """
    try:
        yield
    except InputError as error:
        _say(f"autopilot: {error}")
        sys.exit(2)
    except AutopilotError as error:
        _say(f"autopilot: internal error: {error}. This is a defect; please report it with the command.")
        sys.exit(70)
    except KeyboardInterrupt:
        _say("autopilot: interrupted")
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except MemoryError:
        _say("autopilot: the memory of this process is used up; raise its limit, or give it fewer rows")
        sys.exit(2)
    except OSError as error:  # a path not checked before, a failing disk
        where = f"{error.filename}: " if error.filename else ""
        fix = "; free some space on its disk" if error.errno in {errno.ENOSPC, errno.EDQUOT} else ""
        _say(f"autopilot: {where}{error.strerror or error}{fix}")
        sys.exit(2)


def _say(message: str) -> None:
    typer.echo(printable(message, "\n"), err=True)


THREAD_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Pools of the numeric libraries: their threads spin on cores used by other programs, and gain nothing here."""


def main(arguments: list[str] | None = None) -> Any:
    """Entry point of the console script. The pools have one thread each if the environment sets no other number."""
    for pool in THREAD_POOLS:
        os.environ.setdefault(pool, "1")
    return app(args=arguments, standalone_mode=True)


if __name__ == "__main__":
    main()
