"""The section `defragment_ahead` of the policy: moves for work that is only expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval
from typing_extensions import Doc

from autopilot.core.model.policy.bounds import DAY_S


@dataclass(frozen=True, slots=True)
class DefragmentAhead:
    """Room for a gang that the demand mix expects, made by moves before it comes."""

    ahead_s: Annotated[
        float, Interval(ge=600, le=DAY_S), Doc("only gangs that are expected within this time count")
    ] = 4 * 3600.0
    drain_s: Annotated[
        float,
        Interval(ge=0, le=DAY_S),
        Doc("work that is predicted to end within this time is not moved: it leaves by itself"),
    ] = 1800.0
    dwell_s: Annotated[
        float,
        Interval(ge=0, le=30 * DAY_S),
        Doc("work that was stopped or moved is not moved ahead for this long after its restart"),
    ] = 4 * 3600.0
    peak_hours: Annotated[
        str,
        Doc(
            "hours in which nothing is moved ahead, such as `Mon-Fri 08:00-18:00 +01:00` (days, times, offset of the "
            "time zone from UTC); empty: none"
        ),
    ] = ""
