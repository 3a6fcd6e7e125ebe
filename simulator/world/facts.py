"""What happened, as plain facts: the cluster states them, accounting and checkers read them.

Jobs, nodes, GPUs and instances are row numbers; times are virtual seconds. `milli` is the width in
thousandths of a GPU (1000 for each whole one).
"""

from __future__ import annotations

from enum import IntEnum
from math import inf
from typing import NamedTuple


class Why(IntEnum):
    """Why work left its GPUs."""

    END = 0  # it was done
    PREEMPT = 1  # told to give way; it waits again
    MOVE = 2  # stopped to be started elsewhere
    FAULT = 3  # its node or GPU failed; it waits again
    CUT = 4  # the run ended while it was working
    RETIRE = 5  # its owner took it away (a replica scaled down)
    FAIL = 6  # it failed for good
    RESIZE = 7  # it goes on at the same instant with more or fewer GPUs
    RECOVER = 8  # it was broken or about to be, and was stopped to run again; it waits again
    SUSPEND = 9  # it went on for too long, and is its owner's to start again


REQUEUED = (Why.PREEMPT, Why.MOVE, Why.FAULT, Why.RECOVER)
"""Reasons after which the work waits again."""


class Submitted(NamedTuple):
    """Work entered the queue."""

    at_s: float
    job: int


class Withdrawn(NamedTuple):
    """Its owner took away work that waited."""

    at_s: float
    job: int


class Started(NamedTuple):
    """Work took its GPUs: from the queue, or at the instant at which it stopped to be resized."""

    at_s: float
    job: int
    incarnation: int
    gpus: tuple[int, ...]  # one entry a GPU; with `instances`, the GPU of each
    instances: tuple[int, ...]
    milli: int
    backfill: bool
    effect: str  # id of the instruction behind it; "" for a policy without instructions


class Evicting(NamedTuple):
    """Work was told to leave; it may still write a checkpoint."""

    at_s: float
    job: int
    incarnation: int
    why: Why
    contract: bool
    effect: str


class Stopped(NamedTuple):
    """Work left its GPUs. Progress is in seconds at full width."""

    at_s: float
    job: int
    incarnation: int
    why: Why
    start_s: float
    ready_s: float  # end of start-up
    halt_s: float  # end of useful work; before `at_s` when a checkpoint was written
    gain_s: float  # progress made between the two
    lost_s: float  # progress that is to be repeated; may reach into earlier incarnations
    milli: int
    full_milli: int  # width that one second of progress is counted at
    no_bandwidth: bool = False  # it lost progress that it could have saved, had the store been its alone


class NodeChanged(NamedTuple):
    """A node became fit or unfit to receive work."""

    at_s: float
    node: int
    ready: bool
    cordoned: bool
    reclaim_at_s: float = inf  # when the cloud takes it back; infinity while that is not announced


class GpuChanged(NamedTuple):
    """A GPU broke, was mended, or reported an error that only its work felt."""

    at_s: float
    gpu: int
    healthy: bool
    xid: int = 0  # NVIDIA's number of the error; 0: none


class Recut(NamedTuple):
    """A GPU in MIG mode has this geometry from now on: (row, profile, first memory slice) of each instance."""

    at_s: float
    gpu: int
    instances: tuple[tuple[int, str, int], ...]


class Decided(NamedTuple):
    """An accepted decision allows the effect with this id; when it does not follow at once, it failed or was
    refused.
    """

    at_s: float
    effect: str
    kind: str  # admit | evict | resize | scale
    job: int  # of `scale`: the service


class Floored(NamedTuple):
    """A service has at least so many replicas until then; 0: no more than its load needs."""

    at_s: float
    service: int
    replicas: int
    until_s: float
    effect: str


class Scaled(NamedTuple):
    """An autoscaler looked at its service: replicas that it wants, that the load alone needs, and the floor it knew."""

    at_s: float
    service: int
    wanted: int
    needed: int
    floor: int


Fact = (
    Submitted | Withdrawn | Started | Evicting | Stopped | NodeChanged | GpuChanged | Recut | Decided | Floored | Scaled
)

HOOKS = {
    Submitted: "on_submitted",
    Withdrawn: "on_withdrawn",
    Started: "on_started",
    Evicting: "on_evicting",
    Stopped: "on_stopped",
    NodeChanged: "on_node",
    GpuChanged: "on_gpu",
    Recut: "on_recut",
    Decided: "on_decided",
    Floored: "on_floored",
    Scaled: "on_scaled",
}
"""The method of an observer that is given each kind of fact; an observer has those that it needs."""
