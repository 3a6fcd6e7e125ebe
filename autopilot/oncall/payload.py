"""The payloads of Alertmanager (version 4) and Grafana as alerts.

Both deliver at least once, repeat, and may reorder. (fingerprint, start) identifies one alert; it is the key that makes
a repeated delivery harmless. Fields that are not used here are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import msgspec

from autopilot.core.model.errors import InputError
from autopilot.journal.alerts import AlertStep

MAX_BYTES = 4 << 20
MOST_ALERTS = 5_000

Name = Annotated[str, msgspec.Meta(max_length=200)]
Value = Annotated[str, msgspec.Meta(max_length=8_000)]


class _Alert(msgspec.Struct, rename="camel"):
    status: Annotated[str, msgspec.Meta(pattern="^(firing|resolved)$")]
    labels: Annotated[dict[Name, Value], msgspec.Meta(max_length=64)]
    starts_at: Annotated[str, msgspec.Meta(max_length=40)]
    fingerprint: Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{1,64}$")]
    annotations: Annotated[dict[Name, Value], msgspec.Meta(max_length=64)] = {}


class _Payload(msgspec.Struct, rename="camel"):
    alerts: list[_Alert]
    version: str = ""
    truncated_alerts: int = 0


@dataclass(frozen=True, slots=True)
class Delivered:
    """One alert of a payload."""

    fingerprint: str
    started: str  # in UTC and milliseconds; part of the key
    firing: bool
    labels: dict[str, str]
    summary: str

    @property
    def name(self) -> str:
        """The name of the alert."""
        return self.labels["alertname"]

    def step(self, now_s: float) -> AlertStep:
        """The delivery, for the record."""
        reason = "it fires" if self.firing else "it resolved"
        return AlertStep(now_s, self.name, self.fingerprint, self.started, self.labels, "received", reason)


def parse_payload(body: bytes) -> tuple[tuple[Delivered, ...], int]:
    """The alerts of a payload, and how many more its sender left out. Raises `InputError` with what is wrong."""
    if len(body) > MAX_BYTES:
        raise InputError(f"the payload has {len(body):,} bytes; at most {MAX_BYTES:,} are read")
    try:
        payload = msgspec.json.decode(body, type=_Payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not a payload of Alertmanager version 4 or of Grafana: {error}") from error
    if len(payload.alerts) > MOST_ALERTS:
        raise InputError(f"the payload has {len(payload.alerts):,} alerts; at most {MOST_ALERTS:,} are read at once")
    return tuple(_delivered(alert, at) for at, alert in enumerate(payload.alerts)), max(payload.truncated_alerts, 0)


def _delivered(alert: _Alert, at: int) -> Delivered:
    if not alert.labels.get("alertname"):
        raise InputError(f"alerts[{at}]: the label alertname is missing")
    try:
        started = same_start(alert.starts_at)
    except ValueError as error:
        raise InputError(f"alerts[{at}].startsAt: {alert.starts_at!r} is not a time in RFC 3339") from error
    summary = alert.annotations.get("summary", "")
    return Delivered(alert.fingerprint.lower(), started, alert.status == "firing", alert.labels, summary)


def same_start(text: str) -> str:
    """A start in UTC and milliseconds: a webhook has nanoseconds, the API of Alertmanager milliseconds.

    Raises `ValueError` for what is not a time.
    """
    at = datetime.fromisoformat(text)
    try:
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(str(error)) from error
    return at.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
