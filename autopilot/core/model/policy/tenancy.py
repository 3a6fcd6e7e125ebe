"""How queues share: fair shares, guarantees, and time sharing across queues."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from annotated_types import Interval
from typing_extensions import Doc

from autopilot.core.model.policy.bounds import DAY_S


class ShareRule(StrEnum):
    """Comparisons of shares by which cohort-fair allows a preemption. Both take the newcomer's share after its start.

    The share of the victim's queue is taken after or before the preemption.
    """

    FINAL_SHARE = "final_share"  # against the share of the victim's queue without the victim
    INITIAL_SHARE = "initial_share"  # against the share of the victim's queue with the victim


class GuaranteeRule(StrEnum):
    """How the guarantee of a queue is kept."""

    STRICT = "strict"  # its owner takes back at once
    ELASTIC = "elastic"  # work inside it is favoured, and its owner takes back after a stated time
    NONE = "none"  # its owner takes nothing back; it still bounds work that may not be preempted


GUARANTEES_KEPT = ("", *GuaranteeRule)
"""What a queue may state about its guarantee, as in `QueueTable.guarantee_kept`; "": nothing."""


@dataclass(frozen=True, slots=True)
class Tenancy:
    """How queues share."""

    shelter_always: Annotated[
        bool,
        Doc("work that may not be preempted starts only within guarantees, even if the queue tree states none"),
    ] = False
    fair_preemption_rules: Annotated[
        tuple[ShareRule, ...],
        Doc("under cohort-fair: the comparisons of shares that allow a preemption, in the order tried"),
    ] = (ShareRule.FINAL_SHARE, ShareRule.INITIAL_SHARE)
    instance_parts: Annotated[
        bool,
        Doc(
            "a MIG instance counts as its compute slices of a GPU against guarantees, limits and fair shares; false: "
            "as a GPU. The rule sets of Kueue always count it as a GPU"
        ),
    ] = False
    require_scrub: Annotated[
        bool,
        Doc(
            "work starts on what untrusted work of another tenant had last only once its node states that this was "
            "scrubbed or verified (annotation `gpu-autopilot.io/scrubbed-at`); false: the start has a hint"
        ),
    ] = False
    usage_half_life_s: Annotated[
        float,
        Interval(ge=0, le=366 * DAY_S),
        Doc("half-life of the past use of a queue; 0: past use does not count"),
    ] = 7 * DAY_S
    usage_weight: Annotated[
        float,
        Interval(ge=0, le=10),
        Doc(
            "how strongly past use above (below) the part of a queue lowers (raises) its weight in the split of idle "
            "capacity"
        ),
    ] = 1.0
    time_sharing: Annotated[
        bool,
        Doc(
            "waiting work may pause running work of lower index in other queues that are ordered by index too, as far "
            "as their guarantees allow; between these queues the index replaces the reclaim of fair shares; always so "
            "where the guarantee of a queue is elastic or none"
        ),
    ] = False
    guarantee: Annotated[
        GuaranteeRule, Doc("how the guarantee of a queue is kept that states nothing itself or above it")
    ] = GuaranteeRule.STRICT
    # under elastic: the index of work inside the guarantee counts this many times
    elastic_factor: ClassVar[float] = 4.0
    elastic_within_s: Annotated[
        float,
        Interval(ge=0, le=30 * DAY_S),
        Doc(
            "under elastic: once work that fits under the guarantee has waited without a break for this long, its "
            "queue takes back at once"
        ),
    ] = DAY_S
    # under elastic: the queue then keeps its guarantee as if it were strict for this long
    elastic_hold_s: ClassVar[float] = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class Elastic:
    """The order and its hysteresis where the guarantee of a queue is elastic or none.

    Each value replaces that of the field in its description, for the whole cluster: the indices of queues that share
    time are compared with each other. Source: docs/decisions/0012-sharing-time.md.
    """

    hazard_weight: Annotated[
        float,
        Interval(ge=0, le=1),
        Doc("order.hazard_weight: tenants whose long jobs run through are left to run, others share the time"),
    ] = 0.7
    width_exponent: Annotated[
        float,
        Interval(ge=0, le=2),
        Doc("order.width_exponent: two wide gangs of different tenants do not both wait for all narrow ones"),
    ] = 0.5
    aging_s: Annotated[float, Interval(ge=60, le=366 * DAY_S), Doc("order.aging_s")] = 2 * DAY_S
    aging_exponent: Annotated[float, Interval(ge=0, le=4), Doc("order.aging_exponent")] = 0.3
    index_ratio: Annotated[
        float,
        Interval(ge=1, le=1000),
        Doc("preemption.index_ratio: across tenants a pause saves more waiting than inside one queue"),
    ] = 5.0
    usage_half_life_s: Annotated[
        float,
        Interval(ge=0, le=366 * DAY_S),
        Doc(
            "tenancy.usage_half_life_s: with a short memory, queues that want more than the cluster for weeks take "
            "turns and pause each other's work"
        ),
    ] = 30 * DAY_S
