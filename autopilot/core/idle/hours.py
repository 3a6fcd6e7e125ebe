"""Working hours: when an owner can be expected to read a notice.

Written as `Mon-Fri 08:00-18:00 +01:00`: days, times of day, and the offset from UTC of the time zone. Summer time is
not followed. No hours mean always.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import floor

from autopilot.core.model.errors import InputError
from autopilot.core.model.policy_bounds import DAY_S

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_FIRST = 3  # 1 January 1970 was a Thursday
_FORM = re.compile(r"(\w{3})(?:-(\w{3}))? (\d\d):(\d\d)-(\d\d):(\d\d)(?: ([+-])(\d\d):(\d\d))?")
_MOST_DAYS = 4000


@dataclass(frozen=True, slots=True)
class Hours:
    """Working days (0: Monday) and the part of each, in seconds since midnight of the zone."""

    days: frozenset[int]
    from_s: float
    to_s: float
    offset_s: float


@lru_cache(maxsize=64)
def parse_hours(text: str) -> Hours | None:
    """Hours from their text; None for always. Raises `InputError`."""
    if not text:
        return None
    found = _FORM.fullmatch(text)
    first, last = (found[1], found[2] or found[1]) if found else ("", "")
    if found is None or first not in DAYS or last not in DAYS:
        raise InputError(
            f"idle.working_hours: {text!r} is not understood; write for example 'Mon-Fri 08:00-18:00 +01:00'"
        )
    low, high = DAYS.index(first), DAYS.index(last)
    days = frozenset((low + step) % 7 for step in range((high - low) % 7 + 1))
    from_s, to_s = (int(found[at]) * 3600.0 + int(found[at + 1]) * 60.0 for at in (3, 5))
    offset_s = (int(found[8]) * 3600.0 + int(found[9]) * 60.0) * (-1 if found[7] == "-" else 1) if found[7] else 0.0
    if not 0 <= from_s < to_s <= DAY_S:
        raise InputError(f"idle.working_hours: {text!r} ends before it begins; write the earlier time first")
    return Hours(days, from_s, to_s, offset_s)


def passed_at(hours: Hours | None, since_s: float, length_s: float) -> float:
    """When `length_s` of working time has passed since `since_s`."""
    if hours is None:
        return since_s + length_s
    left_s, local_s = length_s, since_s + hours.offset_s
    day = floor(local_s / DAY_S)
    for number in range(day, day + _MOST_DAYS):
        if (number + _FIRST) % 7 not in hours.days:
            continue
        begin_s = max(number * DAY_S + hours.from_s, local_s)
        end_s = number * DAY_S + hours.to_s
        if begin_s + left_s <= end_s:
            return begin_s + left_s - hours.offset_s
        left_s -= max(end_s - begin_s, 0.0)
    return float("inf")
