"""`autopilot models`: the options of its commands. Importing it loads nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

models_app = typer.Typer(
    help="The registry of forecasting models: what serves, what served before, promotion and rollback.",
    no_args_is_help=True,
)

Folder = Annotated[
    Path | None,
    typer.Option("--registry", help="Folder of the registry.", show_default="in the user's state folder"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Version = Annotated[
    str,
    typer.Argument(
        metavar="VERSION",
        help="The beginning of a version (4 characters or more), or a kind for what serves.",
    ),
]
Kind = Annotated[str, typer.Argument(metavar="KIND", help="bursts or runtimes.")]
By = Annotated[str | None, typer.Option("--by", help="Who does it, for the record.", show_default="the user's name")]


@models_app.command("list")
def list_command(
    kind: Annotated[
        str | None, typer.Option("--kind", help="Only bursts, or only runtimes.", show_default="both")
    ] = None,
    as_json: Json = False,
    registry: Folder = None,
) -> None:
    """Every version, newest first: which serves, what it was fitted on, what the gate said."""
    from autopilot.app.commands.model_commands import list_models

    list_models(registry, kind, as_json=as_json)


@models_app.command()
def show(version: Version, as_json: Json = False, registry: Folder = None) -> None:
    """One version: data, features, parameters, libraries, scores, the gate's verdict, who promoted it and why."""
    from autopilot.app.commands.model_commands import show_model

    show_model(registry, version, as_json=as_json)


@models_app.command()
def diff(one: Version, other: Version, as_json: Json = False, registry: Folder = None) -> None:
    """In what two versions differ."""
    from autopilot.app.commands.model_commands import diff_models

    diff_models(registry, one, other, as_json=as_json)


@models_app.command()
def promote(
    version: Version,
    why: Annotated[str, typer.Option("--why", help="The reason, for the record.")],
    by: By = None,
    force: Annotated[
        bool, typer.Option("--force", help="Although the gate said no, or was not asked; recorded as forced.")
    ] = False,
    registry: Folder = None,
) -> None:
    """Let a version serve, if the gate let it pass against what serves now. A running controller takes it up when it
    starts again.
    """
    from autopilot.app.commands.model_commands import promote_model

    promote_model(registry, version, by, why, force=force)


@models_app.command()
def rollback(
    kind: Kind,
    why: Annotated[str, typer.Option("--why", help="The reason, for the record.")] = "",
    by: By = None,
    registry: Folder = None,
) -> None:
    """Let the version serve that served before: one step back. A running controller takes it up when it starts
    again.
    """
    from autopilot.app.commands.model_commands import rollback_models

    rollback_models(registry, kind, by, why)


@models_app.command("lineage")
def lineage_command(version: Version, as_json: Json = False, registry: Folder = None) -> None:
    """A version and those that served when it, its parent, and so on, were made."""
    from autopilot.app.commands.model_commands import show_lineage

    show_lineage(registry, version, as_json=as_json)


@models_app.command()
def gc(
    keep: Annotated[
        int,
        typer.Option("--keep", help="Versions of a kind that stay: as many that served, as many of the newest."),
    ] = 10,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    registry: Folder = None,
) -> None:
    """Free the disk of old versions. What serves, and what served last, stays."""
    from autopilot.app.commands.model_commands import collect_garbage

    collect_garbage(registry, keep, dry_run=dry_run)
