"""Words for who holds what: the answers of the hardware to those who take from it and give back."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

FREE, SHARED, CUT, BROKEN = -1, -2, -3, -4
"""What stands in `holder` of a GPU that no single job holds whole."""


class Refusal(StrEnum):
    """Why the cluster does not do what it is asked. Expected bad news, hence a value."""

    NOT_PENDING = "the work is not pending"
    NOT_HOLDING = "the work holds no GPU"
    LEAVING = "the work is leaving already"
    OTHER_OBJECT = "the name belongs to another object"
    OTHER_INCARNATION = "the work was restarted since"
    GPU_BUSY = "a GPU or instance is held by other work"
    GPU_BROKEN = "a GPU is broken"
    GPU_CUT = "a GPU is in MIG mode"
    GPU_TWICE = "a GPU or instance is named twice"
    UNKNOWN_GPU = "no such GPU or instance"
    NODE_UNFIT = "a node is down or cordoned"
    WRONG_COUNT = "not the number of GPUs or instances that it asks for"
    SPLIT_MEMBER = "a member of the gang would lie on two nodes"
    WRONG_MODEL = "a GPU model that it may not use"
    WRONG_PROFILE = "an instance of another MIG profile"
    GPU_MEMORY = "a GPU with less memory than it needs"
    CPU = "too few CPUs left on a node"
    MEMORY = "too little memory left on a node"
    TOPOLOGY = "the nodes do not share the domain that it needs"
    NOT_IDLE = "work runs on the GPU"
    NOT_ELASTIC = "only a gang of whole GPUs can change its width"
    NOT_NESTED = "neither more nor less than what it holds"
    UNSAVED = "the work cannot save its progress within its grace"
    STALE = "a member of the gang is dead"
    ILLEGAL_GEOMETRY = "no legal MIG geometry"


class Held(NamedTuple):
    """What a job holds: GPUs (one entry an instance when it holds instances), and the mask by node."""

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
