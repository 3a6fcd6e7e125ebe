"""Bring a JSON value into the form of its type: unknown fields out, quantities canonical, wrong types refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from apiserver.quantity import canonical
from apiserver.schemas import Schema
from apiserver.timeline import micro_stamp, stamp

Obj = dict[str, Any]
KEEP_NULL = {"lastProbeTime", "lastTransitionTime", "lastHeartbeatTime", "eventTime", "firstTimestamp", "lastTimestamp"}
TIME_LAYOUT = "2006-01-02T15:04:05Z07:00"
MICRO_LAYOUT = "2006-01-02T15:04:05.000000Z07:00"
QUANTITY_TEXT = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
DAY = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
ZONE = re.compile(r"(Z|[+-]\d\d:\d\d)")
WORDS = {str: "string", bool: "bool", dict: "object", list: "array", type(None): "null"}
GO_TYPES = {
    "int": "int32",
    "number": "float64",
    "time": "string",
    "microtime": "string",
    "quantity": "resource.Quantity",
}


def _is_whole(value: Any, bits: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)


FITS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: _is_whole(value, 32),
    "int64": lambda value: _is_whole(value, 64),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "time": lambda _: False,
    "microtime": lambda _: False,
}
"""Whether a value is of a scalar type; of others any value is."""


class ConformError(ValueError):
    """A value outside the type of its field; the text is that of Go's decoder."""


class Conformer:
    """Decodes one object; `unknown` names the dropped fields."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.unknown: list[str] = []

    def conform(self, schema: Schema, value: Any, path: str = "", struct: str = "") -> Any:
        """The value in the form of its type; `struct` is the type with it as a field. Raises ConformError."""
        if schema.shape == "scalar":
            return self._scalar(schema, value, path, struct)
        if schema.shape == "list":
            return self._list(schema, value, path, struct)
        if not isinstance(value, dict):
            if schema.open:
                return value
            raise self._wrong(schema, value, path, struct)
        found: Obj = {}
        for name, each in value.items():
            inside = f"{path}.{name}" if path else name
            if not schema.declares(name):
                self.unknown.append(inside)
            elif each is None and not schema.open:
                if name in KEEP_NULL:
                    found[name] = None
            elif schema.open and schema.shape == "object" and name not in schema.fields:
                found[name] = each
            elif schema.shape == "map":
                found[name] = self.conform(schema.child(name), each, path, struct)
            else:
                found[name] = self.conform(schema.child(name), each, inside, schema.name)
        return found

    def _list(self, schema: Schema, value: Any, path: str, struct: str) -> Any:
        if not isinstance(value, list) or schema.items is None:
            raise self._wrong(schema, value, path, struct)
        return [self.conform(schema.items, each, f"{path}[{at}]", struct) for at, each in enumerate(value)]

    def _scalar(self, schema: Schema, value: Any, path: str, struct: str) -> Any:
        if schema.type == "quantity":
            try:
                return canonical(value)
            except (ValueError, TypeError):  # TypeError: a list or a map
                raise ConformError(QUANTITY_TEXT) from None
        if schema.type in {"time", "microtime"} and isinstance(value, str):
            return check_time(value, micro=schema.type == "microtime")
        fits = FITS.get(schema.type)
        if fits is not None and not fits(value):
            raise self._wrong(schema, value, path, struct)
        return value

    def _wrong(self, schema: Schema, value: Any, path: str, struct: str) -> ConformError:
        wanted = go_type(schema)
        word = WORDS.get(type(value), f"number {value}" if wanted.startswith("int") else "number")
        field = re.sub(r"\[\d+\]", "", path)
        where = f"Go struct field {struct or self.kind}.{field}" if field else "Go value"
        return ConformError(f"json: cannot unmarshal {word} into {where} of type {wanted}")


def go_type(schema: Schema) -> str:
    """The type of a field as Go names it."""
    if schema.shape == "list" and schema.items is not None:
        return f"[]{go_type(schema.items)}"
    if schema.shape == "map" and schema.items is not None:
        return f"map[string]{go_type(schema.items)}"
    return GO_TYPES.get(schema.type, schema.type) if schema.shape == "scalar" else f"v1.{schema.name}"


def check_time(text: str, *, micro: bool) -> str:
    """A time, as it is stored. Raises ConformError with the text of Go's parser."""
    layout = MICRO_LAYOUT if micro else TIME_LAYOUT
    head = DAY.match(text)
    if head is None:
        raise ConformError(f'parsing time "{text}" as "{layout}": cannot parse "{text}" as "2006"')
    rest = text[head.end() :]
    if micro:
        if re.match(r"\.\d{6}", rest) is None:
            raise ConformError(f'parsing time "{text}" as "{layout}": cannot parse "{rest}" as ".000000"')
        rest = rest[7:]
    else:
        rest = re.sub(r"^\.\d+", "", rest)
    if ZONE.fullmatch(rest) is None:
        raise ConformError(f'parsing time "{text}" as "{layout}": cannot parse "{rest}" as "Z07:00"')
    if rest.upper() != "Z":  # stored in UTC
        moment = datetime.fromisoformat(text).astimezone(UTC)
        return micro_stamp(moment) if micro else stamp(moment)
    return text if micro else re.sub(r"\.\d+", "", text)


def go_map(value: Any) -> str:
    """A JSON value as Go's %v prints it."""
    if isinstance(value, dict):
        return "map[" + " ".join(f"{name}:{go_map(value[name])}" for name in sorted(value)) + "]"
    if isinstance(value, list):
        return "[" + " ".join(go_map(each) for each in value) + "]"
    if value is None:
        return "<nil>"
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)
