"""The default journal: each run its own, `last.journal` leads to the newest, nothing is destroyed."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from autopilot.app.runs.run_journals import new_journal
from autopilot.cli import main
from autopilot.core.model.errors import InputError
from autopilot.core.model.policy.bounds import JournalRules
from autopilot.records.journal import JournalReader, SqliteJournal
from autopilot.records.replay import replay

RULES = JournalRules()
ROWS = "job_id,tenant,submit_s,duration_s,gpus\na,t,0,60,1\nb,t,5,60,8\n"


def state(folder: Path) -> Path:
    """The state folder of this product."""
    return folder / "state" / "gpu-autopilot"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job file and a state folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "jobs.csv").write_text(ROWS)
    return tmp_path


def test_two_runs_leave_two_journals(folder: Path) -> None:
    """The second does not touch the first, and `last.journal` is the second."""
    command = [
        "simulate",
        "--jobs",
        "jobs.csv",
        "--cluster",
        "1x8",
        "--policy",
        "autopilot",
        "--telemetry",
        "off",
    ]
    found: list[set[str]] = []
    for seed in ("1", "2"):
        with pytest.raises(SystemExit):
            main([*command, "--seed", seed])
        found.append({path.name for path in state(folder).glob("run-*.journal")})
        with JournalReader(state(folder) / "last.journal") as reader:
            assert reader.runs[0].description["seed"] == int(seed)
    assert found[0] < found[1]
    assert len(found[1]) == 2
    assert (state(folder) / "last.journal").is_symlink()
    assert [path.name for path in state(folder).iterdir() if path.name.endswith("-lock")] == []


def test_many_runs_at_once_have_different_places(folder: Path) -> None:
    """Within one second too."""
    with ExitStack() as stack:
        paths = [stack.enter_context(new_journal(folder)) for _ in range(20)]
        assert len(set(paths)) == 20
        assert (folder / "last.journal").resolve() == paths[-1].resolve()


def test_a_run_that_never_began_changes_nothing(folder: Path) -> None:
    """A call that is refused leaves no empty journal, and the last one stays the last."""
    with new_journal(folder) as first:
        first.write_bytes(b"something")
    with pytest.raises(InputError), new_journal(folder):
        raise InputError("no such tenant")
    assert (folder / "last.journal").resolve() == first.resolve()
    assert list(folder.glob("run-*")) == [first]
    first.unlink()
    (folder / "last.journal").unlink()
    with new_journal(folder):
        pass
    assert list(folder.glob("*.journal")) == []


def test_the_journal_of_an_earlier_version_is_kept(folder: Path) -> None:
    """It was a plain file of that name."""
    (folder / "last.journal").write_bytes(b"precious")
    with new_journal(folder) as path:
        path.write_bytes(b"new")
    assert (folder / "last.journal").read_bytes() == b"new"
    assert sorted(each.read_bytes() for each in folder.glob("run-*")) == [b"new", b"precious"]


WRITER = """
import sys
from autopilot.core.model.policy.bounds import JournalRules
from autopilot.records.journal import SqliteJournal
journal = SqliteJournal(sys.argv[1], durable=False, rules=JournalRules(), replace=True)
print("open", flush=True)
sys.stdin.readline()
journal.close()
"""


def test_a_journal_that_another_process_writes_is_not_replaced(folder: Path) -> None:
    """The second writer is refused with one message; when the first ends, even by force, the place is free."""
    path = folder / "x.journal"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"open\n"
        before = path.stat().st_ino
        with pytest.raises(InputError, match=r"x\.journal: another process writes to this file"):
            SqliteJournal(path, durable=False, rules=RULES, replace=True)
        assert path.stat().st_ino == before
        first.kill()
    SqliteJournal(path, durable=False, rules=RULES, replace=True).close()


def test_a_journal_behind_a_link_stays_behind_it(folder: Path) -> None:
    """The link is followed, also where an older record is overwritten."""
    (folder / "far").mkdir()
    link = folder / "x.journal"
    link.symlink_to("far/real.journal")
    for _ in range(2):
        SqliteJournal(link, durable=False, rules=RULES, replace=True).close()
        assert link.is_symlink()
    assert [path.name for path in (folder / "far").iterdir()] == ["real.journal"]


@pytest.mark.parametrize("policy", [[], ["--policy", "recommend"]])
def test_a_record_without_ticks_is_not_identical(
    folder: Path, policy: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Replay says so and fails."""
    path = folder / "empty.journal"
    SqliteJournal(path, durable=False, rules=RULES).close()
    with pytest.raises(InputError, match=r"empty\.journal: the record holds no tick"):
        replay(path)
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(path), *policy])
    assert ended.value.code == 2
    assert "the record holds no tick" in capsys.readouterr().err


def test_an_output_may_be_a_pipe_or_a_device(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`--json /dev/stdout` prints the result; /dev/full is one message and stays a device."""
    command = ["simulate", "--jobs", "jobs.csv", "--cluster", "1x8", "--policy", "fifo", "--json"]
    with pytest.raises(SystemExit) as ended:
        main([*command, "/dev/stdout"])
    assert ended.value.code == 0
    assert '"schema": "gpu-autopilot/simulation/' in capfd.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main([*command, "/dev/full"])
    assert ended.value.code == 2
    said = capfd.readouterr().err.strip().splitlines()
    assert said[-1] == "autopilot: /dev/full: cannot be written: No space left on device"
    assert Path("/dev/full").is_char_device()
