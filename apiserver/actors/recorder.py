"""Events as controllers write them: the older form with counts, and the form of events.k8s.io with series."""

from __future__ import annotations

from typing import Any

from apiserver.client import Client
from apiserver.errors import StatusError
from apiserver.timeline import Clock, micro_stamp, stamp

Obj = dict[str, Any]
Key = tuple[str, ...]
SIMILAR = 10  # client-go's EventAggregator: from the eleventh different text on, one event stands for all
COMBINED = "(combined from similar events): "


class Recorder:
    """Writes Events of one component, and counts repeated ones. Refused writes are dropped, as in client-go.

    `modern` chooses events.k8s.io's fields (eventTime, action, series) instead of source, count and first time.
    """

    def __init__(
        self, client: Client, timeline: Clock, component: str, *, modern: bool = False, host: str = ""
    ) -> None:
        self._client = client
        self._timeline = timeline
        self._component = component
        self._modern = modern
        self._host = host
        self._known: dict[Key, tuple[str, str, int]] = {}  # namespace, name and count of the event
        self._texts: dict[Key, set[str]] = {}
        self._last_ns = 0

    def normal(self, obj: Obj, reason: str, message: str, action: str = "") -> None:
        """Record an event of the usual course."""
        self._record(obj, "Normal", reason, message, action)

    def warning(self, obj: Obj, reason: str, message: str, action: str = "") -> None:
        """Record an event in need of attention."""
        self._record(obj, "Warning", reason, message, action)

    def _record(self, obj: Obj, kind: str, reason: str, message: str, action: str) -> None:
        similar: Key = (obj["metadata"].get("uid", obj["metadata"]["name"]), kind, reason)
        if not self._modern:
            texts = self._texts.setdefault(similar, set())
            if message not in texts and len(texts) >= SIMILAR:
                message = COMBINED + message
                key = (*similar, COMBINED)
            else:
                texts.add(message)
                key = (*similar, message)
        else:
            key = (*similar, action, message)
        try:
            if key in self._known:
                self._repeat(key, message)
            else:
                self._first(key, obj, kind, reason, message, action)
        except (StatusError, KeyError):  # refused, or a server without events
            self._known.pop(key, None)

    def _first(self, key: Key, obj: Obj, kind: str, reason: str, message: str, action: str) -> None:
        now, metadata = self._timeline.now, obj["metadata"]
        self._last_ns = max(self._timeline.now_us * 1000, self._last_ns + 1)
        name = f"{metadata['name']}.{self._last_ns:x}"
        namespace = metadata.get("namespace", "default")
        about = {"kind": obj["kind"], "namespace": metadata.get("namespace", ""), "name": metadata["name"]}
        about |= {
            "uid": metadata.get("uid"),
            "apiVersion": obj["apiVersion"],
            "resourceVersion": metadata.get("resourceVersion"),
        }
        event: Obj = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {name: value for name, value in about.items() if value},
            "reason": reason,
            "message": message,
            "type": kind,
            "reportingComponent": self._component,
        }
        if self._modern:
            event |= {"eventTime": micro_stamp(now), "action": action, "source": {}}
            event |= {
                "firstTimestamp": None,
                "lastTimestamp": None,
                "reportingInstance": f"{self._component}-{self._host}",
            }
        else:
            source = {"component": self._component} | ({"host": self._host} if self._host else {})
            event |= {"source": source, "firstTimestamp": stamp(now), "lastTimestamp": stamp(now), "count": 1}
            event |= {"eventTime": None, "reportingInstance": self._host}
        self._client.create("events", event)
        self._known[key] = (namespace, name, 1)

    def _repeat(self, key: Key, message: str) -> None:
        namespace, name, count = self._known[key]
        self._known[key] = (namespace, name, count + 1)
        now = self._timeline.now
        if self._modern:
            patch: Obj = {"series": {"count": count + 1, "lastObservedTime": micro_stamp(now)}}
        else:
            patch = {"count": count + 1, "lastTimestamp": stamp(now), "message": message}
        self._client.patch("events", namespace, name, patch, how="strategic")
