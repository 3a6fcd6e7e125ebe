"""Objects with one version counter for all of them, their history, and their watchers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from apiserver.plain_json import encode
from apiserver.timeline import Clock, Timeline

Obj = dict[str, Any]
Change = Literal["ADDED", "MODIFIED", "DELETED"]
TYPE_FIELDS = ("kind", "apiVersion")
HISTORY = 50_000  # events kept for each resource; a watch from before them gets 410


class Entry:
    """One revision of one object. `obj` is never changed: a write stores another entry."""

    __slots__ = ("_encoded", "obj", "rv")

    def __init__(self, obj: Obj, rv: int) -> None:
        self.obj = obj
        self.rv = rv
        self._encoded: bytes | None = None

    def item(self) -> bytes:
        """The object as JSON without kind and apiVersion, as lists of built-in kinds hold it; made once."""
        if self._encoded is None:
            self._encoded = encode({name: value for name, value in self.obj.items() if name not in TYPE_FIELDS})
        return self._encoded

    def encoded(self) -> bytes:
        """The object as JSON."""
        stated = encode({name: self.obj[name] for name in TYPE_FIELDS if name in self.obj})
        return stated[:-1] + b"," + self.item()[1:]


@dataclass(frozen=True, slots=True)
class Event:
    """A change of one object: its state now (DELETED: the last one, with the version of the deletion), and before."""

    resource: str
    type: Change
    entry: Entry
    old: Entry | None

    @property
    def obj(self) -> Obj:
        """The object after the change, or at its deletion."""
        return self.entry.obj

    @property
    def rv(self) -> int:
        """The version of the change."""
        return self.entry.rv


Listener = Callable[[Event], None]


def key_of(obj: Obj) -> tuple[str, str]:
    """Namespace and name."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


class Shelf:
    """The objects of one resource, by namespace."""

    def __init__(self) -> None:
        self.namespaces: dict[str, dict[str, Entry]] = {}
        self.history: deque[Event] = deque()
        self.oldest = 0  # changes after this version are in the history
        self.listeners: list[Listener] = []

    def entries(self, namespace: str | None) -> Iterator[Entry]:
        """In order of namespace and name."""
        for each in sorted(self.namespaces) if namespace is None else (namespace,):
            held = self.namespaces.get(each, {})
            for name in sorted(held):
                yield held[name]


