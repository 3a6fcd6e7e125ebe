"""Reads: get, list with pages, and the start of watches."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from apiserver import options
from apiserver.errors import FieldError, StatusError, bad_request, forbidden_field, joined, not_found, unsupported
from apiserver.kinds.base import Call, State
from apiserver.requests import Response, WatchStream
from apiserver.selectors import Match, everything, field_selector, label_selector
from apiserver.store import Entry, key_of
from apiserver.uptime import Uptime
from apiserver.views import View, view_of
from apiserver.watching import start_watch

Obj = dict[str, Any]
TOKEN_VERSION = "meta.k8s.io/v1"  # noqa: S105 - of the format of a continue token
MATCHES = ("Exact", "NotOlderThan")
FUTURE_WAIT_S = 3.0  # how long a real server waits for a version that has not come


class Reading:
    """The reading verbs."""

    def __init__(self, server: State, uptime: Uptime) -> None:
        self._server, self._uptime = server, uptime

    def get(self, call: Call) -> Response:
        """One object, or its view by a subresource."""
        self._version(call)
        obj = self._server.store.get(call.kind.storage, call.namespace, call.name)
        if obj is None:
            raise not_found(call.kind.named(call.name))
        view = view_of(call.kind, call.request.accept, call.option("includeObject"))
        if call.subresource and (read := call.kind.subresources[call.subresource].get) is not None:
            return Response(200, read(self._server, call.kind, obj))
        return Response(200, view.one(obj, self._server.timeline.now))

    def collection(self, call: Call) -> Response:
        """A collection, whole or a page of it."""
        store, kind = self._server.store, call.kind
        namespace = call.namespace if kind.namespaced and call.namespace else None
        limit = max(options.whole(call.request.query, "limit"), 0)
        options.whole(call.request.query, "timeoutSeconds")
        self._uptime.check_cache(call.kind)
        match = self.match(call)
        check_list_options(call)
        version = self._version(call)
        exact = call.option("resourceVersionMatch") == "Exact"
        token = call.option("continue")
        start = ""
        if token:
            if version:
                raise bad_request("specifying resource version is not allowed when using continue")
            version, start = read_token(token)
        elif not exact:
            limit = 0 if call.option("resourceVersion") == "0" else limit
            version = store.version
        if version < 0 or version == store.version:
            version = store.version
            entries = list(store.shelf(kind.storage).entries(namespace))
        else:
            found = store.at_version(kind.storage, namespace, version)
            if found is None:
                raise expired(start if token else None)
            entries = found
        return self._page(call, entries, match, version, start, limit)

    def _page(self, call: Call, entries: list[Entry], match: Match, version: int, start: str, limit: int) -> Response:
        namespace = call.namespace if call.kind.namespaced and call.namespace else None
        if start:
            entries = [entry for entry in entries if position(entry, namespace) >= start]
        metadata: Obj = {"resourceVersion": str(version)}
        if match is not everything:
            entries = [entry for entry in entries if match(entry.obj)]
        if limit and len(entries) > limit:
            metadata["continue"] = write_token(version, position(entries[limit - 1], namespace) + "\0")
            if match is everything:
                metadata["remainingItemCount"] = len(entries) - limit
            entries = entries[:limit]
        view = view_of(call.kind, call.request.accept, call.option("includeObject"))
        return Response(200, view.list(entries, metadata, self._server.timeline.now))

    def watch(self, call: Call) -> WatchStream:
        """A stream of changes."""
        self._uptime.check_cache(call.kind)
        match = self.match(call)
        check_watch_options(call)
        version = self._version(call, watch=True)
        view = view_of(call.kind, call.request.accept, call.option("includeObject"))
        return start_watch(self._server, call, match, version, view)

    def match(self, call: Call) -> Match:
        """The selectors of a call as one."""
        kind = call.kind
        labels = label_selector(call.option("labelSelector"))
        fields = field_selector(kind, call.option("fieldSelector"))
        if call.name:
            fields = field_selector(kind, f"metadata.name={call.name}")
        if labels is everything:
            return fields
        if fields is everything:
            return labels
        return lambda obj: labels(obj) and fields(obj)

    def _version(self, call: Call, *, watch: bool = False) -> int:
        """The resourceVersion asked for; 0 if none. A version of the future is a timeout."""
        try:
            version = options.version(call.option("resourceVersion"))
        except StatusError as error:
            if call.verb in {"list", "deletecollection"}:
                raise bad_request(f"invalid resource version: {error}") from None
            raise
        current = self._server.store.version
        if version > current and not watch:
            raise too_large(version, current)
        return version


def too_large(version: int, current: int) -> StatusError:
    """504 for a version still to come."""
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    message = f"Timeout: Too large resource version: {version}, current: {current}"
    error = StatusError(504, "Timeout", message, details, {"retry-after": "1"})
    error.delay_s = FUTURE_WAIT_S
    return error


def position(entry: Entry, namespace: str | None) -> str:
    """The place of an object in its list, as a continue token states it."""
    own, name = key_of(entry.obj)
    return f"/{name}" if namespace is not None or not own else f"/{own}/{name}"


def write_token(version: int, start: str) -> str:
    """A continue token."""
    text = json.dumps({"v": TOKEN_VERSION, "rv": version, "start": start}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_token(token: str) -> tuple[int, str]:
    """Version and start of a continue token; version -1 is the newest. Raises StatusError 400."""
    try:
        text = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode("latin-1")
        state = json.loads(text)
        start = str(state["start"])
        return int(state["rv"]), start if start.startswith("/") else "/" + start
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        first = text[0] if isinstance(error, json.JSONDecodeError) and text else "?"
        first = first if first.isprintable() else f"\\u{ord(first):04x}"
        why = f"continue key is not valid: invalid character '{first}' looking for beginning of value"
        raise bad_request(f"invalid continue token: {why}") from None


def expired(start: str | None) -> StatusError:
    """410. With the start of a page: a token to go on from there, without consistency."""
    if start is None:
        return StatusError(410, "Expired", "The resourceVersion for the provided list is too old.")
    message = (
        "The provided continue parameter is too old to display a consistent list result. You can start a new list "
        "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
        "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
        "modified, or deleted between the time the first chunk was returned and now may show up in the list."
    )
    return StatusError(410, "Expired", message, metadata={"continue": write_token(-1, start)})


def _list_options(errors: list[FieldError]) -> StatusError:
    details = {
        "group": "meta.k8s.io",
        "kind": "ListOptions",
        "causes": [error.cause() for error in errors],
    }
    return StatusError(422, "Invalid", f'ListOptions.meta.k8s.io "" is invalid: {joined(errors)}', details)


def check_list_options(call: Call) -> None:
    """Refuse meaningless combinations of list options."""
    version, match = call.option("resourceVersion"), call.option("resourceVersionMatch")
    why = ""
    if call.option("sendInitialEvents"):
        raise _list_options([forbidden_field("sendInitialEvents", "sendInitialEvents is forbidden for list")])
    if not match:
        return
    if match not in MATCHES:
        raise _list_options([unsupported("resourceVersionMatch", match, (*MATCHES, ""))])
    if call.option("continue"):
        why = "resourceVersionMatch is forbidden when continue is provided"
    elif not version:
        why = "resourceVersionMatch is forbidden unless resourceVersion is provided"
    elif match == "Exact" and version == "0":
        why = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
    if why:
        raise _list_options([forbidden_field("resourceVersionMatch", why)])


def check_watch_options(call: Call) -> None:
    """Refuse meaningless combinations of watch options."""
    initial, match = call.option("sendInitialEvents"), call.option("resourceVersionMatch")
    errors = []
    if initial and match != "NotOlderThan":
        why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        errors.append(forbidden_field("resourceVersionMatch", why))
    elif match and not initial:
        why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        errors.append(forbidden_field("resourceVersionMatch", why))
    if initial and not options.is_set(call.request.query, "allowWatchBookmarks"):
        why = "sendInitialEvents is forbidden for watch unless allowWatchBookmarks is true"
        errors.append(forbidden_field("sendInitialEvents", why))
    if errors:
        raise _list_options(errors)


__all__ = ["Reading", "View", "expired", "read_token", "write_token"]
