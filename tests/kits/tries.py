"""How much a test tries: little in CI, much in `make soak`."""

from __future__ import annotations

import os

SOAKED = "AUTOPILOT_SOAK_SEED" in os.environ


def tries(number: int, soak: int) -> int:
    """`number` in CI, `soak` in `make soak`."""
    return soak if SOAKED else number
