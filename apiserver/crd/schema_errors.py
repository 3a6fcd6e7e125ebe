"""Validation against an OpenAPI schema by the library jsonschema, told with the texts of the API server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import jsonschema
from jsonschema.exceptions import ValidationError

from apiserver.errors import FieldError, invalid_value, required, too_long, type_invalid, unsupported

Schema = Mapping[str, Any]

ORDER = ("type", "format", "required", "enum")  # what is reported first where one value breaks several rules
TOO_MANY = "FieldValueTooMany"


def _type(_validator: Any, wanted: str, value: Any, schema: Schema) -> Iterator[ValidationError]:
    if schema.get("x-kubernetes-int-or-string"):
        return
    if value is None and schema.get("nullable"):
        return
    if not _is(wanted, value):
        yield ValidationError(f"{value!r} is not {wanted}")


def _is(wanted: str, value: Any) -> bool:
    if wanted == "integer":
        return (isinstance(value, int) and not isinstance(value, bool)) or (
            isinstance(value, float) and value.is_integer()
        )
    if wanted == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, {"string": str, "boolean": bool, "object": dict, "array": list}[wanted])


def _int_or_string(_validator: Any, wanted: bool, value: Any, _schema: Schema) -> Iterator[ValidationError]:
    if wanted and not (_is("integer", value) or isinstance(value, str)):
        yield ValidationError(f"{value!r} is neither a whole number nor a string")


def _format(_validator: Any, form: str, value: Any, _schema: Schema) -> Iterator[ValidationError]:
    check = FORMATS.get(form)
    if check is not None and isinstance(value, str) and not check(value):
        yield ValidationError(f"{value!r} is not a {form}")


def _enum(_validator: Any, allowed: list[Any], value: Any, schema: Schema) -> Iterator[ValidationError]:
    if value is None and schema.get("nullable"):
        return
    if value not in allowed:
        yield ValidationError(f"{value!r} is not one of {allowed!r}")


def _max_length(_validator: Any, limit: int, value: Any, _schema: Schema) -> Iterator[ValidationError]:
    if isinstance(value, str) and len(value) > limit:
        yield ValidationError(f"{value!r} is too long")


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return bool(re.match(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$", text))


def _is_date(text: str) -> bool:
    try:
        return len(text) == 10 and bool(datetime.fromisoformat(text))
    except ValueError:
        return False


DURATION = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h))*|0")
UUID = re.compile(r"(?i)[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}")
FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": _is_time,
    "datetime": _is_time,
    "date": _is_date,
    "duration": lambda text: DURATION.fullmatch(text) is not None,
    "uuid": lambda text: UUID.fullmatch(text) is not None,
}

_Validator: Any = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft4Validator,
    {
        "type": _type,
        "x-kubernetes-int-or-string": _int_or_string,
        "format": _format,
        "enum": _enum,
        "maxLength": _max_length,
        # checked elsewhere, or not a rule for values
        "$ref": None,
        "dependencies": None,
    },
)


@lru_cache(maxsize=256)
def _validator_of(holder: _Held) -> Any:
    return _Validator(holder.schema)


class _Held:
    """A schema by identity, as the key to its cached validator."""

    __slots__ = ("schema",)

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def __hash__(self) -> int:
        return id(self.schema)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and other.schema is self.schema


def schema_errors(value: Any, schema: Schema, path: str = "") -> list[FieldError]:
    """Errors of the value by the schema. `path` is the field of the schema, "" for a whole object."""
    validator = _validator_of(_Held(schema))
    found = sorted(validator.iter_errors(value), key=_rank)
    return [told for error in found for told in _told(error, path)]


def _rank(error: ValidationError) -> tuple[Any, ...]:
    place = ORDER.index(error.validator) if error.validator in ORDER else len(ORDER)
    return ([str(part) for part in error.absolute_path], place)


def joined_path(root: str, parts: Iterable[Any]) -> str:
    """A path as messages write it: `spec.targets[1].name`."""
    text = root
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else str(part)
    return text


def _told(error: ValidationError, root: str) -> Iterator[FieldError]:
    inner = joined_path("", error.absolute_path)  # texts name the field below the root
    at = joined_path(root, error.absolute_path)
    value: Any = error.instance
    wanted: Any = error.validator_value
    match error.validator:
        case "required":
            for name in wanted:
                if isinstance(value, dict) and name not in value and f"'{name}'" in error.message:
                    yield required(f"{at}.{name}" if at else name)
        case "type" | "x-kubernetes-int-or-string":
            kind = wanted if error.validator == "type" else "integer,string"
            yield type_invalid(at, _name_of(value), f'{inner} in body must be of type {kind}: "{_name_of(value)}"')
        case "format":
            yield type_invalid(at, value, f'{inner} in body must be of type {wanted}: "{value}"')
        case "enum":
            yield unsupported(at, value, [each if isinstance(each, str) else str(each) for each in wanted])
        case "maxLength":
            yield too_long(at, wanted)
        case "maxItems" | "maxProperties":
            yield FieldError(at, TOO_MANY, f"Too many: {len(value)}: must have at most {_items(wanted)}")
        case _:
            yield invalid_value(at, _shown_in(error), _sentence(error, inner))


def _items(count: int) -> str:
    return f"{count} item" if count == 1 else f"{count} items"


def _shown_in(error: ValidationError) -> Any:
    return "" if error.validator in {"anyOf", "oneOf", "allOf", "not"} else error.instance


def _name_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    return {float: "number", str: "string", dict: "object", list: "array"}[type(value)]


def _sentence(error: ValidationError, at: str) -> str:
    wanted = error.validator_value
    strict = isinstance(error.schema, Mapping) and error.schema
    match error.validator:
        case "minimum":
            more = "greater than" if strict and strict.get("exclusiveMinimum") else "greater than or equal to"
            return f"{at} in body should be {more} {wanted}"
        case "maximum":
            less = "less than" if strict and strict.get("exclusiveMaximum") else "less than or equal to"
            return f"{at} in body should be {less} {wanted}"
        case "multipleOf":
            return f"{at} in body should be a multiple of {wanted}"
        case "minLength":
            return f"{at} in body should be at least {wanted} chars long"
        case "pattern":
            return f"{at} in body should match '{wanted}'"
        case "minItems":
            return f"{at} in body should have at least {wanted} items"
        case "minProperties":
            return f"{at} in body should have at least {wanted} properties"
        case "uniqueItems":
            return f"{at} in body shouldn't contain duplicates"
        case "anyOf":
            return f'"{at}" must validate at least one schema (anyOf)'
        case "oneOf":
            return f'"{at}" must validate one and only one schema (oneOf). Found none valid'
        case "not":
            return f'"{at}" must not validate the schema (not)'
        case _:
            return error.message
