"""What the views of the fleet answer, for the OpenAPI schema; see `answers`."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from autopilot.http.answers import Measures, Number


class UseRow(TypedDict):
    """Capacity = allocated + free + out of use; the active part, and the gap of one group.

    Capacity, free and out of use of a tenant are those of the fleet. `measured_ratio`: share of the allocated GPUs with
    known SM activity; below 1, active, gap, hardware and real utilization are lower bounds.
    """

    name: str
    capacity_gpus: Number
    free_gpus: Number
    out_of_use_gpus: Number
    held_gpus: Number
    active_gpus: Number
    gap_gpus: Number
    measured_ratio: Number
    allocation_ratio: Number
    hardware_ratio: Number
    real_utilization_ratio: Number
    workloads: int


class PoolRow(UseRow):
    """One pool."""

    nodes: int


class WorkCounts(TypedDict):
    """Workloads by state."""

    running: int
    pending: int


class FleetView(TypedDict):
    """The fleet now, and by pool. `window_s`: the window of the activity."""

    tick: int
    now_s: float
    window_s: float
    signals: Measures
    fleet: UseRow
    pools: list[PoolRow]
    nodes: int
    gpus: int
    workloads: WorkCounts
    gaps: int


class HistoryView(TypedDict):
    """The fleet over the last day in columns, one point for each `bucket_s`."""

    bucket_s: float
    at_s: list[float]
    capacity_gpus: list[Number]
    held_gpus: list[Number]
    active_gpus: list[Number]
    gap_gpus: list[Number]
    pending_gpus: list[Number]
    measured_gpus: list[Number]


class TenantRow(UseRow):
    """One tenant."""

    pending_gpus: float
    pending_workloads: int
    oldest_pending_s: Number
    idle_gpus: Number


class QueueShare(TypedDict):
    """One queue: its guarantee, and what it holds and waits for."""

    name: str
    parent: str | None
    guaranteed_gpus: float
    limit_gpus: int | None
    held_gpus: Number
    active_gpus: Number
    measured_ratio: Number
    pending_gpus: float


class TenantsView(TypedDict):
    """Every tenant and queue that holds GPUs or waits, and every queue with a guarantee."""

    tick: int
    now_s: float
    tenants: list[TenantRow]
    queues: list[QueueShare]


_Named = TypedDict("_Named", {"class": str})  # a keyword cannot be a field of a class


class PendingWorkload(_Named):
    """A workload that waits, and why. `proposal`: the id of what is proposed for it."""

    id: str
    tenant: str
    queue: str
    gpus: int
    gpu_share: Number
    profile: str | None
    members: int
    priority: int
    since_submission_s: Number
    restart: int
    code: str
    words: str
    proposal: str | None


class ReasonCount(TypedDict):
    """How many workloads wait for one reason."""

    code: str
    workloads: int


class QueueView(TypedDict):
    """Work that waits, in the order in which it will be served."""

    tick: int
    now_s: float
    halted: str | None
    in_total: int
    found: int
    reasons: list[ReasonCount]
    workloads: list[PendingWorkload]


class WorkloadStory(TypedDict):
    """What happens to one workload and why, in lines."""

    id: str
    lines: list[str]


class ProfileRow(TypedDict):
    """A MIG profile and its compute slices; null for a name that is no profile of NVIDIA."""

    name: str
    slices: int | None


class NodeColumns(TypedDict):
    """All nodes. `pool` and `model` are places in `pools` and `models`."""

    id: list[str]
    pool: list[int]
    model: list[int]
    gpus: list[int]
    ready: list[bool]
    cordoned: list[bool]
    spot: list[bool]
    reclaimed: list[bool]


class GpuColumns(TypedDict):
    """All GPUs, by node in the order of the nodes. `held_milli`: thousandths of each GPU held by workloads."""

    held_milli: list[int]
    activity_percent: list[int | None]
    healthy: list[int]
    mig: list[int]
    recut: list[int]


class NodesView(TypedDict):
    """The map. `instances`: GPU, profile, first slice, held (0 or 1)."""

    tick: int
    now_s: float
    window_s: float
    pools: list[str]
    models: list[str]
    profiles: list[ProfileRow]
    nodes: NodeColumns
    gpus: GpuColumns
    instances: list[tuple[int, int, int, int]]


class HolderRow(TypedDict):
    """A workload on a GPU."""

    id: str
    tenant: str
    gpu_share: float
    instance: str | None


class InstanceRow(TypedDict):
    """A MIG instance."""

    id: str
    profile: str
    start: int
    activity_ratio: Number


class GpuRow(TypedDict):
    """One GPU of a node."""

    uuid: str
    index: int
    healthy: bool
    xid: int | None
    mig: bool
    recut: str
    quarantined: str | None  # why it takes no new work after a change of its MIG geometry
    activity_ratio: Number
    workloads: list[HolderRow]
    instances: list[InstanceRow]


class NodeView(TypedDict):
    """One node with its GPUs."""

    id: str
    pool: str
    model: str
    ready: bool
    cordoned: bool
    spot: bool
    reclaim_at_s: Number
    gpus: list[GpuRow]


class RequestRates(TypedDict):
    """Measured requests/s of a service in columns."""

    at_s: list[float]
    requests_per_s: list[float]


class DemandRow(TypedDict):
    """A forecast: `values` by horizon and level; promised coverage is in `levels`, delivered in `coverage`."""

    kind: str
    model: str
    made_s: Number
    horizons_s: list[float]
    levels: list[float]
    values: list[list[Number]]
    coverage: list[Number] | list[list[Number]] | None
    outcomes: list[Number] | list[list[Number]] | None
    drifting: bool | None
    abstains: str | None


class ServiceRow(TypedDict):
    """A service with its objective, past rate and demand."""

    name: str
    objective_s: Number
    p99_s: Number
    role: str
    ttft_objective_s: Number
    ttft_p99_s: Number
    itl_objective_s: Number
    itl_p99_s: Number
    late_ratio: Number
    rate: Number
    queued: Number
    replicas: int
    ready_replicas: int
    floor: int
    past: RequestRates
    demand: list[DemandRow]


class GangKind(TypedDict):
    """A kind of gang and how many of it are expected: by horizon, and by horizon and level."""

    words: str
    models: str
    expected: list[Number]
    counts: list[list[Number]]


class MixRow(TypedDict):
    """The expected mix of gangs, or the reason why there is none."""

    reason: str | None
    kinds: list[GangKind]
    horizons_s: list[float]
    made_s: NotRequired[Number]
    watched_h: NotRequired[Number]
    levels: NotRequired[list[float]]


class RuntimesRow(TypedDict):
    """The model of run times, and the share of jobs whose run time it knows."""

    model: str
    known_ratio: Number


class ForecastsView(TypedDict):
    """Forecasts with their bands."""

    tick: int
    now_s: float
    services: list[ServiceRow]
    services_in_total: int
    mix: MixRow | None
    runtimes: RuntimesRow | None
