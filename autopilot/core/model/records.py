"""The records of each stage: batch -> observation -> proposal -> plan -> decision -> instruction -> outcome.

All records are frozen and without behaviour. The shell encodes them unchanged (journal, page, API), so each field is a
plain value, a tuple, an enum or a numpy column.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2s

import numpy as np

from autopilot.core.model.codes import About as About  # noqa: PLC0414 - exported with the other records
from autopilot.core.model.codes import Code as Code  # noqa: PLC0414
from autopilot.core.model.codes import NoteCode as NoteCode  # noqa: PLC0414
from autopilot.core.model.codes import RejectionScope as RejectionScope  # noqa: PLC0414
from autopilot.core.model.forecast import Forecasts
from autopilot.core.model.objects import Evidence as Evidence  # noqa: PLC0414
from autopilot.core.model.objects import Geometry as Geometry  # noqa: PLC0414
from autopilot.core.model.objects import Seen as Seen  # noqa: PLC0414
from autopilot.core.model.objects import Slot as Slot  # noqa: PLC0414
from autopilot.core.model.objects import Subject as Subject  # noqa: PLC0414
from autopilot.core.model.objects import SubjectKind as SubjectKind  # noqa: PLC0414
from autopilot.core.model.objects import Victim as Victim  # noqa: PLC0414
from autopilot.core.model.promises import Realised as Realised  # noqa: PLC0414
from autopilot.core.model.ranks import RankTable
from autopilot.core.model.service_signals import ServiceSignals as ServiceSignals  # noqa: PLC0414
from autopilot.core.model.snapshot import (
    F32,
    F64,
    I8,
    I32,
    AdvanceTable,
    ClusterSnapshot,
    GpuTable,
    InstanceTable,
    MemberTable,
    Names,
    NodeTable,
    PlacementTable,
    QueueTable,
    ServiceTable,
    Texts,
    WorkloadTable,
    empty,
)
from autopilot.core.model.stops import Save as Save  # noqa: PLC0414
from autopilot.core.model.times import Time
from autopilot.core.model.verb import Change as Change  # noqa: PLC0414
from autopilot.core.model.verb import Operation as Operation  # noqa: PLC0414

# --- input from collectors ---------------------------------------------------------------------


UNNAMED = "objects"
"""Signal of the gap that counts the objects of a list that no other gap names."""


@dataclass(frozen=True, slots=True)
class Gap:
    """An expected value that is missing, with the reason. A missing value is never zero."""

    source: str  # collector that reports it
    object_id: str  # node, GPU, instance, service or target; "" for the whole source
    signal: str  # "" when all signals of the object are missing
    reason: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """Nodes, GPUs and MIG instances."""

    names: Names
    nodes: NodeTable
    gpus: GpuTable
    instances: InstanceTable


@dataclass(frozen=True, slots=True)
class Work:
    """Workloads that request or hold GPUs, with their queues, services and placements."""

    tenants: tuple[str, ...]
    workloads: WorkloadTable
    placements: PlacementTable
    services: ServiceTable
    queues: QueueTable
    members: MemberTable = field(default_factory=lambda: empty(MemberTable))
    advance: AdvanceTable = field(default_factory=lambda: empty(AdvanceTable))
    ranks: RankTable = field(default_factory=lambda: empty(RankTable))


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Windowed signals by entity, in the order of `entity_ids`.

    An entity is a GPU ("<UUID>") or a MIG instance ("<UUID>/<GPU instance id>"). Shapes as in
    snapshot.SignalTable: `mean`, `maximum` [signals, windows, entities], `samples`
    [windows, entities], `age_s` and `quality` [entities].
    """

    signals: tuple[str, ...]
    windows_s: tuple[float, ...]
    entity_ids: Texts
    mean: F32
    maximum: F32
    samples: I32
    age_s: F32
    quality: I8


@dataclass(frozen=True, slots=True)
class Errors:
    """Faults reported by GPUs; -1 for a value that the source does not report. An entity may have several rows."""

    entity_ids: Texts
    xid: I32
    remap: I8  # xid_facts.REMAP_*


@dataclass(frozen=True, slots=True)
class Listing:
    """How complete one list of a source is.

    `objects` is the number of objects that the source itself states, -1 where it states none. `deleted` are the
    objects that it reported deleted since its last list: workloads and services by uid, nodes by name, GPUs by UUID.
    """

    complete: bool = True
    reason: str = ""  # what is missing from an incomplete list: a page, a pool, the events since the last list
    objects: int = -1
    deleted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """The answer of one collector. Fields that the source does not report are None.

    `collected_s` is the time at which the lists were true.
    """

    source: str
    collected_s: float
    inventory: Inventory | None = None
    work: Work | None = None
    telemetry: Telemetry | None = None
    gaps: tuple[Gap, ...] = ()
    errors: Errors | None = None
    services: ServiceSignals | None = None
    inventory_list: Listing = field(default_factory=Listing)
    work_list: Listing = field(default_factory=Listing)


