"""managedFields: the owner of each field among the managers, updated by every write."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from apiserver.errors import Obj, StatusError, quoted
from apiserver.patches.fieldsets import (
    NONE,
    Fields,
    Path,
    compare,
    from_fields_v1,
    leaves,
    merged,
    path_text,
    to_fields_v1,
    without,
)
from apiserver.schemas import Schema

UNOWNED = (
    ("f:apiVersion",), ("f:kind",), ("f:metadata",), ("f:metadata", "f:name"), ("f:metadata", "f:namespace"),
    ("f:metadata", "f:creationTimestamp"), ("f:metadata", "f:selfLink"), ("f:metadata", "f:uid"),
    ("f:metadata", "f:generation"), ("f:metadata", "f:managedFields"), ("f:metadata", "f:resourceVersion"),
    ("f:metadata", "f:deletionTimestamp"), ("f:metadata", "f:deletionGracePeriodSeconds"),
)  # fmt: skip
NEVER = frozenset(UNOWNED)
ENTRY = ("manager", "operation", "apiVersion", "subresource")


@dataclass(frozen=True, slots=True)
class Owner:
    """One entry of managedFields."""

    manager: str
    operation: str  # Apply or Update
    api_version: str
    subresource: str
    fields: Fields
    time: str = ""

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """The identity of an entry. An Apply is one entry for all versions."""
        return self.manager, self.operation, self.subresource, "" if self.operation == "Apply" else self.api_version

    def title(self) -> str:
        """As conflicts name it."""
        text = quoted(self.manager)
        if self.subresource:
            text += f" with subresource {quoted(self.subresource)}"
        return text if self.operation == "Apply" else f"{text} using {self.api_version}"


def read_owners(obj: Obj) -> list[Owner]:
    """The owners stated by an object."""
    return [_read(each) for each in obj["metadata"].get("managedFields") or []]


def _read(entry: Obj) -> Owner:
    fields = from_fields_v1(entry.get("fieldsV1") or {})
    manager, operation, version, part = (entry.get(name, "") for name in ENTRY)
    return Owner(manager, operation, version, part, fields, entry.get("time", ""))


def write_owners(obj: Obj, owners: list[Owner]) -> None:
    """State owners in an object, in the order of the server: Apply first, then by time."""
    held = [each for each in owners if each.fields]
    if not held:
        obj["metadata"].pop("managedFields", None)
        return
    held.sort(key=lambda each: (each.operation, each.time, each.manager, each.api_version, each.subresource))
    obj["metadata"]["managedFields"] = [_entry(each) for each in held]


@lru_cache(maxsize=4096)
def _written(fields: Fields) -> Obj:
    """FieldsV1 of a set: objects of one shape share it, as stored objects are never changed."""
    return to_fields_v1(fields)


def _entry(owner: Owner) -> Obj:
    entry: Obj = {"manager": owner.manager, "operation": owner.operation, "apiVersion": owner.api_version}
    if owner.time:
        entry["time"] = owner.time
    entry |= {"fieldsType": "FieldsV1", "fieldsV1": _written(owner.fields)}
    return entry | ({"subresource": owner.subresource} if owner.subresource else {})


@dataclass(frozen=True, slots=True)
class Writer:
    """The writer: manager, version, subresource, and time (metav1.Time)."""

    manager: str
    api_version: str
    subresource: str
    now: str
    status_apart: bool = False  # the kind has a status subresource

    def owner(self, operation: str, fields: Fields = NONE) -> Owner:
        """An entry of it."""
        version, subresource = self.api_version, self.subresource
        return Owner(self.manager, operation, version, subresource, fields, self.now)


def _owned(fields: Fields, writer: Writer) -> Fields:
    """Fields less the ownerless ones; a write of status owns nothing else, and one of the object no status apart."""
    found = fields - NEVER
    if writer.subresource == "status":
        return frozenset(path for path in found if path[0] == "f:status" or path[0] == "f:metadata")
    if writer.status_apart and not writer.subresource:
        return frozenset(path for path in found if path[0] != "f:status")
    return found


def blank(obj: Obj) -> Obj:
    """The base of comparison for a new object of a built-in kind: its empty structs.

    Without this its creator would own spec and status themselves, and not only the fields in them.
    """
    found: Obj = {"metadata": {}} | {name: {} for name in ("spec", "status") if name in obj}
    spec = obj.get("spec")
    if isinstance(spec, dict) and "containers" in spec:
        found["spec"] = {"containers": []}
    if isinstance(spec, dict) and isinstance(spec.get("template"), dict):
        inner: Obj = {"containers": []} if "containers" in (spec["template"].get("spec") or {}) else {}
        found["spec"] = {"template": {"metadata": {}, "spec": inner}}
    if obj.get("kind") == "Node":
        found["status"] = {"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": {}}
    return found


def track_update(schema: Schema, old: Obj | None, new: Obj, writer: Writer) -> None:
    """State in `new` the owners of its fields after a create, update or patch from `old`."""
    owners = read_owners(old) if old is not None and "managedFields" in old["metadata"] else []
    difference = compare(schema, _plain(old or {}), _plain(new))
    mine = writer.owner("Update")
    found: list[Owner] = []
    held = NONE
    for each in owners:
        if each.identity == mine.identity:
            held, mine = each.fields, replace(mine, time=each.time)
        else:
            found.append(replace(each, fields=each.fields - difference.changed - difference.removed))
    fields = _owned((held | difference.changed) - difference.removed, writer)
    if fields != held:
        mine = replace(mine, time=writer.now)
    write_owners(new, [*found, replace(mine, fields=fields)])


def _plain(obj: Obj) -> Obj:
    """The object without its ownerless fields."""
    metadata = {
        name: each for name, each in obj.get("metadata", {}).items() if ("f:metadata", f"f:{name}") not in NEVER
    }
    return {name: each for name, each in obj.items() if name not in {"apiVersion", "kind"}} | {"metadata": metadata}


def applied(schema: Schema, live: Obj, config: Obj, writer: Writer, *, force: bool) -> Obj:
    """The live object after an apply of `config`, with its owners. Raises StatusError 409 for conflicts."""
    fields = _owned(frozenset(leaves(schema, _plain(config))), writer)
    owners = read_owners(live)
    mine = writer.owner("Apply")
    last = next((each for each in owners if each.identity == mine.identity), None)
    others = [each for each in owners if each.identity != mine.identity]
    result: Any = merged(schema, live, config)
    difference = compare(schema, _plain(live), _plain(result))
    conflicts = [(each, each.fields & difference.changed & fields) for each in others]
    conflicts = [(each, paths) for each, paths in conflicts if paths]
    if conflicts and not force:
        raise conflict_error(conflicts)
    if last is not None:
        others_hold: set[Path] = {path for each in others for path in each.fields}
        gone = frozenset(path for path in last.fields - fields if path not in others_hold)
        gone = frozenset(path for path in gone if not any(_inside(held, path) for held in others_hold | fields))
        result = _tidied(schema, without(schema, result, gone), live, gone)
    difference = compare(schema, _plain(live), _plain(result))
    taken = [replace(each, fields=each.fields - difference.changed - difference.removed) for each in others]
    time = writer.now if difference.changed or difference.removed else (last.time if last is not None else "")
    result["metadata"] = dict(result["metadata"])
    write_owners(result, [*taken, replace(mine, fields=fields, time=time)])
    found: Obj = result
    return found


def _inside(path: Path, outer: Path) -> bool:
    return len(path) > len(outer) and path[: len(outer)] == outer


def _tidied(schema: Schema, value: Any, live: Any, gone: Fields, path: Path = ()) -> Any:
    """The value without maps emptied by the loss of all their fields."""
    if not isinstance(value, dict) or not isinstance(live, dict) or schema.whole():
        return value
    tidy = {}
    for name, each in value.items():
        inner = (*path, f"f:{name}")
        kept = _tidied(schema.child(name), each, live.get(name), gone, inner)
        if kept in ({}, []) and live.get(name) and any(_inside(one, inner) for one in gone):
            continue
        tidy[name] = kept
    return tidy


def conflict_error(conflicts: list[tuple[Owner, Fields]]) -> StatusError:
    """409 naming every field owned by others."""
    total = sum(len(paths) for _, paths in conflicts)
    parts = []
    causes = []
    for owner, paths in sorted(conflicts, key=lambda each: each[0].title()):
        texts = sorted(path_text(path) for path in paths)
        causes += [
            {"reason": "FieldManagerConflict", "message": f"conflict with {owner.title()}", "field": text}
            for text in texts
        ]
        if len(texts) == 1 and len(conflicts) == 1:
            parts.append(f"conflict with {owner.title()}: {texts[0]}")
        else:
            parts.append(f"conflicts with {owner.title()}:\n" + "\n".join(f"- {text}" for text in texts))
    word = "conflict" if total == 1 else "conflicts"
    message = f"Apply failed with {total} {word}: " + "\n".join(parts)
    return StatusError(409, "Conflict", message, {"causes": causes})
