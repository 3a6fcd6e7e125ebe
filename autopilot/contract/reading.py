"""Parsing of single annotations: each text is checked against the type and the limits of its field.

Contradictions between fields are found in `rules`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autopilot.contract.annotations import REPORTED
from autopilot.contract.scaling import SERVICE_NAMES
from autopilot.contract.tree import (
    CENTURY_S,
    PREFIX,
    ContractField,
    contract_fields,
    fields_by_key,
    is_enum,
    word_of,
)
from autopilot.core.hardware.mig_profiles import find_profile_name
from autopilot.core.model.errors import InputError, nearest, unknown_name
from autopilot.core.model.units import format_duration, parse_duration_s

SHOWN_LETTERS = 60
MOST_ITEMS = 16
"""Most alternatives or labels in one list; a longer list was not written by a person."""

LAST_CHECKPOINT = "last-checkpoint"
"""Report of running work: completion of its newest checkpoint, in seconds since 1970."""
OTHERS = frozenset({LAST_CHECKPOINT})
"""Annotations with our prefix beside the declarations of a job: reports of running work."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_LABEL = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
    r"=([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
)
"""A label as Kubernetes defines it: a key of at most 63 letters after an optional DNS prefix, a value of at most 63."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Reason for the refusal of a declared value. Rows of a file are counted by `reason`, free of names and numbers."""

    key: str
    value: str
    reason: str
    fix: str = ""

    def __str__(self) -> str:
        """One sentence: the annotation, its value, the problem and the fix."""
        fix = f"; {self.fix}" if self.fix else ""
        return f"{PREFIX}{self.key}: {self.value} {self.reason}{fix}"


class _Refused(Exception):  # noqa: N818 - internal; its message is the example for the fix
    """A text that is not a value of its field."""


def read(values: Mapping[str, str]) -> tuple[dict[str, Any], list[Problem]]:
    """Typed values by annotation (without the prefix), and a problem for each refused value.

    Annotations with another prefix are ignored; an unknown one with our prefix is a problem.
    """
    stated: dict[str, Any] = {}
    problems = []
    known = fields_by_key()
    for name, text in values.items():
        if not name.startswith(PREFIX):
            continue
        key = name.removeprefix(PREFIX)
        if key in known:
            try:
                stated[key] = _value(known[key], text.strip())
            except _Refused as error:
                problems.append(Problem(key, show(text), "is not allowed", _fix(known[key], text, str(error))))
        elif key not in OTHERS | REPORTED | SERVICE_NAMES:
            near = nearest(key.replace("_", "-"), known) or unknown_name(key, known, most=len(known))
            problems.append(Problem(_shown_key(key), show(text), "is not a field of the contract", near))
    place = {found.key: number for number, found in enumerate(contract_fields())}
    return stated, sorted(problems, key=lambda problem: place.get(problem.key, len(place)))


def _value(found: ContractField, text: str) -> Any:
    if found.stated.between:
        return _items(found, text)
    if is_enum(found.kind):
        for item in found.kind:
            if word_of(item) == text.lower():
                return item
        raise _Refused
    if found.kind is bool:
        if text.lower() not in ("true", "false"):
            raise _Refused
        return text.lower() == "true"
    return _number(found, text)


def _number(found: ContractField, text: str) -> float | int:
    value: float | int
    if len(text) > SHOWN_LETTERS:  # no valid number is this long, and parsing a longer one can be slow
        raise _Refused
    if found.kind is int:
        if not _WHOLE.fullmatch(text):
            raise _Refused
        value = int(text)
    elif is_duration(found.key):
        try:
            value = parse_duration_s(text)
        except InputError as error:
            raise _Refused("write for example 90s, 15m, 1h30m or 7d") from error
    else:
        if not _NUMBER.fullmatch(text):
            raise _Refused
        value = float(text)
    low, high = found.low, found.high
    if not math.isfinite(value) or (low is not None and value < low) or (high is not None and value > high):
        raise _Refused
    return value


def _items(found: ContractField, text: str) -> tuple[str, ...]:
    items = [item.strip() for item in text.split(found.stated.between)]
    if not all(items) or len(items) > MOST_ITEMS:
        raise _Refused
    if found.key == "mig-profile":
        names = [find_profile_name(item) for item in items]
        items = [str(name) for name in names if name is not None]
        if len(items) < len(names):
            raise _Refused("write for example 1g.10gb or 1g.10gb|1g.18gb")
    if found.key == "gpu-type" and max(map(len, items)) > SHOWN_LETTERS:
        raise _Refused
    if found.key == "node-selector" and not all(_LABEL.fullmatch(item) for item in items):
        raise _Refused("write for example disk=fast,zone=a")
    return tuple(dict.fromkeys(items))  # without duplicates, in the given order


# --- texts ----------------------------------------------------------------------------------------


def allowed_text(found: ContractField) -> str:
    """The allowed values of a field: `a whole number from 1 to 1000`, `one of node, island`."""
    if found.words:
        return "one of " + ", ".join(found.words)
    if found.kind is bool:
        return "true or false"
    if found.stated.between:
        kind = {"mig-profile": "MIG profiles", "node-selector": "labels as key=value"}.get(found.key, "names")
        return f"up to {MOST_ITEMS} {kind}, joined by {found.stated.between}"
    kind = "a whole number" if found.kind is int else "a duration" if is_duration(found.key) else "a number"
    low, high = (_bound(found, bound) for bound in (found.low, found.high))
    return f"{kind} from {low} to {high}"


def _bound(found: ContractField, bound: float | None) -> str:
    value = 0.0 if bound is None else bound
    if not is_duration(found.key):
        return f"{value:,.0f}"
    if value >= CENTURY_S:
        return "a century"
    return format_duration(value) if value >= 1 or not value else f"{value * 1000:g} ms"


def is_duration(key: str) -> bool:
    """True for a field with a name in `-s`: its unit is seconds (`limit-s`)."""
    return key.endswith("-s")


def value_text(value: Any, between: str = "|") -> str:
    """A typed value as written in an annotation; `between` joins the items of a list."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return between.join(value)
    return f"{value:.15g}" if isinstance(value, float) else word_of(value) if is_enum(type(value)) else str(value)


def show(text: str) -> str:
    """A text in quotes on one line, cut to `SHOWN_LETTERS` characters."""
    quoted = json.dumps(text, ensure_ascii=not text.isprintable())
    return quoted if len(quoted) <= SHOWN_LETTERS else f'{quoted[: SHOWN_LETTERS - 4]}..."'


def _fix(found: ContractField, text: str, example: str) -> str:
    near = nearest(text, found.words)
    parts = [f"it takes {allowed_text(found)} ({found.meaning})", example, near]
    return "; ".join(part for part in parts if part)


def _shown_key(key: str) -> str:
    return key if key.isprintable() and len(key) <= SHOWN_LETTERS else show(key)
