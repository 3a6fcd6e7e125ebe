"""The table of metrics: name, type, unit, labels, meaning, and how many series each may have.

docs/metrics.md is generated from it. A sample whose name or labels are not in the table is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

PREFIX = "gpu_autopilot_"

MOST_RECOMMENDATIONS = 50
"""Open recommendations with series of their own: those with the highest gain."""

MOST_SPENDERS = 8
"""Tenants with a series of their daily spending: those far above their mean first."""

MOST_IDLE_BORROWERS = 50
"""Queues with a series of their borrowed idle GPUs: those with the most."""

MOST_QUEUES = 30
"""Queues with waits, starts and evictions of their own: the first that are seen. The others count as `OTHER_QUEUES`."""

OTHER_QUEUES = "(other)"

LARGE: dict[str, int] = {
    "tenant": 300,
    "queue": 300,
    "idle borrower": MOST_IDLE_BORROWERS,
    "counted queue": MOST_QUEUES + 1,
    "pool": 8,
    "node": 500,
    "changing node": 10,
    "GPU model": 6,
    "service": 30,
    "LLM service": 8,
    "cause": 12,
    "reason": 25,
    "guard and code": 70,
    "action": 22,
    "judged action": 8,  # those that weigh what they take from running work, and `regeometry`
    "operation": 13,
    "failure cause": 16,
    "recommendation": MOST_RECOMMENDATIONS,
    "spender": MOST_SPENDERS,
    "collector": 8,
    "listed kind": 22,
    "stage": 7,
    "2": 2,
    "3": 3,
    "4": 4,
    "5": 5,
    "6": 6,
}
"""Objects of each kind on a cluster of 4,000 GPUs and 300 tenants, for the bound on series."""

MOST_SERIES = 5700
"""The bound on all series at that size."""

BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)
"""Upper bounds of the buckets of the duration of a stage."""

EFFECT_BUCKETS_S = (1.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""Upper bounds of the buckets of the duration of an effect."""

WAIT_BUCKETS_S = (60.0, 300.0, 1800.0, 7200.0, 14_400.0, 43_200.0, 172_800.0)
"""Upper bounds of the buckets of the wait of work."""

