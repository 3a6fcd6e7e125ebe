"""A disk that is full is answered by one line: the file, the reason, and what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autopilot.cli import clear_errors
from autopilot.core.model.errors import InputError
from autopilot.service.leadership import FileLeadership
from autopilot.service.record import Record
from autopilot.service.state_folder import own_token, write_note

KEEPS: dict[str, Callable[[Path], object]] = {
    "leader.lock": lambda path: FileLeadership(path).fence(),
    "service.json": lambda path: write_note(path, {"url": "http://127.0.0.1:1"}),
    "admin.token": own_token,
    "audit": Record,
}
"""What a start of the service writes beside its databases, which say it themselves."""


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which no file can grow any more."""

    def refuse(*_given: Any, **_named: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("write", "pwrite", "fsync", "fdopen"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(Path, "write_text", refuse)
    return tmp_path


@pytest.mark.parametrize("name", KEEPS)
def test_a_start_on_a_full_disk_names_the_file_and_the_fix(full: Path, name: str) -> None:
    """And leaves nothing half written that the next start would believe."""
    with pytest.raises(InputError, match=rf"{name}.*No space left on device.*free some space") as caught:
        KEEPS[name](full / name)
    assert "\n" not in str(caught.value)
    assert name in {"leader.lock", "audit"} or not (full / name).exists()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "out.json"), "out.json: No space left on device; free some"),
        (MemoryError(), "the memory of this process is used up; raise its limit"),
    ],
)
def test_a_command_says_it_in_one_line(error: BaseException, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where nobody expected it."""
    with pytest.raises(SystemExit), clear_errors():
        raise error
    said = capsys.readouterr().err
    assert said.startswith(f"autopilot: {words}")
    assert said.count("\n") == 1
