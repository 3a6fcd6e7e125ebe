"""Objects of one kind by uid, as last reported by the API server, with the changes since the last call.

One thread writes, another one drains. An object deleted and created anew under its name is two objects. An event for an
object deleted before it (reordered) changes nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice

from collectors.kubernetes.kinds import Kind
from collectors.kubernetes.unread import Unread
from collectors.kubernetes.wire import Meta, Object

GRAVES = 10_000
"""Remembered deleted objects, against late events."""
SHOWN_BAD = 5
"""Named unreadable objects; the others are counted."""


@dataclass(slots=True)
class Changes:
    """Changes since the last call. `gone`: objects that left the cache; `deleted`: those of them reported by an event.

    `unread`: all objects unreadable now, by uid. One read before keeps its last good state; the others are in no other
    field. None: the same as at the last call.
    """

    there: list[Object] = field(default_factory=list)
    gone: list[Object] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    unread: dict[str, Unread] | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """State of the list of one kind. Times by the controller's clock."""

    kind: Kind
    namespace: str
    synced: bool  # it was listed as a whole since the start
    sign_s: float  # time of the last list, event or bookmark: it was true then
    objects: int
    off: bool = False  # the cluster does not serve it
    problem: str = ""  # the reason for a list that is not up to date; "" for none
    partial: str = ""  # the reason for objects missing for good; "" for none
    bad: tuple[str, ...] = ()  # unreadable objects, with the reason


def version_of(text: str) -> int:
    """A resourceVersion as a number; -1 for any other text, and then nothing is compared."""
    return int(text) if text.isdecimal() else -1


class Cache:
    """One kind in one namespace, or in all. Every method may be called from any thread."""

    def __init__(self, kind: Kind, namespace: str = "") -> None:
        self.kind, self.namespace = kind, namespace
        self._lock = threading.Lock()
        self._objects: dict[str, Object] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._graves: OrderedDict[str, None] = OrderedDict()
        self._there: dict[str, Object] = {}
        self._gone: dict[str, Object] = {}
        self._deleted: list[str] = []
        self._unread: dict[str, Unread] = {}
        self._unread_changed = False
        self._health = Health(kind, namespace, synced=False, sign_s=float("-inf"), objects=0)

    # --- the writer -----------------------------------------------------------------------

    def replace(self, objects: Iterable[Object], now_s: float) -> None:
        """Take in the whole list. Objects missing from it are gone, without a report of their deletion.

        An unreadable object of the list keeps its last good state.
        """
        new = {each.metadata.uid: each for each in objects}
        unread = {uid: each for uid, each in new.items() if isinstance(each, Unread)}
        with self._lock:
            old = self._objects
            if unread:
                known = {uid: old[uid] for uid in unread if uid in old}
                new = {uid: known.get(uid, each) for uid, each in new.items() if uid in known or uid not in unread}
            for uid, each in old.items():
                if uid not in new:
                    self._gone[uid] = each
                    self._there.pop(uid, None)
            for uid, each in new.items():
                before = old.get(uid)
                if before is None or before.metadata.resource_version != each.metadata.resource_version:
                    self._there[uid] = each
                    self._gone.pop(uid, None)
                else:
                    new[uid] = before
            self._objects = new
            self._names = {(each.metadata.namespace, each.metadata.name): uid for uid, each in new.items()}
            self._graves.clear()
            self._set_unread(unread)
            self._health = Health(self.kind, self.namespace, True, now_s, len(new), bad=self._named())

    def put(self, found: Object, now_s: float) -> None:
        """Take in an added or modified object."""
        meta = found.metadata
        with self._lock:
            before = self._unread.get(meta.uid) or self._objects.get(meta.uid)
            if meta.uid in self._graves or (before is not None and not _newer(meta, before.metadata)):
                self._signed(now_s)
                return
            name = (meta.namespace, meta.name)
            named = self._names.get(name)
            if named is not None and named != meta.uid:  # its deletion was missed
                self._bury(named)
            if isinstance(found, Unread):
                self._unread[meta.uid], self._unread_changed = found, True
            else:
                self._objects[meta.uid] = self._there[meta.uid] = found
                self._gone.pop(meta.uid, None)
                self._read_again(meta.uid)
            self._names[name] = meta.uid
            self._signed(now_s)

    def delete(self, meta: Meta, now_s: float) -> None:
        """Take in a deleted object."""
        with self._lock:
            self._bury(meta.uid)
            self._signed(now_s)

    def sign(self, now_s: float) -> None:
        """A bookmark: nothing else happened until now."""
        with self._lock:
            self._signed(now_s)

    def fail(self, problem: str, *, partial: str = "") -> None:
        """The list is no longer kept up to date."""
        with self._lock:
            was = self._health
            self._health = Health(
                self.kind, self.namespace, was.synced, was.sign_s, was.objects, False, problem, partial, was.bad
            )

    def skip(self) -> None:
        """The kind may not be read: nothing waits for it, and its problem stays."""
        with self._lock:
            self._health = replace(self._health, synced=True)

    def switch_off(self, now_s: float) -> None:
        """The cluster does not serve the kind: it has no objects."""
        with self._lock:
            self._gone |= self._objects
            self._set_unread({})
            self._there, self._objects, self._names = {}, {}, {}
            self._health = Health(self.kind, self.namespace, True, now_s, 0, off=True)

    def _bury(self, uid: str) -> None:
        found = self._objects.pop(uid, None)
        self._read_again(uid)
        self._graves[uid] = None
        if len(self._graves) > GRAVES:
            self._graves.popitem(last=False)
        if found is None:
            return
        self._there.pop(uid, None)
        self._gone[uid] = found
        self._deleted.append(uid)
        name = (found.metadata.namespace, found.metadata.name)
        if self._names.get(name) == uid:
            del self._names[name]

    def _signed(self, now_s: float) -> None:
        was = self._health
        self._health = Health(
            self.kind, self.namespace, was.synced, max(now_s, was.sign_s), len(self._objects), bad=self._named()
        )

    def _set_unread(self, unread: dict[str, Unread]) -> None:
        self._unread_changed |= bool(unread) or bool(self._unread)
        self._unread = unread

    def _read_again(self, uid: str) -> None:
        """An object is gone, or can be read."""
        if self._unread.pop(uid, None) is not None:
            self._unread_changed = True

    def _named(self) -> tuple[str, ...]:
        """Unreadable objects, for people."""
        bad = [f"{each.shown}: {each.reason}" for each in islice(self._unread.values(), SHOWN_BAD)]
        more = len(self._unread) - len(bad)
        return (*bad, f"and {more} more") if more else tuple(bad)

    # --- readers --------------------------------------------------------------------------

    @property
    def health(self) -> Health:
        """State of the list."""
        return self._health

    @property
    def unread(self) -> dict[str, Unread]:
        """Unreadable objects by uid."""
        with self._lock:
            return dict(self._unread)

    def drain(self) -> Changes:
        """Changes since the last call."""
        with self._lock:
            unread = dict(self._unread) if self._unread_changed else None
            changes = Changes(list(self._there.values()), list(self._gone.values()), self._deleted, unread)
            self._unread_changed = False
            self._there, self._gone, self._deleted = {}, {}, []
            return changes


def _newer(new: Meta, old: Meta) -> bool:
    """False for an event no newer than the known state: reordered, duplicated, or repeated after a cut."""
    one, other = version_of(new.resource_version), version_of(old.resource_version)
    return not 0 <= one <= other
