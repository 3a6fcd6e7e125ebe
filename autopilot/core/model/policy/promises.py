"""The section of the policy on what actions promise and what they realise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Interval
from typing_extensions import Doc


@dataclass(frozen=True, slots=True)
class Promises:
    """When an action is capped at `recommend` because it realises too little of what it promised.

    A promise is the use of the work that an action starts earlier, before its predicted start without the action and
    within `horizon_s`, less the expected loss of the victims. Afterwards the measured use and loss are compared with
    it. Proposals by contract, stops of broken or hanging work, and actions that return something are never capped. A
    person lifts the cap.
    """

    # an action is judged once this many of its cases have finished
    least_cases: ClassVar[int] = 20
    most_cases: Annotated[
        int,
        Interval(ge=20, le=10_000),
        Doc("it is judged by the sum over this many newest cases, and over all of the last seven days"),
    ] = 100
    # it is capped if it realises less than this share of its promise, also without the worst twentieth of
    # cases
    least_ratio: ClassVar[float] = 0.5
