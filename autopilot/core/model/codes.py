"""Reason codes of verdicts, refusals and withdrawn effects."""

from __future__ import annotations

from enum import StrEnum


class Code(StrEnum):
    """Reason codes of verdicts and refusals. One code, one meaning."""

    OK = "ok"
    WAIVED_CONTRACT = "waived_contract"
    # refusals: reasons for a wait
    CAPACITY = "capacity"  # not enough free GPUs of its kind
    FRAGMENTED = "fragmented"  # enough GPUs are free, but not in its shape
    TOPOLOGY = "topology"  # no single domain can hold it
    MIG_GEOMETRY = "mig_geometry"  # no free instance of its profile
    RESERVED = "reserved"  # its start would delay the reservation of another gang
    RUNTIME_UNKNOWN = "runtime_unknown"  # neither forecast nor limit: it is not backfilled before a reservation
    LIMIT = "limit"  # its queue is at its hard limit
    TOO_WIDE = "too_wide"  # needs more GPUs than the whole cluster has
    EXCLUDED = "excluded"  # opted out of actions of the autopilot
    GATED = "gated"  # proposed, but held by a guard or by the mode
    BOUND = "bound"  # the limit on proposals per tick is reached
    GUARANTEE = "guarantee"  # protected, so it starts only within the guarantee of its queue
    FAIRNESS = "fairness"  # every candidate queue is within its fair share, or this queue would exceed its own
    PRIORITY = "priority"  # no candidate has a lower priority
    POLICY = "policy"  # its queue may not preempt
    PROTECTED = "protected"  # all candidates are protected
    DELAY = "delay"  # it has not waited for its preemption delay
    QUOTA = "quota"  # its queue and cohort lack free quota
    KEPT = "kept"  # quota is idle, but held for another waiting gang
    WORKERS = "workers"  # a coordinator; it starts after its own workers
    CHECK = "check"  # an external admission check has not passed
    NO_PODS = "no_pods"  # admitted by its scheduler, and without pods: a start here would change nothing
    SUSPENDED = "suspended"  # its owner suspended it, or has to let it continue
    ORDER = "order"  # its queue is strict, and an earlier gang still waits
    # verdicts of guards
    MODE_OFF = "mode_off"
    MODE_OBSERVE = "mode_observe"
    MODE_RECOMMEND = "mode_recommend"
    NEEDS_APPROVAL = "needs_approval"
    APPROVAL_EXPIRED = "approval_expired"
    APPROVAL_COST_ROSE = "approval_cost_rose"
    APPROVAL_GREW = "approval_grew"  # it would start or take more GPUs
    APPROVAL_SIDE_EFFECTS = "approval_side_effects"  # it would take more from waiting work
    APPROVAL_OTHER_WORK = "approval_other_work"  # it would stop work of a class or queue beyond the shown ones
    APPROVAL_OTHER_PLAN = "approval_other_plan"  # only the very plan shown is approved
    ON_PAPER = "on_paper"
    REJECTED = "rejected"
    KILL_SWITCH = "kill_switch"
    PAUSED = "paused"  # by the autopilot itself
    PAUSED_BY_PERSON = "paused_by_person"
    STALE_INVENTORY = "stale_inventory"
    STALE_WORK = "stale_work"
    STALE_TELEMETRY = "stale_telemetry"
    # telemetry in doubt (core/intake/usage/plausibility.py)
    TELEMETRY_STUCK = "telemetry_stuck"  # one number is repeated in place of certain noise
    TELEMETRY_IMPOSSIBLE = "telemetry_impossible"  # no hardware gives such values, or they contradict each other
    TELEMETRY_SCALE = "telemetry_scale"  # a percentage in place of a ratio
    TELEMETRY_SWAPPED = "telemetry_swapped"  # it may belong to another GPU
    TELEMETRY_OWNER = "telemetry_owner"  # placements contradict each other about the holder of the GPU
    CHANGED = "changed"  # since the decision, the object was replaced or its request changed
    NOT_NEEDED = "not_needed"  # since the decision, room came free elsewhere: the start needs this victim no more
    NODE_UNFIT = "node_unfit"
    PARTIAL_GANG = "partial_gang"
    PARTIAL_EVICTION = "partial_eviction"
    PROTECTED_CLASS = "protected_class"
    OPTED_OUT = "opted_out"
    NOT_PREEMPTIBLE = "not_preemptible"
    UNSCRUBBED = "unscrubbed"  # its place was another tenant's (tenancy.require_scrub)
    MIN_RUNTIME = "min_runtime"
    STOPPED_OFTEN = "stopped_often"  # a victim was stopped for other work as often as policy allows
    DWELL = "dwell"
    COOL_DOWN = "cool_down"
    GIVEN_UP = "given_up"
    REFUSED = "refused"  # the cluster refused its last attempt for a reason of this object
    MARGIN = "margin"
    BUDGET_CLUSTER = "budget_cluster"
    BUDGET_TENANT = "budget_tenant"
    BUDGET_NODE = "budget_node"
    BUDGET_CONCURRENT = "budget_concurrent"
    BUDGET_CHECKPOINT = "budget_checkpoint"
    CONTRACT_RATE = "contract_rate"  # contracts took more for its beneficiary within the hour than twice its need
    BLAST_RADIUS = "blast_radius"
    SLO_BURNING = "slo_burning"
    FORECAST_UNKNOWN = "forecast_unknown"  # no forecast, or its horizon is too short
    FORECAST_STALE = "forecast_stale"
    FORECAST_UNPROVEN = "forecast_unproven"  # too few outcomes to judge its coverage
    FORECAST_UNCALIBRATED = "forecast_uncalibrated"
    FORECAST_DRIFTING = "forecast_drifting"
    WITHOUT_CHECKPOINT = "without_checkpoint"
    STORM = "storm"  # its action is paused (core/trust/follow_storms.py)
    CAPPED = "capped"  # its action may only recommend (core/trust/follow_promises.py)
    RECUT = "recut"  # an instance for it is being made
    RECUT_RATE = "recut_rate"  # geometries of its pool changed too often within the hour
    RECUT_RETURN = "recut_return"  # the GPU would return to its earlier geometry
    RECUT_IN_USE = "recut_in_use"  # an instance in use would be destroyed
    RECUT_ILLEGAL = "recut_illegal"  # the new geometry cannot exist
    RECUT_QUARANTINE = "recut_quarantine"  # an earlier change of the GPU ended badly
    SHARE_CONSENT = "share_consent"  # work on the GPU does not allow it, or not beside another tenant
    SHARE_COUNT = "share_count"  # too many workloads on one GPU
    SHARE_END = "share_end"  # a client of an MPS server may be ended by a signal
    SHARE_UNKNOWN = "share_unknown"  # the mechanism, or the rates, are not known
    SHARE_MEMORY = "share_memory"  # the peaks of memory do not fit
    SHARE_LOAD = "share_load"  # together they use too much of the GPU
    SHARE_RATE = "share_rate"  # one of them would run too slowly
    SHARE_PAIR = "share_pair"  # they are remembered as a pair that does harm
    SHARE_APART = "share_apart"  # two shares may be of the same GPU
    SHARE_IN_USE = "share_in_use"  # the node to be turned has work


