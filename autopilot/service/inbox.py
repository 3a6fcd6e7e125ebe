"""The commands of people, on disk before they are confirmed (port `Inbox`)."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Command, CommandKind

_TABLE = """CREATE TABLE IF NOT EXISTS commands (
    number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, who TEXT NOT NULL, at_s REAL NOT NULL,
    subject TEXT NOT NULL, state_digest TEXT NOT NULL, benefit_gpu_s REAL, cost_gpu_s REAL, origin TEXT NOT NULL)"""
_COLUMNS = "number, kind, who, at_s, subject, state_digest, benefit_gpu_s, cost_gpu_s"


class CommandInbox(Protocol):
    """Where the API puts commands, and the controller takes them from."""

    def receive(self, command: Command, origin: str = "") -> Command:
        """Store a command and return it with its number. Raises `InputError` where it cannot be stored."""
        ...

    def received(self, origin: str) -> Command | None:
        """The command that came from there, if one did. Raises `InputError`."""
        ...

    def drain(self, now_s: float) -> tuple[Command, ...]:
        """Commands received since the last call, by number."""
        ...

    def kill_switch(self) -> bool:
        """True when the switch is on or cannot be read."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class SqliteInbox:
    """Numbers each command on receipt; a number is never used twice, even after a restart.

    After a crash the commands that the saved memory does not know are delivered again.
    """

    def __init__(self, path: Path, kill_switch: Callable[[], str], after: int = -1) -> None:
        """`kill_switch` returns why it is on. `after`: the last number that the memory of the controller knows."""
        self._path, self._kill_switch = path, kill_switch
        self._delivered = after
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute(_TABLE)
        except sqlite3.Error as error:
            raise self._refusal(error) from error

    def receive(self, command: Command, origin: str = "") -> Command:
        """Store a command and return it with its number. Raises `InputError` where it cannot be stored.

        `origin`: where it came from, kept for the record.
        """
        row = (
            command.kind.value,
            command.who,
            command.at_s,
            command.subject,
            command.state_digest,
            command.benefit_gpu_s,
            command.cost_gpu_s,
            origin,
        )
        try:
            with self._lock:
                number = self._db.execute(
                    "INSERT INTO commands (kind, who, at_s, subject, state_digest, benefit_gpu_s, cost_gpu_s, origin) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    row,
                ).lastrowid
        except sqlite3.Error as error:
            raise self._refusal(error) from error
        return _command((number, *row[:-1]))

    def received(self, origin: str) -> Command | None:
        """The command that came from there, if one did. Raises `InputError`."""
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
        """True when the switch is on or cannot be read."""
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
    number, kind, who, at_s, subject, digest, benefit, cost = row
    nan = float("nan")
    return Command(
        CommandKind(str(kind)),
        str(who),
        float(str(at_s)),
        str(subject),
        str(digest),
        int(str(number)) - 1,  # SQLite counts from 1
        nan if benefit is None else float(str(benefit)),
        nan if cost is None else float(str(cost)),
    )
