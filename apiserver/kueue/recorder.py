"""Events about Kueue's objects. Equal ones about one revision of an object become a series."""

from __future__ import annotations

from typing import Any

from apiserver.client import Client
from apiserver.errors import StatusError
from apiserver.kueue.conditions import EVENT_LIMIT, truncated
from apiserver.timeline import Clock, micro_stamp

Obj = dict[str, Any]
EVENTS = "events"
REMEMBERED = 4096  # series that may still grow


class Recorder:
    """Writes events as the library of events.k8s.io does."""

    def __init__(self, client: Client, timeline: Clock) -> None:
        self._client = client
        self._timeline = timeline
        self._series: dict[tuple[str, ...], tuple[str, str, int]] = {}
        self._last_ns = 0  # of the name given last: names of events hold the time and must differ

    def event(self, obj: Obj, kind: str, reason: str, message: str, reporter: str, action: str = "") -> None:
        """An event about an object; `kind` is Normal or Warning."""
        metadata = obj["metadata"]
        version = str(metadata.get("resourceVersion", ""))
        key = (metadata["uid"], version, kind, reason, action or reason, reporter)
        now = self._timeline.now
        known = self._series.pop(key, None)
        if known is not None:
            namespace, name, count = known
            self._series[key] = (namespace, name, count + 1)
            if count == 1:
                series = {"count": 2, "lastObservedTime": micro_stamp(now)}
                self._write(lambda: self._client.patch(EVENTS, namespace, name, {"series": series}))
            return
        namespace = metadata.get("namespace", "default")
        self._last_ns = max(self._timeline.now_us * 1000, self._last_ns + 1)
        name = f"{metadata['name']}.{self._last_ns:x}"
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "kind": obj["kind"],
                "namespace": metadata.get("namespace", ""),
                "name": metadata["name"],
                "uid": metadata["uid"],
                "apiVersion": obj["apiVersion"],
                "resourceVersion": version,
            },
            "reason": reason,
            "message": truncated(message, EVENT_LIMIT),
            "source": {},
            "firstTimestamp": None,
            "lastTimestamp": None,
            "type": kind,
            "eventTime": micro_stamp(now),
            "action": action or reason,
            "reportingComponent": reporter,
            "reportingInstance": f"{reporter}-0",
        }
        if self._write(lambda: self._client.create(EVENTS, event)):
            self._series[key] = (namespace, name, 1)
            if len(self._series) > REMEMBERED:
                del self._series[next(iter(self._series))]

    @staticmethod
    def _write(send: Any) -> bool:
        try:
            send()
        except (StatusError, KeyError):
            return False  # an event that cannot be written is lost
        return True
