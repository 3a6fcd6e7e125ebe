"""JSON values: fast copies and encoding."""

from __future__ import annotations

from typing import Any

import msgspec

_ENCODER = msgspec.json.Encoder()


def clone(value: Any) -> Any:
    """A copy with dicts and lists of its own."""
    if isinstance(value, dict):
        return {name: clone(each) if isinstance(each, (dict, list)) else each for name, each in value.items()}
    if isinstance(value, list):
        return [clone(each) if isinstance(each, (dict, list)) else each for each in value]
    return value


def encode(value: Any) -> bytes:
    """JSON without spaces."""
    return _ENCODER.encode(value)
