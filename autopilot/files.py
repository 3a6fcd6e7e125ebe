"""Output files: this module writes every output path of a user.

A plain file is replaced atomically or stays as it was. A symlink is followed. A device, a pipe or a descriptor of this
process (`/dev/stdout`) is written to and not replaced.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autopilot.core.model.errors import InputError

_DESCRIPTOR = re.compile(r"/(?:dev|proc/self)/(?:fd/(\d{1,6})|stdin|(stdout)|(stderr))")
_MOST_LINKS = 40


def state_folder() -> Path:
    """The user's state folder of this product (XDG_STATE_HOME/gpu-autopilot; a relative XDG_STATE_HOME is ignored)."""
    base = Path(os.environ.get("XDG_STATE_HOME") or "")
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "gpu-autopilot"


def unwritten(path: Path, error: OSError) -> InputError:
    """The error of a failed write to a file of the state folder, with the fix."""
    reason = error.strerror or str(error)
    return InputError(f"{path}: cannot be written: {reason}; free some space on its disk, or give another state folder")


def check_output(path: Path, flag: str = "") -> None:
    """Raise `InputError` if a file could not be written at `path`; nothing is touched."""
    name = f"{flag}: {path}" if flag else str(path)
    target = target_of(path)
    if _descriptor_of(path) is not None:
        return
    try:
        kind = _kind_of(target)
    except OSError as error:
        raise InputError(f"{name} cannot be written: {error.strerror}; name another file") from error
    if stat.S_ISDIR(kind):
        raise InputError(f"{name} is a folder; name a file")
    if stat.S_ISBLK(kind) or stat.S_ISSOCK(kind):
        raise InputError(f"{name} is a disk or a socket; name a file")
    if kind and not stat.S_ISREG(kind):
        if not os.access(target, os.W_OK):
            raise InputError(f"{name} cannot be written: Permission denied; name another file")
        return
    if not target.parent.is_dir():
        raise InputError(f"{name}: the folder {target.parent} does not exist; create it first")
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"{name}: the folder {target.parent} cannot be written; choose another folder")


def check_folder(folder: Path, flag: str) -> None:
    """Create `folder` if it is missing. Raise `InputError` if files could not be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
        reason = "Permission denied"
    except OSError as error:
        writable, reason = False, error.strerror or str(error)
    if not writable:
        raise InputError(f"{folder}: cannot be written: {reason}; name another folder with {flag}")


def replace_file(path: Path, fill: Callable[[Path], object], *, durable: bool = False) -> None:
    """Let `fill` write a temporary file, then move its content to `path`. With `durable` it is on disk on return.

    Raises `InputError` if that fails; a plain file is then unchanged.
    """
    check_output(path)
    target = target_of(path)
    temporary: Path | None = None
    try:
        folder = target.parent if is_plain(path) else Path(tempfile.gettempdir())
        handle, name = tempfile.mkstemp(prefix=f".{path.stem[:40]}.part-", suffix=path.suffix, dir=folder)
        os.close(handle)
        temporary = Path(name)
        fill(temporary)
        if durable:
            _sync(temporary)
        put_in_place(temporary, path)
        if durable:
            _sync(target.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def write_bytes(content: bytes, path: Path) -> None:
    """Write `content` to `path` and create the folder if it is missing. Raises `InputError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    replace_file(path, lambda temporary: temporary.write_bytes(content))


def put_in_place(source: Path, path: Path) -> None:
    """Move the content of `source` to `path`: rename it over a plain file, else copy it into the existing target.
    Raises `OSError`.
    """
    if not is_plain(path):
        _write_through(source, path)
        return
    target = target_of(path)
    if target.exists():
        mode = stat.S_IMODE(target.stat().st_mode)
    else:
        umask = os.umask(0)
        os.umask(umask)
        mode = 0o666 & ~umask
    source.chmod(mode)
    source.replace(target)


def is_plain(path: Path) -> bool:
    """True for a plain file, and for a missing one."""
    if _descriptor_of(path) is not None:
        return False
    kind = _kind_of(target_of(path))
    return not kind or stat.S_ISREG(kind)


def target_of(path: Path) -> Path:
    """The target of `path` after its symlinks; the last component need not exist."""
    return Path(os.path.realpath(path))


def _kind_of(path: Path) -> int:
    """The type bits of the file at `path`, 0 if there is none. Raises `OSError`."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except FileNotFoundError:
        return 0


def _descriptor_of(path: Path) -> int | None:
    """The open descriptor of this process named by `path` (`/dev/stdout` is 1), directly or by symlinks."""
    here = os.path.abspath(path)  # noqa: PTH100 - `resolve` would follow the link to what the descriptor has open
    for _ in range(_MOST_LINKS):
        found = _DESCRIPTOR.fullmatch(here)
        if found is not None and not here.endswith("stdin"):
            return int(found[1]) if found[1] else 1 if found[2] else 2
        try:
            here = os.path.normpath(os.path.join(os.path.dirname(here), os.readlink(here)))  # noqa: PTH115, PTH118, PTH120
        except OSError:
            return None
    return None


def _write_through(source: Path, path: Path) -> None:
    """Copy `source` into a device, a pipe or an open descriptor."""
    number = _descriptor_of(path)
    if number is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        handle = os.dup(number)
    else:
        try:  # opening a pipe without a reader would block indefinitely
            handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            if error.errno == errno.ENXIO:
                raise OSError(error.errno, "no process reads from this pipe; start its reader first") from error
            raise
        os.set_blocking(handle, True)
    with os.fdopen(handle, "wb") as there, source.open("rb") as content:
        while piece := content.read(1 << 20):
            there.write(piece)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(slots=True)
class Lock:
    """A lock file held by this process. The system releases it at the end of the process."""

    path: Path
    handle: int

    def free(self) -> None:
        """Remove the file, then release it; a second call does nothing."""
        if self.handle >= 0:
            self.path.unlink(missing_ok=True)
            os.close(self.handle)
            self.handle = -1


def lock_beside(path: Path) -> Lock:
    """Lock the file at `path` while this process writes to it, with a file `NAME-lock` beside it.

    Raises `InputError` if another process holds it, and `OSError` if the folder cannot be written.
    """
    place = path.with_name(f"{path.name}-lock")
    while True:
        handle = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o664)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_ino == place.stat().st_ino:
                return Lock(place, handle)
        except BlockingIOError:
            os.close(handle)
            raise InputError(
                f"{path}: another process writes to this file; wait until it ends, or give another path"
            ) from None
        except FileNotFoundError:  # the previous holder removed it between our two calls: retry
            pass
        os.close(handle)


def write_text(text: str, path: Path) -> None:
    """Write `text` atomically. Raises `InputError` if the folder cannot be written."""

    def fill(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    replace_file(path, fill)


def write_document(result: Mapping[str, Any], path: Path) -> None:
    """Write the JSON atomically. Raises `InputError` if the folder cannot be written."""
    write_text(json.dumps(result, indent=2, allow_nan=False) + "\n", path)
