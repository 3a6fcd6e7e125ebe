"""Reason codes of verdicts, refusals and withdrawn effects."""

from __future__ import annotations

from enum import StrEnum


class Code(StrEnum):
    """Reason codes of verdicts and refusals. One code, one meaning."""

    OK = "ok"
    WAIVED_CONTRACT = "waived_contract"
    # why a workload waits
    CAPACITY = "capacity"  # not enough free GPUs of its kind
    FRAGMENTED = "fragmented"  # enough are free, but not in a shape it can use
    TOPOLOGY = "topology"  # no single domain can hold it
    MIG_GEOMETRY = "mig_geometry"  # no free instance of its profile
    RESERVED = "reserved"  # it would delay the reservation of another
    RUNTIME_UNKNOWN = "runtime_unknown"  # no forecast and no limit: not backfilled past a reservation
    LIMIT = "limit"  # its queue is at its hard limit
    TOO_WIDE = "too_wide"  # wider than the whole cluster
    EXCLUDED = "excluded"  # opted out of our actions
    GATED = "gated"  # proposed, but a guard or the mode holds it
    BOUND = "bound"  # per-tick bound on proposals reached
    GUARANTEE = "guarantee"  # it may not be preempted, hence starts inside its guarantee only
    FAIRNESS = "fairness"  # whoever could give way is within its fair share, or it would exceed its own
    PRIORITY = "priority"  # whoever could give way has no lower priority
    POLICY = "policy"  # its queue may not displace anybody
    PROTECTED = "protected"  # only work that may not be displaced stands in its way
    DELAY = "delay"  # it has not waited long enough to displace anybody
    QUOTA = "quota"  # its queue and cohort have no quota left for it
    KEPT = "kept"  # quota is idle, but kept for another that waits for it
    WORKERS = "workers"  # a coordinator that starts after its own workers
    CHECK = "check"  # a check outside of the autopilot is not passed
    ORDER = "order"  # its queue is strict, and the gang before it waits
    # verdicts of guards
    MODE_OFF = "mode_off"
    MODE_OBSERVE = "mode_observe"
    MODE_RECOMMEND = "mode_recommend"
    NEEDS_APPROVAL = "needs_approval"
    APPROVAL_EXPIRED = "approval_expired"
    APPROVAL_COST_ROSE = "approval_cost_rose"
    APPROVAL_GAIN_FELL = "approval_gain_fell"
    ON_PAPER = "on_paper"
    REJECTED = "rejected"
    KILL_SWITCH = "kill_switch"
    PAUSED = "paused"  # by the autopilot itself
    PAUSED_BY_PERSON = "paused_by_person"
    STALE_INVENTORY = "stale_inventory"
    STALE_WORK = "stale_work"
    STALE_TELEMETRY = "stale_telemetry"
    CHANGED = "changed"  # the object is another, or asks for something else, than when this was decided
    NODE_UNFIT = "node_unfit"
    PARTIAL_GANG = "partial_gang"
    PARTIAL_EVICTION = "partial_eviction"
    PROTECTED_CLASS = "protected_class"
    OPTED_OUT = "opted_out"
    NOT_PREEMPTIBLE = "not_preemptible"
    MIN_RUNTIME = "min_runtime"
    DWELL = "dwell"
    COOL_DOWN = "cool_down"
    GIVEN_UP = "given_up"
    MARGIN = "margin"
    BUDGET_CLUSTER = "budget_cluster"
    BUDGET_TENANT = "budget_tenant"
    BUDGET_NODE = "budget_node"
    BUDGET_CONCURRENT = "budget_concurrent"
    BUDGET_CHECKPOINT = "budget_checkpoint"
    BLAST_RADIUS = "blast_radius"
    SLO_BURNING = "slo_burning"
    FORECAST_UNKNOWN = "forecast_unknown"  # nothing is foreseen, or not far enough
    FORECAST_STALE = "forecast_stale"
    FORECAST_UNPROVEN = "forecast_unproven"  # too few outcomes to tell what its promise is worth
    FORECAST_UNCALIBRATED = "forecast_uncalibrated"
    FORECAST_DRIFTING = "forecast_drifting"
    WITHOUT_CHECKPOINT = "without_checkpoint"
