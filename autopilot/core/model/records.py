"""The records that flow: batch -> observation -> proposal -> plan -> decision -> instruction -> outcome.

All frozen, without behaviour. One word per thing, everywhere. The shell encodes them as they are
(journal, page, API), so every field is a plain value, a tuple, an enum or a numpy column.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from autopilot.core.model.codes import Code as Code  # noqa: PLC0414 - exported with the other records
from autopilot.core.model.forecast import Forecasts
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

# --- what collectors bring ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that should be known and is not, with the reason; never read as zero."""

    source: str  # collector that noticed
    object_id: str  # node, GPU, instance, service or target; "" for the whole source
    signal: str  # "" when everything of the object is missing
    reason: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """Hardware as it stands."""

    names: Names
    nodes: NodeTable
    gpus: GpuTable
    instances: InstanceTable


@dataclass(frozen=True, slots=True)
class Work:
    """What asks for GPUs and what holds them."""

    tenants: tuple[str, ...]
    workloads: WorkloadTable
    placements: PlacementTable
    services: ServiceTable
    queues: QueueTable
    members: MemberTable = field(default_factory=lambda: empty(MemberTable))
    advance: AdvanceTable = field(default_factory=lambda: empty(AdvanceTable))


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
    """What GPUs reported of their own faults, by entity; -1 where a source does not say."""

    entity_ids: Texts
    xid: I32
    remap: I8  # xid_facts.REMAP_*


@dataclass(frozen=True, slots=True)
class Listing:
    """How far one list of a source can be trusted to show every object of its kind.

    `objects` is the number that the source itself states, -1 where it states none. `deleted` are the objects whose
    deletion it reported since its last list: workloads and services by uid, nodes by name, GPUs by UUID.
    """

    complete: bool = True
    reason: str = ""  # what is missing from an incomplete list: a page, a pool, the events since the last list
    objects: int = -1
    deleted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """One collector's answer. What it has no word about is None. `collected_s`: the lists are true as of then."""

    source: str
    collected_s: float
    inventory: Inventory | None = None
    work: Work | None = None
    telemetry: Telemetry | None = None
    gaps: tuple[Gap, ...] = ()
    errors: Errors | None = None
    inventory_list: Listing = field(default_factory=Listing)
    work_list: Listing = field(default_factory=Listing)


# --- what the decision sees --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class View:
    """What one source showed of one kind of object (`inventory`, `work`) at this tick.

    Objects are nodes and GPUs, or workloads that have not ended and services. `lost` counts those of the last trusted
    complete list that are missing now, were not reported deleted and were not shown ended; `expected` is the number
    that should be here. Both are -1 while no such list is at hand (after a restart).
    """

    source: str
    kind: str
    complete: bool
    listed_s: float  # the list is true as of then; -inf: there is none
    count: int
    expected: int = -1
    lost: int = -1
    reason: str = ""  # why it is not complete


@dataclass(frozen=True, slots=True)
class Signals:
    """Measures of one snapshot (core/intake/signals.py). GPU counts are GPU equivalents; NaN: not measured."""

    capacity_gpus: float
    allocated_gpus: float
    free_gpus: float
    pending_gpus: float
    allocation_ratio: float
    hardware_ratio: float  # SM-active-weighted / handed out
    real_utilization_ratio: float  # SM-active-weighted / capacity
    gap_ratio: float  # allocated but not active / capacity
    stranded_gpus: float  # free, yet no pending gang fits on them
    largest_gang_gpus: int  # widest gang of whole GPUs that fits now; -1: not measured
    stranded_by_cause: tuple[tuple[str, float], ...]


class CommandKind(StrEnum):
    """The ways in for people."""

    APPROVE = "approve"
    REJECT = "reject"
    KILL = "kill"
    RESUME = "resume"
    PAUSE = "pause"
    CONFIRM = "confirm"  # the source named as subject really has so few objects


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a person: who, when, about what, and what was shown.

    `sequence` is the number that the inbox gave it on receipt; `benefit_gpu_s` and `cost_gpu_s` are those of the
    proposal as the person saw it.
    """

    kind: CommandKind
    who: str
    at_s: float
    subject: str = ""  # proposal id for approve and reject, source for confirm
    state_digest: str = ""
    sequence: int = -1
    benefit_gpu_s: float = float("nan")
    cost_gpu_s: float = float("nan")


class OutcomeKind(StrEnum):
    """How an effect went."""

    ACCEPTED = "accepted"
    CONFLICT = "conflict"
    FAILED = "failed"
    DECLINED = "declined"  # the work cannot save in time, and is to keep its place then
    DONE = "done"


class Save(StrEnum):
    """What becomes of an evicted gang that has no fresh checkpoint when its grace is over."""

    TRY = "try"  # it is stopped, and loses what it did since its last one
    MUST = "must"  # it keeps its place, and the effect is declined
    SKIP = "skip"  # it is stopped at once: the store has no turn for it within the grace


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one instruction."""

    instruction_id: str
    kind: OutcomeKind
    at_s: float
    reason: str = ""
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything one decision may know."""

    tick: int
    now_s: float
    snapshot: ClusterSnapshot
    signals: Signals
    forecasts: Forecasts
    commands: tuple[Command, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    gaps: tuple[Gap, ...] = ()
    kill_switch: bool = False  # True also when the switch cannot be read
    views: tuple[View, ...] = ()  # of every source that shows inventory or work, or should
    # since the last decision by a clock that nobody sets; NaN: time is virtual
    elapsed_s: float = float("nan")


# --- what the decision says --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number that a proposal or verdict rests on."""

    name: str
    value: float | int | str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One guard's answer on one proposal, with the number it was judged by."""

    guard: str
    allowed: bool
    code: Code
    value: float
    unit: str
    threshold: float


