"""The section `idle` of the policy: when work counts as idle, and how its owner is treated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Interval
from typing_extensions import Doc

from autopilot.core.model.policy.bounds import DAY_S


@dataclass(frozen=True, slots=True)
class Idle:
    """Idle work: GPUs that are held and not used.

    A GPU is idle while SM, DRAM and tensor activity, PCIe and NVLink traffic, and power are all low, in every sample of
    the longest window of telemetry. Work is idle while all of its GPUs are.
    """

    window_s: Annotated[
        float,
        Interval(ge=60, le=7 * DAY_S),
        Doc("work is idle when all of its GPUs were idle for this long; at least the longest window of telemetry"),
    ] = 1800.0
    scan_s: Annotated[float, Interval(ge=30, le=3600), Doc("time between two looks at the telemetry of all work")] = (
        300.0
    )
    # share of the samples of the window that must be present
    covered_ratio: ClassVar[float] = 0.9
    sm_ratio: Annotated[
        float,
        Interval(ge=0, le=0.2),
        Doc("SM activity up to which a sample is idle; above a kernel that keeps it warm"),
    ] = 0.04
    # DRAM activity up to which a sample is idle
    dram_ratio: ClassVar[float] = 0.002
    # tensor activity up to which a sample is idle
    tensor_ratio: ClassVar[float] = 0.0003
    # mean PCIe or NVLink traffic of a GPU up to which it is idle
    link_bytes_s: ClassVar[float] = 2e7
    power_ratio: Annotated[
        float,
        Interval(ge=1, le=4),
        Doc("power up to which a GPU is idle, over that of a loaded GPU of its model without work"),
    ] = 1.25
    interactive_grace_s: Annotated[
        float, Interval(ge=0, le=30 * DAY_S), Doc("time between two steps for interactive work; each step waits for it")
    ] = 7200.0
    batch_grace_s: Annotated[float, Interval(ge=0, le=30 * DAY_S), Doc("the same for batch work")] = 3600.0
    gone_s: Annotated[
        float,
        Interval(ge=0, le=30 * DAY_S),
        Doc("time without activity before a suspension; of measured owners gone that long 1 % return in the next hour"),
    ] = 14400.0
    working_hours: Annotated[
        str,
        Doc(
            "hours in which the grace of interactive work passes, such as `Mon-Fri 08:00-18:00 +01:00` (days, times, "
            "offset of the time zone from UTC); empty: always"
        ),
    ] = ""
    # a return this soon after a suspension counts as early
    early_s: ClassVar[float] = 3600.0
    # bound on the factor by which early returns, and the wait that they cost, lengthen the window and the
    # graces of an owner
    most_patience: ClassVar[float] = 8.0
    size_s: Annotated[
        float,
        Interval(ge=3600, le=90 * DAY_S),
        Doc("time for which work must use at most half of its GPUs before a smaller size is advised"),
    ] = 7 * DAY_S
    # new work of the same owner on the same GPUs within this time continues the evidence of the old
    rename_s: ClassVar[float] = 3600.0
    # how long the record of an owner is kept after the last event
    forget_s: ClassVar[float] = 30 * DAY_S
