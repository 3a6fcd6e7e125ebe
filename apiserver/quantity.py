"""Quantities of resources (`1500m`, `8Gi`, `4`): exact values, and the canonical text of a server's answers."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

BINARY = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}
DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([KMGTPE]i|[numkMGTPE]?)|[eE]([+-]?\d+))")
NANO = 10**9


@lru_cache(maxsize=4096)
def parse(text: str | float) -> Fraction:
    """The value of a quantity. Raises ValueError for any other text."""
    found = FORM.fullmatch(str(text))
    if found is None:
        raise ValueError(f"{text!r} is not a quantity: write a number with an optional suffix, such as 4, 500m or 8Gi")
    number, suffix, exponent = found.groups()
    value = Fraction(Decimal(number))
    if exponent is not None:
        return value * Fraction(10) ** int(exponent)
    return value * BINARY[suffix] if suffix in BINARY else value * Fraction(10) ** DECIMAL[suffix]


def canonical(text: str | float) -> str:
    """The text with the largest suffix for a whole number; finer than nano is rounded up."""
    found = FORM.fullmatch(str(text))
    value = parse(text)
    if found is not None and found[2] in BINARY:
        return as_text(value, binary=True)
    return as_text(value)


def as_text(value: Fraction | int, *, binary: bool = False) -> str:
    """A value as canonical text, with binary suffixes (whole numbers from 1024 on) or decimal ones."""
    exact = Fraction(value)
    if binary and exact.denominator == 1 and abs(exact) >= BINARY["Ki"]:
        whole = int(exact)
        suffix = max((name for name in BINARY if whole % BINARY[name] == 0), key=BINARY.__getitem__, default="")
        return f"{whole // BINARY[suffix]}{suffix}" if suffix else str(whole)
    nano = -int(-exact * NANO // 1)
    for suffix in sorted(DECIMAL, key=DECIMAL.__getitem__, reverse=True):
        size = int(10 ** (DECIMAL[suffix] + 9))
        if nano and nano % size == 0:
            return f"{nano // size}{suffix}"
    return "0"
