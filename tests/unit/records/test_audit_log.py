"""The audit log: what is written can be checked, and what is changed is found."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.core.model.errors import InputError
from autopilot.records.audit import log as log_module
from autopilot.records.audit.entry import Event, Kind, chained, parse_line
from autopilot.records.audit.keys import public_key, signing_key
from autopilot.records.audit.log import AuditError, AuditLog, Head
from autopilot.records.audit.verify import Report, verify


class Desk:
    """A log on disk with a clock that the test moves."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.key_path = folder / "audit", folder / "key.pem"
        self.key = signing_key(self.key_path)
        self.now_s = 1_790_000_000.0
        self.log = self.open()

    def open(self, segment_bytes: int = log_module.SEGMENT_BYTES) -> AuditLog:
        return AuditLog(self.folder, self.key, lambda: self.now_s, segment_bytes=segment_bytes)

    def approve(self, number: int) -> Head:
        self.now_s += 10.0
        return self.log.record(
            Event(Kind.COMMAND, "ada", "approver", "127.0.0.1", f"p-{number}", "ab12", {"command": "approve"})
        )

    def verify(self, *heads: Head) -> Report:
        return verify(self.folder, [public_key(self.key_path.with_name("key.pem.pub"))], heads)

    def lines(self) -> list[bytes]:
        return b"".join(path.read_bytes() for path in sorted(self.folder.glob("*.jsonl"))).splitlines(keepends=True)

    def write(self, lines: list[bytes]) -> None:
        """Put `lines` in place of the log, as somebody with access to the disk could."""
        for path in self.folder.glob("*.jsonl"):
            path.unlink()
        (self.folder / "000000000001.jsonl").write_bytes(b"".join(lines))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A log with twenty approvals, closed."""
    desk = Desk(tmp_path)
    for number in range(20):
        desk.approve(number)
    desk.log.close()
    return desk


def test_an_untouched_log_is_intact_and_sealed_to_its_end(desk: Desk) -> None:
    """Verification passes, and counts one seal a minute."""
    report = desk.verify()
    assert report.intact
    assert report.seals == 4  # 20 approvals in 200 s: one seal a minute, and one at the close
    assert report.head.sequence == report.entries == 24
    assert report.sealed.sequence == 23


def test_a_log_goes_on_after_a_restart(desk: Desk) -> None:
    """A restart continues the numbers and the chain."""
    desk.log = desk.open()
    desk.approve(99)
    desk.log.close()
    assert desk.verify().intact
    assert [parse_line(line).sequence for line in desk.lines()] == list(range(1, 27))


def changed(lines: list[bytes]) -> list[bytes]:
    """A line with another name."""
    return [*lines[:5], lines[5].replace(b'"ada"', b'"eve"'), *lines[6:]]


def removed(lines: list[bytes]) -> list[bytes]:
    """One line is missing."""
    return lines[:5] + lines[6:]


def swapped(lines: list[bytes]) -> list[bytes]:
    """Two lines in the wrong order."""
    return [*lines[:5], lines[6], lines[5], *lines[7:]]


def repeated(lines: list[bytes]) -> list[bytes]:
    """A line appears twice."""
    return [*lines[:6], lines[5], *lines[6:]]


def forged(lines: list[bytes]) -> list[bytes]:
    """One line is changed, and the chain after it computed anew: the seals no longer fit."""
    return rechained([parse_line(line).event for line in lines], lines)


def without_seals(lines: list[bytes]) -> list[bytes]:
    """The chain is computed anew without its seals."""
    return rechained([parse_line(line).event for line in lines if parse_line(line).event.kind != Kind.SEAL], lines)


def rechained(events: list[Event], lines: list[bytes]) -> list[bytes]:
    """The chain of `events`, with one name replaced."""
    first = parse_line(lines[0])
    at_s, previous, made = 1_790_000_010.0, first.previous, []
    for number, event in enumerate(events, 1):
        who = "eve" if number == 6 else event.who
        entry = chained(
            number, at_s, Event(event.kind, who, event.role, event.origin, event.subject, "", event.facts), previous
        )
        made.append(entry.line)
        previous, at_s = entry.digest, at_s + 10.0
    return made


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (changed, "the line was changed"),
        (removed, "lines were removed"),
        (swapped, "moved"),
        (repeated, "inserted"),
        (forged, "the seal signs another line"),
        (without_seals, "seals were removed"),
        (lambda lines: [*lines[:-1], lines[-1][:-9]], "incomplete"),
    ],
)
def test_tampering_is_found(desk: Desk, tamper: Callable[[list[bytes]], list[bytes]], words: str) -> None:
    """Each change of the log is reported with its kind."""
    desk.write(tamper(desk.lines()))
    report = desk.verify()
    assert any(words in problem.reason for problem in report.problems), report.problems


@settings(max_examples=25)
@given(st.data())
def test_no_changed_byte_goes_unseen(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any changed byte is found."""
    desk = Desk(tmp_path_factory.mktemp("audit"))
    for number in range(3):
        desk.approve(number)
    desk.log.close()
    content = bytearray(b"".join(desk.lines()))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] = data.draw(st.integers(0, 255).filter(lambda byte: byte != content[at]))
    desk.write([bytes(content)])
    assert not desk.verify().intact


