"""Objects of the cluster by their names in records, and the numbers behind a record."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class SubjectKind(StrEnum):
    """Kinds of objects of a proposal or an instruction."""

    WORKLOAD = "workload"
    SERVICE = "service"
    GPU = "gpu"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Subject:
    """The object of a proposal or an instruction. Its uid and revision are the precondition of an effect."""

    kind: SubjectKind
    name: str
    uid: str  # UUID of a GPU, name of a node; "": its source states none, and every effect on it is refused
    revision: int  # incarnation of a workload, generation of a service, 0 for a GPU or node


Geometry = tuple[tuple[str, int], ...]
"""The MIG instances of a GPU by first slice: profile and first slice of each."""


@dataclass(frozen=True, slots=True)
class PlannedCut:
    """The geometry at the end of a drain of a GPU. None: not in MIG mode."""

    gpu: str  # UUID
    before: Geometry | None
    after: Geometry | None


@dataclass(frozen=True, slots=True)
class Slot:
    """One GPU (or a share of it, or one of its MIG instances) in a proposal or instruction."""

    node: str
    gpu: str  # UUID
    instance: str = ""
    milli: int = 1000


class CeilingWay(IntEnum):
    """The way of a ceiling to the replicas of a service, or the obstacle."""

    AUTOSCALER = 0  # its autoscaler keeps to the ceiling
    REPLICAS = 1  # it has no autoscaler, and its owner allows a change of its replicas
    TO_ZERO = 2  # its autoscaler stands aside at zero, and would undo any other number
    NO_CONSENT = 3  # its owner does not allow to scale it
    KEDA = 4  # the manager of its autoscaler would undo a change
    UNDECLARED = 5  # its owner states no least number of replicas


class ServingRole(IntEnum):
    """The part of each request done by the replicas of a service."""

    WHOLE = 0  # all of it, or not known
    PREFILL = 1  # the input, up to the first token
    DECODE = 2  # the tokens after the first


class Sharing(IntEnum):
    """How software shares each GPU of a node."""

    WHOLE = 0  # one holder each
    TIME_SLICING = 1
    MPS = 2


class Trust(IntEnum):
    """The neighbours that work allows on a GPU without isolation in hardware (MPS, time slicing)."""

    UNTRUSTED = 0  # none
    TRUSTED = 1  # work of its own tenant
    ACROSS = 2  # also work of other tenants that states the same


class Pausing(IntEnum):
    """Whether work waits at a step boundary when it is asked to."""

    NONE = 0  # it has no helper that takes such requests
    ABLE = 1
    PAUSED = 2  # all its members report that they wait


class Share(IntEnum):
    """How whole GPUs requested by work may be shared."""

    NEVER = 0
    DEV = 1  # interactive or development work: up to four on a GPU
    PAIR = 2  # batch work: up to two on a GPU


@dataclass(frozen=True, slots=True)
class SharingConfig:
    """A configuration of sharing to which an engine can turn nodes."""

    key: str  # its name there: a key of the device plugin's ConfigMap
    sharing: Sharing
    replicas: int  # shares of each GPU; 1: whole
    single: bool = False  # pods that request more than one GPU fail there
    named: bool = False  # it gives out the shares of the GPUs that a start names; else it chooses itself


@dataclass(frozen=True, slots=True)
class Victim:
    """One workload to be evicted, shrunk or moved by a proposal."""

    workload: str
    incarnation: int
    gpus: int  # taken from it
    lost_gpu_s: float  # expected loss of progress (core/planning/losses.py)
    contract: bool  # preempted by contract: not weighed, not budgeted
    how: str = "evict"  # evict | shrink | move
    keeps: tuple[Slot, ...] = ()  # its slots after a shrink or a move
    worst_gpu_s: float = float("nan")  # loss of progress without a save
    overhead_gpu_s: float = 0.0  # GPU-seconds without progress while it saves and restarts
    uid: str = ""
    queue: str = ""
    slo_class: str = ""


class SchedulerQuota(IntEnum):
    """The quota reserved by its scheduler for a waiting workload, if the autopilot decides the time of its start."""

    NOT_ASKED = 0  # none is needed for its start, or the need is unknown
    LACKING = 1  # none is reserved, and without it the work cannot start
    TAKEABLE = 2  # it is reserved, and a start of other work can take it
    STAYS = 3  # it is reserved, and cannot be taken


@dataclass(frozen=True, slots=True)
class Scrub:
    """What of the place of a start untrusted work of another tenant had last (core/effects/scrubbing.py)."""

    slots: int  # GPUs and MIG instances, at most
    resettable: bool  # its engine can reset all of them: it destroys MIG instances and makes them anew


class Taken(StrEnum):
    """The loss of waiting work to a start."""

    QUOTA = "quota"  # reserved for it by its scheduler
    ROOM = "room"  # or quota, held for it above the guarantee of its queue
    TURN = "turn"  # it comes first, and both wait for an approval


@dataclass(frozen=True, slots=True)
class SideEffect:
    """One waiting workload, and its loss to a start. Of expected work, `workload` is a description."""

    workload: str
    uid: str  # "" for expected work
    queue: str
    gpus: float
    wait_gpu_s: float  # its GPUs for as long as it is without them, at most; a turn has taken no GPU time
    what: Taken = Taken.QUOTA


@dataclass(frozen=True, slots=True)
class Seen:
    """A recommendation as a person saw it: its object, and its takings (core/model/approvals.py)."""

    action: str
    queue: str  # of the object; "" for none
    uid: str
    revision: int  # of a workload; 0 for other objects, whose plan says what it starts from
    plan: str  # digest of the very plan
    exact: bool  # nothing but the very plan is the same wish
    starts: bool  # a gang is to start
    size: float  # GPUs of the work afterwards, replicas or nodes; inf: these do not count
    taken_gpus: float  # from running work
    cost_gpu_s: float
    queues: tuple[str, ...]  # of its victims
    classes: tuple[str, ...]
    side_gpus: float = 0.0  # GPUs of quota or room taken from waiting work
    sides: tuple[str, ...] = ()  # losing queues, each with its loss: `queue/quota`
    passes: tuple[str, ...] = ()  # queues of passed work, once approved


@dataclass(frozen=True, slots=True)
class Evidence:
    """One value behind a proposal or a verdict."""

    name: str
    value: float | int | str
    unit: str = ""


MIG_SCOPES = ("instance", "gpu", "node")
"""What changes together when a MIG geometry changes, smallest first.

`instance`: idle instances, the others of the GPU continue. `gpu`: a GPU on which nothing runs; beside `instance`, it is
how idle GPUs turn MIG mode on and off. `node`: the engine stops all GPU clients of the node, as the MIG manager of the
GPU operator does, so its GPUs change, and turn MIG mode on and off, when nothing runs on any of them.
"""
