"""Command lines that cannot be read: one message each, as every other error."""

from __future__ import annotations

import os

import pytest

from autopilot.cli import THREAD_POOLS, main


def call(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["simulat"], "No such command 'simulat'. Did you mean 'simulate'?; see `autopilot --help`"),
        (["--bogus"], "No such option: --bogus; see `autopilot --help`"),
        (["simulate", "--jiter", "1"], "No such option: --jiter"),
        (["simulate", "--jitter", "abc"], "--jitter: 'abc' is not allowed: input should be a valid number"),
        (["simulate", "--jitter=abc"], "--jitter: 'abc' is not allowed"),
        (["simulate", "--seed"], "Option '--seed' requires an argument; see `autopilot"),
        (["simulate", "extra"], "unexpected extra argument(s) (extra); see `autopilot simulate --help`"),
        (["models", "show"], "Missing argument 'VERSION'; see `autopilot models show --help`"),
        (["models", "sow"], "Did you mean 'show'"),
    ],
)
def test_a_line_that_cannot_be_read_is_one_message(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As every other error: one line, what is wrong, where help is, exit code 2."""
    assert call(*arguments) == 2
    said = capsys.readouterr()
    assert said.err.startswith("autopilot: ")
    assert len(said.err.strip().splitlines()) == 1
    assert words in said.err


@pytest.mark.parametrize("words", ["--version", "version"])
def test_the_version(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As an option and as a command."""
    assert call(words) == 0
    assert capsys.readouterr().out.startswith("gpu-autopilot ")


@pytest.mark.parametrize("group", [[], ["models"], ["traces"]])
def test_a_group_without_a_command_shows_its_help_once(group: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Help, no error message."""
    call(*group)
    said = capsys.readouterr()
    assert (said.out + said.err).count("Usage:") == 1
    assert "autopilot: " not in said.err


def test_numeric_libraries_get_one_thread_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait for a core that another program uses spin."""
    ours, theirs = THREAD_POOLS
    monkeypatch.delenv(ours, raising=False)
    monkeypatch.setenv(theirs, "3")
    assert call("--version") == 0
    assert (os.environ[ours], os.environ[theirs]) == ("1", "3")
