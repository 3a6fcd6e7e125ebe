"""`autopilot audit`: verify and show, as a person runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autopilot.records.audit.entry import Event, Kind
from autopilot.records.audit.keys import signing_key
from autopilot.records.audit.log import AuditLog
from tests.unit.app.test_forecast_command import call as code_of


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    code = code_of(*arguments)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log with an approval and a refused request, where the command looks without an argument."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "300")
    folder = tmp_path / "gpu-autopilot" / "service" / "audit"
    folder.parent.mkdir(parents=True)
    log = AuditLog(folder, signing_key(folder.with_name("audit.key")), lambda: 1_790_000_000.0)
    log.record(
        Event(Kind.COMMAND, "ada", "approver", "127.0.0.1", "p-1", "ab12cd", {"command": "approve"}),
        Event(Kind.DENIED, "eve\x1b[2J", "viewer", "127.0.0.2", "p-1", facts={"status": 403}),
    )
    log.close()
    return folder


def test_verify_says_what_was_checked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The result, the counts, the head, and what only an exported head can show."""
    code, out, _ = call(capsys, "audit", "verify")
    assert code == 0
    assert "intact; 3 entries, 1 valid seals, head 3:" in out
    assert "noticed only with --head" in out
    head = json.loads(call(capsys, "audit", "verify", "--json")[1])["head"]
    code, out, _ = call(capsys, "audit", "verify", "--head", head)
    assert code == 0
    assert "noticed only" not in out


def test_verify_fails_on_a_changed_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, with the file and the line."""
    segment = folder / "000000000001.jsonl"
    segment.write_bytes(segment.read_bytes().replace(b"ada", b"eve"))
    code, out, _ = call(capsys, "audit", "verify")
    assert code == 1
    assert "000000000001.jsonl:1: the digest does not match the content: the line was changed" in out
    assert "NOT INTACT" in out


def test_show_lists_entries_and_keeps_control_characters_from_the_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Filters choose entries; JSON has one object per line."""
    code, out, _ = call(capsys, "audit", "show", "--kind", "denied")
    assert code == 0
    assert "eve?[2J" in out
    assert "\x1b" not in out
    assert "ada" not in out
    lines = call(capsys, "audit", "show", "--who", "ada", "--json")[1].splitlines()
    assert [json.loads(line)["facts"]["command"] for line in lines] == ["approve"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["verify", "--head", "12"], "write SEQUENCE:DIGEST"),
        (["verify", "--key", "missing.pub"], "missing.pub: the public key cannot be read"),
        (["verify", "nowhere"], "nowhere: not an audit log"),
        (["show", "--kind", "comand"], "did you mean command?"),
        (["show", "--limit", "-1"], "--limit: -1 is negative"),
    ],
)
def test_bad_arguments_get_one_message(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """Exit code 2 and the fix."""
    code, _, err = call(capsys, "audit", *arguments)
    assert code == 2
    assert words in err