class About(StrEnum):
    """The kind of object of a note."""

    CONTROLLER = "controller"
    WORKLOAD = "workload"
    SERVICE = "service"
    TENANT = "tenant"
    PROPOSAL = "proposal"
    SOURCE = "source"
    GPU = "gpu"
    POOL = "pool"
    RESERVATION = "reservation"  # one made in advance
    ACTION = "action"
    QUEUE = "queue"


class NoteCode(StrEnum):
    """Notes without an action; autopilot/explain/notes.py has the words. Codes of actions: `Action.notes`."""

    CLOCK_MOVED = "clock_moved"
    RESUME_REFUSED = "resume_refused"
    APPROVAL_REFUSED = "approval_refused"
    REJECTION_REFUSED = "rejection_refused"
    REVOKE_REFUSED = "revoke_refused"
    CONFIRM_REFUSED = "confirm_refused"
    VICTIM_CANNOT_SAVE = "victim_cannot_save"
    NO_TURN_TO_SAVE = "no_turn_to_save"
    STORM_BEGAN = "storm_began"
    STORM_ENDED = "storm_ended"
    ACTION_CAPPED = "action_capped"
    CAP_LIFTED = "cap_lifted"
    LIFT_REFUSED = "lift_refused"
    EFFECT_WAITS = "effect_waits"
    EFFECT_WITHDRAWN = "effect_withdrawn"
    START_GIVEN_UP = "start_given_up"
    PROTECTION_LENT = "protection_lent"
    PROTECTION_KEPT = "protection_kept"
    ADVANCE_HELD = "advance_held"
    GPU_QUARANTINED = "gpu_quarantined"
    GPU_USED_AGAIN = "gpu_used_again"
    DRAIN_GIVEN_UP = "drain_given_up"
    RELEASE_REFUSED = "release_refused"
    ADVANCE_NOT_FREE = "advance_not_free"
    REPLICAS_HELD = "replicas_held"
    INSTANCES_HELD = "instances_held"
    # reasons against the stop of a gang that seems to hang (core/recovery/hangs.py)
    HANG_TOO_MANY = "hang_too_many"
    HANG_FEW_AT_WORK = "hang_few_at_work"
    HANG_DARK_NODE = "hang_dark_node"
    # reasons for unknown replicas of a service (core/replicas/follow.py)
    NO_FORECAST = "no_forecast"
    FORECAST_ABSTAINS = "forecast_abstains"
    REPLICA_LOAD_UNKNOWN = "replica_load_unknown"
    LOAD_UNKNOWN = "load_unknown"


