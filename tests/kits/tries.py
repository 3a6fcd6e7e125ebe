"""How many examples a property tries: few in CI, many in `make soak`."""

from __future__ import annotations

from hypothesis import settings

USUAL = 50
"""Examples under the profile `quick` (tests/conftest.py)."""


def tries(number: int, soak: int) -> settings:
    """`number` examples in CI, and `soak` under a profile that tries more."""
    return settings(max_examples=number if settings().max_examples <= USUAL else soak)
