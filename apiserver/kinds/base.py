"""The type of a kind, and the server state passed to its functions.

A kind is a row of the table of kinds, with the functions for its objects on the way to the store. The types of this
file refer to one another; everything else of the server stands above them.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from apiserver.errors import FieldError, Named
from apiserver.metadata import subdomain_errors
from apiserver.requests import Request, Response, WatchStream
from apiserver.schemas import ANY, Schema
from apiserver.store import Store
from apiserver.timeline import Process, Timeline
from apiserver.users import User

if TYPE_CHECKING:
    from apiserver.managed import Writer

Obj = dict[str, Any]
REGISTERED: set[tuple[str, str]] = set()  # apiVersion and kind of the built-in types
Fill = Callable[[Obj], None]  # changes the object that it is given
Prepare = Callable[[Obj, Obj], None]  # the new object, changed in place; the stored one
Check = Callable[[Obj], list[FieldError]]
CheckUpdate = Callable[[Obj, Obj], list[FieldError]]  # the new object, the stored one
NameUid = Callable[["Kind", str, str], str]  # kind, namespace, name of a new object
NameSuffix = Callable[[str], str]  # what ends a name that begins so; "" if the server is to draw it
Authenticate = Callable[[Request], User]  # raises StatusError 401
NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # of generated names, as Kubernetes' rand.String


def nothing(_obj: Obj) -> None:
    """No defaults."""


def valid(_obj: Obj) -> list[FieldError]:
    """Nothing to refuse."""
    return []


def valid_update(_obj: Obj, _old: Obj) -> list[FieldError]:
    """Nothing to refuse."""
    return []


def keep_status(obj: Obj, old: Obj) -> None:
    """The main resource does not write the status."""
    if "status" in old:
        obj["status"] = old["status"]
    else:
        obj.pop("status", None)


def only_status(obj: Obj, old: Obj) -> None:
    """The status subresource writes nothing else; metadata but for labels and annotations is as stored."""
    for name in [name for name in obj if name not in {"status", "metadata", "apiVersion", "kind"}]:
        if name not in old:
            del obj[name]
    for name, value in old.items():
        if name not in {"status", "metadata"}:
            obj[name] = value
    keep = ("labels", "finalizers", "ownerReferences")
    for name in keep:
        if name in old["metadata"]:
            obj["metadata"][name] = old["metadata"][name]
        else:
            obj["metadata"].pop(name, None)


@dataclass(frozen=True, slots=True)
class Subresource:
    """A path below an object: a part of it, read and written alone (`status`), or an action (`binding`).

    An action is a `handler`; a part is written like the object itself, with a `prepare` and `validate` of its own.
    """

    name: str
    verbs: tuple[str, ...] = ("get", "update", "patch")
    prepare: Prepare = only_status
    validate: CheckUpdate = valid_update
    handler: Callable[[State, Call], Response] | None = None
    kind: tuple[str, str, str] | None = None  # group, version and kind of the body, if not those of the object
    get: Callable[[State, Kind, Obj], Obj] | None = None  # what is read, if not the object (scale)
    put: Callable[[State, Kind, Obj, Obj], Obj] | None = None  # the object after a write of what is read
    apply: Callable[[Obj, Obj, Obj, Writer, bool], Obj] | None = None  # what is read, after an apply


def only_custom_status(obj: Obj, old: Obj) -> None:
    """The status subresource of a custom resource writes the status alone: its metadata stays as it is stored."""
    only_status(obj, old)
    owners = obj["metadata"].get("managedFields")
    obj["metadata"] = {name: value for name, value in old["metadata"].items() if name != "managedFields"}
    if owners:
        obj["metadata"]["managedFields"] = owners


STATUS = Subresource("status")


@dataclass(frozen=True, slots=True)
class Kind:
    """One version of one resource. `storage` is the resource of its stored objects."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
    subresources: Mapping[str, Subresource] = field(default_factory=dict)
    schema: Schema = ANY
    answer: Callable[[State, Call], Response] | None = None  # of what is not stored: answers a create
    prune: Callable[[Obj], list[str]] | None = None  # of custom kinds: drops unknown fields; their paths
    default: Fill = nothing
    prepare_create: Fill = nothing
    finish_create: Fill = nothing  # after the checks
    prepare_update: Prepare = keep_status
    held: Callable[[Obj], bool] = lambda _obj: False  # whether something beside finalizers keeps a deleted object
    prepare_delete: Callable[[Obj, str], None] | None = None  # changes what is to be deleted, at the time given
    validate: Check = valid
    validate_again: Check = valid  # what an update asks of the whole object, before `validate_update`
    validate_update: CheckUpdate = valid_update
    name_errors: Callable[[str], list[str]] = subdomain_errors
    generation: bool = False  # metadata.generation counts changes of the spec
    counts_annotations: bool = False  # and of the annotations, but for writes of subresources
    marks_grace: bool = True  # one that is deleted states a grace of 0 s while finalizers hold it, and a new generation
    grace: Callable[[Obj], int] | None = None  # seconds of graceful deletion; None: deleted at once
    deletion: Callable[[Obj], tuple[Obj, list[str]]] | None = None  # DeleteOptions as they count, and warnings
    fields: tuple[str, ...] = ()  # field selectors besides metadata.name and metadata.namespace
    field_value: Callable[[Obj, str], str] | None = None  # for fields that are not plain paths
    columns: Any = None  # for Tables: see apiserver.tables
    stored_as: str = ""
    to_storage: Callable[[Obj], Obj] | None = None
    from_storage: Callable[[Obj], Obj] | None = None
    custom: bool = False  # items of a list carry kind and apiVersion; decoded by the schema of a CRD
    warnings: Callable[[Obj, Obj | None], list[str]] | None = None
    deprecation: str = ""  # warning with every answer, of a deprecated version
    extra: Any = None  # what a CRD, or Kueue, keeps beside

    @property
    def api_version(self) -> str:
        """As objects state it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """`jobs.batch`, or `pods` in the core group."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def storage(self) -> str:
        """The name of its objects' resource in the store."""
        return self.stored_as or self.resource

    @property
    def list_kind(self) -> str:
        """Kind of a list of it."""
        return f"{self.kind}List"

    def named(self, name: str = "", uid: str = "") -> Named:
        """For messages about an object of it."""
        return Named(self.group, self.plural, self.kind, name, uid)


