"""Reads a record: tick by tick, a single tick, or the decisions alone."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from autopilot.core.model.errors import InputError
from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.policy import Policy
from autopilot.core.model.records import Decision, Instruction, Observation, Outcome
from autopilot.records.journal.alerts import AlertStep, read_steps
from autopilot.records.journal.decisions import Decided, DecisionDecoder, read_outcomes
from autopilot.records.journal.journal_file import APPLICATION_ID, SCHEMA, checksum_of, fault_of, other_schemas
from autopilot.records.journal.observations import ObservationDecoder
from autopilot.records.journal.table_codec import UnreadableError


@dataclass(frozen=True, slots=True)
class RunHeader:
    """One run in a record."""

    run: int
    version: str
    created_s: float  # since the epoch
    description: dict[str, Any]
    first_tick: int | None  # first tick still in the record; None when there is none


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """The decision of one tick, and its outcomes."""

    number: int  # position in the record; ticks of two runs may have the same `tick`
    run: int  # see `JournalReader.runs`
    tick: int
    now_s: float
    starts: bool  # first tick of a run: its memory came from outside
    policy: Policy
    policy_digest: bytes
    memory_digest: bytes  # of the memory before this tick
    memory: ControllerMemory | None  # that memory, on a keyframe
    fence: int
    decision: Decision
    instructions: tuple[Instruction, ...]
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class TickRecord:
    """One tick, whole."""

    observation: Observation
    decided: DecisionRecord


class JournalReader:
    """A record opened for reading; also while a controller writes to it.

    Raises `InputError` that names the file (and the tick) when it is no journal, or damaged.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            raise InputError(f"{self.path}: is a folder; give the journal file in it")
        if self.path.exists() and not self.path.is_file():  # opening a pipe would wait for its writer
            raise InputError(f"{self.path}: is a pipe or a device; give the journal file")
        if not self.path.exists():
            raise InputError(
                f"{self.path}: no such journal; `autopilot simulate` and `autopilot demo` print the path of theirs"
            )
        fault = fault_of(self.path)
        if fault or not self.path.stat().st_size:
            raise InputError(
                f"{self.path}: {fault or 'is empty'}; give the path that `autopilot simulate` or `autopilot "
                f"demo` printed"
            )
        with self._guard():
            self._db = self._connect()
            mark = self._db.execute("PRAGMA application_id").fetchone()[0]
            if mark != APPLICATION_ID:
                self._db.close()
                raise InputError(f"{self.path}: a database, but not a journal of the autopilot")
            others = other_schemas(self._db)
        if others:
            self._db.close()
            raise InputError(
                f"{self.path}: written as {others}; this version reads {SCHEMA}. "
                "Read it with the version that wrote it, or record the run again"
            )

    def _connect(self) -> sqlite3.Connection:
        address = self.path.absolute().as_uri()
        db = sqlite3.connect(f"{address}?mode=ro", uri=True, isolation_level=None, check_same_thread=False)
        try:
            db.execute("SELECT count(*) FROM runs")
        except sqlite3.OperationalError as error:
            db.close()
            if "unable to open" not in str(error) and "readonly" not in str(error):
                raise
            # left by a crash in a read-only folder: read the main file only
            db = sqlite3.connect(
                f"{address}?mode=ro&immutable=1", uri=True, isolation_level=None, check_same_thread=False
            )
        return db

    # --- what is there ---------------------------------------------------------------------------

    @property
    def runs(self) -> tuple[RunHeader, ...]:
        """The runs in this record, oldest first."""
        with self._guard():
            rows = self._db.execute(
                "SELECT r.run, r.version, r.created_s, r.description,"
                " (SELECT t.tick FROM ticks t JOIN segments s ON t.number = s.first WHERE s.run = r.run"
                " ORDER BY t.number LIMIT 1) FROM runs r ORDER BY r.run"
            ).fetchall()
        return tuple(
            RunHeader(run, version, created, json.loads(about), tick) for run, version, created, about, tick in rows
        )

    def __len__(self) -> int:
        with self._guard():
            return int(self._db.execute("SELECT count(*) FROM ticks").fetchone()[0])

    def tick_bounds(self) -> tuple[int, int] | None:
        """First and last tick in the record; None in an empty record."""
        with self._guard():
            first, last = self._db.execute(
                "SELECT (SELECT tick FROM ticks ORDER BY number LIMIT 1),"
                " (SELECT tick FROM ticks ORDER BY number DESC LIMIT 1)"
            ).fetchone()
        return None if first is None else (int(first), int(last))

    def find_proposal(self, proposal: str) -> tuple[int, ...]:
        """Positions at which a proposal was first made (and repeated, once per segment)."""
        with self._guard():
            rows = self._db.execute("SELECT number FROM proposals WHERE id = ? ORDER BY number", (proposal,))
            return tuple(row[0] for row in rows.fetchall())

    def find_workload(self, workload: str) -> tuple[tuple[int, str], ...]:
        """Positions and ids of the proposals for one workload."""
        with self._guard():
            rows = self._db.execute(
                "SELECT number, id FROM proposals WHERE workload = ? ORDER BY number, rowid", (workload,)
            )
            return tuple((row[0], row[1]) for row in rows.fetchall())

    def workloads(self) -> tuple[str, ...]:
        """The workloads that proposals were about."""
        with self._guard():
            rows = self._db.execute("SELECT DISTINCT workload FROM proposals").fetchall()
        return tuple(row[0] for row in rows)

    def find_tick(self, tick: int) -> int | None:
        """Position of a tick (in the last run that has it); None when it is missing."""
        with self._guard():
            row = self._db.execute("SELECT max(number) FROM ticks WHERE tick = ?", (tick,)).fetchone()
        return None if row[0] is None else int(row[0])

    def alerts(self) -> tuple[AlertStep, ...]:
        """What happened to alerts, in its order."""
        with self._guard():
            return read_steps(self._db)

    # --- reading ---------------------------------------------------------------------------------

    def ticks(self, first: int | None = None) -> Iterator[TickRecord]:
        """Every tick in order, complete; from position `first` on (default: the first in the record)."""
        for number, observation, decided in self._walk(first, with_observations=True):
            if (first is None or number >= first) and observation is not None:
                yield TickRecord(observation, decided)

    def decisions(self, first: int | None = None, *, refusals: bool = True) -> Iterator[DecisionRecord]:
        """Every decision in order, without observations: much faster than `ticks`, and faster still without
        `refusals`.
        """
        for number, _, decided in self._walk(first, with_observations=False, refusals=refusals):
            if first is None or number >= first:
                yield decided

    def first_at(self, at_s: float) -> int:
        """A position at or before the first tick at `at_s` or later of any run, where reading can start."""
        with self._guard():
            rows = self._db.execute("SELECT first, run, now_s FROM segments ORDER BY first").fetchall()
        begin = 0
        for first, run, now_s in rows:
            if run == rows[0][1] and now_s < at_s:
                begin = int(first)
        return begin

    def up_to(self, number: int) -> Iterator[TickRecord]:
        """Ticks from the keyframe at or before position `number` up to it, complete: enough to decide it again."""
        for at, observation, decided in self._walk(number, with_observations=True):
            if observation is not None:
                yield TickRecord(observation, decided)
            if at >= number:
                return

    def at(self, number: int) -> TickRecord:
        """The tick at one position (see `find_tick`), read from the keyframe before it."""
        for record in self.ticks(number):
            if record.decided.number == number:
                return record
            break
        raise InputError(f"{self.path}: there is no tick at position {number}")

    def _walk(
        self, first: int | None, *, with_observations: bool, refusals: bool = True
    ) -> Iterator[tuple[int, Observation | None, DecisionRecord]]:
        """Ticks from the keyframe at or before `first`."""
        with self._guard():
            segments = self._db.execute("SELECT first, starts, run FROM segments ORDER BY first").fetchall()
        begin = (
            0 if first is None else max((at for at, (start, _, _) in enumerate(segments) if start <= first), default=0)
        )
        for at in range(begin, len(segments)):
            start, starts, run = segments[at]
            end = segments[at + 1][0] if at + 1 < len(segments) else 1 << 62
            yield from self._segment(
                start, end, (int(run), bool(starts)), with_observations=with_observations, refusals=refusals
            )

    def _segment(
        self, start: int, end: int, run: tuple[int, bool], *, with_observations: bool, refusals: bool
    ) -> Iterator[tuple[int, Observation | None, DecisionRecord]]:
        """Ticks of one segment; `run`: its run, and whether the segment starts it."""
        streams = [zlib.decompressobj(-15) for _ in range(2)]
        observations, decisions = ObservationDecoder(), DecisionDecoder(refusals=refusals)
        columns = "observation, signals" if with_observations else "NULL, NULL"
        expected = start
        outcomes = self._outcomes(start, end)
        rows = self._rows(
            f"SELECT number, tick, now_s, decision, checksum, {columns} FROM ticks"  # noqa: S608 - constants
            " WHERE number >= ? AND number < ? ORDER BY number",
            (start, end),
        )
        for number, tick, now_s, decision, checksum, seen, signals in rows:
            with self._guard(tick):
                if number != expected:
                    raise UnreadableError(f"position {expected} is missing")
                expected += 1
                if with_observations and checksum_of(seen, signals, decision) != checksum:
                    raise UnreadableError("the checksum differs: the record was changed or the disk is bad")
                observation = None
                if with_observations:
                    observation = observations.decode(streams[0].decompress(seen), signals)
                decided = decisions.decode(streams[1].decompress(decision))
                starts = run[1] and number == start
                record = _record((number, run[0], tick), now_s, starts, decided, outcomes.get(number))
            yield number, observation, record

    def _rows(self, query: str, values: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        with self._guard():
            cursor = self._db.execute(query, values)
        while True:
            with self._guard():
                rows = cursor.fetchmany(64)
            if not rows:
                return
            yield from rows

    def _outcomes(self, start: int, end: int) -> dict[int, bytes]:
        query = "SELECT number, data FROM outcomes WHERE number >= ? AND number < ?"
        with self._guard():
            return dict(self._db.execute(query, (start, end)).fetchall())

    # --- the file --------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _guard(self, tick: int | None = None) -> Iterator[None]:
        """Convert any error caused by a damaged file to one message."""
        try:
            yield
        except sqlite3.Error as error:
            raise InputError(
                f"{self.path}: the journal cannot be read ({error}); it is truncated or damaged: use "
                "another one, or a backup"
            ) from error
        except (
            UnreadableError,
            msgspec.MsgspecError,
            zlib.error,
            ValueError,
            KeyError,
            IndexError,
            TypeError,
            StopIteration,
            AttributeError,
        ) as error:
            where = "" if tick is None else f", tick {tick}"
            raise InputError(
                f"{self.path}{where}: the record is inconsistent ({error}); it is damaged or of another "
                "version: ticks before this one can still be read"
            ) from error


def _record(
    place: tuple[int, int, int], now_s: float, starts: bool, decided: Decided, outcomes: bytes | None
) -> DecisionRecord:
    number, run, tick = place
    return DecisionRecord(
        number=number,
        run=run,
        tick=tick,
        now_s=now_s,
        starts=starts,
        policy=decided.policy,
        policy_digest=decided.policy_digest,
        memory_digest=decided.memory_digest,
        memory=decided.memory,
        fence=decided.fence,
        decision=decided.decision,
        instructions=decided.instructions,
        outcomes=() if outcomes is None else read_outcomes(outcomes),
    )
