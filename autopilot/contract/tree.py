"""The declarations of a job: one tree of frozen dataclasses.

Each field carries its limits (annotated_types), its meaning (Doc) and how it is declared (`Stated`): the annotation,
the column of a job file, and the value and reason if it is absent. Parsing, the rules, the limits of the columns and
the reference page are derived from this tree. The defaults below are the contract of a job that declares nothing.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from annotated_types import Interval
from typing_extensions import Doc

from autopilot.contract.vocabulary import Domain, Level, Trust
from autopilot.core.model.objects import ServingRole, Share
from autopilot.core.model.snapshot import GPU_MILLI, SloClass

PREFIX = "gpu-autopilot.io/"
"""Prefix of our annotations."""

CENTURY_S = 3.2e9
"""Longest duration of a job; a larger number is in a wrong unit (milliseconds, nanoseconds)."""

MOST_SHARED_GPUS = 4
"""Widest job that may share its whole GPUs."""

MOST_GPUS = 1_000_000
"""Widest job; a wider one than any existing machine is a mistake."""

Seconds = Annotated[float, Interval(ge=0.0, le=CENTURY_S)]
Span = Annotated[float, Interval(ge=1.0, le=CENTURY_S)]


@dataclass(frozen=True, slots=True)
class Stated:
    """How a field is declared: `annotation` after the prefix, `column` of a job file ("" for none).

    `absent` describes the value of an absent field, and the reason. `between` separates the items of a list.
    """

    annotation: str
    column: str = ""
    absent: str = ""
    between: str = ""


@dataclass(frozen=True, slots=True)
class Service:
    """The service class of the work, its objectives and its priority."""

    slo_class: Annotated[
        SloClass,
        Doc("class of service"),
        Stated(
            "slo-class",
            "slo_class",
            "latency-critical with an objective, because no other class has one, and where its pods serve "
            "([below](#services); interactive where it is preemptible); else batch: protection must be requested",
        ),
    ] = SloClass.BATCH
    objective_s: Annotated[
        float | None,
        Interval(ge=0.001, le=3600.0),
        Doc("latency that 99 of 100 requests must meet; for latency-critical work only"),
        Stated("objective-s", "", "none: there is no objective to violate"),
    ] = None
    ttft_objective_s: Annotated[
        float | None,
        Interval(ge=0.001, le=3600.0),
        Doc("time to the first token that 99 of 100 requests must meet; for latency-critical work only"),
        Stated("ttft-objective-s", "", "none, as for `objective-s`"),
    ] = None
    itl_objective_s: Annotated[
        float | None,
        Interval(ge=0.001, le=3600.0),
        Doc("time from one token to the next that 99 of 100 tokens must meet; for latency-critical work only"),
        Stated("itl-objective-s", "", "none, as for `objective-s`"),
    ] = None
    serving_role: Annotated[
        ServingRole | None,
        Doc(
            "part of each request that its pods do: a pool of prefill does not answer for `itl-objective-s`, a pool of "
            "decode not for `ttft-objective-s`"
        ),
        Stated(
            "serving-role",
            "",
            "what the labels of llm-d, KServe, Dynamo and others on its pods say ([below](#services)), else whole: it "
            "answers for both",
        ),
    ] = None
    priority: Annotated[
        int,
        Interval(ge=0, le=2**31 - 1),
        Doc("priority; higher is served first"),
        Stated(
            "priority",
            "priority",
            "the value of the pods' PriorityClass, else 0: work without a priority comes after work with one",
        ),
    ] = 0


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang: members that start together or not at all."""

    members: Annotated[
        int,
        Interval(ge=1, le=MOST_GPUS),
        Doc("number of members of the gang, each on one node"),
        Stated("members", "nodes", "the number of pods that its controller declares, else `min-members`, else 1"),
    ] = 1
    min_members: Annotated[
        int,
        Interval(ge=1, le=MOST_GPUS),
        Doc("least members with which it may start, or to which it may shrink; below `members` the gang is elastic"),
        Stated("min-members", "min_gpus", "`members`: a program must be written to run with fewer"),
    ] = 1


