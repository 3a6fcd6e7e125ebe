"""JSON as values of CEL, guided by the schema where there is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from celpy import celtypes

from apiserver.cel.authorizer import Authorizer

Schema = Mapping[str, Any]

RESERVED = frozenset(
    {"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import"}
    | {"let", "loop", "package", "namespace", "return", "var", "void", "while"}
)
ESCAPES = (("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__"))


def escaped(name: str) -> str:
    """A property's name as rules write it: `x-y` is `x__dash__y`, `in` is `__in__`."""
    if name in RESERVED:
        return f"__{name}__"
    for plain, word in ESCAPES:
        name = name.replace(plain, word)
    return name


def to_cel(value: Any, schema: Schema | None = None) -> Any:
    """A value of CEL. With a schema, numbers, times and byte strings get the type that it gives them; without one a
    whole number is an int, and every string a string.
    """
    if value is None or isinstance(value, Authorizer):
        return value
    if isinstance(value, bool):
        return celtypes.BoolType(value)
    if isinstance(value, str):
        return _text(value, schema or {})
    if isinstance(value, (int, float)):
        double = isinstance(value, float) or (schema or {}).get("type") == "number"
        return celtypes.DoubleType(value) if double else celtypes.IntType(value)
    if isinstance(value, (list, tuple)):
        items = (schema or {}).get("items")
        return celtypes.ListType([to_cel(each, items) for each in value])
    return _map(value, schema) if schema else ReadMap(value)


class ReadMap(celtypes.MapType):
    """A JSON object without a schema. Its values become those of CEL when they are read: a rule reads few of them."""

    def __init__(self, value: Mapping[str, Any]) -> None:
        super().__init__()
        self.update(value)

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if type(found) in PLAIN:
            found = to_cel(found)
            dict.__setitem__(self, key, found)
        return found

    def __iter__(self) -> Iterator[Any]:
        return (_string(str(key)) for key in self.keys())

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key; raises KeyError where there is none, and no default."""
        return self[key] if key in self or default is None else default


PLAIN = frozenset({bool, int, float, str, list, tuple, dict})


def _string(value: str) -> Any:
    """A string of CEL, made without its checks: they cost most of the time of a large object."""
    return str.__new__(celtypes.StringType, value)


def _text(value: str, schema: Schema) -> Any:
    form = schema.get("format")
    if form is None:
        return _string(value)
    try:
        if form in {"date-time", "datetime"}:
            return celtypes.TimestampType(value)
        if form == "date":
            return celtypes.TimestampType(f"{value}T00:00:00Z")
        if form == "duration":
            return celtypes.DurationType(value)
    except ValueError:
        pass  # validation against the schema reports it
    return celtypes.BytesType(value.encode()) if form == "byte" else celtypes.StringType(value)


def _map(value: Mapping[str, Any], schema: Schema) -> Any:
    properties = schema.get("properties") or {}
    others = schema.get("additionalProperties")
    others = others if isinstance(others, Mapping) else None
    return celtypes.MapType(
        {
            _string(escaped(name) if name in properties else name): to_cel(each, properties.get(name, others))
            for name, each in value.items()
        }
    )


def plain_text(value: Any) -> str | None:
    """The string that an expression gave; None if it gave something else."""
    return str(value) if isinstance(value, str) else None
