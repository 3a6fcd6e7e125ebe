"""Reads the settings from a YAML file and the environment; each error names its source, field, value and fix.

An environment variable names a field by its path and wins over the file: `GPU_AUTOPILOT_HTTP__LISTEN` is `http.listen`.
Lists and mappings are given as JSON. `GPU_AUTOPILOT_KILL` is the kill switch and no setting.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError

from autopilot.core.model.errors import InputError, nearest, shown, unknown_name
from autopilot.policies.dialect import read_yaml
from autopilot.service.settings import Settings

PREFIX = "GPU_AUTOPILOT_"
KILL = "GPU_AUTOPILOT_KILL"
DEEPER = "__"
MAX_BYTES = 1 << 20


def load_settings(path: Path | None, over: Mapping[str, Any] | None = None) -> Settings:
    """The settings of a file (None: the defaults), then of the environment, then `over` (flags of the command line).

    Raises `InputError` with one line per wrong field.
    """
    source = str(path) if path is not None else "settings"
    document = _document(path) if path is not None else {}
    environment = _environment()
    content = _merged(_merged(document, environment), over or {})
    try:
        return Settings.model_validate(content)
    except ValidationError as error:
        lines = [_line(each, source, environment, over or {}) for each in error.errors(include_url=False)]
        raise InputError("\n".join(lines)) from error


def fields_of(model: type[BaseModel] = Settings, path: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """(path, field) of every leaf of the tree, in its order; an optional section is listed with its fields."""
    for name, field in model.model_fields.items():
        full = f"{path}.{name}" if path else name
        section = section_of(field)
        if section is None:
            yield full, field
        else:
            yield from fields_of(section, full)


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The section in a field, None for a value."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _document(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: the settings cannot be read: {why}; give another file with --config") from error
    if len(content) > MAX_BYTES:
        raise InputError(f"{path}: over {MAX_BYTES >> 20} MiB, too large for a settings file; give another file")
    try:
        document = read_yaml(content.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise InputError(
            f"{path}: {shown(document)} is not allowed; settings are a mapping of fields (docs/settings.md)"
        )
    return document


def _environment() -> dict[str, Any]:
    """The part of the tree set by the environment."""
    known = {name.upper() for name in Settings.model_fields}
    for name in os.environ:
        first = name.removeprefix(PREFIX).partition(DEEPER)[0]
        if name.startswith(PREFIX) and name != KILL and first not in known:
            raise InputError(f"environment {name}: no such setting; {unknown_name(first, sorted(known))}")

    fields: Any = {name: (field.annotation, field) for name, field in Settings.model_fields.items()}
    tree = create_model("Tree", __base__=BaseSettings, **fields)
    try:
        found: dict[str, Any] = EnvSettingsSource(tree, env_prefix=PREFIX, env_nested_delimiter=DEEPER)()
    except (SettingsError, json.JSONDecodeError) as error:
        raise InputError(f"environment {PREFIX}*: {error}; lists and mappings are given as JSON") from error
    return found


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _line(error: Any, source: str, environment: Mapping[str, Any], over: Mapping[str, Any]) -> str:
    """One refused value: its source, its path, the value, the allowed ones, and the field's meaning."""
    location = [step for step in error["loc"] if not (isinstance(step, str) and "[" in step)]
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location).lstrip(".")
    if _has(over, location):
        source = "command line"
    elif _has(environment, location):
        name = PREFIX + DEEPER.join(str(step) for step in location).upper()
        source = f"environment {name}"
    model, field = _field_at(location)
    if error["type"] == "extra_forbidden":
        names = list(model.model_fields) if model is not None else []
        return f"{source}: {path}: no such setting; {unknown_name(location[-1], names)}"
    about = f" ({field.description})" if field is not None and field.description else ""
    if error["type"] == "missing":
        return f"{source}: {path}: is missing{about}"
    reason = str(error["msg"]).removeprefix("Value error, ")
    if not path:  # of the tree as a whole
        return f"{source}: {reason}"
    near = nearest(error["input"], _choices(field))
    return f"{source}: {path}: {shown(error['input'])} is not allowed: {reason}{'; ' + near if near else ''}{about}"


def _has(tree: Mapping[str, Any], location: list[Any]) -> bool:
    found: Any = tree
    for step in location:
        if isinstance(found, Mapping) and step in found:
            found = found[step]
        else:
            return not isinstance(found, Mapping)
    return True


def _field_at(location: list[Any]) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The section and the field at a place of the tree."""
    model: type[BaseModel] | None = Settings
    field: FieldInfo | None = None
    section: type[BaseModel] | None = Settings
    for step in location:
        if isinstance(step, int) or model is None:
            continue
        section, field = model, model.model_fields.get(step)
        model = section_of(field) if field is not None else None
    return section, field


def _choices(field: FieldInfo | None) -> list[str]:
    kind = field.annotation if field is not None else None
    return [str(each.value) for each in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []
