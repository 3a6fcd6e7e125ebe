"""Bring a JSON value into the form of its type: unknown fields out, quantities canonical, wrong types refused."""

from __future__ import annotations

import re
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
WORDS = {str: "string", bool: "bool", dict: "object", list: "array"}
GO_TYPES = {"int": "int32", "number": "float64"}


class ConformError(ValueError):
    """A value that no field of its type can have; the text is that of Go's decoder."""


class Conformer:
    """Decodes one object; `unknown` names the fields that were dropped."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.unknown: list[str] = []

    def conform(self, schema: Schema, value: Any, path: str = "") -> Any:
        """The value as its type has it. Raises ConformError."""
        if schema.shape == "scalar":
            return self._scalar(schema, value, path)
        if schema.shape == "list":
            return self._list(schema, value, path)
        if not isinstance(value, dict):
            if schema.open:
                return value
            raise self._wrong(value, path, schema.shape)
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
            else:
                found[name] = self.conform(schema.child(name), each, inside)
        return found

    def _list(self, schema: Schema, value: Any, path: str) -> Any:
        if not isinstance(value, list) or schema.items is None:
            raise self._wrong(value, path, "list")
        return [self.conform(schema.items, each, f"{path}[{at}]") for at, each in enumerate(value)]

    def _scalar(self, schema: Schema, value: Any, path: str) -> Any:
        if schema.type == "quantity":
            try:
                return canonical(value)
            except ValueError:
                raise ConformError(QUANTITY_TEXT) from None
        if schema.type in {"time", "microtime"}:
            return check_time(value, micro=schema.type == "microtime")
        fits = {
            "string": isinstance(value, str),
            "bool": isinstance(value, bool),
            "int": isinstance(value, int) and not isinstance(value, bool),
            "number": isinstance(value, (int, float)) and not isinstance(value, bool),
        }.get(schema.type, True)
        if not fits:
            raise self._wrong(value, path, schema.type)
        return value

    def _wrong(self, value: Any, path: str, wanted: str) -> ConformError:
        word = WORDS.get(type(value), "number")
        wanted = GO_TYPES.get(wanted, wanted)
        field = re.sub(r"\[\d+\]", "", path)
        return ConformError(f"json: cannot unmarshal {word} into Go struct field {self.kind}.{field} of type {wanted}")


def check_time(text: Any, *, micro: bool) -> Any:
    """A time, as it is stored. Raises ConformError with the text of Go's parser."""
    layout = MICRO_LAYOUT if micro else TIME_LAYOUT
    if not isinstance(text, str):
        raise ConformError("json: cannot unmarshal into a time")
    head = DAY.match(text)
    if head is None:
        raise ConformError(f'parsing time "{text}" as "{layout}": cannot parse "{text}" as "2006"')
    rest = text[head.end() :]
    if micro:
        if re.match(r"\.\d{6}(?!\d)", rest) is None:
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
