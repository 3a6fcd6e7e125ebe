"""Events on the objects of the controller's actions, as shown by `kubectl describe`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import blake2b

from actuators.kubernetes.api import KINDS, Answer, Api, Obj, Ref

REPORTER = "gpu-autopilot.io/controller"
NOTE_BYTES = 1024
"""Longest note accepted by the server."""
NORMAL, WARNING = "Normal", "Warning"


class Events:
    """Writes Events. A failed write changes nothing else."""

    def __init__(self, api: Api, instance: str) -> None:
        """`instance`: the name of this process, at most 128 letters."""
        self._api, self._instance = api, instance[:128] or "gpu-autopilot"

    def say(
        self, about: Ref, reason: str, action: str, note: str, now_s: float, *, effect: str, warning: bool = False
    ) -> Answer:
        """One Event on `about`; ok once the server has it. `reason` and `action` are words of at most 128 letters.

        `effect` is the id of an instruction, or its record. The name of the Event follows from the effect and the text,
        so that a process going on with an effect does not repeat the Events of the one before it.
        """
        regarding = {
            "apiVersion": KINDS[about.kind][0],
            "kind": about.kind,
            "namespace": about.namespace,
            "name": about.name,
            "uid": about.uid,
        }
        path, body = event_of(regarding, reason, action, note, now_s, instance=self._instance, warning=warning)
        digest = blake2b(f"{about.uid}\n{reason}\n{note}\n{effect}".encode(), digest_size=8).hexdigest()
        body["metadata"]["name"] = f"{about.name[:200]}.{digest}"
        answer = self._api.post(path, body)
        return Answer(answer.body) if answer.body.get("reason") == "AlreadyExists" else answer


def event_of(
    regarding: Mapping[str, str], reason: str, action: str, note: str, now_s: float, *, instance: str, warning: bool
) -> tuple[str, Obj]:
    """The path for posting an Event, and the Event. `regarding`: kind, name and uid of its object."""
    space = regarding.get("namespace") or "default"
    stamp = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    body = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{regarding['name'][:200]}.{secrets.token_hex(8)}", "namespace": space},
        "eventTime": stamp,
        "reportingController": REPORTER,
        "reportingInstance": instance,
        "action": action[:128],
        "reason": reason[:128],
        "regarding": dict(regarding),
        "note": _cut(note),
        "type": WARNING if warning else NORMAL,
    }
    return f"/apis/events.k8s.io/v1/namespaces/{space}/events", body


def _cut(note: str) -> str:
    """At most `NOTE_BYTES` bytes of a note."""
    data = note.encode("utf-8")
    return note if len(data) <= NOTE_BYTES else data[: NOTE_BYTES - 3].decode("utf-8", "ignore") + "..."