@dataclass(frozen=True, slots=True)
class Shape:
    """The request of each member: whole GPUs, a share of one, or one MIG instance."""

    gpus_per_member: Annotated[
        int,
        Interval(ge=1, le=MOST_GPUS),
        Doc("whole GPUs of each member"),
        Stated("gpus-per-member", "gpus", "the request of one pod, else 1"),
    ] = 1
    gpu_milli: Annotated[
        int,
        Interval(ge=1, le=GPU_MILLI),
        Doc("share of one GPU, in thousandths"),
        Stated("gpu-milli", "gpu_milli", "1000, whole GPUs: sharing must be requested"),
    ] = GPU_MILLI
    mig_profile: Annotated[
        tuple[str, ...],
        Doc("MIG profile of the instance of each member; alternatives are joined by |, best first"),
        Stated("mig-profile", "mig_profile", "the MIG resource that one pod requests, else none", between="|"),
    ] = ()
    gpu_type: Annotated[
        tuple[str, ...],
        Doc("GPU models that it may use, joined by |"),
        Stated("gpu-type", "gpu_type", "any model: a constraint prolongs the wait", between="|"),
    ] = ()
    gpu_memory_gib: Annotated[
        float | None,
        Interval(ge=0.0, le=4096.0),
        Doc("least memory of each GPU"),
        Stated("gpu-memory-gib", "gpu_memory_gib", "no constraint, as for `gpu-type`"),
    ] = None
    tensor_parallel: Annotated[
        int,
        Interval(ge=1, le=MOST_GPUS),
        Doc("GPUs of one tensor-parallel group; a group never leaves its NVLink island"),
        Stated("tensor-parallel", "", "1: the network is sufficient for communication between GPUs"),
    ] = 1


