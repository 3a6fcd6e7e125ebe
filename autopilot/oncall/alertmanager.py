"""Reads the alerts of an Alertmanager: a webhook may be cut short, and a sender gives up in the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, NamedTuple

import msgspec

from autopilot.core.model.errors import InputError
from autopilot.oncall.payload import MAX_BYTES, MOST_ALERTS, Delivered, Key, Name, Value, same_start
from collectors.exporter import get_limited, http_session, reason_of

LIMIT_BYTES = 8 * MAX_BYTES

SETTLED_S = 300.0
"""Age of an Alertmanager with all alerts: it starts with none, and Prometheus sends each one every minute."""


class _Receiver(msgspec.Struct):
    name: str


class _Status(msgspec.Struct):
    state: str


class _Key(msgspec.Struct, rename="camel"):
    """The identity of an alert in the list of `GET /api/v2/alerts`."""

    starts_at: Annotated[str, msgspec.Meta(max_length=40)]
    fingerprint: Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{1,64}$")]

    @property
    def key(self) -> Key:
        """As the webhook gives it. Raises `ValueError`."""
        return self.fingerprint.lower(), same_start(self.starts_at)


class _Alert(_Key, kw_only=True):
    """The whole of it."""

    labels: Annotated[dict[Name, Value], msgspec.Meta(max_length=64)]
    status: _Status
    receivers: list[_Receiver]
    annotations: Annotated[dict[Name, Value], msgspec.Meta(max_length=64)] = {}


class _Age(msgspec.Struct):
    """The start of the Alertmanager, from `GET /api/v2/status`."""

    uptime: datetime


class Listed(NamedTuple):
    """The alerts of an Alertmanager."""

    active: tuple[Delivered, ...]  # delivered alerts: neither silenced nor inhibited
    keys: frozenset[Key]  # every firing alert
    whole: bool  # an alert absent from them has ended


Reader = Callable[[], Listed]
"""The alerts firing now. Raises `InputError`."""


def alertmanager_reader(url: str, receiver: str = "", timeout_s: float = 10.0, settled_s: float = SETTLED_S) -> Reader:
    """A reader of the Alertmanager at `url`; with `receiver` only alerts routed to it are active."""

    def read() -> Listed:
        try:
            with http_session(1, None) as session:  # one connection: behind one address, the same Alertmanager answers
                body = get_limited(session, f"{url}/api/v2/alerts", timeout_s, LIMIT_BYTES)
                age = get_limited(session, f"{url}/api/v2/status", timeout_s, LIMIT_BYTES)
            since_s = msgspec.json.decode(age, type=_Age).uptime.timestamp()
            raws = msgspec.json.decode(body, type=list[msgspec.Raw])
            keys = [_key(raw) for raw in raws]
            active = tuple(each for raw in raws if (each := _active(raw, receiver)) is not None)
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise InputError(f"alerts.alertmanager: {url}: {reason_of(error)}") from error
        whole = None not in keys and time.time() - since_s >= settled_s
        return Listed(active[:MOST_ALERTS], frozenset(each for each in keys if each is not None), whole)

    return read


def _key(raw: msgspec.Raw) -> Key | None:
    try:
        return msgspec.json.decode(raw, type=_Key).key
    except ValueError:
        return None


def _active(raw: msgspec.Raw, receiver: str) -> Delivered | None:
    """A delivered alert; None for one without a name, and for an unreadable one: the others count."""
    try:
        alert = msgspec.json.decode(raw, type=_Alert)
        key = alert.key
    except ValueError:
        return None
    routed = not receiver or any(each.name == receiver for each in alert.receivers)
    if alert.status.state != "active" or not routed or not alert.labels.get("alertname"):
        return None
    return Delivered(*key, firing=True, labels=alert.labels, summary=alert.annotations.get("summary", ""))
