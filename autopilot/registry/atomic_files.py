"""Files that are complete or absent: replaced atomically, synced before use, locked."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from autopilot.core.model.errors import InputError

LOCK_WAIT_S = 30.0
"""Longest wait of a writer for another one; each holds the lock for milliseconds."""

_LOCK_POLL_S = 0.02
_PARTIAL = ".partial"


class RegistryError(InputError):
    """An operation of the registry failed: the message names the object and the fix."""


class MissingError(RegistryError):
    """The file does not exist, as opposed to an unreadable one."""


def canonical(value: Any) -> bytes:
    """Plain values as bytes: equal values give equal bytes. Raises `ValueError` for NaN and `TypeError` for objects."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def sha256(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically; it is on disk at the return.

    Raises `RegistryError` if the disk fails (full, read-only); `path` is then unchanged.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}{_PARTIAL}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise RegistryError(f"{path}: cannot be written ({_words(error)}); nothing was changed") from error


def sync_folder(folder: Path) -> None:
    """Sync `folder`: a rename inside then survives a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_whole(path: Path, limit_bytes: int) -> bytes:
    """The bytes of a plain file. Raises `RegistryError` (`MissingError`: no such file), also for more than
    `limit_bytes`.
    """
    try:
        # a pipe in its place would block the reader
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                raise RegistryError(f"{path}: is no plain file; restore it, or promote another version")
            if about.st_size > limit_bytes:
                raise RegistryError(
                    f"{path}: has {about.st_size:,} bytes, more than the limit of {limit_bytes:,}; it was changed"
                )
            return file.read(limit_bytes + 1)
    except FileNotFoundError as error:
        raise MissingError(f"{path}: is missing; restore it, or promote another version") from error
    except OSError as error:
        raise RegistryError(f"{path}: cannot be read ({error.strerror})") from error


def names_in(folder: Path) -> list[str]:
    """The names in `folder`, sorted; empty if the folder does not exist.

    Raises `RegistryError` for an unreadable folder, as opposed to an empty one.
    """
    try:
        return sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RegistryError(f"{folder}: cannot be read ({error.strerror})") from error


def partial_files(folder: Path) -> list[Path]:
    """Partial files of dead writers. Only meaningful while the lock is held."""
    return sorted(folder.rglob(f"*{_PARTIAL}"))


@contextmanager
def locked(folder: Path, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Hold the registry's lock, across processes and threads; the system releases it at the holder's death.

    Raises `RegistryError` if another process holds it for longer than `wait_s`, or the folder cannot be written.
    """
    path = folder / "lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)
    except OSError as error:
        raise RegistryError(f"{folder}: the registry cannot be written ({error.strerror})") from error
    try:
        _take(handle, path, wait_s)
        yield
    finally:
        os.close(handle)  # releases the lock


def _take(handle: int, path: Path, wait_s: float) -> None:
    until_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
                raise RegistryError(f"{path}: cannot be locked ({error.strerror}); use a volume with locks") from error
            if time.monotonic() >= until_s:
                raise RegistryError(
                    f"{path}: another process has held the registry for {wait_s:g} s; try again, or stop it"
                ) from error
            time.sleep(_LOCK_POLL_S)
        else:
            return


def _words(error: OSError) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return f"{error.strerror}: free some space, or run `autopilot models gc`"
    return f"{error.strerror}: give a folder with write access, with --registry"
