"""The commands about a run: decisions, explain, replay, forecast, showback."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autopilot.app.commands.json_out import JsonPlace
from autopilot.app.commands.planner_cli import PriceFile
from autopilot.app.options import SHIPPED_NAMES
from autopilot.core.model.errors import InputError
from autopilot.core.model.units import parse_duration_s
from autopilot.operate.where import Where, asks

if TYPE_CHECKING:
    from autopilot.app.commands.showback_commands import Words

JournalIn = Annotated[
    Path | None,
    typer.Option("--journal", help="The journal to read.", show_default="that of the service, else of the last run"),
]


@asks
def decisions(
    where: Where,
    action: Annotated[
        str | None, typer.Option("--action", help="Only decisions of this action, for example preempt.")
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option("--workload", help="Only decisions for this workload, or that take GPUs from it."),
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only decisions for work of this tenant.")] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            help="Only decisions from this time of the run on (2h30m), or from this date and time on "
            "(2026-11-23T04:00, UTC) where the journal has dates. For a live cluster, 2h means the last "
            "two hours.",
        ),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Only decisions up to this time.")] = None,
    accepted: Annotated[bool, typer.Option("--accepted", help="Only accepted decisions.")] = False,
    refused: Annotated[bool, typer.Option("--refused", help="Only decisions that a guard refused.")] = False,
    top: Annotated[
        str | None,
        typer.Option("--top", help="gain: largest gain first; loss: largest expected loss first."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            help="Print at most this many decisions: the latest, or with --top the first. 0 prints all.",
            show_default="20, with --json all",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue with new decisions as the run makes them, until Ctrl-C.")
    ] = False,
    json_out: JsonPlace = None,
    journal: JournalIn = None,
) -> None:
    """Find decisions by action, workload, tenant, time or answer, with gain, loss and reason codes.

    Consecutive ticks that repeat a decision are listed once, at the first tick. --json writes one JSON object per line.
    """
    from autopilot.app.commands.decision_commands import Asked, run_decisions
    from autopilot.operate import remote
    from autopilot.operate.finding import asked_run

    asked = Asked(
        action=action,
        workload=workload,
        tenant=tenant,
        since=since,
        until=until,
        accepted=accepted,
        refused=refused,
        top=top,
        limit=limit,
        follow=follow,
        json=json_out,
    )
    with asked_run(where, journal) as run:
        if run.journal is not None:
            run_decisions(run.journal, asked)
        else:
            remote.decisions(run.service, asked)


def replay(
    journal: Annotated[
        Path | None,
        typer.Argument(metavar="JOURNAL", help="The journal to replay.", show_default="as `explain`"),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help=f"Decide under this policy instead ({', '.join(SHIPPED_NAMES)}, or a policy file), and show "
            "what differs.",
        ),
    ] = None,
    json_out: JsonPlace = None,
    named: JournalIn = None,
) -> None:
    """Replay a recorded run: report that it is identical, or the first difference; with --policy, what would change."""
    from autopilot.app.commands.ask_commands import no_baseline, run_replay
    from autopilot.operate.finding import asked_journal

    if journal is not None and named is not None:
        raise InputError("replay: name one journal, as JOURNAL or with --journal")
    no_baseline("replay", policy)
    with asked_journal(journal or named) as path:
        run_replay(path, policy, json_out)


@asks
def explain(
    where: Where,
    decision: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="The id of a proposal, or the number of a tick.", show_default="the last tick"
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option("--workload", help="The history of this workload, and why it runs or waits."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            help="Without an ID: the state at this time of the run, for example 2h.",
            show_default="the end",
        ),
    ] = None,
    json_out: JsonPlace = None,
    journal: JournalIn = None,
) -> None:
    """Explain a decision with every guard's verdict, or the state of one workload."""
    from autopilot.app.commands.ask_commands import run_explain
    from autopilot.operate import remote
    from autopilot.operate.finding import asked_run

    if decision is not None and (workload is not None or at is not None):
        raise InputError("explain: an ID alone identifies the decision; leave out --workload and --at, or the ID")
    at_s = parse_duration_s(at, "--at") if at is not None else None
    with asked_run(where, journal) as run:
        if run.journal is not None:
            run_explain(run.journal, decision, workload, at_s, json_out)
        else:
            remote.explain(run.service, decision, workload, at_s, json_out)