class RejectionScope(StrEnum):
    """The reach of a rejection."""

    PLAN = "plan"  # the shown plan
    WORKLOAD = "workload"  # the action for this object
    QUEUE = "queue"  # the action for every object of this queue


class ConditionKind(StrEnum):
    """States of a workload or a queue over several ticks, with their start (`Condition` in core/model/memory.py)."""

    WORKED = "worked"  # it was seen at work
    QUIET = "quiet"  # its GPUs do nothing
    HUNG = "hung"  # this incarnation was stopped because it did nothing
    ALONE = "alone"  # it holds GPUs, and all its workers wait
    WAITED = "waited"  # it was stopped for this, and its workers still wait
    BELOW_SHARE = "below_share"  # it waits, and its queue is below its fair share
    STUCK = "stuck"  # it is still on its GPUs after its grace
    UNPROTECTED = "unprotected"  # this incarnation was seen without protection (core/quota/protection.py)
    LATE = "late"  # it has run protected since then, and was not within its guarantee from its start on
    FIRM = "firm"  # this incarnation was within the guarantee of its queue from its start on, or ran before FOLLOWED
    FOLLOWED = "followed"  # of all queues, without a uid: starts of protected work have been seen since then
    LENT = "lent"  # what protects it was first found not to hold against the owner of GPUs that this incarnation holds
    OWED = "owed"  # of a queue: it is below its guarantee, and work within it waits
    OVERUSED = "overused"  # of a queue in shared time: its part of the past use exceeds its part of the fair shares
    TAKES_BACK = "takes_back"  # of a queue: after a long shortfall its guarantee is kept strictly for a while


UNCOVERED = frozenset(
    {
        Code.APPROVAL_EXPIRED,
        Code.APPROVAL_COST_ROSE,
        Code.APPROVAL_GREW,
        Code.APPROVAL_SIDE_EFFECTS,
        Code.APPROVAL_OTHER_WORK,
        Code.APPROVAL_OTHER_PLAN,
    }
)
"""Refusals of a plan with an approval, outside its cover."""

ASKING = UNCOVERED | {Code.NEEDS_APPROVAL}
"""Refusals followed by a request for approval."""

ON_PAPER = (
    ASKING
    | {Code.MODE_OBSERVE, Code.MODE_RECOMMEND}
    | {
        Code.CAPPED,
        Code.CONTRACT_RATE,
        Code.ON_PAPER,
    }
)
"""Refusals of a proposal that stays on paper, so that the rest of the plan fits to it."""

BUDGETS = frozenset(
    {Code.BUDGET_CLUSTER, Code.BUDGET_TENANT, Code.BUDGET_NODE, Code.BUDGET_CONCURRENT, Code.BUDGET_CHECKPOINT}
)
"""Refusals of budgets: the same victims are refused again in this tick."""

CLUSTER_BUDGETS = frozenset({Code.BUDGET_CLUSTER, Code.BUDGET_CONCURRENT})
"""Refusals by the number of victims alone: as many others are refused too in this tick."""

PASSING = (
    ON_PAPER
    | BUDGETS
    | {Code.DWELL, Code.COOL_DOWN, Code.GIVEN_UP, Code.REFUSED, Code.MIN_RUNTIME, Code.RECUT_RATE, Code.RECUT_RETURN}
)
"""Refusals with an end by time alone."""


NOT_STARTED = "multikueue_start"
"""Signal of the gap of work at another cluster for long, without a start in its status."""
