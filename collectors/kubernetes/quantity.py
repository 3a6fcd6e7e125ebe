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


@lru_cache(maxsize=4096)
def parse(text: object) -> float | None:
    """The value of a quantity, a string or a number; None where it is none or is negative."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        return None
    number, suffix = match.groups()
    factor = float(f"1{suffix}") if suffix[:1] in {"e", "E"} and len(suffix) > 1 and suffix != "Ei" else None
    factor = _SUFFIX.get(suffix) if factor is None else factor
    value = float(number) * factor if factor is not None else -1.0
    return value if isfinite(value) and value >= 0 else None


def whole(text: object) -> int:
    """A quantity as a whole number, rounded down; 0 where it is none."""
    return int(parse(text) or 0)


def milli(text: object) -> int:
    """A quantity in thousandths, rounded up; 0 where it is none."""
    return int(-(-(parse(text) or 0.0) * 1000 // 1))


def mib(text: object) -> int:
    """A quantity of bytes in MiB, rounded up; 0 where it is none."""
    return int(-(-(parse(text) or 0.0) // (1 << 20)))