@asks
def forecast(
    where: Where,
    name: Annotated[
        str | None,
        typer.Argument(metavar="SERVICE|JOB", help="A service, or the id of a job.", show_default="with --mix: none"),
    ] = None,
    mix: Annotated[
        bool,
        typer.Option("--mix", help="Expected arrivals in each of the next hours, by pool and kind of gang."),
    ] = False,
    at: Annotated[
        str | None,
        typer.Option("--at", help="As of this time of the run, for example 2h.", show_default="the end"),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture",
            help="File for the plot of forecasts against outcomes (.svg or .png).",
            show_default="in the user's state folder",
        ),
    ] = None,
    json_out: JsonPlace = None,
    journal: JournalIn = None,
) -> None:
    """Show the forecast for a service or a job with its band, and the past coverage of such forecasts in this run."""
    from autopilot.app.commands.forecast_commands import run_forecast
    from autopilot.app.commands.mix_commands import run_mix
    from autopilot.operate import remote
    from autopilot.operate.finding import asked_run

    if mix:
        if name is not None or picture is not None:
            raise InputError(
                "forecast: --mix covers the whole cluster and draws no plot; leave out SERVICE|JOB and --picture"
            )
    elif name is None:
        raise InputError("forecast: name a service or the id of a job, or write --mix for expected arrivals")
    with asked_run(where, journal) as run:
        if run.journal is None:
            remote.forecast(run.service, name, at, picture, json_out)
        elif name is None:
            run_mix(run.journal, at, json_out)
        else:
            run_forecast(run.journal, name, at, picture, json_out)


@asks
def showback(
    where: Where,
    since: Annotated[
        str | None,
        typer.Option("--since", help="From this time on: 24h, or 2026-11-23T04:00.", show_default="the first"),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Up to this time.", show_default="the last")] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            help="tenant, project (queue), type (GPU model), class, user, workload, label:KEY, day or month.",
            show_default="tenant",
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="table, csv, parquet or focus (FinOps FOCUS, a row for each day, owner and SKU).",
            show_default="as the file of --out, else table",
        ),
    ] = None,
    focus: Annotated[
        str | None,
        typer.Option(
            "--focus", help="FOCUS rows of this version: 1.2, or 1.0 for focus-validator.", show_default="1.2"
        ),
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option(
            "--zone",
            help="Time zone of days, months and dates, for example Europe/Berlin.",
            show_default="that of the price file, else UTC",
        ),
    ] = None,
    prices: PriceFile = None,
    target: Annotated[
        Path | None, typer.Option("--out", help="File to write (.csv or .parquet).", show_default="standard output")
    ] = None,
    corrects: Annotated[
        list[Path] | None,
        typer.Option(
            "--corrects",
            help="FOCUS file that was exported before (repeatable): write what follows it, and its corrections.",
        ),
    ] = None,
    forecast: Annotated[
        bool, typer.Option("--forecast", help="The present month of each tenant, forecast and budget.")
    ] = False,
    journal: JournalIn = None,
    metering: Annotated[
        Path | None,
        typer.Option("--metering", help="Folder with segments.", show_default="the one beside the journal"),
    ] = None,
) -> None:
    """Show who used what GPU time and what it costs: allocated, active, idle, lost and borrowed, energy and money.

    Example: autopilot showback --since 2026-02-01 --until 2026-03-01 --by project --prices prices.yaml
    """
    from autopilot.app.commands.showback_commands import Words

    words = Words(since, until, by, form, focus, zone, prices, target, tuple(corrects or ()), forecast)
    words.check()
    _show(words, where, journal, metering)


def _show(words: Words, where: Where, journal: Path | None, metering: Path | None) -> None:
    """The showback of a folder, a recorded run or the service."""
    from autopilot.app.commands.showback_commands import run_showback
    from autopilot.metering.segments import metering_folder
    from autopilot.operate import remote
    from autopilot.operate.finding import asked_run

    if metering is not None:
        run_showback(metering, words)
        return
    with asked_run(where, journal) as run:
        if run.journal is not None:
            run_showback(metering_folder(run.journal.resolve()), words)
            return
        with remote.fetched(run.service, "metering") as folder:
            run_showback(folder, words)


JOURNAL_COMMANDS = (decisions, explain, replay, forecast)