@dataclass(frozen=True, slots=True)
class Place:
    """Constraints on the nodes of the members."""

    topology: Annotated[
        Domain | None,
        Doc("domain that all members of the gang must share"),
        Stated(
            "topology",
            "topology",
            "island if a tensor-parallel group is wider than one member, else any nodes, as for `gpu-type`",
        ),
    ] = None
    preferred_topology: Annotated[
        Level | None,
        Doc("narrower domain that they should share if it has room"),
        Stated("preferred-topology", "", "none: only the placement weights of the policy count"),
    ] = None
    node_selector: Annotated[
        tuple[str, ...],
        Doc("labels that its nodes must have, as key=value, joined by a comma"),
        Stated(
            "node-selector",
            "",
            "none, as for `gpu-type`; the selector of the pods always applies",
            between=",",
        ),
    ] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The cost of a stop. Without an interval, the price of a gang is its GPUs x the time since its start."""

    interval_s: Annotated[
        Span | None,
        Doc("time between two checkpoints"),
        Stated(
            "checkpoint-interval-s",
            "checkpoint_interval_s",
            "unknown: a stop loses all progress since the start, so the youngest gang is the cheapest to stop",
        ),
    ] = None
    size_gib: Annotated[
        float | None,
        Interval(ge=0.0, le=1e7),
        Doc("size of one checkpoint of the whole gang"),
        Stated("checkpoint-gib", "checkpoint_gib", "unknown: no write time is derived from it"),
    ] = None
    write_s: Annotated[
        Seconds | None,
        Doc("time to write one checkpoint while the store serves no other writer"),
        Stated(
            "checkpoint-write-s",
            "",
            "unknown: no time is planned for it, and a checkpoint on request is not counted on",
        ),
    ] = None
    on_request: Annotated[
        bool,
        Doc("the workload writes a checkpoint on eviction, within `checkpoint-write-s`"),
        Stated(
            "checkpoint-on-request",
            "checkpoint_on_request",
            "false: it is stopped or moved by contract only, or where `preemption.without_checkpoint` is on; the price "
            "of a stop is the time since its last periodic checkpoint, or since its start",
        ),
    ] = False
    restart_s: Annotated[
        Seconds | None,
        Doc("time from placement to the first useful step after a stop"),
        Stated("restart-s", "restart_s", "unknown: not counted in the price of a stop"),
    ] = None


@dataclass(frozen=True, slots=True)
class Preemption:
    """Whether it may be preempted, when it may preempt, and whether it may share a GPU."""

    preemptible: Annotated[
        bool,
        Doc("it may be preempted for other work (work that may not be is [protected](#protection))"),
        Stated(
            "preemptible",
            "preemptible",
            "true for batch, whose work can be repeated; false for the other classes, "
            "whose requests and sessions cannot be repeated",
        ),
    ] = True
    exclude: Annotated[
        bool,
        Doc(
            "no action of the autopilot starts or changes it; above the guarantee of its queue that holds until the "
            "owner of these GPUs returns ([below](#protection))"
        ),
        Stated("exclude", "", "false: work in a queue is there to be scheduled"),
    ] = False
    preemption_delay_s: Annotated[
        Seconds,
        Doc("it must have waited this long before other work is stopped or moved for it"),
        Stated("preemption-delay-s", "preemption_delay_s", "0: it may preempt immediately, as far as its queue may"),
    ] = 0.0
    trust: Annotated[
        Trust,
        Doc(
            "who may be beside it on a GPU shared by MPS or time slicing: nobody, so that it gets whole GPUs or MIG "
            "instances; trusted work of its own tenant; or also work of other tenants that declares across-tenants"
        ),
        Stated("trust", "trust", "untrusted: software sharing does not isolate neighbours, and trust must be declared"),
    ] = Trust.UNTRUSTED
    share: Annotated[
        Share,
        Doc(
            "its whole GPUs may be shared: dev, interactive or development work, with up to three others a GPU; pair, "
            "batch work, with one other"
        ),
        Stated(
            "share",
            "share",
            "dev for interactive work of up to 4 whole GPUs without an island, because it pauses; else never. Without "
            "`trust` it shares nothing",
        ),
    ] = Share.NEVER


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of its run time."""

    limit_s: Annotated[
        Span | None,
        Doc("limit of its wall time"),
        Stated(
            "limit-s",
            "limit_s",
            "the pods' activeDeadlineSeconds, else none: it is not stopped for its run time, and only a "
            "forecast predicts its end",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Contract:
    """The complete contract. `assumed` names the annotations that the job does not declare."""

    service: Service = field(default_factory=Service)
    gang: Gang = field(default_factory=Gang)
    shape: Shape = field(default_factory=Shape)
    place: Place = field(default_factory=Place)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    preemption: Preemption = field(default_factory=Preemption)
    limits: Limits = field(default_factory=Limits)
    assumed: tuple[str, ...] = field(default=(), compare=False)

    @property
    def gpus(self) -> int:
        """Full width: whole GPUs, or shares or instances (one per member)."""
        return self.gang.members * self.shape.gpus_per_member

    @property
    def min_gpus(self) -> int:
        """Least width with which it may start, counted as `gpus`."""
        return self.gang.min_members * self.shape.gpus_per_member


SECTIONS: Mapping[str, type[Any]] = types.MappingProxyType(
    {
        "service": Service,
        "gang": Gang,
        "shape": Shape,
        "place": Place,
        "checkpoint": Checkpoint,
        "preemption": Preemption,
        "limits": Limits,
    }
)
"""The sections of a contract, in order."""


@dataclass(frozen=True, slots=True)
class ContractField:
    """One field of the tree as data. `low` and `high` are inclusive limits; None: no limit."""

    section: str
    name: str
    kind: Any
    meaning: str
    stated: Stated
    default: Any
    low: float | None
    high: float | None

    @property
    def key(self) -> str:
        """Its annotation without the prefix."""
        return self.stated.annotation

    @property
    def words(self) -> tuple[str, ...]:
        """The values of a field of named values; empty for other fields."""
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
        stated = next(note for note in notes if isinstance(note, Stated))
        low, high = (None if bound is None else float(str(bound)) for bound in (limits.ge, limits.le))
        found.append(
            ContractField(section, item.name, _bare(hints[item.name]), meaning, stated, item.default, low, high)
        )
    return found


def _notes(hint: Any) -> list[Any]:
    """The annotations of a type hint and of its parts."""
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
    """True if the type is an enumeration."""
    return isinstance(kind, type) and issubclass(kind, Enum)


def word_of(value: Any) -> str:
    """A named value as written in a file: `latency-critical` for `SloClass.LATENCY_CRITICAL`."""
    return value.name.lower().replace("_", "-") if isinstance(value, IntEnum) else str(value.value)
