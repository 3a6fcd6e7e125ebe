"""Inbox, leadership and kill switch: what they promise when processes die, disks fail and files are strange."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autopilot.core.model.errors import InputError
from autopilot.core.model.records import Command, CommandKind
from autopilot.service.inbox import SqliteInbox
from autopilot.service.kill_switch import KillSwitch
from autopilot.service.leadership import FileLeadership


def _command(subject: str = "") -> Command:
    return Command(CommandKind.PAUSE, "ada", 5.0, subject)


def test_numbers_are_never_used_twice(tmp_path: Path) -> None:
    """Also when the file is opened again and its last row is gone."""
    path = tmp_path / "inbox.db"
    inbox = SqliteInbox(path, str)
    assert [inbox.receive(_command()).sequence for _ in range(3)] == [0, 1, 2]
    inbox._db.execute("DELETE FROM commands")
    inbox.close()
    assert SqliteInbox(path, str).receive(_command()).sequence == 3


def test_a_command_is_delivered_once_and_again_after_a_crash(tmp_path: Path) -> None:
    """What the saved memory does not know comes again; what it knows does not."""
    path = tmp_path / "inbox.db"
    inbox = SqliteInbox(path, str)
    first, second = inbox.receive(_command("a"), "10.0.0.1"), inbox.receive(_command("b"))
    assert [each.sequence for each in inbox.drain(9.0)] == [first.sequence, second.sequence]
    assert inbox.drain(9.0) == ()
    inbox.close()
    again = SqliteInbox(path, str, after=first.sequence)
    (found,) = again.drain(9.0)
    assert (found.sequence, found.subject, found.who, found.at_s) == (1, "b", "ada", 5.0)


def test_an_inbox_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    """The error names the file and what to do."""
    with pytest.raises(InputError, match=r"inbox\.db: the inbox of commands cannot be used.*make the folder writable"):
        SqliteInbox(tmp_path / "missing" / "inbox.db", str)


def test_one_leads_and_the_next_has_a_higher_token(tmp_path: Path) -> None:
    """The token rises with each leader, also past the one that the memory knows."""
    path = tmp_path / "leader.lock"
    one, two = FileLeadership(path), FileLeadership(path)
    assert (one.fence(), one.fence(), two.fence()) == (1, 1, None)
    one.release()
    assert two.fence() == 2
    two.release()
    assert FileLeadership(path, least=40).fence() == 41


def test_a_leader_whose_lock_file_was_replaced_leads_no_longer(tmp_path: Path) -> None:
    """Another process may hold the new file."""
    path = tmp_path / "leader.lock"
    one = FileLeadership(path)
    assert one.fence() == 1
    path.unlink()
    two = FileLeadership(path, least=1)
    assert two.fence() == 2
    assert one.fence() is None


def test_a_damaged_lock_file_stops_the_start(tmp_path: Path) -> None:
    """Starting at 1 again would let an old leader act."""
    path = tmp_path / "leader.lock"
    path.write_text("garbage\n", "utf-8")
    with pytest.raises(InputError, match="'garbage' is no fencing token; write the last one"):
        FileLeadership(path).fence()


@pytest.mark.parametrize(
    ("said", "on"),
    [(None, False), ("off\n", False), ("OFF", False), ("", True), ("on", True), ("of", True), ("\xff", True)],
)
def test_the_kill_switch_is_a_file(tmp_path: Path, said: str | None, on: bool) -> None:
    """It is on while the file exists, whatever it says but `off`."""
    path = tmp_path / "kill"
    if said is not None:
        path.write_bytes(said.encode("latin-1"))
    assert bool(KillSwitch(path, {}).reason()) is on


def test_a_kill_switch_that_cannot_be_read_is_on(tmp_path: Path) -> None:
    """A folder in its place, a folder that is gone, an environment that says anything."""
    assert "cannot be read" in KillSwitch(tmp_path, {}).reason()
    assert "its folder is gone" in KillSwitch(tmp_path / "gone" / "kill", {}).reason()
    assert "GPU_AUTOPILOT_KILL" in KillSwitch(tmp_path / "kill", {"GPU_AUTOPILOT_KILL": "yes"}).reason()
    assert not KillSwitch(tmp_path / "kill", {"GPU_AUTOPILOT_KILL": "0"}).reason()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_kill_switch_without_permission_is_on(tmp_path: Path) -> None:
    """A file of somebody else may say on."""
    path = tmp_path / "kill"
    path.write_text("off", "utf-8")
    path.chmod(0)
    assert "cannot be read" in KillSwitch(path, {}).reason()


def test_a_kill_that_cannot_be_stored_still_counts(tmp_path: Path) -> None:
    """Until the process ends."""
    switch = KillSwitch(tmp_path / "kill", {})
    switch.trip("ada sent `kill`")
    assert switch.reason() == "ada sent `kill`"
