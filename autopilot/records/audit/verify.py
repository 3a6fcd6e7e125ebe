"""Reads an audit log and checks its chain and its seals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from autopilot.core.model.errors import InputError
from autopilot.records.audit.entry import GENESIS, Entry, Kind, parse_line
from autopilot.records.audit.keys import key_id
from autopilot.records.audit.log import SEAL_EVERY_S, Head, segments_of

MOST_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class Problem:
    """One place where the log is not intact."""

    file: str
    line: int  # from 1; 0: the file as a whole
    reason: str


@dataclass(slots=True)
class Report:
    """What `verify` found."""

    entries: int = 0
    seals: int = 0  # seals with a valid signature
    head: Head = field(default_factory=lambda: Head(0, GENESIS))
    sealed: Head = field(default_factory=lambda: Head(0, GENESIS))  # the last line that a valid seal covers
    problems: list[Problem] = field(default_factory=list)

    @property
    def intact(self) -> bool:
        """True when no problem was found."""
        return not self.problems


def check_folder(folder: Path) -> list[Path]:
    """The segments of the log. Raises `InputError` where the folder is no audit log."""
    segments = segments_of(folder) if folder.is_dir() else []
    if not segments:
        raise InputError(f"{folder}: not an audit log: there is no segment such as 000000000001.jsonl")
    return segments


def read_entries(folder: Path) -> Iterator[tuple[Path, int, Entry | ValueError]]:
    """Every line of the log in order: its file, its line number from 1, and the entry or what is wrong with it.

    Raises `InputError` where the folder is no audit log.
    """
    for path in check_folder(folder):
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    yield path, number, _entry(line)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def verify(folder: Path, keys: Sequence[Ed25519PublicKey], expected: Sequence[Head] = ()) -> Report:
    """Check the chain of `folder`, each seal against `keys`, and that each exported head in `expected` is in the log.

    Reading stops after `MOST_PROBLEMS` problems. Raises `InputError` where the folder is no audit log.
    """
    report = Report()
    known = {key_id(key): key for key in keys}
    missing = {head.sequence: head for head in expected}
    unsealed_s = inf  # time of the first line since the last seal
    for path, number, entry in read_entries(folder):
        if isinstance(entry, ValueError):
            reasons = [str(entry)]
        else:
            seal = entry.event.kind == Kind.SEAL
            bad_seal = _bad_seal(entry, known) if seal else _seal_missing(entry, unsealed_s)
            reasons = [reason for reason in (_broken(entry, report.head, path, number), bad_seal) if reason]
            if seal and not bad_seal:
                report.seals += 1
                report.sealed = Head(entry.sequence - 1, entry.previous)
            at_s = _at_s(entry)
            unsealed_s = inf if seal else at_s if bad_seal else min(unsealed_s, at_s)
            report.entries += 1
            report.head = Head(entry.sequence, entry.digest)
            if missing.get(entry.sequence) == report.head:
                del missing[entry.sequence]
        report.problems += [Problem(path.name, number, reason) for reason in reasons]
        if len(report.problems) >= MOST_PROBLEMS:
            return report
    for head in missing.values():
        report.problems.append(
            Problem("", 0, f"the exported head {head} is not in the log: lines were removed or replaced")
        )
    return report


def parse_head(text: str) -> Head:
    """A head from `SEQUENCE:DIGEST`. Raises `InputError`."""
    number, _, digest = text.partition(":")
    if not number.isdigit() or len(digest) != len(GENESIS) or set(digest) - set("0123456789abcdef"):
        raise InputError(f"--head: {text!r} is no head; write SEQUENCE:DIGEST as the log line `audit sealed` shows it")
    return Head(int(number), digest)


def _entry(line: bytes) -> Entry | ValueError:
    if not line.endswith(b"\n"):
        return ValueError("the line is incomplete: a crash, or the end was cut")
    try:
        return parse_line(line)
    except ValueError as error:
        return error


def _broken(entry: Entry, before: Head, path: Path, number: int) -> str:
    """Why the entry does not follow the one before; "" when it does."""
    if number == 1 and int(path.stem) != entry.sequence:
        return (
            f"the first line of this file has the sequence {entry.sequence}: a file was renamed or lines were removed"
        )
    if entry.sequence != before.sequence + 1:
        return f"the sequence goes from {before.sequence} to {entry.sequence}: lines were removed, inserted or moved"
    if entry.previous != before.digest:
        return "the line does not continue the line before: lines were changed, removed or inserted"
    return ""


def _seal_missing(entry: Entry, unsealed_s: float) -> str:
    """Why the lines before should have had a seal by now; "" when they need none yet."""
    if _at_s(entry) - unsealed_s <= SEAL_EVERY_S:
        return ""
    return "the lines before this one waited more than a minute for a seal: seals were removed"


def _at_s(entry: Entry) -> float:
    return datetime.fromisoformat(entry.at).timestamp()


def _bad_seal(entry: Entry, keys: dict[str, Ed25519PublicKey]) -> str:
    """Why a seal does not sign the line before; "" when it does."""
    facts = entry.event.facts
    key = keys.get(str(facts.get("key")))
    if key is None:
        return f"the seal was made with the key {facts.get('key')}, which was not given; add it with --key"
    signed = Head(entry.sequence - 1, entry.previous)
    if (facts.get("sequence"), facts.get("digest")) != (signed.sequence, signed.digest):
        return "the seal signs another line than the one before"
    try:
        key.verify(bytes.fromhex(str(facts.get("signature"))), str(signed).encode("ascii"))
    except (InvalidSignature, ValueError):
        return "the signature of the seal is not valid"
    return ""
