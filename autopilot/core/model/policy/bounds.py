"""Sections of the policy, one per concern: recovery, enforcement, hysteresis, budgets, freshness, limits, placement."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from annotated_types import Interval
from typing_extensions import Doc

DAY_S = 86_400.0


class SloClassName(StrEnum):
    """The SLO classes by name, in the order of `snapshot.SLO_CLASS_NAMES`."""

    LATENCY_CRITICAL = "latency-critical"
    INTERACTIVE = "interactive"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Recovery:
    """Recovery of gangs from broken members, GPUs and nodes."""

    stale_grace_s: Annotated[
        float,
        Interval(ge=0, le=DAY_S),
        Doc("a gang below its minimum of live members is stopped after this long"),
    ] = 60.0
    notice_margin_s: Annotated[
        float,
        Interval(ge=0, le=3600),
        Doc(
            "work on a spot node that will be reclaimed runs on until this long before the last moment at which its "
            "checkpoint must be requested"
        ),
    ] = 60.0
    # evicted work that still holds its GPUs this long after its grace is stopped by force
    stuck_after_s: ClassVar[float] = 900.0
    hung_after_s: Annotated[
        float,
        Interval(ge=1800, le=7 * DAY_S),
        Doc("a gang of several GPUs is restarted when fresh telemetry shows all of them inactive for this long"),
    ] = 3600.0
    # a GPU whose activity (SM, tensor, memory) is below this is inactive
    hung_ratio: ClassVar[float] = 0.01
    # if more than this share of the running gangs of one telemetry source, and more than one gang, are
    # inactive at once, the telemetry is at fault and none of them is stopped
    hung_share: ClassVar[float] = 0.25
    # an inactive gang is stopped only if at least this share of the other work measured by the same telemetry
    # source, and at least one workload, is active
    alive_share: ClassVar[float] = 0.25
    # how often an inactive gang is restarted; afterwards it is left to its owner, and a note reports it
    hung_restarts: ClassVar[int] = 1
    # a coordinator whose own workers have waited this long for GPUs is stopped and starts again after them
    coordinator_wait_s: ClassVar[float] = 900.0


@dataclass(frozen=True, slots=True)
class Enforcement:
    """Enforcement of run-time limits and of tenants' spending."""

    grace_s: Annotated[
        float,
        Interval(ge=0, le=7 * DAY_S),
        Doc("work past its run-time limit is warned, then suspended with a checkpoint this long after its limit"),
    ] = 900.0
    spend_ratio: Annotated[
        float,
        Interval(ge=1, le=1000),
        Doc("the use of a tenant is runaway if its last day exceeds this many times the mean day of its last 30 days"),
    ] = 1.3
    spend_floor_gpu_s: Annotated[
        float,
        Interval(ge=0, le=1e12),
        Doc("use of a day up to which no tenant is judged runaway"),
    ] = 24 * 3600.0
    spend_suspends: Annotated[
        bool,
        Doc(
            "also suspend work of a runaway tenant above the guarantee of its queue; otherwise the tenant is only "
            "warned"
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """How long a proposal must last before it acts, and how long a disrupted workload is left alone."""

    dwell_s: Annotated[
        float, Interval(ge=0, le=DAY_S), Doc("a disruptive proposal must last this long before it may act")
    ] = 300.0
    cool_down_s: Annotated[
        float,
        Interval(ge=0, le=7 * DAY_S),
        Doc(
            "after a disruption, a workload is not disrupted again for this long, and does not make other work of its "
            "queue pause"
        ),
    ] = 1800.0
    margin_ratio: Annotated[float, Interval(ge=0, le=10), Doc("gain must exceed cost by this part of the cost")] = 0.2


@dataclass(frozen=True, slots=True)
class RoomRules:
    """Room for replicas of services that find no place (action `make_room`)."""

    # value of one GPU-second of serving capacity that a load lacks, in GPU-seconds of batch work
    late_weight: ClassVar[float] = 16.0
    delay_s: Annotated[
        float,
        Interval(ge=0, le=3600),
        Doc("a source of room that takes longer than this to deliver is not used"),
    ] = 300.0
    dwell_s: Annotated[
        float,
        Interval(ge=0, le=DAY_S),
        Doc("room that was made for a forecast load is kept for at least this long"),
    ] = 900.0
    reversal_s: Annotated[
        float,
        Interval(ge=0, le=DAY_S),
        Doc(
            "the room of one service is returned at most once within this time, and a workload is stopped for room at "
            "most once"
        ),
    ] = 3600.0
    keep_s: Annotated[
        float,
        Interval(ge=0, le=3600),
        Doc(
            "GPUs for replicas that a forecast calls for within this time, at most its longest horizon, are kept from "
            "work that would outlive it; 0: no GPUs are kept"
        ),
    ] = 900.0


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on disruptions within a sliding window of `window_s`; evictions by contract do not count."""

    window_s: Annotated[float, Interval(ge=60, le=7 * DAY_S), Doc("length of the sliding window")] = 3600.0
    per_cluster: Annotated[int, Interval(ge=0, le=1_000_000), Doc("disruptions per window in the whole cluster")] = 20
    per_tenant: Annotated[
        int, Interval(ge=0, le=1_000_000), Doc("disruptions per window of the work of one tenant")
    ] = 5
    per_node: Annotated[int, Interval(ge=0, le=1_000_000), Doc("disruptions per window that affect one node")] = 2
    concurrent: Annotated[int, Interval(ge=0, le=1_000_000), Doc("disruptions under way at once")] = 4


@dataclass(frozen=True, slots=True)
class Freshness:
    """Maximum age of observed data for an action to rely on it."""

    inventory_s: Annotated[
        float, Interval(ge=1, le=DAY_S), Doc("maximum age of the list of nodes, GPUs and instances")
    ] = 120.0
    work_s: Annotated[
        float, Interval(ge=1, le=DAY_S), Doc("maximum age of the list of workloads and their placements")
    ] = 60.0
    telemetry_s: Annotated[
        float, Interval(ge=1, le=DAY_S), Doc("maximum age of telemetry, for actions that rely on it")
    ] = 180.0


@dataclass(frozen=True, slots=True)
class Views:
    """When a list with far fewer objects than before is trusted."""

    objects: Annotated[
        int, Interval(ge=1, le=1_000_000), Doc("sources with fewer objects than this are never suspected")
    ] = 20
    # a source is suspected, and nothing acts, if more than this part of its objects is missing from its next
    # complete list without a reported deletion and without being shown as ended
    loss_ratio: ClassVar[float] = 0.5
    lists: Annotated[
        int,
        Interval(ge=1, le=100),
        Doc("complete lists that must agree before a suspected source is trusted again"),
    ] = 3
    apart_s: Annotated[float, Interval(ge=0, le=3600), Doc("minimum time between these lists")] = 30.0
    look_again_s: Annotated[
        float,
        Interval(ge=1, le=3600),
        Doc("while a view is missing, stale or suspected, the next tick is due after this long"),
    ] = 15.0


@dataclass(frozen=True, slots=True)
class Protection:
    """Work that is never a victim, at any gain."""

    classes: Annotated[
        tuple[SloClassName, ...],
        Doc("SLO classes whose work is protected: inside the guarantee of its queue it is never evicted"),
    ] = (SloClassName.LATENCY_CRITICAL,)
    min_runtime_s: Annotated[
        float, Interval(ge=0, le=7 * DAY_S), Doc("work that has run for less than this is not a victim")
    ] = 900.0
    most_stops: Annotated[
        int,
        Interval(ge=0, le=10_000),
        Doc(
            "work is stopped or moved for other work at most this often, contracts and idle work apart; after the "
            "first time it runs for an equal part of its predicted rest before the next"
        ),
    ] = 8


@dataclass(frozen=True, slots=True)
class Pause:
    """When the autopilot pauses itself."""

    failures: Annotated[
        int,
        Interval(ge=1, le=1000),
        Doc("failed effects on three objects or more within the window that pause every action"),
    ] = 5
    window_s: Annotated[float, Interval(ge=60, le=DAY_S), Doc("length of that window")] = 900.0
    length_s: Annotated[float, Interval(ge=60, le=7 * DAY_S), Doc("the pause ends after this long")] = 1800.0


@dataclass(frozen=True, slots=True)
class ApprovalRules:
    """What an approval covers, how long it or a rejection holds, and when a recommendation is shown anew."""

    valid_s: Annotated[float, Interval(ge=1, le=7 * DAY_S), Doc("an approval ends this long after it was given")] = (
        900.0
    )
    # an approval covers a cost of at most this many times the cost shown
    cost_ratio: ClassVar[float] = 1.2
    # or of at most this much more than the cost shown, if that is greater
    cost_slack_gpu_s: ClassVar[float] = 360.0
    margin_ratio: Annotated[
        float,
        Interval(ge=0, le=1),
        Doc(
            "a recommendation keeps its plan until one with other victims costs less by this part, and its figures "
            "until they differ by this part"
        ),
    ] = 0.2
    # a rejection holds for this long where the person states no other time
    rejected_s: ClassVar[float] = 3600.0


@dataclass(frozen=True, slots=True)
class ClockRules:
    """When the clock is trusted."""

    # the clock has jumped, and nothing acts, if it moved by more than this much more or less than the time
    # that passed; smaller differences move every timer with the clock
    max_jump_s: ClassVar[float] = 60.0
    # a clock that jumped is trusted after this many consistent ticks in a row
    confirm_ticks: ClassVar[int] = 3
    # a time that a source states further in the future than this is treated as unknown
    max_skew_s: ClassVar[float] = 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one tick, and of effects."""

    proposals_per_tick: Annotated[int, Interval(ge=1, le=100_000), Doc("complete proposals built in one tick")] = 2000
    search_steps: Annotated[
        int,
        Interval(ge=1000, le=100_000_000),
        Doc(
            "steps of work, about 1 us each, after which an action starts no further search for victims or moves in "
            "this tick; forty times as many for preemption by contract; a search already running is completed"
        ),
    ] = 50_000
    deadline_s: Annotated[
        float, Interval(ge=1, le=3600), Doc("an effect that is not observed after this long is withdrawn")
    ] = 120.0
    attempts: Annotated[int, Interval(ge=1, le=100), Doc("attempts at one effect before it counts as failed")] = 3


@dataclass(frozen=True, slots=True)
class JournalRules:
    """Size and age of the journal."""

    keyframe_s: Annotated[float, Interval(ge=1, le=DAY_S), Doc("time between two keyframes (whole observations)")] = (
        600.0
    )
    keyframe_ticks: Annotated[int, Interval(ge=1, le=100_000), Doc("minimum number of ticks between two keyframes")] = (
        64
    )
    max_mib: Annotated[
        int, Interval(ge=1, le=1_000_000), Doc("the oldest whole segments are dropped above this size")
    ] = 2048
    max_age_s: Annotated[float, Interval(ge=3600, le=3660 * DAY_S), Doc("segments older than this are dropped")] = (
        30 * DAY_S
    )


@dataclass(frozen=True, slots=True)
class Forecasting:
    """How forecasting models are fitted; the work of a fit is counted in rows x trees."""

    fit_delay_s: Annotated[
        float,
        Interval(ge=0, le=DAY_S),
        Doc("in a simulation: virtual time from the start of a fit until its result is used"),
    ] = 300.0
    fit_cpu_s: Annotated[float, Interval(ge=1, le=DAY_S), Doc("live: a fit is stopped after this much CPU time")] = (
        180.0
    )
    fit_timeout_s: Annotated[
        float,
        Interval(ge=1, le=DAY_S),
        Doc("live: a fit is stopped after this much wall time"),
    ] = 1800.0
    retrain_s: Annotated[
        float, Interval(ge=3600, le=366 * DAY_S), Doc("run-time models older than this are fitted again")
    ] = 7 * DAY_S
    growth_ratio: Annotated[
        float,
        Interval(ge=0.05, le=10),
        Doc("run-time models are fitted earlier once the history has grown by this part"),
    ] = 0.5
    most_rows: Annotated[int, Interval(ge=1000, le=1_000_000), Doc("ended jobs that a fit uses, newest first")] = 8000
    trees: Annotated[int, Interval(ge=10, le=1000), Doc("trees of each run-time model")] = 60


@dataclass(frozen=True, slots=True)
class PlacementWeights:
    """Weights of the placement score (higher is better); each term is shown with every admission."""

    fill: Annotated[
        float,
        Interval(ge=-100, le=100),
        Doc("prefer the fullest node that fits; a negative weight prefers the emptiest and spreads the load"),
    ] = 10.0
    island: Annotated[float, Interval(ge=0, le=100), Doc("prefer one NVLink island for a gang of several nodes")] = 2.0
    leaf: Annotated[float, Interval(ge=0, le=100), Doc("prefer one leaf switch for a gang of several nodes")] = 1.0
    drain: Annotated[
        float, Interval(ge=0, le=100), Doc("prefer the node whose running work ends at a similar time")
    ] = 0.0
    replicas: Annotated[
        float,
        Interval(ge=0, le=100),
        Doc("keep the replicas of a service apart: what each of them on a node costs it, and half of that in its zone"),
    ] = 0.0
    spot_saves: Annotated[
        bool, Doc("start work on spot nodes only if it writes checkpoints, by itself or on request, as it declares")
    ] = False
