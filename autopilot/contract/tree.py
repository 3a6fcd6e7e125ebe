"""What a job says of itself: one tree of frozen dataclasses.

Each field carries its limits (annotated_types), its meaning (Doc) and how it is said (`Said`): the annotation,
the column of a job file, and what is assumed, with its reason, where the job says nothing. Reading, the
contradictions, the limits of the columns and the reference page speak from here, so that a field is written
once. The defaults below are the contract of a job that says nothing at all.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from annotated_types import Interval
from typing_extensions import Doc

from autopilot.core.model.snapshot import GPU_MILLI, SloClass, Topology

PREFIX = "gpu-autopilot.io/"
"""Annotations that begin so are ours."""

CENTURY_S = 3.2e9
"""No duration of a job is longer; a larger one is a wrong unit (milliseconds, nanoseconds)."""

MOST_GPUS = 1_000_000
"""A wider job than any machine that exists is a mistake."""

Seconds = Annotated[float, Interval(ge=0.0, le=CENTURY_S)]
Span = Annotated[float, Interval(ge=1.0, le=CENTURY_S)]


class Trust(StrEnum):
    """Whether work may share a GPU without a wall in hardware (MPS, time-slicing)."""

    UNTRUSTED = "untrusted"
    TRUSTED = "trusted"


class Domain(StrEnum):
    """Closest domain that all members share (a rack is what hangs on one leaf switch), or `spread` over nodes."""

    NODE = "node"
    ISLAND = "island"
    LEAF = "leaf"
    RACK = "rack"
    BLOCK = "block"
    ZONE = "zone"
    SPREAD = "spread"


class Level(StrEnum):
    """A domain that members can be near each other in."""

    ISLAND = "island"
    LEAF = "leaf"
    RACK = "rack"
    BLOCK = "block"
    ZONE = "zone"


LEVEL_OF: Mapping[str, Topology] = types.MappingProxyType(
    {
        Domain.NODE: Topology.NONE,  # one member holds the whole gang
        Domain.ISLAND: Topology.ISLAND,
        Domain.LEAF: Topology.LEAF,
        Domain.RACK: Topology.LEAF,
        Domain.BLOCK: Topology.BLOCK,
        Domain.ZONE: Topology.ZONE,
        Domain.SPREAD: Topology.SPREAD,
    }
)
"""The level of a snapshot that a domain stands for."""


@dataclass(frozen=True, slots=True)
class Said:
    """How a field is said: `annotation` behind the prefix, `column` of a job file ("" for none).

    `absent` says what is assumed of a silent job, and why. `between` separates the items of a list.
    """

    annotation: str
    column: str = ""
    absent: str = ""
    between: str = ""


@dataclass(frozen=True, slots=True)
class Service:
    """How the work is served, and what it is promised."""

    slo_class: Annotated[
        SloClass,
        Doc("class of service"),
        Said(
            "slo-class",
            "slo_class",
            "latency-critical where an objective is stated, for no other class has one; "
            "else batch: shelter is for those who ask for it",
        ),
    ] = SloClass.BATCH
    objective_s: Annotated[
        float | None,
        Interval(ge=0.001, le=3600.0),
        Doc("latency that 99 of 100 requests must keep; of latency-critical work only"),
        Said("objective-s", "", "none: nothing was promised, so nothing can be violated"),
    ] = None
    priority: Annotated[
        int,
        Interval(ge=0, le=2**31 - 1),
        Doc("higher is served first"),
        Said(
            "priority",
            "priority",
            "the value of the pods' PriorityClass, else 0: work that does not say that "
            "it matters more stands behind work that does",
        ),
    ] = 0


@dataclass(frozen=True, slots=True)
class Gang:
    """Members that start together or not at all."""

    members: Annotated[
        int,
        Interval(ge=1, le=MOST_GPUS),
        Doc("members of the gang, each on one node"),
        Said("members", "nodes", "the pods that its controller declares, else `min-members`, else 1"),
    ] = 1
    min_members: Annotated[
        int,
        Interval(ge=1, le=MOST_GPUS),
        Doc("it may start, and be shrunk to, so many members; below `members` the gang is elastic"),
        Said("min-members", "min_gpus", "`members`: to run with less is something that a program must be able to do"),
    ] = 1


@dataclass(frozen=True, slots=True)
class Shape:
    """What each member asks of the hardware: whole GPUs, a share of one, or one MIG instance."""

    gpus_per_member: Annotated[
        int,
        Interval(ge=1, le=MOST_GPUS),
        Doc("whole GPUs of each member"),
        Said("gpus-per-member", "gpus", "what one pod requests, else 1"),
    ] = 1
    gpu_milli: Annotated[
        int,
        Interval(ge=1, le=GPU_MILLI),
        Doc("thousandths of one GPU, for a share"),
        Said("gpu-milli", "gpu_milli", "1000, whole GPUs: sharing is asked for, never assumed"),
    ] = GPU_MILLI
    mig_profile: Annotated[
        tuple[str, ...],
        Doc("MIG profile of each member's instance; of several, joined by |, any will do, best first"),
        Said("mig-profile", "mig_profile", "the MIG resource that one pod requests, else none", between="|"),
    ] = ()
    gpu_type: Annotated[
        tuple[str, ...],
        Doc("GPU models that it may use, joined by |"),
        Said("gpu-type", "gpu_type", "any model: each constraint makes it wait longer", between="|"),
    ] = ()
    gpu_memory_gib: Annotated[
        float | None,
        Interval(ge=0.0, le=4096.0),
        Doc("memory that each GPU must have"),
        Said("gpu-memory-gib", "gpu_memory_gib", "no constraint, as for `gpu-type`"),
    ] = None
    tensor_parallel: Annotated[
        int,
        Interval(ge=1, le=MOST_GPUS),
        Doc("GPUs of one tensor-parallel group; a group never leaves its NVLink island"),
        Said("tensor-parallel", "", "1: any network carries what its GPUs exchange"),
    ] = 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where its members may be."""

    topology: Annotated[
        Domain | None,
        Doc("domain that all members of the gang must share"),
        Said(
            "topology",
            "topology",
            "island where a tensor-parallel group is wider than one member, else any nodes, as for `gpu-type`",
        ),
    ] = None
    preferred_topology: Annotated[
        Level | None,
        Doc("narrower domain that they should share where it has room"),
        Said("preferred-topology", "", "none: the weights of the policy alone decide"),
    ] = None
    node_selector: Annotated[
        tuple[str, ...],
        Doc("labels that its nodes must carry, as key=value, joined by a comma"),
        Said(
            "node-selector",
            "",
            "none, as for `gpu-type`; the pods' own selector holds in any case",
            between=",",
        ),
    ] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a stop costs. Without an interval a gang is priced at its GPUs x the time since its start."""

    interval_s: Annotated[
        Span | None,
        Doc("time between two checkpoints"),
        Said(
            "checkpoint-interval-s",
            "checkpoint_interval_s",
            "unknown: all since its start would be lost, so the youngest gang is the cheapest to stop",
        ),
    ] = None
    size_gib: Annotated[
        float | None,
        Interval(ge=0.0, le=1e7),
        Doc("size of one checkpoint of the whole gang"),
        Said("checkpoint-gib", "checkpoint_gib", "unknown: how long its write takes is not derived from it"),
    ] = None
    write_s: Annotated[
        Seconds | None,
        Doc("time of one checkpoint write, with the store for itself"),
        Said(
            "checkpoint-write-s",
            "",
            "unknown: no time is set aside for it, and nobody counts on a checkpoint that is written on request",
        ),
    ] = None
    on_request: Annotated[
        bool,
        Doc("it writes a checkpoint when it is told to leave, and is done within `checkpoint-write-s`"),
        Said(
            "checkpoint-on-request",
            "checkpoint_on_request",
            "false: a stop is priced at the time since its last periodic checkpoint, or since its start",
        ),
    ] = False
    restart_s: Annotated[
        Seconds | None,
        Doc("time from placement to the first useful step after a stop"),
        Said("restart-s", "restart_s", "unknown: not counted in the price of a stop"),
    ] = None


@dataclass(frozen=True, slots=True)
class GivingWay:
    """Who may stop it, whom it may stop, and who may stand beside it."""

    preemptible: Annotated[
        bool,
        Doc("may be stopped for others"),
        Said(
            "preemptible",
            "preemptible",
            "true for batch, whose work can be repeated; false for the other classes, "
            "whose requests and sessions cannot",
        ),
    ] = True
    exclude: Annotated[
        bool,
        Doc("no action of the autopilot touches it, nor starts it"),
        Said("exclude", "", "false: what waits in a queue is there to be decided about"),
    ] = False
    preemption_delay_s: Annotated[
        Seconds,
        Doc("it must have waited this long before others are stopped or moved for it"),
        Said("preemption-delay-s", "preemption_delay_s", "0: it may at once whatever its queue may"),
    ] = 0.0
    trust: Annotated[
        Trust,
        Doc("trusted work may share a GPU by MPS or time-slicing, untrusted gets whole GPUs or MIG instances"),
        Said(
            "trust", "", "untrusted: there is no wall between neighbours that share softly, and nobody vouched for it"
        ),
    ] = Trust.UNTRUSTED


@dataclass(frozen=True, slots=True)
class Limits:
    """Where it ends."""

    limit_s: Annotated[
        Span | None,
        Doc("wall-time limit that its owner declared"),
        Said(
            "limit-s",
            "limit_s",
            "the pods' activeDeadlineSeconds, else none: it is not stopped for its time, and only a "
            "forecast says when it ends",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Contract:
    """The whole of it. `assumed` names the annotations that the job left out."""

    service: Service = field(default_factory=Service)
    gang: Gang = field(default_factory=Gang)
    shape: Shape = field(default_factory=Shape)
    place: Place = field(default_factory=Place)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    giving_way: GivingWay = field(default_factory=GivingWay)
    limits: Limits = field(default_factory=Limits)
    assumed: tuple[str, ...] = field(default=(), compare=False)

    @property
    def gpus(self) -> int:
        """Width at full size: whole GPUs, or shares or instances (one a member)."""
        return self.gang.members * self.shape.gpus_per_member

    @property
    def min_gpus(self) -> int:
        """Width at which it may start, counted as `gpus`."""
        return self.gang.min_members * self.shape.gpus_per_member


SECTIONS: Mapping[str, type[Any]] = types.MappingProxyType(
    {
        "service": Service,
        "gang": Gang,
        "shape": Shape,
        "place": Place,
        "checkpoint": Checkpoint,
        "giving_way": GivingWay,
        "limits": Limits,
    }
)
"""The sections of a contract in their order."""


@dataclass(frozen=True, slots=True)
class ContractField:
    """One field of the tree as data. `low` and `high` are inclusive limits, None for values that have none."""

    section: str
    name: str
    kind: Any
    meaning: str
    said: Said
    default: Any
    low: float | None
    high: float | None

    @property
    def key(self) -> str:
        """Its annotation without the prefix."""
        return self.said.annotation

    @property
    def words(self) -> tuple[str, ...]:
        """What a field of named values takes; empty for the others."""
        return tuple(word_of(item) for item in self.kind) if is_enum(self.kind) else ()


@functools.cache
def contract_fields() -> tuple[ContractField, ...]:
    """Every field, in the order of the tree."""
    return tuple(found for section, kind in SECTIONS.items() for found in _fields_of(section, kind))


@functools.cache
def fields_by_key() -> Mapping[str, ContractField]:
    """Every field by its annotation without the prefix."""
    return types.MappingProxyType({found.key: found for found in contract_fields()})


def _fields_of(section: str, kind: type[Any]) -> list[ContractField]:
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for item in fields(kind):
        notes = _notes(hints[item.name])
        limits = next((note for note in notes if isinstance(note, Interval)), Interval())
        meaning = next(note.documentation for note in notes if isinstance(note, Doc))
        said = next(note for note in notes if isinstance(note, Said))
        low, high = (None if bound is None else float(str(bound)) for bound in (limits.ge, limits.le))
        found.append(ContractField(section, item.name, _bare(hints[item.name]), meaning, said, item.default, low, high))
    return found


def _notes(hint: Any) -> list[Any]:
    """What is annotated, on the hint itself and on what it is made of."""
    if get_origin(hint) is Annotated:
        return [*hint.__metadata__, *_notes(get_args(hint)[0])]
    if get_origin(hint) in (Union, types.UnionType):
        return [note for part in get_args(hint) for note in _notes(part)]
    return []


def _bare(hint: Any) -> Any:
    """The plain type, without annotations and without `| None`."""
    if get_origin(hint) is Annotated:
        return _bare(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return next(_bare(part) for part in get_args(hint) if part is not type(None))
    return hint


def is_enum(kind: Any) -> bool:
    """Does the type list its values by name?"""
    return isinstance(kind, type) and issubclass(kind, Enum)


def word_of(value: Any) -> str:
    """A named value as people write it: `latency-critical` for `SloClass.LATENCY_CRITICAL`."""
    return value.name.lower().replace("_", "-") if isinstance(value, IntEnum) else str(value.value)
