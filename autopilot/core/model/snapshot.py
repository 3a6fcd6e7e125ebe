"""The state of the cluster: tables of numpy columns, joined by row number.

Each table is a frozen dataclass of one-dimensional arrays of equal length. Codes (int32) index the tuples of `Names`. A
missing text is "", a missing number NaN (floats) or -1 (row numbers and codes). Capacity is in integers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autopilot.core.model.latencies import ReplicaLatency
from autopilot.core.model.objects import SharingConfig
from autopilot.core.model.ranks import RankTable
from autopilot.core.model.signal_table import SignalTable

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I8 = NDArray[np.int8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
Texts = NDArray[np.object_]
LabelBits = NDArray[np.uint8]  # shape [rows, bytes]: label k of `Names.labels` is bit `k & 7` of byte `k >> 3`

GPU_MILLI = 1000  # thousandths of one whole GPU: the unit of shared GPUs


class State(IntEnum):
    """State of a workload. `PENDING` work waits for the autopilot; `SUCCEEDED` and `FAILED` work has ended."""

    PENDING = 0
    STARTING = 1  # holds its GPUs: image pull, model load, rendezvous
    RUNNING = 2
    CHECKPOINTING = 3  # evicted: it saves its progress, and still holds its GPUs
    SUCCEEDED = 4
    FAILED = 5


class SloClass(IntEnum):
    """Service classes, most protected first."""

    LATENCY_CRITICAL = 0
    INTERACTIVE = 1
    BATCH = 2


SLO_CLASS_NAMES = ("latency-critical", "interactive", "batch")


class Topology(IntEnum):
    """Domain to be shared by all members of a gang. `SPREAD`: each member on its own node."""

    NONE = 0
    ISLAND = 1
    LEAF = 2
    BLOCK = 3
    ZONE = 4
    SPREAD = 5


TOPOLOGY_NAMES = ("none", "island", "leaf", "block", "zone", "spread")


class QueueOrder(IntEnum):
    """Order inside one queue."""

    SUBMISSION = 0  # priority, then age
    INDEX = 1  # expected waiting saved per GPU-second, aged


class Gate(IntEnum):
    """State of the external admission checks of a workload."""

    OPEN = 0
    WAITING = 1  # quota may be held for it, but it must not start yet
    REJECTED = 2  # a check, or a limit of its scheduler, switched it off: it does not come back by itself
    RETRY = 3  # holds no quota and does not start until the check is repeated
    SUSPENDED = 4  # suspended, deactivated or without pods, until its owner lets it continue
    BACKOFF = 5  # out of its queue for a time, because its pods were not ready in time
    NO_PODS = 6  # its scheduler has admitted it, and its controller has made no pods: its quota is held


class Recut(IntEnum):
    """State of the MIG geometry of a GPU, as its node reports it."""

    SETTLED = 0  # also without a report by the source
    CHANGING = 1  # its signals are unknown, and its free capacity is neither free nor lost
    FAILED = 2  # the last change failed; the instances are those reported by the node


class Displace(IntEnum):
    """Which work a queue may preempt (Kueue: preemption policies)."""

    NEVER = 0
    LOWER = 1  # strictly lower priority
    LOWER_OR_NEWER_EQUAL = 2  # lower priority, or equal priority and submitted later
    ANY = 3


@dataclass(frozen=True, slots=True)
class NodeTable:
    """One row per node. The GPUs of node n are `gpus[n]` rows from `first_gpu[n]` on."""

    id: Texts
    pool: I32
    gpu_model: I32
    first_gpu: I32
    gpus: I32
    cpu_milli: I64  # -1: not stated, so no constraint
    memory_mib: I64  # -1: not stated
    island: I32  # NVLink island; codes are unique over the cluster
    leaf: I32
    block: I32
    zone: I32
    ready: Bools
    cordoned: Bools
    spot: Bools
    reclaim_at_s: F64  # announced time of its reclaim by the cloud; NaN: not announced
    labels: LabelBits  # labels of the node
    hints: I64  # preferences of work that it meets (images, a NUMA policy): a bit set in the order of the source
    mig_scopes: I8  # scopes in which its engine changes MIG geometries: bits over MIG_SCOPES; 0: nothing changes them
    boot: Texts  # ID of its present boot, or another mark of the machine behind the name; "": not stated
    sharing: I8  # objects.Sharing, as its labels and its offer prove it
    replicas: I32  # shares of each of its GPUs; 1: whole
    sharing_offers: I64  # configurations to which its engine can turn it: bit set over Names.sharing_configs
    scrubbed_s: F64  # when all that was free of it was last stated to be scrubbed; NaN: not stated


@dataclass(frozen=True, slots=True)
class GpuTable:
    """One row per physical GPU, grouped by node."""

    uuid: Texts
    node: I32
    index: I32
    healthy: Bools
    mig: Bools  # in MIG mode: allocated by instance, never as a whole
    xid: I32  # gravest XID since the GPU was known to be whole (recovery/follow_errors.py); 0: none, -1: unknown
    remap: I8  # row remapping of its memory: xid_facts.REMAP_*
    recut: I8  # Recut
    on_demand: I64  # places for instances on demand: bits over mig.placement_masks; -1: instances last


@dataclass(frozen=True, slots=True)
class InstanceTable:
    """One row per MIG instance."""

    id: Texts  # "<UUID>/<GPU instance id>"
    gpu: I32
    profile: I32
    start: I32  # first memory slice
    gi_id: I32


@dataclass(frozen=True, slots=True)
class WorkloadTable:
    """One row per gang (training job, notebook, replica of a service): pending, with GPUs, or just ended.

    A gang requests `gpus` GPUs in members of `gpus_per_member`; the last member takes the remainder. `gpu_milli` > 0
    requests a share of one GPU, `mig_profile` >= 0 one instance per member; `gpus` then counts the members.
    """

    id: Texts
    uid: Texts  # identity of the object: kept across restarts; a new object with the same id has a new uid
    name: Texts
    user: Texts  # the submitter
    tenant: I32
    queue: I32
    slo_class: I8
    priority: I32
    state: I8
    incarnation: I32  # restarts so far; an effect for an earlier incarnation is refused
    submit_s: F64
    start_s: F64  # of the present incarnation; NaN while pending
    runs_since_s: F64  # start of its run without a stop, at any width; NaN: `start_s`
    ended_s: F64
    served_s: F64  # progress kept from earlier incarnations
    outlived_s: F64  # most progress of an earlier incarnation, kept or lost: its run time exceeds this
    gpus: I32
    gpus_per_member: I32
    min_gpus: I32  # least GPUs to start with; equals `gpus` unless elastic
    gpu_milli: I32
    mig_profile: I32
    gpu_models: I64  # bit set over Names.gpu_models; 0: any
    gpu_memory_mib: I32
    cpu_milli: I64  # per gang member; 0: not stated
    memory_mib: I64
    topology: I8  # level to be shared by all members
    preferred: I8  # level preferred for all members
    selector: I32  # labels required of its nodes: place in Names.selectors; 0: any node
    prefers: I64  # hints to decide between equal nodes: bit set over the hints of nodes; 0: none
    preemptible: Bools
    excluded: Bools  # opted out of every action of the autopilot
    gate: I8  # state of external checks: Gate
    over_quota: Bools  # marked as beyond the minimum of its team (elastic quotas)
    preemption_delay_s: F64  # it must have waited this long before it may preempt
    backfilled: Bools  # started in a gap; evicted for the start of the reserved gang
    limit_s: F64
    checkpoint_interval_s: F64
    last_checkpoint_s: F64
    checkpoint_write_s: F64
    checkpoint_on_request: Bools  # declared by its owner: the workload writes a checkpoint on eviction
    restart_s: F64
    lost_gpu_s: F64  # work lost by its latest stop: progress since the kept state x GPUs; NaN: unknown
    service: I32
    stuck: Bools  # evicted, and still on its GPUs after its grace: it frees nothing
    stale_since_s: F64  # begin of fewer live members than its minimum (finished ones count); NaN: complete
    lacking_pods: I32  # needed pods without a node while others hold GPUs; 0: none
    stale_grace_s: F64  # its own grace for this; NaN: the grace of the policy
    job_group: Texts  # shared by a coordinator and its workers, if they are separate workloads; "": none
    coordinates: Texts  # the group under its coordination; "": none
    scheduler_quota: I8  # objects.SchedulerQuota
    trust: I8  # objects.Trust
    share: I8  # objects.Share
    image: Texts  # digest or name of the image of its main container; "": unknown
    steps_per_s: F64  # pace of its program by its last five minutes; NaN: not reported, or not for as long
    pausing: I8  # objects.Pausing


@dataclass(frozen=True, slots=True)
class MemberTable:
    """Members (pods) of gangs with differing members; a gang without rows here has equal members.

    Members of higher rank start first and leave last. With `mig_profile` >= 0, `gpus` counts instances of that profile.
    A pod that requests several profiles has one row for each; these rows have the same `pod`.
    """

    id: Texts
    workload: I32
    gpus: I32
    rank: I32
    selector: I32  # labels required of its node beside those of its gang: place in Names.selectors
    mig_profile: I32  # -1: whole GPUs
    pod: Texts  # "": a separate pod


@dataclass(frozen=True, slots=True)
class PlacementTable:
    """One row for each GPU (or share, or instance) held by a workload."""

    workload: I32
    node: I32
    gpu: I32
    instance: I32  # -1: the GPU itself
    milli: I32
    leaving: Bools  # already being released: it comes free without a further instruction
    rank: I32  # of its member; members of lower rank leave first
    assumed: Bools  # its GPU on the node is a guess: measurements there may be another workload's


@dataclass(frozen=True, slots=True)
class ServiceTable:
    """One row per inference service; its replicas are workloads.

    `p99_s`, `ttft_p99_s`, `itl_p99_s`, `violation_ratio` and `rate_rps` cover the last five whole minutes, `recent_...`
    the last one. `ttft`: from the request to its first token. `itl`: from one token to the next.
    """

    id: Texts
    uid: Texts  # identity of the object, as for workloads
    queue: I32
    replicas: I32
    ready_replicas: I32
    min_replicas: I32
    max_replicas: I32
    objective_s: F64  # p99 latency objective
    p99_s: F64
    violation_ratio: F64
    rate_rps: F64
    queue_depth: F64
    age_s: F64
    generation: I32  # changes with each change by its owner; a floor for an earlier generation is refused
    needed_replicas: I32  # replicas wanted by its autoscaler without the floor; -1: unknown
    floor: I32  # least replicas, as set by the autopilot; 0: no floor
    floor_until_s: F64  # end of this floor
    load_ratio: F64  # scaling metric / the owner's target
    recent_rps: F64
    recent_violation_ratio: F64
    tokens_per_s: F64  # input and output tokens of the requests of the last minute
    wake_rps: F64  # requests/s by its wake signal, also without a replica
    wake_age_s: F64  # age of this value; inf: not seen yet, NaN: its owner names no wake signal
    ceiling: I32  # most replicas while it is idle, as set by the autopilot; -1: no ceiling
    ceiling_until_s: F64  # end of this ceiling
    ceiling_way: I8  # CeilingWay: the way of a ceiling to the replicas, or the obstacle
    role: I8  # ServingRole
    ttft_objective_s: F64
    itl_objective_s: F64
    ttft_p99_s: F64
    itl_p99_s: F64
    recent_ttft_violation_ratio: F64  # requests over the objective / requests
    recent_itl_violation_ratio: F64  # tokens over the objective / tokens
    part_of: I32  # a pool inside the gangs of another service: the row of that service; -1: its replicas are its own


@dataclass(frozen=True, slots=True)
class QueueTable:
    """One row per queue; parents come before children, row 0 is the root."""

    id: Texts
    parent: I32
    guarantee: NDArray[np.int32]  # [queues, gpu models]
    limit: I32  # -1: none
    weight: F64
    priority: I32
    order: I8
    strict: Bools  # a waiting gang blocks later gangs of its queue
    borrow_limit: I32  # most GPUs above the guarantee; -1: no limit (cohort rules)
    lend_limit: I32  # most GPUs of its guarantee lent to others; -1: all (cohort rules)
    within_queue: I8  # Displace, inside the queue (cohort rules)
    reclaim: I8  # Displace, in borrowing queues (cohort rules)
    while_borrowing: I8  # Displace, while it would itself borrow (cohort rules)
    while_borrowing_priority: I32  # highest priority of a victim in this case
    limit_by_model: NDArray[np.int32]  # [queues, gpu models], -1: none; no columns where no queue states one
    weight_by_model: NDArray[np.float64]  # [queues, gpu models], NaN: `weight`; no columns where no queue states one
    guarantee_kept: I8  # place in GUARANTEES_KEPT: as stated; 0: like that of the queue above, else as the policy says


@dataclass(frozen=True, slots=True)
class AdvanceTable:
    """One row per advance reservation: GPUs of one model for the work of a queue, from a given time on."""

    id: Texts
    queue: I32
    gpu_model: I32
    gpus: I32
    start_s: F64
    grace_s: F64  # time of the hold after `start_s`; unused GPUs are then released


@dataclass(frozen=True, slots=True)
class Names:
    """The names behind the codes."""

    gpu_models: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()  # "key=value", of nodes and selectors; see identity.OF_NODES
    selectors: tuple[tuple[int, ...], ...] = ((),)  # labels requested together, by place in `labels`
    sharing_configs: tuple[SharingConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """All tables at one instant, with the age of inventory and work."""

    names: Names
    nodes: NodeTable
    gpus: GpuTable
    instances: InstanceTable
    workloads: WorkloadTable
    placements: PlacementTable
    services: ServiceTable
    queues: QueueTable
    telemetry: SignalTable
    inventory_age_s: float = 0.0
    work_age_s: float = 0.0
    members: MemberTable = field(default_factory=lambda: empty(MemberTable))
    advance: AdvanceTable = field(default_factory=lambda: empty(AdvanceTable))
    ranks: RankTable = field(default_factory=lambda: empty(RankTable))
    latencies: ReplicaLatency = field(default_factory=lambda: empty(ReplicaLatency))


DTYPES: dict[str, Any] = {
    "Texts": object,
    "F64": np.float64,
    "F32": np.float32,
    "I8": np.int8,
    "I32": np.int32,
    "I64": np.int64,
    "Bools": np.bool_,
    "LabelBits": np.uint8,
}
BY_MODEL: dict[str, Any] = {"guarantee": np.int32, "limit_by_model": np.int32, "weight_by_model": np.float64}
WIDE: dict[str, Any] = BY_MODEL | {"labels": np.uint8}  # of two dimensions (BY_MODEL: per GPU model); in one table only


def empty(table: type[Any]) -> Any:
    """A table of type `table` without rows."""
    types = {f.name: WIDE.get(f.name, DTYPES.get(str(f.type), np.int32)) for f in fields(table)}
    return table(**{name: np.empty((0, 0) if name in WIDE else 0, dtype) for name, dtype in types.items()})


_UNKNOWN = (
    "start_s", "runs_since_s", "ended_s", "limit_s", "checkpoint_interval_s", "last_checkpoint_s",
    "checkpoint_write_s", "restart_s", "lost_gpu_s", "stale_since_s", "stale_grace_s", "reclaim_at_s", "floor_until_s",
    "load_ratio", "recent_rps", "recent_violation_ratio", "ttft_objective_s", "itl_objective_s", "ttft_p99_s",
    "itl_p99_s", "recent_ttft_violation_ratio", "recent_itl_violation_ratio", "tokens_per_s", "wake_rps", "wake_age_s",
    "ceiling_until_s", "scrubbed_s", "steps_per_s",
)  # fmt: skip
UNSTATED: dict[str, Any] = {  # values of columns without a statement; 0, "" or False for all others
    **dict.fromkeys(_UNKNOWN, np.nan),
    "limit": -1,
    "borrow_limit": -1,
    "lend_limit": -1,
    "weight": 1.0,
    "order": QueueOrder.INDEX,
    "ready": True,
    "healthy": True,
    "on_demand": -1,
    "cpu_milli": -1,
    "memory_mib": -1,
    "instance": -1,
    "milli": GPU_MILLI,
    "mig_profile": -1,
    "service": -1,
    "gpus_per_member": 1,
    "slo_class": SloClass.BATCH,
    "needed_replicas": -1,
    "ceiling": -1,
    "part_of": -1,
}
_OF_TABLE: dict[tuple[type[Any], str], Any] = {  # before these
    (WorkloadTable, "cpu_milli"): 0,
    (WorkloadTable, "memory_mib"): 0,
    (NodeTable, "replicas"): 1,
}


def make(table: type[Any], **columns: Any) -> Any:
    """A table from `columns` (sequences of equal length); omitted columns get their `UNSTATED` value."""
    count = len(next(iter(columns.values())))
    made = {}
    for f in fields(table):
        dtype = WIDE.get(f.name, DTYPES.get(str(f.type), np.int32))
        if f.name in columns:
            made[f.name] = np.asarray(columns[f.name], dtype)
        elif f.name in WIDE:
            made[f.name] = np.empty((count, 0), dtype)
        else:
            unstated = UNSTATED.get(f.name, "" if dtype is object else 0)
            made[f.name] = np.full(count, _OF_TABLE.get((table, f.name), unstated), dtype)
    return table(**made)


def empty_signals() -> SignalTable:
    """A signal table without signals and entities."""
    none, ages = np.empty((0, 0, 0), np.float32), np.empty(0, np.float32)
    return SignalTable((), (), float("-inf"), none, none, np.empty((0, 0), np.int32), ages, np.empty(0, np.int8))


def take(table: Any, rows: NDArray[Any]) -> Any:
    """A new table with the given rows of `table`."""
    return type(table)(*(getattr(table, f.name)[rows] for f in fields(table)))