class Kinds:
    """The kinds served now: the built-in ones, and those of the present custom resources."""

    def __init__(self, builtin: tuple[Kind, ...]) -> None:
        self._by_path: dict[tuple[str, str, str], Kind] = {}
        self._by_kind: dict[tuple[str, str], Kind] = {}
        self.adapters: dict[str, Callable[[Kind], Kind]] = {}
        """What an extension makes of a kind that a CustomResourceDefinition declares: by resource and group."""
        self._hidden: set[tuple[str, str, str]] = set()
        for kind in builtin:
            self.add(kind)

    def add(self, kind: Kind) -> None:
        """Serve a kind, or replace it."""
        adapt = self.adapters.get(kind.resource)
        kind = adapt(kind) if adapt is not None else kind
        self._by_path[kind.group, kind.version, kind.plural] = kind
        self._by_kind[kind.api_version, kind.kind] = kind

    def remove(self, group: str, version: str, plural: str) -> None:
        """Serve it no longer; nothing happens if it is not served."""
        kind = self._by_path.pop((group, version, plural), None)
        if kind is not None:
            self._by_kind.pop((kind.api_version, kind.kind), None)

    def hide(self, kind: Kind) -> None:
        """Serve it, but leave it out of discovery."""
        self._hidden.add((kind.group, kind.version, kind.plural))

    def show(self, kind: Kind) -> None:
        """Put it into discovery."""
        self._hidden.discard((kind.group, kind.version, kind.plural))

    def listed(self) -> list[Kind]:
        """The kinds shown by discovery."""
        return [kind for place, kind in self._by_path.items() if place not in self._hidden]

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """The kind of a path."""
        return self._by_path.get((group, version, plural))

    def of(self, api_version: str, kind: str) -> Kind | None:
        """The kind stated by an object."""
        return self._by_kind.get((api_version, kind))

    def stored(self, storage: str) -> Kind | None:
        """The first served kind with objects stored under a resource name."""
        return next((kind for kind in self._by_path.values() if kind.storage == storage), None)

    def all(self) -> list[Kind]:
        """Every kind served, in order of its addition."""
        return list(self._by_path.values())

    def has_builtin(self, group: str, version: str) -> bool:
        """True if the group has built-in kinds in the version."""
        return any(g == group and v == version and not kind.custom for (g, v, _), kind in self._by_path.items())

    def has_group(self, group: str, version: str = "") -> bool:
        """True if the group (in the version, if given) is served."""
        return any(g == group and version in {"", v} for g, v, _ in self._by_path)


