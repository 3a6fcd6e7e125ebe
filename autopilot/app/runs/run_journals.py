"""Journals of runs without --journal: one file per run in the state folder, and `last.journal`, a link to the
newest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from autopilot.core.model.errors import InputError

LAST = "last.journal"
_TRIES = 1000


@contextmanager
def new_journal(folder: Path) -> Iterator[Path]:
    """A new file for the journal of one run; `last.journal` points to it.

    After a run without a record it is removed, and `last.journal` points to the previous one again. Raises `InputError`
    if the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = _reserve(folder)
        before = _point(folder, path)
    except OSError as error:
        raise InputError(
            f"{folder}: the journal cannot be written here ({error.strerror}); set XDG_STATE_HOME to a "
            "folder with write access (or give `simulate` another path with --journal)"
        ) from error
    try:
        yield path
    finally:
        with suppress(OSError):
            if not path.stat().st_size:
                path.unlink()
                if _target(folder) == path.name:
                    _link(folder, before) if before else (folder / LAST).unlink()


def _reserve(folder: Path) -> Path:
    """Create an empty file under an unused name."""
    start = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    for number in range(1, _TRIES):
        path = folder / (f"run-{start}.journal" if number == 1 else f"run-{start}-{number}.journal")
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o664))
            return path
    raise InputError(f"{folder}: {_TRIES:,} runs started in this second; try again, or name a journal with --journal")


def _point(folder: Path, path: Path) -> str:
    """Point `last.journal` to `path`; returns its previous target. A plain file of that name is renamed."""
    last, before = folder / LAST, _target(folder)
    if last.exists() and not last.is_symlink():  # an earlier version wrote here
        kept = _reserve(folder)
        last.replace(kept)
        before = kept.name
    _link(folder, path.name)
    return before


def _target(folder: Path) -> str:
    try:
        return os.readlink(folder / LAST)  # noqa: PTH115 - its text, as it was written
    except OSError:
        return ""


def _link(folder: Path, name: str) -> None:
    """Replace the link atomically."""
    temporary = folder / f".{LAST}.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(name)
    temporary.replace(folder / LAST)
