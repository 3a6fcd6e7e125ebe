"""Weekly hours of a policy: working hours of owners, and peak hours of a cluster.

Written as `Mon-Fri 08:00-18:00 +01:00`: days, times of day, and the offset from UTC of the time zone. Summer time is
not followed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import floor, inf

from autopilot.core.model.errors import InputError
from autopilot.core.model.policy.bounds import DAY_S

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_FIRST = 3  # 1 January 1970 was a Thursday
_MOST_DAYS = 4000
_FORM = re.compile(r"(\w{3})(?:-(\w{3}))? (\d\d):(\d\d)-(\d\d):(\d\d)(?: ([+-])(\d\d):(\d\d))?")


@dataclass(frozen=True, slots=True)
class Hours:
    """Days (0: Monday) and the part of each, in seconds since midnight of the zone."""

    days: frozenset[int]
    from_s: float
    to_s: float
    offset_s: float

    def on(self, day: int) -> bool:
        """True for a day (in days since 1970) with these hours."""
        return (day + _FIRST) % 7 in self.days


@lru_cache(maxsize=64)
def parse_hours(text: str, field: str) -> Hours | None:
    """Hours from their text; None for an empty one. Raises `InputError` naming the field."""
    if not text:
        return None
    found = _FORM.fullmatch(text)
    first, last = (found[1], found[2] or found[1]) if found else ("", "")
    if found is None or first not in DAYS or last not in DAYS:
        raise InputError(f"{field}: {text!r} is not understood; write for example 'Mon-Fri 08:00-18:00 +01:00'")
    low, high = DAYS.index(first), DAYS.index(last)
    days = frozenset((low + step) % 7 for step in range((high - low) % 7 + 1))
    from_s, to_s = (int(found[at]) * 3600.0 + int(found[at + 1]) * 60.0 for at in (3, 5))
    offset_s = (int(found[8]) * 3600.0 + int(found[9]) * 60.0) * (-1 if found[7] == "-" else 1) if found[7] else 0.0
    if not 0 <= from_s < to_s <= DAY_S:
        raise InputError(f"{field}: {text!r} ends before it begins; write the earlier time first")
    return Hours(days, from_s, to_s, offset_s)


def within_hours(hours: Hours | None, at_s: float) -> bool:
    """True inside of these hours; without hours, never."""
    if hours is None:
        return False
    day, local_s = divmod(at_s + hours.offset_s, DAY_S)
    return hours.on(int(day)) and hours.from_s <= local_s < hours.to_s


def next_edge_s(hours: Hours | None, at_s: float) -> float:
    """The next begin or end of these hours after a time; inf without hours."""
    if hours is None:
        return inf
    first = floor((at_s + hours.offset_s) / DAY_S)
    edges = (
        day * DAY_S + edge_s - hours.offset_s
        for day in range(first, first + 8)
        if hours.on(day)
        for edge_s in (hours.from_s, hours.to_s)
    )
    return min((edge_s for edge_s in edges if edge_s > at_s), default=inf)


def passed_at(hours: Hours | None, since_s: float, length_s: float) -> float:
    """The time at the end of `length_s` inside of these hours since `since_s`; without hours, all time counts."""
    if hours is None:
        return since_s + length_s
    left_s, local_s = length_s, since_s + hours.offset_s
    day = floor(local_s / DAY_S)
    for number in range(day, day + _MOST_DAYS):
        if not hours.on(number):
            continue
        begin_s = max(number * DAY_S + hours.from_s, local_s)
        end_s = number * DAY_S + hours.to_s
        if begin_s + left_s <= end_s:
            return begin_s + left_s - hours.offset_s
        left_s -= max(end_s - begin_s, 0.0)
    return inf
