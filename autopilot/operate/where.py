"""The options for the service or the run of a command, the same for every command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

Config = Annotated[
    Path | None, typer.Option("--config", help="Settings of the service (YAML; docs/settings.md has every field).")
]
State = Annotated[
    Path | None,
    typer.Option("--state", help="State folder of the service.", show_default="that of the settings"),
]
Server = Annotated[
    str | None, typer.Option("--server", help="Address of the service.", show_default="the one on this machine")
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="File with your token.", show_default="that of the service here")
]


@dataclass(frozen=True, slots=True)
class Where:
    """The service named by a command; all None: the one on this machine."""

    config: Path | None = None
    state: Path | None = None
    server: str | None = None
    token_file: Path | None = None

    @property
    def names_one(self) -> bool:
        """True if an option names a service."""
        return self.config is not None or self.state is not None or self.server is not None


OPTIONS: dict[str, Any] = {"config": Config, "state": State, "server": Server, "token_file": TokenFile}


def asks(command: Callable[..., None]) -> Callable[..., None]:
    """The command with `OPTIONS`, taken as one argument `where`. An option of its own keeps its meaning."""
    own = inspect.signature(command, eval_str=True)
    added = {name: kind for name, kind in OPTIONS.items() if name not in own.parameters}
    given = [each for name, each in own.parameters.items() if name != "where"]
    given += [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=kind)
        for name, kind in added.items()
    ]

    @wraps(command)
    def asking(**values: Any) -> None:
        where = Where(**{name: values.pop(name, None) for name in added})
        command(where=where, **values)

    asking.__signature__ = own.replace(parameters=given)  # type: ignore[attr-defined]
    return asking
