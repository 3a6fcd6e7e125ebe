"""Exact amounts of GPU time: integers of 1/28,000 GPU x 1/1,024 s, so the rows of an interval add up exactly.

A part of a GPU is a whole number of 1/28,000 (core/intake/usage/parts.py); times are rounded to 1/1,024 s once, so
consecutive intervals have no gap and no overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autopilot.core.intake.usage.parts import GPU_UNITS

TICKS_PER_S = 1024
GRAINS_PER_GPU_S = GPU_UNITS * TICKS_PER_S
"""Units of this module in one GPU-second."""


def to_ticks(at_s: float) -> int:
    """A time in 1/1,024 s."""
    return round(at_s * TICKS_PER_S)


class Kind(StrEnum):
    """The kind of amount in a row. Of the capacity of an interval each part is in one row of the first five kinds."""

    HELD = "held"  # allocated to a workload
    IDLE = "idle"  # free, and pending work could have used it
    FRAGMENTED = "fragmented"  # free, and no pending work could use it in its present shape
    OUT_OF_USE = "out_of_use"  # free, but closed to work (core/hardware/takes_work.py)
    GAP = "gap"  # not observed: nothing is known of it
    CAPACITY = "capacity"  # all GPUs, counted from the inventory alone
    RESERVED = "reserved"  # guaranteed to a queue, used or not; a claim, no part of the capacity


KEYS = (
    "kind",
    "tenant",
    "queue",
    "workload",
    "uid",
    "gpu_model",
    "profile",
    "slo_class",
    "pool",
    "topology",
    "user",
    "labels",
    "reason",
)
"""Text columns of a row; `labels` is a JSON object of the metered labels, "" for none."""
AMOUNTS = (
    "gpu_time",
    "measured",
    "active",
    "borrowed",
    "lost",
    "energy_mj",
    "powered",
    "counted",
    "gflop",
    "gflop_time",
    "unmeasured_losses",
    "saved",
)
"""Whole numbers of a row, in grains but for `energy_mj` (millijoules), `gflop` (10^9 operations), and
`unmeasured_losses` (stops).

`measured` has known SM activity; of it `active` was active. `powered` has known energy, `counted` has it from the
energy counter. `gflop_time` is the GPU time with reported operations. `saved` is the GPU time that work on shares
requested beyond its parts.
"""
GPU_TIME, MEASURED, ACTIVE, BORROWED, LOST, ENERGY, POWERED, COUNTED, GFLOP, GFLOP_TIME, UNMEASURED_LOSSES, SAVED = (
    range(len(AMOUNTS))
)


def no_amounts() -> list[int]:
    """Zero of every amount."""
    return [0] * len(AMOUNTS)


@dataclass(frozen=True, slots=True)
class Row:
    """The amounts of one owner in one interval; `begin` and `end` in 1/1,024 s."""

    begin: int
    end: int
    key: tuple[str, ...]  # as KEYS
    amounts: tuple[int, ...]  # as AMOUNTS
