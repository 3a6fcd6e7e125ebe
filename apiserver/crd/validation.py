"""Validation of a custom resource: its schema, its lists, its rules; an update may keep old errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from apiserver.crd.rules import Rules
from apiserver.crd.schema_errors import TOO_MANY, schema_errors
from apiserver.errors import FieldError, duplicate, required

Obj = dict[str, Any]
Schema = Mapping[str, Any]

BLOCKING = frozenset(
    {"FieldValueNotSupported", "FieldValueRequired", "FieldValueTooLong", TOO_MANY, "FieldValueTypeInvalid"}
)
UNCHECKED = FieldError(
    "<nil>",
    "FieldValueInvalid",
    "Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing "
    "errors to complete validation",
)


def validate(obj: Obj, old: Obj | None, schema: Schema, rules: Rules, field: str = "") -> list[FieldError]:
    """Errors of an object, or of its part `field` alone (the status subresource writes only this part).

    An error is dropped if `old` has the same value at the same place: a value accepted once may stay.
    """
    value: Any = obj.get(field, {}) if field else obj
    before: Any = old if old is None or not field else old.get(field)
    part = (schema.get("properties") or {}).get(field, {}) if field else schema
    errors = _without_metadata(schema_errors(value, part, field))
    errors += list(_list_errors(value, part, field))
    if before is not None:
        errors = [error for error in errors if not _stays(error, obj, old)]
    if rules:
        if any(error.reason in BLOCKING for error in errors):
            errors.append(UNCHECKED)
        else:
            errors += rules.errors(obj, old)
    return errors


def _without_metadata(errors: list[FieldError]) -> list[FieldError]:
    # apiVersion, kind and metadata have rules of their own
    return [error for error in errors if error.field.partition(".")[0] not in {"metadata", "apiVersion", "kind"}]


def _list_errors(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    """Repeated entries of a set or a map, and missing keys of an entry of a map."""
    if isinstance(value, list):
        yield from _repeated(value, schema, path)
        for number, each in enumerate(value):
            yield from _list_errors(each, schema.get("items") or {}, f"{path}[{number}]")
    elif isinstance(value, dict):
        properties = schema.get("properties") or {}
        others = schema.get("additionalProperties")
        for name, each in value.items():
            inner = properties.get(name, others if isinstance(others, Mapping) else {})
            yield from _list_errors(each, inner, f"{path}.{name}" if path else name)


def _repeated(value: Sequence[Any], schema: Schema, path: str) -> Iterator[FieldError]:
    keys = schema.get("x-kubernetes-list-map-keys")
    kind = schema.get("x-kubernetes-list-type")
    if kind not in {"set", "map"}:
        return
    seen: list[Any] = []
    for number, each in enumerate(value):
        at = f"{path}[{number}]"
        if kind == "map" and keys and isinstance(each, dict):
            missing = [key for key in keys if key not in each]
            yield from (required(f"{at}.{key}") for key in missing if "default" not in _item(schema, key))
            if missing:
                continue
            each = {key: each[key] for key in keys}  # noqa: PLW2901 - what identifies the entry
        if each in seen:
            yield duplicate(at, each)
        seen.append(each)


def _item(schema: Schema, key: str) -> Schema:
    found: Schema = ((schema.get("items") or {}).get("properties") or {}).get(key) or {}
    return found


def _stays(error: FieldError, obj: Obj, old: Obj | None) -> bool:
    """True if the value behind the error stands in the old object at the same place."""
    missing = error.reason == "FieldValueRequired"
    path = error.field.rpartition(".")[0] if missing else error.field
    now, then = _at(obj, path), _at(old or {}, path)
    return now is not _ABSENT and then is not _ABSENT and now == then


_ABSENT = object()


def _at(value: Any, path: str) -> Any:
    for part in path.replace("[", ".[").split("."):
        if not part:
            continue
        if part.startswith("["):
            number = int(part[1:-1]) if part[1:-1].isdigit() else -1
            if not isinstance(value, list) or not 0 <= number < len(value):
                return _ABSENT
            value = value[number]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            return _ABSENT
    return value
