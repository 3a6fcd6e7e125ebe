"""Appends to the audit log.

The log is a folder of segments, each named after the sequence of its first line (`000000000001.jsonl`). A segment that
reaches `segment_bytes` is closed, and the next one continues the chain. Every line is on disk before `record` returns:
an effect or an approval that cannot be recorded must not happen.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from autopilot.core.model.errors import InputError
from autopilot.files import Lock, lock_beside
from autopilot.records.audit.entry import GENESIS, Entry, Event, Fact, Kind, chained, parse_line
from autopilot.records.audit.keys import key_id

SEGMENT_BYTES = 64 << 20
SEAL_EVERY_S = 60.0
_TAIL_BYTES = 1 << 20


class AuditError(InputError):
    """An event could not be recorded. The caller must not carry it out."""


@dataclass(frozen=True, slots=True)
class Head:
    """The last line of the log: its sequence and digest."""

    sequence: int
    digest: str

    def __str__(self) -> str:
        return f"{self.sequence}:{self.digest}"


class AuditLog:
    """The one writer of an audit log. Its methods may be called from several threads."""

    def __init__(
        self,
        folder: Path,
        key: Ed25519PrivateKey,
        now_s: Callable[[], float],
        *,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Open the log, or start it. `now_s` returns seconds since 1970.

        An incomplete last line, left by a crash, is removed, and the removal is recorded. Raises `InputError` where the
        last line is damaged, another process writes to the log, or the folder cannot be written.
        """
        self._folder, self._key, self._now_s, self._segment_bytes = folder, key, now_s, segment_bytes
        self._key_id = key_id(key.public_key())
        self._mutex = threading.Lock()
        self._head = Head(0, GENESIS)
        self._unsealed_s = inf  # time of the first line without a seal
        self._file: int | None = None
        self._size = 0
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._lock: Lock = lock_beside(folder)
        except OSError as error:
            raise InputError(f"{folder}: the audit log cannot be written: {error.strerror}") from error
        try:
            self._open_last()
        except BaseException:
            self._lock.free()
            raise

    @property
    def head(self) -> Head:
        """The last line that was written."""
        return self._head

    def record(self, *events: Event) -> Head:
        """Append the events in order and return the new head. Raises `AuditError` where that fails: none of them is
        appended then.

        Lines that wait for a seal since `SEAL_EVERY_S` are sealed first, also when `seal` is not called. A line without
        a seal is therefore never followed by a line that is more than `SEAL_EVERY_S` later; `verify` checks that.
        """
        with self._mutex:
            now_s = self._now_s()
            if now_s - self._unsealed_s >= SEAL_EVERY_S:
                self._seal()
            self._unsealed_s = min(self._unsealed_s, now_s)
            return self._append(events)

    def seal(self) -> Head | None:
        """Sign the head, when it moved since the last seal; returns the head that was signed, else None.

        The caller exports the returned head (a log line and a metric): a copy outside of this machine shows when lines
        were cut from the end. Raises `AuditError`.
        """
        with self._mutex:
            return self._seal()

    def close(self) -> None:
        """Seal, then release the log. A second call does nothing."""
        if self._file is None:
            return
        try:
            self.seal()
        finally:
            with self._mutex:
                os.close(self._file)
                self._file = None
                self._lock.free()

    def _seal(self) -> Head | None:
        if self._unsealed_s == inf:
            return None
        signed = self._head
        signature = self._key.sign(str(signed).encode("ascii")).hex()
        facts: dict[str, Fact] = {
            "sequence": signed.sequence,
            "digest": signed.digest,
            "key": self._key_id,
            "signature": signature,
        }
        self._append((Event(Kind.SEAL, facts=facts),))
        self._unsealed_s = inf
        return signed

    def _append(self, events: Sequence[Event]) -> Head:
        if self._file is None:
            raise AuditError(f"{self._folder}: the audit log is closed")
        entries: list[Entry] = []
        head = self._head
        for event in events:
            entry = chained(head.sequence + 1, self._now_s(), event, head.digest)
            entries.append(entry)
            head = Head(entry.sequence, entry.digest)
        content = b"".join(entry.line for entry in entries)
        try:
            if self._size and self._size + len(content) > self._segment_bytes:
                self._next_segment()
            self._write(content)
        except OSError as error:
            raise AuditError(
                f"{self._folder}: the event cannot be recorded: {error.strerror}; free some space"
            ) from error
        self._size += len(content)
        self._head = head
        return head

    def _write(self, content: bytes) -> None:
        """Write all of it and wait until it is on disk; on failure the segment is as before."""
        file = self._file
        if file is None:
            raise OSError(None, "the audit log is closed")
        try:
            written = 0
            while written < len(content):
                written += os.write(file, content[written:])
            os.fsync(file)
        except OSError:
            os.ftruncate(file, self._size)
            raise

    def _next_segment(self) -> None:
        created = self._create(self._head.sequence + 1)
        if self._file is not None:
            os.close(self._file)
        self._file, self._size = created, 0

    def _create(self, first: int) -> int:
        file = os.open(self._folder / f"{first:012d}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o640)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return file

    def _open_last(self) -> None:
        removed = 0
        segments = segments_of(self._folder)
        while segments:
            path = segments[-1]
            last, removed = _last_line(path, removed)
            if last is None and len(segments) > 1:  # a crash after the segment was created, before its first line
                path.unlink()
                segments.pop()
                continue
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
            self._size = path.stat().st_size
            if last is not None:
                self._head = Head(last.sequence, last.digest)
                self._unsealed_s = inf if last.event.kind == Kind.SEAL else -inf  # sealed before the next line
            break
        if self._file is None:
            self._file = self._create(1)
        if removed:
            self.record(Event(Kind.REPAIR, facts={"removed_bytes": removed}))


def segments_of(folder: Path) -> list[Path]:
    """The segments of a log in order."""
    return sorted(path for path in folder.glob("*.jsonl") if path.stem.isdigit())


def _last_line(path: Path, removed: int) -> tuple[Entry | None, int]:
    """The last entry of a segment, None where it is empty. Removes an incomplete last line, and counts its bytes.

    Raises `InputError` where the last complete line is damaged.
    """
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - _TAIL_BYTES)
        file.seek(start)
        tail = file.read()
        complete = tail.rfind(b"\n") + 1
        if complete < len(tail):
            removed += len(tail) - complete
            file.truncate(start + complete)
            os.fsync(file.fileno())
    lines = tail[:complete].splitlines()
    if not lines:
        return None, removed
    try:
        return parse_line(lines[-1]), removed
    except ValueError as error:
        raise InputError(
            f"{path}: the last line of the audit log is damaged ({error}); run `autopilot audit verify {path.parent}`, "
            "keep the folder as evidence, and configure a new one"
        ) from error
