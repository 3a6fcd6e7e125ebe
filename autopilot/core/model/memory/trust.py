"""By what actions are judged: storms and promises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autopilot.core.model.promises import Promise, PromiseRecord
from autopilot.core.model.times import Time


@dataclass(frozen=True, slots=True)
class StormRecord:
    """What one action had to repeat (core/trust/follow_storms.py). `minutes` and `hours` are (start, events).

    `minutes` has the minutes of the last hour with events, `hours` the hours of the last 7 days with effects.
    """

    minutes: tuple[tuple[Time, int], ...] = ()
    hours: tuple[tuple[Time, int], ...] = ()
    last_s: Time = float("-inf")  # time of the latest event
    since_s: Time = float("inf")  # start of the storm; inf: there is none
    events: int = 0  # of the worst hour of the storm


@dataclass(frozen=True, slots=True)
class Touched:
    """A workload stopped or moved by an action, or a service with its floor lowered, within the last hour."""

    action: str
    uid: str
    at_s: Time


@dataclass(frozen=True, slots=True)
class TrustMemory:
    """By action (core/trust/follow_storms.py, core/trust/follow_promises.py)."""

    storms: Mapping[str, StormRecord] = field(default_factory=dict)
    touched: tuple[Touched, ...] = ()
    promises: tuple[Promise, ...] = ()  # of executed actions within their horizon
    kept_promises: Mapping[str, PromiseRecord] = field(default_factory=dict)  # with the cap of the action
