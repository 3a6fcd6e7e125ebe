"""Facts of GPUs shared by software: with a bug in each, and without one.

GPUs 26 to 33 are shared by time slicing, 34 and 35 by MPS. Jobs 12 to 15 are of tenant a, 16 and 17
of tenant b: 12 and 13 development work, 14 batch work, 15 untrusted, 16 and 17 across tenants as 13 is.
"""

from __future__ import annotations

from autopilot.core.model.objects import Sharing
from simulator.world.facts import Decided, Evicting, Fact, Turned, Why
from tests.simulation.fact_builders import started, stopped


def share(job: int, gpu: int = 26, at_s: float = 10.0) -> Fact:
    """A start on a shared GPU."""
    return started(job, [gpu], at_s, milli=250)


def ended(job: int, *, by_signal: bool) -> Fact:
    """An eviction of a client."""
    return Evicting(50.0, job, 0, Why.PREEMPT, False, "", by_signal=by_signal)


def turned(*, begins: bool, node: int = 0, at_s: float = 100.0, effect: str = "") -> Fact:
    """A node turns to time slicing."""
    return Turned(at_s, node, begins, Sharing.TIME_SLICING, 4, effect)


SHARING: list[tuple[str, str, list[Fact]]] = [
    ("shared-trust", "is untrusted", [share(12), share(15)]),
    ("shared-trust", "of another tenant", [share(12), share(16)]),
    ("shared-trust", "may never share", [share(12), share(0)]),
    ("shared-count", "5 workloads of class dev share it, at most 4", [share(job) for job in (12, 13, 18, 19, 20)]),
    ("shared-count", "3 workloads of class pair share it, at most 2", [share(job) for job in (14, 22, 23)]),
    ("shared-count", "more than 4 GPUs", [started(21, range(26, 34), milli=2000), share(12)]),
    ("shared-memory", "90,000 MiB are held of 80,000", [share(12), share(13), share(14)]),
    ("turned-nodes", "is turned while job job-0", [started(0, [0]), turned(begins=True)]),
    ("turned-nodes", "which is being turned", [turned(begins=True), started(0, [0], 110.0)]),
    ("effects", "set_sharing: the effect names no accepted decision", [turned(begins=True)]),
    ("mps-clients", "by a signal beside job job-13", [share(12, 34), share(13, 34), ended(12, by_signal=True)]),
]

SHARING_FINE: list[tuple[str, list[Fact]]] = [
    ("shared-trust", [share(12), share(13), stopped(12), share(16), share(17)]),
    ("shared-trust", [share(15)]),
    ("shared-count", [share(job) for job in (12, 13, 18, 19)]),
    ("shared-memory", [share(12), share(13), stopped(12), share(14)]),
    ("turned-nodes", [started(0, [0]), stopped(0), turned(begins=True), turned(begins=False), started(0, [0], 140.0)]),
    ("effects", [Decided(1.0, "e1", "set_sharing", 0), turned(begins=True, effect="e1"), turned(begins=False)]),
    ("mps-clients", [share(12, 34), share(13, 34), ended(12, by_signal=False)]),
    ("mps-clients", [share(12), share(13), ended(12, by_signal=True)]),
]
