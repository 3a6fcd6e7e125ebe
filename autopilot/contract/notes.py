"""Values written on an object by anybody: JSON of annotations, and short forms for messages."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any, NoReturn

MOST_CHARS = 16_384
"""Longest text read as JSON. The longest record of the controller has some 2,000 characters."""
MOST_DEPTH = 16
"""Deepest nesting read. The records of the controller have three levels."""
MOST_WHOLE = 2**53
"""Largest whole number read: beyond it JSON numbers are not exact."""
SHOWN = 60


def read_json(text: str) -> Any:
    """The JSON in an annotation. Raises `ValueError` for everything else, and for a long, deep or not finite one."""
    if len(text) > MOST_CHARS:
        raise ValueError(f"it has {len(text)} characters; at most {MOST_CHARS} are read")
    if text.count("[") + text.count("{") > MOST_DEPTH:
        _check_depth(text)
    try:
        return json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=_no_number)
    except (RecursionError, OverflowError) as error:  # of a parser with other limits
        raise ValueError(str(error)) from error


def read_record(text: str) -> dict[str, Any]:
    """The fields of a record in an annotation; {} for any other text."""
    try:
        found = read_json(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def shown(value: object, most: int = SHOWN) -> str:
    """A value for a message: a text quoted, control characters escaped, cut to `most` characters."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} with {len(value)} entries"
    try:
        text = value if isinstance(value, str) else str(value)
    except ValueError:  # a whole number with more digits than Python prints
        return "a number with thousands of digits"
    quoted = repr(text[:most]) if isinstance(value, str) else text[:most]
    return f"{quoted}... ({len(text)} characters)" if len(text) > most else quoted


def failure_text(error: Exception) -> str:
    """An exception for a message: on one line, cut, control characters escaped."""
    text = " ".join(str(error).split())[: 5 * SHOWN]
    text = text if text.isprintable() else shown(text, 5 * SHOWN)
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}"


def _check_depth(text: str) -> None:
    """Raise for brackets nested too deeply. Those inside of strings count too: a record of ours has none."""
    depth = 0
    for each in text:
        if each in "[{":
            depth += 1
            if depth > MOST_DEPTH:
                raise ValueError(f"it is nested more than {MOST_DEPTH} levels deep")
        elif each in "]}":
            depth -= 1


def _whole(text: str) -> int:
    if len(text) > len(str(MOST_WHOLE)) + 1 or abs(int(text)) > MOST_WHOLE:
        raise ValueError(f"the number {text[:SHOWN]} is out of bounds")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"the number {text[:SHOWN]} is out of bounds")
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")