def test_lines_cut_from_the_end_are_found_with_an_exported_head(desk: Desk) -> None:
    """Only an exported head shows that the end is missing."""
    head = desk.log.head
    lines = desk.lines()
    desk.write(lines[:19])
    assert desk.verify().intact  # the rest is a consistent log: only a copy of the head can tell
    report = desk.verify(head)
    assert [problem.reason for problem in report.problems] == [
        f"the exported head {head} is not in the log: lines were removed or replaced"
    ]
    desk.write(lines)
    assert desk.verify(head).intact


def test_a_seal_of_another_key_is_refused(desk: Desk, tmp_path: Path) -> None:
    """The key of each seal must be given."""
    signing_key(tmp_path / "other.pem")
    report = verify(desk.folder, [public_key(tmp_path / "other.pem.pub")])
    assert "add it with --key" in report.problems[0].reason
    both = [public_key(tmp_path / "other.pem.pub"), public_key(tmp_path / "key.pem.pub")]
    assert verify(desk.folder, both).intact


def test_a_crash_in_the_middle_of_a_line_costs_that_line_only(desk: Desk) -> None:
    """An incomplete last line is removed at the next start, and the removal is recorded."""
    lines = desk.lines()
    desk.write([*lines, lines[3][:40]])
    desk.log = desk.open()
    desk.approve(99)
    desk.log.close()
    assert desk.verify().intact
    repair = next(e.event for e in map(parse_line, desk.lines()) if e.event.kind == Kind.REPAIR)
    assert repair.facts == {"removed_bytes": 40}


def test_a_damaged_last_line_stops_the_start(desk: Desk) -> None:
    """A changed last line is evidence, not something to repair."""
    desk.write(changed(desk.lines()[:6]))
    with pytest.raises(InputError, match=r"the last line of the audit log is damaged .* `autopilot audit verify"):
        desk.open()


def test_segments_continue_one_chain(tmp_path: Path) -> None:
    """A new segment continues the chain; a missing segment is found."""
    desk = Desk(tmp_path)
    desk.log.close()
    desk.log = desk.open(segment_bytes=2_000)
    for number in range(20):
        desk.approve(number)
    desk.log.close()
    segments = sorted(desk.folder.glob("*.jsonl"))
    assert len(segments) > 5
    assert desk.verify().intact
    segments[2].unlink()
    assert any("lines were removed" in problem.reason for problem in desk.verify().problems)


def test_a_full_disk_refuses_the_event_and_leaves_the_log_intact(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that cannot be recorded is refused as a whole."""
    desk.log = desk.open()
    before, write, calls = desk.log.head, os.write, []

    def full(file: int, content: bytes) -> int:
        calls.append(len(content))
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return write(file, content[:50])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(AuditError, match="No space left on device"):
        desk.approve(99)
    monkeypatch.undo()
    assert desk.log.head == before
    desk.approve(100)
    desk.log.close()
    assert desk.verify().intact


def test_a_second_writer_is_refused(desk: Desk) -> None:
    """A log has one writer."""
    first = desk.open()
    with pytest.raises(InputError, match="another process writes to this file"):
        desk.open()
    first.close()


def test_a_key_that_others_may_read_is_refused(desk: Desk) -> None:
    """The private key is for its owner alone."""
    desk.key_path.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        signing_key(desk.key_path)


@given(text=st.text(max_size=200), number=st.floats())
def test_any_text_and_number_is_recorded_on_one_line(text: str, number: float) -> None:
    """No text breaks a line, and every entry is read as it was written."""
    entry = chained(1, 0.0, Event(Kind.DENIED, who=text, facts={text: number, "text": text}), "0" * 64)
    assert entry.line.count(b"\n") == 1
    read = parse_line(entry.line)
    assert read.event.who == text
    assert read == entry


def test_a_long_text_is_cut_and_says_so() -> None:
    """A text has a bound."""
    entry = chained(1, 0.0, Event(Kind.DENIED, who="x" * 5_000), "0" * 64)
    assert entry.event.who.endswith("... (5000 characters)")
    assert json.loads(entry.line)["who"] == entry.event.who
