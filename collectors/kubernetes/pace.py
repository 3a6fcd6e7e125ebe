"""Steps per second of a training program, from the heartbeats of its pod."""

from __future__ import annotations

from math import nan
from typing import NamedTuple

from autopilot.contract.annotations import HEARTBEAT_OLD_S

PACE_S = 300.0
"""Least time over which steps are counted: five heartbeats of the helper."""

APART_S = 10.0
"""Heartbeats that follow each other faster are left out: at most 31 are kept."""


class Beat(NamedTuple):
    """One heartbeat: seconds since 1970, and the number of the step."""

    at_s: float
    step: float


Beats = tuple[Beat, ...]


def with_beat(beats: Beats, at_s: float | None, step: float | None) -> Beats:
    """The heartbeats of a pod with a new one; none without a step. After a gap or a lower step they begin anew."""
    if at_s is None or step is None:
        return ()
    if beats and beats[-1].step <= step and 0.0 <= at_s - beats[-1].at_s <= HEARTBEAT_OLD_S:
        if at_s - beats[-1].at_s < APART_S:
            return beats
        begin = max((at for at, each in enumerate(beats) if each.at_s <= at_s - PACE_S), default=0)
        return (*beats[begin:], Beat(at_s, step))
    return (Beat(at_s, step),)


def rate_of(beats: Beats) -> float:
    """Steps per second from the first to the last heartbeat; NaN if they are less than `PACE_S` apart."""
    took_s = beats[-1].at_s - beats[0].at_s
    return (beats[-1].step - beats[0].step) / took_s if took_s >= PACE_S else nan
