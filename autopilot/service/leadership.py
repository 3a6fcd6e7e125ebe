"""Leadership by a lock file, for controllers on one machine.

The system releases the lock at any end of its process. The file keeps the last fencing token; each leader takes the
next one, so that an actuator can refuse an earlier leader.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Protocol

from autopilot.core.model.errors import InputError
from autopilot.files import unwritten

WIDTH = 20


class Led(Protocol):
    """Leadership taken and given back by a service."""

    def fence(self) -> int | None:
        """The fencing token while this controller leads."""
        ...

    def release(self) -> None:
        """Let another controller lead."""
        ...


class FileLeadership:
    """Leads while it holds the lock on `path` (port `Leadership`)."""

    def __init__(self, path: Path, least: int = 0) -> None:
        """`least`: the token in the memory of the controller; a new one is higher."""
        self.path, self._least = path, least
        self._handle = -1
        self._fence: int | None = None

    def fence(self) -> int | None:
        """The fencing token while the lock is held; None while another process holds it."""
        if self._handle < 0:
            self._take()
        elif not self._still_ours():
            self.release()
            self._take()
        return self._fence

    def still(self, fence: int) -> bool:
        """True if the lock is held with this token."""
        return self.fence() == fence

    def release(self) -> None:
        """Let another controller lead."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle, self._fence = -1, None

    def _take(self) -> None:
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InputError(
                f"{self.path}: the lock file cannot be opened: {error.strerror}; make its folder writable"
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return
        try:
            fence = max(self._last(handle), self._least) + 1
            os.pwrite(handle, f"{fence:>{WIDTH}}\n".encode(), 0)
            os.fsync(handle)
        except OSError as error:
            os.close(handle)
            raise unwritten(self.path, error) from error
        except BaseException:
            os.close(handle)
            raise
        self._handle, self._fence = handle, fence

    def _last(self, handle: int) -> int:
        text = os.pread(handle, WIDTH + 1, 0).decode("ascii", "replace").strip()
        if text and not text.isdigit():
            raise InputError(
                f"{self.path}: {text!r} is no fencing token; write the last one of the log into it, or a higher number"
            )
        return int(text or 0)

    def _still_ours(self) -> bool:
        """False for a removed or replaced file: another process may hold the new one."""
        try:
            there, ours = self.path.stat(), os.fstat(self._handle)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
