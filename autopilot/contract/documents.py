"""JSON of the API server, with values written by anybody: read so that one value hides no other.

A value nested too deeply for a decoder is replaced by a text, and so is a number with too many digits. So one object
makes no list unreadable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from autopilot.contract.notes import failure_text, shown

MOST_DEPTH = 100
"""Deepest nesting of decoded JSON. Objects of the API have some 20 levels."""
TOO_DEEP = f"nested more than {MOST_DEPTH} levels deep"
TOO_LONG = "a number of too many digits"

T = TypeVar("T")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]|-?[0-9]{300,}')
_PLACE = re.compile(r" - at `\$([^`]*)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[\.\.\.\]")


def parsed(body: bytes) -> Any:
    """A JSON document. Raises `ValueError` for any other text."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return json.loads(pruned(body))


def decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    """The decoded JSON, without parts nested too deeply for the decoder."""
    try:
        return decode(body)
    except RecursionError:
        return decode(pruned(body))


def pruned(body: bytes) -> bytes:
    """JSON with a text in place of each value nested too deeply, or with too many digits."""
    parts: list[bytes] = []
    depth = start = 0
    for token in _TOKEN.finditer(body):
        if token[0] in b"[{":
            depth += 1
            if depth == MOST_DEPTH:
                parts.append(body[start : token.start()])
        elif token[0] in b"]}":
            if depth == MOST_DEPTH:
                parts.append(b'"' + TOO_DEEP.encode() + b'"')
                start = token.end()
            depth -= 1
        elif token[0][:1] != b'"' and depth < MOST_DEPTH:
            parts += [body[start : token.start()], b'"' + TOO_LONG.encode() + b'"']
            start = token.end()
    return b"".join([*parts, body[start:]])


def misfit(error: Exception, document: Any) -> str:
    """Field, value and problem of a document refused by a decoder of types."""
    text = str(error)
    place = _PLACE.search(text)
    if place is None:
        return failure_text(error)
    value: Any = document
    for key, index in _STEP.findall(place[1]):
        try:
            value = value[key] if key else value[int(index)] if index else _first(value)
        except (KeyError, IndexError, TypeError):
            break
    return f"{place[1].lstrip('.')} is {shown(value)}: {text[: place.start()].replace('`', '')}"


def _first(value: Any) -> Any:
    """The first value of a map: msgspec does not name the key at fault."""
    return next(iter(value.values())) if isinstance(value, dict) and value else value
