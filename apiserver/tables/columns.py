"""What a table is made of: columns, the cells of an object, and times as people read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from apiserver.tables.jsonpath import found

Obj = dict[str, Any]
Cells = Callable[[Obj, datetime], list[Any]]

NAME_TEXT = (
    "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a "
    "client to request the generation of an appropriate name automatically. Name is primarily intended for creation "
    "idempotence and configuration definition. Cannot be updated. More info: "
    "https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names"
)
AGE_TEXT = (
    "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed "
    "to be set in happens-before order across separate operations. Clients may not set this value. It is represented "
    "in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: "
    "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"
)
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; those with a priority above 0 are shown by `-o wide`."""

    name: str
    description: str = ""
    type: str = "string"
    format: str = ""
    priority: int = 0

    def definition(self) -> Obj:
        """As a Table states it."""
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }


@dataclass(frozen=True, slots=True)
class Printer:
    """How objects of a kind become rows: `cells` gives one value for each column."""

    columns: tuple[Column, ...]
    cells: Cells


NAME = Column("Name", NAME_TEXT, format="name")
AGE = Column("Age", AGE_TEXT)


def short_duration(seconds: float) -> str:
    """A duration as kubectl shows ages: two units at most (`70s`, `9m5s`, `3h`, `326d`)."""
    whole = int(seconds)
    if whole < 0:
        return "0s" if whole >= -1 else "<invalid>"
    minutes, hours, days = whole // MINUTE_S, whole // HOUR_S, whole // DAY_S
    if whole < 2 * MINUTE_S:
        return f"{whole}s"
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    return _two(days // 365, "y", days % 365, "d") if days < 8 * 365 else f"{days // 365}y"


def _two(large: int, unit: str, small: int, smaller: str) -> str:
    return f"{large}{unit}{small}{smaller}" if small else f"{large}{unit}"


def age(obj: Obj, now: datetime) -> str:
    """Time since the object was created."""
    return since((obj.get("metadata") or {}).get("creationTimestamp"), now)


def since(text: Any, now: datetime) -> str:
    """Time since a timestamp of the API; `<unknown>` without one."""
    if not text:
        return "<unknown>"
    try:
        return short_duration((now - datetime.fromisoformat(str(text))).total_seconds())
    except (ValueError, TypeError):
        return "<invalid>"


def custom_printer(given: Sequence[Mapping[str, Any]] | None) -> Printer:
    """For custom resources: `additionalPrinterColumns` of their definition, or name and age without any."""
    wanted = given or ({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},)
    columns = [NAME]
    for each in wanted:
        described = (
            each.get("description") or f"Custom resource definition column (in JSONPath format): {each['jsonPath']}"
        )
        if not given:
            described = AGE_TEXT
        columns.append(Column(each["name"], described, each["type"], each.get("format", ""), each.get("priority", 0)))

    def cells(obj: Obj, now: datetime) -> list[Any]:
        return [obj["metadata"]["name"], *(_custom_cell(obj, each["jsonPath"], each["type"], now) for each in wanted)]

    return Printer(tuple(columns), cells)


def _custom_cell(obj: Obj, path: str, kind: str, now: datetime) -> Any:
    values = found(obj, path)
    value = values[0] if values else None
    if value is None:
        return None
    match kind:
        case "date":
            return since(value, now)
        case "string":
            return value if isinstance(value, str) else _as_text(value)
        case "integer":
            return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
        case "number":
            return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case _:
            return value


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "map[" + " ".join(f"{key}:{_as_text(value[key])}" for key in sorted(value)) + "]"
    if isinstance(value, list):
        return "[" + ",".join(f'"{each}"' if isinstance(each, str) else _as_text(each) for each in value) + "]"
    return str(value)
