"""Views of objects: whole, metadata only, or as a Table, by the Accept header."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from apiserver.errors import StatusError
from apiserver.kinds.base import Kind
from apiserver.requests import Items, WatchEvent, dumped
from apiserver.store import Entry
from apiserver.tables import table

Obj = dict[str, Any]
META = "meta.k8s.io/v1"
SERVED = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")


@dataclass(frozen=True, slots=True)
class View:
    """`form` is "" (whole objects), PartialObjectMetadata or Table."""

    kind: Kind
    form: str = ""
    include: str = "Metadata"  # of a Table: None, Metadata or Object

    def one(self, obj: Obj, now: datetime) -> Obj:
        """A single object."""
        if self.kind.from_storage is not None:
            obj = self.kind.from_storage(obj)
        if self.form == "Table":
            return table(
                self.kind, [obj], {"resourceVersion": obj["metadata"].get("resourceVersion", "")}, now, self.include
            )
        return partial(obj) if self.form else obj

    def list(self, entries: list[Entry], metadata: Obj, now: datetime) -> Any:
        """A collection: a list, or one Table."""
        convert = self.kind.from_storage
        if self.form == "Table":
            objects = [entry.obj if convert is None else convert(entry.obj) for entry in entries]
            return table(self.kind, objects, metadata, now, self.include)
        if self.form:
            head = {"kind": "PartialObjectMetadataList", "apiVersion": META, "metadata": metadata}
            return head | {"items": [partial(entry.obj) for entry in entries]}
        head = {"kind": self.kind.list_kind, "apiVersion": self.kind.api_version, "metadata": metadata}
        whole = self.kind.custom and convert is None

        def encoded() -> Iterator[bytes]:
            for entry in entries:
                if whole:
                    yield entry.encoded()
                else:
                    yield entry.item() if convert is None else dumped(self._item(entry.obj))

        return Items(head, encoded, lambda: [self._item(entry.obj) for entry in entries])

    def _item(self, obj: Obj) -> Obj:
        """As an item of a list: built-in kinds leave out kind and apiVersion, known from the list."""
        if self.kind.from_storage is not None:
            obj = self.kind.from_storage(obj)
        if self.kind.custom:
            return obj
        shown = dict(obj)
        shown.pop("kind", None)
        shown.pop("apiVersion", None)
        return shown

    def event(self, t_us: int, change: str, entry: Entry, now: datetime, *, first: bool) -> WatchEvent:
        """An event of a stream. `first`: a Table states its columns."""
        if not self.form and self.kind.from_storage is None:
            return WatchEvent(t_us, change, lambda: entry.obj, entry.encoded)
        shown = self.one(entry.obj, now)
        if self.form == "Table" and not first:
            shown = shown | {"columnDefinitions": None}
        return WatchEvent(t_us, change, lambda: shown, lambda: dumped(shown))

    def bookmark(self, t_us: int, metadata: Obj) -> WatchEvent:
        """An event to state a version only."""
        obj = {"kind": self.kind.kind, "apiVersion": self.kind.api_version, "metadata": metadata}
        return WatchEvent(t_us, "BOOKMARK", lambda: obj, lambda: dumped(obj))


def partial(obj: Obj) -> Obj:
    """Only the metadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": META, "metadata": obj["metadata"]}


def view_of(kind: Kind, accept: str, include: str = "") -> View:
    """The view requested by an Accept header: the first served form in it."""
    for part in accept.split(","):
        fields = dict(pair.strip().partition("=")[::2] for pair in part.split(";")[1:] if "=" in pair)
        form = fields.get("as", "")
        if form == "Table":
            return View(kind, "Table", include or "Metadata")
        if form.startswith("PartialObjectMetadata"):
            return View(kind, "PartialObjectMetadata")
        if not form:
            break
    return View(kind)


def check_accept(accept: str) -> None:
    """Refuse a client without a served form in its header. Raises StatusError 406."""
    wanted = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    if any(each in {"", "*/*", "application/*", *SERVED} for each in wanted):
        return
    text = f"406: Not Acceptable\n\nAvailable representations: {', '.join(SERVED)}"
    raise StatusError(406, "NotAcceptable", text, {})
