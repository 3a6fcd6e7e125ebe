"""Command lines that cannot be read: one message each, as every other error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autopilot.cli import THREAD_POOLS, main


def call(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home of its own, without a kubeconfig."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("KUBECONFIG", "nowhere")
    (tmp_path / "jobs.csv").write_text("job_id,tenant,submit_s,duration_s,gpus\na,t,0,60,1\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["simulat"], "No such command 'simulat'. Did you mean 'simulate'?; see `autopilot --help`"),
        (["--bogus"], "No such option: --bogus; see `autopilot --help`"),
        (["simulate", "--jiter", "1"], "No such option: --jiter"),
        (["simulate", "--jitter", "abc"], "--jitter: 'abc' is not allowed: input should be a valid number"),
        (["simulate", "--jitter=abc"], "--jitter: 'abc' is not allowed"),
        (["simulate", "--seed"], "--seed: takes a value, and nothing follows; write one behind it; see `autopilot sim"),
        (["compare", "--policy", "--seeds", "3"], "--policy: takes a value, and --seeds follows"),
        (["explain", "--workload", "--at", "2h"], "--workload: takes a value, and --at follows"),
        (
            ["audit", "verify", "--head"],
            "--head: takes a value, and nothing follows; write one behind it; see `autopilot a",
        ),
        (["simulate", "--json", "--seed", "3"], "--json: takes a value, and --seed follows"),
        (["playground", "--mode", "yolo"], "--mode: 'yolo' is not one of 'recommend', 'approve', 'auto'; see"),
        (["playground", "--speed", "-5"], "--speed: -5 is not allowed; give virtual seconds per second"),
        (["playground", "--scenario", "nope"], "scenario 'nope': neither a file nor a shipped scenario"),
        (["cluster", "nope"], "scenario 'nope': neither a file nor a shipped scenario"),
        (["cluster", "quickstart", "--speed", "-5"], "--speed: -5 is not allowed; give virtual seconds per second"),
        (
            ["run", "--simulate", "demo", "--speed", "-5"],
            "simulation.speed: -5.0 is not allowed: Input should be greater",
        ),
        (["run", "--simulate", "nope"], "scenario 'nope': neither a file nor a shipped scenario"),
        (
            ["run", "--simulate", "quickstart", "--kubeconfig", "x"],
            "command line: simulation and kubernetes are both set",
        ),
        (
            ["run", "--attach", "http://127.0.0.1:1"],
            "no simulated cluster answers here (ConnectionError); start one with",
        ),
        (
            ["check"],
            "KUBECONFIG: there is no file nowhere; give --kubeconfig FILE, or set KUBECONFIG to a file that exists",
        ),
        (["check", "--kubeconfig", "jobs.csv"], "--kubeconfig jobs.csv: it cannot be used: it is no kubeconfig"),
        (
            ["pause", "--server", "nope", "--token-file", "jobs.csv"],
            "--server: 'nope' is no address; write for example",
        ),
        (["pause", "--server", "http://127.0.0.1:1"], "--token-file: http://127.0.0.1:1 wants your token"),
        (["runbook", "--label", "x"], "--label: 'x' is of no alert; name the ALERT as well"),
        (["explain", "--at", "soon"], "--at: 'soon' is not a duration"),
        (["showback", "--by", "colour"], "--by: 'colour' is not one of tenant"),
        (["showback", "--format", "xml"], "--format: 'xml' is not one of table"),
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
