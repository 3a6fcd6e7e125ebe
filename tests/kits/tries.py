"""How many examples a property tries: few in CI, many in `make soak`."""

from __future__ import annotations

from hypothesis import settings

USUAL = 50
"""Examples under the profile `quick` (tests/conftest.py)."""


def tries(number: int) -> settings:
    """`number` examples in CI, and as many times more in a soak as its profile has more than `quick`."""
    return settings(max_examples=number * settings().max_examples // USUAL)
