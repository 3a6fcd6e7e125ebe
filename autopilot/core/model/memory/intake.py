"""Doubts about the clock and about sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autopilot.core.model.times import Duration, Time


@dataclass(frozen=True, slots=True)
class ClockDoubt:
    """A clock after a jump, still without trust.

    `first_s` is its first reading after the jump, `last_s` the latest; `ticks` counts consistent readings in a row.
    """

    first_s: Duration
    last_s: Duration
    ticks: int
    passed_s: Duration  # since the last decision, by the monotonic clock
    restarted: bool = False  # the process restarted meanwhile: more time than `passed_s` may have passed


@dataclass(frozen=True, slots=True)
class ViewRecord:
    """The last trusted complete list of one source and kind, and the suspicion against later lists, if any."""

    count: int  # objects in the trusted list
    listed_s: Time  # time of the newest examined list
    lists: int = 0  # lists in agreement on the loss so far; 0: no suspicion
    counted_s: Time = float("-inf")  # time of the newest of these
    found: int = 0  # objects in the first of these
    lost: int = 0  # objects missing from it
    confirmed: bool = False  # a person confirmed the loss


@dataclass(frozen=True, slots=True)
class IntakeMemory:
    """What the next observation is judged by (core/intake/clock.py, core/intake/sight.py)."""

    clock_doubt: ClockDoubt | None = None
    clock_drift_s: Duration = 0.0  # wall clock minus monotonic clock, not applied yet; under 0.5 s
    views: Mapping[str, ViewRecord] = field(default_factory=dict)  # "<kind>/<source>" -> its record
