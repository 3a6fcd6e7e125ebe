"""`--json` of reading commands: without a path it prints JSON to standard output instead of text, with a path it writes
a file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from autopilot.files import replace_file

STDOUT = Path("-")
JsonPlace = Annotated[
    Path | None,
    typer.Option("--json", metavar="[PATH]", help="Print JSON instead of text; with a path, write it there."),
]


class JsonCommand(TyperCommand):
    """A command whose `--json` may appear without a path."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert standard output if no path follows."""
        return super().parse_args(ctx, with_place(args))


def with_place(arguments: Sequence[str]) -> list[str]:
    """The arguments with `-` after each `--json` at the end or before another option."""
    found: list[str] = []
    for at, word in enumerate(arguments):
        found.append(word)
        following = arguments[at + 1] if at + 1 < len(arguments) else None
        if word == "--json" and (following is None or (following.startswith("-") and following != "-")):
            found.append(str(STDOUT))
    return found


def write_json(place: Path, document: Mapping[str, Any]) -> None:
    """Write one document. Raises `InputError` if the file cannot be written."""
    if place == STDOUT:
        sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
        return
    from autopilot.files import write_document

    write_document(document, place)


def write_lines(place: Path, documents: Iterable[Mapping[str, Any]]) -> None:
    """Write one document per line (JSON Lines) as they arrive. Raises `InputError` if the file cannot be written."""
    lines = (json.dumps(each, allow_nan=False) + "\n" for each in documents)
    if place == STDOUT:
        for line in lines:
            sys.stdout.write(line)
        sys.stdout.flush()  # a process following the file sees whole lines
        return

    def fill(file: Path) -> None:
        with file.open("w", encoding="utf-8") as opened:
            opened.writelines(lines)

    replace_file(place, fill)
