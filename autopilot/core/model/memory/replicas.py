"""Measurements of services, and replicas in start-up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autopilot.core.model.times import Duration, Time


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """Measurements of one service (core/replicas/follow.py).

    `loads` are (bin, requests, violations): requests by bin of requests/s per ready replica, and those over the
    objective. `at_target_rps` are recent estimates of the requests/s of one replica at the owner's target load.
    `desired` are (time, replicas) from trusted forecasts; from one entry to the next, times rise and replicas fall.
    """

    ready: int = -1
    ready_since_s: Time = float("nan")
    minute_s: Time = float("-inf")  # end of the newest counted minute
    clear: bool = False  # no request waited at the end of this minute
    loads: tuple[tuple[int, float, float], ...] = ()
    at_target_rps: tuple[float, ...] = ()
    cold_starts_s: tuple[Duration, ...] = ()
    desired: tuple[tuple[Time, int], ...] = ()
    floor: int = 0  # as last observed
    raised_s: Time = float("-inf")  # time of the last observed rise
    room_s: Time = float("-inf")  # time of the last stop of work for one of its replicas (action make_room)
    returned_s: Time = float("-inf")  # time of the first fall of its floor after that


@dataclass(frozen=True, slots=True)
class ReplicasMemory:
    """Services by uid (core/replicas/follow.py)."""

    services: Mapping[str, ServiceRecord] = field(default_factory=dict)
    starting_s: Mapping[str, Duration] = field(default_factory=dict)  # replica in start-up -> its start
