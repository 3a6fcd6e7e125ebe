"""Amounts of resources as Kueue counts them: CPU in thousandths, everything else in whole units, rounded up."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from apiserver.quantity import as_text, parse

Obj = dict[str, Any]
FlavorResource = tuple[str, str]  # flavor, resource
CPU = "cpu"
BINARY = ("memory", "ephemeral-storage", "hugepages-")


def amount(resource: str, text: str | float) -> int:
    """The amount of a quantity."""
    return exact(resource, parse(text))


def exact(resource: str, value: Fraction) -> int:
    """The amount of an exact value, rounded up."""
    return math.ceil(value * 1000 if resource == CPU else value)


def quantity(resource: str, value: int) -> str:
    """The quantity of an amount."""
    if resource == CPU:
        return as_text(Fraction(value, 1000))
    return as_text(value, binary=resource.startswith(BINARY))


def quantities(found: dict[str, int]) -> dict[str, str]:
    """Quantities by resource."""
    return {resource: quantity(resource, found[resource]) for resource in sorted(found)}
