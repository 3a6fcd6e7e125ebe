"""`autopilot models`: the options of its commands. Importing it loads no heavy library."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

models_app = typer.Typer(
    help="The registry of forecasting models: versions, promotion and rollback.",
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
        help="A prefix of a version (4 characters or more), or a kind for the version that serves.",
    ),
]
Kind = Annotated[str, typer.Argument(metavar="KIND", help="bursts or runtimes.")]
By = Annotated[str | None, typer.Option("--by", help="Author, for the record.", show_default="the user's name")]


@models_app.command("list")
def list_command(
    kind: Annotated[
        str | None, typer.Option("--kind", help="Only bursts, or only runtimes.", show_default="both")
    ] = None,
    as_json: Json = False,
    registry: Folder = None,
) -> None:
    """List every version, newest first: whether it serves, its training data, the verdict of the gate."""
    from autopilot.app.commands.model_commands import list_models

    list_models(registry, kind, as_json=as_json)


@models_app.command()
def show(version: Version, as_json: Json = False, registry: Folder = None) -> None:
    """Show one version: data, features, parameters, libraries, scores, verdict of the gate, promotions and their
    reasons.
    """
    from autopilot.app.commands.model_commands import show_model

    show_model(registry, version, as_json=as_json)


@models_app.command()
def diff(one: Version, other: Version, as_json: Json = False, registry: Folder = None) -> None:
    """Show the fields in which two versions differ."""
    from autopilot.app.commands.model_commands import diff_models

    diff_models(registry, one, other, as_json=as_json)


@models_app.command()
def promote(
    version: Version,
    why: Annotated[str, typer.Option("--why", help="The reason, for the record.")],
    by: By = None,
    force: Annotated[
        bool, typer.Option("--force", help="Promote although the gate refused or did not judge it; recorded as forced.")
    ] = False,
    registry: Folder = None,
) -> None:
    """Serve a version, if it passed the gate against the one that serves now. A running controller loads it at its next
    start.
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
    """Serve the previous version again: one step back. A running controller loads it at its next start."""
    from autopilot.app.commands.model_commands import rollback_models

    rollback_models(registry, kind, by, why)


@models_app.command("lineage")
def lineage_command(version: Version, as_json: Json = False, registry: Folder = None) -> None:
    """Show a version, its parent (which served when it was made), and so on."""
    from autopilot.app.commands.model_commands import show_lineage

    show_lineage(registry, version, as_json=as_json)


@models_app.command()
def gc(
    keep: Annotated[
        int,
        typer.Option(
            "--keep", help="Versions to keep per kind: this many that have served, and this many of the newest."
        ),
    ] = 10,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be dropped.")] = False,
    registry: Folder = None,
) -> None:
    """Delete old versions. The versions that serve now and served last are kept."""
    from autopilot.app.commands.model_commands import collect_garbage

    collect_garbage(registry, keep, dry_run=dry_run)
