"""The query of a request as Kubernetes decodes it: whole numbers, flags, versions."""

from __future__ import annotations

import re
from collections.abc import Mapping

from apiserver.errors import StatusError, bad_request, unexpected

INT64 = 2**63
DIGITS = re.compile(r"[+-]?\d+")
NUMBERS = ("limit", "timeoutSeconds")


def is_set(query: Mapping[str, str], name: str) -> bool:
    """A flag: absent, `false` and `0` are false, any other text is true."""
    return name in query and query[name].lower() not in {"false", "0"}


def whole(query: Mapping[str, str], name: str) -> int:
    """A whole number of 64 bits; 0 if it is absent. Raises StatusError 400."""
    text = query.get(name, "")
    if not text:
        return 0
    if DIGITS.fullmatch(text) is None:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    value = int(text)
    if not -INT64 <= value < INT64:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": value out of range')
    return value


def is_watch(query: Mapping[str, str]) -> bool:
    """True if a read of a collection is a watch. A read with undecodable options is a list, and refused as one."""
    try:
        for name in NUMBERS:
            whole(query, name)
    except StatusError:
        return False
    return is_set(query, "watch")


def version(text: str) -> int:
    """A resourceVersion; 0 if it is absent. Raises StatusError 500, as reads of one object and watches answer."""
    why = "value out of range" if text.isdigit() and int(text) >= 2 * INT64 else "invalid syntax"
    if text and (not (text.isascii() and text.isdigit()) or int(text) >= 2 * INT64):
        raise unexpected(f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": {why}')
    return int(text or 0)
