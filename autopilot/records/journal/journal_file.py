"""The record of a run in one SQLite file: written once, read by replay and explain.

Ticks are stored in segments. A segment starts with a keyframe (complete observation, policy and memory), followed by
changes in two compressed streams, one of observations and one of decisions, so that decisions can be read alone. When
the file exceeds its limits, whole segments are dropped, oldest first.

Live, a decision is on disk before its effects begin. In a simulation the order is the same, but writes are not synced:
a machine crash may lose the record, a program crash some ticks.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from autopilot.core.model.errors import InputError, invariant
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.policy.bounds import JournalRules
from autopilot.core.model.records import Decision, Instruction, Observation, Outcome
from autopilot.files import Lock, lock_beside, target_of
from autopilot.records.journal.alerts import TABLE as ALERTS
from autopilot.records.journal.alerts import AlertStep, write_steps
from autopilot.records.journal.decisions import DecisionEncoder, outcomes_bytes
from autopilot.records.journal.observations import ObservationEncoder

SCHEMA = "gpu-autopilot/journal/4"
APPLICATION_ID = 0x67706A31
"""SQLite's application id, which marks the file as ours."""

COMMIT_TICKS = 200
"""Ticks per transaction where writes are not synced."""

_LEVEL = 1
_MAGIC = b"SQLite format 3\x00"
_TABLES = (
    "CREATE TABLE runs (run INTEGER PRIMARY KEY, schema TEXT, version TEXT, created_s REAL, description TEXT)",
    "CREATE TABLE segments (first INTEGER PRIMARY KEY, run INTEGER, starts INTEGER, now_s REAL)",
    """CREATE TABLE ticks (number INTEGER PRIMARY KEY, tick INTEGER, now_s REAL, observation BLOB, signals BLOB,
    decision BLOB, checksum INTEGER)""",
    "CREATE INDEX ticks_by_tick ON ticks (tick)",
    "CREATE TABLE outcomes (number INTEGER, data BLOB)",
    "CREATE INDEX outcomes_by_number ON outcomes (number)",
    "CREATE TABLE proposals (id TEXT, number INTEGER, tick INTEGER, workload TEXT)",
    "CREATE INDEX proposals_by_id ON proposals (id)",
    "CREATE INDEX proposals_by_workload ON proposals (workload)",
)


