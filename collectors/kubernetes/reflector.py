"""Keeps one cache up to date: list, then watch, again and again. `step` is one exchange with the API server.

A list is streamed if the server can, and paged otherwise. A watch lasts `watch_s`; the server ends it after a bookmark.
A cut watch begins anew at its start, and not at the cut: the start is known to be whole, and a repeated event changes
nothing. A watch silent for longer, or with events out of order, is not resumed: the kind is listed again, because an
event may be lost; so it is after `resume_s` without the server, because etcd may have been restored from a backup.
Errors are waited out with a growing, random delay; Retry-After is obeyed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from autopilot.contract.documents import decoded
from autopilot.contract.notes import failure_text
from collectors.kubernetes.cache import Cache, version_of
from collectors.kubernetes.kinds import Kind
from collectors.kubernetes.transport import FORBIDDEN, GONE, NOT_FOUND, TOO_MANY, ApiError, CutError, Lines, Requests
from collectors.kubernetes.unread import Unread, unread, unread_as
from collectors.kubernetes.wire import Meta, Object

OnChange = Callable[[bool], None]
"""Called with True for a change to look at without delay: new work with a promised latency."""

INITIAL_END = "k8s.io/initial-events-end"
LEAST_GAP_S = 0.05
PAGE_ATTEMPTS = 6
RESUME_S = 30.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of list and watch, in seconds. `watch_s` counts by the server's clock, the others by ours."""

    page: int = 500  # objects of one page of a list
    watch_s: int = 15  # length of one watch: a quiet list is at most this old
    silence_s: float = 25.0  # a stream without a byte for this long is cut
    first_wait_s: float = 0.2  # after the first failure in a row; it doubles
    longest_wait_s: float = 4.0
    recheck_s: float = 60.0  # between two questions about an absent kind
    gone_s: float = 600.0  # an absent kind, once served, is missed this long, then counts as removed
    poll_s: float = 10.0  # between two lists without the right to watch
    resume_s: float = RESUME_S  # a watch goes on if the server was away for less than this; negative: it never does


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _Items(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Named(msgspec.Struct):
    metadata: Meta = msgspec.field(default_factory=Meta)


class _Status(msgspec.Struct):
    message: str = ""
    code: int = 0


class _Group(msgspec.Struct):
    versions: list[dict[str, Any]] = []


class Disorder(Exception):  # noqa: N818 - not an error: the reason to list again
    """The events of a watch are not in their order."""


class Reflector:
    """One kind in one namespace, or in all."""

    def __init__(
        self,
        cache: Cache,
        requests: Requests,
        now_s: Callable[[], float],
        timing: Timing,
        rng: random.Random,
        on_change: OnChange | None = None,
    ) -> None:
        """`now_s` is the controller's clock. `on_change` is called after each event or list with a change."""
        self._cache, self._requests, self._now_s = cache, requests, now_s
        self._timing, self._rng, self._on_change = timing, rng, on_change
        kind: type[Any] = cache.kind.type
        self._object = msgspec.json.Decoder(kind)
        page = msgspec.defstruct("Page", [("metadata", _ListMeta), ("items", list[kind] | None, None)])  # type: ignore[valid-type]
        self._page = msgspec.json.Decoder(page)
        self._line = msgspec.json.Decoder(_Line)
        self._version = ""  # resume the watch here; "": list first
        self._taken = ""  # the same, after the cache has it
        self._streams = True  # the server streams lists
        self._watches = True  # we may watch
        self._failures = 0
        self._served = False
        self._missing_since_s: float | None = None
        self._open: Lines | None = None
        self._stop = threading.Event()
        self.lists = 0
        self.restarts = 0  # after unexpected errors

    # --- life -----------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        """Exchanges until `stop`."""
        self._stop = stop
        while not stop.is_set():
            wait_s = self.step()
            if wait_s > 0:
                stop.wait(wait_s)

    def close(self) -> None:
        """End the exchange under way; called from another thread."""
        if self._open is not None:
            self._open.close()

    def step(self) -> float:
        """One list or one watch. Returns the seconds to wait before the next."""
        self._forget_after_absence()
        try:
            if self._version and self._watches:
                self._watch({"resourceVersion": self._version})
            elif self._streams and self._watches:
                self._watch({"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}, initial=True)
            else:
                self._list()
        except ApiError as error:
            return self._failed(error)
        except Disorder as error:
            return self._again(str(error))
        except msgspec.DecodeError as error:
            return self._again(f"the answer is not JSON of the Kubernetes API: {error}")
        except Exception as error:  # noqa: BLE001 - a watch never ends by itself
            return self._broken(error)
        self._failures = 0
        return LEAST_GAP_S if self._watches else self._timing.poll_s

    def _forget_after_absence(self) -> None:
        """List again after failures for longer than a watch may be resumed."""
        if self._failures and self._version and self._now_s() - self._cache.health.sign_s > self._timing.resume_s:
            self._version = ""

    # --- list -----------------------------------------------------------------------------

    def _list(self) -> None:
        """All pages of the list, from one instant."""
        found: list[Object] = []
        query = {"limit": str(self._timing.page)}
        while True:
            meta = self._read_page(self._page_body(query), found)
            if not meta.continue_:
                break
            query = {"limit": str(self._timing.page), "continue": meta.continue_}
        self._replace(found, meta.resource_version)

    def _page_body(self, query: dict[str, str]) -> bytes:
        """One page; a passing failure costs the page and not the whole list."""
        attempt = 0
        while True:
            try:
                return self._requests.get(self._cache.kind.path(self._cache.namespace), query)
            except ApiError as error:
                attempt += 1
                passing = error.status in {0, TOO_MANY} or error.status >= 500
                if not passing or "continue" not in query or attempt == PAGE_ATTEMPTS:
                    raise
                self._stop.wait(self._wait_s(error))

    def _read_page(self, body: bytes, found: list[Object]) -> _ListMeta:
        """Decode one page; one by one, if an object is unreadable."""
        try:
            page: Any = self._page.decode(body)
        except (msgspec.ValidationError, RecursionError):
            raw = decoded(msgspec.json.Decoder(_Items).decode, body)
            found.extend(self._read(item) for item in raw.items or ())
            listed: _ListMeta = raw.metadata
            return listed
        found.extend(page.items or ())
        meta: _ListMeta = page.metadata
        return meta

    def _read(self, raw: Any) -> Object:
        """One object; the known part of an unreadable one."""
        try:
            found: Object = self._object.decode(raw)
        except (msgspec.ValidationError, RecursionError) as error:
            return unread(raw, error)
        return found

    def _replace(self, found: list[Object], version: str) -> None:
        self._cache.replace(map(_shrunk, found), self._now_s())
        self._version = self._taken = version
        self._served, self._missing_since_s = True, None
        self.lists += 1
        self._changed()

    @property
    def kind(self) -> Kind:
        """The listed kind."""
        return self._cache.kind

    @property
    def version(self) -> int:
        """The resourceVersion up to which the cache is current; -1: not known yet."""
        return version_of(self._taken)

    # --- watch ----------------------------------------------------------------------------

    def _watch(self, query: dict[str, str], *, initial: bool = False) -> None:
        """One watch to its end; `initial`: it begins with the whole list."""
        asked = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._timing.watch_s),
            **query,
        }
        path = self._cache.kind.path(self._cache.namespace)
        try:
            self._open = self._requests.watch(path, asked, self._timing.silence_s)
        except ApiError as error:
            if initial and error.status in {400, 422}:
                self._streams = False
                return
            if error.status == FORBIDDEN and (self._version or not initial):
                self._watches, self._version = False, ""
            elif error.status == FORBIDDEN and initial:
                self._list()  # raises without the right to list, too
                self._watches = False
                return
            raise
        first: list[Object] | None = [] if initial else None
        start, heard = self._version, False
        try:
            for line in self._open:
                heard, listing = True, first is not None
                first = self._take(decoded(self._line.decode, line), first)
                start = self._version if listing and first is None else start
        except CutError:
            self._version = start if first is None else ""
            raise
        except (ApiError, Disorder, msgspec.DecodeError):
            self._version = ""
            raise
        finally:
            self._open.close()
            self._open = None
        if first is not None:  # a server without streaming lists
            self._streams = False
        elif not heard:  # not even a bookmark: the server may wait for a version that it does not have
            self._version = ""

    def _take(self, line: _Line, first: list[Object] | None) -> list[Object] | None:
        """One event. `first` collects the objects of a streamed list until its end."""
        if line.type == "ERROR":
            status = msgspec.json.decode(line.object, type=_Status)
            if first is not None and status.code != GONE:
                self._streams = False
            raise ApiError(status.code, f"{status.code} {status.message[:300]}")
        if line.type == "BOOKMARK":
            meta = msgspec.json.decode(line.object, type=_Named).metadata
            if first is not None and meta.note(INITIAL_END) == "true":
                self._replace(first, meta.resource_version)
                return None
            if first is None:
                self._in_order(meta)
                self._cache.sign(self._now_s())
                self._reached()
            return first
        found = self._read(line.object)
        if first is not None:
            first.append(found)
            return first
        self._in_order(found.metadata)
        if line.type == "DELETED":
            self._cache.delete(found.metadata, self._now_s())
        elif line.type in {"ADDED", "MODIFIED"}:
            self._cache.put(_shrunk(found), self._now_s())
        self._reached()
        self._changed(hurry=line.type == "ADDED" and found.metadata.promises_latency)
        return None

    def _reached(self) -> None:
        """The cache has every event so far; a watch begun anew repeats earlier ones."""
        if version_of(self._version) >= version_of(self._taken):
            self._taken = self._version

    def _in_order(self, meta: Meta) -> None:
        """Move the place of the watch forward. Raises `Disorder` if it goes back."""
        new, old = version_of(meta.resource_version), version_of(self._version)
        if 0 <= new < old:
            raise Disorder(
                f"resourceVersion {meta.resource_version} came after {self._version}: events were reordered, or etcd "
                "was restored from a backup"
            )
        self._version = meta.resource_version or self._version

    # --- failures -------------------------------------------------------------------------

    def _failed(self, error: ApiError) -> float:
        """Note the reason for a list that is not kept up to date. Returns the wait (s)."""
        title, where = self._cache.kind.title, f" in namespace {self._cache.namespace}" if self._cache.namespace else ""
        if error.status == GONE:
            return self._again(error.message)
        if error.status == NOT_FOUND:
            return self._not_served(error)
        if error.status == FORBIDDEN:
            verb = "list" if self._watches or not self._served else "watch"
            reason = f"no permission to {verb} {title}{where}: grant it list and watch ({error.message})"
            self._version = ""
            if not self._watches and self._served:  # it may still list
                self._cache.fail(reason)
                return 0.0
            self._cache.fail(reason, partial=reason if self._cache.kind.needed else "")
            if not self._cache.kind.needed:  # an invisible feature
                self._cache.skip()
                return self._timing.recheck_s
            return self._wait_s(error)
        self._cache.fail(f"{title}{where}: {error.message}")
        return self._wait_s(error)

    def _again(self, reason: str) -> float:
        """List again."""
        self._version = ""
        self._cache.fail(f"{self._cache.kind.title}: it is listed again: {reason}")
        return self._wait_s(None)

    def died(self) -> None:
        """Its thread has ended: it is listed again by a new one."""
        self._broken(RuntimeError("its thread ended"))

    def _broken(self, error: Exception) -> float:
        """An exchange ended by an unexpected error: begin anew."""
        self.restarts += 1
        return self._again(f"its watch ended by an error and was restarted: {failure_text(error)}")

    def _wait_s(self, error: ApiError | None) -> float:
        """A growing, random delay; never less than the server asks for."""
        self._failures += 1
        timing = self._timing
        grown_s = min(timing.first_wait_s * 2.0 ** min(self._failures - 1, 20), timing.longest_wait_s)
        jittered_s = grown_s * (0.5 + 0.5 * self._rng.random())
        asked_s = error.retry_after_s if error is not None else 0.0
        return max(jittered_s, asked_s * (1.0 + 0.1 * self._rng.random()))

    def _not_served(self, error: ApiError) -> float:
        """A kind not served by the cluster is a feature that is off, unless it was served a moment ago."""
        kind, now_s = self._cache.kind, self._now_s()
        self._version = ""
        others = self._other_versions()
        if kind.required or others:
            reason = f"the cluster serves {kind.group} only in {others}; this version reads {kind.version}"
            self._cache.fail(reason if others else error.message, partial=reason if others else error.message)
            return self._timing.recheck_s if others else self._wait_s(error)
        if self._served:
            since_s = self._missing_since_s = now_s if self._missing_since_s is None else self._missing_since_s
            if now_s - since_s < self._timing.gone_s:
                reason = f"{kind.title} was served and is not any more; restart if it was removed on purpose"
                self._cache.fail(reason, partial=reason)
                return self._wait_s(error)
            self._served = False
        self._cache.switch_off(now_s)
        self._failures = 0
        self._changed()
        return self._timing.recheck_s

    def _other_versions(self) -> str:
        """Other served versions of the group of the kind, if ours is not served; "" otherwise."""
        kind = self._cache.kind
        if not kind.group:
            return ""
        try:
            group = msgspec.json.decode(self._requests.get(f"/apis/{kind.group}", {}), type=_Group)
        except (ApiError, msgspec.DecodeError):
            return ""
        served = [str(each.get("version", "")) for each in group.versions]
        return ", ".join(served) if served and kind.version not in served else ""

    def _changed(self, *, hurry: bool = False) -> None:
        if self._on_change is not None:
            self._on_change(hurry)


def _shrunk(found: Object) -> Object:
    """An object cut down to its used part; the known part of an unreadable one."""
    if not (found.metadata.name and found.metadata.uid) and not isinstance(found, Unread):
        return unread_as(found, ValueError("it has no name, or no uid"))
    try:
        found.shrink()
    except Exception as error:  # noqa: BLE001 - whatever an object says, the others are read
        return unread_as(found, error)
    return found
