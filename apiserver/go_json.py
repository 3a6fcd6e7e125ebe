"""JSON and YAML as Go's decoders read them, with the texts of their errors."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

PLACES = {  # of Python's errors: where Go says that a character has no place
    "Expecting value": "looking for beginning of value",
    "Expecting property name enclosed in double quotes": "looking for beginning of object key string",
    "Expecting ':' delimiter": "after object key",
    "Expecting ',' delimiter": "after object key:value pair",
    "Extra data": "after top-level value",
    "Invalid control character at": "in string literal",
    "Invalid \\escape": "in string escape code",
}


def why_no_json(text: str, error: json.JSONDecodeError) -> str:
    """Go's error for a text other than JSON."""
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
        return "unexpected end of JSON input"
    first = text[error.pos]
    shown = first if first.isprintable() else f"\\u{ord(first):04x}"
    place = PLACES.get(error.msg, "looking for beginning of value")
    return f"invalid character '{shown}' {place}"


def duplicates(text: str) -> list[str]:
    """The paths of fields given twice in an object of a JSON text."""
    found: list[str] = []

    def pairs(fields: list[tuple[str, Any]]) -> Any:
        held: dict[str, Any] = {}
        for name, value in fields:
            if name in held:
                found.append(name)
            held[name] = value
        return held

    json.loads(text, object_pairs_hook=pairs)
    return found


class Loader(yaml.CSafeLoader):
    """YAML 1.1 as Kubernetes reads it: times and sexagesimal numbers are texts, `y` and `n` are booleans."""


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    dropped = {f"tag:yaml.org,2002:{name}" for name in ("timestamp", "int", "float", "bool")}
    inherited = yaml.CSafeLoader.yaml_implicit_resolvers
    return {first: [each for each in held if each[0] not in dropped] for first, held in inherited.items()}


Loader.yaml_implicit_resolvers = _resolvers()
Loader.bool_values = yaml.CSafeLoader.bool_values | {"y": True, "n": False}
for _tag, _pattern, _first in (
    ("bool", r"y|Y|yes|Yes|YES|n|N|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", "yYnNtTfFoO"),
    ("int", r"[-+]?(0b[0-1_]+|0[0-7_]*|[1-9][0-9_]*|0x[0-9a-fA-F_]+)", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
):
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


def load_yaml(raw: bytes) -> Any:
    """A YAML document as a JSON value. Raises yaml.YAMLError."""
    return _with_text_keys(yaml.load(raw, Loader))  # noqa: S506 - a subclass of the safe loader


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key if isinstance(key, str) else json.dumps(key): _with_text_keys(each) for key, each in value.items()}
    return [_with_text_keys(each) for each in value] if isinstance(value, list) else value
