"""The section of the policy on GPUs shared by software."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval
from typing_extensions import Doc

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class SharingRules:
    """Nodes that are turned to sharing and back."""

    dwell_s: Annotated[
        float, Interval(ge=0, le=DAY_S), Doc("a node keeps its way of sharing for at least this long")
    ] = 1800.0
    unused_s: Annotated[
        float, Interval(ge=0, le=DAY_S), Doc("a shared node that nobody uses for this long is turned back")
    ] = 1800.0