# --- input of the decision ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class View:
    """The list of one source for one kind of object (`inventory`, `work`) at this tick.

    Objects are nodes and GPUs, or services and workloads that have not ended. `lost` counts the objects of the last
    trusted complete list that are missing now, were not reported deleted and were not shown as ended. `expected` is
    the number of objects that should be listed. Both are -1 while there is no trusted list (after a restart).
    """

    source: str
    kind: str
    complete: bool
    listed_s: float  # time at which the list was true; -inf: there is no list
    count: int
    expected: int = -1
    lost: int = -1
    reason: str = ""  # why the list is not complete


@dataclass(frozen=True, slots=True)
class Signals:
    """Measures of one snapshot (core/intake/signals.py). GPU counts are GPU equivalents; NaN is not measured.

    capacity = allocated + free + out of use. The hardware ratio, real utilization and gap are lower bounds if
    `measured_ratio` is below 1. Journals of earlier builds lack the last two.
    """

    capacity_gpus: float  # all GPUs of the inventory
    allocated_gpus: float  # held by work, wherever they are
    free_gpus: float  # without work, open to new work
    pending_gpus: float
    allocation_ratio: float
    hardware_ratio: float  # SM-active-weighted / allocated
    real_utilization_ratio: float  # SM-active-weighted / capacity
    gap_ratio: float  # allocated, measured and not active / capacity
    stranded_gpus: float  # that pending work could use if they had another shape
    largest_gang_gpus: int  # the widest gang of whole GPUs that fits now; -1: not measured
    stranded_by_cause: tuple[tuple[str, float], ...]
    recut_gpus: float  # under a change of MIG geometry and not held; a part of out_of_use_gpus
    out_of_use_gpus: float = float("nan")  # without work, closed to new work
    measured_ratio: float = float("nan")  # share of the allocated GPUs with known SM activity


class CommandKind(StrEnum):
    """Commands that a person can give."""

    APPROVE = "approve"
    REJECT = "reject"
    REVOKE = "revoke"  # the rejection named in `subject` ends
    KILL = "kill"
    RESUME = "resume"
    PAUSE = "pause"
    CONFIRM = "confirm"  # the loss of objects of the source named in `subject` is real
    RELEASE = "release"  # the quarantine of the GPU (UUID) named in `subject` ends
    LIFT = "lift"  # the cap of the action named in `subject` ends


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a person. The inbox assigns `sequence` on receipt."""

    kind: CommandKind
    who: str
    at_s: float
    subject: str = ""  # recommendation for approve and reject, rejection for revoke, source for confirm
    sequence: int = -1
    seen: Seen | None = None  # the recommendation as the person saw it; None: as the last decision showed it
    exactly: bool = False  # an approval of the very plan
    scope: RejectionScope = RejectionScope.WORKLOAD
    for_s: float | None = None  # how long a rejection holds; None: as the policy says, inf: until it is revoked


class OutcomeKind(StrEnum):
    """The result of an effect."""

    ACCEPTED = "accepted"
    CONFLICT = "conflict"
    FAILED = "failed"
    DECLINED = "declined"  # the work cannot save in time, or cannot be asked to, and keeps its place
    DONE = "done"


class Cause(StrEnum):
    """Why an effect did not come about. `docs/operations.md` says what to do about each."""

    NONE = ""  # it came about or is under way
    BUDGET = "budget"  # a PodDisruptionBudget forbids it
    WEBHOOK = "webhook"  # an admission webhook, policy or plugin of the cluster refused the write
    RIGHT = "right"  # the account of the controller has no right
    INVALID = "invalid"  # the server does not accept the write
    SERVER = "server"  # the server failed, or did not answer
    REPLACED = "replaced"  # its object is gone, or another object has its name now
    CHANGED = "changed"  # somebody else wrote the object, or its check, and wants something else
    PLACE = "place"  # its place cannot be used any more
    EPOCH = "epoch"  # another controller leads now
    UNSAVED = "unsaved"  # the work cannot save, and must not lose progress
    UNASKED = "unasked"  # it cannot be asked for a checkpoint, so it is priced as work that does not save
    HARM = "harm"  # it would end work that no controller restarts
    CONFIG = "config"  # the cluster is not configured for it, or the MIG manager failed
    LEVER = "lever"  # no lever fits the objects
    LATE = "late"  # it did not come about before its deadline
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one instruction."""

    instruction_id: str
    kind: OutcomeKind
    at_s: float
    reason: str = ""
    retryable: bool = False
    cause: Cause = Cause.NONE