@dataclass(slots=True)
class Call:
    """A request for a resource, taken apart."""

    request: Request
    user: User
    verb: str
    kind: Kind
    namespace: str  # "" for cluster-scoped kinds, and for all namespaces
    name: str  # "" for collections
    subresource: str = ""
    dry_run: bool = False
    manager: str = ""
    warnings: list[str] = field(default_factory=list)

    def option(self, name: str) -> str:
        """A parameter of the query; "" if absent."""
        return self.request.query.get(name, "")


class Writes(Protocol):
    """The writes of an action below an object (`apiserver.writing`)."""

    def check_uid(self, call: Call, uid: str | None, stored: Obj) -> None:
        """Raises StatusError 409 if the uid is not that of the stored object."""

    def admit_action(self, call: Call, obj: Obj) -> None:
        """Ask admission about an action below an object, such as an Eviction. Raises StatusError."""

    def put_object(self, call: Call, change: Callable[[Obj], Obj]) -> Obj:
        """Write the change of an action to its object."""
        ...

    def delete_object(self, kind: Kind, stored: Obj, options: Obj, *, dry_run: bool = False) -> tuple[Obj, bool]:
        """Delete an object: its state afterwards or its last one, and True if it is gone. Raises StatusError."""
        ...


class State(ABC):
    """The state of a server for its parts: time, objects, kinds, programs, open watches. `Server` answers requests."""

    writing: Writes
    authenticate: Authenticate

    def __init__(
        self,
        timeline: Timeline,
        rng: random.Random,
        store: Store,
        kinds: Kinds,
        new_uid: NameUid | None = None,
        new_suffix: NameSuffix | None = None,
    ) -> None:
        self.timeline = timeline
        self.rng = rng
        self.store = store
        self.kinds = kinds
        self.restarts: list[Callable[[], None]] = []  # what loses its memory when the process is started again
        self.processes: dict[str, Process] = {}  # the programs that the actors are part of, by name
        self.streams: dict[str, list[WatchStream]] = {}  # open watches by storage and version
        self._new_uid = new_uid
        self._new_suffix = new_suffix

    @abstractmethod
    def answer(self, request: Request) -> Response | WatchStream:
        """Answer a request; a refusal is raised. Raises StatusError."""

    def process(self, name: str) -> Process:
        """The program of a name. It may be stopped and go on."""
        return self.processes.setdefault(name, Process(self.timeline))

    def end_watches(self, kind: Kind) -> None:
        """Close the open watches of a kind no longer served."""
        for stream in self.streams.pop(f"{kind.storage}/{kind.version}", []):
            stream.close()

    def new_uid(self, kind: Kind, namespace: str, name: str) -> str:
        """A uid for a new object."""
        if self._new_uid is not None:
            return self._new_uid(kind, namespace, name)
        return str(UUID(int=self.rng.getrandbits(128), version=4))

    def name_suffix(self, prefix: str = "") -> str:
        """Five letters to make a generated name unique."""
        if self._new_suffix is not None and (given := self._new_suffix(prefix)):
            return given
        return "".join(self.rng.choices(NAME_LETTERS, k=5))
