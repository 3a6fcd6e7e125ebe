"""Watch streams: the first events, the changes, bookmarks, and their end."""

from __future__ import annotations

from typing import Any

from apiserver.kinds.base import Call, State
from apiserver.options import is_set
from apiserver.options import whole as whole_number
from apiserver.requests import WatchEvent, WatchStream, dumped
from apiserver.selectors import Match
from apiserver.store import Entry, Event
from apiserver.timeline import US
from apiserver.views import View

Obj = dict[str, Any]
BOOKMARK_EVERY_S = 60.0  # measured on Kubernetes 1.36
BOOKMARK_BEFORE_END_S = 1.6  # as above: about 1-2 s before timeoutSeconds ends
DEFAULT_TIMEOUT_S = 1800.0


class Watcher:
    """Feeds one stream with the selected changes of one resource."""

    def __init__(self, server: State, call: Call, match: Match, view: View) -> None:
        self.server = server
        self.stream = WatchStream()
        self.namespace = call.namespace if call.kind.namespaced and call.namespace else None
        self.match = match
        self.view = view
        self.sent = 0

    def first(self, entries: list[Entry]) -> None:
        """Send the present objects, as ADDED."""
        for entry in entries:
            if self.match(entry.obj):
                self._send("ADDED", entry)

    def change(self, event: Event) -> None:
        """Send a change as seen through the selectors: an object leaving them is DELETED, one entering them ADDED."""
        if self.namespace is not None and event.obj["metadata"].get("namespace") != self.namespace:
            return
        was = event.old is not None and self.match(event.old.obj)
        if event.type == "DELETED":
            if was:
                self._send("DELETED", event.entry)
            return
        now = self.match(event.obj)
        if now:
            self._send("MODIFIED" if was else "ADDED", event.entry)
        elif was and event.old is not None:
            last = event.old.obj
            stamped = last | {"metadata": last["metadata"] | {"resourceVersion": str(event.rv)}}
            self._send("DELETED", Entry(stamped, event.rv))

    def _send(self, change: str, entry: Entry) -> None:
        timeline = self.server.timeline
        self.stream.push(self.view.event(timeline.now_us, change, entry, timeline.now, first=self.sent == 0))
        self.sent += 1

    def bookmark(self, *, initial_end: bool = False) -> None:
        """State the version of the last change sent."""
        metadata: Obj = {"resourceVersion": str(self.server.store.version)}
        if initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        self.stream.push(self.view.bookmark(self.server.timeline.now_us, metadata))

    def refuse(self, version: int, oldest: int) -> None:
        """410 as an event, and the end."""
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": f"too old resource version: {version} ({oldest})",
            "reason": "Expired",
            "code": 410,
        }
        self.stream.push(WatchEvent(self.server.timeline.now_us, "ERROR", lambda: status, lambda: dumped(status)))
        self.stream.close()


def start_watch(server: State, call: Call, match: Match, version: int, view: View) -> WatchStream:
    """Start a watch from a version (0: with everything there is as ADDED)."""
    watcher = Watcher(server, call, match, view)
    store, storage = server.store, call.kind.storage
    initial = is_set(call.request.query, "sendInitialEvents")
    whole = not version and not call.option("sendInitialEvents")  # such a watch marks the end of what there was, too
    if version and not initial:
        missed = store.since(storage, version) if version >= store.began else None
        if missed is None:
            watcher.refuse(version, max(store.shelf(storage).oldest, store.began) + 1)
            return watcher.stream
        for event in missed:
            watcher.change(event)
    elif initial or not call.option("sendInitialEvents"):
        watcher.first(list(store.shelf(storage).entries(watcher.namespace)))
    if initial or (whole and is_set(call.request.query, "allowWatchBookmarks")):
        watcher.bookmark(initial_end=True)
    watcher.stream.at_end(store.listen(storage, watcher.change))
    open_streams = server.streams.setdefault(f"{storage}/{call.kind.version}", [])
    open_streams.append(watcher.stream)
    watcher.stream.at_end(lambda: open_streams.remove(watcher.stream) if watcher.stream in open_streams else None)
    _schedule(watcher, call)
    return watcher.stream


def _schedule(watcher: Watcher, call: Call) -> None:
    """Bookmarks, and the end after timeoutSeconds."""
    timeline, stream = watcher.server.timeline, watcher.stream
    timeout_s = max(whole_number(call.request.query, "timeoutSeconds") or DEFAULT_TIMEOUT_S, 0.0)
    end_us = timeline.now_us + round(timeout_s * US)
    timers = [timeline.at_us(end_us, stream.close)]
    if is_set(call.request.query, "allowWatchBookmarks"):
        if timeout_s > BOOKMARK_BEFORE_END_S:
            timers.append(timeline.at_us(end_us - round(BOOKMARK_BEFORE_END_S * US), watcher.bookmark))

        def again() -> None:
            if not stream.closed:
                watcher.bookmark()
                timers.append(timeline.at(BOOKMARK_EVERY_S, again))

        timers.append(timeline.at(BOOKMARK_EVERY_S, again))

    def end() -> None:
        for timer in timers:
            timer.cancel()

    stream.at_end(end)
