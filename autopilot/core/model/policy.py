"""What the operator wants: one tree of frozen dataclasses.

Each field carries its limits (annotated_types) and its meaning (Doc): settings, the custom resource
and the reference page are derived from this tree, so that a field is written once. Durations are
seconds here; policy files may write `15m`. A default is what we would run ourselves on a cluster
that we do not know yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from annotated_types import Interval
from typing_extensions import Doc

from autopilot.core.model.errors import InputError
from autopilot.core.model.policy_bounds import (
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
    Views,
)

Ratio = Annotated[float, Interval(ge=0.0, le=1.0)]
Seconds = Annotated[float, Interval(ge=0.0, le=366 * DAY_S)]
Count = Annotated[int, Interval(ge=0, le=1_000_000)]


class Mode(StrEnum):
    """How far an action may go by itself."""

    OFF = "off"
    OBSERVE = "observe"
    RECOMMEND = "recommend"
    APPROVE = "approve"
    AUTO = "auto"


class BackfillKind(StrEnum):
    """Which reservations a gap filler must respect."""

    EASY = "easy"  # only those of the first gangs in order (reservation.depth)
    CONSERVATIVE = "conservative"  # of every waiting gang that has one (up to reservation.conservative_depth)


class ShareRule(StrEnum):
    """Comparisons of shares after which cohort-fair lets a newcomer displace."""

    FINAL_SHARE = "final_share"  # the newcomer's share then, against the donor's without the victim
    INITIAL_SHARE = "initial_share"  # the newcomer's share then, against the donor's of before


class RuleSetName(StrEnum):
    """Rule sets for quotas, preemption and reclaim (core/rules)."""

    HIERARCHICAL_FAIR_SHARE = "hierarchical-fair-share"  # ours, and KAI's with the past switched off
    COHORT_CLASSIC = "cohort-classic"  # Kueue, classical preemption
    COHORT_FAIR = "cohort-fair"  # Kueue, fair sharing
    ELASTIC_QUOTA = "elastic-quota"  # minima and maxima per team


@dataclass(frozen=True, slots=True)
class Modes:
    """One mode per action."""

    admit_gang: Annotated[Mode, Doc("start pending gangs that fit whole, and hold room for those that do not")] = (
        Mode.RECOMMEND
    )
    backfill: Annotated[Mode, Doc("start work in gaps before a reservation; evict it when the gang can land")] = (
        Mode.RECOMMEND
    )
    defragment: Annotated[Mode, Doc("move running gangs so that one that waits fits; nobody loses its place")] = (
        Mode.RECOMMEND
    )
    reclaim_borrowed: Annotated[
        Mode, Doc("take back from queues above their share what a queue below its own is owed")
    ] = Mode.RECOMMEND
    preempt: Annotated[
        Mode, Doc("displace lower priority of the same queue, or, with time sharing, work of lower index")
    ] = Mode.RECOMMEND
    resize: Annotated[Mode, Doc("grow elastic gangs into idle capacity")] = Mode.RECOMMEND
    scale_ahead: Annotated[Mode, Doc("ask for replicas of a service before the load that is foreseen comes")] = (
        Mode.RECOMMEND
    )
    recover: Annotated[
        Mode,
        Doc(
            "stop gangs that lost members, that hang, or whose GPU or node is broken or called back, and start "
            "them again as a whole elsewhere"
        ),
    ] = Mode.RECOMMEND
    enforce_limit: Annotated[
        Mode, Doc("suspend work past its run-time limit, or of a tenant whose use ran away, after a warning")
    ] = Mode.RECOMMEND


@dataclass(frozen=True, slots=True)
class Review:
    """How often what varies with time alone is evaluated anew."""

    batch_s: Annotated[
        float, Interval(ge=1, le=3600), Doc("review period of the batch order and of run-time quantiles")
    ] = 300.0


@dataclass(frozen=True, slots=True)
class Order:
    """Order inside a queue whose `order` is `index`."""

    short_s: Annotated[
        float,
        Interval(ge=0, le=7 * DAY_S),
        Doc("gangs whose median run time is at most this come first, shortest first; they may pass over reservations"),
    ] = 7200.0
    width_exponent: Annotated[float, Interval(ge=0, le=2), Doc("alpha in 1 / (expected run time x gpus^alpha)")] = 0.0
    aging_s: Annotated[
        float,
        Interval(ge=60, le=366 * DAY_S),
        Doc("waiting time of work that never ran after which aging begins to tell"),
    ] = DAY_S
    aging_exponent: Annotated[
        float,
        Interval(ge=0, le=4),
        Doc("index of work that never ran x (1 + wait / aging_s)^this; 0: the index does not age"),
    ] = 0.0
    max_wait_s: Annotated[
        float,
        Interval(ge=60, le=366 * DAY_S),
        Doc("gangs older than this come first, oldest first: a safety net far above the usual wait"),
    ] = 7 * DAY_S


@dataclass(frozen=True, slots=True)
class ReservationRules:
    """Room held for gangs that do not fit yet.

    A reservation is tentative at first: planned anew at every tick for the first gangs in order. Once
    its gang has waited `firm_after_s` it is firm: a promise, kept until the gang starts.
    """

    depth: Annotated[int, Interval(ge=0, le=30), Doc("gangs that may hold a reservation at once; 0: none")] = 3
    conservative_depth: Annotated[int, Interval(ge=1, le=30), Doc("the same under conservative backfill")] = 16
    whole_nodes_only: Annotated[
        bool,
        Doc("only gangs that need at least one whole node get one; smaller ones find gaps by themselves"),
    ] = True
    firm_after_s: Annotated[
        float,
        Interval(ge=0, le=366 * DAY_S),
        Doc("waiting time after which a reservation is a promise, served in the order of the promises"),
    ] = 2.75 * DAY_S
    level: Annotated[
        float,
        Interval(ge=0.05, le=0.99),
        Doc("quantile of the remaining run times from which the start is planned"),
    ] = 0.5
    promise_level: Annotated[
        float,
        Interval(ge=0.05, le=0.99),
        Doc("quantile of the remaining run times from which the start that is promised follows"),
    ] = 0.95
    max_spread_ratio: Annotated[
        float,
        Interval(ge=1, le=1e6),
        Doc(
            "only overdue gangs get one while the run-time forecasts are vaguer than this (0.75 over 0.25 "
            "quantile): room held on a guess is room wasted"
        ),
    ] = 4.0
    timeout_s: Annotated[
        float,
        Interval(ge=60, le=366 * DAY_S),
        Doc("a firm reservation whose planned start slipped this far past the first plan is released"),
    ] = 7 * DAY_S
    share_hold_s: Annotated[
        float,
        Interval(ge=0, le=DAY_S),
        Doc("GPUs that come free are held for a gang of a queue below its fair share that starts this soon; 0: never"),
    ] = 0.0
    advance_lead_s: Annotated[
        float,
        Interval(ge=0, le=366 * DAY_S),
        Doc("GPUs that are reserved in advance are drained from this long before on"),
    ] = 7 * DAY_S
    cool_down_s: Annotated[
        float,
        Interval(ge=0, le=366 * DAY_S),
        Doc("a gang whose firm reservation was released gets no new one for this long"),
    ] = 3600.0


@dataclass(frozen=True, slots=True)
class BackfillRules:
    """Work started in the gap before a reservation."""

    kind: Annotated[BackfillKind, Doc("easy or conservative")] = BackfillKind.EASY
    level: Annotated[
        float, Interval(ge=0.5, le=0.99), Doc("quantile of the run time that must end before the reservation")
    ] = 0.9
    evict_when_due: Annotated[bool, Doc("evict backfilled work the instant the reserved gang can land without it")] = (
        True
    )


@dataclass(frozen=True, slots=True)
class Tenancy:
    """How queues share."""

    shelter_always: Annotated[
        bool,
        Doc(
            "work that may not be preempted starts inside guarantees only, even where the queue tree states none at all"
        ),
    ] = False
    fair_preemption_rules: Annotated[
        tuple[ShareRule, ...],
        Doc("under cohort-fair: which comparisons of shares allow a preemption, in the order in which they are tried"),
    ] = (ShareRule.FINAL_SHARE, ShareRule.INITIAL_SHARE)
    usage_half_life_s: Annotated[
        float,
        Interval(ge=0, le=366 * DAY_S),
        Doc("past use of a queue counts half after this long; 0: the past does not count"),
    ] = 7 * DAY_S
    usage_weight: Annotated[
        float,
        Interval(ge=0, le=10),
        Doc("how much past use above (below) a queue's part lowers (raises) its weight in the split of idle capacity"),
    ] = 1.0


@dataclass(frozen=True, slots=True)
class Preemption:
    """Taking GPUs from running work."""

    grace_s: Annotated[
        float,
        Interval(ge=0, le=3600),
        Doc("time that a victim has to write a checkpoint before it is stopped"),
    ] = 120.0
    without_checkpoint: Annotated[
        bool,
        Doc(
            "gangs that cannot write one in time may be victims of weighed takings too; else they keep their "
            "place and others are sought"
        ),
    ] = False
    checkpoint_writers: Annotated[
        int,
        Interval(ge=0, le=1_000_000),
        Doc(
            "checkpoints that the store takes at once, the most work saved per byte first; whose turn cannot "
            "come within the grace is stopped from its last periodic one; 0: not bounded"
        ),
    ] = 0
    saves_prior: Annotated[
        float,
        Interval(ge=0, le=1),
        Doc(
            "how likely work that declares checkpoint-on-request saves when it is told to leave, before any of "
            "its requests or of its tenant's were answered; 0: nobody counts on it"
        ),
    ] = 0.0
    waiting_weight: Annotated[
        float,
        Interval(ge=0, le=1e9),
        Doc(
            "price of one GPU-second that a victim waits again, in GPU-seconds; a victim is taken to wait until "
            "the gang that it makes room for ends"
        ),
    ] = 0.1
    move_victims: Annotated[bool, Doc("a victim that fits elsewhere is moved, not stopped")] = True
    priority_weight: Annotated[
        float,
        Interval(ge=0, le=1e9),
        Doc("worth of one GPU-second of waiting spared to work of higher priority, in GPU-seconds"),
    ] = 1.0
    time_sharing: Annotated[
        bool, Doc("work that waits may pause running preemptible work of the same queue whose index is lower")
    ] = False
    index_ratio: Annotated[
        float,
        Interval(ge=1, le=1000),
        Doc("by how much its index must be higher: the hysteresis of time sharing"),
    ] = 3.0
    landing_timeout_s: Annotated[
        float,
        Interval(ge=1, le=DAY_S),
        Doc("a start that still waits for its victims after this long is given up"),
    ] = 600.0
    blast_ratio: Annotated[
        float,
        Interval(ge=1, le=1e6),
        Doc("GPUs taken from victims may be at most this multiple of the GPUs that are needed"),
    ] = 4.0


@dataclass(frozen=True, slots=True)
class ScaleAhead:
    """Replicas asked for ahead of the load: a floor below which the service's own autoscaler does not go.

    They start on free and borrowed capacity only: nobody gives way for what is only foreseen.
    """

    level: Annotated[
        float,
        Interval(ge=0.5, le=0.999),
        Doc(
            "what the floor serves at the owner's own target: 0.5 is the middle of the demand, 0.9 and more are bounds "
            "of the highest demand within the lead time that are kept so often; more is safer and costs more"
        ),
    ] = 0.6
    lead_s: Annotated[
        float,
        Interval(ge=1, le=DAY_S),
        Doc("lead time before any start-up of a replica was measured; then the 0.9 quantile of the latest start-ups"),
    ] = 300.0
    dwell_s: Annotated[
        float,
        Interval(ge=0, le=DAY_S),
        Doc("a floor goes no lower than the highest wish of the last so long"),
    ] = 300.0
    lease_s: Annotated[
        float,
        Interval(ge=60, le=DAY_S),
        Doc("a floor that is not renewed lapses after this long, whatever becomes of us; renewed at half of it"),
    ] = 1800.0
    most_ratio: Annotated[
        float,
        Interval(ge=1, le=1000),
        Doc("a floor is at most this multiple of the replicas that the present load needs"),
    ] = 4.0
    forecast_age_s: Annotated[float, Interval(ge=1, le=DAY_S), Doc("an older forecast is not acted on")] = 180.0
    least_outcomes: Annotated[
        int, Interval(ge=0, le=1_000_000), Doc("outcomes that must have come before a forecast is acted on")
    ] = 30
    coverage_slack: Annotated[
        float,
        Interval(ge=0, le=1),
        Doc("by how much the share of outcomes within the promise may fall short of the promised level"),
    ] = 0.03
    violation_ratio: Annotated[
        float,
        Interval(ge=0, le=1),
        Doc("share of requests over the objective up to which a load counts as served; 0.01 makes the objective a p99"),
    ] = 0.01


@dataclass(frozen=True, slots=True)
class Policy:
    """The whole of it."""

    name: Annotated[str, Doc("shown beside every result")] = "default"
    horizon_s: Annotated[
        float, Interval(ge=60, le=30 * DAY_S), Doc("benefit and cost are counted within this time")
    ] = DAY_S
    modes: Annotated[Modes, Doc("how far each action may go")] = field(default_factory=Modes)
    rules: Annotated[
        RuleSetName,
        Doc("who may start and who may take from whom: our own rules, or those of the engine beside us"),
    ] = RuleSetName.HIERARCHICAL_FAIR_SHARE
    review: Annotated[Review, Doc("review periods")] = field(default_factory=Review)
    order: Annotated[Order, Doc("order of service inside a queue")] = field(default_factory=Order)
    reservation: Annotated[ReservationRules, Doc("reservations")] = field(default_factory=ReservationRules)
    backfill: Annotated[BackfillRules, Doc("backfill")] = field(default_factory=BackfillRules)
    tenancy: Annotated[Tenancy, Doc("queues and shares")] = field(default_factory=Tenancy)
    preemption: Annotated[Preemption, Doc("taking GPUs from running work")] = field(default_factory=Preemption)
    scale_ahead: Annotated[ScaleAhead, Doc("replicas ahead of the load")] = field(default_factory=ScaleAhead)
    recovery: Annotated[Recovery, Doc("what broke")] = field(default_factory=Recovery)
    enforcement: Annotated[Enforcement, Doc("what goes on for too long")] = field(default_factory=Enforcement)
    placement: Annotated[PlacementWeights, Doc("placement score")] = field(default_factory=PlacementWeights)
    hysteresis: Annotated[Hysteresis, Doc("calm")] = field(default_factory=Hysteresis)
    budget: Annotated[Budget, Doc("disruption budgets")] = field(default_factory=Budget)
    freshness: Annotated[Freshness, Doc("age limits")] = field(default_factory=Freshness)
    views: Annotated[Views, Doc("implausible views")] = field(default_factory=Views)
    protection: Annotated[Protection, Doc("what is never disrupted")] = field(default_factory=Protection)
    pause: Annotated[Pause, Doc("self-pause")] = field(default_factory=Pause)
    approval: Annotated[ApprovalRules, Doc("approvals and rejections")] = field(default_factory=ApprovalRules)
    clock: Annotated[ClockRules, Doc("when the clock is believed")] = field(default_factory=ClockRules)
    limits: Annotated[Limits, Doc("bounds of one tick")] = field(default_factory=Limits)
    journal: Annotated[JournalRules, Doc("record keeping")] = field(default_factory=JournalRules)
    forecasting: Annotated[Forecasting, Doc("fits of models")] = field(default_factory=Forecasting)
    price_weight: Annotated[dict[str, float], Doc("price of a GPU model relative to the others; 1 where not named")] = (
        field(default_factory=dict)
    )


def check_policy(policy: Policy) -> None:
    """Raise `InputError` where fields contradict each other (single limits are checked on reading)."""
    if policy.hysteresis.dwell_s > policy.horizon_s:
        raise InputError(
            f"hysteresis.dwell_s: {policy.hysteresis.dwell_s:g} s is longer than horizon_s "
            f"({policy.horizon_s:g} s), so no disruptive action could ever pay; shorten it"
        )
    if policy.budget.concurrent > policy.budget.per_cluster:
        raise InputError(
            f"budget.concurrent: {policy.budget.concurrent} exceeds budget.per_cluster "
            f"({policy.budget.per_cluster}); lower it or raise the other"
        )
    if not policy.tenancy.fair_preemption_rules:
        raise InputError("tenancy.fair_preemption_rules: the list is empty; name final_share, initial_share or both")
    for model, weight in policy.price_weight.items():
        if not 0 < weight < 1000:
            raise InputError(f"price_weight.{model}: {weight:g} is not above 0 and below 1000")
