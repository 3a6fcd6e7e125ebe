"""The policy: one tree of frozen dataclasses.

Each field carries its limits (annotated_types) and its meaning (Doc). Settings, the custom resource and the reference
page are derived from this tree. Durations are in seconds here; policy files may also write `15m`. The defaults are
meant for an unknown cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar

from annotated_types import Interval
from typing_extensions import Doc

from autopilot.core.model.errors import InputError
from autopilot.core.model.hours import parse_hours
from autopilot.core.model.modes import ACTIONS_WITH as ACTIONS_WITH
from autopilot.core.model.modes import Effect as Effect
from autopilot.core.model.modes import Mode as Mode
from autopilot.core.model.modes import Modes as Modes
from autopilot.core.model.policy.ahead import DefragmentAhead
from autopilot.core.model.policy.bounds import (
    DAY_S,
    ApprovalRules,
    Budget,
    ClockRules,
    Enforcement,
    Forecasting,
    Freshness,
    Hysteresis,
    JournalRules,
    Limits,
    Pause,
    PlacementWeights,
    Protection,
    Recovery,
    RoomRules,
    Views,
)
from autopilot.core.model.policy.capacity import Capacity
from autopilot.core.model.policy.geometry import Regeometry
from autopilot.core.model.policy.idle import Idle
from autopilot.core.model.policy.promises import Promises
from autopilot.core.model.policy.sharing import SharingRules
from autopilot.core.model.policy.storms import Storms
from autopilot.core.model.policy.tenancy import Elastic
from autopilot.core.model.policy.tenancy import GuaranteeRule as GuaranteeRule
from autopilot.core.model.policy.tenancy import ShareRule as ShareRule
from autopilot.core.model.policy.tenancy import Tenancy as Tenancy

Seconds = Annotated[float, Interval(ge=0.0, le=366 * DAY_S)]
Count = Annotated[int, Interval(ge=0, le=1_000_000)]


class BackfillKind(StrEnum):
    """Which reservations backfilled work must respect."""

    EASY = "easy"  # those of the first gangs in order (reservation.depth)
    CONSERVATIVE = "conservative"  # those of up to reservation.conservative_depth waiting gangs


class RuleSetName(StrEnum):
    """Rule sets for quotas, preemption and reclaim (core/quota/rules)."""

    HIERARCHICAL_FAIR_SHARE = "hierarchical-fair-share"  # our own; KAI's when past use does not count
    COHORT_CLASSIC = "cohort-classic"  # Kueue, classic preemption
    COHORT_FAIR = "cohort-fair"  # Kueue, fair sharing
    ELASTIC_QUOTA = "elastic-quota"  # minima and maxima per team


@dataclass(frozen=True, slots=True)
class Review:
    """How often values that vary with time alone are evaluated."""

    batch_s: Annotated[
        float, Interval(ge=1, le=3600), Doc("review period of the batch order and of run-time quantiles")
    ] = 300.0


@dataclass(frozen=True, slots=True)
class Order:
    """Order inside a queue whose `order` is `index`."""

    short_s: Annotated[
        float,
        Interval(ge=0, le=7 * DAY_S),
        Doc(
            "gangs whose median run time is at most this are served first, shortest first; they may start in spite of "
            "reservations"
        ),
    ] = 7200.0
    width_exponent: Annotated[
        float,
        Interval(ge=0, le=2),
        Doc(
            "alpha in 1 / (expected run time x gpus^alpha); 1: even if a pause is cheap, a wide gang waits for many "
            "narrow ones rather than pause all of them"
        ),
    ] = 1.0
    aging_s: Annotated[
        float,
        Interval(ge=60, le=366 * DAY_S),
        Doc(
            "scale of aging: waiting time that counts as one unit, for work that never ran; it bounds the 99th "
            "percentile of the first start"
        ),
    ] = DAY_S / 2
    aging_exponent: Annotated[
        float,
        Interval(ge=0, le=4),
        Doc("the index of work that never ran is multiplied by (1 + wait / aging_s)^this; 0: no aging"),
    ] = 1.0
    hazard_weight: Annotated[
        float,
        Interval(ge=0, le=1),
        Doc(
            "weight of the hazard index against the index of the run-time forecast, as exponents that sum to 1; jobs "
            "without a hazard index keep the other one; 0: not used"
        ),
    ] = 0.0
    max_wait_s: Annotated[
        float,
        Interval(ge=60, le=366 * DAY_S),
        Doc("gangs that have waited longer are served first, oldest first: a safety net far above the usual wait"),
    ] = 7 * DAY_S


@dataclass(frozen=True, slots=True)
class ReservationRules:
    """Room held for gangs that do not fit yet.

    A reservation is first tentative: it is planned again at every tick, for the first gangs in order. Once its gang
    has waited `firm_after_s`, it is firm: a promise, kept until the gang starts or it times out.
    """

    depth: Annotated[
        int,
        Interval(ge=0, le=30),
        Doc(
            "gangs that may hold a reservation at once; 0: none, because a wide gang starts by pausing other work, and "
            "holding idle room for it would waste that room"
        ),
    ] = 0
    conservative_depth: Annotated[int, Interval(ge=1, le=30), Doc("depth under conservative backfill")] = 16
    whole_nodes_only: Annotated[
        bool,
        Doc("only gangs that need at least one whole node get a reservation; smaller gangs start in gaps"),
    ] = True
    firm_after_s: Annotated[
        float,
        Interval(ge=0, le=366 * DAY_S),
        Doc("waiting time after which a reservation is a promise; promises are served in the order they were made"),
    ] = 2.75 * DAY_S
    level: Annotated[
        float,
        Interval(ge=0.05, le=0.99),
        Doc("quantile of the remaining run times that gives the planned start"),
    ] = 0.5
    promise_level: Annotated[
        float,
        Interval(ge=0.05, le=0.99),
        Doc("quantile of the remaining run times that gives the promised start"),
    ] = 0.95
    max_spread_ratio: Annotated[
        float,
        Interval(ge=1, le=1e6),
        Doc(
            "only overdue gangs get a reservation while the spread of the run-time forecasts (0.75 over 0.25 "
            "quantile) is above this: room held on a poor forecast is wasted"
        ),
    ] = 4.0
    timeout_s: Annotated[
        float,
        Interval(ge=60, le=366 * DAY_S),
        Doc("a firm reservation is released when its planned start is this much later than first planned"),
    ] = 7 * DAY_S
    share_hold_s: Annotated[
        float,
        Interval(ge=0, le=DAY_S),
        Doc(
            "GPUs that come free are held for a gang of a queue below its fair share that will start within this "
            "time; where queues share time, for a gang that waits for the part of its queue; 0: never"
        ),
    ] = 600.0
    advance_lead_s: Annotated[
        float,
        Interval(ge=0, le=366 * DAY_S),
        Doc("GPUs of an advance reservation are drained from this long before its start"),
    ] = 7 * DAY_S
    cool_down_s: Annotated[
        float,
        Interval(ge=0, le=366 * DAY_S),
        Doc("after its firm reservation was released, a gang gets no new one for this long"),
    ] = 3600.0


@dataclass(frozen=True, slots=True)
class BackfillRules:
    """Work started in the gap before a reservation."""

    kind: Annotated[BackfillKind, Doc("easy or conservative")] = BackfillKind.EASY
    level: Annotated[
        float, Interval(ge=0.5, le=0.99), Doc("quantile of the run time that must end before the reservation")
    ] = 0.9
    evict_when_due: Annotated[bool, Doc("evict backfilled work as soon as the reserved gang can start without it")] = (
        True
    )


@dataclass(frozen=True, slots=True)
class Preemption:
    """Preemption of running work."""

    grace_s: Annotated[
        float,
        Interval(ge=0, le=3600),
        Doc("time that a victim has to write a checkpoint before it is stopped"),
    ] = 120.0
    without_checkpoint: Annotated[
        bool,
        Doc(
            "gangs that cannot write a checkpoint in time may also be victims of weighed preemptions; otherwise they "
            "keep their place and other victims are sought"
        ),
    ] = False
    checkpoint_writers: Annotated[
        int,
        Interval(ge=0, le=1_000_000),
        Doc(
            "checkpoints written to the store at the same time, most work saved per byte first; a gang without a "
            "turn within the grace is stopped and continues from its last periodic checkpoint; 0: no limit"
        ),
    ] = 0
    saves_prior: Annotated[
        float,
        Interval(ge=0, le=1),
        Doc(
            "assumed probability that work declaring checkpoint-on-request saves on eviction, as long as "
            "no request to it or to its tenant was answered; 0: a save is never counted on"
        ),
    ] = 0.0
    waiting_weight: Annotated[
        float,
        Interval(ge=0, le=1e9),
        Doc(
            "price of one GPU-second that a victim waits again, in GPU-seconds; a victim is assumed to wait until "
            "the newcomer ends"
        ),
    ] = 0.1
    move_victims: Annotated[bool, Doc("move a victim that fits elsewhere instead of stopping it")] = True
    priority_weight: Annotated[
        float,
        Interval(ge=0, le=1e9),
        Doc("value of one GPU-second of waiting that work of higher priority is spared, in GPU-seconds"),
    ] = 1.0
    time_sharing: Annotated[
        bool, Doc("waiting work may pause running preemptible work of lower index in the same queue")
    ] = True
    index_ratio: Annotated[
        float,
        Interval(ge=1, le=1000),
        Doc("the index of the waiting work must be this many times higher: the hysteresis of time sharing"),
    ] = 3.0
    pipelined_timeout_s: Annotated[
        float,
        Interval(ge=1, le=DAY_S),
        Doc("a pipelined start that still waits for its victims after this long is given up"),
    ] = 600.0
    blast_ratio: Annotated[
        float,
        Interval(ge=1, le=1e6),
        Doc("GPUs taken from victims are at most this multiple of the GPUs needed"),
    ] = 4.0


@dataclass(frozen=True, slots=True)
class ScaleAhead:
    """Replicas ahead of the load: a floor below which the autoscaler of the service does not go.

    These replicas start on free and borrowed capacity. Only the action `make_room` preempts work for them.
    """

    level: Annotated[
        float,
        Interval(ge=0.5, le=0.999),
        Doc(
            "quantile of the demand that the floor serves at the owner's target: 0.5 is the median demand, 0.9 and "
            "more are bounds that the highest demand within the lead time stays below with this probability; a higher "
            "level is safer and costs more"
        ),
    ] = 0.6
    lead_s: Annotated[
        float,
        Interval(ge=1, le=DAY_S),
        Doc(
            "lead time as long as no start-up of a replica was measured; afterwards it is the 0.9 quantile of the "
            "latest start-ups"
        ),
    ] = 300.0
    dwell_s: Annotated[
        float,
        Interval(ge=0, le=DAY_S),
        Doc("a floor is at least the highest number of replicas desired within this time"),
    ] = 300.0
    # a floor that is not renewed lapses after this long, even if the autopilot is gone; it is renewed after
    # half of this time
    lease_s: ClassVar[float] = 1800.0
    most_ratio: Annotated[
        float,
        Interval(ge=1, le=1000),
        Doc("a floor is at most this multiple of the replicas that the present load needs"),
    ] = 4.0
    forecast_age_s: Annotated[float, Interval(ge=1, le=DAY_S), Doc("a forecast older than this is not used")] = 180.0
    # outcomes that must be known before a forecast is used
    least_outcomes: ClassVar[int] = 30
    # how far the share of outcomes within the promise may be below the promised level
    coverage_slack: ClassVar[float] = 0.03
    violation_ratio: Annotated[
        float,
        Interval(ge=0, le=1),
        Doc("a load counts as served up to this share of requests over the objective; 0.01 makes the objective a p99"),
    ] = 0.01


@dataclass(frozen=True, slots=True)
class Policy:
    """The complete policy."""

    name: Annotated[str, Doc("name, shown with every result")] = "default"
    edition: Annotated[
        int,
        Interval(ge=0, le=1000),
        Doc(
            "edition of the shipped policy from which the modes come that the file does not name; 0: that of the "
            "version which made the first decision of this installation"
        ),
    ] = 0
    horizon_s: Annotated[float, Interval(ge=60, le=30 * DAY_S), Doc("gain and cost are counted within this time")] = (
        DAY_S
    )
    modes: Annotated[Modes, Doc("how far each action may go")] = field(default_factory=Modes)
    rules: Annotated[
        RuleSetName,
        Doc("rule set for starts, preemption and reclaim: our own, or the rules of another scheduler"),
    ] = RuleSetName.HIERARCHICAL_FAIR_SHARE
    review: Annotated[Review, Doc("review periods")] = field(default_factory=Review)
    order: Annotated[Order, Doc("order of service inside a queue")] = field(default_factory=Order)
    reservation: Annotated[ReservationRules, Doc("reservations")] = field(default_factory=ReservationRules)
    backfill: Annotated[BackfillRules, Doc("backfill")] = field(default_factory=BackfillRules)
    tenancy: Annotated[Tenancy, Doc("queues and shares")] = field(default_factory=Tenancy)
    elastic: Annotated[Elastic, Doc("the order where the guarantee of a queue is elastic or none")] = field(
        default_factory=Elastic
    )
    preemption: Annotated[Preemption, Doc("preemption of running work")] = field(default_factory=Preemption)
    regeometry: Annotated[Regeometry, Doc("changes of MIG geometry")] = field(default_factory=Regeometry)
    sharing: Annotated[SharingRules, Doc("nodes turned to sharing and back")] = field(default_factory=SharingRules)
    scale_ahead: Annotated[ScaleAhead, Doc("replicas ahead of the load")] = field(default_factory=ScaleAhead)
    room: Annotated[RoomRules, Doc("room for replicas")] = field(default_factory=RoomRules)
    defragment_ahead: Annotated[DefragmentAhead, Doc("moves ahead of the demand")] = field(
        default_factory=DefragmentAhead
    )
    capacity: Annotated[Capacity, Doc("nodes that an autoscaler adds and removes")] = field(default_factory=Capacity)
    storms: Annotated[Storms, Doc("storms")] = field(default_factory=Storms)
    promises: Annotated[Promises, Doc("promised and realised use")] = field(default_factory=Promises)
    recovery: Annotated[Recovery, Doc("recovery of broken work and hardware")] = field(default_factory=Recovery)
    enforcement: Annotated[Enforcement, Doc("work beyond its limits")] = field(default_factory=Enforcement)
    idle: Annotated[Idle, Doc("idle work")] = field(default_factory=Idle)
    placement: Annotated[PlacementWeights, Doc("placement score")] = field(default_factory=PlacementWeights)
    hysteresis: Annotated[Hysteresis, Doc("hysteresis")] = field(default_factory=Hysteresis)
    budget: Annotated[Budget, Doc("disruption budgets")] = field(default_factory=Budget)
    freshness: Annotated[Freshness, Doc("age limits")] = field(default_factory=Freshness)
    views: Annotated[Views, Doc("implausible views")] = field(default_factory=Views)
    protection: Annotated[Protection, Doc("what is never disrupted")] = field(default_factory=Protection)
    pause: Annotated[Pause, Doc("self-pause")] = field(default_factory=Pause)
    approval: Annotated[ApprovalRules, Doc("approvals and rejections")] = field(default_factory=ApprovalRules)
    clock: Annotated[ClockRules, Doc("when the clock is trusted")] = field(default_factory=ClockRules)
    limits: Annotated[Limits, Doc("bounds of one tick")] = field(default_factory=Limits)
    journal: Annotated[JournalRules, Doc("record keeping")] = field(default_factory=JournalRules)
    forecasting: Annotated[Forecasting, Doc("fits of models")] = field(default_factory=Forecasting)
    price_weight: Annotated[
        dict[str, float], Doc("price of a GPU model relative to the others; 1 for models not listed")
    ] = field(default_factory=dict)


def check_policy(policy: Policy) -> None:
    """Raise `InputError` if fields contradict each other. Limits of single fields are checked on reading."""
    if policy.hysteresis.dwell_s > policy.horizon_s:
        raise InputError(
            f"hysteresis.dwell_s: {policy.hysteresis.dwell_s:g} s is longer than horizon_s "
            f"({policy.horizon_s:g} s), so no disruptive action could ever pay off; shorten it"
        )
    if policy.budget.concurrent > policy.budget.per_cluster:
        raise InputError(
            f"budget.concurrent: {policy.budget.concurrent} exceeds budget.per_cluster "
            f"({policy.budget.per_cluster}); lower it or raise the other"
        )
    parse_hours(policy.idle.working_hours, "idle.working_hours")
    parse_hours(policy.defragment_ahead.peak_hours, "defragment_ahead.peak_hours")
    if not policy.tenancy.fair_preemption_rules:
        raise InputError("tenancy.fair_preemption_rules: the list is empty; name final_share, initial_share or both")
    for pool, most in policy.capacity.pools.items():
        if most < 0 or most != int(most):
            raise InputError(f"capacity.pools.{pool}: {most:g} is no number of nodes; write a whole number from 0 on")
    _check_sharing(policy)
    for model, weight in policy.price_weight.items():
        if not 0 < weight < 1000:
            raise InputError(f"price_weight.{model}: {weight:g} is out of range; write a number above 0 and below 1000")


def _check_sharing(policy: Policy) -> None:
    """Raise `InputError` where queues are to share time and nothing lets them."""
    tenancy = policy.tenancy
    if tenancy.guarantee is GuaranteeRule.STRICT and not tenancy.time_sharing:
        return
    path = "tenancy.time_sharing" if tenancy.time_sharing else f"tenancy.guarantee: {tenancy.guarantee}"
    if policy.rules is not RuleSetName.HIERARCHICAL_FAIR_SHARE:
        raise InputError(
            f"{path}: {policy.rules} decides itself what queues take from each other; leave it out, or set rules to "
            f"{RuleSetName.HIERARCHICAL_FAIR_SHARE}"
        )
    if not policy.preemption.time_sharing:
        raise InputError(
            f"{path}: queues share time only where work inside a queue does; set preemption.time_sharing: true too"
        )
