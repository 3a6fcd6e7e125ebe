"""The command line of alerts and runbooks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autopilot.app.commands.json_out import JsonCommand, JsonPlace
from autopilot.core.model.errors import InputError
from autopilot.operate.where import Where, asks


@asks
def alerts(
    where: Where,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most this many alerts, the latest.")] = 20,
    journal: Annotated[
        Path | None, typer.Option("--journal", help="Read every stage of every alert from this journal instead.")
    ] = None,
    json_out: JsonPlace = None,
) -> None:
    """List the alerts that the running service received, and what happens about each; with --journal what happened."""
    from autopilot.operate.finding import find_api
    from autopilot.operate.oncall_client import show_alerts, show_steps

    if journal is not None:
        show_steps(journal, json_out)
        return
    show_alerts(find_api(where), limit, json_out)


@asks
def runbook(
    where: Where,
    alert: Annotated[
        str | None, typer.Argument(metavar="ALERT", help="Name of the alert.", show_default="lists all runbooks")
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option("--label", help="A label of the alert, NAME=VALUE, for example pool=a100; repeat it for more."),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Print the text without asking the service.")] = False,
) -> None:
    """Print the runbook of an alert, with live answers to its queries from the running service."""
    from autopilot.operate.oncall_client import list_runbooks, print_runbook, show_runbook

    if alert is None and labels:
        raise InputError(f"--label: {labels[0]!r} is of no alert; name the ALERT as well")
    if alert is None:
        list_runbooks(where.config)
    elif offline:
        print_runbook(where.config, alert)
    else:
        from autopilot.operate.finding import find_api, journal_of

        show_runbook(find_api(where), alert, labels or [], journal_of(where))


def add_oncall_commands(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for each in (alerts, runbook):
        app.command(cls=JsonCommand if each is alerts else None)(each)
