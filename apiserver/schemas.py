"""Types of fields: the declared fields, lists in the form of maps, and the legal values."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

Obj = dict[str, Any]
Shape = Literal["object", "map", "list", "scalar"]
TYPES = Path(__file__).parent / "kinds" / "types.json"


@dataclass(slots=True, eq=False)
class Schema:
    """The type of a field. Equal types are one object; references may be cyclic.

    `atomic` objects, maps and lists are owned and replaced whole by server-side apply; a list with `keys` is a map of
    its items by these fields, one with `unique` a set of scalars. A strategic merge patch joins items by
    `merge_key`. `open` objects keep undeclared fields.
    """

    shape: Shape
    type: str = "any"  # of a scalar: string, int, int64, bool, number, time, microtime, quantity, int-or-string, any
    fields: dict[str, Schema] = field(default_factory=dict)
    items: Schema | None = None  # of a list or a map
    keys: tuple[str, ...] = ()
    unique: bool = False
    atomic: bool = False
    open: bool = False
    merge_key: str = ""
    name: str = ""  # of a declared type

    def child(self, name: str) -> Schema:
        """The type of a field or of a value of a map; ANY for an undeclared one."""
        if self.shape == "object":
            return self.fields.get(name, ANY)
        return self.items if self.shape == "map" and self.items is not None else ANY

    def declares(self, name: str) -> bool:
        """True if an object of the type may have the field."""
        return self.shape != "object" or self.open or name in self.fields

    def whole(self) -> bool:
        """True if the value has one owner: scalars, atomic values, and lists without keys."""
        return self.shape == "scalar" or self.atomic or (self.shape == "list" and not self.keys and not self.unique)


ANY = Schema("object", open=True)  # as a free-form object: its fields have owners of their own


# The published types do not say how wide a number is: these are int64, the others int32.
LONG = {
    "activeDeadlineSeconds", "capacity", "deletionGracePeriodSeconds", "expirationSeconds", "fsGroup", "generation",
    "gid", "gracePeriodSeconds", "int", "observedGeneration", "resourceSliceCount", "revision", "runAsGroup",
    "runAsUser", "seconds", "sizeBytes", "startingDeadlineSeconds", "terminationGracePeriodSeconds",
    "tolerationSeconds", "uid",
}  # fmt: skip
LONG_OF = {("DeviceSubRequest", "count"), ("ExactDeviceRequest", "count")}


@cache
def _declared() -> dict[str, Obj]:
    found: dict[str, Obj] = json.loads(TYPES.read_text(encoding="utf-8"))
    return found


@cache
def schema(name: str) -> Schema:
    """The schema of a built-in type, by its name in types.json ("" stands for an unknown type)."""
    if not name:
        return ANY
    declared = _declared()[name]
    made = Schema("object", atomic=declared.get("atomic", False), open=declared.get("open", False), name=name)
    _made[name] = made
    made.fields = {
        each: SCALARS["int64"] if value == "int" and (each in LONG or (name, each) in LONG_OF) else _of(value)
        for each, value in declared["fields"].items()
    }
    return made


_made: dict[str, Schema] = {}  # those whose fields are being filled in: types refer to themselves


def _of(declared: Any) -> Schema:
    if isinstance(declared, dict):
        if "map" in declared:
            return Schema("map", items=_of(declared["map"]), atomic=declared.get("atomic", False))
        keys = tuple(declared.get("keys", ()))
        merge = declared.get("merge") or (keys[0] if keys else "")
        return Schema(
            "list", items=_of(declared["list"]), keys=keys, unique=declared.get("set", False), merge_key=merge
        )
    if declared == "any":
        return ANY
    if declared in SCALARS:
        return SCALARS[declared]
    return _made[declared] if declared in _made else schema(declared)


SCALARS = {
    name: Schema("scalar", name)
    for name in ("string", "int", "int64", "bool", "number", "time", "microtime", "quantity", "int-or-string")
}
