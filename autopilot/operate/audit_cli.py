"""`autopilot audit`: the options of its commands. Importing it loads no heavy library."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autopilot.app.commands.json_out import JsonCommand, JsonPlace
from autopilot.operate.where import Where, asks

audit_app = typer.Typer(
    help="The audit log: who did what, from where, on which state.",
    no_args_is_help=True,
)

Folder = Annotated[
    Path | None,
    typer.Argument(metavar="FOLDER", help="Folder of the audit log.", show_default="that of the service"),
]


@audit_app.command(cls=JsonCommand)
@asks
def verify(
    where: Where,
    folder: Folder = None,
    keys: Annotated[
        list[Path] | None,
        typer.Option(
            "--key", help="Public key of the seals; repeat it after a change of keys.", show_default="FOLDER.key.pub"
        ),
    ] = None,
    heads: Annotated[
        list[str] | None,
        typer.Option(
            "--head",
            help="An exported head, SEQUENCE:DIGEST, from the log line `audit sealed` or the metric. It must be in the "
            "log. Without one, lines that were cut from the end are not noticed.",
        ),
    ] = None,
    json_out: JsonPlace = None,
) -> None:
    """Check that no line was changed, removed or inserted, and that every seal is valid. Ends with 1 when one was."""
    from autopilot.app.commands.audit_commands import run_verify
    from autopilot.operate.finding import asked_audit

    with asked_audit(where, folder) as place:
        run_verify(place, keys or [], heads or [], json_out)


@audit_app.command(cls=JsonCommand)
@asks
def show(
    where: Where,
    folder: Folder = None,
    who: Annotated[str | None, typer.Option("--who", help="Only entries of this person or action.")] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="Only entries of this kind, for example command or denied.")
    ] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", help="Only entries about this proposal, workload or node.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", help="Only entries from this time on: 2h ago, or a date and time (2026-11-23T04:00, UTC)."
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", help="At most this many entries, the latest. 0 shows all.", show_default="20, with --json all"
        ),
    ] = None,
    json_out: JsonPlace = None,
) -> None:
    """List entries. --json writes one JSON object per line."""
    from autopilot.app.commands.audit_commands import run_show
    from autopilot.operate.finding import asked_audit

    with asked_audit(where, folder) as place:
        run_show(place, who, kind, subject, since, limit, json_out)
