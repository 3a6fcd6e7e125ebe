"""Answers of the views of the fleet, for the OpenAPI schema; see `answers`."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from autopilot.http.answers import Measures, Number


class Aged(TypedDict):
    """A view of the last tick. If that tick did not see the cluster, each field about the cluster is null.

    `age_s`: of the last trusted view of the cluster, `telemetry_age_s`: of the newest sample; both in seconds of the
    service's monotonic clock, so they grow while nothing ticks. null: never.
    """

    tick: int
    now_s: float
    age_s: Number
    telemetry_age_s: Number


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
    workloads: int | None


class PoolRow(UseRow):
    """One pool."""

    nodes: int


class WorkCounts(TypedDict):
    """Workloads by state."""

    running: int | None
    pending: int | None


class FleetView(Aged):
    """The fleet now, and by pool. `window_s`: the window of the activity."""

    window_s: float
    signals: Measures
    fleet: UseRow
    pools: list[PoolRow] | None
    nodes: int | None
    gpus: int | None
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
    """One queue: its guarantee, and its held and requested GPUs."""

    name: str
    parent: str | None
    guaranteed_gpus: float
    limit_gpus: int | None
    held_gpus: Number
    active_gpus: Number
    measured_ratio: Number
    pending_gpus: float


class TenantsView(Aged):
    """Every tenant and queue with GPUs or waiting work, and every queue with a guarantee."""

    tenants: list[TenantRow] | None
    queues: list[QueueShare] | None


_Named = TypedDict("_Named", {"class": str})  # a keyword cannot be a field of a class


class WorkloadBasics(_Named):
    """The identity, the request and the owner of a workload."""

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
    trust: str
    share: str


class Neighbour(TypedDict):
    """Another workload on the same GPUs, and their number."""

    id: str
    tenant: str
    gpus: int


class SlowedBy(TypedDict):
    """A neighbour since whose arrival a workload takes `rise_ratio` times as long, and `now_ratio` times now."""

    id: str
    near: Literal["gpu", "numa", "node"]
    state: Literal["suspected", "paused", "confirmed", "cleared"]
    rise_ratio: float
    now_ratio: Number


class HeldUpBy(TypedDict):
    """A member of a gang that computes `slow_ratio` times as long as its peers. `suspect_gangs`: in which its GPU was
    slow; 0: in this one alone.
    """

    node: str
    gpu: str
    rank: int
    slow_ratio: float
    evidence: list[str]
    confidence: float
    lost_gpu_s_per_h: float
    suspect_gangs: int


class PendingWorkload(WorkloadBasics):
    """A waiting workload with the reason. `proposal`: id of its proposal.

    `expected_start_s`: of its reservation; null without one, and if no forecast gives a start.
    """

    code: str
    words: str
    proposal: str | None
    expected_start_s: Number


class ReasonCount(TypedDict):
    """Number of workloads waiting for one reason."""

    code: str
    workloads: int


class QueueView(Aged):
    """Waiting work in the order of service."""

    halted: str | None
    in_total: int | None
    found: int | None
    reasons: list[ReasonCount] | None
    workloads: list[PendingWorkload] | None


class WorkloadRow(WorkloadBasics):
    """A workload on GPUs or waiting. `code` and `words`: reason for its wait, null if it holds GPUs.

    `activity_ratio`: SM activity of the measured part of its GPUs; estimated if it shares a GPU, or has held its GPUs
    for less than the window. `since_s`: time of submission while it waits, otherwise of its start. `expected_end_s`: by
    forecast, at most its time limit; the limit itself (`end_by_limit`) without a forecast. `beside`: who shares its
    GPUs; then the activity is a part of the device's. `rate_ratio`: its rate on shares over that alone, `measured` by
    its steps or `estimated`.
    """

    state: str
    held_gpus: Number
    nodes: list[str]
    beside: list[Neighbour]
    slowed_by: list[SlowedBy]
    held_up_by: list[HeldUpBy]
    rate_ratio: Number
    rate_basis: Literal["measured", "estimated"] | None
    predicted_rate_ratio: Number
    activity_ratio: Number
    activity_estimated: bool
    measured_ratio: Number
    since_s: Number
    expected_end_s: Number
    end_by_limit: bool
    expected_start_s: Number
    code: str | None
    words: str | None
    proposal: str | None


class WorkloadsView(Aged):
    """Work on GPUs and waiting work. `window_s`: of the activity; `level`: quantile of run times of expected ends."""

    window_s: float
    level: float
    in_total: int | None
    found: int | None
    workloads: list[WorkloadRow] | None


class WorkloadStory(TypedDict):
    """The story of one workload with its reasons, in lines."""

    id: str
    lines: list[str]


class TickStory(TypedDict):
    """The decision of the last tick, in lines."""

    tick: int
    now_s: float
    lines: list[str]


class RecordFiles(TypedDict):
    """Names of files."""

    files: list[str]


class ProfileRow(TypedDict):
    """A MIG profile and its compute slices; null for a name outside NVIDIA's profiles."""

    name: str
    slices: int | None


class NodeColumns(TypedDict):
    """All nodes. `pool` and `model` are places in `pools` and `models`."""

    id: list[str] | None
    pool: list[int] | None
    model: list[int] | None
    gpus: list[int] | None
    ready: list[bool] | None
    cordoned: list[bool] | None
    spot: list[bool] | None
    reclaimed: list[bool] | None


class GpuColumns(TypedDict):
    """All GPUs, by node in the order of the nodes. `held_milli`: thousandths of each GPU held by workloads."""

    held_milli: list[int] | None
    activity_percent: list[int | None] | None
    healthy: list[int] | None
    mig: list[int] | None
    recut: list[int] | None


class NodesView(Aged):
    """The map. `instances`: GPU, profile, first slice, held (0 or 1)."""

    window_s: float
    pools: list[str] | None
    models: list[str] | None
    profiles: list[ProfileRow] | None
    nodes: NodeColumns
    gpus: GpuColumns
    instances: list[tuple[int, int, int, int]] | None


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
    quarantined: str | None  # reason for its quarantine after a change of its MIG geometry
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
    sharing: str  # whole, time-slicing or mps; whole with several replicas: by a mechanism that is not stated
    replicas: int
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
    """A kind of gang and its expected number: by horizon, and by horizon and level."""

    words: str
    models: str
    expected: list[Number]
    counts: list[list[Number]]


class MixRow(TypedDict):
    """The expected mix of gangs, or the reason for its absence."""

    reason: str | None
    kinds: list[GangKind]
    horizons_s: list[float]
    made_s: NotRequired[Number]
    watched_h: NotRequired[Number]
    levels: NotRequired[list[float]]


class RuntimesRow(TypedDict):
    """The model of run times, and the share of jobs with a known run time."""

    model: str
    known_ratio: Number


class ForecastsView(Aged):
    """Forecasts with their bands."""

    services: list[ServiceRow] | None
    services_in_total: int | None
    mix: MixRow | None
    runtimes: RuntimesRow | None