class SqliteJournal:
    """The writer. Call `intend` before the effects of a tick, `conclude` after; `close` in any case.

    Raises `InputError` where the record cannot be written; what was written until then stays readable.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        durable: bool,
        rules: JournalRules,
        version: str = "",
        run: Mapping[str, Any] | None = None,
        replace: bool = False,
        created_s: float | None = None,
    ) -> None:
        """Open or create the record at `path` and start a run in it.

        `durable`: every decision is on disk before `intend` returns. `run` describes the run in plain values (shown by
        replay). `replace`: overwrite an older record at `path`; otherwise append the run to it.
        """
        self.path = Path(path)
        self.rules = rules
        self._commit_ticks = 1 if durable else COMMIT_TICKS
        self._observations, self._decisions = ObservationEncoder(), DecisionEncoder()
        self._streams: list[Any] = []
        self._rows: list[tuple[Any, ...]] = []
        self._outcomes: list[tuple[int, bytes]] = []
        self._proposals: list[tuple[str, int, int, str]] = []
        self._segments: list[tuple[int, int, int, float]] = []
        self._alerts: deque[AlertStep] = deque()  # filled from another thread
        self._known_proposals: set[str] = set()
        self._segment: tuple[int, float] | None = None  # first number and time of the current segment
        self._last_tick: int | None = None
        self._failed = ""
        self._open = False
        self._lock: Lock
        check_place(self.path, replace=replace)
        place = target_of(self.path)
        with self._guard("opened"):
            self._lock = lock_beside(place)
        try:
            self._begin_run(place, version, run, created_s, durable=durable, replace=replace)
        except InputError:
            if self._open:
                self._open = False
                self._db.close()
            self._lock.free()
            raise

    def _begin_run(
        self,
        place: Path,
        version: str,
        run: Mapping[str, Any] | None,
        created_s: float | None,
        *,
        durable: bool,
        replace: bool,
    ) -> None:
        with self._guard("opened"):
            if replace:
                _remove(place)
            self._db = sqlite3.connect(place, isolation_level=None, check_same_thread=False)
            self._open = True
            self._prepare(durable)
            created_s = time.time() if created_s is None else created_s
            about = json.dumps(dict(run or {}), default=str)
            row = (SCHEMA, version, created_s, about)
            self._run = self._db.execute(
                "INSERT INTO runs (schema, version, created_s, description) VALUES (?, ?, ?, ?)", row
            ).lastrowid
            last = self._db.execute("SELECT max(number) FROM ticks").fetchone()[0]
            self._next = 0 if last is None else last + 1

    def _prepare(self, durable: bool) -> None:
        db = self._db
        fresh = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if fresh:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
        db.execute("PRAGMA journal_size_limit = 16777216")
        if fresh:
            db.execute("BEGIN")
            for statement in _TABLES:
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute("COMMIT")
        elif others := other_schemas(db):
            raise InputError(
                f"{self.path}: written as {others}; this version writes {SCHEMA}, and no version reads a mixture. "
                "Move it away; the version that wrote it reads it"
            )
        db.execute(ALERTS)

    # --- the port --------------------------------------------------------------------------------

    def intend(
        self,
        observation: Observation,
        policy: Policy,
        memory: ControllerMemory,
        decision: Decision,
        instructions: Sequence[Instruction],
    ) -> None:
        """Record one tick before its effects; `memory` is the one used for the decision."""
        self._refuse_when_failed()
        now_s, number = observation.now_s, self._next
        if self._segment is None or self._is_due(now_s, number):
            self._begin_segment(now_s, number, memory.now_s)
        seen, signals = self._observations.encode(observation)
        encoder = self._observations
        decided = self._decisions.encode(
            policy, memory, decision, instructions, encoder.workload_rows, encoder.whole_workloads
        )
        blobs = [_squeeze(stream, data) for stream, data in zip(self._streams, (seen, decided), strict=True)]
        checksum = checksum_of(blobs[0], signals, blobs[1])
        self._rows.append((number, observation.tick, now_s, blobs[0], signals, blobs[1], checksum))
        for proposal in decision.plan.proposals:
            if proposal.id not in self._known_proposals:
                self._known_proposals.add(proposal.id)
                self._proposals.append((proposal.id, number, observation.tick, proposal.subject.name))
        self._next = number + 1
        self._last_tick = observation.tick
        if len(self._rows) >= self._commit_ticks:
            self.flush()

    def conclude(self, tick: int, outcomes: Sequence[Outcome]) -> None:
        """Record the outcomes of the instructions of `tick`, the last one intended."""
        self._refuse_when_failed()
        if not outcomes:
            return
        invariant(tick == self._last_tick, f"outcomes of tick {tick} come after tick {self._last_tick} was recorded")
        self._outcomes.append((self._next - 1, outcomes_bytes(outcomes)))
        if self._commit_ticks == 1:
            self.flush()

    def note(self, steps: Sequence[AlertStep]) -> None:
        """Record what happened to alerts, with the next tick. May be called from any thread."""
        self._alerts.extend(steps)

    # --- segments --------------------------------------------------------------------------------

    def _is_due(self, now_s: float, number: int) -> bool:
        """Whether a keyframe is due; a clock that went backwards starts a segment, too."""
        assert self._segment is not None  # noqa: S101 - for the type checker
        first, since_s = self._segment
        if now_s < since_s:
            return True
        return now_s - since_s >= self.rules.keyframe_s and number - first >= self.rules.keyframe_ticks

    def _begin_segment(self, now_s: float, number: int, last_s: float) -> None:
        starts = self._segment is None
        if not starts:
            self.flush()
            self._drop_old(now_s, jumped=isfinite(last_s) and now_s - last_s > self.rules.keyframe_s)
        self._observations.restart()
        self._decisions.restart()
        self._known_proposals.clear()
        self._streams = [zlib.compressobj(_LEVEL, zlib.DEFLATED, -15) for _ in range(2)]
        self._segment = (number, now_s)
        self._segments.append((number, self._run or 0, int(starts), now_s))

    def _drop_old(self, now_s: float, *, jumped: bool) -> None:
        """Drop the oldest whole segments by age and size. After a jump of the clock, age does not count."""
        with self._guard("shortened"):
            limit = self.rules.max_mib * 1024 * 1024
            firsts = self._db.execute("SELECT first, now_s, run FROM segments ORDER BY first").fetchall()
            dropped = False
            for at in range(len(firsts) - 1):
                # a segment ends where the next begins; times of different runs are not comparable
                same_run = firsts[at + 1][2] == self._run
                old = same_run and not jumped and now_s - firsts[at + 1][1] > self.rules.max_age_s
                if not old and self._used_bytes() <= limit:
                    break
                until = firsts[at + 1][0]
                self._db.execute("BEGIN")
                for table in ("ticks", "outcomes", "proposals", "alerts"):
                    self._db.execute(f"DELETE FROM {table} WHERE number < ?", (until,))  # noqa: S608 - constants
                self._db.execute("DELETE FROM segments WHERE first < ?", (until,))
                self._db.execute("COMMIT")
                dropped = True
            if dropped:
                self._db.execute("PRAGMA incremental_vacuum").fetchall()

    def _used_bytes(self) -> int:
        page, count, free = (
            int(self._db.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_size", "page_count", "freelist_count")
        )
        return page * (count - free)

    # --- the file --------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write pending ticks in one transaction."""
        steps = [self._alerts.popleft() for _ in range(len(self._alerts))]
        if not (self._rows or self._outcomes or self._segments or steps):
            return
        with self._guard("written"):
            db = self._db
            db.execute("BEGIN")
            db.executemany("INSERT INTO segments VALUES (?, ?, ?, ?)", self._segments)
            db.executemany("INSERT INTO ticks VALUES (?, ?, ?, ?, ?, ?, ?)", self._rows)
            db.executemany("INSERT INTO proposals VALUES (?, ?, ?, ?)", self._proposals)
            db.executemany("INSERT INTO outcomes VALUES (?, ?)", self._outcomes)
            write_steps(db, max(self._next - 1, 0), steps)
            db.execute("COMMIT")
        for waiting in (self._rows, self._outcomes, self._segments, self._proposals):
            waiting.clear()

    def close(self) -> None:
        """Write pending ticks and leave one plain file, readable from a read-only folder too."""
        if not self._open:
            return
        try:
            if not self._failed:
                self.flush()
        finally:
            self._open = False
            # fails where a reader is active, or the disk is full: SQLite completes it when the file is next opened
            with suppress(sqlite3.Error):
                self._db.execute("PRAGMA journal_mode = DELETE").fetchall()
            self._db.close()
            self._lock.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _refuse_when_failed(self) -> None:
        if self._failed:
            raise InputError(self._failed)
        if not self._open:
            raise InputError(f"{self.path}: the journal is closed")

    @contextmanager
    def _guard(self, verb: str) -> Iterator[None]:
        """Convert SQLite errors about disk and file to one message; the transaction is rolled back."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            self._failed = f"{self.path}: the journal cannot be {verb}: {_words(error)}"
            if self._open:
                if self._db.in_transaction:
                    self._db.rollback()
                kept = self._db_last_tick()
                if kept is not None:
                    self._failed += f" Ticks up to {kept} are kept."
            raise InputError(self._failed) from error

    def _db_last_tick(self) -> int | None:
        try:
            row = self._db.execute("SELECT tick FROM ticks ORDER BY number DESC LIMIT 1").fetchone()
        except sqlite3.Error:
            return None
        return None if row is None else int(row[0])


def other_schemas(db: sqlite3.Connection) -> str:
    """All schemas of a journal where one of them is not `SCHEMA`; "" where this version reads it."""
    found = {row[0] for row in db.execute("SELECT DISTINCT schema FROM runs")}
    return ", ".join(sorted(found)) if found - {SCHEMA} else ""


def checksum_of(observation: bytes, signals: bytes | None, decision: bytes) -> int:
    """Checksum over the three parts of a tick."""
    return zlib.crc32(decision, zlib.crc32(signals or b"", zlib.crc32(observation)))


def _squeeze(stream: Any, data: bytes) -> bytes:
    return bytes(stream.compress(data) + stream.flush(zlib.Z_SYNC_FLUSH))


def check_place(path: Path, *, replace: bool) -> None:
    """Raise `InputError` where `path` cannot be a journal, before anything is written."""
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give the path of a file, for example {path / 'run.journal'}")
    folder = target_of(path).parent
    if not folder.is_dir():
        raise InputError(f"{path}: the folder {folder} does not exist; create it or give another path")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{path}: the folder {folder} cannot be written; give another path with --journal")
    if path.exists() and not path.is_file():  # opening a pipe would block
        raise InputError(f"{path}: is a pipe or a device; give the path of a file")
    if path.exists():
        fault = fault_of(path)
        if fault:
            fix = "give another path" if not replace else "it is not replaced; give another path"
            raise InputError(f"{path}: {fault}; {fix}")


def fault_of(path: Path) -> str:
    """Why an existing file is not a journal; "" when it looks like one (or is empty)."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if not head:
        return ""
    if len(head) < 100 or not head.startswith(_MAGIC):
        return "not a journal of the autopilot"
    mark = int.from_bytes(head[68:72], "big")
    return "" if mark in {APPLICATION_ID, 0} else "a database, but not a journal of the autopilot"


def _remove(path: Path) -> None:
    for part in (path, Path(f"{path}-wal"), Path(f"{path}-shm"), Path(f"{path}-journal")):
        part.unlink(missing_ok=True)


def _words(error: Exception) -> str:
    """The error and its fix."""
    text = str(error)
    if isinstance(error, OSError):
        return f"{error.strerror or text}. Give a path in a folder with write access, with --journal."
    if "full" in text or "I/O error" in text:
        return f"{text}. Free some space, or give a path on another disk with --journal."
    if "readonly" in text or "unable to open" in text:
        return f"{text}. Give a path in a folder with write access, with --journal."
    if "locked" in text or "busy" in text:
        return f"{text}. Another process writes to it; end that one, or give another path with --journal."
    return f"{text}. The file is damaged; move it away, or give another path with --journal."