STAGES = ("collect", "assemble", "forecast", "decide", "record", "apply", "whole")
"""Stages of a tick, those of the controller, and the tick from start to end. A shell may measure fewer."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row. `name` is without prefix; `per` are the kinds of objects in `LARGE` that multiply its series."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    unit: str  # "": a plain number or a state
    labels: tuple[str, ...]
    meaning: str
    per: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """The name as exposed, without the suffixes of a histogram."""
        return PREFIX + self.name

    @property
    def bound(self) -> int:
        """The most series on a cluster of 4,000 GPUs and 300 tenants."""
        buckets = len(EFFECT_BUCKETS_S) + 3 if self.kind == "histogram" else 1
        return buckets * prod(LARGE[each] for each in self.per)


USE: tuple[tuple[str, str, str], ...] = (
    ("capacity_gpus", "GPUs", "all GPUs of the inventory: held + free + out of use"),
    ("held_gpus", "GPUs", "GPUs allocated; a share or MIG instance counts its part"),
    ("free_gpus", "GPUs", "GPUs and parts of GPUs without work, open to new work"),
    ("out_of_use_gpus", "GPUs", "GPUs and parts of GPUs without work, closed to new work: not healthy, under a change "
     "of geometry, or on a node that is not ready, cordoned, condemned or called back"),
    ("measured_ratio", "ratio", "share of the held GPUs with known SM activity; below 1, the figures of activity are "
     "lower bounds"),
    ("active_gpus", "GPUs", "SM-active GPU equivalents of the measured held GPUs, over 5 min"),
    ("gap_gpus", "GPUs", "measured - active: held GPUs known to be idle"),
    ("allocation_ratio", "ratio", "held / capacity"),
    ("hardware_ratio", "ratio", "SM-active / held, over 5 min"),
    ("real_utilization_ratio", "ratio", "SM-active / capacity, over 5 min"),
)  # fmt: skip
"""Measures of use, for the fleet and each pool."""

TENANT_USE = ("held_gpus", "measured_ratio", "hardware_ratio")
"""The metrics of each tenant; the others follow from them: gap = held x (measured ratio - hardware ratio)."""


def _use() -> tuple[Metric, ...]:
    fleet = [Metric(f"fleet_{name}", "gauge", unit, (), f"fleet: {words}") for name, unit, words in USE]
    pools = [Metric(f"pool_{name}", "gauge", unit, ("pool",), f"pool: {words}", ("pool",)) for name, unit, words in USE]
    tenants = [
        Metric(f"tenant_{name}", "gauge", unit, ("tenant",), f"tenant that holds GPUs or waits: {words}", ("tenant",))
        for name, unit, words in USE
        if name in TENANT_USE
    ]
    return (*fleet, *pools, *tenants)


def _gauge(name: str, unit: str, labels: tuple[str, ...], meaning: str, *per: str) -> Metric:
    return Metric(name, "gauge", unit, labels, meaning, per)


def _counter(name: str, unit: str, labels: tuple[str, ...], meaning: str, *per: str) -> Metric:
    return Metric(name, "counter", unit, labels, meaning, per)


METRICS: tuple[Metric, ...] = (
    *_use(),
    # capacity and its shape
    _gauge("node_free_gpus", "GPUs", ("node", "pool"), "whole free GPUs of a node that takes work", "node"),
    _gauge("node_recut_gpus", "GPUs", ("node", "state"), "GPUs whose MIG geometry is `changing`, `failed` to "
           "change, or that are `quarantined` since a change went wrong that their node does not call failed; nodes "
           "without such GPUs have no series", "changing node", "3"),
    _gauge("largest_gang_gpus", "GPUs", ("gpu_model",), "the widest gang of whole GPUs that fits now", "GPU model"),
    _gauge("fragmentation_ratio", "ratio", ("pool",), "fragmentation index: share of the free GPUs that the expected "
           "mix cannot use", "pool"),
    _gauge("stranded_gpus", "GPUs", ("pool", "cause", "demand"), "free GPUs that a demand (`pending` work or the "
           "`expected` mix) cannot use, by cause", "pool", "cause"),
    # GPUs shared by software (docs/shared-gpus.md)
    _gauge("fleet_useful_utilization_ratio", "ratio", (), "useful SM activity / capacity, over 5 min: on shared GPUs "
           "that of all work alone times its rate (estimated), elsewhere as measured; no series where no work holds "
           "shares, or one of them is not known"),
    _gauge("pool_shared_gpus", "GPUs", ("pool",), "GPUs on which several workloads hold shares; no series where no "
           "work holds shares", "pool"),
    _gauge("pool_shared_rate_ratio", "ratio", ("pool", "kind"), "mean rate of work on shares over that alone: "
           "`predicted`, and `measured` by the steps that programs report", "pool", "2"),
    _gauge("pool_shared_shortfall_ratio", "ratio", ("pool",), "the largest predicted less measured rate of work on "
           "shares", "pool"),
    _gauge("pool_disturbed_workloads", "workloads", ("pool", "state"), "work slowed by a neighbour that came beside "
           "it: `suspected`, `paused` for a trial or before its move, `confirmed` and still there; no series where "
           "no detector reports any", "pool", "3"),
    _gauge("pool_slow_members", "count", ("pool", "kind"), "members that hold up their gang (`member`), and GPUs that "
           "were slow in several gangs (`suspect`); no series where a pool has neither", "pool", "2"),
    # owners
    _gauge("tenant_hoarding_ratio", "ratio", ("tenant",), "hoarding score: idle GPUs / GPUs held; a lower bound: "
           "GPUs without a verdict count as not idle", "tenant"),
    _gauge("tenant_pending_gpus", "GPUs", ("tenant",), "GPUs that its pending work requests", "tenant"),
    _gauge("tenant_oldest_pending_seconds", "s", ("tenant",), "age of its oldest pending workload that the autopilot "
           "may start; work that waits for its owner or for an external check does not count", "tenant"),
    _gauge("tenant_daily_spend_ratio", "ratio", ("tenant",), "charge of its last whole day / mean of the metered days "
           "among the 30 before, at least 7; for at most 8 tenants, those above 1.3 first", "spender"),
    _gauge("tenant_budget_ratio", "ratio", ("tenant",), "forecast charge of the present month / its budget in the "
           "price file; `(all)` is the budget of all together; for at most 8, the highest first", "spender"),
    _gauge("queue_guaranteed_gpus", "GPUs", ("queue",), "guarantee of a queue, of all GPU models together", "queue"),
    _gauge("queue_borrowed_gpus", "GPUs", ("queue",), "GPUs held above the guarantee", "queue"),
    _gauge("queue_borrowed_idle_gpus", "GPUs", ("queue",), "borrowed GPUs that are idle; queues that borrow nothing "
           "have no series, and no more than 50 queues have one, those with most of them first", "idle borrower"),
    _gauge("queue_limit_gpus", "GPUs", ("queue",), "GPUs that a queue may hold at most: its limit, or its guarantee "
           "and its borrowing limit; a queue without a limit has no series, and no more than 31 queues have one, those "
           "that hold most first", "counted queue"),
    Metric("queue_wait_seconds", "histogram", "s", ("queue",), "wait of jobs from submission to first start; "
           "its count is that of admissions, of the first 30 queues that are seen, the others together as `(other)`",
           ("counted queue",)),
    _counter("queue_evictions_total", "", ("queue",), "workloads of a queue that accepted proposals stopped, shrunk or "
             "moved; queues as for the waits", "counted queue"),
    _gauge("gpu_hour_price", "1/GPU-h", ("pool", "gpu_model", "currency"), "list price of a GPU-hour, from the price "
           "file; absent where it has none", "pool"),
    # waiting work
    _gauge("pending_workloads", "", ("reason",), "pending workloads by reason code (docs/output.md); `proposed`: a "
           "start is proposed", "reason"),
    _gauge("pending_gpus", "GPUs", ("reason",), "GPUs that they request", "reason"),
    _gauge("half_started_gpus", "GPUs", (), "inactive GPUs of half-started gangs: other pods of the gang have had no "
           "node for 15 min"),
    _gauge("elsewhere_not_started_workloads", "", (), "workloads that MultiKueue has given to another cluster, with "
           "quota for 30 min or more and a status that shows no start"),
    # services
    _gauge("service_p99_seconds", "s", ("service",), "99th percentile of latency over 5 min", "service"),
    _gauge("service_objective_seconds", "s", ("service",), "latency that the service promises", "service"),
    _gauge("service_ttft_p99_seconds", "s", ("service",), "99th percentile of the time to the first token over 5 min",
           "LLM service"),
    _gauge("service_ttft_objective_seconds", "s", ("service",), "promised time to the first token of the service, "
           "if its role answers for it", "LLM service"),
    _gauge("service_itl_p99_seconds", "s", ("service",), "99th percentile of the time from one token to the next over "
           "5 min", "LLM service"),
    _gauge("service_itl_objective_seconds", "s", ("service",), "promised time from one token to the next of the "
           "service, if its role answers for it", "LLM service"),
    _gauge("service_requests_per_second", "1/s", ("service",), "requests of the last minute", "service"),
    _gauge("service_late_requests_per_second", "1/s", ("service",), "requests of the last minute over their "
           "objective; the largest of several objectives", "service"),
    _gauge("service_queued_requests", "", ("service",), "requests that wait", "service"),
    _gauge("service_replicas", "", ("service", "state"), "replicas: `present`, `ready`, `needed` by its autoscaler, "
           "`floor` and `ceiling` that the autopilot asks for now (docs/scaling.md)", "service", "5"),
    # forecasts
    _gauge("forecast_requests_per_second", "1/s", ("service", "horizon", "level"), "quantile of the highest rate "
           "within the horizon: median and highest level", "service", "3", "2"),
    _gauge("forecast_delivered_coverage_ratio", "ratio", ("service", "horizon"), "share of last week's outcomes "
           "within the highest level", "service", "3"),
    _gauge("forecast_promised_coverage_ratio", "ratio", ("horizon",), "the highest level of demand forecasts: the "
           "coverage that they promise", "3"),
    _gauge("forecast_drifting", "", ("service",), "1: the errors of its model left their usual range", "service"),
    _gauge("forecast_runtime_known_ratio", "ratio", (), "share of pending and running jobs with a forecast of their "
           "run time"),
    # decisions
    _gauge("recommendation_info", "", ("id", "action", "kind", "target", "tenant", "mode", "reason", "confidence"),
           "1 for each open recommendation, at most 50, the highest gain first; dropped when closed", "recommendation"),
    _gauge("recommendation_gain_gpu_seconds", "GPU-s", ("id",), "its gain", "recommendation"),
    _gauge("recommendation_cost_gpu_seconds", "GPU-s", ("id",), "its expected cost", "recommendation"),
    _gauge("recommendation_worst_cost_gpu_seconds", "GPU-s", ("id",), "its worst-case cost", "recommendation"),
    _gauge("recommendations", "", ("action",), "open recommendations, all of them", "action"),
    _counter("decisions_total", "", ("action", "answer"), "proposals by answer, counted at each tick", "action", "4"),
    _counter("refusals_total", "", ("guard", "code"), "verdicts that refused a proposal, counted at each tick",
             "guard and code"),
    _counter("accepted_gain_gpu_seconds_total", "GPU-s", ("action",), "gain of accepted proposals", "action"),
    _counter("accepted_cost_gpu_seconds_total", "GPU-s", ("action",), "expected cost of accepted proposals", "action"),
    _counter("lost_gpu_seconds_total", "GPU-s", (), "progress that stopped work really lost, where its source "
             "reports it"),
    _counter("disruptions_total", "", ("contract",), "workloads stopped, shrunk or moved by accepted proposals", "2"),
    _gauge("most_stops_of_one_workload", "", (), "most disruptions of one workload within the window of the budget"),
    # effects
    _gauge("effects_in_flight", "", ("operation", "state"), "effects that have not ended", "operation", "5"),
    _counter("effects_total", "", ("operation", "result"), "ended effects: `done`, `conflict`, `failed`", "operation",
             "3"),
    _counter("effect_failures_total", "", ("operation", "cause"), "attempts at effects that failed, met a conflict or "
             "were declined, by cause (docs/operations.md); an effect may take several attempts", "operation",
             "failure cause"),
    Metric("effect_duration_seconds", "histogram", "s", ("operation",), "from the instruction to its end",
           ("operation",)),
    # the controller
    Metric("tick_stage_duration_seconds", "histogram", "s", ("stage",), "duration of a stage of a tick", ("stage",)),
    _counter("ticks_total", "", ("result",), "ticks: `decided`, or `halted` (kill switch, pause, clock, no view)", "2"),
    _gauge("tick_age_seconds", "s", (), "time since the last tick"),
    _gauge("collector_age_seconds", "s", ("collector",), "age of the newest data of a collector", "collector"),
    _counter("watch_restarts_total", "", ("kind",), "watches of a kind of objects that ended by an error that nobody "
             "expects, and were restarted", "listed kind"),
    _gauge("collector_gaps", "", ("collector",), "values that a collector reports as missing", "collector"),
    _gauge("telemetry_gpus", "GPUs", ("quality",), "GPUs by the counter behind their fresh SM activity: `sm_active`, "
           "`gr_engine`, `gpu_util`, or `none`", "4"),
    _gauge("action_mode", "", ("action", "mode"), "1 for the mode of each action", "action"),
    # promised and realised, of actions with a finished case
    _gauge("promise_cases", "", ("action",), "finished cases by which a weighed action is judged",
           "judged action"),
    _gauge("promised_use_gpu_seconds", "GPU-s", ("action",), "what these cases promised: use before the start without "
           "the action, less the expected loss", "judged action"),
    _gauge("realised_use_gpu_seconds", "GPU-s", ("action",), "what they realised: measured use less the measured loss; "
           "negative where more was lost", "judged action"),
    _counter("promise_unknown_cases_total", "", ("action",), "finished cases that do not count: a start, a run time or "
             "a loss is not known", "judged action"),
    _gauge("action_capped", "", ("action",), "1: the action may only recommend, because it realised too little of its "
           "promise", "judged action"),
    _gauge("contracts_held", "", (), "proposals that wait because contracts took twice what their work needs within "
           "the hour"),
    _gauge("kill_switch", "", (), "1: no effect leaves, also when the switch cannot be read"),
    _gauge("policy_problem", "", (), "1: the policy is gone or invalid, or its modes are restrained"),
    _gauge("paused", "", ("by",), "1: paused by the `autopilot` or a `person`", "2"),
    _counter("recommendation_writes_total", "", ("result",), "writes of the objects Recommendation: `written`, or "
             "`refused` by the API server", "2"),
    _counter("recommendation_answers_total", "", ("verdict",), "approvals and rejections by annotation: `approved`, "
             "`rejected`, `refused`", "3"),
    _counter("denied_requests_total", "", ("reason",), "requests to the HTTP API that were denied: `token` missing or "
             "unknown, `role` too low", "2"),
    _counter("notices_total", "", ("way", "result"), "notices to owners by `slack` or `mail`: `sent`, `failed`, "
             "`dropped` by the limit of an hour, `no_address`", "2", "4"),
    _counter("identity_conflicts_total", "", (), "times that another process renewed the Lease under the identity of "
             "this one"),
    _gauge("leader", "", (), "1: this process decides; 0: another one does"),
    _gauge("fence", "", (), "fencing token of the leadership"),
    _gauge("build_info", "", ("version",), "1, with the version"),
    _gauge("audit_head", "", ("digest",), "sequence of the last line of the audit log, with its digest"),
)  # fmt: skip

BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}
