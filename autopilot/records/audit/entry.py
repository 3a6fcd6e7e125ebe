"""One line of the audit log, and the hash that chains it to the line before.

A line is a JSON object with sorted keys and ASCII characters. `digest` is the SHA-256 of the same object without that
field. `previous` is the digest of the line before, so a line that is changed, removed, inserted or moved breaks the
chain at that place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from math import isfinite
from typing import Any

SCHEMA = "gpu-autopilot/audit/1"
GENESIS = "0" * 64
"""The previous digest of the first line."""
MAX_TEXT = 2_000
"""Most characters of a text that is recorded; a longer one is cut, and says so."""

Fact = str | int | float | bool | None


class Kind(StrEnum):
    """What happened."""

    COMMAND = "command"  # a person's command was received
    SIGN_IN = "sign-in"  # a person signed in through an OpenID Connect provider
    DENIED = "denied"  # a request was refused: no token, a wrong role, too many requests
    INSTRUCTION = "instruction"  # an effect was sent to the cluster
    OUTCOME = "outcome"  # an effect ended
    NOTICE = "notice"  # a notice to an owner left by webhook or mail, or could not
    ALERT = "alert"  # an alert was delivered, or the work on it reached another stage
    SETTINGS = "settings"  # the policy or the settings changed
    START = "start"
    STOP = "stop"
    REPAIR = "repair"  # an incomplete last line, left by a crash, was removed
    SEAL = "seal"  # a signature of the line before


@dataclass(frozen=True, slots=True)
class Event:
    """What to record. Empty text: not known, or it does not apply."""

    kind: Kind
    who: str = ""  # a person, or the action that decided
    role: str = ""
    origin: str = ""  # address of the client
    subject: str = ""  # a proposal, a workload, a node
    state_digest: str = ""  # the state that the person saw
    facts: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line, as it is on disk."""

    sequence: int
    at: str  # UTC, ISO 8601 with microseconds
    event: Event
    previous: str
    digest: str

    @property
    def line(self) -> bytes:
        """The line with its newline."""
        return _text(_body(self.sequence, self.at, self.event, self.previous) | {"digest": self.digest}) + b"\n"


def chained(sequence: int, at_s: float, event: Event, previous: str) -> Entry:
    """The entry of `event` at `at_s` (seconds since 1970) after the line with the digest `previous`."""
    at = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    event = _bounded(event)
    return Entry(sequence, at, event, previous, _digest(_body(sequence, at, event, previous)))


def parse_line(line: bytes) -> Entry:
    """The entry of one line. Raises `ValueError` with the reason where the line is not an intact entry."""
    try:
        content: Any = json.loads(line)
    except ValueError as error:
        raise ValueError("not JSON") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError(f"not an entry of the schema {SCHEMA}")
    digest = content.pop("digest", None)
    if digest != _digest(content):
        raise ValueError("the digest does not match the content: the line was changed")
    try:
        texts = {name: str(content[name]) for name in _TEXTS}
        event = Event(Kind(content["kind"]), **texts, facts=dict(content["facts"]))
        return Entry(int(content["sequence"]), str(content["at"]), event, str(content["previous"]), digest)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the line lacks a field, or has an unknown kind: {error}") from error


_TEXTS = ("who", "role", "origin", "subject", "state_digest")


def _body(sequence: int, at: str, event: Event, previous: str) -> dict[str, Any]:
    texts = {name: getattr(event, name) for name in _TEXTS}
    return {
        "schema": SCHEMA,
        "sequence": sequence,
        "at": at,
        "kind": str(event.kind),
        **texts,
        "facts": dict(event.facts),
        "previous": previous,
    }


def _bounded(event: Event) -> Event:
    """The event with long texts cut, and numbers that JSON cannot hold as text."""
    texts = {name: _cut(getattr(event, name)) for name in _TEXTS}
    return Event(event.kind, **texts, facts={_cut(name): _fact(value) for name, value in event.facts.items()})


def _fact(value: Fact) -> Fact:
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}... ({len(text)} characters)"


def _text(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _digest(body: Mapping[str, Any]) -> str:
    return sha256(_text(body)).hexdigest()
