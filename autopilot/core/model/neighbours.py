"""What detectors find about neighbours: work slowed by an arrival beside it, and members that hold up their gang.

Detectors are forecasters (models/): they keep histories and hand in these records. The core decides on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Measure(StrEnum):
    """What slowed down."""

    LATENCY = "latency"  # mean log latency of a replica
    RATE = "rate"  # steps per second of a gang


class Nearness(StrEnum):
    """The nearest part that the two work on, nearest first."""

    GPU = "gpu"
    NUMA = "numa"  # one NUMA node, or one PCIe root
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Interference:
    """A victim (replica or gang) that slowed down when a suspect arrived; in every forecast while it lasts.

    `rise_ratio` is the level after the arrival over the level before: 1.4 is 40 % slower. `now_ratio` is the same over
    the last minutes; NaN: unknown. `confidence` is 0 to 1, halved where two arrived in one window.
    """

    victim: str  # ids and uids of workloads
    victim_uid: str
    suspect: str
    suspect_uid: str
    measure: Measure
    nearness: Nearness
    rise_ratio: float
    now_ratio: float
    z: float  # robust z of the rise
    confidence: float
    against: str  # what it was compared with: "siblings" or "load"
    arrived_s: float
    found_s: float


@dataclass(frozen=True, slots=True)
class Unjudged:
    """A victim that a detector does not judge at present, and why: a code of the detector."""

    victim: str
    reason: str


@dataclass(frozen=True, slots=True)
class Straggler:
    """A member that holds up its gang, with its evidence (codes).

    `slow_ratio` is its busy time in a step, or what stands for it, over the median of its peers.
    """

    gang: str
    gang_uid: str
    rank: int  # -1: unknown
    node: str
    gpu: str  # UUID; "": unknown
    slow_ratio: float
    evidence: tuple[str, ...]
    confidence: float
    since_s: float
    found_s: float
    cost_gpu_s_per_h: float  # GPU-seconds that its gang loses in an hour


@dataclass(frozen=True, slots=True)
class SlowGpu:
    """A GPU that was slow in several gangs: it is suspected itself."""

    node: str
    gpu: str
    gangs: int
    slow_ratio: float
    evidence: tuple[str, ...]
