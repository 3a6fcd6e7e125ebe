"""Which run a command answers about: the one that the options, the settings or this machine name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from autopilot.cli import main
from tests.kits.core_world import waits
from tests.unit.app.test_explain_journal import record, seen

DEAD = 2**22 + 1
"""A number that no process has."""


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def journal(path: Path, name: str, age_s: float = 0.0) -> Path:
    """A journal in which one workload waits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    record(path, [(seen(0, 600.0, waits(name, 16)), None)])
    for each in path.parent.glob(f"{path.name}*"):
        os.utime(each, (1e9 - age_s, 1e9 - age_s))
    return path


def service(folder: Path, name: str, pid: int, age_s: float = 0.0) -> Path:
    """The state folder of a service with one workload."""
    kept = journal(folder / "runs" / "r" / "autopilot.journal", name, age_s)
    note = {"url": "http://127.0.0.1:1", "pid": pid, "token_file": str(folder / "admin.token"), "journal": str(kept)}
    (folder / "admin.token").write_text("secret\n")
    (folder / "service.json").write_text(json.dumps(note))
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own with a last run, whose workload is `last`."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("GPU_AUTOPILOT_STATE", raising=False)
    journal(tmp_path / "home" / "gpu-autopilot" / "last.journal", "last", age_s=10.0)
    return tmp_path / "home" / "gpu-autopilot"


def waiting(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[str, str]:
    """The workload that `explain` tells of, and which run it says that it is about."""
    for name in ("last", "named", "here", "old"):
        code, said, about = call(capsys, "explain", "--workload", name, *more)
        if code == 0:
            assert said.startswith("at 10 min")
            assert about.count("\n") == 1
            return name, about
    raise AssertionError("no run was asked")


def test_the_last_run_where_nothing_else_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With policy and path in one line."""
    name, about = waiting(capsys)
    assert name == "last"
    assert about.startswith("about the last run, ")
    assert str(home / "last.journal") in about


@pytest.mark.parametrize("way", ["environment", "option", "settings"])
@pytest.mark.parametrize("pid", [os.getpid(), DEAD], ids=["runs", "ended"])
def test_the_service_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], way: str, pid: int
) -> None:
    """By the environment, an option or a settings file; also after it has ended, and never another run."""
    folder = service(tmp_path / "state", "named", pid, age_s=100.0)
    (tmp_path / "service.yaml").write_text(f"state: {folder}\n")
    if way == "environment":
        monkeypatch.setenv("GPU_AUTOPILOT_STATE", str(folder))
    options = {"option": ["--state", str(folder)], "settings": ["--config", str(tmp_path / "service.yaml")]}
    name, about = waiting(capsys, *options.get(way, []))
    assert name == "named"
    assert about.startswith("about the service at http://127.0.0.1:1" if pid != DEAD else "about the last run of the")
    assert str(folder) in about


def test_the_service_that_runs_here_before_the_last_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the last run is younger."""
    service(home / "service", "here", os.getpid(), age_s=100.0)
    assert waiting(capsys)[0] == "here"


def test_a_service_that_has_ended_is_a_run_among_others(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The youngest journal is that of the last run, by any writer."""
    service(home / "service", "old", DEAD, age_s=100.0)
    assert waiting(capsys)[0] == "last"
    service(home / "service", "here", DEAD)
    assert waiting(capsys)[0] == "here"


def test_a_named_folder_without_a_journal_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rather than answered about another run."""
    (tmp_path / "empty").mkdir()
    for command in ("explain", "decisions", "showback", "replay"):
        option = ("--state", str(tmp_path / "empty")) if command != "replay" else ("empty.journal",)
        code, said, message = call(capsys, command, *option)
        assert (code, said) == (2, "")
        assert message.startswith("autopilot: ")
        assert "empty" in message
        assert message.count("\n") == 1


def test_a_journal_and_a_service_are_not_named_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of them would not be asked."""
    code, _, message = call(capsys, "explain", "--journal", "x", "--state", str(tmp_path))
    assert code == 2
    assert "leave out --server, --state and --config" in message


def test_the_audit_log_is_that_of_the_named_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for the other commands."""
    monkeypatch.setenv("GPU_AUTOPILOT_STATE", str(tmp_path / "mine"))
    code, _, message = call(capsys, "audit", "show")
    assert code == 2
    assert str(tmp_path / "mine" / "audit") in message