@dataclass(frozen=True, slots=True)
class Slot:
    """One GPU (or a share of it, or one of its MIG instances) in a proposal or instruction."""

    node: str
    gpu: str  # UUID
    instance: str = ""
    milli: int = 1000


@dataclass(frozen=True, slots=True)
class Victim:
    """One workload that a proposal takes GPUs from."""

    workload: str
    incarnation: int
    gpus: int  # taken from it
    lost_gpu_s: float  # progress that it is expected to lose (core/checkpoints/losses.py)
    contract: bool  # promised to give way: not weighed, not budgeted
    how: str = "evict"  # evict | shrink | move
    keeps: tuple[Slot, ...] = ()  # after a shrink: what it goes on with; after a move: where it goes on
    worst_gpu_s: float = float("nan")  # progress that it loses if it does not save
    overhead_gpu_s: float = 0.0  # GPUs that it holds without progress while it saves and restarts
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Proposal:
    """An action's wish, with benefit, cost and evidence, and every guard's answer."""

    id: str
    action: str
    kind: str  # admit | land (start once its victims are gone) | grow | evict | reserve | scale (a service's floor)
    workload: str  # of `scale`: the service
    incarnation: int
    queue: str
    tenant: str
    slots: tuple[Slot, ...] = ()
    victims: tuple[Victim, ...] = ()
    start_s: float = float("nan")  # promised start of a reservation
    benefit_gpu_s: float = 0.0
    cost_gpu_s: float = 0.0
    score_terms: tuple[Evidence, ...] = ()  # placement score, each term
    evidence: tuple[Evidence, ...] = ()
    state_digest: str = ""
    verdicts: tuple[Verdict, ...] = ()
    accepted: bool = False
    replicas: int = 0  # of `scale`: the floor; 0 gives it back
    until_s: float = 0.0  # of `scale`: when the floor lapses by itself
    uid: str = ""  # of the workload, or of the service


@dataclass(frozen=True, slots=True)
class Refusals:
    """Why each pending workload that is not proposed waits: columns over the queue in its order.

    `code` indexes `codes`; `value` and `threshold` are the numbers behind it (GPUs, or seconds for
    `reserved`). Full evidence is built on demand by explain().
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
    since_s: float
    start_s: float  # as planned now
    promised_s: float  # by when, as said when it was made
    nodes: tuple[str, ...]
    firm: bool = True
    planned_s: float = float("nan")  # as planned when it was made: it is released where that slips too far
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The chosen set of one tick, in the order in which it was chosen."""

    proposals: tuple[Proposal, ...]
    refusals: Refusals
    reservations: tuple[Reservation, ...]
    released: tuple[str, ...]  # workloads whose firm reservation ended without a start


@dataclass(frozen=True, slots=True)
class Loss:
    """What a victim of an earlier decision really lost, now that it has stopped. NaN: nobody reported it."""

    proposal_id: str
    workload: str
    incarnation: int  # that was stopped
    lost_gpu_s: float
    expected_gpu_s: float
    worst_gpu_s: float


@dataclass(frozen=True, slots=True)
class Decision:
    """A plan with its verdicts, and why nothing happened when nothing did. `losses`: of earlier decisions."""

    tick: int
    now_s: float
    plan: Plan
    halted: str = ""  # reason that holds everything: kill switch, pause; "" when none
    notes: tuple[Evidence, ...] = ()
    losses: tuple[Loss, ...] = ()


@dataclass(frozen=True, slots=True)
class Instruction:
    """One effect. Idempotent by id; refused when its precondition (uid and incarnation) does not hold."""

    id: str
    kind: str  # admit | evict | resize (go on with exactly `slots`) | scale (a service has at least `replicas`)
    workload: str
    incarnation: int  # precondition: the object is still this one
    slots: tuple[Slot, ...]
    backfill: bool
    deadline_s: float
    fence: int
    proposal_id: str
    reason: str = (
        ""  # of what takes GPUs: preempt | reclaim | move | reclaim-move | backfill | recover | restart | suspend
    )
    grace_s: float = 0.0  # of an eviction: time to write a checkpoint in before the work is stopped
    save: Save = Save.TRY
    replicas: int = 0  # of `scale`, whose `workload` is the service and `incarnation` its generation; 0: no floor
    until_s: float = 0.0  # of `scale`: when the floor lapses by itself
    uid: str = ""  # precondition: of the workload, or of the service; "" names nothing and is refused


def no_refusals() -> Refusals:
    """Refusals of an empty queue."""
    return Refusals((), np.empty(0, np.int32), np.empty(0, np.int8), np.empty(0), np.empty(0))
