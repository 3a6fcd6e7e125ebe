"""The commands of people, on disk before they are confirmed (port `Inbox`)."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import msgspec

from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Command, CommandKind

_TABLE = """CREATE TABLE IF NOT EXISTS commands (
    number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, who TEXT NOT NULL, at_s REAL NOT NULL,
    subject TEXT NOT NULL, state_digest TEXT NOT NULL, benefit_gpu_s REAL, cost_gpu_s REAL, origin TEXT NOT NULL,
    command TEXT)"""
_COLUMNS = "number, kind, who, at_s, subject, command"


def command_text(command: Command) -> str:
    """A command as JSON, for an inbox."""
    return json.dumps(msgspec.to_builtins(command))


def read_command(text: str) -> Command:
    """The inverse of `command_text`. Raises `ValueError` for any other text."""
    try:
        return msgspec.convert(json.loads(text), Command)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


class CommandInbox(Protocol):
    """The inbox between the API and the controller."""

    def receive(self, command: Command, origin: str = "") -> Command:
        """Store a command and return it with its number. Raises `InputError` if it cannot be stored."""
        ...

    def received(self, origin: str) -> Command | None:
        """The command from this origin, if there is one. Raises `InputError`."""
        ...

    def drain(self, now_s: float) -> tuple[Command, ...]:
        """Commands received since the last call, by number."""
        ...

    def kill_switch(self) -> bool:
        """True for a switch that is on or unreadable."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class SqliteInbox:
    """Numbers each command on receipt; a number is never used twice, even after a restart.

    After a crash the commands unknown to the saved memory are delivered again.
    """

    def __init__(self, path: Path, kill_switch: Callable[[], str], after: int = -1) -> None:
        """`kill_switch` returns the reason of a switch that is on.

        `after`: the last number known to the controller's memory.
        """
        self._path, self._kill_switch = path, kill_switch
        self._delivered = after
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute(_TABLE)
            if "command" not in {row[1] for row in self._db.execute("PRAGMA table_info(commands)")}:
                self._db.execute("ALTER TABLE commands ADD COLUMN command TEXT")
        except sqlite3.Error as error:
            raise self._refusal(error) from error

    def receive(self, command: Command, origin: str = "") -> Command:
        """Store a command and return it with its number. Raises `InputError` if it cannot be stored.

        `origin`: its source, kept for the record.
        """
        row = (command.kind.value, command.who, command.at_s, command.subject, origin, command_text(command))
        try:
            with self._lock:
                number = self._db.execute(
                    "INSERT INTO commands (kind, who, at_s, subject, state_digest, origin, command) "
                    "VALUES (?, ?, ?, ?, '', ?, ?)",
                    row,
                ).lastrowid
        except sqlite3.Error as error:
            raise self._refusal(error) from error
        return replace(command, sequence=(number or 0) - 1)  # SQLite counts from 1

    def received(self, origin: str) -> Command | None:
        """The command from this origin, if there is one. Raises `InputError`."""
        try:
            with self._lock:
                row = self._db.execute(
                    f"SELECT {_COLUMNS} FROM commands WHERE origin = ? ORDER BY number DESC LIMIT 1",  # noqa: S608
                    (origin,),
                ).fetchone()
        except sqlite3.Error as error:
            raise self._refusal(error) from error
        return None if row is None else _command(row)

    def drain(self, now_s: float) -> tuple[Command, ...]:
        """Commands received since the last call, by number."""
        try:
            with self._lock:
                rows = self._db.execute(
                    f"SELECT {_COLUMNS} FROM commands WHERE number > ? ORDER BY number",  # noqa: S608 - constants
                    (self._delivered + 1,),
                ).fetchall()
        except sqlite3.Error as error:
            raise self._refusal(error) from error
        found = tuple(_command(row) for row in rows)
        if found:
            self._delivered = found[-1].sequence
        return found

    def kill_switch(self) -> bool:
        """True for a switch that is on or unreadable."""
        return bool(self._kill_switch())

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def _refusal(self, error: sqlite3.Error) -> InputError:
        return InputError(
            f"{self._path}: the inbox of commands cannot be used: {error}; free some space or make the folder writable"
        )


def _command(row: tuple[object, ...]) -> Command:
    number, kind, who, at_s, subject, text = row
    sequence = int(str(number)) - 1
    if text is None:  # written by an earlier version: it says less of the person's view
        return Command(CommandKind(str(kind)), str(who), float(str(at_s)), str(subject), sequence)
    return replace(read_command(str(text)), sequence=sequence)
