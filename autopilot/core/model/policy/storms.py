"""The section of the policy on storms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Interval
from typing_extensions import Doc


@dataclass(frozen=True, slots=True)
class Storms:
    """When one action is paused because it reverses itself, fails or cuts GPUs anew too often.

    Proposals by contract, and stops of broken or hanging work, continue; the storm is reported. A paused action
    continues when a person resumes the autopilot, or after `calm_s` without such an event.
    """

    per_hour: Annotated[
        int,
        Interval(ge=1, le=1_000_000),
        Doc("reversals, failed effects and changes of MIG geometry of one action within an hour that it may have"),
    ] = 60
    median_ratio: Annotated[
        float,
        Interval(ge=1, le=1000),
        Doc(
            "it may also have no more than this many times its median over the hours of the last 7 days in which it "
            "acted, once it acted in 24 of them"
        ),
    ] = 3.0
    least: Annotated[
        int, Interval(ge=1, le=1_000_000), Doc("the limit by the median is not below this number of events")
    ] = 5
    # a paused action continues after this long without an event
    calm_s: ClassVar[float] = 7200.0
