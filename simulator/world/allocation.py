"""Allocations, and the reasons of the hardware to refuse one."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

FREE, SHARED, CUT, BROKEN, SPLIT = -1, -2, -3, -4, -5
"""`holder` of a GPU that no single job holds whole."""


class Refusal(StrEnum):
    """The reason of the cluster to refuse a request. An expected result, hence a value."""

    NOT_PENDING = "the work is not pending"
    NOT_DONE = "the work is not done yet"
    NOT_HOLDING = "the work holds no GPU"
    NOT_PREEMPTIBLE = "the work is not preemptible"
    LEAVING = "the work is already leaving"
    OTHER_OBJECT = "the name belongs to another object"
    OTHER_INCARNATION = "the work was restarted since"
    QUEUE_LIMIT = "its queue is at its limit"
    GPU_BUSY = "a GPU or instance is held by other work"
    GPU_BROKEN = "a GPU is faulty"
    GPU_CUT = "a GPU is in MIG mode"
    GPU_TWICE = "a GPU or instance is named twice"
    UNKNOWN_GPU = "no such GPU or instance"
    NODE_UNFIT = "a node is down or cordoned"
    WRONG_COUNT = "not the requested number of GPUs or instances"
    SPLIT_MEMBER = "a member of the gang would span two nodes"
    WRONG_MODEL = "a GPU model that the work may not use"
    WRONG_PROFILE = "an instance of another MIG profile"
    GPU_MEMORY = "a GPU with less memory than the work needs"
    CPU = "too few CPUs left on a node"
    MEMORY = "too little memory left on a node"
    TOPOLOGY = "the nodes do not share the required domain"
    NOT_IDLE = "work runs on the GPU"
    NOT_ELASTIC = "only a gang of whole GPUs can change its width"
    NOT_NESTED = "neither more nor fewer GPUs than it holds"
    UNSAVED = "the work cannot save its progress within its grace period"
    STALE = "a member of the gang is dead"
    ILLEGAL_GEOMETRY = "no legal MIG geometry"
    OTHER_GEOMETRY = "the geometry of the GPU changed since, or is changing"
    SPLIT = "the GPUs of the node are shared by software"
    APART = "shares on more than one node"
    OTHER_SHARING = "the node is changing how its GPUs are shared"
    NO_HELPER = "the work takes no pauses"
    NOT_PAUSED = "the work is not paused"
    NO_OFFER = "the node does not offer this way of sharing"


class Held(NamedTuple):
    """The allocation of a job: GPUs (one entry per instance if it holds instances), and the mask by node."""

    gpus: tuple[int, ...]
    instances: tuple[int, ...]
    masks: dict[int, int]
    milli: int


class Instance(NamedTuple):
    """One MIG instance; rows are never reused, a destroyed one leaves its row."""

    gpu: int
    profile: str
    start: int
    gi_id: int
    milli: int


def bits(mask: int) -> Iterator[int]:
    """Positions of the set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
