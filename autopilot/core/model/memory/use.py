"""Past use of queues, by which their shares are corrected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autopilot.core.model.times import Time


@dataclass(frozen=True, slots=True)
class UseMemory:
    """By queue (core/quota/past_use.py). Sums decay."""

    usage_gpu_s: Mapping[str, float] = field(default_factory=dict)
    standing_use_gpu_s: Mapping[str, float] = field(default_factory=dict)  # the same at the review's start
    held_gpus: Mapping[str, float] = field(default_factory=dict)  # since the last tick
    # of queues that share time: their decayed part of the cluster, the same at the review's start, and the part now
    part_gpu_s: Mapping[str, float] = field(default_factory=dict)
    standing_part_gpu_s: Mapping[str, float] = field(default_factory=dict)
    part_gpus: Mapping[str, float] = field(default_factory=dict)
    usage_at_s: Time = float("-inf")
