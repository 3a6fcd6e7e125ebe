"""How ranks of one training program differ in the time in which they compute, and what a slow one looks like.

Constants fitted on three real jobs (ByteDance-Seed/StragglerAnalysis, OSDI'25, traces ST and AR, Apache-2.0: forward
and backward compute by step and rank, the ratio to the other ranks of the stage; `python scripts/fit_stragglers.py`):

- ranks of one stage differ by `RANK_SD` for good, and by `STEP_SD` from one step to the next, without memory;
- a stage is `COMMON_SD` slower or faster in all its ranks at once; the last stage computes `LAST_STAGE` times as long
  as the others, by design;
- ranks compute for `BUSY_SHARE` of a step, and wait for the rest;
- the one slow rank of the real jobs took `SLOWEST` times as long as its peers, in every step.

Sizes and causes of other slow ranks are assumed: no public table has them.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from autopilot.core.model.snapshot import F64

RANK_SD, STEP_SD, COMMON_SD = 0.007, 0.0085, (0.0083, 0.0227)
LAST_STAGE, BUSY_SHARE, SLOWEST = (1.05, 1.63), (0.38, 0.43), 2.36
LEAST_SLOW = 1.1


class Cause(StrEnum):
    """Why a rank is slow. The hardware shows all but the last."""

    THERMAL = "thermal"
    POWER_BRAKE = "power-brake"
    CLOCKS = "clocks"
    PCIE = "pcie-width"
    REMAP = "remap"
    HOST = "host"


BY_CLOCK = frozenset({Cause.THERMAL, Cause.POWER_BRAKE, Cause.CLOCKS})
"""Causes that slow the SMs themselves: their tensor cores stay busy while peers wait."""
CAUSES = tuple(Cause)
CAUSE_CHANCES = (0.3, 0.15, 0.15, 0.15, 0.1, 0.15)  # assumed


def drawn_ratios(rng: np.random.Generator, count: int) -> F64:
    """Busy times of slow ranks over those of their peers: small ones are more frequent [assumed]."""
    low, high = np.log(LEAST_SLOW), np.log(SLOWEST)
    return np.asarray(np.exp(low + (high - low) * rng.beta(1.0, 2.0, count)))
