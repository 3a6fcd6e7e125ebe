"""The payloads of Alertmanager (version 4) and Grafana as alerts.

Both deliver at least once, repeat, and may reorder. (fingerprint, start) identifies one alert; by this key a repeated
delivery is harmless. Unused fields are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

import msgspec

from autopilot.contract.documents import decoded
from autopilot.contract.notes import shown
from autopilot.core.model.errors import InputError
from autopilot.records.journal.alerts import AlertStep

MAX_BYTES = 4 << 20
MOST_ALERTS = 5_000
MOST_TRUNCATED = 2**31 - 1

Name = Annotated[str, msgspec.Meta(max_length=200)]
Value = Annotated[str, msgspec.Meta(max_length=8_000)]

Key = tuple[str, str]
"""The identity of an alert: fingerprint, and start in UTC and milliseconds."""


class _Alert(msgspec.Struct, rename="camel"):
    status: Annotated[str, msgspec.Meta(pattern="^(firing|resolved)$")]
    labels: Annotated[dict[Name, Value], msgspec.Meta(max_length=64)]
    starts_at: Annotated[str, msgspec.Meta(max_length=40)]
    fingerprint: Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{1,64}$")]
    annotations: Annotated[dict[Name, Value], msgspec.Meta(max_length=64)] = {}


class _Payload(msgspec.Struct, rename="camel"):
    alerts: list[msgspec.Raw]
    version: str = ""
    truncated_alerts: Any = 0


_PAYLOAD = msgspec.json.Decoder(_Payload)


@dataclass(frozen=True, slots=True)
class Delivered:
    """One alert of a payload."""

    fingerprint: str
    started: str  # in UTC and milliseconds; part of the key
    firing: bool
    labels: dict[str, str]
    summary: str

    @property
    def key(self) -> Key:
        """The identity of the alert."""
        return self.fingerprint, self.started

    @property
    def name(self) -> str:
        """The name of the alert."""
        return self.labels["alertname"]

    def step(self, now_s: float) -> AlertStep:
        """The delivery, for the record."""
        reason = "it fires" if self.firing else "it resolved"
        return AlertStep(now_s, self.name, self.fingerprint, self.started, self.labels, "received", reason)


class Payload(NamedTuple):
    """The alerts of a payload, the number left out by its sender, and the reasons for unreadable ones."""

    alerts: tuple[Delivered, ...]
    truncated: int
    refused: tuple[str, ...]


def parse_payload(body: bytes) -> Payload:
    """The payload of a delivery. An unreadable alert is left out and named.

    Raises `InputError` for anything but a payload, and for one without a readable alert.
    """
    if len(body) > MAX_BYTES:
        raise InputError(f"the payload has {len(body):,} bytes; at most {MAX_BYTES:,} are read")
    try:
        payload = decoded(_PAYLOAD.decode, body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not a payload of Alertmanager version 4 or of Grafana: {error}") from error
    if len(payload.alerts) > MOST_ALERTS:
        raise InputError(f"the payload has {len(payload.alerts):,} alerts; at most {MOST_ALERTS:,} are read at once")
    found, refused = [], []
    for at, raw in enumerate(payload.alerts):
        try:
            found.append(_delivered(raw, at))
        except (InputError, msgspec.DecodeError, UnicodeDecodeError) as error:
            refused.append(str(error) if isinstance(error, InputError) else f"alerts[{at}]: {error}")
    if refused and not found:
        raise InputError(f"no alert of the payload can be read: {refused[0]}")
    more = payload.truncated_alerts if isinstance(payload.truncated_alerts, int) else 0
    return Payload(tuple(found), min(max(more, 0), MOST_TRUNCATED), tuple(refused))


def _delivered(raw: msgspec.Raw, at: int) -> Delivered:
    alert = msgspec.json.decode(raw, type=_Alert)
    if not alert.labels.get("alertname"):
        raise InputError(f"alerts[{at}]: the label alertname is missing")
    try:
        started = same_start(alert.starts_at)
    except ValueError as error:
        raise InputError(f"alerts[{at}].startsAt: {shown(alert.starts_at)} is not a time in RFC 3339") from error
    summary = alert.annotations.get("summary", "")
    return Delivered(alert.fingerprint.lower(), started, alert.status == "firing", alert.labels, summary)


def same_start(text: str) -> str:
    """A start in UTC and milliseconds: a webhook has nanoseconds, the API of Alertmanager milliseconds.

    Raises `ValueError` for anything but a time.
    """
    at = datetime.fromisoformat(text)
    try:
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(str(error)) from error
    return at.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
