"""Replicas that an idle service keeps.

A service may go to zero only where its owner declares a minimum of 0 and names a signal by which it is woken, and that
signal was seen fresh: without it no request could bring the service back. Every other service stops at its minimum, and
at one replica at least.
"""

from __future__ import annotations

from math import isinf, isnan

from autopilot.core.model.policy import Policy
from autopilot.core.model.snapshot import ServiceTable
from autopilot.core.model.units import format_duration


def kept_replicas(services: ServiceTable, row: int, policy: Policy) -> tuple[int, str]:
    """The least replicas of an idle service, and why."""
    least, age_s = int(services.min_replicas[row]), float(services.wake_age_s[row])
    if least > 0:
        return least, "its owner keeps at least that"
    if isnan(age_s):
        return 1, "its owner allows zero and names no signal that would wake it"
    if isinf(age_s):
        return 1, "the signal that would wake it was never seen"
    if not 0 <= age_s <= policy.freshness.telemetry_s:
        return 1, f"the signal that would wake it was last seen {format_duration(age_s)} ago"
    if services.wake_rps[row] != 0:  # also where it is unknown
        return 1, "requests for it arrive"
    return 0, "its owner allows zero, and the signal that wakes it is seen"
