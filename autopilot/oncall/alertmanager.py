"""Reads the open alerts of an Alertmanager: a webhook may be cut short, and a sender gives up in the end."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

import msgspec

from autopilot.core.model.errors import InputError
from autopilot.oncall.payload import MAX_BYTES, MOST_ALERTS, Delivered, Name, Value, same_start
from collectors.exporter import get_limited, http_session, reason_of

LIMIT_BYTES = 8 * MAX_BYTES


class _Alert(msgspec.Struct, rename="camel"):
    """An alert as `GET /api/v2/alerts` lists it."""

    labels: Annotated[dict[Name, Value], msgspec.Meta(max_length=64)]
    starts_at: Annotated[str, msgspec.Meta(max_length=40)]
    fingerprint: Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{1,64}$")]
    annotations: Annotated[dict[Name, Value], msgspec.Meta(max_length=64)] = {}


Reader = Callable[[], tuple[Delivered, ...]]
"""The alerts that fire now. Raises `InputError`."""


def alertmanager_reader(url: str, receiver: str = "", timeout_s: float = 10.0) -> Reader:
    """A reader of the Alertmanager at `url`; with `receiver` only of alerts that are routed to it."""
    asked = {"active": "true", "silenced": "false", "inhibited": "false", "unprocessed": "false"}
    if receiver:
        asked["receiver"] = f"^{re.escape(receiver)}$"

    def read() -> tuple[Delivered, ...]:
        try:
            with http_session(1, None) as session:
                body = get_limited(session, f"{url}/api/v2/alerts", timeout_s, LIMIT_BYTES, asked)
            found = msgspec.json.decode(body, type=list[msgspec.Raw])
            return tuple(each for raw in found[:MOST_ALERTS] if (each := _fires(raw)) is not None)
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise InputError(f"alerts.alertmanager: {url}: {reason_of(error)}") from error

    return read


def _fires(raw: msgspec.Raw) -> Delivered | None:
    """An alert of the list; None for one without a name, and for one that cannot be read: the others count."""
    try:
        alert = msgspec.json.decode(raw, type=_Alert)
        started = same_start(alert.starts_at)
    except ValueError:
        return None
    if not alert.labels.get("alertname"):
        return None
    summary = alert.annotations.get("summary", "")
    return Delivered(alert.fingerprint.lower(), started, firing=True, labels=alert.labels, summary=summary)
