"""Events as plain facts: the cluster publishes them, accounting and checkers read them.

Jobs, nodes, GPUs and instances are row numbers; times are virtual seconds. `milli` is the width in thousandths of a GPU
(1000 for each whole one).
"""

from __future__ import annotations

from enum import IntEnum
from math import inf
from typing import NamedTuple


class Why(IntEnum):
    """The reason of work to leave its GPUs."""

    END = 0  # it was done
    PREEMPT = 1  # preempted; it waits again
    MOVE = 2  # stopped to be started elsewhere
    FAULT = 3  # its node or GPU failed; it waits again
    CUT = 4  # the run ended while it was running
    RETIRE = 5  # its owner withdrew it (a replica scaled down)
    FAIL = 6  # it failed permanently
    RESIZE = 7  # it continues at the same instant with more or fewer GPUs
    RECOVER = 8  # its hardware failed or was about to, and it was stopped to run again; it waits again
    SUSPEND = 9  # it exceeded its limit; its owner has to start it again
    PARK = 10  # it did nothing; it waits until its owner resumes it


REQUEUED = (Why.PREEMPT, Why.MOVE, Why.FAULT, Why.RECOVER)
"""Reasons after which the work waits again."""


class Submitted(NamedTuple):
    """Work entered the queue."""

    at_s: float
    job: int


class Withdrawn(NamedTuple):
    """Its owner withdrew waiting work."""

    at_s: float
    job: int


class Resumed(NamedTuple):
    """Its owner resumes parked work: it waits again."""

    at_s: float
    job: int


class Declared(NamedTuple):
    """The owner of work declares something else about it; the columns of the job have it already."""

    at_s: float
    job: int
    excluded: bool  # it opted out


class Notified(NamedTuple):
    """The owner of work was notified."""

    at_s: float
    job: int
    grace_s: float  # before the next step
    effect: str


class Started(NamedTuple):
    """Work took its GPUs: from the queue, or at the instant of its stop for a resize."""

    at_s: float
    job: int
    incarnation: int
    gpus: tuple[int, ...]  # one entry per GPU; with `instances`, the GPU of each
    instances: tuple[int, ...]
    milli: int
    backfill: bool
    effect: str  # id of the instruction behind it; "" for a policy without instructions


class Paced(NamedTuple):
    """The pace of work on GPUs shared by software, from now on."""

    at_s: float
    job: int
    rate: float  # progress over that of the same work alone
    active_gpus: float  # SM-active GPUs due to it, while it works
    held_gpus: float  # its part of its GPUs: each divided equally among those on it


class Evicting(NamedTuple):
    """Work was evicted; it may still write a checkpoint."""

    at_s: float
    job: int
    incarnation: int
    why: Why
    contract: bool
    effect: str
    ahead: bool = False  # moved for work that is only expected
    drain: bool = False  # moved so that its GPU or node can be cut anew
    by_signal: bool = False  # a client of an MPS server, ended without a clean exit
    away: bool = False  # moved because a member holds it up: no other work gains its GPUs
    apart: bool = False  # moved because it slows a neighbour, or one slows it


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
    lost_s: float  # progress that has to be repeated; may include earlier incarnations
    milli: int
    full_milli: int  # width at which a second of progress is counted
    no_bandwidth: bool = False  # it lost progress that it could have saved with the store to itself


class NodeChanged(NamedTuple):
    """A node became fit or unfit to receive work."""

    at_s: float
    node: int
    ready: bool
    cordoned: bool
    reclaim_at_s: float = inf  # when the cloud reclaims it; infinity while no reclaim is announced


class GpuChanged(NamedTuple):
    """A GPU failed, was repaired, or reported an error noticed by its work alone."""

    at_s: float
    gpu: int
    healthy: bool
    xid: int = 0  # NVIDIA's number of the error; 0: none


class Recut(NamedTuple):
    """The new geometry of a GPU in MIG mode: (row, profile, first memory slice) of each instance."""

    at_s: float
    gpu: int
    instances: tuple[tuple[int, str, int], ...]


class Recutting(NamedTuple):
    """A change of geometry begins or ends: (profile, first memory slice) of each instance."""

    at_s: float
    gpu: int
    begins: bool
    before: tuple[tuple[str, int], ...]
    after: tuple[tuple[str, int], ...]  # asked for, or what exists at the end
    effect: str
    scope: str = "instance"  # instance | gpu | node: where nothing may run meanwhile
    turns: bool = False  # MIG mode is to turn on or off; at the end: it did


class Turned(NamedTuple):
    """A node begins to change how software shares its GPUs, or has changed it."""

    at_s: float
    node: int
    begins: bool
    sharing: int  # objects.Sharing, asked for or present
    replicas: int  # shares of each GPU; 1: whole
    effect: str = ""


class Paused(NamedTuple):
    """Work waits at a step boundary because it was asked to (`on`; also where it is asked again), or goes on."""

    at_s: float
    job: int
    on: bool
    effect: str  # "": the pause ended by itself


class Cordoned(NamedTuple):
    """The controller closed a node to new work, or opened it again."""

    at_s: float
    node: int
    on: bool
    effect: str


class Decided(NamedTuple):
    """An accepted decision allows the effect with this id; if it does not follow at once, it failed or was
    refused.
    """

    at_s: float
    effect: str
    kind: str  # admit | evict | resize | scale | recut
    job: int  # of `scale`: the service; of `recut`: the GPU


class Floored(NamedTuple):
    """A service has at least this many replicas until then; 0: only the need of its load."""

    at_s: float
    service: int
    replicas: int
    until_s: float
    effect: str


class Ceiled(NamedTuple):
    """A service has at most this many replicas until then; -1: as many as its load needs and its owner keeps."""

    at_s: float
    service: int
    replicas: int
    until_s: float
    least: int  # replicas that its owner keeps, at the least
    wakes: bool  # a signal that is seen without a replica wakes it
    busy: bool  # requests run or wait
    effect: str


class Scaled(NamedTuple):
    """A sync of an autoscaler: its target, the need of the load alone, and the floor it knew."""

    at_s: float
    service: int
    wanted: int
    needed: int
    floor: int


Fact = (
    Submitted
    | Withdrawn
    | Resumed
    | Declared
    | Notified
    | Started
    | Paced
    | Evicting
    | Stopped
    | NodeChanged
    | GpuChanged
    | Recut
    | Recutting
    | Turned
    | Paused
    | Cordoned
    | Decided
    | Floored
    | Ceiled
    | Scaled
)

HOOKS = {
    Submitted: "on_submitted",
    Withdrawn: "on_withdrawn",
    Resumed: "on_resumed",
    Declared: "on_declared",
    Notified: "on_notified",
    Started: "on_started",
    Paced: "on_paced",
    Evicting: "on_evicting",
    Stopped: "on_stopped",
    NodeChanged: "on_node",
    GpuChanged: "on_gpu",
    Recut: "on_recut",
    Recutting: "on_recutting",
    Turned: "on_turned",
    Paused: "on_paused",
    Cordoned: "on_cordoned",
    Decided: "on_decided",
    Floored: "on_floored",
    Ceiled: "on_ceiled",
    Scaled: "on_scaled",
}
"""The observer method for each kind of fact; an observer implements those that it needs."""
