"""Quantities of the API: `8`, `500m`, `2Gi`, `1k`, `1e3`."""

from __future__ import annotations

import re
from functools import lru_cache
from math import isfinite

_QUANTITY = re.compile(r"([+-]?(?:[0-9]{1,18}\.?[0-9]{0,18}|\.[0-9]{1,18}))([eE][+-]?[0-9]{1,2}|[a-zA-Z]{0,2})")
_SUFFIX = {
    "": 1.0,
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
    "Pi": 2.0**50,
    "Ei": 2.0**60,
}


MOST_MILLI = 2**31
"""Most thousandths of a CPU of one pod or node: two million cores."""
MOST_MIB = 2**31
"""Most memory of one pod or node: two pebibytes. Times the members of the largest gang, both fit into int64 columns."""


def parse(value: object) -> float | None:
    """The value of a quantity, a string or a number; None for any other, and for a negative one."""
    return _parse(value) if isinstance(value, str | int | float) else None


def bounded(value: object, most: float) -> float | None:
    """The value of a quantity; None for any other, for a negative one, and above `most`."""
    found = parse(value)
    return found if found is not None and found <= most else None


@lru_cache(maxsize=4096)
def _parse(text: str | float) -> float | None:
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        return None
    number, suffix = match.groups()
    factor = float(f"1{suffix}") if suffix[:1] in {"e", "E"} and len(suffix) > 1 and suffix != "Ei" else None
    factor = _SUFFIX.get(suffix) if factor is None else factor
    value = float(number) * factor if factor is not None else -1.0
    return value if isfinite(value) and value >= 0 else None


def whole(text: object) -> int:
    """A quantity as a whole number, rounded down; 0 for any other text."""
    return int(parse(text) or 0)


def milli(text: object) -> int | None:
    """A quantity in thousandths, rounded up; None for any other text, or out of bounds."""
    value = bounded(text, MOST_MILLI / 1000)
    return None if value is None else int(-(-value * 1000 // 1))


def mib(text: object) -> int | None:
    """A quantity of bytes in MiB, rounded up; None for any other text, or out of bounds."""
    value = bounded(text, MOST_MIB * 2.0**20)
    return None if value is None else int(-(-value // (1 << 20)))
