"""What work does alone on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autopilot.core.model.times import Duration, Time

UNKNOWN = float("nan")


@dataclass(frozen=True, slots=True)
class LoneProfile:
    """One kind of work alone on GPUs of one model (core/sharing/follow.py). NaN: never measured.

    Ratios are means over its GPUs and over `alone_s`, of each GPU from 0 to 1; `power_ratio` is a part of the limit of
    the board. `peak_mib` is the highest memory in use on any one GPU.
    """

    peak_mib: float
    alone_s: Duration  # observed alone; the means forget what is older than it
    seen_s: Time  # end of the newest observation alone
    sm_ratio: float = UNKNOWN
    dram_ratio: float = UNKNOWN
    duty_ratio: float = UNKNOWN  # time in which the engine is busy (DCGM_FI_PROF_GR_ENGINE_ACTIVE)
    power_ratio: float = UNKNOWN
    steps_hz: float = UNKNOWN  # mean pace of its program, steps per second (WorkloadTable.steps_per_s)
    steps_spread_ratio: float = UNKNOWN  # standard deviation of that pace over its mean


@dataclass(frozen=True, slots=True)
class ProfilesMemory:
    """By model of GPU, then by kind of work (core/model/kinds.py)."""

    profiles: Mapping[str, Mapping[str, LoneProfile]] = field(default_factory=dict)
    look_s: Time = float("-inf")  # the newest look at the telemetry of all work, on its grid
    several_s: Mapping[str, Time] = field(default_factory=dict)
    """By UUID of a GPU that software shares: when it had several holders last; inf while it has. Others have not had
    any for two looks."""