@dataclass(frozen=True, slots=True)
class Observation:
    """The complete input of one decision, apart from memory and policy."""

    tick: int
    now_s: float
    snapshot: ClusterSnapshot
    signals: Signals
    forecasts: Forecasts
    commands: tuple[Command, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    gaps: tuple[Gap, ...] = ()
    kill_switch: bool = False  # also True when the switch cannot be read
    views: tuple[View, ...] = ()  # of every source that lists inventory or work, or is expected to
    # since the last decision, by a monotonic clock; NaN: time is virtual
    elapsed_s: float = float("nan")


# --- output of the decision --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Note:
    """A fact beside the plan. `code` is a `NoteCode` or the code of a note of an action, which gives the words."""

    code: str
    about: About
    subject: str = ""  # name of the workload, tenant, ...; "" for the controller
    value: float | None = None  # None: the note has no number
    unit: str = ""
    facts: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of one guard on one proposal, with the value and the threshold that it compared.

    The guard asks for at least the threshold where `at_least` is set; else it allows at most that.
    """

    guard: str
    allowed: bool
    code: Code
    value: float
    unit: str
    threshold: float
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    """The proposal of an action, with benefit, cost, evidence and the verdict of each guard."""

    id: str
    action: str
    subject: Subject
    queue: str
    tenant: str
    change: Change
    benefit_gpu_s: float = 0.0
    cost_gpu_s: float = 0.0
    evidence: tuple[Evidence, ...] = ()
    state_digest: str = ""
    verdicts: tuple[Verdict, ...] = ()
    accepted: bool = False
    reason: str = ""  # tells proposals of one action and kind apart (effects/draft.py, Case)

    @property
    def kind(self) -> str:
        """Kind of the change."""
        return self.change.kind

    @property
    def recommendation(self) -> str:
        """What a person decides about: this action for this object, whatever the plan. The id names the plan too."""
        about = f"{self.action}|{self.change.wish}|{self.subject.kind}|{self.subject.uid}"
        digest = blake2s(about.encode(), digest_size=4).hexdigest()
        return f"{self.action.replace('_', '-')}-{self.subject.name}-{digest}"

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All slots that the workload holds afterwards, where it starts or grows."""
        return self.change.slots

    @property
    def victims(self) -> tuple[Victim, ...]:
        """Work that loses GPUs or its place."""
        return self.change.victims


@dataclass(frozen=True, slots=True)
class Refusals:
    """Why each pending workload without a proposal waits: columns in the order of service.

    `code` indexes `codes`. `value` and `threshold` are the numbers behind it (GPUs, or seconds for `reserved`).
    explain() builds the full evidence on demand.
    """

    codes: tuple[Code, ...]
    workload: I32  # row in the snapshot
    code: I8
    value: F64
    threshold: F64


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room held for one gang that does not fit yet; `firm` once it is a promise."""

    workload: str
    incarnation: int
    gpus: int
    since_s: Time
    start_s: Time  # as planned now
    promised_s: Time  # latest start, as promised when it was made
    nodes: tuple[str, ...]
    firm: bool = True
    planned_s: Time = float("nan")  # planned start when it was made; released if the start slips too far
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The chosen proposals of one tick, in the order chosen."""

    proposals: tuple[Proposal, ...]
    refusals: Refusals
    reservations: tuple[Reservation, ...]
    released: tuple[str, ...]  # workloads whose firm reservation ended without a start


@dataclass(frozen=True, slots=True)
class Loss:
    """The actual loss of a victim of an earlier decision, known once it has stopped. NaN: not reported."""

    proposal_id: str
    workload: str
    incarnation: int  # the one that was stopped
    lost_gpu_s: float
    expected_gpu_s: float
    worst_gpu_s: float


@dataclass(frozen=True, slots=True)
class Decision:
    """A plan with its verdicts, and the reason if it was halted. Losses and what was realised are of earlier ones."""

    tick: int
    now_s: float
    plan: Plan
    halted: str = ""  # why no effect is sent (kill switch, pause); "" otherwise
    notes: tuple[Note, ...] = ()
    losses: tuple[Loss, ...] = ()
    realised: tuple[Realised, ...] = ()


@dataclass(frozen=True, slots=True)
class Instruction:
    """One effect. Idempotent by id; refused if its precondition (uid and revision of its subject) does not hold."""

    id: str
    subject: Subject
    operation: Operation
    deadline_s: Time
    fence: int
    proposal_id: str

    @property
    def kind(self) -> str:
        """Kind of the operation."""
        return self.operation.kind


def no_refusals() -> Refusals:
    """Refusals of an empty queue."""
    return Refusals((), np.empty(0, np.int32), np.empty(0, np.int8), np.empty(0), np.empty(0))