class Store:
    """Objects by resource (`pods`, `jobs.batch`), namespace and name. The caller validates; the store counts versions.

    `listen` is called at once, inside the write: for watch streams (they only queue). `subscribe` is for actors: they
    are called by the timeline afterwards, in order, never inside somebody else's write.
    """

    def __init__(self, timeline: Timeline, first_version: int = 1) -> None:
        self.timeline = timeline
        self.version = first_version
        self._first_version = first_version
        self._compacted = 0  # versions before it are gone from the database, but not from memory
        self.began = 0  # what was before is not in the memory of the process
        self._shelves: dict[str, Shelf] = {}

    def shelf(self, resource: str) -> Shelf:
        """The objects of a resource; empty for one not seen yet."""
        shelf = self._shelves.get(resource)
        if shelf is None:
            shelf = self._shelves[resource] = Shelf()
            shelf.oldest = self._first_version
        return shelf

    def resources(self) -> list[str]:
        """The resources with an object, now or in the past."""
        return sorted(self._shelves)

    def get(self, resource: str, namespace: str, name: str) -> Obj | None:
        """An object, not to be changed; None if there is none. `namespace` is "" for cluster-scoped ones."""
        entry = self.entry(resource, namespace, name)
        return None if entry is None else entry.obj

    def entry(self, resource: str, namespace: str, name: str) -> Entry | None:
        """An object with its version."""
        return self.shelf(resource).namespaces.get(namespace, {}).get(name)

    def objects(self, resource: str, namespace: str | None = None) -> list[Obj]:
        """The objects of a resource, of one namespace or (None) of all, by namespace and name."""
        return [entry.obj for entry in self.shelf(resource).entries(namespace)]

    def count(self, resource: str, namespace: str | None = None) -> int:
        """The number of objects."""
        held = self.shelf(resource).namespaces
        return len(held.get(namespace, {})) if namespace is not None else sum(map(len, held.values()))

    def put(self, resource: str, obj: Obj) -> Obj:
        """Create or replace; the object as stored, with its new resourceVersion."""
        namespace, name = key_of(obj)
        held = self.shelf(resource).namespaces.setdefault(namespace, {})
        old = held.get(name)
        entry = self._stamped(obj)
        held[name] = entry
        self._record(Event(resource, "ADDED" if old is None else "MODIFIED", entry, old))
        return entry.obj

    def remove(self, resource: str, namespace: str, name: str, last: Obj | None = None) -> Obj:
        """Delete; the last state with the version of the deletion. `last` replaces that state. Raises KeyError."""
        old = self.shelf(resource).namespaces[namespace].pop(name)
        entry = self._stamped(old.obj if last is None else last)
        self._record(Event(resource, "DELETED", entry, old))
        return entry.obj

    def _stamped(self, obj: Obj) -> Entry:
        self.version += 1
        metadata = obj["metadata"] | {"resourceVersion": str(self.version)}
        return Entry(obj | {"metadata": metadata}, self.version)

    def _record(self, event: Event) -> None:
        shelf = self.shelf(event.resource)
        shelf.history.append(event)
        if len(shelf.history) > HISTORY:
            shelf.oldest = shelf.history.popleft().rv
        for listener in list(shelf.listeners):
            listener(event)

    def compact(self, resource: str | None = None) -> None:
        """Forget the history up to now: watches and lists of older versions get 410."""
        for shelf in [self.shelf(resource)] if resource else self._shelves.values():
            shelf.history.clear()
            shelf.oldest = self.version

    def compact_database(self) -> None:
        """Etcd compacts: the versions in memory are served until the process is started again."""
        self._compacted = self.version

    def restart(self) -> None:
        """The process loses its memory: no watch goes on from before, and compacted versions are gone."""
        self.began = self.version
        for shelf in self._shelves.values():
            while shelf.history and shelf.history[0].rv <= self._compacted:
                shelf.oldest = shelf.history.popleft().rv
            shelf.oldest = max(shelf.oldest, self._compacted)

    def since(self, resource: str, version: int) -> list[Event] | None:
        """The changes after a version, oldest first; None if some of them are forgotten."""
        shelf = self.shelf(resource)
        if version < shelf.oldest:
            return None
        found: list[Event] = []
        for event in reversed(shelf.history):
            if event.rv <= version:
                break
            found.append(event)
        return found[::-1]

    def at_version(self, resource: str, namespace: str | None, version: int) -> list[Entry] | None:
        """The objects as they were at a version, by namespace and name; None if it is forgotten."""
        changes = self.since(resource, version)
        if changes is None:
            return None
        held = {key_of(entry.obj): entry for entry in self.shelf(resource).entries(namespace)}
        for event in reversed(changes):
            key = key_of(event.obj)
            if namespace is not None and key[0] != namespace:
                continue
            if event.old is None:
                held.pop(key, None)
            else:
                held[key] = event.old
        return [held[key] for key in sorted(held)]

    def listen(self, resource: str, listener: Listener) -> Callable[[], None]:
        """Call `listener` inside every write of a resource; the answer ends it."""
        listeners = self.shelf(resource).listeners
        listeners.append(listener)
        return lambda: listeners.remove(listener) if listener in listeners else None

    def subscribe(self, resources: str | Iterable[str], listener: Listener, clock: Clock | None = None) -> None:
        """Call an actor for every change of the resources, by its clock, at the moment of the change."""
        for resource in (resources,) if isinstance(resources, str) else resources:
            self.listen(resource, self._later(listener, clock or self.timeline))

    @staticmethod
    def _later(listener: Listener, clock: Clock) -> Listener:
        def later(event: Event) -> None:
            clock.at(0.0, lambda: listener(event))

        return later
